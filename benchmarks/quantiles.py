"""Quantiles of CAQuantileSVR and SMOQuantileSVR: coverage, intervals, pinball loss beside other software, time.

python -m benchmarks.quantiles coverage DATA_FOLDER [--only NAME ...] [--splits N] [--rows N]
python -m benchmarks.quantiles peers DATA_FOLDER [--only NAME ...] [--rows N] [--kernel NAME]
python -m benchmarks.quantiles searched DATA_FOLDER [--only NAME ...] [--splits N] [--rows N] [--kernel NAME]
python -m benchmarks.quantiles time DATA_FOLDER [--only NAME ...] [--rows N] [--rounds N]

Rows are drawn at random; features are standardised by the training rows. C and gamma are those of the default grid with
the smallest pinball loss on held-out rows; they are chosen once for each data set, on its first split.

`coverage` trains on N rows of each split, and tests on as many others: the share of the test targets below the
quantiles .1, .5 and .9, as they are and calibrated; and coverage and mean width of conformalised intervals of 90 and
95 %. A quarter of the training rows is held out for both. Beside these stand intervals from BKRR2's errors on as many
held-out rows, of constant width, and in proportion to its standard deviations (adaptive). MAPIE, if it is installed,
conformalises on as many rows: our quantiles, and those of histogram gradient boosting.

`peers` compares the pinball loss, mean of the three quantiles, with scikit-learn's histogram gradient boosting, one
model for each quantile, whose number of iterations is chosen by early stopping; and with its QuantileRegressor, a
linear program, on Nystroem features of the same kernel, as many as fit into our time, if it is the Gaussian.

`searched` compares the loss after a search, on several splits: CAQuantileSVR in one part, which chooses C and gamma
from the default grid, with and without length scales; and boosting, of which a random search over learning rate,
leaves, rows per leaf, penalty and share of features, judged on a fifth of the rows, takes as many processor seconds as
the slower of the two. Its best setting is trained again on all rows, with early stopping. `taskset -c 0` before the
command makes it one thread.

`time` sets SMOQuantileSVR with one and with three quantiles beside SMOSVR with the same C and gamma: with an epsilon
of a tenth of the deviation, and of 0, as quantiles have. The median at C is the same problem as epsilon 0 at C / 2.
They take turns; the least processor seconds of all rounds count. `taskset -c 0` before the command makes it one thread.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import QuantileRegressor
from sklearn.metrics import mean_pinball_loss

from benchmarks.krr_data import SETS, load
from benchmarks.race import copy_rate, headline, machine_rate
from benchmarks.results import record
from cakrr import BKRR2
from casvm import SMOSVR, CAQuantileSVR, SMOQuantileSVR

ONLY = ("cadata", "CASP", "kin40k", "space_ga_scale")
LEVELS, COVERAGES = (0.1, 0.5, 0.9), (0.9, 0.95)
SIDES = (0.025, 0.05, 0.95, 0.975)  # quantiles of the intervals
Rows = NDArray[np.float64]
Split = tuple[Rows, Rows, Rows, Rows]  # training rows and targets, test rows and targets


def splits(folder: Path, name: str, rows: int, count: int) -> Iterator[Split]:
    """Yield random splits with up to `rows` training rows, and as many test rows."""
    X, y = load(folder, name)
    n = min(rows, len(y) // 2)
    for seed in range(count):
        order = np.random.default_rng(seed).permutation(len(y))[: 2 * n]
        A, T = X[order[:n]], X[order[n:]]
        mean, scale = A.mean(axis=0), A.std(axis=0)
        scale[scale == 0] = 1.0
        yield (A - mean) / scale, y[order[:n]], (T - mean) / scale, y[order[n:]]


def chosen(X: Rows, y: Rows, kernel: str = "gaussian") -> dict[str, float]:
    """C and gamma of the default grid."""
    model = SMOQuantileSVR(quantile=LEVELS, C="grid", gamma="grid", kernel=kernel).fit(X, y)
    found: dict[str, float] = model.best_params_
    return found


def coverage(folder: Path, name: str, args: argparse.Namespace) -> None:
    """Print the shares below the quantiles, and coverage and width of the intervals, as means over the splits."""
    below: list[list[Rows]] = []
    held: dict[str, list[Rows]] = {}
    given: dict[str, float] = {}
    for A, a, T, t in splits(folder, name, args.rows, args.splits):
        given = given or chosen(A, a)
        model = SMOQuantileSVR(quantile=LEVELS, **given).fit(A, a)
        shifted = SMOQuantileSVR(quantile=LEVELS, calibrate=0.25, random_state=0, **given).fit(A, a)
        below.append([(t[:, None] <= one.predict(T)).mean(axis=0) for one in (model, shifted)])
        for who, ends in _intervals(given, A, a, T):
            told = [(np.mean((low <= t) & (t <= high)), np.mean(high - low) / t.std()) for low, high in ends]
            held.setdefault(who, []).append(np.ravel(told))
    print(f"\n{name}: {len(a):,} rows, {len(below)} splits, {_named(given)}")
    for who, shares in zip(("as they are", "calibrated"), np.mean(below, axis=0), strict=True):
        listed = ", ".join(f"{level:g}: {share:.4f}" for level, share in zip(LEVELS, shares, strict=True))
        print(f"  share below, {who:<12} {listed}")
    for who, every in held.items():
        means = np.mean(every, axis=0)
        print(f"  {who:<22} 90 %: {means[0]:.4f}, width {means[1]:.3f}   95 %: {means[2]:.4f}, width {means[3]:.3f}")
        record(set=name, method=who, held90=means[0], width90=means[1], held95=means[2], width95=means[3])


def _intervals(given: dict[str, float], A: Rows, a: Rows, T: Rows) -> Iterator[tuple[str, list[tuple[Rows, Rows]]]]:
    """Ends of the intervals of each method, for both coverages."""
    ours = SMOQuantileSVR(quantile=SIDES, calibrate=0.25, random_state=0, **given).fit(A, a)
    yield "quantiles, calibrated", [ours.predict_interval(T, share) for share in COVERAGES]
    every = np.sort(ours.model_.decision_function(T), axis=1)
    yield "quantiles as they are", [(every[:, 1], every[:, 2]), (every[:, 0], every[:, 3])]
    ridge = BKRR2(calibrate=0.25, keep_factors=True, random_state=0).fit(A, a)
    yield "ridge, constant", [ridge.predict_interval(T, share) for share in COVERAGES]
    yield "ridge, adaptive", [ridge.predict_interval(T, share, "std") for share in COVERAGES]
    if find_spec("mapie"):
        ours_of = lambda level: SMOQuantileSVR(quantile=level, **given)  # noqa: E731 - beside its rival
        for who, model in (("MAPIE, our quantiles", ours_of), ("MAPIE, boosting", _boosted)):
            yield who, [_of_mapie(model, share, A, a, T) for share in COVERAGES]


def _of_mapie(model: Callable[[float], Any], share: float, A: Rows, a: Rows, T: Rows) -> tuple[Rows, Rows]:
    """MAPIE's intervals from quantile models, with a quarter of the rows held out."""
    from mapie.regression import ConformalizedQuantileRegressor

    order = np.random.default_rng(0).permutation(len(a))
    held, learnt = np.split(order, [len(a) // 4])
    levels = (0.5 - share / 2, 0.5 + share / 2, 0.5)
    fitted = [model(level).fit(A[learnt], a[learnt]) for level in levels]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ConformalizedQuantileRegressor(fitted, confidence_level=share, prefit=True)
        found.conformalize(A[held], a[held])
        ends = found.predict_interval(T, symmetric_correction=True)[1][:, :, 0]
    return ends[:, 0], ends[:, 1]


def peers(folder: Path, name: str, args: argparse.Namespace) -> None:
    """Print the pinball loss and the seconds of each rival."""
    A, a, T, t = next(splits(folder, name, args.rows, 1))
    ours = {"kernel": args.kernel, **chosen(A, a, args.kernel)}
    print(f"\n{name}: {len(a):,} training rows and as many test rows, {_named(ours)}")
    spent = {}
    for who, fit in {
        "SMOQuantileSVR": lambda: SMOQuantileSVR(quantile=LEVELS, **ours).fit(A, a).predict(T),
        "CAQuantileSVR, 4 parts": lambda: CAQuantileSVR(4, quantile=LEVELS, route="soft", **ours).fit(A, a).predict(T),
    }.items():
        spent[who], _ = _told(name, who, fit, t)
    _told(name, "gradient boosting", lambda: _each(lambda level: _boosted(level), A, a, T), t)
    budget, features = spent["SMOQuantileSVR"], 50
    while args.kernel == "gaussian":
        fit = lambda: _nystroem(ours["gamma"], features, A, a, T)  # noqa: B023, E731 - called at once
        seconds, _ = _told(name, f"linear, {features} features", fit, t)
        if seconds > budget or features >= 400:
            return
        features *= 2


def _told(
    name: str, who: str, fit: Callable[[], Rows], t: Rows, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:  # fmt: skip
    """Print and record a rival's seconds by this clock and its loss over the deviation, and return them."""
    begun = clock()
    predicted = fit()
    seconds = clock() - begun
    loss = _pinball(t, predicted) / t.std()
    print(f"  {who:<28} pinball {loss:.5f} of the deviation, {seconds:7.2f} s", flush=True)
    record(set=name, rival=who, seconds=seconds, pinball=loss)
    return seconds, loss


def _pinball(t: Rows, predicted: Rows) -> float:
    """Mean loss of the three quantiles."""
    every = [mean_pinball_loss(t, column, alpha=level) for column, level in zip(predicted.T, LEVELS, strict=True)]
    return float(np.mean(every))


def _each(model: Callable[[float], Any], A: Rows, a: Rows, T: Rows) -> Rows:
    return np.column_stack([model(level).fit(A, a).predict(T) for level in LEVELS])


def _boosted(level: float) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(loss="quantile", quantile=level, max_iter=1000, early_stopping=True)


def _nystroem(gamma: float, features: int, A: Rows, a: Rows, T: Rows) -> Rows:
    some = Nystroem(gamma=gamma, n_components=features, random_state=0).fit(A)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _each(
            lambda level: QuantileRegressor(quantile=level, alpha=1e-6), some.transform(A), a, some.transform(T)
        )


def searched(folder: Path, name: str, args: argparse.Namespace) -> None:
    """Print loss and seconds of the rivals after their own search, for each split, and the mean losses."""
    losses: dict[str, list[float]] = {}
    for number, (A, a, T, t) in enumerate(splits(folder, name, args.rows, args.splits)):
        print(f"\n{name}, split {number}: {len(a):,} training rows and as many test rows")
        seconds = 0.0
        for metric in ("none", "lengths"):
            model = CAQuantileSVR(
                1, quantile=LEVELS, C="grid", gamma="grid", kernel=args.kernel, metric=metric, standardize=True,
                random_state=0,
            )  # fmt: skip
            who = f"{args.kernel}, metric {metric}"
            spent, loss = _told(name, who, lambda: model.fit(A, a).predict(T), t, time.process_time)  # noqa: B023
            seconds = max(seconds, spent)
            losses.setdefault(who, []).append(loss)
        who = "gradient boosting"
        _, loss = _told(name, who, lambda: _best_boosted(A, a, T, seconds), t, time.process_time)  # noqa: B023
        losses.setdefault(who, []).append(loss)
    for who, every in losses.items():
        print(f"  {name}, mean of {len(every)} splits: {who:<28} {np.mean(every):.5f}")
        record(set=name, rival=who, searched=True, pinball=float(np.mean(every)), kernel=args.kernel)


def _best_boosted(A: Rows, a: Rows, T: Rows, seconds: float) -> Rows:
    """Predictions of boosting with the best setting of a random search; about this many processor seconds in all."""
    begun, rng, tried = time.process_time(), np.random.default_rng(0), []
    learn, held = np.split(rng.permutation(len(a)), [len(a) - len(a) // 5])
    spent, setting = 0.0, dict[str, Any]()  # the first one has the defaults
    while not tried or time.process_time() - begun + 2 * spent < seconds:  # another one, and the last training
        turn = time.process_time()
        made = _each(lambda level: _boosted(level).set_params(**setting), A[learn], a[learn], A[held])  # noqa: B023
        tried.append((_pinball(a[held], made), len(tried), setting))
        spent = time.process_time() - turn
        setting = {
            "learning_rate": 0.02 * 15.0 ** rng.random(), "l2_regularization": float(rng.choice([0.0, 1.0, 10.0])),
            "max_leaf_nodes": int(rng.choice([7, 15, 31, 63])), "min_samples_leaf": int(rng.choice([5, 10, 20, 40])),
            "max_features": float(rng.choice([0.5, 1.0])),
        }  # fmt: skip
    print(f"  boosting compared {len(tried)} settings")
    best = min(tried)[2]
    return _each(lambda level: _boosted(level).set_params(**best), A, a, T)


def timed(folder: Path, name: str, args: argparse.Namespace) -> None:
    """Race one and three quantiles against SMOSVR."""
    A, a, _, _ = next(splits(folder, name, args.rows, 1))
    given = chosen(A, a)
    rivals = {
        "SMOSVR": lambda: SMOSVR(**given, epsilon=0.1 * a.std(), tol="scale").fit(A, a),
        "SMOSVR, epsilon 0": lambda: SMOSVR(**given, epsilon=0.0, tol="scale").fit(A, a),
        "one quantile": lambda: SMOQuantileSVR(quantile=0.5, **given).fit(A, a),
        "three quantiles": lambda: SMOQuantileSVR(quantile=LEVELS, **given).fit(A, a),
    }
    spent: dict[str, list[float]] = {who: [] for who in rivals}
    before = machine_rate(), copy_rate()
    for turn in range(args.rounds + 1):  # the first one compiles, and touches the memory
        for who, work in rivals.items():
            begun = time.process_time()
            work()
            spent[who] += [time.process_time() - begun] * (turn > 0)
    rates = ", ".join(
        f"{gflops:.0f} GFLOP/s and {gb:.0f} GB/s" for gflops, gb in (before, (machine_rate(), copy_rate()))
    )
    print(f"\n{name}: {len(a):,} rows, {_named(given)}; before and after: {rates}")
    least = {who: min(seconds) for who, seconds in spent.items()}
    for who, seconds in least.items():
        ratios = [f"{seconds / least[peer]:.2f} of {peer}" for peer in ("SMOSVR", "SMOSVR, epsilon 0")]
        print(f"  {who:<20} {seconds:.4f} processor seconds, median {np.median(spent[who]):.4f}; {', '.join(ratios)}")
        record(set=name, rival=who, processor_seconds=seconds, median=float(np.median(spent[who])))


def _named(given: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value if isinstance(value, str) else f'{value:.3g}'}" for key, value in given.items())


def main() -> None:
    """Run one of the benchmarks on some data sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("coverage", "peers", "searched", "time"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=ONLY, choices=tuple(SETS), metavar="NAME")
    parser.add_argument("--rows", type=int, default=4000, metavar="N", help="training rows (default: 4000)")
    parser.add_argument("--splits", type=int, default=20, metavar="N", help="random splits (default: 20)")
    parser.add_argument("--kernel", default="gaussian", metavar="NAME", help="default: gaussian")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of the race (default: 5)")
    args = parser.parse_args()
    headline()
    work = {"coverage": coverage, "peers": peers, "searched": searched, "time": timed}[args.what]
    for name in args.only:
        work(args.folder, name, args)


if __name__ == "__main__":
    main()
