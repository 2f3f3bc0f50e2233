"""The memory that problems need, and what is reported about their solutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import is_sparse
from cacore.machine import memory, threads
from cacore.progress import Advance
from cacore.svm.dual import Progress
from cacore.svm.options import DualOptions
from casvm.solver.pair import padded
from casvm.volume import Terms
from partition.redistribute import Parts

STATISTICS = ("iterations", "n_support", "objective", "gap", "seconds", "kernel_rows", "kernel_values")
_COLUMN_BYTES = 64  # in memory, of a row in a file: its class, bound, number, place, coefficients
_COUNTS = ("iterations", "n_support", "kernel_rows", "kernel_values")


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


def check_parts(parts: Parts, held: int, options: DualOptions, ranks: int = 0) -> None:
    """Refuse parts in memory, and `held` bytes of rows in all, that do not fit; see :func:`check_memory`."""
    largest = None if is_sparse(parts.X) else int(np.diff(parts.bounds).max(initial=0))
    check_memory(held, options, largest, ranks)


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
    """Cost of training on so many rows, in any unit: a fitted power."""
    return rows**1.7


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
        "raise the tolerance or the limit, or scale the features"
    ]


def told(advance: Advance, label: str) -> Callable[[Progress], None]:
    """A callback that shows how far a solver of one large problem is."""

    def tell(now: Progress) -> None:
        advance(0, f"{label}: violation {now.gap:.3g} after {now.iterations:,} pairs, {now.active:,} rows active")

    return tell


def terms(sizes: NDArray[np.int64], nonzeros: float, rounds: int, solver: dict[str, NDArray[Any]]) -> Terms:
    """The terms of the volume: parts of these sizes, nonzeros a row, rounds of K-means, and the solver's statistics."""
    support, iterations = int(solver["n_support"][-1]), int(solver["iterations"].sum())
    return Terms(int(sizes.sum()), nonzeros, len(sizes), support, iterations, rounds)
