"""A rank's problems, solved side by side; what is kept of them, and reported about them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.dataset import Samples
from cacore.data.stored import in_memory, some
from cacore.io.checkpoint import remembered
from cacore.kernels import Kernel
from cacore.machine import memory, threads
from cacore.progress import Advance
from cacore.svm.dual import Progress, Solution
from cacore.svm.options import DualOptions
from casvm.model.part import PartSVM, placed
from casvm.options import Options
from casvm.solver.pair import padded
from casvm.solver.part import fit_part
from casvm.volume import Terms
from partition.redistribute import Parts

STATISTICS = ("iterations", "n_support", "objective", "gap", "seconds", "kernel_rows", "kernel_values")
_COLUMN_BYTES = 64  # in memory, of a row in a file: its class, bound, number, place, coefficients
_COUNTS = ("iterations", "n_support", "kernel_rows", "kernel_values")


@dataclass
class Solved:
    """A problem's model, its line of :data:`STATISTICS`, and behind them whether it converged."""

    part: PartSVM
    numbers: NDArray[np.float64]


def check_memory(rows: int, options: DualOptions, largest: int | None = None, ranks: int = 0) -> None:
    """Refuse what cannot fit: `rows` bytes of rows, and the kernel cache.

    Of parts, which may lie in a file, `ranks` is how many there are.

    Where no problem has more than `largest` dense rows, the cache, which the solver's copy of the rows is part of, is
    never larger than these and two kernel matrices a thread, which Asy-GCD's two levels of columns may take.
    """
    cache = options.cache_bytes
    if largest is not None:
        cache = min(cache, rows + threads.current() * 2 * 8 * largest * padded(largest))
    enough = memory.enough_ranks(ranks * rows, options.memory_limit - cache) if ranks else ""
    remedy = (
        f"use a smaller cache (--cache-gib), more ranks{enough}{', --out-of-core' if ranks else ''} or --dtype float32"
    )
    memory.require(rows + cache, options.memory_limit, "a rank's rows and its kernel cache", remedy)


def check_parts_at_a_time(parts: Parts, options: DualOptions) -> None:
    """Refuse parts of rows in a file where those that are solved side by side do not fit, with as many as would."""
    largest = int(np.diff(parts.bounds).max(initial=0))
    rows, columns = largest * parts.X.row_bytes, _COLUMN_BYTES * len(parts)

    def needed(parts_at_a_time: int) -> int:
        own = parts_at_a_time * (rows + 2 * 8 * largest * padded(largest))
        return int(columns + parts_at_a_time * rows + min(options.cache_bytes, own))

    side_by_side = max(1, min(threads.current(), len(parts.parts)))
    fits = max((k for k in range(1, side_by_side) if needed(k) <= options.memory_limit), default=0)
    remedy = f"solve {fits} at a time (--threads {fits}), " if fits else ""
    what = f"{side_by_side} parts at a time, of up to {largest:,} rows, with their kernel cache"
    memory.require(
        needed(side_by_side), options.memory_limit, what,
        f"{remedy}use a smaller cache (--cache-gib), more --partitions or --dtype float32",
    )  # fmt: skip


def predicted_cost(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """What training on so many rows costs, in any unit: a fitted power."""
    return rows**1.7


def solve_all(
    sizes: dict[int, int], load: Callable[[int], tuple[str, Samples]], kernel: Kernel | dict[int, Kernel],
    options: Options, label: str,
) -> dict[int, Solved]:  # fmt: skip
    """Solve problems of these many rows, the largest first and as many side by side as there are threads.

    Parameters
    ----------
    sizes : dict of int to int
        By the problems' numbers.
    load : callable
        ``load(number)`` makes a problem: its name in a checkpoint, and its rows with the columns "code", "C" and
        "row", and maybe "coef", coefficients alpha y to begin with, shape (m, k - 1). Rows in a file are read while the
        problem is solved, and the support vectors stay in it.
    kernel : Kernel, or dict of int to Kernel
        Of all problems, or of each.
    options : Options
    label : str
        Of the progress.

    Returns
    -------
    dict of int to Solved
        In the order of `sizes`.
    """
    todo = sorted(sizes, key=lambda number: -sizes[number])
    side_by_side = min(threads.current(), len(todo))
    cache_bytes = options.cache_bytes // max(1, side_by_side)
    advance, lock = options.progress(label, len(todo)), threading.Lock()

    def solve(number: int) -> Solved:
        name, rows = load(number)

        def work() -> dict[str, NDArray[Any]]:
            X, begun = in_memory(rows.X), time.perf_counter()
            own = kernel[number] if isinstance(kernel, dict) else kernel
            start = rows.columns.get("coef")
            begin_with = None if start is None or not start.any() else start.T
            made, solutions = fit_part(
                X, rows["code"], rows["C"], rows["row"], own, options.limits, cache_bytes, options.solver,
                begin_with,
            )  # fmt: skip
            numbers = _statistics(made, solutions, time.perf_counter() - begun)
            kept = {key: value for key, value in vars(made).items() if key != "X" and value is not None}
            return {**kept, "places": placed(made.rows, rows["row"]), "statistics": numbers}

        done = remembered(options.checkpoint, name, work)
        with lock:
            advance()
        fields = {key: value for key, value in done.items() if key not in ("places", "statistics")}
        return Solved(PartSVM(X=some(rows.X, done["places"]), **fields), done["statistics"])

    solved = dict(zip(todo, threads.in_order(solve, [(number,) for number in todo]), strict=True))
    return {number: solved[number] for number in sizes}


def _statistics(part: PartSVM, solutions: list[Solution], seconds: float) -> NDArray[np.float64]:
    def total(name: str) -> float:
        return float(sum(getattr(one, name) for one in solutions))

    worst = max((one.gap for one in solutions), default=0.0)
    met = all(one.converged for one in solutions)
    counts = (total("kernel_rows"), total("kernel_values"))
    return np.array([total("iterations"), len(part.rows), total("objective"), worst, seconds, *counts, met])


def named(numbers: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """The columns of lines of statistics, by name."""
    columns = dict(zip(STATISTICS, numbers.T, strict=False))
    return {name: values.astype(np.int64) if name in _COUNTS else values for name, values in columns.items()}


def not_met(numbers: NDArray[np.float64], tol: float, what: str) -> list[str]:
    """A line about the problems that stopped at a limit, if there are any."""
    late = numbers[numbers[:, len(STATISTICS)] == 0]
    if not len(late):
        return []
    where = "the solver" if len(numbers) == 1 else f"{len(late)} of {len(numbers)} {what}"
    total, worst = int(numbers[:, 0].sum()), numbers[:, STATISTICS.index("gap")].max()
    return [
        f"{where} stopped after {total:,} iterations at a violation of {worst:.3g}, above tol = {tol:g}: "
        "raise the limit, or scale the features"
    ]


def told(advance: Advance, label: str) -> Callable[[Progress], None]:
    """What tells of a solver that works on one problem for long."""

    def tell(now: Progress) -> None:
        advance(0, f"{label}: violation {now.gap:.3g} after {now.iterations:,} pairs, {now.active:,} rows active")

    return tell


def terms(sizes: NDArray[np.int64], nonzeros: float, rounds: int, solver: dict[str, NDArray[Any]]) -> Terms:
    """The terms of the volume: parts of these sizes, nonzeros a row, rounds of K-means, and the solver's statistics."""
    support, iterations = int(solver["n_support"][-1]), int(solver["iterations"].sum())
    return Terms(int(sizes.sum()), nonzeros, len(sizes), support, iterations, rounds)
