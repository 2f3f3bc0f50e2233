"""Ridge regression as a task of :func:`partition.in_parts.in_parts` (Algorithms 8, 10 and 11)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import in_memory
from cacore.errors import InputError
from cacore.io.checkpoint import Kept
from cacore.machine.clock import working_time
from cakrr.grid_search import not_definite
from cakrr.methods.calibrated import calibrated
from cakrr.methods.choose import Chosen, choose_in_rounds
from cakrr.methods.prepare import RidgeParts, RidgeRows, prepare, scalings
from cakrr.methods.refined import refine_coarse
from cakrr.options import RidgeMethod, RidgeOptions
from cakrr.ridge_model import KRRModel, RidgeFit
from cakrr.ridge_predictor import PartModel
from cakrr.solver import refine
from cakrr.solver.local import ridge_system
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


train = around(RidgeTask.train, intervals=calibrated)  # what the methods in parts name as their trainer
