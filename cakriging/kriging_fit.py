"""Kriging on all ranks: the covariance, the system of all points, and the drift by its Schur complement."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.rows import LARGEST_TARGET, check_squares, check_targets, dense
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint, Kept, Unfinished, remembered
from cacore.io.fingerprints import fingerprint
from cacore.kernels import Kernel
from cacore.learn.method import Method
from cacore.machine import memory, threads
from cakriging.counts import MODE_TOL, Counts, check_totals, checked, mode
from cakriging.estimation import (
    NEIGHBOURS,
    Estimate,
    LaplaceLikelihood,
    Parameters,
    Sample,
    Variogram,
    estimate,
    in_words,
)
from cakriging.kriging_model import KrigingModel
from cakriging.kriging_system import DENSE, KrigingSystem
from cakriging.near_matrix import Correlation
from cakriging.options import KrigingOptions
from cakriging.selection import CovarianceChoice, GapBlocks, candidates, select
from cakriging.space import (
    Drift,
    Field,
    Histogram,
    PointColumns,
    Space,
    check_independent,
    column_of,
    independent,
    subtracted,
)
from cakriging.windows import WINDOW, Windows

BOXES = 1024  # boxes of the histogram that bounds the error of cutting a decaying kernel: 1024^2 correlations, 8 MiB
SAVE_EVERY = 15.0  # seconds between two states in a checkpoint
WIDE = 90.0  # degrees of longitude over which a drift may be linear: it has a jump where the Earth is cut open
PER_SLOPE = 10  # least number of points per function of a drift that is not named
# Ratio of nugget to sill that keeps the dense system of a smooth kernel solvable; it moves predictions by 1e-4 of the
# standard deviation. Only where the kernel was not named.
LEAST_NUGGET = 1e-8
FEWEST = 50  # points from which on kernels are compared: the scores of fewer differ by chance
MOST_NEAR = 3  # most coordinates: a point's neighbours lie in 3^d cubes, and Wendland's taper is positive definite to 3


@dataclass
class KrigingFit:
    """The result of training.

    Attributes
    ----------
    model : KrigingModel
    sizes : ndarray of int64, shape (R,)
        Number of points of each region.
    variogram : Variogram
    estimate : Estimate or None
        The estimate; None if all parameters were given.
    residual : float
        Relative residual of the solution; NaN for windows, which have one each.
    solver : dict
        Entries of the report about the solution.
    notes : list of str
    options : KrigingOptions
        With the kernel, drift and criterion that were chosen.
    left_out : dict
        Error of predictions of left-out blocks, and the coverage of their intervals, if the kernel was chosen.
    """

    model: KrigingModel
    sizes: NDArray[np.int64]
    variogram: Variogram
    estimate: Estimate | None
    residual: float
    solver: dict[str, Any]
    options: KrigingOptions
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, float] = field(default_factory=dict)


@dataclass
class _Rows:
    """This rank's rows, checked.

    Attributes
    ----------
    Z : ndarray, shape (n_local, c)
        Coordinates.
    y : ndarray, shape (n_local,)
        Values minus the least squares fit of the drift, with a rounding error of at most `rounding`.
    base : ndarray, shape (p,)
        Coefficients of the drift that was subtracted.
    errors : ndarray, shape (n_local,)
        Known variance of each value's error.
    F : ndarray, shape (n_local, p)
        Functions of the drift.
    place : ndarray of int64, shape (n_local,)
        Places in the shuffled order.
    n : int
        Number of points on all ranks.
    counts : Counts or None
        Counts, for which `y` and `errors` are working responses and the variances of their errors; their drift is not
        subtracted, and `base` and `rounding` are 0.
    """

    Z: NDArray[np.float64]
    y: NDArray[np.float64]
    base: NDArray[np.float64]
    rounding: float
    errors: NDArray[np.float64]
    F: NDArray[np.float64]
    place: NDArray[np.int64]
    n: int
    space: Space
    drift: Drift
    counts: Counts | None = None

    def sample(self, count: int, comm: Communicator) -> Sample:
        """All points, or a sample of at most `count`, on every rank; collective."""
        counts = self.counts
        values = (self.y, self.errors) if counts is None else (counts.y, counts.exposure)
        sample = Sample.of(self.Z, np.column_stack([*values, self.F]), self.place, self.n, count, comm)
        return sample if counts is None else sample.of_counts(counts.likelihood, counts.rate)

    def columns(self, counted: bool) -> NDArray[np.float64]:
        """Values and functions of the drift; if `counted`, followed by counts and exposures, if there are any."""
        counts = [] if self.counts is None or not counted else [self.counts.y, self.counts.exposure]
        return np.column_stack([self.y, self.F, *counts])


def fit(
    method: Method, train: Dataset, options: KrigingOptions, comm: Communicator, test: Dataset | None = None
) -> KrigingFit:
    """Krige all ranks' rows; a collective call.

    Notes
    -----
    The drift's least squares fit is subtracted from the values first (:func:`cakriging.space.subtracted`). With
    A = rho(X, X) + D, where D holds the nugget and the variances of errors over the sill:

    1. Kernel and drift, unless they are named (:mod:`cakriging.selection`); range, sill and nugget by restricted
       likelihood or left-out blocks, unless all are given (:mod:`cakriging.estimation`).
    2. Every point moves to the rank of its region. Points near other regions are also copied to those ranks: the halo
       (:mod:`cakriging.space`).
    3. One solution for all right-hand sides: A^-1 [y, F].
    4. The Schur complement: (F' A^-1 F) beta = F' A^-1 y, and alpha = A^-1 y - A^-1 F beta; then beta gains the
       coefficients that were subtracted.

    With windows (:mod:`cakriging.windows`), every rank receives all points in step 2; steps 3 and 4 are the same sums
    by Vecchia's approximation.

    For counts (:mod:`cakriging.counts`), working responses take the place of the values: near points repeat step 3 for
    each Newton step; otherwise every rank has all points, and finds the mode before step 2.

    Step 2 sends each point once, and those near other regions once more to each of them; step 3 sends entries of the
    latter only (:class:`cakriging.kriging_system.NearSystem`). A dense system, of
    at most 4,096 points by default, is gathered and factored on every rank.
    """
    rows = _prepared(method, train, options, comm)
    with comm.phase("train"):
        covariance = _covariance(rows, options, comm)  # step 1
        rows, options = covariance.rows, covariance.options
        with comm.phase("partition"):  # step 2
            way = _way(rows, covariance, options, comm)
            steps = 0
            if rows.counts is not None and math.isinf(way.radius):
                rows, steps = _at_mode(rows, covariance, way, options, comm)
            with comm.agreed():
                noise = _noise(rows.errors, covariance)
            points = PointColumns(rows.Z, noise, rows.place, rows.columns(math.isfinite(way.radius)))
            near = _distinct(Field.spread(points, way.radius, comm), options)
        taper = options.taper
        model = KrigingModel(
            kernel=covariance.correlation.kernel, range=covariance.range, sill=covariance.sill,
            nugget=covariance.nugget, taper=taper, radius=None if math.isinf(way.radius) else way.radius,
            window=way.window, space=rows.space, drift=rows.drift, beta=np.zeros(rows.F.shape[1]),
            gram=np.zeros((rows.F.shape[1],) * 2), neighbours=options.neighbors, tol=options.tol, points=near.owned,
            sizes=np.zeros(0, np.int64), memory_limit=options.memory_limit, likelihood=options.likelihood,
            exposed=options.likelihood != "gaussian" and options.measured is not None,
        )  # fmt: skip
        before = _halo_sent(comm)  # steps 3 and 4
        if rows.counts is not None and way.window is None and math.isfinite(way.radius):
            residual, facts, steps = _solved_counts(model, near, rows.counts, options)
        elif way.window is None:
            residual, facts = _solved(model, near, rows.base, options, comm)
        else:
            residual, facts = math.nan, _windowed(model, near, rows.base, options.memory_limit)
        sent = _halo_sent(comm) - before
    comm.wait()
    with comm.uncounted():
        facts |= dict(zip(("sent_bytes", "sent_messages"), comm.allreduce(sent).tolist(), strict=True))
    facts |= ({"cut": way.cut} if way.cut else {}) | ({"newton_steps": steps} if steps else {})
    return KrigingFit(
        model, model.sizes, covariance.variogram, covariance.estimate, residual, facts, options, covariance.notes,
        covariance.left_out,
    )  # fmt: skip


def _prepared(method: Method, train: Dataset, options: KrigingOptions, comm: Communicator) -> _Rows:
    """Check the rows, and compute coordinates and functions of the drift; collective."""
    with comm.phase("read"):
        with comm.agreed():
            y = np.asarray(train.target(), np.float64)
            if y.ndim > 1:
                raise InputError(f"y has shape {y.shape}: kriging takes one value per place; select a column")
        first, n = comm.offset(len(y))
        X = np.asarray(dense(train.give()), np.float64)
        with comm.agreed():
            if n == 0:
                raise InputError(f"{train.where}: there are no rows")
            for name, column in (("X", X), ("y", y)):
                if not np.isfinite(column).all():
                    raise InputError(f"{train.where}: {name} contains NaN or infinity; leave these rows out")
        check_squares(X, comm)
        check_targets(y, train.where, LARGEST_TARGET, comm)
        if options.checkpoint is not None:
            _open(options.checkpoint, method, X, y, options, comm)
        with comm.agreed():
            errors, ignored = _errors(X, options, train.columns.features)
        with comm.agreed(own_rows=True):
            if options.likelihood != "gaussian":
                checked(y, errors, options.likelihood)
        drift = _drift(options, X, train.columns.features, ignored, comm)
        space = Space(options.geographic, options.anisotropy or (), float(options.angle))
        with comm.agreed():
            space.check(len(drift.coordinates))
            Z = space.coordinates(X[:, drift.coordinates])
        check_squares(Z, comm)
        place = Shuffle(n, options.seed).position(np.arange(first, first + len(y)))
        F = drift.functions(X)
        gram = comm.allreduce(F.T @ F)
        with comm.agreed():
            check_independent(gram, n)
        if options.likelihood != "gaussian":
            return _counted(_Rows(Z, y, np.zeros(F.shape[1]), 0.0, errors, F, place, n, space, drift), options, comm)
        y, base, rounding = subtracted(y, F, gram, comm)
    return _Rows(Z, y, base, rounding, errors, F, place, n, space, drift)


def _counted(rows: _Rows, options: KrigingOptions, comm: Communicator) -> _Rows:
    """Rows of counts, whose errors are exposures, with working responses in their place; collective."""
    total, exposure = comm.allreduce(np.array([rows.y.sum(), rows.errors.sum()])).tolist()
    with comm.agreed():
        check_totals(options.likelihood, total, exposure, rows.F.shape[1] > 0)
    # Rounded, so that first values have the same bits on any number of ranks; below 1 for a probability.
    rate = float(f"{max(total, 1.0) / exposure:.6g}")
    rate = min(rate, 0.999) if options.likelihood == "binomial" else rate
    counts = Counts(options.likelihood, rows.y, rows.errors, rate)
    z, variance = counts.working(counts.start())
    return replace(rows, y=z, errors=variance, counts=counts)


def _drift(
    options: KrigingOptions, X: NDArray[np.float64], names: tuple[str, ...], ignored: tuple[int, ...],
    comm: Communicator,
) -> Drift:  # fmt: skip
    """The drift that is named; for "auto" a linear one where the points determine it, or a constant; collective."""
    if options.drift != "auto":
        return Drift.of(options.drift, X, comm, names, ignored)
    linear = Drift.of("linear", X, comm, names, ignored)
    F, d = linear.functions(X), len(linear.coordinates)
    gram = comm.allreduce(F.T @ F)
    n = comm.offset(len(X))[1]
    wide = options.geographic and linear.scale[linear.coordinates[0]] > WIDE / 2.0
    if d > MOST_NEAR or n < max(FEWEST, PER_SLOPE * (d + 1)) or wide or not independent(gram, n):
        return replace(linear, degree=0)
    return linear


def _constant(rows: _Rows, sample: Sample, comm: Communicator) -> tuple[_Rows, Sample]:
    """The rows and their sample with a constant drift in place of a linear one; collective."""
    F = rows.F[:, :1]
    if rows.counts is not None:
        changed = replace(rows, F=F, base=rows.base[:1], drift=replace(rows.drift, degree=0))
        return changed, replace(sample, F=sample.F[:, :1])
    y, base, rounding = subtracted(rows.y + rows.F @ rows.base, F, comm.allreduce(F.T @ F), comm)
    values = sample.y + sample.F @ rows.base - sample.F[:, :1] @ base
    drift = replace(rows.drift, degree=0)
    return (
        replace(rows, y=y, base=base, rounding=rounding, F=F, drift=drift),
        replace(sample, y=values, F=sample.F[:, :1]),
    )


def _open(
    checkpoint: Checkpoint, method: Method, X: NDArray[np.float64], y: NDArray[np.float64],
    options: KrigingOptions, comm: Communicator,
) -> None:  # fmt: skip
    """Resume the run in the checkpoint's directory, or begin one; collective."""
    ignored = ("checkpoint", "memory_limit", "measured", "grid", "map", "simulate")
    facts = {name: value for name, value in vars(options).items() if name not in ignored}
    measured = None if options.measured is None else options.measured + 1.0
    facts |= {
        "method": method.name, "ranks": comm.size, "threads": threads.current(), "package": __version__,
        "training rows": fingerprint(X, y, measured, comm),
    }  # fmt: skip
    checkpoint.open(facts, comm)


def _errors(
    X: NDArray[np.float64], options: KrigingOptions, names: tuple[str, ...]
) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    """Variances of the values' errors, shape (n,), and the number of the column with their square roots, if any.

    For counts, their exposures.
    """
    if options.likelihood != "gaussian":
        if options.exposure is None:
            return np.ones(len(X)) if options.measured is None else options.measured, ()
        column = column_of(options.exposure, X.shape[1], names, "exposure")
        return X[:, column].copy(), (column,)
    if options.errors is None:
        return np.zeros(len(X)) if options.measured is None else np.square(options.measured), ()
    column = column_of(options.errors, X.shape[1], names, "errors")
    wrong = np.flatnonzero(~(X[:, column] >= 0))
    if wrong.size:
        raise InputError(f"errors: row {int(wrong[0])} is {X[wrong[0], column]:g}; it must be at least 0")
    return np.square(X[:, column]), (column,)


@dataclass
class _Covariance:
    """Parameters of the covariance, the estimate if there is one, and notes; rows and options with what was chosen."""

    range: float
    sill: float
    nugget: float
    correlation: Correlation
    variogram: Variogram
    estimate: Estimate | None
    notes: list[str]
    rows: _Rows
    options: KrigingOptions
    left_out: dict[str, float]


def _covariance(rows: _Rows, options: KrigingOptions, comm: Communicator) -> _Covariance:
    """The covariance: what is not given is chosen and estimated; collective."""
    with comm.agreed():
        if options.kernel != "auto":
            Kernel(options.kernel, degree=options.degree).suited(rows.Z.shape[1], "another kernel")
        if options.taper is not None and rows.Z.shape[1] > MOST_NEAR:
            raise InputError(f"taper: it is positive definite for at most {MOST_NEAR} coordinates; leave it out")
    values = (options.range, options.sill, options.nugget)
    fixed = Parameters(*(None if value is None else float(value) for value in values))
    taper = math.inf if options.taper is None else float(options.taper)
    sample = rows.sample(options.sample, comm)
    if rows.counts is not None and fixed.nugget is None and _single_trials(rows.counts, comm):
        fixed = replace(fixed, nugget=0.0)
    first, chosen = None, options.kernel == "auto" and rows.n >= FEWEST
    if chosen:
        rows, sample, options, first = _selected(rows, sample, fixed, options, comm)
    elif options.kernel == "auto":
        options = replace(options, kernel="matern32")  # the record then names drift and criterion, too
    kernel, best, parameters = Kernel(options.kernel, degree=options.degree), None, fixed
    if fixed.free:
        best = _estimated(rows, sample, Correlation(kernel, taper), fixed, options, first, comm)
        nugget = max(best.nugget, LEAST_NUGGET * best.sill) if chosen and fixed.nugget is None else best.nugget
        parameters = Parameters(best.range, best.sill, nugget)
    left_out, notes = {}, [] if best is None else _notes(best, options, rows.n)
    if chosen and rows.counts is not None:
        notes.insert(0, f"chosen: {options.kernel}, drift {options.drift}, by likelihood (Laplace's approximation)")
    elif chosen:
        judge = GapBlocks(sample, comm)
        left_out = judge.summary(kernel, taper, parameters)
        notes.insert(
            0,
            f"chosen: {options.kernel}, drift {options.drift}, by {options.estimation}; {judge.blocks} left-out blocks "
            f"as wide as gaps: RMSE {left_out['rmse']:.3g}, {100 * left_out['coverage_of_95_%']:.1f} % inside 95 % "
            "intervals",
        )
    range_, sill, nugget_ = parameters.range, parameters.sill, parameters.nugget
    assert range_ is not None
    assert sill is not None
    assert nugget_ is not None
    correlation = Correlation(kernel.with_sigma(range_), taper)
    variogram = Variogram.of(sample, correlation, sill, nugget_)
    return _Covariance(range_, sill, nugget_, correlation, variogram, best, notes, rows, options, left_out)


def _estimated(
    rows: _Rows, sample: Sample, correlation: Correlation, fixed: Parameters, options: KrigingOptions,
    first: Parameters | None, comm: Communicator,
) -> Estimate:  # fmt: skip
    """Range, sill and nugget, except those that are fixed; collective."""
    with comm.agreed():
        _check_estimable(sample, rows.rounding)

    def estimated() -> Kept:
        neighbours = options.neighbours or NEIGHBOURS
        return estimate(
            sample, correlation.kernel, correlation.taper, fixed, comm, options.estimation, neighbours, first
        ).arrays()

    return Estimate.of_arrays(remembered(options.checkpoint, "estimate", estimated, comm))


def _notes(best: Estimate, options: KrigingOptions, n: int) -> list[str]:
    """Notes on the estimates for the report."""
    notes = [_how(best, options.estimation, n, options.neighbours or NEIGHBOURS)]
    if best.deviations:
        notes.append(in_words(best.deviations))
    if best.endless:
        what = {"likelihood": "the likelihood", "blocks": "the density of left-out values"}[options.estimation]
        notes.append(
            f"range {best.range:.3g}: {what} still grows there, far beyond the points or the taper, "
            "where all ranges fit alike; try another --kernel or a larger --taper, or give --range"
        )
    return notes


def _selected(
    rows: _Rows, sample: Sample, fixed: Parameters, options: KrigingOptions, comm: Communicator
) -> tuple[_Rows, Sample, KrigingOptions, Parameters]:
    """Kernel, drift and criterion by :func:`cakriging.selection.select`, and first parameters; collective."""
    if options.drift == "auto" and np.abs(sample.y).max(initial=0.0) <= rows.rounding:
        rows, sample = _constant(rows, sample, comm)  # a plane: the field is what a constant leaves
    with comm.agreed():
        _check_estimable(sample, rows.rounding)
    taper = math.inf if options.taper is None else float(options.taper)
    kernels = candidates(options.solver, taper, options.degree, rows.Z.shape[1])

    def selected() -> Kept:
        return select(sample, rows.base, kernels, taper, fixed, options.estimation, comm).arrays()

    selection = CovarianceChoice.of_arrays(remembered(options.checkpoint, "selection", selected, comm))
    drift = options.drift
    if drift == "auto":
        if rows.drift.degree == 1 and not selection.linear:
            rows, sample = _constant(rows, sample, comm)
        drift = "linear" if rows.drift.degree == 1 else "constant"
    first = selection.first
    options = replace(options, kernel=selection.kernel, drift=drift, estimation=selection.estimation)
    return rows, sample, options, first


def _how(best: Estimate, estimation: str, n: int, neighbours: int) -> str:
    """A note on how parameters were estimated."""
    sample = "" if best.points == n else f" of a sample of {best.points:,} points"
    if estimation == "blocks":
        how = f"each value given its {neighbours} nearest of other blocks"
        return f"left-out blocks{sample}: {how}, {best.evaluations} evaluations"
    how = "all points" if best.exact else f"each value given its {neighbours} nearest earlier ones (Vecchia)"
    return f"restricted likelihood{sample}, by {how}, {best.evaluations} evaluations"


def _check_estimable(sample: Sample, rounding: float) -> None:
    """Raise an InputError for a sample from which no range can be estimated."""
    remedy = "give range, sill and nugget"
    if len(sample) < sample.F.shape[1] + 3:
        raise InputError(f"n_samples = {len(sample)}: too few points to estimate a covariance; {remedy}")
    if (np.ptp(sample.X, axis=0) == 0).all():
        raise InputError(f"all points are at one place, so there is no covariance to estimate: {remedy}")
    counts = sample.counts
    if counts is not None and np.ptp(counts.y) == 0 and (counts.y[0] == 0 or np.ptp(counts.exposure) == 0):
        remedy += " beside drift none" if counts.y[0] == 0 else ""
        raise InputError(f"all counts are {counts.y[0]:g}, so there is no covariance to estimate: {remedy}")
    if counts is None and np.abs(sample.y).max() <= rounding:
        raise InputError(f"all values are those of the drift, so there is no covariance to estimate: {remedy}")
    if counts is None and np.ptp(sample.y) == 0:
        raise InputError(f"all values are {sample.y[0]:g}, so there is no covariance to estimate: {remedy}")


def solver_of(options: KrigingOptions, n: int) -> str:
    """The solver of a system of n points: the option, or by their number; "auto" if the covariance decides."""
    if options.neighbours is not None:
        return "neighbours"
    return "cholesky" if options.solver == "auto" and n <= DENSE else options.solver


# Most near points per point that conjugate gradients take by default. Reasoned: they take 12 bytes each, in memory of
# 1.2 GB for 10^5 points, and about 10 iterations of 2 flops; more points change a prediction less than windows do.
MOST_PAIRS = 1000


@dataclass(frozen=True)
class _Way:
    """How the system is solved: a dense factor, near points up to a radius, or windows of the nearest points.

    Attributes
    ----------
    radius : float
        Distance from which on correlations are 0 or cut; infinity for a dense system and windows.
    window : tuple of int or None
        Numbers of nearest points of each place, by level; None without windows.
    cut : dict
        Facts on the cut of a kernel that only decays.
    """

    radius: float
    window: tuple[int, ...] | None = None
    cut: dict[str, float] = field(default_factory=dict)


def _way(rows: _Rows, covariance: _Covariance, options: KrigingOptions, comm: Communicator) -> _Way:
    """The solver of the option, or the exact one if its near points are few enough, or else windows; collective."""
    solver, d = solver_of(options, rows.n), rows.Z.shape[1]
    if solver == "cholesky":
        with comm.agreed():
            need, remedy = 16 * rows.n**2, "use --solver cg or --neighbours K"
            memory.require(need, options.memory_limit, f"the dense matrix of {rows.n:,} points", remedy)
        return _Way(math.inf)
    levels = WINDOW if rows.counts is None else (sum(WINDOW),)
    windows = _Way(math.inf, levels if options.neighbours is None else (options.neighbours,))
    if solver == "neighbours" or (solver == "auto" and d > MOST_NEAR):
        return windows
    with comm.agreed():
        if d > MOST_NEAR:
            raise InputError(
                f"{d} coordinates: --solver cg finds near points in at most {MOST_NEAR}; use --neighbours K"
            )
    boxes = Histogram.of(rows.Z, BOXES, comm)
    near = _near_points(boxes, rows, covariance, options, comm)
    if solver == "auto":
        return windows if near is None or boxes.pairs(near.radius) > MOST_PAIRS else near
    with comm.agreed():
        if near is None and not covariance.nugget + _least(rows.errors, comm) > 0:
            raise InputError(
                f"the {options.kernel} kernel may be cut only with a --nugget above 0, which bounds the error: "
                "give one, or --taper R, a wendland kernel, --solver cholesky or --neighbours K"
            )
        if near is None:
            raise InputError(
                f"the {options.kernel} kernel of range {covariance.range:g} has not decayed within the points "
                "enough to be cut: give --neighbours K, --taper R, a wendland kernel, or --solver cholesky"
            )
    return near


def _near_points(
    boxes: Histogram, rows: _Rows, covariance: _Covariance, options: KrigingOptions, comm: Communicator
) -> _Way | None:
    """Near points up to the kernel's end, or to a cut within the bound; None if there is no such cut; collective."""
    reach = covariance.correlation.reach
    if math.isfinite(reach):
        return _Way(reach)
    bound = options.tol * (covariance.nugget + _least(rows.errors, comm)) / covariance.sill
    reach, norm = covariance.correlation.cut(*boxes.occupied(), boxes.edge, bound)
    if math.isinf(reach):
        return None
    return _Way(reach, cut={"radius": reach, "bound": norm, "allowed": bound})


def _noise(errors: NDArray[np.float64], covariance: _Covariance) -> NDArray[np.float64]:
    """Variance of each value's noise, over the sill."""
    with np.errstate(over="ignore"):
        noise = (covariance.nugget + errors) / covariance.sill
    if not np.isfinite(noise).all():
        raise InputError(
            f"nugget {covariance.nugget:g}, sill {covariance.sill:g}: a value's noise over the sill overflows; give a "
            "larger sill, or a smaller nugget or errors"
        )
    return noise


def _least(errors: NDArray[np.float64], comm: Communicator) -> float:
    """The smallest variance of an error on all ranks; collective."""
    return float(comm.allreduce(np.array([errors.min(initial=np.inf)]), "min")[0])


def _distinct(near: Field, options: KrigingOptions) -> Field:
    """The field; under --average with the mean of the values at each place; collective.

    Raises
    ------
    InputError
        On all ranks: two values at one place have no noise.
    """
    points, comm = near.owned, near.comm
    _, which, counts = np.unique(points.X, axis=0, return_inverse=True, return_counts=True)
    which = which.reshape(-1)
    if options.average:
        least = np.full(len(counts), np.iinfo(np.int64).max)
        np.minimum.at(least, which, points.place)
        means = np.stack([np.bincount(which, column, len(counts)) / counts for column in points.values.T], axis=1)
        first = np.full(len(counts), -1)
        first[which[::-1]] = np.arange(len(which))[::-1]
        noise = np.bincount(which, points.noise, len(counts)) / counts**2
        return Field.spread(PointColumns(points.X[first], noise, least, means), near.radius, comm)
    with comm.agreed():
        several = np.flatnonzero((counts[which] > 1) & (points.noise == 0))
        if several.size:
            number = int(np.bincount(which[several], minlength=len(counts)).max())
            if number > 1:
                raise InputError(
                    f"{several.size:,} values share their place with another one, and have no noise: the system is "
                    "singular; give a --nugget above 0, or --average them"
                )
    return near


def _single_trials(counts: Counts, comm: Communicator) -> bool:
    """True for presence: one trial per place, which shows no variance beside that of its probability; collective."""
    largest = comm.allreduce(np.array([counts.exposure.max(initial=0.0)]), "max")[0]
    return counts.likelihood == "binomial" and bool(largest == 1.0)


_NO_MODE = (
    "Newton's method for the latent field does not converge: counts may separate along the drift; use --drift constant "
    "or none, or a smaller --sill"
)


def _at_mode(
    rows: _Rows, covariance: _Covariance, way: _Way, options: KrigingOptions, comm: Communicator
) -> tuple[_Rows, int]:
    """The rows with working responses at the mode of the latent field, and the Newton steps; collective.

    Every rank has all points. Beside the sample, 24 bytes per point and neighbour of a window, or 16 n^2 for a dense
    matrix.
    """
    everything = rows.sample(rows.n, comm)
    m = min(rows.n, NEIGHBOURS if way.window is None else sum(way.window))
    with comm.agreed():
        if way.window is not None:
            what, remedy = f"the mode of {rows.n:,} counts", "use --taper or fewer --neighbours"
            memory.require(24 * rows.n * (m + 1), options.memory_limit, what, remedy)
    kernel, taper = covariance.correlation.kernel, covariance.correlation.taper
    laplace = LaplaceLikelihood(everything, kernel, taper, comm, m, exact=way.window is None)
    laplace.tol = MODE_TOL
    laplace(covariance.range, covariance.sill, covariance.nugget, None)
    with comm.agreed():
        if laplace.latent is None:
            raise InputError(_NO_MODE)
    z, variance = laplace.latent.z[rows.place], laplace.latent.variance[rows.place]
    return replace(rows, y=z, errors=variance), laplace.latent.steps


def _solved_counts(
    model: KrigingModel, near: Field, first: Counts, options: KrigingOptions
) -> tuple[float, dict[str, Any], int]:
    """Newton's method with a solution from near points in each step: residual, facts, number of steps; collective.

    The last columns of the points' values are the counts and exposures.
    """
    comm, points, mine = near.comm, near.points, slice(near.n_owned)
    counts = Counts(first.likelihood, points.values[mine, -2], points.values[mine, -1], first.rate)
    points.values = np.ascontiguousarray(points.values[:, :-2])
    F, residual = points.values[mine, 1:], 0.0
    facts: dict[str, Any] = {}
    base = np.zeros(F.shape[1])

    def solve(z: NDArray[np.float64], variance: NDArray[np.float64], _: NDArray[np.float64]) -> NDArray[np.float64]:
        nonlocal residual, facts
        columns = np.column_stack([z, variance])
        columns = np.concatenate([columns, near.halo.fetch(columns)])
        points.values[:, 0], points.noise[:] = columns[:, 0], (model.nugget + columns[:, 1]) / model.sill
        system = model.system(near, options.memory_limit)
        residual = _solve(model, near, base, system, 0.01 * options.tol, None)
        before, facts = facts, {**system.facts(), "residual": [residual]}
        facts["predicted_bytes"] += before.get("predicted_bytes", 0) + 16 * facts["halo"]  # z and variances as well
        facts["predicted_messages"] += before.get("predicted_messages", 0) + facts["halo_messages_per_iteration"] // 3
        facts["iterations"] = [facts["iterations"][0] + before.get("iterations", [0])[0]]
        dual = model.points.values[:, 0] / model.sill
        return np.stack([z - variance * dual, dual, F @ model.beta])

    latent = mode(counts, counts.start(), solve, comm, max(MODE_TOL, options.tol))
    with comm.agreed():
        if latent is None:
            raise InputError(_NO_MODE)
    return residual, facts, latent.steps


def _halo_sent(comm: Communicator) -> NDArray[np.int64]:
    """Bytes and messages that this rank has sent to other single ranks in training, shape (2,)."""
    return np.asarray(comm.sent("train")[:, : comm.size].sum(axis=1))


def _windowed(model: KrigingModel, near: Field, base: NDArray[np.float64], limit: int) -> dict[str, Any]:
    """Fit the drift by Vecchia's approximation, store the points in the model, and return facts; collective."""
    assert model.window is not None
    points, p = near.owned, near.points.values.shape[1] - 1
    if p:
        gram = Windows(near, model.correlation, model.window, limit).gram()
        model.gram = (gram[1:, 1:] + gram[1:, 1:].T) / 2.0
        step = np.linalg.solve(model.gram, gram[1:, 0])
        model.beta = base + step
        points.values[:, 0] -= points.values[:, 1:] @ step
    model.points = points
    model.sizes = near.comm.allgather(np.array([near.n_owned], np.int64))
    return {"solver": "neighbours", "iterations": [0], "neighbours": min(sum(model.window), model.n)}


def _solved(
    model: KrigingModel, near: Field, base: NDArray[np.float64], options: KrigingOptions, comm: Communicator
) -> tuple[float, dict[str, Any]]:
    """Solve the system of all points, and return the residual and facts; collective."""
    system, checkpoint = model.system(near, options.memory_limit), options.checkpoint
    state = None if checkpoint is None else Unfinished(checkpoint, "solution", comm, SAVE_EVERY)
    residual = _solve(model, near, base, system, options.tol, state)
    return residual, {**system.facts(), "residual": [residual]}


def _solve(
    model: KrigingModel, near: Field, base: NDArray[np.float64], system: KrigingSystem, tol: float,
    checkpoint: Unfinished | None,
) -> float:  # fmt: skip
    """Solve for alpha and beta, store them in the model with its points, and return the residual; collective.

    The residual is relative to values from which the drift of coefficients `base` has been subtracted.
    """
    comm, n_owned = near.comm, near.n_owned
    F = near.points.values[:n_owned, 1:]
    p = F.shape[1]
    solved, residual = system.solve(np.ascontiguousarray(near.points.values[:n_owned].T), tol, checkpoint)
    W = solved[1:].T
    alpha = solved[0]
    if p:
        sums = comm.allreduce(np.column_stack([F.T @ W, F.T @ alpha]))
        model.gram = (sums[:, :p] + sums[:, :p].T) / 2.0
        step = np.linalg.solve(model.gram, sums[:, p])
        alpha, model.beta = alpha - W @ step, base + step
    model.points = replace(near.owned, values=np.column_stack([alpha, W]))
    model.sizes = comm.allgather(np.array([n_owned], np.int64))
    return residual
