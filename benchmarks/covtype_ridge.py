"""All of covtype by exact kernel ridge regression, gaussian at gamma 32: seconds, memory, iterations, accuracy.

python -m benchmarks covtype-ridge [DATA_FOLDER] [--rows N] [--lam-n MU] [--memory GIB] [--tol TOL]

Class 2 against the rest as +1 and -1, features scaled to [0, 1], 90 % of the rows to train on, as in the records of the
SVMs (`benchmarks.svm_data`). lambda n is the one of `RIDGES` for which a tenth of the training rows has the smallest
squared error on rows held out of it; `--lam-n` gives one. The fit is a command in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import svm_data
from benchmarks.race import copy_rate, headline, machine_rate
from benchmarks.results import record
from cakrr import DKRR

SIGMA = 0.125  # gamma 32
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # lambda n to choose from


def chosen(problem: svm_data.Problem) -> float:
    """The lambda n that a tenth of the training rows chooses."""
    some = np.random.default_rng(0).permutation(len(problem.y))[: len(problem.y) // 10]
    model = DKRR(sigma=SIGMA, lam=[mu / len(some) for mu in RIDGES], standardize=False, solver="cg", near=True)
    model.fit(problem.X[some], problem.y[some])
    errors = [row["validation_mse"] for row in model.grid_]
    print("| lambda n | squared error on rows held out of a tenth |\n|---|---|")
    for mu, error in zip(RIDGES, errors, strict=True):
        print(f"| {mu:g} | {error:.4f} |", flush=True)
    return RIDGES[int(np.argmin(errors))]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", metavar="N", type=int, help="first rows of the training rows alone")
    parser.add_argument("--lam-n", metavar="MU", type=float)
    parser.add_argument("--memory", metavar="GIB", type=float, default=7.0)
    parser.add_argument("--tol", type=float, default=1e-6)
    args = parser.parse_args()
    headline()
    problem = svm_data.SETS["covtype"](args.data)
    mu = args.lam_n or chosen(problem)
    problem.X, problem.y = problem.X[: args.rows], problem.y[: args.rows]
    n = len(problem.y)
    with tempfile.TemporaryDirectory() as scratch:
        data, report = svm_data.native(problem, Path(scratch, "covtype.h5")), Path(scratch, "report.json")
        del problem
        rates = machine_rate(), copy_rate()
        subprocess.run([
            sys.executable, "-m", "cakrr.dkrr", data, "--sigma", f"{SIGMA}", "--lambda", f"{mu / n!r}",
            "--no-standardize", "--classify", "--solver", "cg", "--near", "--tol", f"{args.tol!r}",
            "--memory-limit", f"{args.memory:g}", "--quiet", "--report", report,
        ], check=True)  # fmt: skip
        made = json.loads(report.read_text())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    last = made["solver"]["solutions"][-1]
    near, rows = last["near"], np.array(last["near"]["rows"], np.float64) ** 2
    found = {
        "seconds": made["seconds"]["total"], "train": made["seconds"]["train"],
        "processor": used.ru_utime + used.ru_stime, "GiB": max(made["memory"]["peak_rss_mib"]) / 1024,
        "iterations": float(max(last["iterations"])), "mean": float(rows @ near["iterations"] / rows.sum()),
        "residual": float(max(last["residual"])), "accuracy": float(made["metrics"]["accuracy"]),
    }  # fmt: skip
    record(rows=n, lam_n=f"{mu:g}", islands=near["islands"], share=near["share"], bound=near["bound"], **found)
    columns = (
        "rows", "lambda n", "seconds", "of training", "processor seconds", "peak GiB", "islands", "pairs, %",
        "norm left out", "largest rank", "iterations: most, mean by pairs", "residual", "accuracy, %", "GFLOP/s",
        "copy GB/s",
    )  # fmt: skip
    print(f"| {' | '.join(columns)} |\n|" + "---|" * len(columns))
    print(
        f"| {n:,} | {mu:g} | {found['seconds']:.0f} | {found['train']:.0f} | {found['processor']:.0f} | "
        f"{found['GiB']:.2f} | {near['islands']} | {100 * near['share']:.2f} | {near['bound']:.1e} | "
        f"{last['rank']:,} | {found['iterations']:.0f}, {found['mean']:.0f} | {found['residual']:.1e} | "
        f"{100 * found['accuracy']:.2f} | {rates[0]:.0f} | {rates[1]:.0f} |"
    )


if __name__ == "__main__":
    main()
