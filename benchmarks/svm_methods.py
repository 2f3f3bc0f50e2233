"""All SVM methods on the real data sets (Tables 2.9 to 2.14): accuracy, iterations, seconds, bytes, messages.

python -m benchmarks.svm_methods DATA_FOLDER [--out FOLDER] [--only NAME ...] [--ranks R ...] [--tol T] [--controls]

Each method runs under mpiexec on R ranks, and in one process with the same parts, which is the fair baseline. The exact
solver on all rows is the reference for accuracy. The controls predict with the model of a random part, and with the
model of a single part.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks import reports
from benchmarks.generated import label
from benchmarks.race import headline
from benchmarks.results import record
from benchmarks.svm_data import SETS, Problem, native
from cacore.data.dataset import Dataset
from casvm import SMOSVC, bkmsvm, casvm, cpsvm, fcfssvm
from casvm.options import SVMOptions

METHODS = {
    "dissmo": [], "cascade": [], "cascade 1 pass": ["--passes", "1"], "dcsvm": [], "dcfilter": [], "cpsvm": [],
    "cpsvm soft": ["--route", "soft"], "bkmsvm": [], "fcfssvm": [], "casvm": ["--route", "nearest"],
    "casvm all": [], "casvm root": ["--initial", "root", "--route", "nearest"], "casvm root all": ["--initial", "root"],
}  # fmt: skip
COLUMNS = (
    "data", "tol", "method", "ranks", "accuracy %", "balanced %", "support vectors", "iterations",
    "init / train / predict s", "bytes init / train", "messages init / train", "bytes predicted", "peak MiB",
)  # fmt: skip


def run(name: str, problem: Problem, data: Path, which: str, ranks: int, args: argparse.Namespace) -> str:
    """Run one method; return its line of the table."""
    method = which.split()[0]
    report = args.out / f"{data.stem}_{which.replace(' ', '_')}_{ranks}_{args.tol:g}.json"
    parts = [] if method == "dissmo" else ["--partitions", str(problem.parts)]
    settings = ["--C", str(problem.C), "--gamma", str(problem.gamma), "--tol", str(args.tol), *parts, *METHODS[which]]
    right = reports.run(f"casvm.{method}", data, [*settings, "--allow-overlap"], ranks, report)
    record(data=name, method=which, ranks=ranks, parts=problem.parts, **reports.facts(right))
    seconds, comm, solver = right["seconds"], right["comm"], right["solver"]
    trained = seconds["train"] + seconds.get("wait", 0.0)
    times = f"{seconds['partition']:.2f} / {trained:.2f} / {seconds['predict']:.2f}"
    bytes_, messages = (" / ".join(f"{comm[p][k]:,}" for p in ("partition", "train")) for k in ("bytes", "messages"))
    support = sum(solver["n_support"]) if "layers" not in solver else solver["n_support"][-1]
    volume = f"{right['volume']['predicted_bytes']:,}" if "volume" in right else ""
    return (
        f"| {name} | {args.tol:g} | {which} | {ranks} | {100 * right['metrics']['accuracy']:.2f} "
        f"| {100 * right['metrics']['balanced_accuracy']:.2f} | {support:,} | {sum(solver['iterations']):,} | {times} "
        f"| {bytes_} | {messages} | {volume} | {max(right['memory']['peak_rss_mib']):,.0f} |"
    )


def exact(name: str, problem: Problem, tol: float) -> str:
    """Run the exact solver; return its line of the table."""
    few = np.random.default_rng(0).permutation(len(problem.X))[:3000]
    SMOSVC(C=problem.C, gamma=problem.gamma).fit(problem.X[few], problem.y[few])  # compiles
    begun = time.perf_counter()
    model = SMOSVC(C=problem.C, gamma=problem.gamma, tol=tol, cache_gib=4.0).fit(problem.X, problem.y)
    trained = time.perf_counter() - begun
    predicted = model.predict(problem.Xt)
    tested = time.perf_counter() - begun - trained
    right = predicted == problem.yt
    recall = np.mean([right[problem.yt == one].mean() for one in np.unique(problem.yt)])
    record(
        data=name, method="exact", ranks=1, parts=1, seconds=trained + tested, train_seconds=trained,
        predict_seconds=tested, accuracy=float(right.mean()), balanced_accuracy=float(recall),
    )  # fmt: skip
    return (
        f"| {name} | {tol:g} | exact | 1 | {100 * right.mean():.2f} | {100 * recall:.2f} | {len(model.support_):,} "
        f"| {model.n_iter_.sum():,} | 0 / {trained:.2f} / {tested:.2f} | | | | |"
    )


def controls(name: str, problem: Problem) -> None:
    """Print the accuracy of predicting with a random part's model, and with the first part's model alone."""
    rng = np.random.default_rng(1)
    for method in (casvm.METHOD, fcfssvm.METHOD, bkmsvm.METHOD, cpsvm.METHOD):
        options = SVMOptions(partitions=problem.parts, C=problem.C, gamma=problem.gamma)
        model = method(Dataset(problem.X.copy(), problem.y), options).model
        right = []
        for labels in (rng.integers(problem.parts, size=len(problem.Xt)), np.zeros(len(problem.Xt), np.int64)):
            predicted = model.labels(model.asked(problem.Xt, labels.astype(np.int32)))
            right.append(100 * np.mean(predicted == problem.yt))
        print(f"{name}, {method.name}: a random part's model {right[0]:.2f} %, the first part's alone {right[1]:.2f} %")


def main() -> None:
    """Write missing files, run the methods, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("svm_methods"))
    parser.add_argument(
        "--only", nargs="+", choices=SETS, default=["ijcnn1", "a9a", "usps", "face", "mnist", "covtype"]
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 8])
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--no-exact", action="store_true", help="skip the exact solver")
    parser.add_argument("--controls", action="store_true", help="run the controls instead of the table")
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    headline()
    if not args.controls:
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in args.only:
        problem, shown = SETS[name](args.data), label(args.data, name)
        if args.controls:
            controls(shown, problem)
            continue
        data = args.out / f"{shown}.h5"
        if not data.exists():
            native(problem, data)
        if not args.no_exact and name != "covtype":
            print(exact(shown, problem, args.tol), flush=True)
        for which in args.methods:
            for ranks in args.ranks:
                print(run(shown, problem, data, which, ranks, args), flush=True)


if __name__ == "__main__":
    main()
