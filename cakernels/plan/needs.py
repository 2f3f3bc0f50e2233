"""Memory per rank and flops of a training, by formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cakernels.plan.layout import JobLayout, Kind, method_named
from cakernels.plan.runs import Ran, of_job
from cakrr.solver import coarse, nystrom
from cakrr.solver.local import BAND_FROM, SMALL

if TYPE_CHECKING:
    from cacore.learn.method import Method

_TELLS = float(1 << 26)  # bytes of kernel values from which a run's peak says how many of them are kept
_COLUMNS = 48  # bytes per row besides its features: target, order, part, coefficients


def memory(
    layout: JobLayout, kind: Kind, options: Any, itemsize: int, density: float, largest: float = 1.0
) -> tuple[float, float]:
    """Bytes of a rank's rows, and of its matrices or kernel values, without the interpreter and its libraries.

    Parameters
    ----------
    layout : JobLayout
    kind : Kind
    options : RidgeOptions, SVMOptions or ValueOptions
    itemsize : int
        Bytes per number.
    density : float
        Share of the features that are stored.
    largest : float
        Rows of the largest part over the mean.
    """
    rows = layout.rows_per_rank * (layout.d * density * itemsize + _COLUMNS)
    m = layout.part * largest
    if kind is Kind.RIDGE_PARTS:
        square = m * m * itemsize
        matrices = layout.threads if square * layout.threads <= SMALL else 1
        sets = options.coarse_grid(layout.n, layout.d) if layout.coarse else []
        return rows * (2 if layout.ranks > 1 else 1), max(square * matrices, coarse.memory_bytes(sets))
    if kind is Kind.POINTS:
        return 2 * rows, float(nystrom.memory_bytes(layout.points, layout.leaves, layout.ranks))
    if kind is Kind.SYSTEM:
        iterates = options.solver == "cg"
        return 2 * rows, layout.n**2 * (4 / 2 if iterates else itemsize) / layout.ranks
    cache = float(options.cache_gib * 2**30)
    if kind is Kind.SVM_PARTS:
        return 2 * rows, min(cache, 4.0 * m * m * layout.threads)
    cache = min(cache, 4.0 * layout.n**2 / layout.ranks)
    return 2 * rows if kind is Kind.SHARED else rows + layout.n * layout.d * density * itemsize, cache


def peak(runs: Sequence[Ran], job: JobLayout, kind: Kind, options: Any, itemsize: int, density: float) -> float:
    """Peak memory of a rank in bytes: that of the job if it was run, or the formula's plus what else the runs took.

    The memory for kernel values is the formula's, times the share of it by which the peaks of the runs grow. If they
    are too small to tell, it is the share of support vectors, for SVMs.
    """
    if itself := of_job(runs, job):
        return itself[-1].peak
    largest = max(run.largest for run in runs if run.layout.n == max(run.layout.n for run in runs))
    rows, values = memory(job, kind, options, itemsize, density, largest)
    runs = [run for run in runs if run.layout.ranks == runs[0].layout.ranks]
    terms = [memory(run.layout, kind, options, itemsize, density, run.largest) for run in runs]
    share = _share(
        [run.peak - base for run, (base, _) in zip(runs, terms, strict=True)], [per_share for _, per_share in terms]
    )
    if share is None:
        svm = kind in (Kind.SVM_PARTS, Kind.SHARED)
        share = _share_of_support(max(runs, key=lambda run: run.layout.n)) if svm else 1.0
    besides = [run.peak - base - share * per_share for run, (base, per_share) in zip(runs, terms, strict=True)]
    return max(0.0, *besides) + rows + share * values


def _share(peaks: Sequence[float], values: Sequence[float]) -> float | None:
    """Growth of the peaks with the memory for kernel values, from 0.05 to 1; None if the runs do not tell."""
    largest = max(values)
    if largest < _TELLS or largest - min(values) < 0.5 * largest:
        return None
    slope, _ = np.polyfit(values, peaks, 1)
    return float(np.clip(slope, 0.05, 1.0))


def _share_of_support(run: Ran) -> float:
    """Share of its kernel values that an SVM keeps: the rows of K of its support vectors."""
    return min(1.0, float(sum(run.report["solver"]["n_support"])) / run.layout.n)


def flops(runs: Sequence[Ran], job: JobLayout, kind: Kind, options: Any, method: Method) -> float:
    """Flops of training, over all ranks.

    Ridge systems: m^2 d per width, and m^3/3 per lambda or 4/3 m^3 for many, for the grid and the final solution.
    Coarse models: 2 n M (M + d) per width, 2 n M d for their predictions, and M^3/3 per factorisation on every rank.
    Their refinement: n^2/2 kernel values per iteration and at the start, and as many where lambda is chosen.
    Iterations: 2 d + 10 per kernel value, as many values as the largest run had for the square of its rows. SVMs: the
    same per kernel value that the solver computed in the largest run, in proportion to the square of a problem's rows.
    Least squares on M points: 2 n M (M + d) per width, and for each number of points that is compared, 12 M^3 on every
    rank, and 3 n M^2 for left-out errors.
    """
    d, last = job.d, max(runs, key=lambda run: run.layout.n)
    if kind is Kind.POINTS:
        return _flops_of_points(job, options)
    if kind is Kind.RIDGE_PARTS or (kind is Kind.SYSTEM and options.solver != "cg"):
        widths, lams = len(options.widths(method, d)), len(options.lam)
        folds = options.folds(job.n) if kind is Kind.RIDGE_PARTS else 1
        training_share = (1 - 1 / folds if folds > 1 else 1 - options.validation_fraction) if widths * lams > 1 else 0.0
        m = job.part
        solved = 4 / 3 if lams >= BAND_FROM else lams / 3
        grid = folds * widths * ((training_share * m) ** 2 * d + solved * (training_share * m) ** 3)
        several_coarse = _flops_of_coarse_models(job, options) if job.coarse else 0.0
        return job.parts * (grid + m * m * d + m**3 / 3) + several_coarse
    if kind is Kind.SYSTEM:
        products = sum(sum(solution["products"].values()) for solution in last.report["solver"].get("solutions", []))
        return products * job.n**2 * (d + 5.0)
    values = float(sum(last.report["solver"].get("kernel_values", [])))
    problem = job.part if kind.in_parts else job.n
    measured = last.layout.part if kind.in_parts else last.layout.n
    return values * (problem / measured) ** 2 * job.parts / last.layout.parts * (2 * d + 10)


def _flops_of_coarse_models(job: JobLayout, options: Any) -> float:
    """Flops of the coarse models of all rows, whose small systems every rank solves alike."""
    n, d = job.n, job.d
    sets = options.coarse_grid(n, d)
    tried = sum(len(Ms) * len(lams) for _, Ms, lams in sets)
    total = 0.0
    for _, Ms, lams in sets:
        largest = Ms[-1]
        total += 2 * n * largest * (largest + 2 * d)
        total += job.ranks * (largest**3 / 3 + (2 if tried > 1 else 1) * len(lams) * sum(M**3 / 3 for M in Ms))
    products = (options.refine + 1) * (2 if tried > 1 else 1) if options.refine else 0
    return float(total + products * n**2 * (d + 5.0))


def _flops_of_points(job: JobLayout, options: Any) -> float:
    """Flops of least squares on M points."""
    n, widths = job.n, len(options.widths(method_named("subset"), job.d))
    chosen = sum(12 * M**3 * job.ranks + (3 * n * M**2 if options.select == "loo" else 0) for M in job.centers)
    several = widths * len(job.centers) * len(options.lam) > 1
    return float(widths * (2 * n * job.points * (job.points + job.d) + (chosen if several else 0)))
