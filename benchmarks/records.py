"""Published settings of kernel SVMs, run again: this package beside scikit-learn (LIBSVM) and oneDAL.

python -m benchmarks.records DATA_FOLDER [--only NAME ...] [--rivals NAME ...] [--rounds N] [--limit ROWS]

Every fit has a fresh process, whose code has been compiled and whose rows are in memory before its time begins; rivals
take turns. A matrix product and a memory copy, in the same process and before each fit, say how fast the machine was.
scikit-learn does not train on more than `--limit` rows, which would take hours. oneDAL takes part if
scikit-learn-intelex is installed. docs/records.md has the settings' sources, and the published figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_regression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks import svm_data
from benchmarks.generated import file
from benchmarks.race import copy_rate, headline, machine_rate
from benchmarks.results import record
from cacore.io import text
from cacore.machine.memory import peak_rss_mib

CACHE_GIB = 4.0
PREDICTED = 20_000  # most test rows
RIVALS = ("ours", "sklearn", "oneDAL")
OURS = {"SVC": "SMOSVC", "NuSVC": "SMONuSVC", "SVR": "SMOSVR", "NuSVR": "SMONuSVR"}

Rows = NDArray[Any]


class Split(NamedTuple):
    """Rows to train on and to predict, with their targets."""

    X: Rows
    y: Rows
    Xt: Rows
    yt: Rows


@dataclass(frozen=True)
class Setting:
    """A published setting.

    Attributes
    ----------
    rows : callable
        ``rows(folder)`` returns the `Split`.
    estimator : str
        Name of scikit-learn's class.
    params : dict
        Its parameters.
    """

    rows: Callable[[Path], Split]
    params: dict[str, Any] = field(default_factory=dict)
    estimator: str = "SVC"


def covtype_of_rapids(folder: Path, n: int | None) -> Split:
    """Class 2 against the rest; the first ten columns standardised, over all rows; the notebook's split."""
    table = text.parse(file(folder, "covtype.data.xz"))["train"]
    X, y = np.array(table.X, np.float32), (np.asarray(table.y) == 2).astype(np.int32)
    X[:, :10] = StandardScaler().fit_transform(X[:, :10])
    X, Xt, y, yt = train_test_split(X, y, random_state=77, test_size=0.1)
    return Split(X[:n], y[:n], Xt, yt)


def covtype_of_dcsvm(folder: Path) -> Split:
    """Class 2 against the rest; columns scaled to [0, 1]; 80 % of the rows, drawn with a seed of our own."""
    problem = svm_data.SETS["covtype"](folder)
    X, y = np.concatenate([problem.X, problem.Xt]), np.concatenate([problem.y, problem.yt])
    X, Xt, y, yt = train_test_split(X, y, random_state=0, train_size=464_810)
    return Split(X, y, Xt, yt)


def of_bench(name: str, n: int, standardize: bool = True) -> Callable[[Path], Split]:
    """`n` rows of a set as scikit-learn_bench draws them: from training and test rows together, in single precision."""

    def rows(folder: Path) -> Split:
        problem = svm_data.SETS[name](folder)
        X, y = np.concatenate([problem.X, problem.Xt]), np.concatenate([problem.y, problem.yt])
        if standardize:
            X = StandardScaler().fit_transform(X)
        X, Xt, y, yt = train_test_split(np.asarray(X, np.float32), y, random_state=42, train_size=n)
        return Split(X, y, Xt, yt)

    return rows


def generated_regression(_: Path) -> Split:
    """Rows of scikit-learn_bench's `make_regression`, half of them to train on."""
    X, y = make_regression(n_samples=20_000, n_features=1000, n_informative=500, random_state=42)
    X, Xt, y, yt = train_test_split(np.asarray(X, np.float32), y, random_state=42, train_size=0.5)
    return Split(X, y, Xt, yt)


