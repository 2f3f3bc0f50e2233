"""Intervals and standard deviations: coverage on new rows, width, and cost.

python -m benchmarks krr-intervals [--only NAME ...] [--splits N] [--rows N] [--peers PYTHON] [--results FILE.json]
python -m benchmarks krr-intervals --seconds [--rows N] [--timed std|jackknife ...]

Each split draws training rows, of which a share is set aside, and test rows. Sigma and lambda are chosen once per data
set, on validation rows from the training rows of its first split. Twenty generated sets have heavy tails, noise that
depends on x, or both, and a quarter of the number of rows; "loud" is the coverage on the quarter of the test rows with
the most noise.

`--peers` is the Python of an environment with MAPIE and MuyGPyS, which :mod:`benchmarks.interval_peers` runs on the
first splits. `--seconds` times standard deviations of 50,000 rows, beside plain predictions and beside LAPACK's
triangular solves with the same number of right-hand sides, and with `--timed` also jackknife+ intervals of a tenth of
these rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from benchmarks.generated import label
from benchmarks.krr_data import SETS, load
from benchmarks.race import copy_rate, headline, machine_rate, race
from benchmarks.results import record, table
from cacore.linalg import lapack
from cakrr import BKRR2
from cakrr.options import JACKKNIFE

ALL = ("cadata", "CASP", "kin40k", "keggundirected", "space_ga_scale", "BNG_breastTumor")
COVERAGES = (0.9, 0.95)
PART = 1000  # rows per part
LEAST = 4  # smallest number of parts, so that their intervals can differ
GRID = {"sigma": (0.5, 1.0, 2.0), "lam": (1e-5, 1e-4, 1e-3, 1e-2)}  # sigma in units of its default
ASKED = 50_000
TENTH = 10  # jackknife+ is timed on one of this number of rows

Rows = NDArray[np.float64]
Drawn = tuple[Rows, Rows]
TIMED = ("std", "jackknife")
_GENERATED = [f"generated {number + 1}" for number in range(20)]


def generated(number: int, n: int) -> tuple[Rows, Rows, Rows]:
    """One of the twenty sets: a smooth function with one of four kinds of noise, for five seeds each.

    Returns rows, targets, and the size of the noise of each row.
    """
    rng = np.random.default_rng(number)
    X = rng.uniform(-2, 2, (n, 5))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] / 2
    noises: tuple[tuple[Rows, Callable[[], Rows]], ...] = (
        (np.full(n, 0.3), lambda: rng.standard_t(2, n)),
        (0.05 + 0.5 * np.abs(X[:, 0]), lambda: rng.normal(size=n)),
        (np.where(X[:, 1] > 0, 1.0, 0.05), lambda: rng.standard_t(3, n)),
        (np.exp(X[:, 3] / 2), lambda: rng.exponential(size=n) - 1),
    )
    size, draw = noises[number % len(noises)]
    return X, f + size * draw(), size


@dataclass(frozen=True)
class Split:
    """Training and test rows of one draw."""

    X: Rows
    y: Rows
    T: Rows
    t: Rows
    loud: NDArray[np.bool_]

    @classmethod
    def drawn(cls, X: Rows, y: Rows, rows: int, seed: int, size: Rows | None = None) -> Split:
        """Draw `rows` training rows, or three quarters of all rows, and at most twice as many test rows.

        `size` is the size of each row's noise, if known; it determines which rows are loud.
        """
        place = np.random.default_rng(seed).permutation(len(X))
        n = min(rows, 3 * len(X) // 4)
        mine, others = place[:n], place[n : n + 2 * rows]
        loud = np.zeros(len(others), np.bool_)
        if size is not None and np.ptp(size) > 0:
            loud[np.argsort(-size[others], kind="stable")[: len(others) // 4]] = True
        return cls(X[mine], y[mine], X[others], y[others], loud)


def chosen(split: Split) -> dict[str, Any]:
    """Choose the number of parts, sigma and lambda on validation rows from the training rows."""
    sigma = tuple(times * split.X.shape[1] ** 0.5 for times in GRID["sigma"])
    parts = max(LEAST, round(len(split.X) / PART))
    model = BKRR2(parts, sigma=sigma, lam=GRID["lam"], random_state=0).fit(split.X, split.y)
    return {"n_parts": parts, "sigma": model.sigma_, "lam": model.lam_, "random_state": 0}


def judged(split: Split, given: dict[str, Any], share: float) -> list[dict[str, Any]]:
    """Records for each kind of calibration rows, kind of intervals, and coverage."""
    found = []

    def add(method: str, coverage: float, lower: Rows, upper: Rows, spent: float) -> None:
        held = (lower <= split.t) & (split.t <= upper)
        found.append({
            "method": method, "asked": coverage, "held": float(held.mean()), "width": float(np.mean(upper - lower)),
            "seconds": spent, "loud": float(held[split.loud].mean()) if split.loud.any() else float("nan"),
        })  # fmt: skip

    begun = time.perf_counter()
    held_out = BKRR2(**given, calibrate=share, keep_factors=True).fit(split.X, split.y)
    fitted, left = time.perf_counter() - begun, JACKKNIFE
    for method, adaptive in (("split", None), ("split, adaptive", "std"), ("split, parts", "parts")):
        for coverage in COVERAGES:
            begun = time.perf_counter()
            ends = held_out.predict_interval(split.T, coverage, adaptive)
            add(method, coverage, *ends, fitted + time.perf_counter() - begun)
    begun = time.perf_counter()
    model = BKRR2(**given, calibrate=left, keep_factors=True).fit(split.X, split.y)
    fitted = time.perf_counter() - begun
    mean, known = model.predict(split.T), model.model_.calibration
    for coverage in COVERAGES:
        half = known.half_width(coverage)  # plain jackknife, calibrate="loo"
        add("jackknife", coverage, mean - half, mean + half, float("nan"))
        begun = time.perf_counter()
        ends = model.predict_interval(split.T, coverage)
        add("jackknife+", coverage, *ends, fitted + time.perf_counter() - begun)
    return found


def others(python: Path, split: Split, given: dict[str, Any], share: float) -> list[dict[str, Any]]:
    """Records of MAPIE and MuyGPyS, from a process in another environment that reads the same rows."""
    scaler, base = StandardScaler().fit(split.X), split.y.mean()
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "split.npz"
        np.savez(
            rows, X=scaler.transform(split.X), y=split.y - base, T=scaler.transform(split.T), t=split.t - base,
            sigma=given["sigma"], lam=given["lam"], share=share, coverages=COVERAGES,
        )  # fmt: skip
        script = Path(__file__).with_name("interval_peers.py")
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ran = subprocess.run([python, script, rows], check=True, stdout=subprocess.PIPE, text=True, env=alone)
    return [dict(one) for one in json.loads(ran.stdout.splitlines()[-1])]


def summary(name: str, n: int, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Summary over all splits: mean and deviation of the coverage, and widths relative to the plain intervals."""
    kinds = dict.fromkeys((one["method"], one["asked"]) for one in records)
    rows, plain = [], {}
    for method, asked in kinds:
        some = [one for one in records if (one["method"], one["asked"]) == (method, asked)]
        keys = ("held", "width", "seconds", "loud")
        held, width, spent, loud = (np.array([one.get(key, np.nan) for one in some]) for key in keys)
        plain.setdefault(asked, width)
        rows.append({
            "data": name, "rows": n, "method": method, "asked": f"{asked:.0%}", "splits": len(some),
            "held": held.mean(), "deviation": held.std(), "width": width.mean(),
            "of_plain": float(np.mean(width / plain[asked][: len(some)])), "seconds": spent.mean(),
            "loud": float(loud.mean()),
        })  # fmt: skip
    return rows


