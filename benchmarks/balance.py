"""Part sizes, ranks' busy time and bytes of each method on virtual ranks (Figs. 2.4, 2.6, 2.7, 3.6).

python -m benchmarks.balance DATA_FOLDER [--methods NAME ...] [--ranks R] [--rows N] [--repeats N]

There is one part per rank. Each rank really computes, alone on one core, as in ``weak-scaling``, so busy seconds do not
depend on the number of cores of this machine. The data are the first rows of California housing for ridge regression,
and of ijcnn1 for the SVMs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import krr_data, svm_data
from benchmarks.cluster.programs import PROGRAMS, Program
from benchmarks.cluster.timeline import Timeline, replay
from benchmarks.generated import label
from benchmarks.race import headline
from benchmarks.reports import facts
from benchmarks.results import Record, about, record, table
from benchmarks.scaling import keep_memory, positive
from cacore import traffic
from cacore.machine import threads
from cakernels.plan.machine import PRESETS, Network

METHODS = ("kkrr2", "bkrr2", "dissmo", "cascade", "cpsvm", "bkmsvm", "fcfssvm", "casvm")
COLUMNS = {
    "data": "", "method": "", "smallest": ",", "largest": ",", "least busy": ".3f", "busiest": ".3f",
    "busiest over mean": ".2f", "seconds": ".3f", "MB": ".2f",
}  # fmt: skip


def first_rows(folder: Path, package: str, rows: int, out: Path) -> Path:
    """Write a native file with the first training rows of this package's data set."""
    path = out / f"{package}.h5"
    if not path.exists():
        if package == "cakrr":
            X, y = krr_data.load(folder, "cadata")
            half = krr_data.split(X, y, 0)
            problem = svm_data.Problem(half.X[:rows], half.y[:rows], half.T, half.t, 1.0, 1.0)
        else:
            problem = svm_data.SETS["ijcnn1"](folder)
            problem.X, problem.y, problem.Xt, problem.yt = (
                each[:rows] for each in (problem.X, problem.y, problem.Xt, problem.yt)
            )
        svm_data.native(problem, path)
    return path


def merged(line: Timeline) -> list[list[tuple[float, float, str]]]:
    """Intervals in which each rank computed, by phase; intervals with short gaps are merged."""
    found = []
    for spans in line.spans:
        busy: list[tuple[float, float, str]] = []
        for begin, end, phase, computing in spans:
            if not computing or end == begin:
                continue
            if busy and busy[-1][2] == phase and begin - busy[-1][1] < 1e-3 * line.end:
                busy[-1] = (busy[-1][0], end, phase)
            else:
                busy.append((begin, end, phase))
        found.append(busy)
    return found


def measured(program: Program, data: Path, args: argparse.Namespace, network: Network) -> Record:
    """Record of one run of a method, with figures per rank."""
    with tempfile.TemporaryDirectory() as folder:
        report, matrix = Path(folder) / "report.json", Path(folder) / "sent.npz"
        words = ("--report", str(report), "--comm-matrix", str(matrix))
        traces = program.timed(data, args.ranks, args.repeats, args.memory, words)
        told: dict[str, Any] = json.loads(report.read_text())
        told["sent"] = traffic.pattern(traffic.load(matrix)).tolist()
    line = replay(traces, network)
    busy = [sum(step.seconds for step in trace if step.phase == "train") for trace in traces]
    kept = {name: value for name, value in facts(told).items() if not name.endswith("seconds")}
    return kept | {"seconds": line.end, "busy_seconds": busy, "spans": merged(line)}


def main() -> None:
    """Print one line per method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--methods", nargs="+", choices=PROGRAMS, default=METHODS, metavar="NAME")
    parser.add_argument("--ranks", type=positive, default=8)
    parser.add_argument("--rows", type=positive, default=16_000)
    parser.add_argument("--repeats", type=positive, default=2)
    parser.add_argument("--network", choices=PRESETS, default="aries")
    parser.add_argument("--memory", type=float, default=4.0, help="GiB of memory per rank")
    args = parser.parse_args()
    headline()
    threads.set_threads(1)  # a rank computes on one core
    keep_memory()
    network = replace(PRESETS[args.network], pauses=True)
    about(network=network.source)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.methods:
            program = PROGRAMS[name]
            data = first_rows(args.data, program.package, args.rows, Path(folder))
            shown = label(args.data, "cadata" if program.package == "cakrr" else "ijcnn1")
            one = measured(program, data, args, network)
            record(data=shown, method=name, ranks=args.ranks, **one)
            sizes, busy = one["partition_sizes"], one["busy_seconds"]
            found.append(
                {"data": shown, "method": name, "smallest": min(sizes), "largest": max(sizes), "least busy": min(busy),
                 "busiest": max(busy), "busiest over mean": max(busy) * len(busy) / sum(busy),
                 "seconds": one["seconds"], "MB": one["bytes"] / 1e6}
            )  # fmt: skip
    print(f"{args.ranks} virtual ranks of one core, one part per rank; {network.source}")
    print(table(found, COLUMNS))


if __name__ == "__main__":
    main()
