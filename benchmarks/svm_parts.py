"""The methods that send nothing, on the real data sets: accuracy, seconds, bytes; and their controls.

python -m benchmarks.svm_parts DATA_FOLDER [--out FOLDER] [--only NAME ...] [--ranks R ...] [--controls]

Each method runs under mpiexec on R ranks, and in one process with the same parts, which is the honest baseline;
beside them the exact solver on all rows. The controls ask a random part's model, and one part's model alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.race import headline
from benchmarks.svm_data import SETS, Problem, native
from cacore.comm import Communicator
from casvm import SMOSVC, bkmsvm, casvm, cpsvm, fcfssvm
from casvm.options import Options
from casvm.training import Labelled, fit

METHODS = ("casvm", "casvm:all", "fcfssvm", "bkmsvm", "cpsvm", "cpsvm:soft")


def run(name: str, problem: Problem, data: Path, which: str, ranks: int, out: Path) -> str:
    """One line of the table."""
    method, _, route = which.partition(":")
    report = out / f"{name}_{which.replace(':', '_')}_{ranks}.json"
    launch = ["mpiexec", "-n", str(ranks)]
    settings = ["--C", str(problem.C), "--gamma", str(problem.gamma), "--partitions", str(problem.parts)]
    settings += ["--route", route] if route else []
    command = [*launch, sys.executable, "-m", f"casvm.{method}", str(data), *settings, "--allow-overlap"]
    subprocess.run([*command, "--quiet", "--report", str(report)], check=True)
    told = json.loads(report.read_text())
    seconds, comm, solver = told["seconds"], told["comm"], told["solver"]
    times = " / ".join(f"{seconds[phase]:.2f}" for phase in ("partition", "train", "predict"))
    sent = " / ".join(f"{comm[phase]['bytes']:,}" for phase in ("partition", "train", "predict"))
    return (
        f"| {name} | {which} | {ranks} | {100 * told['metrics']['accuracy']:.2f} "
        f"| {100 * told['metrics']['balanced_accuracy']:.2f} | {sum(solver['n_support']):,} | {times} | {sent} "
        f"| {max(told['memory']['peak_rss_mib']):,.0f} |"
    )


def exact(name: str, problem: Problem) -> str:
    """The same line for the exact solver."""
    few = np.random.default_rng(0).permutation(len(problem.X))[:3000]
    SMOSVC(C=problem.C, gamma=problem.gamma).fit(problem.X[few], problem.y[few])  # compiles
    begun = time.perf_counter()
    model = SMOSVC(C=problem.C, gamma=problem.gamma, cache_gib=4.0).fit(problem.X, problem.y)
    trained = time.perf_counter() - begun
    predicted = model.predict(problem.Xt)
    tested = time.perf_counter() - begun - trained
    right = predicted == problem.yt
    recall = np.mean([right[problem.yt == label].mean() for label in np.unique(problem.yt)])
    return (
        f"| {name} | exact | 1 | {100 * right.mean():.2f} | {100 * recall:.2f} | {len(model.support_):,} "
        f"| 0 / {trained:.2f} / {tested:.2f} | | |"
    )


def controls(name: str, problem: Problem) -> None:
    """Accuracy when a random part's model is asked, and when one part's model is all there is."""
    rng = np.random.default_rng(1)
    for method in (casvm.METHOD, fcfssvm.METHOD, bkmsvm.METHOD, cpsvm.METHOD):
        options = Options(partitions=problem.parts, C=problem.C, gamma=problem.gamma)
        model = fit(method, Labelled(problem.X.copy(), problem.y), options, Communicator()).model
        told = []
        for labels in (rng.integers(problem.parts, size=len(problem.Xt)), np.zeros(len(problem.Xt), np.int64)):
            scores = model.asked(problem.Xt, labels.astype(np.int32))
            codes = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else np.rint(scores).argmax(axis=1)
            told.append(100 * np.mean(model.classes[codes] == problem.yt))
        print(f"{name}, {method.name}: a random part's model {told[0]:.2f} %, the first part's alone {told[1]:.2f} %")


def main() -> None:
    """Write the files that are not there yet, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("svm_parts"))
    parser.add_argument(
        "--only", nargs="+", choices=SETS, default=["ijcnn1", "a9a", "usps", "face", "mnist", "covtype"]
    )
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--no-exact", action="store_true", help="leave the exact solver out")
    parser.add_argument("--controls", action="store_true", help="the controls instead of the table")
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    headline()
    if not args.controls:
        print("| data | method | ranks | accuracy % | balanced % | support vectors | partition / train / predict s "
              "| bytes partition / train / predict | peak MiB |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name in args.only:
        problem = SETS[name](args.data)
        if args.controls:
            controls(name, problem)
            continue
        data = args.out / f"{name}.h5"
        if not data.exists():
            native(problem, data)
        if not args.no_exact and name != "covtype":
            print(exact(name, problem), flush=True)
        for which in args.methods:
            for ranks in args.ranks:
                print(run(name, problem, data, which, ranks, args.out), flush=True)


if __name__ == "__main__":
    main()
