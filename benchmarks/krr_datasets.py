"""Kernel ridge regression on the real data sets, through the command lines: one table.

python -m benchmarks.krr_datasets DATA_FOLDER [--out FOLDER] [--ranks R] [--only NAME ...] [--methods NAME[:ROUTE] ...]

twolevel searches its small default grid; the other methods search --sigma x --lambda.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.generated import label
from benchmarks.krr_data import SETS, native
from benchmarks.race import headline
from benchmarks.reports import facts, run
from benchmarks.results import record

METHODS = ("dckrr", "kkrr2", "bkrr2", "bkrr2:soft", "twolevel:nearest", "twolevel")


def main() -> None:
    """Convert missing data, run all methods, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("krr_datasets"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--sigma", default="0.5:8:5")
    parser.add_argument("--lambda", dest="lam", default="1e-7:1e-2:6")
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    headline()
    reports = []
    for name in args.only:
        source, shown = SETS[name], label(args.data, name)
        data = native(args.data, name, args.out / f"{shown}.h5")
        for which in args.methods:
            method, _, route = which.partition(":")
            report = args.out / f"{shown}_{which.replace(':', '_')}.json"
            settings = [] if method == "dkrr" else ["--partitions", str(source.parts)]
            settings += [] if method == "twolevel" else ["--sigma", args.sigma, "--lambda", args.lam]
            settings += ["--route", route] if route else []
            told = run(f"cakrr.{method}", data, settings, args.ranks, report)
            parts = len(told["partition_sizes"])
            record(data=shown, method=which.replace(":", ", "), ranks=args.ranks, parts=parts, **facts(told))
            reports.append(str(report))
    subprocess.run([sys.executable, "-m", "benchmarks.collect", *reports], check=True)


if __name__ == "__main__":
    main()
