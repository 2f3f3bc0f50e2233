"""Extrapolation of short runs: each phase's seconds, bytes and messages as a sum of terms of the layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log

import numpy as np
import scipy.optimize

from cakernels.plan.layout import JobLayout, Kind
from cakernels.plan.runs import PHASES, Ran, of_job

Term = Callable[[JobLayout], float]

SVM_POWER = 2.0  # exponent of the rows in an SVM's time, at most; ridge systems have RIDGE_POWER
RIDGE_POWER = 3.0
_LEAST_POWER = 1.0
_SIGNIFICANT = 0.02  # seconds below which a phase says little about its growth
# Bounds of the time of a factorisation as factors of that of its flops in matrix products, for jobs far larger than the
# runs: 250 and 500 rows, dkrr, gave 1.8e1 and 2.5e11 s for 10^6 rows that take 6e7 s, on a machine with other work.
FASTEST, SLOWEST = 0.5, 5.0


def constant(layout: JobLayout) -> float:
    """The constant term."""
    return 1.0


def rows(layout: JobLayout) -> float:
    """Rows per rank."""
    return layout.rows_per_rank


def rows_and_centers(layout: JobLayout) -> float:
    """Distances between a rank's rows and all centres."""
    return layout.rows_per_rank * layout.parts


def squares(layout: JobLayout) -> float:
    """Entries of the matrices of a rank's parts."""
    return layout.parts_per_rank * layout.part**2


def cubes(layout: JobLayout) -> float:
    """Flops of factoring these matrices, but for a factor."""
    return layout.parts_per_rank * layout.part**3


def coarse(layout: JobLayout) -> float:
    """Flops of a rank's rows in the normal equations of a coarse model, but for a factor."""
    return layout.rows_per_rank * min(layout.coarse, layout.n) ** 2


def matrix(layout: JobLayout) -> float:
    """Entries of a rank's share of the matrix of all rows."""
    return layout.n**2 / layout.ranks


def factor(layout: JobLayout) -> float:
    """Flops of a rank's share of its factorisation, but for a factor."""
    return layout.n**3 / layout.ranks


def answers(layout: JobLayout) -> float:
    """Kernel values of a rank's held-out rows with the rows of one part each."""
    return layout.rows_per_rank * layout.part


def folded(layout: JobLayout) -> float:
    """Rows of the rank that folds most leaves, in least squares on M points."""
    return layout.n / layout.leaves * ceil(layout.leaves / layout.ranks)


def kernel_values(layout: JobLayout) -> float:
    """Kernel values of these rows with M points."""
    return folded(layout) * layout.points


def fold(layout: JobLayout) -> float:
    """Flops of folding these rows into a triangle of M columns, but for a factor."""
    return folded(layout) * layout.points**2


def triangles(layout: JobLayout) -> float:
    """Flops of the work on triangles of M columns, which all ranks do alike, but for a factor."""
    return float(layout.points) ** 3


def drawn(layout: JobLayout) -> float:
    """Flops of choosing M points by pivots or means, but for a factor: among ten rows per point, at most all rows."""
    return min(layout.n, 10.0 * layout.points) / layout.ranks * layout.points**2


def seconds(runs: Sequence[Ran], kind: Kind, job: JobLayout, direct: bool) -> dict[str, float]:
    """Seconds of each phase of the job, on a machine like that of the runs and without a network between nodes.

    Parameters
    ----------
    runs : sequence of Ran
        Runs of growing size first, as :meth:`cakernels.plan.runs.Trials.all` makes them.
    kind : Kind
    job : JobLayout
    direct : bool
        True if a system of all rows is factored, rather than solved by iterations; or if M points are chosen by
        factoring kernel values, rather than at random.
    """
    if itself := of_job(runs, job):
        return {phase: float(np.median([run.seconds[phase] for run in itself])) for phase in PHASES}
    first = runs[0].layout
    timed = [run for run in runs if run.layout.threads == first.threads and run.layout.ranks <= first.ranks]
    estimates = {"start": float(np.median([run.seconds["start"] for run in timed]))}
    for phase in PHASES[1:]:
        estimates[phase] = _phase(phase, timed, kind, job, direct)
    return estimates


def bounded(seconds: float, runs: Sequence[Ran], products: float) -> float:
    """Seconds of a factorisation, extrapolated from runs, within the bounds that its flops set.

    Parameters
    ----------
    seconds : float
        Extrapolated seconds of the phase "train".
    runs : sequence of Ran
    products : float
        Seconds that matrix products with as many flops as the job take on its ranks and threads.
    """
    overhead = max(run.seconds["train"] for run in runs)
    return min(max(seconds, FASTEST * products), overhead + SLOWEST * products)


