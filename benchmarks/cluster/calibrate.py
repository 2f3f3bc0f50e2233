"""Measure the cost of messages between two ranks on this machine, through the communicator: a Network of one node.

mpiexec -n 2 python -m benchmarks.cluster.calibrate [OUT.json]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cacore.comm import Communicator, world
from cacore.info.installation import node_memory
from cacore.machine import threads
from cakernels.plan.machine import Link, Network

SMALL, LARGE = 8, 1 << 23  # bytes


def seconds(work: Callable[[], object], comm: Communicator, times: int) -> float:
    """Smallest of five means over `times` calls."""
    work()
    means = []
    for _ in range(5):
        comm.barrier()
        begun = time.perf_counter()
        for _ in range(times):
            work()
        means.append((time.perf_counter() - begun) / times)
    return min(means)


def measured(comm: Communicator) -> dict[str, float]:
    """Figures of a Link, and the rate of reductions, from sums and an exchange between two ranks."""
    small, large = np.zeros(SMALL // 8), np.zeros(LARGE // 8)
    halves = np.full(comm.size, len(large) // comm.size)
    step = seconds(lambda: comm.allreduce(small), comm, 2000)
    exchanged = seconds(lambda: comm.alltoall(large, halves), comm, 5)
    added = seconds(lambda: comm.allreduce(large), comm, 5)
    per_byte = max(1e-12, (exchanged - 4 * step) / (LARGE / comm.size))
    # Halves are exchanged, reduced, and exchanged again: LARGE bytes each way.
    reduce = max(0.0, (added - 2 * step - LARGE * per_byte) / (LARGE / 2))
    return {"latency": 0.4 * step, "overhead": 0.3 * step, "gap": 0.3 * step, "per_byte": per_byte, "reduce": reduce}


def this_machine(ranks: int) -> Network:
    """Measure with two ranks under mpiexec; return a network of `ranks` ranks on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "link.json"
        command = ["mpiexec", "-n", "2", sys.executable, "-m", "benchmarks.cluster.calibrate", str(out)]
        subprocess.run(command, check=True, timeout=300)
        figures = json.loads(out.read_text())
    reduce = figures.pop("reduce")
    link = Link(**figures)
    cores, memory = len(threads.cores()), node_memory() / 2**30
    return Network("this machine", "measured between two ranks here", link, link, ranks, cores, memory, reduce, True)


def main() -> None:
    """Measure under mpiexec, and write or print the figures."""
    comm = world()
    figures = measured(comm)
    if comm.rank == 0:
        text = json.dumps(figures)
        if len(sys.argv) > 1:
            Path(sys.argv[1]).write_text(text)
        else:
            print(text)


if __name__ == "__main__":
    main()
