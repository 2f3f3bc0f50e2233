"""Intervals and standard deviations: what share of new rows they hold, how wide they are, and what they cost.

python -m benchmarks.krr_intervals DATA_FOLDER [--only NAME ...] [--splits N] [--rows N] [--out FILE.json]
python -m benchmarks.krr_intervals DATA_FOLDER --seconds [--rows N]
python -m benchmarks.krr_intervals DATA_FOLDER --peers [--only NAME ...] [--rows N]

Each split draws rows for training, of which a share is set aside, and test rows; sigma and lambda are chosen anew in
each. Twenty generated sets have heavy tails, noise that depends on x, or both. `--seconds`: standard deviations of
50,000 rows beside plain predictions and beside LAPACK's triangular solves of as many right sides alone. `--peers`,
where they are installed: MAPIE's split conformal intervals of scikit-learn's KernelRidge, exact, on the rows, at the
width and the ridge that ours chose; and MuyGPyS, 30 neighbours of each row, a Matern-3/2 kernel whose length and noise
it chooses, whose intervals are those of a normal distribution. Seconds are those of training, choices and 90 %
intervals.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.kernel_ridge import KernelRidge
from sklearn.preprocessing import StandardScaler

from benchmarks.krr_data import SETS, load
from benchmarks.race import copy_rate, headline, machine_rate, race
from benchmarks.results import Results, table
from cacore.linalg import lapack
from cakrr import BKRR2

ALL = ("cadata", "CASP", "kin40k", "space_ga_scale")
COVERAGES = (0.9, 0.95)
PART = 1500  # rows of a part
GRID = {"sigma": (0.5, 1.0, 2.0), "lam": (1e-5, 1e-4, 1e-3, 1e-2)}  # sigma in units of its default
ASKED = 50_000

Drawn = tuple[NDArray[np.float64], NDArray[np.float64]]


def generated(number: int, n: int) -> Drawn:
    """The n-th of twenty sets: four noises of five features each, in a smooth function, and a seed of its own."""
    rng = np.random.default_rng(number)
    X = rng.uniform(-2, 2, (n, 5))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] / 2
    noises: tuple[Callable[[], NDArray[np.float64]], ...] = (
        lambda: 0.3 * rng.standard_t(2, n),
        lambda: (0.05 + 0.5 * np.abs(X[:, 0])) * rng.normal(size=n),
        lambda: np.where(X[:, 1] > 0, 1.0, 0.05) * rng.standard_t(3, n),
        lambda: np.exp(X[:, 3] / 2) * (rng.exponential(size=n) - 1),
    )
    return X, f + noises[number % len(noises)]()


def judged(X: NDArray[np.float64], y: NDArray[np.float64], rows: int, seed: int, share: float) -> list[dict[str, Any]]:
    """One split: a record for each kind of rows to calibrate on, kind of interval, and coverage."""
    place = np.random.default_rng(seed).permutation(len(X))
    n = min(rows, 3 * len(X) // 4)
    mine, others = place[:n], place[n : n + 2 * rows]
    sigma = tuple(times * X.shape[1] ** 0.5 for times in GRID["sigma"])
    found = []
    for calibrate in (share, "loo"):
        model = BKRR2(
            max(1, round(n / PART)), sigma=sigma, lam=GRID["lam"], calibrate=calibrate, keep_factors=True,
            random_state=seed,
        ).fit(X[mine], y[mine])  # fmt: skip
        for adaptive in ("", "std") if calibrate == "loo" else ("", "std", "parts"):
            for coverage in COVERAGES:
                lower, upper = model.predict_interval(X[others], coverage, adaptive or None)
                held = (lower <= y[others]) & (y[others] <= upper)
                found.append({
                    "rows": "left out" if calibrate == "loo" else "held out", "adaptive": adaptive, "asked": coverage,
                    "held": float(held.mean()), "width": float(np.mean(upper - lower)),
                })  # fmt: skip
    return found


def summary(name: str, n: int, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of all splits: mean and deviation of the coverage in points, and widths over those of the plain intervals."""
    kinds = dict.fromkeys((one["rows"], one["adaptive"], one["asked"]) for one in records)
    rows, plain = [], {}
    for kind in kinds:
        some = [one for one in records if (one["rows"], one["adaptive"], one["asked"]) == kind]
        held, width = (np.array([one[key] for one in some]) for key in ("held", "width"))
        plain.setdefault((kind[0], kind[2]), width.mean())
        rows.append({
            "data": name, "rows": n, "calibrated": kind[0], "adaptive": kind[1], "asked": kind[2], "splits": len(some),
            "held": held.mean(), "deviation": held.std(), "width": width.mean(),
            "of_plain": width.mean() / plain[kind[0], kind[2]],
        })  # fmt: skip
    return rows


