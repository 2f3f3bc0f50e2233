"""Traces in SimGrid's replay format, and SimGrid's predictions, for comparison with an independent simulator.

``smpirun`` comes with SimGrid (Debian's libsimgrid-dev). There is one file per rank; a host computes one flop per
nanosecond.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cluster.costs import EAGER
from benchmarks.cluster.trace import COLLECTIVES, Step, Trace, collectives
from cakernels.plan.machine import Network

BYTE = 6  # SimGrid's code of MPI_BYTE
RATE = 1e9  # flops per second of a host


def installed() -> bool:
    """True if ``smpirun`` is installed."""
    return shutil.which("smpirun") is not None


def lines(trace: Trace, together: list[list[Step]], rank: int) -> Iterator[str]:
    """Yield the actions of one rank; `together` has the collective calls of all ranks.

    Raises
    ------
    ValueError
        Some of the ranks make a collective call without the others.
    """
    if any(step.team for step in trace):
        raise ValueError("SimGrid's replay format has collective calls of all ranks only")
    calls = iter(together)
    yield f"{rank} init"
    for step in trace:
        if step.seconds:
            yield f"{rank} compute {round(step.seconds * RATE)}"
        if step.call in COLLECTIVES:
            yield f"{rank} {_collective(next(calls), rank)}"
        elif step.call:
            yield f"{rank} {step.call} {step.peer} 0 {step.nbytes} {BYTE}"
    yield f"{rank} finalize"


def _collective(steps: list[Step], rank: int) -> str:
    step = steps[rank]
    if step.call == "barrier":
        return "barrier"
    if step.call == "bcast":
        return f"bcast {step.nbytes} {step.peer} {BYTE}"
    if step.call == "allreduce":
        return f"allreduce {step.nbytes} 0 {BYTE}"
    if step.call == "allgather":
        return f"allgatherv {step.nbytes} {' '.join(str(one.nbytes) for one in steps)} {BYTE} {BYTE}"
    receives = [int(one.sizes[rank]) for one in steps]
    out, into = " ".join(map(str, step.sizes)), " ".join(map(str, receives))
    return f"alltoallv {step.nbytes} {out} {sum(receives)} {into} {BYTE} {BYTE}"


def platform(network: Network, R: int) -> str:
    """A cluster with one host per node, whose ranks share its cores; star links between nodes, loopback inside."""
    link, inside, hosts = network.between, network.inside, -(-R // network.ranks_per_node)
    return f"""<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="cluster" prefix="host" suffix="" radical="0-{hosts - 1}" speed="{RATE}f" core="{network.cores_per_node}"
           bw="{1 / link.per_byte}Bps" lat="{link.latency / 2}s"
           loopback_bw="{1 / inside.per_byte}Bps" loopback_lat="{inside.latency}s"/>
</platform>
"""


def predicted(traces: list[Trace], network: Network, timeout: float = 600.0) -> float:
    """SimGrid's seconds for these traces.

    Raises
    ------
    subprocess.CalledProcessError
        SimGrid rejects the traces.
    """
    R, link = len(traces), network.far(len(traces))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        together = collectives(traces)
        for rank, trace in enumerate(traces):
            (folder / f"rank{rank}.txt").write_text("\n".join(lines(trace, together, rank)) + "\n")
        (folder / "traces.txt").write_text("".join(f"{folder}/rank{rank}.txt\n" for rank in range(R)))
        (folder / "platform.xml").write_text(platform(network, R))
        (folder / "hosts").write_text("".join(f"host{rank // network.ranks_per_node}\n" for rank in range(R)))
        overhead = f"0:{link.overhead}:0"
        done = subprocess.run(
            ["smpirun", "-np", str(R), "-platform", str(folder / "platform.xml"), "-hostfile", str(folder / "hosts"),
             "-replay", str(folder / "traces.txt"),
             f"--cfg=smpi/os:{overhead}", f"--cfg=smpi/or:{overhead}", f"--cfg=smpi/async-small-thresh:{EAGER}",
             "--cfg=smpi/bw-factor:0:1", "--cfg=smpi/lat-factor:0:1", f"--cfg=smpi/host-speed:{RATE}f"],
            capture_output=True, text=True, check=True, timeout=timeout,
        )  # fmt: skip
    found = re.search(r"[Ss]imulat(?:ed|ion) time:?\s+([\d.e+-]+)", done.stdout + done.stderr)
    if found is None:
        raise ValueError(f"SimGrid printed no time: {(done.stdout + done.stderr)[-500:]}")
    return float(found.group(1))