def seconds(X: Rows, y: Rows, rows: int, kinds: list[str]) -> list[dict[str, Any]]:
    """Time the requested :data:`TIMED`, plain predictions, and triangular solves alone, for the same parts."""
    rng = np.random.default_rng(0)
    n, found = min(rows, len(X)), []
    for parts in (max(1, n // 1000), max(1, n // 4000)):
        errors = JACKKNIFE if "jackknife" in kinds else None
        model = BKRR2(
            parts, sigma=X.shape[1] ** 0.5, lam=1e-4, keep_factors=True, calibrate=errors, random_state=0
        ).fit(X[:n], y[:n])
        asked = X[rng.integers(0, n, ASKED)] + 0.01 * X.std(axis=0) * rng.normal(size=(ASKED, X.shape[1]))
        routed = np.bincount(rng.integers(0, parts, ASKED), minlength=parts)
        L = np.tril(np.full((n // parts, n // parts), 1e-3)) + np.eye(n // parts)
        blocks = [np.ones((count, len(L))) for count in routed[: max(1, 4_000_000_000 // (8 * ASKED * len(L)))]]

        def solves(L: NDArray[Any] = L, blocks: list[NDArray[Any]] = blocks) -> None:
            for block in blocks:
                lapack.solve_lower(L, block)

        rivals: dict[str, Callable[[], Any]] = {
            "plain": lambda model=model, asked=asked: model.predict(asked), "solves": solves,
        }  # fmt: skip
        if "std" in kinds:
            rivals["std"] = lambda model=model, asked=asked: model.predict(asked, return_std=True)
        if "jackknife" in kinds:
            rivals["jackknife"] = lambda model=model, asked=asked: model.predict_interval(asked[: ASKED // TENTH])
        times = {name: result.median for name, result in race(rivals, rounds=3).items()}
        times["solves"] *= ASKED / sum(len(block) for block in blocks)
        std, jackknife = times.get("std", np.nan), TENTH * times.get("jackknife", np.nan)
        m, d = n // parts, X.shape[1]
        found.append({
            "parts": parts, "m": m, "asked": ASKED, "plain_seconds": times["plain"], "std_seconds": std,
            "solves_seconds": times["solves"], "of_solves": std / times["solves"], "of_plain": std / times["plain"],
            "bound": 3 * m / d, "jackknife_seconds": jackknife, "gflops": machine_rate(), "copied_gbps": copy_rate(),
        })  # fmt: skip
    return found


def main() -> None:
    """Run the benchmark, print a table, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=[*SETS, "generated"], default=[*ALL, "generated"])
    parser.add_argument(
        "--rows", type=int, default=4000, help="maximum number of training rows per split, including those set aside"
    )
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.2, help="share of the training rows to set aside")
    parser.add_argument("--seconds", action="store_true", help="time standard deviations on kin40k")
    parser.add_argument(
        "--timed", nargs="+", choices=TIMED, default=["std"], help="what --seconds times (default: std)"
    )
    parser.add_argument("--peers", type=Path, metavar="PYTHON", help="Python of an environment with MAPIE and MuyGPyS")
    parser.add_argument("--peer-splits", type=int, default=3, help="number of splits for the peers")
    args = parser.parse_args()
    headline()
    if args.seconds:
        records = seconds(*load(args.folder, "kin40k"), args.rows, args.timed)
        for one in records:
            record(**one)
        columns = {"parts": "d", "m": ",d", "plain_seconds": ".2f", "std_seconds": ".2f", "solves_seconds": ".2f"}
        columns |= {"of_solves": ".2f", "of_plain": ".1f", "bound": ".0f", "jackknife_seconds": ".2f"}
        print(table(records, columns | {"gflops": ".0f", "copied_gbps": ".1f"}))
        return
    X, y, _ = generated(0, 300)
    judged(Split.drawn(X, y, 100, 0), {"n_parts": 2, "sigma": 1.0, "lam": 1e-2}, args.share)  # compiles
    names = [name for one in args.only for name in ([one] if one in SETS else _GENERATED)]
    for name in names:
        rows = args.rows if name in SETS else args.rows // 4
        X, y, *size = load(args.folder, name) if name in SETS else generated(_GENERATED.index(name), 3 * rows)
        splits = [Split.drawn(X, y, rows, seed, *size) for seed in range(args.splits)]
        given = chosen(splits[0])
        every = [one for split in splits for one in judged(split, given, args.share)]
        if args.peers is not None:
            peers = splits[: args.peer_splits]
            every += [one for split in peers for one in others(args.peers, split, given, args.share)]
        rates = {"gflops": machine_rate(), "copied_gbps": copy_rate()}
        shown = label(args.folder, name) if name in SETS else name
        records = [one | rates for one in summary(shown, len(splits[0].X), every)]
        for one in records:
            record(**one)
        columns = {"data": "", "rows": ",d", "method": "", "asked": "", "splits": "d", "held": ".4f"}
        columns |= {
            "deviation": ".4f",
            "width": ".4g",
            "of_plain": ".3f",
            "loud": ".3f",
            "seconds": ".2f",
            "gflops": ".0f",
        }
        print(table(records, columns), flush=True)


if __name__ == "__main__":
    main()
