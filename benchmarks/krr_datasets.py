"""Kernel ridge regression on the real data sets, through the command lines: one table.

python -m benchmarks.krr_datasets DATA_FOLDER [--out FOLDER] [--ranks R] [--only NAME ...] [--methods NAME[:ROUTE] ...]

twolevel searches the small grid that it has by default; the others search --sigma x --lambda.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.krr_data import SETS

METHODS = ("dckrr", "kkrr2", "bkrr2", "bkrr2:soft", "twolevel:nearest", "twolevel")


def main() -> None:
    """Convert what is not there yet, run, collect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("krr_datasets"))
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--sigma", default="0.5:8:5")
    parser.add_argument("--lambda", dest="lam", default="1e-7:1e-2:6")
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    reports = []
    for name in args.only:
        source = SETS[name]
        native = args.out / f"{name}.h5"
        if not native.exists():
            command = [sys.executable, "-m", "cacore.io", "convert", str(args.data / source.file), str(native)]
            subprocess.run([*command, *source.convert], check=True)
        for which in args.methods:
            method, _, route = which.partition(":")
            report = args.out / f"{name}_{which.replace(':', '_')}.json"
            settings = [] if method == "dkrr" else ["--partitions", str(source.parts)]
            settings += [] if method == "twolevel" else ["--sigma", args.sigma, "--lambda", args.lam]
            settings += ["--route", route] if route else []
            launch = ["mpiexec", "-n", args.ranks, sys.executable, "-m", f"cakrr.{method}", str(native)]
            subprocess.run([*launch, *settings, "--quiet", "--report", str(report)], check=True)
            reports.append(str(report))
    subprocess.run([sys.executable, "-m", "benchmarks.collect", *reports], check=True)


if __name__ == "__main__":
    main()
