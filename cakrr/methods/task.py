"""Ridge regression as a task of :func:`partition.in_parts.in_parts` (Algorithms 8, 10 and 11).

Around any training, in parts or of all rows, :func:`calibrated` sets rows aside before it, and stores the factors and
errors of intervals after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import in_memory
from cacore.errors import InputError
from cacore.io.checkpoint import Kept
from cacore.machine import memory
from cacore.machine.clock import working_time
from cacore.probability import conformal
from cacore.probability.conformal import Calibration, set_aside
from cakrr.grid_search import not_definite
from cakrr.methods.choose import Chosen, choose_in_rounds
from cakrr.methods.prepare import RidgeParts, RidgeRows, default_parts, prepare, scalings
from cakrr.methods.refined import refine_coarse
from cakrr.options import JACKKNIFE, LEFT_OUT, RidgeMethod, RidgeOptions, StorageOptions
from cakrr.ridge_model import KRRModel, RidgeFit
from cakrr.ridge_predictor import PartModel
from cakrr.solver import refine
from cakrr.solver.local import ridge_system
from cakrr.solver.variance import LeftOutRows
from cakrr.uncertainty import deviation
from cakrr.uncertainty.answer import calibrator, has_parts, scales, to_parts
from cakrr.uncertainty.deviation import of_rows_left_out
from partition.in_parts import PartTask, SolvedPart, around, in_parts
from partition.parts_model import Soft
from partition.redistribute import Parts


@dataclass(kw_only=True)
class RidgeTask(PartTask[PartModel, KRRModel, RidgeFit]):
    """Kernel ridge regression of one target, of several, or of class indicators.

    Attributes
    ----------
    method : RidgeMethod
    options : RidgeOptions
    scaled : list of RidgeRows
        All rows in each scaling to compare; emptied by the choice.
    division : RidgeParts
        The first division of the rows; after the choice, in the best scaling and metric.
    chosen : Chosen
        The best setting, and further results of the search.
    """

    STATISTICS: ClassVar[tuple[str, ...]] = ("seconds", "residual", "solved")

    method: RidgeMethod
    options: RidgeOptions
    scaled: list[RidgeRows]
    division: RidgeParts = field(init=False)
    chosen: Chosen = field(init=False)
    statistics: int = len(STATISTICS)
    searches: bool = True  # also for a single setting, which may come with a coarse model

    @classmethod
    def prepared(
        cls, method: RidgeMethod, train: Dataset, options: RidgeOptions, comm: Communicator, test: Dataset | None = None
    ) -> RidgeTask:
        """Check the input, with the same result on all ranks, and take the rows; collective.

        Raises
        ------
        InputError
            On all ranks: invalid options, rows or targets, or a checkpoint of another run.
        """
        rows = prepare(method, train, options, comm, test)
        P = rows.partitions
        return cls(
            method=method, options=options, P=P, route=options.route_of(method, P),
            divisions=options.divisions if P > 1 else 1, checkpoint=options.checkpoint, progress=options.progress,
            scaled=scalings(rows, options, comm),
        )  # fmt: skip

    @classmethod
    def train(
        cls, method: RidgeMethod, train: Dataset, options: RidgeOptions, comm: Communicator, test: Dataset | None = None
    ) -> RidgeFit:
        """Train one model per part; a collective call.

        Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

        Raises
        ------
        InputError
            On all ranks: invalid options, more parts than rows, a matrix that does not fit or is not positive definite,
            or a checkpoint of another run.

        Notes
        -----
        m^2 d flops per part and sigma, and m^3/3 per lambda, or 4/3 m^3 for many lambdas. Memory holds this rank's
        rows, and one matrix of its largest part. Training sends nothing except one Allreduce for a coarse model; the
        errors of the grid are one reduction, counted in phase "predict".
        """
        return in_parts(cls.prepared(method, train, options, comm, test), comm)

    def divided(self, number: int, comm: Communicator) -> Parts:
        """This rank's parts of the division with this number; collective. Refuses parts whose matrix does not fit."""
        if number:
            return self.division.again(number, comm)
        self.division = RidgeParts.divided(self.method, self.scaled[0], self.options, comm)
        return self.division.parts

    def choose(self, parts: Parts, comm: Communicator) -> Parts:
        """Choose scaling, metric, sigma, lambda, coarse model and soft route, and refine the coarse model; collective.

        The cost is that of :func:`cakrr.methods.choose.choose` for every scaling and round of a metric.
        """
        begun, starts = comm.seconds["train"], [self.division]
        with comm.phase("partition"):
            starts += [RidgeParts.divided(self.method, rows, self.options, comm) for rows in self.scaled[1:]]
        self.scaled.clear()
        self.division, self.chosen = choose_in_rounds(starts, comm)
        if self.options.refine:
            refine_coarse(self.division, self.chosen, comm)
        with comm.uncounted():
            self.chosen.seconds = comm.allreduce(self.chosen.seconds)
        self.busy = comm.seconds["train"] - begun
        return self.division.parts

    def alone(self, rows: int) -> bool:
        """True for a part whose matrix takes all threads."""
        return not self.division.workspace.one_a_thread(rows)

    def solve(self, number: int, rows: Samples, side_by_side: int) -> Kept:
        """Solve a part of m rows, in this thread's matrix: m^2 d + m^3/3 flops."""
        begun, workspace = working_time(), self.division.workspace
        X, y = in_memory(rows.X), rows["y"].astype(np.float64)
        if self.chosen.coarse is not None:
            y = y - self.chosen.coarse.predict(X)
        width, lam = self.chosen.setting(number)
        system = ridge_system(X, workspace, width.kernel, rows.columns.get("weight"))
        if workspace.dtype == np.float32:
            alpha, residual = refine.solve_part(system, width.kernel, lam, y)
            solved = residual <= refine.ACCEPTED
        else:
            alphas, good = system.solve(width.kernel, (lam,), y.reshape(len(y), -1).T)
            alpha, residual, solved = np.ascontiguousarray(alphas[0].T).reshape(y.shape), 0.0, good[0]
        return {
            "alpha": alpha, "residual": np.array(residual), "solved": np.array(solved),
            "seconds": np.array(working_time() - begun),
        }  # fmt: skip

    def part(self, rows: Samples, arrays: Kept) -> PartModel:
        """The part's model; rows in a file stay there. Only a classifier without probabilities drops the weights."""
        dropped = self.division.rows.classes is not None and self.options.probability is None
        return PartModel(rows.X, arrays["alpha"], None if dropped else rows.columns.get("weight"))

    def numbers(self, arrays: Kept) -> NDArray[np.float64]:
        """Statistics of a part: :attr:`STATISTICS`."""
        return np.array([arrays[name] for name in self.STATISTICS], np.float64)

    def accept(self, parts: Parts, solved: dict[int, SolvedPart[PartModel]], comm: Communicator) -> None:
        """Raise an InputError on all ranks if a part's matrix is not positive definite; collective."""
        place = self.STATISTICS.index("solved")
        with comm.agreed():
            for number in reversed(solved):
                if not solved[number].numbers[place]:
                    width, lam = self.chosen.setting(number)
                    where = f"part {number} ({parts.sizes[number]:,} rows)"
                    raise InputError(not_definite(where, width.sigma, lam, str(parts.X.dtype)))

    def places(
        self, parts: Parts, comm: Communicator
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Centres, sizes and owners of all parts, which every rank knows from the division."""
        return parts.centers, parts.sizes, parts.owners

    def soft(self, parts: Parts, centers: NDArray[np.float64], comm: Communicator) -> Soft | None:
        """The chosen parameters of the route "soft", or None."""
        return self.chosen.soft

    def model(self, **where: Any) -> KRRModel:
        """The model with these parts and the chosen setting."""
        chosen, division = self.chosen, self.division
        return KRRModel(
            method=self.method.name, like=chosen.like, sigma=chosen.sigma, lam=chosen.lam, sigmas=chosen.sigmas,
            lams=chosen.lams, coarse=chosen.coarse, offset=division.rows.offset, classes=division.rows.classes,
            standardizer=division.standardizer, dtype=str(division.parts.X.dtype), **where,
        )  # fmt: skip

    def fit(self, model: KRRModel, numbers: NDArray[np.float64], busy: NDArray[np.float64]) -> RidgeFit:
        """The result of training, with what the report says about the search."""
        seconds, residual, _ = numbers.T.copy()
        fitted = RidgeFit(model, model.sizes, seconds=seconds, busy=busy)
        if self.division.workspace.dtype == np.float32:
            fitted.residual = residual
        self.chosen.describe(fitted)
        if self.options.scaling == "auto":
            fitted.params["scaling"] = self.division.rows.scaling
        return fitted


Trainer = Callable[[RidgeMethod, Dataset, RidgeOptions, Communicator, Dataset | None], RidgeFit]


def calibrated(
    fit: Trainer,
    method: RidgeMethod,
    train: Dataset,
    options: RidgeOptions,
    comm: Communicator,
    test: Dataset | None = None,
) -> RidgeFit:
    """Train with `fit`, and add the factors and errors that standard deviations and intervals need; collective.

    Rows set aside are used neither for the mean and deviation of the features, nor for partitioning, the choice of
    sigma and lambda, or the final model. So their errors are those of new rows.

    Raises
    ------
    InputError
        On all ranks: incompatible options, too few rows, or factors that do not fit.

    Notes
    -----
    Factors, leave-one-out errors and probabilities each take 2/3 m^3 flops per part of m rows. Adaptive intervals add
    the cost of :func:`cakrr.uncertainty.deviation.of_rows_left_out`. Rows set aside cost a prediction, and 8
    Allreduces of up to 256 counts per stored error.
    """
    with comm.agreed():
        options.checked(method)
    share, aside = options.calibrate, None
    if isinstance(share, float):
        train, aside = set_aside(train, share, options.seed, comm)
    if options.keep_factors:
        _check_room(method, train, options, comm)
    fitted = fit(method, train, options, comm, test)
    model = fitted.model
    errors = _factors_stored(fitted, options, comm) if options.keep_factors else None
    with comm.phase("train"):
        if options.probability is not None:
            model.calibrator = calibrator(model, options.probability, comm, options.memory_limit)
        if errors is None and share in (LEFT_OUT, JACKKNIFE):
            errors = deviation.left_out(model, comm, options.memory_limit)
        factors = None
        if errors is not None and (aside is not None or share == LEFT_OUT):
            model.noise, factors = of_rows_left_out(model, errors, comm)
    if aside is not None:
        _from_rows_set_aside(fitted, aside, options, comm)
    elif errors is not None and share is not None:
        _from_rows_left_out(fitted, errors, factors, comm)
    return fitted


def _factors_stored(fitted: RidgeFit, options: StorageOptions, comm: Communicator) -> dict[int, LeftOutRows]:
    """Store the factors in the model; return the leave-one-out errors of this rank's parts. Collective."""
    with comm.phase("train"):
        errors = deviation.keep(fitted.model, comm, options.memory_limit)
    held = deviation.matrices_bytes(fitted.sizes)
    fitted.reasons.append(
        f"factors for standard deviations take {held / memory.GIB:.3g} GiB of memory on all ranks together when used, "
        f"and {held / 2 / memory.GIB:.3g} GiB in the model file"
    )
    return errors


def _from_rows_set_aside(fitted: RidgeFit, aside: Dataset, options: RidgeOptions, comm: Communicator) -> None:
    """Calibrate intervals on rows set aside; collective."""
    model = fitted.model
    errors, deviations = _missed(model, aside, options, comm)
    with comm.phase("train"):
        model.calibration = Calibration.of(conformal.HELD_OUT, errors, deviations, comm)
        if has_parts(model):
            to_parts(model, aside.X, errors, comm)
    fitted.reasons.append(f"{aside.n:,} rows were set aside for intervals and not used in training")


def _from_rows_left_out(
    fitted: RidgeFit, left_out: dict[int, LeftOutRows], factors: list[NDArray[np.float64]] | None, comm: Communicator
) -> None:
    """Calibrate intervals by leave-one-out errors, for jackknife+ if `factors` of the noise is None; collective."""
    model, parts = fitted.model, sorted(left_out)
    errors = deviation.joined(model, [left_out[part].errors for part in parts])
    with comm.phase("train"):
        if factors is not None:
            deviations = deviation.joined(model, [left_out[part].deviations for part in parts]) * deviation.joined(
                model, factors
            )
            model.calibration = Calibration.of(conformal.LEFT_OUT, errors, deviations, comm)
            fitted.reasons.append(
                "intervals from leave-one-out errors: their coverage is approximate; --calibrate 0.1 sets rows aside "
                "for guaranteed coverage"
            )
            return
        for part in parts:
            model.parts[part] = replace(model.parts[part], left_out=left_out[part].errors)
        model.calibration = Calibration.of(conformal.JACKKNIFE, errors, None, comm)
    fitted.reasons.append(
        "jackknife+ intervals: approximately the requested coverage; 1 - 2 (1 - coverage) is guaranteed if sigma and "
        "lambda were not chosen on these rows"
    )


def _check_room(method: RidgeMethod, train: Dataset, options: RidgeOptions, comm: Communicator) -> None:
    """Before training, refuse factors that do not fit into a rank's memory, assuming even parts; collective."""
    n = comm.offset(train.X.shape[0])[1]
    with comm.agreed():
        P = options.partitions or default_parts(n, train.X.dtype.itemsize, options.memory_limit, comm.size)
        m, here = -(-n // P), -(-P // comm.size) * options.divisions
        need = deviation.matrices_bytes([m] * here) * 3 // 2  # each is also packed for the file
        what = f"keep_factors: storing the factors of {here} parts of {m:,} rows"
        memory.require(need, options.memory_limit, what, "use more parts, more ranks, or leave it out")


def _missed(
    model: KRRModel, rows: Dataset, options: RidgeOptions, comm: Communicator
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Errors of these rows, and the scales of their adaptive intervals if the model has factors."""
    y = rows.target().astype(np.float64)
    if options.keep_factors:
        mean, deviations = model.predict_std(rows.X, comm, options.memory_limit)
        return y - mean, scales(model, rows.X, mean, deviations, comm)
    return y - model.predict(rows.X, comm), None


train = around(RidgeTask.train, intervals=calibrated)  # what the methods in parts name as their trainer
