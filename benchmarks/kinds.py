"""Many kinds of problems, small and large: the exact SVM beside scikit-learn's (LIBSVM) and scikit-learn-intelex's.

python -m benchmarks.kinds [--only NAME ...] [--rivals NAME ...] [--rounds N] [--threads N] [--results FILE.json]

Seconds are processor seconds of one fit and one prediction. Rivals run in turn, each in a fresh process on the same
number of cores: the first fit and prediction load and compile, later ones are timed, and the median counts. The ratio
is that of the best rival to ours, its aim 1 below 10 ms, 1.5 below 1 s and 3 from there on. scikit-learn-intelex takes
part if it is installed.

A second line per kind compares the solutions, each rival's in turn: the largest violation of the optimality conditions,
in units of tol, from the coefficients and scikit-learn's kernel values in double precision; the largest distance of
decisions from those of a solution with a tolerance of tol / 10,000, in units of tol; and the share of that solution's
objective that is missing. A rival whose violation is above 2 tol has stopped early and is no rival in time: LIBSVM's
single-precision kernel values leave up to 480 tol if C is 1e6. Without the conditions (more than 6,000 support
vectors) violation and objective are NaN.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.metrics.pairwise import pairwise_kernels

import casvm
from benchmarks.race import headline
from benchmarks.results import record, recording
from benchmarks.svm_search import within
from benchmarks.svm_wide import text_like
from casvm.model.part_svm import PartSVM

RIVALS = ("ours", "libsvm", "oneDAL")
_OURS = {"SVC": "SMOSVC", "NuSVC": "SMONuSVC", "SVR": "SMOSVR", "NuSVR": "SMONuSVR", "OneClassSVM": "SMOOneClassSVM"}
_TEST, _TOL, _CACHE_GIB = 1000, 1e-3, 1.0
_TIMED, _MOST = 0.5, 25  # seconds of timed repetitions in a process, and their largest number
_FEW = 6000  # most support vectors whose kernel values are computed again
_SOLVED = 2.0  # violation, in tol, up to which a rival's problem counts as solved
_FINER = 1e-4  # tolerance of the reference, in tol
_AIMS = ((0.01, 1.0), (1.0, 1.5), (np.inf, 3.0))  # ratio to reach while the best rival takes less than so many seconds

Rows = Any
Vector = NDArray[np.float64]
Data = tuple[Rows, NDArray[Any], Rows]  # training rows, targets, rows to predict


def _normal(n: int, d: int, noise: float = 0.0, seed: int = 0) -> Data:
    """Normal numbers with two classes; a share `noise` of the labels is drawn at random."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + _TEST, d))
    y = (X[:, : max(2, d // 4)].sum(axis=1) > 0).astype(int)
    drawn = rng.random(len(y)) < noise
    y[drawn] = rng.integers(0, 2, drawn.sum())
    return X[:n], y[:n], X[n:]


def _clusters(n: int, d: int, classes: int, spread: float = 1.0, seed: int = 0) -> Data:
    """Classes of three Gaussian clusters each."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(3 * classes, d))
    which = rng.integers(0, 3 * classes, n + _TEST)
    X = centers[which] + spread * rng.normal(size=(n + _TEST, d))
    return X[:n], which[:n] % classes, X[n:]


def _binary(n: int, d: int, share: float, form: Callable[[Vector], Rows], seed: int = 0) -> Data:
    """Zeros and ones, labels by a linear rule, one in ten wrong."""
    rng = np.random.default_rng(seed)
    X = (rng.random((n + _TEST, d)) < share * 2 * rng.random(d)).astype(float)
    score = X @ rng.normal(size=d)
    y = (score > np.median(score)) ^ (rng.random(len(X)) < 0.1)
    return form(X[:n]), y[:n].astype(int), form(X[n:])


def _categories(n: int, seed: int = 0) -> Data:
    """Indicators of 22 categories of 5 or 6 levels, 112 in all, that separate two classes by a linear rule."""
    rng = np.random.default_rng(seed)
    levels = [6 if j < 2 else 5 for j in range(22)]
    X = np.hstack([np.eye(k)[rng.choice(k, 2 * (n + _TEST), p=rng.dirichlet(np.ones(k)))] for k in levels])
    score = X @ rng.normal(size=X.shape[1])
    score -= np.median(score)
    apart = np.argsort(-np.abs(score), kind="stable")[: n + _TEST]
    apart = rng.permutation(apart)
    return X[apart[:n]], (score[apart[:n]] > 0).astype(int), X[apart[n:]]


def _smooth(n: int, d: int, noise: float, seed: int = 0) -> Data:
    """A smooth function of uniform features, standardised, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.7, 1.7, size=(n + _TEST, d))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2 % d] + 0.5 * X[:, 3 % d] ** 2
    y = (y - y.mean()) / y.std() + noise * rng.normal(size=len(y))
    return X[:n], y[:n], X[n:]


def _machine(n: int, seed: int = 0) -> Data:
    """Skewed features of very different spread and a target in percent, like those of a computer's activity."""
    rng = np.random.default_rng(seed)
    X = np.exp(rng.normal(size=(n + _TEST, 12)) * rng.uniform(0.3, 1.2, 12))
    load = np.log1p(X[:, :4]).sum(axis=1) + 0.5 * np.log1p(X[:, 4] * X[:, 5])
    y = 100.0 / (1.0 + np.exp(load - 4.0)) + rng.normal(size=len(X))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return X[:n], y[:n], X[n:]


def _bundled(load: Callable[..., Any], n: int | None = None) -> Data:
    """A data set that scikit-learn brings along."""
    X, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    return X[:n], y[:n], X if n is None else X[n:]


def _text(n: int) -> Data:
    X, y = text_like(n + _TEST, 50_000, 100, seed=1)
    return X[:n], y[:n], X[n:]


def _given(data: Data, gamma: float) -> Data:
    """Kernel values with the training rows instead of rows."""
    X, y, T = data
    return pairwise_kernels(X, metric="rbf", gamma=gamma), y, pairwise_kernels(T, X, metric="rbf", gamma=gamma)


class Kind(NamedTuple):
    """Data, scikit-learn's class, and its parameters."""

    data: Callable[[], Data]
    estimator: str
    settings: dict[str, Any]


KINDS = {
    "noise, 4,000 x 784": Kind(partial(_normal, 4000, 784, 0.5), "SVC", {"C": 10.0}),
    "one class, 6,000 x 16": Kind(partial(_normal, 6000, 16), "OneClassSVM", {"nu": 0.05}),
    "one class, nu .5": Kind(partial(_clusters, 6000, 16, 4), "OneClassSVM", {"nu": 0.5}),
    "240 x 8,000, rbf": Kind(partial(_normal, 240, 8000), "SVC", {"C": 1.0}),
    "240 x 8,000, linear": Kind(partial(_normal, 240, 8000), "SVC", {"C": 1.0, "kernel": "linear"}),
    "10 classes, 6,000 x 16": Kind(partial(_clusters, 6000, 16, 10, 0.5), "SVC", {"C": 10.0}),
    "26 classes, 12,000 x 16": Kind(partial(_clusters, 12_000, 16, 26, 0.7), "SVC", {"C": 32.0}),
    "zeros and ones, linear": Kind(partial(_categories, 6500), "SVC", {"kernel": "linear"}),
    "the same, labels wrong": Kind(partial(_binary, 6500, 112, 0.2, np.asarray), "SVC", {"kernel": "linear"}),
    "zeros and ones, rbf, CSR": Kind(partial(_binary, 6500, 112, 0.12, sp.csr_matrix), "SVC", {}),
    "digits": Kind(partial(_bundled, datasets.load_digits, 1437), "SVC", {}),
    "iris, C 1e6": Kind(partial(_bundled, datasets.load_iris), "SVC", {"C": 1e6}),
    "wine, C 1e6": Kind(partial(_bundled, datasets.load_wine), "SVC", {"C": 1e6}),
    "breast cancer, C 1e6": Kind(partial(_bundled, datasets.load_breast_cancer), "SVC", {"C": 1e6}),
    "sigmoid": Kind(partial(_normal, 2000, 20, 0.2), "SVC", {"kernel": "sigmoid", "gamma": 0.01}),
    "polynomial": Kind(partial(_normal, 4000, 20, 0.1), "SVC", {"kernel": "poly", "coef0": 1.0}),
    "precomputed, 4,000": Kind(
        lambda: _given(_normal(4000, 10, 0.1), 0.1), "SVC", {"kernel": "precomputed", "C": 10.0}
    ),
    "nu classes": Kind(partial(_normal, 5000, 20, 0.1), "NuSVC", {"nu": 0.3}),
    "small regression": Kind(partial(_smooth, 500, 8, 0.1), "SVR", {"C": 10.0}),
    "200 x 4": Kind(partial(_normal, 200, 4, 0.1), "SVC", {}),
    "text, 10,000 x 50,000": Kind(partial(_text, 10_000), "SVC", {"C": 10.0, "gamma": 1.0}),
    "nu regression, 13,000 x 8": Kind(partial(_smooth, 13_000, 8, 0.2), "NuSVR", {"nu": 0.5}),
    "regression, 13,000 x 8": Kind(partial(_smooth, 13_000, 8, 0.2), "SVR", {"C": 10.0}),
    "activity, 8,192 x 12": Kind(partial(_machine, 8192), "SVR", {"C": 100.0, "epsilon": 0.5}),
    "two classes, 8,800 x 68": Kind(partial(_clusters, 8800, 68, 2, 2.0), "SVC", {"C": 10.0}),
    "class weights": Kind(partial(_normal, 12_000, 20, 0.2), "SVC", {"C": 1.0, "class_weight": {0: 1.0, 1: 5.0}}),
    "linear, CSR, 8,000 x 300": Kind(partial(_binary, 8000, 300, 0.05, sp.csr_matrix), "SVC", {"kernel": "linear"}),
    "narrow, 20,000 x 20": Kind(partial(_clusters, 20_000, 20, 2, 0.7), "SVC", {"C": 32.0, "gamma": 0.5}),
    "10 classes, 7,000 x 256": Kind(partial(_clusters, 7000, 256, 10, 2.0), "SVC", {"C": 10.0}),
}


class Run(NamedTuple):
    """Results of one process: seconds, decisions, objective and violation or NaN, number of support vectors."""

    fit: float
    predict: float
    decisions: Vector
    objective: float
    violation: float
    support: int


def _estimator(who: str, kind: Kind) -> Any:
    settings = kind.settings | {"tol": _TOL * (_FINER if who == "reference" else 1.0)}
    if kind.estimator in ("SVC", "NuSVC"):
        settings["decision_function_shape"] = "ovo"
    if who in ("ours", "reference"):
        return getattr(casvm, _OURS[kind.estimator])(**settings, cache_gib=_CACHE_GIB)
    if who == "oneDAL":
        from sklearnex import svm
    else:
        from sklearn import svm
    return getattr(svm, kind.estimator)(**settings, cache_size=1024 * _CACHE_GIB)


def _timed(work: Callable[[], Any]) -> float:
    """Median processor seconds of the calls after the first, which compiles."""
    work()
    seconds: list[float] = []
    while sum(seconds) < _TIMED and len(seconds) < _MOST:
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return statistics.median(seconds)


def run(who: str, kind: str, data: Data, cores: list[int]) -> Run:
    """Time one rival in this process, on these cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    X, y, T = data
    model = _estimator(who, KINDS[kind])
    if who == "reference":
        fit = predict = float("nan")
        model.fit(X, y)
    else:
        fit = _timed(lambda: model.fit(X, y))
        predict = _timed(lambda: model.predict(T))
    decisions = getattr(model, "decision_function", model.predict)(T)
    return Run(fit, predict, np.asarray(decisions), *_checked(model, X, y, KINDS[kind]), len(model.support_))


class _ModelDual(NamedTuple):
    """A dual of :mod:`cacore.svm.dual`: coefficients, linear term and bounds of all rows, and its sets of rows."""

    beta: Vector
    linear: Vector
    lower: Vector
    upper: Vector
    sides: list[NDArray[np.bool_]]  # rows among which pairs are formed


def _duals(model: Any, y: Vector, kind: Kind) -> list[_ModelDual]:
    """The duals that a model solves, one per pair of classes."""
    settings, n, rows = kind.settings, len(y), np.asarray(model.support_, np.int64)
    coef = np.asarray(model.dual_coef_.todense() if sp.issparse(model.dual_coef_) else model.dual_coef_, np.float64)
    every = [np.ones(n, np.bool_)]
    if kind.estimator in ("SVC", "NuSVC"):
        counts, duals = np.asarray(model.n_support_, np.int64), list[_ModelDual]()
        weights = PartSVM(np.arange(len(counts)), y, rows, coef, np.zeros(0), counts).weights().T
        for (first, second), column in zip(combinations(model.classes_, 2), weights, strict=True):
            beta, sign = np.zeros(n), np.where(y == first, 1.0, np.where(y == second, -1.0, 0.0))
            beta[rows] = column if len(counts) > 2 else -column
            C = np.abs(beta).max() if kind.estimator == "NuSVC" else settings.get("C", 1.0)
            bound = C * sign * np.array([settings.get("class_weight", {}).get(label, 1.0) for label in y])
            sides = [sign > 0, sign < 0] if kind.estimator == "NuSVC" else [sign != 0]
            duals.append(_ModelDual(beta, -sign, np.minimum(bound, 0.0), np.maximum(bound, 0.0), sides))
        return duals
    beta = np.zeros(n)
    beta[rows] = coef[0]
    if kind.estimator == "OneClassSVM":
        return [_ModelDual(beta, np.zeros(n), np.zeros(n), np.ones(n), every)]
    bound = np.full(n, settings.get("C", 1.0))
    if kind.estimator == "SVR":
        return [_ModelDual(beta, -y, -bound, bound, every)]
    none, first = np.zeros(n), np.arange(2 * n) < n
    both = np.maximum(beta, 0.0), np.minimum(beta, 0.0)
    return [_ModelDual(np.r_[both], np.r_[-y, -y], np.r_[none, -bound], np.r_[bound, none], [first, ~first])]


def _checked(model: Any, X: Rows, y: Vector, kind: Kind) -> tuple[float, float]:
    """Dual objective, summed over the pairs of classes, and the largest violation; NaN of very large models.

    The objective of nu-SVC, whose solutions are scaled by their margins, is NaN as well.
    """
    rows = np.asarray(model.support_, np.int64)
    if len(rows) > _FEW:
        return float("nan"), float("nan")
    n, names = X.shape[0], {"degree": 3, "coef0": 0.0} | kind.settings
    kernel, duals = names.get("kernel", "rbf"), _duals(model, y, kind)
    epsilon = names.get("epsilon", 0.1) if kind.estimator == "SVR" else 0.0
    betas = np.array([dual.beta.reshape(-1, n).sum(axis=0)[rows] for dual in duals])
    options = {} if kernel == "linear" else {"gamma": _gamma(X, names.get("gamma", "scale"))}
    options |= {"coef0": names["coef0"]} if kernel in ("poly", "sigmoid") else {}
    products = np.empty((len(duals), n))
    for lo in range(0, n, 1000):
        block = X[lo : lo + 1000]
        K = block[:, rows] if kernel == "precomputed" else pairwise_kernels(block, X[rows], metric=kernel, **options)
        products[:, lo : lo + 1000] = (K @ betas.T).T
    objective = worst = 0.0
    for dual, beta, product in zip(duals, betas, products, strict=True):
        objective -= float(dual.linear @ dual.beta) + epsilon * float(np.abs(beta).sum())
        objective -= 0.5 * float(beta @ product[rows])
        v, near = -dual.linear - np.resize(product, len(dual.beta)), 1e-9 * (dual.upper - dual.lower)
        rise = np.where(dual.beta < dual.upper - near, v + np.where(dual.beta < 0, epsilon, -epsilon), -np.inf)
        fall = np.where(dual.beta > dual.lower + near, v + np.where(dual.beta > 0, -epsilon, epsilon), np.inf)
        violation = max(float(rise[side].max() - fall[side].min()) for side in dual.sides)
        worst = max(worst, violation / (dual.upper.max() if kind.estimator == "NuSVC" else 1.0))
    return float("nan") if kind.estimator == "NuSVC" else objective, worst


def _gamma(X: Rows, gamma: float | str) -> float:
    if gamma != "scale":
        return float(gamma)
    mean = X.mean()
    variance = X.multiply(X).mean() - mean**2 if sp.issparse(X) else X.var()
    return float(1.0 / (X.shape[1] * variance))


def compare(name: str, rivals: list[str], args: argparse.Namespace) -> None:
    """Run a kind in turn; print and record its row."""
    kind, data = KINDS[name], KINDS[name].data()
    names = [who for who in rivals if who != "oneDAL" or kind.estimator != "OneClassSVM"]  # it has none
    runs = {who: list[Run]() for who in names}
    cores = sorted(os.sched_getaffinity(0))[-args.threads :] if hasattr(os, "sched_getaffinity") else []
    for _ in range(args.rounds):
        for who in names:
            result = within(args.most, run, who, name, data, cores)
            if result is not None:
                runs[who].append(result)
    last = {who: results[-1] for who, results in runs.items() if results}
    solved = [who for who, result in last.items() if who != "ours" and not result.violation > _SOLVED * _TOL]
    cells = [f"{name:<26}"]
    for what in ("fit", "predict"):
        seconds = {who: statistics.median(getattr(result, what) for result in runs[who]) for who in last}
        for who, value in seconds.items():
            record(race=f"{name}: {what}", rival=who, peer="libsvm", processor_seconds=value)
        best = min((seconds[who] for who in solved), default=float("nan"))
        mine = seconds.get("ours", float("nan"))
        aim = next(ratio for below, ratio in _AIMS if not best >= below) if what == "fit" else 1.0
        times = " ".join(f"{1e3 * seconds.get(who, float('nan')):9.2f}" for who in rivals)
        cells.append(f"{times} {best / mine:6.2f}{' ' if best / mine >= aim else '*'}")
    print("  ".join([*cells, f"{last['ours'].support:6}" if "ours" in last else ""]), flush=True)
    _compare_solutions(name, rivals, last, within(args.most, run, "reference", name, data, cores))


def _compare_solutions(name: str, rivals: list[str], last: dict[str, Run], reference: Run | None) -> None:
    """Print and record violations, distances from the reference's decisions, and missing shares of its objective."""
    figures = {}
    for who, result in last.items():
        apart = less = float("nan")
        if reference is not None:
            apart = float(np.abs(result.decisions - reference.decisions).max()) / _TOL
            less = (reference.objective - result.objective) / abs(reference.objective)
        figures[who] = result.violation / _TOL, apart, less
        record(race=name, rival=who, violation=figures[who][0], apart=apart, missing=less)
    columns = zip(*(figures.get(who, (float("nan"),) * 3) for who in rivals), strict=True)
    forms = (("violation", "9.3g"), ("apart", "9.3g"), ("missing", "9.1e"))
    print(
        "    "
        + "  ".join(
            f"{what} {' '.join(f'{value:{form}}' for value in values)}"
            for (what, form), values in zip(forms, columns, strict=True)
        ),
        flush=True,
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"one of: {'; '.join(KINDS)}; or a part of a name")
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=list(RIVALS))
    parser.add_argument("--rounds", metavar="N", type=int, default=1)
    parser.add_argument("--threads", metavar="N", type=int, default=1)
    parser.add_argument("--most", metavar="SECONDS", type=float, default=600.0, help="time limit of a process")
    parser.add_argument("--results", metavar="FILE", type=Path)
    args = parser.parse_args()
    rivals = [who for who in args.rivals if who != "oneDAL" or find_spec("sklearnex")]
    if rivals != args.rivals:
        print("scikit-learn-intelex is not installed: without oneDAL")
    headline()
    titles = " ".join(f"{who:>9}" for who in rivals)
    print(f"{'milliseconds':<26}  {titles}   ratio  {titles}   ratio  vectors")
    with recording("kinds") if args.results else nullcontext() as results:
        for name in KINDS:
            if not args.only or any(part in name for part in args.only):
                compare(name, rivals, args)
    if results is not None:
        results.save(args.results)


if __name__ == "__main__":
    main()
