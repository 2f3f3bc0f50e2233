"""The result of training: the model, its statistics, the memory it needs and the bytes it should send.

The predicted volume of each method (Table 2.6) is compared with the measured volume in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import is_sparse
from cacore.kernels.precision import WIDEST
from cacore.machine import memory, threads
from cacore.progress import Advance
from cacore.svm.dual import Progress
from cacore.svm.options import DualOptions
from cacore.tuning import Results
from casvm.solver.kernel_rows import padded
from partition.parts_model import InParts
from partition.redistribute import Parts

LENGTHS_SECONDS = "seconds_lengths"  # of `solver`: time in which length scales were learned

Trained = TypeVar("Trained", bound=InParts)


@dataclass
class SVMFit(Generic[Trained]):
    """The result of training: the model, and what the report says about it.

    Attributes
    ----------
    model : SVMModel or SVRModel
    sizes : ndarray of int64, shape (P,)
        Number of rows of each part, or of each rank if one problem is distributed over all ranks.
    solver : mapping of str to ndarray
        One entry per part or per layer: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values; for
        regression and one class also converged. A single number of seconds_lengths, if length scales were learned.
    busy : ndarray, shape (R,)
        Seconds that each rank worked on its problems.
    tol : float
        Tolerance of the solver, as a number.
    terms : Terms or None
        Variables of the predicted communication volume, for methods that have one.
    notes : list of str
        Notes on solvers that stopped at a limit.
    more : dict
        Further fields of the report, such as a tree's layers.
    errors : list of float
        Share of wrong predictions on the validation rows, per round of a metric.
    search : Results or None
        Scores of the settings, if several were compared.
    """

    model: Trained
    sizes: NDArray[np.int64]
    solver: Mapping[str, NDArray[np.generic]]
    busy: NDArray[np.float64]
    tol: float
    terms: Terms | None = None
    notes: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)
    search: Results | None = None


STATISTICS = ("iterations", "n_support", "objective", "gap", "seconds", "kernel_rows", "kernel_values")
_COLUMN_BYTES = 64  # memory per row stored in a file: its class, bound, number, place, coefficients
_COUNTS = ("iterations", "n_support", "kernel_rows", "kernel_values")


def check_memory(rows: int, options: DualOptions, largest: int | None = None, ranks: int = 0, copied: int = 0) -> None:
    """Raise a MemoryLimitError if `rows` bytes of rows and the kernel cache do not fit.

    `ranks` is the number of ranks if the rows are parts, which could also be kept in a file, and otherwise 0.

    If no problem has more than `largest` rows, the cache (which includes the solver's copy of the rows) never exceeds
    these rows, `copied` bytes more, and two kernel matrices per thread, the most that Asy-GCD's two levels of columns
    take.
    """
    cache = options.cache_bytes
    if largest is not None:
        cache = min(cache, rows + copied + threads.current() * 2 * 8 * largest * padded(largest))
    enough = memory.enough_ranks(ranks * rows, options.memory_limit - cache) if ranks else ""
    remedy = (
        f"use a smaller cache (--cache-gib), more ranks{enough}{', --out-of-core' if ranks else ''} or --dtype float32"
    )
    memory.require(rows + cache, options.memory_limit, "storing a rank's rows and its kernel cache", remedy)


def check_parts(parts: Parts, held: int, options: DualOptions, ranks: int = 0) -> None:
    """Refuse parts in memory that do not fit, given `held` bytes of rows in all; see :func:`check_memory`."""
    largest, copied = int(np.diff(parts.bounds).max(initial=0)), 0
    if is_sparse(parts.X):  # copied with their zeros, or with those of their most frequent features
        copied = 4 * held + threads.current() * 8 * largest * min(parts.X.shape[1], WIDEST)
    check_memory(held, options, largest, ranks, copied)


def check_parts_at_a_time(parts: Parts, options: DualOptions) -> None:
    """Refuse parts in a file if those solved side by side do not fit; the error says how many would."""
    largest = int(np.diff(parts.bounds).max(initial=0))
    rows, columns = largest * parts.X.shape[1] * parts.X.dtype.itemsize, _COLUMN_BYTES * len(parts)

    def needed(parts_at_a_time: int) -> int:
        cache = parts_at_a_time * (rows + 2 * 8 * largest * padded(largest))
        return int(columns + parts_at_a_time * rows + min(options.cache_bytes, cache))

    side_by_side = max(1, min(threads.current(), len(parts.parts)))
    fits = max((k for k in range(1, side_by_side) if needed(k) <= options.memory_limit), default=0)
    remedy = f"solve {fits} at a time (--threads {fits}), " if fits else ""
    what = f"{side_by_side} parts at a time, of up to {largest:,} rows, with their kernel cache"
    memory.require(
        needed(side_by_side), options.memory_limit, what,
        f"{remedy}use a smaller cache (--cache-gib), more --partitions or --dtype float32",
    )  # fmt: skip


def predicted_cost(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Predicted cost of training on `rows` rows, in arbitrary units: a fitted power law."""
    return rows**1.7


def named(numbers: NDArray[np.float64]) -> dict[str, NDArray[np.number]]:
    """Columns of the table of statistics, by name."""
    columns = dict(zip(STATISTICS, numbers.T, strict=False))
    return {name: values.astype(np.int64) if name in _COUNTS else values for name, values in columns.items()}


def not_met(numbers: NDArray[np.float64], tol: float, what: str) -> list[str]:
    """A note on the problems that stopped at a limit, if there are any."""
    late = numbers[numbers[:, len(STATISTICS)] == 0]
    if not len(late):
        return []
    where = "the solver" if len(numbers) == 1 else f"{len(late)} of {len(numbers)} {what}"
    total, worst = int(numbers[:, 0].sum()), numbers[:, STATISTICS.index("gap")].max()
    return [
        f"{where} stopped after {total:,} iterations at a violation of {worst:.3g}, above tol = {tol:g}: "
        "raise the tolerance or the limit, or scale the features"
    ]


def solver_progress(advance: Advance, label: str) -> Callable[[Progress], None]:
    """Callback that shows the progress of the solver of one large problem."""

    def tell(now: Progress) -> None:
        advance(0, f"{label}: violation {now.gap:.3g} after {now.iterations:,} pairs, {now.active:,} rows active")

    return tell


def terms(sizes: NDArray[np.int64], nonzeros: float, rounds: int, solver: dict[str, NDArray[np.number]]) -> Terms:
    """Variables of the predicted volume, from part sizes, nonzeros per row, K-means rounds and solver statistics."""
    support, iterations = int(solver["n_support"][-1]), int(solver["iterations"].sum())
    return Terms(int(sizes.sum()), nonzeros, len(sizes), support, iterations, rounds)


WORD = 4  # bytes per word; the formulas count words, one per integer or real number


@dataclass(frozen=True)
class Terms:
    """Variables of the formulas, named as in Table 2.2.

    Attributes
    ----------
    m : int
        Number of training rows.
    n : float
        Mean number of nonzeros per row.
    P : int
        Number of parts, one per rank.
    s : int
        Number of support vectors.
    I : int
        Number of SMO iterations.
    k : int
        Number of K-means rounds.
    """

    m: int
    n: float
    P: int
    s: int
    I: int  # noqa: E741 - Table 2.2's name
    k: int


_FORMULAS: dict[str, tuple[str, Callable[[Terms], float]]] = {
    "dissmo": ("26IP + 2Pm + 4mn", lambda t: 26 * t.I * t.P + 2 * t.P * t.m + 4 * t.m * t.n),
    "cascade": ("3mn + 3m + 3sn", lambda t: 3 * t.m * t.n + 3 * t.m + 3 * t.s * t.n),
    "dcsvm": ("9mn + 12m + 2kPn", lambda t: 9 * t.m * t.n + 12 * t.m + 2 * t.k * t.P * t.n),
    "dcfilter": ("6mn + 7m + 3sn + 2kPn", lambda t: 6 * t.m * t.n + 7 * t.m + 3 * t.s * t.n + 2 * t.k * t.P * t.n),
    "cpsvm": ("6mn + 7m + 2kPn", lambda t: 6 * t.m * t.n + 7 * t.m + 2 * t.k * t.P * t.n),
    "casvm": ("0", lambda t: 0.0),
}
# Not in the table: the text under Fig. 2.7 likens BKM-SVM to CP-SVM, and FCFS-SVM to Cascade without its tree.
_FORMULAS["bkmsvm"] = _FORMULAS["cpsvm"]
_FORMULAS["fcfssvm"] = ("3mn + 3m", lambda t: 3 * t.m * t.n + 3 * t.m)


def predicted(method: str, terms: Terms) -> dict[str, Any]:
    """Entries ``formula``, ``terms`` and ``predicted_bytes`` for a method; empty if it has no formula."""
    if method not in _FORMULAS:
        return {}
    formula, words = _FORMULAS[method]
    return {"formula": formula, "terms": vars(terms), "predicted_bytes": round(WORD * words(terms))}
