"""Plans beside the runs that they plan: seconds, memory, bytes and messages, on ranks of this machine.

python -m benchmarks.plan_check [--methods NAME ...] [--ranks R ...] [--rows N ...] [--within TIME]

Rows are generated. Each run starts in fresh processes; "seconds" are those of the phases that depend on the rows.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.race import headline, machine_rate
from benchmarks.results import Record, record, table
from cakernels.plan.runs import STARTED, generated, method_named

FEATURES = 20
# Name of a row of the table: method, options.
METHODS = {
    "bkrr2": ("bkrr2", "--partitions 16"),
    "twolevel": ("twolevel", "--partitions 16"),
    "dkrr cholesky": ("dkrr", "--solver cholesky --sigma 4 --lambda 1e-4"),
    "dkrr cg": ("dkrr", "--solver cg --sigma 4 --lambda 1e-4"),
    "cpsvm": ("cpsvm", "--partitions 16 --C 10 --gamma 1"),
    "dissmo": ("dissmo", "--C 10 --gamma 1"),
    "subset": ("subset", "--centers 500,1000"),
}
COLUMNS = {
    "method": "", "rows": ",", "ranks": "", "planned_seconds": ".3g", "measured_seconds": ".3g", "seconds_ratio": ".2f",
    "planned_mib": ",.0f", "measured_mib": ",.0f", "memory_ratio": ".2f", "bytes_ratio": ".2f", "messages_ratio": ".2f",
}  # fmt: skip


def main() -> None:
    """Print one line per method, number of rows and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--rows", nargs="+", type=int, default=[5_000, 10_000, 20_000])
    parser.add_argument("--within", default="40s", help="time of the short runs")
    args = parser.parse_args()
    headline()
    found: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.methods:
            for rows in args.rows:
                for ranks in args.ranks:
                    found.append(compared(name, rows, ranks, args.within, Path(folder)))
                    record(**found[-1])
                    print(table(found[-1:], COLUMNS).splitlines()[-1], flush=True)
    print(f"matrix product afterwards {machine_rate():.0f} GFLOP/s")
    print(table(found, COLUMNS))


def compared(name: str, rows: int, ranks: int, within: str, folder: Path) -> Record:
    """Plan a training, run it, and compare."""
    method, words = METHODS[name]
    classes = method_named(method).package == "casvm"
    data, plan, made = (folder / f"{rows}-{classes}.h5", folder / "plan.json", folder / "made.json")
    if not data.exists():
        generated(rows, FEATURES, classes, seed=1).write(data, rows, "float64")
    _run(["-m", "cakernels", "plan", method, "--rows", str(rows), "--features", str(FEATURES), "--ranks", str(ranks),
          "--within", within, "--report", str(plan), "--quiet", *shlex.split(words)])  # fmt: skip
    _run(["-m", method_named(method).prog, str(data), "--report", str(made), "--quiet", *shlex.split(words)], ranks)
    (one,), run = json.loads(plan.read_text())["plans"], json.loads(made.read_text())
    phases = [phase for phase in one["seconds"] if phase not in ("start", "total")]
    seconds = [sum(found["seconds"].get(phase, 0.0) for phase in phases) for found in (one, run)]
    peaks = [one["memory"]["peak_rss_mib"], max(run["memory"]["peak_rss_mib"])]
    sent = {
        what: [sum(phase[what] for phase in found["comm"].values()) for found in (one, run)]
        for what in ("bytes", "messages")
    }
    return {
        "method": name, "rows": rows, "ranks": ranks, "planned_seconds": seconds[0], "measured_seconds": seconds[1],
        "seconds_ratio": seconds[0] / seconds[1], "planned_mib": peaks[0], "measured_mib": peaks[1],
        "memory_ratio": peaks[0] / peaks[1],
        **{f"{what}_ratio": planned / run if run else 1.0 for what, (planned, run) in sent.items()},
        "start_seconds": sum(run["seconds"].get(phase, 0.0) for phase in STARTED),
    }  # fmt: skip


def _run(words: list[str], ranks: int = 1) -> None:
    launcher = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    subprocess.run([*launcher, sys.executable, *words], check=True)


if __name__ == "__main__":
    main()