def seconds(X: NDArray[np.float64], y: NDArray[np.float64], rows: int, results: Results) -> None:
    """Standard deviations, plain predictions, and triangular solves alone, of the same rows and parts."""
    rng = np.random.default_rng(0)
    n = min(rows, len(X))
    for parts in (max(1, n // 1000), max(1, n // 4000)):
        model = BKRR2(parts, sigma=X.shape[1] ** 0.5, lam=1e-4, keep_factors=True, random_state=0).fit(X[:n], y[:n])
        asked = X[rng.integers(0, n, ASKED)] + 0.01 * X.std(axis=0) * rng.normal(size=(ASKED, X.shape[1]))
        routed = np.bincount(rng.integers(0, parts, ASKED), minlength=parts)
        L = np.tril(np.full((n // parts, n // parts), 1e-3)) + np.eye(n // parts)
        blocks = [np.ones((count, len(L))) for count in routed[: max(1, 4_000_000_000 // (8 * ASKED * len(L)))]]

        def solves(L: NDArray[Any] = L, blocks: list[NDArray[Any]] = blocks) -> None:
            for block in blocks:
                lapack.solve_lower(L, block)

        timed = race(
            {
                "plain": lambda model=model, asked=asked: model.predict(asked),
                "std": lambda model=model, asked=asked: model.predict(asked, return_std=True),
                "solves": solves,
            },
            rounds=3,
        )  # fmt: skip
        times = {name: result.median for name, result in timed.items()}
        times["solves"] *= ASKED / sum(len(block) for block in blocks)
        m, d = n // parts, X.shape[1]
        results.add(
            parts=parts, m=m, asked=ASKED, plain_seconds=times["plain"], std_seconds=times["std"],
            solves_seconds=times["solves"], of_solves=times["std"] / times["solves"],
            of_plain=times["std"] / times["plain"], bound=3 * m / d, gflops=machine_rate(), copied_gbps=copy_rate(),
        )  # fmt: skip


def peers(name: str, X: NDArray[np.float64], y: NDArray[np.float64], rows: int, share: float, results: Results) -> None:
    """One split: 90 % intervals by us, and by others."""
    place = np.random.default_rng(0).permutation(len(X))
    n = min(rows, 3 * len(X) // 4)
    scaler = StandardScaler().fit(X[place[:n]])
    A, T = scaler.transform(X[place[:n]]), scaler.transform(X[place[n : n + 2 * rows]])
    b, t = y[place[:n]], y[place[n : n + 2 * rows]]
    ours = BKRR2(
        max(1, round(n / PART)), sigma=tuple(times * X.shape[1] ** 0.5 for times in GRID["sigma"]), lam=GRID["lam"],
        calibrate=share, keep_factors=True, standardize=False, random_state=0,
    )  # fmt: skip

    def cakernels(adaptive: str | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return ours.fit(A, b).predict_interval(T, 0.9, adaptive)

    def mapie() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        from mapie.regression import SplitConformalRegressor

        aside = round(share * n)
        ridge = KernelRidge(kernel="rbf", gamma=1 / (2 * ours.sigma_**2), alpha=ours.lam_ * (n - aside))
        fitted = ridge.fit(A[aside:], b[aside:] - b.mean())
        found = SplitConformalRegressor(fitted, 0.9, prefit=True).conformalize(A[:aside], b[:aside] - b.mean())
        ends = found.predict_interval(T)[1][:, :, 0] + b.mean()
        return ends[:, 0], ends[:, 1]

    def muygpys() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        from MuyGPyS.examples.regress import do_regress
        from MuyGPyS.gp.deformation import Isotropy, l2
        from MuyGPyS.gp.hyperparameter import AnalyticScale, Parameter
        from MuyGPyS.gp.kernels import Matern
        from MuyGPyS.gp.noise import HomoscedasticNoise

        length = Isotropy(metric=l2, length_scale=Parameter("sample", (0.1, 20.0)))
        asked = {
            "kernel": Matern(smoothness=Parameter(1.5), deformation=length),
            "noise": HomoscedasticNoise("sample", (1e-5, 1.0)), "scale": AnalyticScale(),
        }  # fmt: skip
        found = do_regress(
            T, A, (b - b.mean())[:, None], nn_count=30, batch_count=500, k_kwargs=asked,
            nn_kwargs={"nn_method": "exact", "algorithm": "ball_tree"},
        )  # fmt: skip
        mean, half = np.ravel(found[2]) + b.mean(), 1.6448536 * np.sqrt(np.ravel(found[3]))
        return mean - half, mean + half

    rivals = {
        "BKRR2": lambda: cakernels(None), "BKRR2 adaptive": lambda: cakernels("std"), "MAPIE, KernelRidge": mapie,
        "MuyGPyS": muygpys,
    }  # fmt: skip
    for who, work in rivals.items():
        begun = time.perf_counter()
        lower, upper = work()
        results.add(
            data=name, rows=n, method=who, seconds=time.perf_counter() - begun,
            held=float(np.mean((lower <= t) & (t <= upper))), width=float(np.mean(upper - lower)),
            gflops=machine_rate(), copied_gbps=copy_rate(),
        )  # fmt: skip


def main() -> None:
    """Run, print a table, write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=[*SETS, "generated"], default=[*ALL, "generated"])
    parser.add_argument("--rows", type=int, default=6000, help="training rows of a split at most, those set aside too")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.2, help="of the training rows that is set aside")
    parser.add_argument("--seconds", action="store_true", help="time standard deviations on kin40k")
    parser.add_argument("--peers", action="store_true", help="one split beside MAPIE and MuyGPyS")
    parser.add_argument("--out", type=Path, default=Path("krr-intervals.json"))
    args = parser.parse_args()
    headline()
    results = Results("krr-intervals")
    if args.seconds:
        seconds(*load(args.folder, "kin40k"), args.rows, results)
        results.save(args.out)
        columns = {"parts": "d", "m": ",d", "plain_seconds": ".2f", "std_seconds": ".2f", "solves_seconds": ".2f"}
        columns |= {"of_solves": ".2f", "of_plain": ".1f", "bound": ".0f", "gflops": ".0f", "copied_gbps": ".1f"}
        print(table(results.records, columns))
        return
    if args.peers:
        for name in args.only:
            data = generated(0, 5 * args.rows) if name == "generated" else load(args.folder, name)
            peers(name, *data, args.rows, args.share, results)
        results.save(args.out)
        columns = {"data": "", "rows": ",d", "method": "", "seconds": ".2f", "held": ".4f", "width": ".4g"}
        print(table(results.records, columns | {"gflops": ".0f", "copied_gbps": ".1f"}))
        return
    for name in args.only:
        if name == "generated":
            sets = (generated(number, 5 * args.rows) for number in range(20))
            every = [one for number, data in enumerate(sets) for one in judged(*data, args.rows, number, args.share)]
        else:
            data = load(args.folder, name)
            every = [one for seed in range(args.splits) for one in judged(*data, args.rows, seed, args.share)]
        for one in summary(name, args.rows, every):
            results.add(**one)
        results.save(args.out)
        print(f"{name}: {machine_rate():.0f} GFLOP/s, {copy_rate():.1f} GB/s copied", flush=True)
    columns = {"data": "", "calibrated": "", "adaptive": "", "asked": ".2f", "splits": "d", "held": ".4f"}
    print(table(results.records, {**columns, "deviation": ".4f", "width": ".4g", "of_plain": ".3f"}))


if __name__ == "__main__":
    main()
