"""The model of the virtual cluster against ranks in network namespaces, whose link has a delay and a limited rate.

python -m benchmarks network [--methods NAME ...] [--ranks R ...] [--rows N] [--delay SECONDS] [--rate BYTES]

The cost of messages without delay and limit is measured between the namespaces first; the delay and rate of the link
are added to it, not fitted. Ranks share this machine's cores. Root is needed: see benchmarks/cluster/namespaces.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cluster.namespaces import Line, nodes, unavailable
from benchmarks.cluster.programs import PHASES, PROGRAMS, Program
from benchmarks.cluster.timeline import replay
from benchmarks.generated import MARK
from benchmarks.race import least
from benchmarks.results import Results, table
from benchmarks.scaling import generated, positive
from cacore.errors import InputError
from cacore.machine import threads
from cakernels.plan.machine import Link, Network

COLUMNS = {
    "method": "", "ranks": "", "rows": ",", "line": "", "seconds": ".3f", "computing_seconds": ".3f",
    "measured_seconds": ".3f", "ratio": ".2f", "others": ".2f",
}  # fmt: skip


def measured_link(bare: Line) -> Link:
    """Measure the link between two namespaces without delay and limit."""
    with nodes(2, bare) as (launch, environment), tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "link.json"
        command = [*launch, sys.executable, "-m", "benchmarks.cluster.calibrate", str(out)]
        subprocess.run(command, env=environment, check=True, timeout=300)
        figures = json.loads(out.read_text())
    figures.pop("reduce")
    return Link(**figures)


def network(base: Link, line: Line, ranks: int) -> Network:
    """The network model: `base` plus the delay and rate of the line; ranks share cores, but not a link."""
    link = replace(base, latency=base.latency + line.delay, per_byte=max(base.per_byte, line.per_byte))
    cores = len(threads.cores())
    return Network("namespaces", str(line), link, link, ranks, cores, pauses=True)


def seconds(launch: list[str], environment: dict[str, str], program: Program, data: Path, ranks: int) -> float:
    """Seconds of the phases of a method, from its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [f"{program.package}.{program.method}", *program.arguments(data, ranks), "--report", str(report)]
        command = [*launch, sys.executable, "-m", *words]
        subprocess.run(command, env=environment, check=True, timeout=600, stdout=subprocess.DEVNULL)
        told: dict[str, Any] = json.loads(report.read_text())
    return float(sum(told["seconds"][phase] for phase in PHASES))


def run(argv: list[str]) -> Results:
    """Run the command, print its table, and return the results.

    Raises
    ------
    InputError
        This machine cannot create the namespaces.
    """
    args = _parser().parse_args(argv)
    if why := unavailable():
        raise InputError(f"network: {why}")
    threads.set_threads(1)
    line = Line(args.delay, args.rate)
    results = Results("network", about={"data": MARK, "network": f"namespaces with {line}"})
    base = measured_link(Line())
    with tempfile.TemporaryDirectory() as folder:
        for name in args.methods:
            program = PROGRAMS[name]
            data = Path(folder) / f"{program.package}.h5"
            if not data.exists():
                generated(data, args.rows, program.package == "casvm")
            for ranks in args.ranks:
                traces = program.timed(data, ranks, args.repeats, args.memory)
                with nodes(ranks, line) as (launch, environment):
                    words = (launch, environment, program, data, ranks)
                    real, busy = least(lambda words=words: seconds(*words), args.repeats, RELAY)
                end = replay(traces, network(base, line, ranks)).end
                alone = replay(traces, replace(network(base, line, ranks), between=_NONE, inside=_NONE)).end
                results.add(method=name, ranks=ranks, rows=args.rows, line=str(line), seconds=end,
                            computing_seconds=alone, measured_seconds=real, ratio=end / real, others=busy)  # fmt: skip
                print(f"  {name}, {ranks} ranks: {end:.3f} s, measured {real:.3f}", flush=True)
    print(f"between namespaces without a line: {1e6 * base.step:.0f} us, {1e-6 / base.per_byte:.0f} MB/s")
    print(table(results.records, COLUMNS))
    return results


RELAY = 0.4  # cores that other processes may use, including the one that forwards packets
_NONE = Link(0.0, 0.0, 0.0, 0.0)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks network", description=__doc__.splitlines()[0])
    made.add_argument("--methods", nargs="+", choices=PROGRAMS, default=["dissmo", "bkrr2"], metavar="NAME")
    made.add_argument("--ranks", nargs="+", type=positive, default=[2, 4])
    made.add_argument("--rows", type=positive, default=4000)
    made.add_argument("--delay", type=float, default=1e-3, help="delay of each packet, in seconds")
    made.add_argument("--rate", type=float, default=12.5e6, help="bytes per second that a node may send")
    made.add_argument("--repeats", type=positive, default=2, help="number of runs after a warm-up; the fastest counts")
    made.add_argument("--memory", type=float, default=4.0, help="GiB of memory per rank")
    return made