def _phase(phase: str, runs: Sequence[Ran], kind: Kind, job: JobLayout, direct: bool) -> float:
    taken = [run.seconds[phase] for run in runs]
    layouts = [run.layout for run in runs]
    if phase == "read":
        return fitted([constant, rows], layouts, taken, job)
    if kind is Kind.POINTS:
        partition = [constant, rows, drawn] if direct else [constant, rows]
        terms = {"partition": partition, "predict": [constant, rows, kernel_values]}
        return fitted(terms.get(phase, [constant, folded, kernel_values, fold, triangles]), layouts, taken, job)
    if phase == "partition":
        return fitted([constant, rows, rows_and_centers], layouts, taken, job)
    if phase == "predict":
        return fitted([constant, rows, answers] if kind.in_parts else [constant, rows, matrix], layouts, taken, job)
    if kind is Kind.RIDGE_PARTS:
        return fitted([constant, squares, cubes, *([coarse] if job.coarse else [])], layouts, taken, job)
    if kind is Kind.SYSTEM and direct:
        return fitted([constant, matrix, factor], layouts, taken, job)
    return _by_power(layouts, taken, kind, job)


def _by_power(layouts: Sequence[JobLayout], taken: Sequence[float], kind: Kind, job: JobLayout) -> float:
    """Seconds that grow with a power of the rows of a problem, whose exponent the two largest runs tell."""
    largest_power = RIDGE_POWER if kind is Kind.SYSTEM else SVM_POWER
    size: Term = (lambda layout: layout.part) if kind.in_parts else (lambda layout: float(layout.n))
    same = [(layout, t) for layout, t in zip(layouts, taken, strict=True) if layout.ranks == layouts[0].ranks]
    (small, before), (last, now) = sorted(same, key=lambda pair: size(pair[0]))[-2:] if same[1:] else [*same, *same]
    power = largest_power if now < _SIGNIFICANT else _LEAST_POWER
    if min(before, now) >= _SIGNIFICANT and size(last) > size(small):
        power = min(largest_power, max(_LEAST_POWER, log(now / before) / log(size(last) / size(small))))
    grown = float((size(job) / size(last)) ** power)
    if kind.in_parts:
        return now * grown * job.parts_per_rank / last.parts_per_rank
    return now * grown * _shared(layouts, taken, job.ranks) / _shared(layouts, taken, last.ranks)


def _shared(layouts: Sequence[JobLayout], taken: Sequence[float], ranks: int) -> float:
    """Time of one problem on so many ranks, over that on one: a + b / ranks, from the runs on one rank and on several.

    The part a is what every rank computes alike.
    """
    several = layouts[0].ranks
    alone = {layout.n: t for layout, t in zip(layouts, taken, strict=True) if layout.ranks == 1}
    pairs = [
        (alone[layout.n], t)
        for layout, t in zip(layouts, taken, strict=True)
        if layout.ranks == several and layout.n in alone
    ]
    if several == 1 or not pairs:
        return 1.0 / ranks if several == 1 else 1.0
    t_one, t_several = pairs[-1]
    alike = min(1.0, max(0.0, (t_several / max(t_one, 1e-9) - 1 / several) / (1 - 1 / several)))
    return alike + (1 - alike) / ranks


def sent(runs: Sequence[Ran], kind: Kind, job: JobLayout, what: str) -> dict[str, float]:
    """Bytes or messages of each phase, over all ranks; empty if no run had several ranks.

    Bytes are a sum of terms in R (numbers that all ranks add up), n (1 - 1/R) (rows that change their rank), and P R or
    n R (centres or columns that all ranks receive); messages of R and R (R - 1). Least squares on M points sends
    triangles, M^2 R, and the points, M R, instead of P R.
    """
    if job.ranks == 1:
        return {}
    if itself := of_job(runs, job):
        return itself[-1].sent(what)
    several = [run for run in runs if run.layout.ranks > 1]
    layouts = [run.layout for run in several]
    if not several:
        return {}
    terms: list[Term] = [lambda layout: float(layout.ranks), lambda layout: layout.ranks * (layout.ranks - 1.0)]
    if what == "bytes":
        terms = [
            terms[0],
            lambda layout: layout.n * (1 - 1 / layout.ranks),
            lambda layout: float(layout.parts * layout.ranks),
        ]
        if not kind.in_parts:
            terms[2] = lambda layout: float(layout.n * layout.ranks)
        if kind is Kind.POINTS:
            terms[2:] = [
                lambda layout: float(layout.points**2 * layout.ranks),
                lambda layout: float(layout.points * layout.ranks),
            ]
    phases = several[0].sent(what)
    return {phase: fitted(terms, layouts, [run.sent(what).get(phase, 0.0) for run in several], job) for phase in phases}


def fitted(terms: Sequence[Term], layouts: Sequence[JobLayout], values: Sequence[float], job: JobLayout) -> float:
    """Value for the job of the best fit of these terms with coefficients of at least 0, by relative errors."""
    value = np.array(values, np.float64)
    if not value.any():
        return 0.0
    weight = 1.0 / np.maximum(value, 1e-2 * value.max())
    table = np.array([[term(layout) for term in terms] for layout in layouts])
    scale = table.max(axis=0)
    coefficients, _ = scipy.optimize.nnls(weight[:, None] * table / scale, weight * value)
    return float(np.array([term(job) for term in terms]) / scale @ coefficients)
