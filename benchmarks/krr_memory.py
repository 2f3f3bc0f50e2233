"""Peak memory of a rank against its rows, one m x m matrix, and 15 percent: python -m benchmarks.krr_memory DATA.h5 P.

The memory of Python, its packages and the compiled code is measured by the same command on a few rows, and subtracted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py

from cakrr.solver.local import SMALL


def peak(folder: Path, data: Path, ranks: int, parts: int, method: str) -> dict:
    """Run once and return the report."""
    report = folder / "report.json"
    launch = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    command = [*launch, sys.executable, "-m", f"cakrr.{method}", str(data), "--partitions", str(parts)]
    settings = ["--sigma", "6", "--lambda", "1e-3", "--quiet", "--report", str(report), "--allow-overlap"]
    subprocess.run([*command, *settings], check=True)
    return json.loads(report.read_text())


def main() -> None:
    """Print the figures; exit status 1 if the bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("parts", type=int)
    parser.add_argument("--method", default="bkrr2")
    args = parser.parse_args()
    kept = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = folder / "small.h5"
        with h5py.File(args.data) as source, h5py.File(small, "w") as file:
            for split in ("train", "test"):
                file[f"{split}/X"], file[f"{split}/y"] = source[f"{split}/X"][:64], source[f"{split}/y"][:64]
        for ranks in (1, 2):
            base = max(peak(folder, small, ranks, 4, args.method)["memory"]["peak_rss_mib"])
            report = peak(folder, args.data, ranks, args.parts, args.method)
            facts, largest = report["data"], max(report["partition_sizes"])
            rows = (facts["n_train"] + facts["n_test"]) * (facts["n_features"] + 1) * 8 / ranks
            matrix = 8 * largest**2
            if (
                report["threads_per_rank"] * matrix <= SMALL
            ):  # then each thread has its own matrix, see cakrr.solver.local
                matrix *= report["threads_per_rank"]
            allowed = 1.15 * (rows + matrix) / (1 << 20)
            used = max(report["memory"]["peak_rss_mib"]) - base
            kept &= used <= allowed
            print(
                f"{ranks} ranks, {args.parts} parts of {largest:,}: rows {rows / 2**20:.0f} MiB, matrix "
                f"{matrix / 2**20:.0f} MiB, allowed {allowed:.0f} MiB; used {used:.0f} MiB over {base:.0f} MiB: "
                f"{'kept' if used <= allowed else 'NOT KEPT'}"
            )
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
