"""DKRR on R ranks of one thread against LAPACK in one process with R threads, and against BKRR2.

python -m benchmarks.dkrr_speed DATA.h5 [--rows N] [--ranks R] [--partitions P]

Each side runs in separate processes, alternating, with a matrix product before and after.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.race import headline, machine_rate

SIGMA, LAMBDA = "2", "1e-5"


def lapack(path: str, rows: str, count: str) -> None:
    """Print the seconds of the kernel matrix and of its factorisation on `count` threads; runs in its own process."""
    from cacore.comm import Communicator
    from cacore.data.standardize import Standardizer
    from cacore.io import load
    from cacore.kernels import Kernel
    from cacore.linalg import lapack
    from cacore.machine import threads

    threads.set_threads(int(count))
    X = load(path, Communicator())["train"].X[: int(rows)]
    X = Standardizer.fit(X, Communicator(), None).apply(X)
    kernel = Kernel.gaussian(float(SIGMA))
    points, K = kernel.points(X), np.empty((len(X), len(X)))
    kernel.gram(points[0:100], np.empty((100, 100)))
    begun = time.perf_counter()
    kernel.gram(points, K)
    formed = time.perf_counter()
    K.reshape(-1)[:: len(K) + 1] += float(LAMBDA) * len(K)
    assert lapack.cholesky(K) == 0
    print(json.dumps({"kernel": formed - begun, "factor": time.perf_counter() - formed}))


def ours(command: list[str], report: Path) -> dict:
    """Run a command and return its report."""
    subprocess.run([*command, "--sigma", SIGMA, "--lambda", LAMBDA, "--quiet", "--report", str(report)], check=True)
    return json.loads(report.read_text())


def main() -> None:
    """Print the rounds and the ratios; exit status 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, help="use only the first N rows (default: all)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    headline()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = args.data
        if args.rows is not None:
            data = folder / "rows.h5"
            subprocess.run([sys.executable, "-m", "benchmarks.subset", args.data, data, str(args.rows)], check=True)
        launch = ["mpiexec", "-n", str(args.ranks), sys.executable, "-m"]
        found: dict[str, list[float]] = {"lapack": [], "dkrr": [], "bkrr2": []}
        for _ in range(args.rounds):
            before = machine_rate()
            exact = ours([*launch, "cakrr.dkrr", str(data), "--threads", "1"], folder / "d.json")
            n, d = exact["data"]["n_train"], exact["data"]["n_features"]
            peer = ["-c", f"from benchmarks.dkrr_speed import lapack; lapack({str(data)!r}, '{n}', '{args.ranks}')"]
            told = json.loads(subprocess.run([sys.executable, *peer], check=True, capture_output=True).stdout)
            divided = [*launch, "cakrr.bkrr2", str(data), "--threads", "1", "--partitions", str(args.partitions)]
            parts = ours(divided, folder / "b.json")
            found["lapack"].append(told["kernel"] + told["factor"])
            found["dkrr"].append(exact["seconds"]["train"])
            found["bkrr2"].append(parts["seconds"]["train"])
            print(
                f"machine {before:.0f} to {machine_rate():.0f} GFLOP/s; LAPACK {told['factor']:.2f} s and kernel "
                f"{told['kernel']:.2f} s on {args.ranks} threads; dkrr {exact['seconds']['train']:.2f} s on "
                f"{args.ranks} ranks; bkrr2 {parts['seconds']['train']:.3f} s; MSE {exact['metrics']['mse']:.5g} and "
                f"{parts['metrics']['mse']:.5g}", flush=True,
            )  # fmt: skip
    least = {who: min(seconds) for who, seconds in found.items()}
    ratio = least["dkrr"] / least["lapack"]
    print(f"\nn = {n:,}: dkrr / (LAPACK + kernel) = {ratio:.2f} of the fastest rounds, allowed 1.20")
    peak = max(exact["memory"]["peak_rss_mib"])
    matrix, rows = 8 * n * n / args.ranks / 2**20, 8 * n * d / 2**20
    print(
        f"peak {peak:,.0f} MiB per rank; a rank's share of the matrix {matrix:,.0f}, x 1.15 = {1.15 * matrix:,.0f}; "
        f"all rows {rows:,.0f}; Python and its packages at most {max(parts['memory']['peak_rss_mib']):,.0f} (bkrr2)"
    )
    P = args.partitions
    print(f"dkrr / bkrr2 = {least['dkrr'] / least['bkrr2']:.0f}; theory says P^2 = {P * P} for P = {P}")
    sys.exit(0 if ratio <= 1.2 else 1)


if __name__ == "__main__":
    main()