_RAPIDS = {"C": 10.0, "gamma": 1.0}
SETTINGS = {
    f"covtype, cuML's notebook, {'all' if n is None else f'{n:,}'}": Setting(partial(covtype_of_rapids, n=n), _RAPIDS)
    for n in (1000, 10_000, 50_000, 100_000, None)
} | {
    "covtype, DC-SVM": Setting(covtype_of_dcsvm, {"C": 32.0, "gamma": 32.0}),
    "a9a, linear": Setting(of_bench("a9a", 5000), {"kernel": "linear"}),
    "ijcnn1, rbf": Setting(of_bench("ijcnn1", 20_000), {"C": 100.0}),
    "mnist, poly": Setting(of_bench("mnist", 20_000, standardize=False), {"kernel": "poly"}),
    "mnist, rbf": Setting(of_bench("mnist", 20_000, standardize=False)),
    "a9a, nu, poly": Setting(of_bench("a9a", 5000), {"nu": 0.1, "kernel": "poly"}, "NuSVC"),
    "a9a, nu, rbf": Setting(of_bench("a9a", 5000), {"nu": 0.1}, "NuSVC"),
    "ijcnn1, nu, rbf": Setting(of_bench("ijcnn1", 20_000), {"nu": 0.1}, "NuSVC"),
    "regression, linear": Setting(generated_regression, {"kernel": "linear", "C": 0.1}, "SVR"),
    "regression, nu, linear": Setting(generated_regression, {"kernel": "linear", "C": 0.1, "nu": 0.5}, "NuSVR"),
}


def estimator(setting: Setting, rival: str) -> Any:
    """A rival's estimator: tolerance 1e-3, the same cache, and iterations without a limit."""
    given = {"tol": 1e-3, **setting.params}
    if rival == "ours":
        import casvm

        return getattr(casvm, OURS[setting.estimator])(**given, cache_gib=CACHE_GIB)
    if rival == "oneDAL":
        from sklearnex import svm
    else:
        from sklearn import svm
    return getattr(svm, setting.estimator)(**given, cache_size=1024 * CACHE_GIB)


def measured(setting: Setting, rival: str, given: Path) -> dict[str, float]:
    """Train once in this process, and predict the test rows."""
    with np.load(given) as arrays:
        rows = Split(**arrays)
    few = np.random.default_rng(0).permutation(len(rows.y))[:2000]
    estimator(setting, rival).fit(rows.X[few], rows.y[few]).predict(rows.Xt[:10])
    rates = {"GFLOP/s": machine_rate(), "copy GB/s": copy_rate()}
    begun, used = time.perf_counter(), time.process_time()
    model = estimator(setting, rival).fit(rows.X, rows.y)
    seconds, processor = time.perf_counter() - begun, time.process_time() - used
    begun = time.perf_counter()
    score = model.score(rows.Xt, rows.yt)
    return {
        "seconds": seconds, "processor": processor, "predict": time.perf_counter() - begun, "score": float(score),
        "vectors": len(model.support_), "GB": peak_rss_mib() * 2**20 / 1e9, **rates,
    }  # fmt: skip


def compare(folder: Path, name: str, rivals: list[str], rounds: int, limit: int) -> None:
    """Run the rivals in turn, and print a line for each."""
    rows = SETTINGS[name].rows(folder)
    rows = rows._replace(Xt=rows.Xt[:PREDICTED], yt=rows.yt[:PREDICTED])
    with tempfile.TemporaryDirectory() as scratch:
        given = Path(scratch, "rows.npz")
        np.savez(given, **rows._asdict())
        runs: dict[str, list[dict[str, float]]] = {
            rival: [] for rival in rivals if rival != "sklearn" or len(rows.y) <= limit
        }
        for _ in range(rounds):
            for rival, some in runs.items():
                command = [sys.executable, "-m", "benchmarks.records", str(given), "--measure", name, rival]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                some.append(json.loads(done.stdout))
    for rival, some in runs.items():
        found = {what: statistics.median(one[what] for one in some) for what in some[0]}
        record(race=name, rival=rival, peer="sklearn", rows=len(rows.y), **found)
        print(
            f"| {name} | {len(rows.y):,} | {rival} | {found['seconds']:.2f} | {found['processor']:.2f} | "
            f"{100 * found['score']:.2f} | {found['vectors']:,.0f} | {found['predict']:.2f} | {found['GB']:.2f} | "
            f"{found['GFLOP/s']:.0f} | {found['copy GB/s']:.0f} |",
            flush=True,
        )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=["ours", "sklearn"])
    parser.add_argument("--rounds", metavar="N", type=int, default=1)
    parser.add_argument("--limit", metavar="ROWS", type=int, default=50_000)
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "RIVAL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        name, rival = args.measure
        print(json.dumps(measured(SETTINGS[name], rival, args.data)))
        return
    headline()
    print("| setting | rows | rival | seconds | processor seconds | score, % | support vectors | predict, s | GB | "
          "GFLOP/s | copy GB/s |\n|" + "---|" * 11)  # fmt: skip
    for name in args.only:
        compare(args.data, name, args.rivals, args.rounds, args.limit)


if __name__ == "__main__":
    main()
