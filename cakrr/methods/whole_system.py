"""The exact method: one n x n system over all ranks, solved by factorisation or iteration (Algorithm 6).

:func:`cheaper` is ``--solver auto``: the available solver with the lower predicted cost. The factorisation is in
:mod:`cakrr.methods.factored`. :class:`Iterative` uses conjugate gradients: rows stay on their ranks, and all lambdas of
a sigma share kernel values. :class:`SettledErrors` is ``--early``: it stops right-hand sides whose validation error no
longer changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.metric import best_round
from cacore.data.rows import Rows, dense, in_memory, nbytes
from cacore.errors import InputError
from cacore.io.checkpoint import Kept, remembered
from cacore.kernels import Kernel
from cacore.kernels.near import spatial_order
from cacore.linalg import cg, scalapack
from cacore.machine import memory
from cacore.machine.clock import working_time
from cacore.machine.memory import Scratch
from cacore.near.halo import Routed
from cakrr.grid_search import left_out
from cakrr.iterative import cost
from cakrr.iterative.islands import owners
from cakrr.iterative.solver import StoppingCriteria
from cakrr.iterative.systems import RidgeProblem, Systems, needed
from cakrr.methods.factored import Exact, ExactSolution, PairOutcomes, RowSplit, matrix_bytes
from cakrr.methods.prepare import RidgeRows, prepare, scalings
from cakrr.methods.task import calibrated
from cakrr.options import RidgeMethod, RidgeOptions
from cakrr.ridge_model import KRRModel, RidgeFit
from cakrr.ridge_predictor import PartModel
from partition.in_parts import around


def fit(
    method: RidgeMethod, train: Dataset, options: RidgeOptions, comm: Communicator, test: Dataset | None = None
) -> RidgeFit:
    """Solve (K + lambda n I) alpha = y on all rows; arguments as for :meth:`cakrr.methods.task.RidgeTask.train`.

    Raises
    ------
    InputError
        On all ranks: invalid options, a matrix that does not fit or is not positive definite, or several ranks without
        ScaLAPACK.

    Notes
    -----
    n^2 d + n^3/3 flops per (sigma, lambda) pair, and n^2 numbers of memory, shared by the R ranks. On a grid of Pr x Pc
    ranks, each rank also holds two panels of n/Pr + n/Pc rows. Rows are sent where they are needed, once for the grid
    search and once for the final fit. ScaLAPACK sends about s n^2/2 (1/Pr + 1/Pc) bytes per rank and pair, with s bytes
    per number.
    """
    prepared = prepare(method, train, options, comm, test)
    begun = comm.seconds["train"]
    kind, reasons = _solver(method, prepared, options, comm)
    scaled = scalings(prepared, options, comm)
    alternatives = [[kind(method, rows, of_kernel, comm) for rows in scaled] for of_kernel in options.per_kernel()]
    # Algorithm 6, lines 1 to 14: train and predict with every pair of sigma and lambda, and compare the errors.
    run, errors, notes = best_round(alternatives, options.rounds, comm)
    del alternatives
    # Lines 3 to 6 once more, with the chosen pair and all rows.
    solution = run.solve(comm)
    model = run.model(solution.alpha, comm)
    run.accept(solution, model, comm)
    with comm.uncounted():
        busy = comm.allgather(np.array([comm.seconds["train"] - begun]))
    fitted = RidgeFit(
        model, np.array([run.n]), run.grid, seconds=np.array([busy.max()]), busy=busy, library_bytes=run.sent,
        notes=run.notes + notes, errors=errors, iteration=solution.iteration, reasons=reasons + run.reasons,
    )  # fmt: skip
    if options.scaling == "auto":
        fitted.params["scaling"] = run.prepared.scaling
    if str(run.X.dtype) == "float32" or solution.iteration:
        fitted.residual = np.array([solution.residual.max()])
    return fitted


def _solver(
    method: RidgeMethod, prepared: RidgeRows, options: RidgeOptions, comm: Communicator
) -> tuple[type[Exact], list[str]]:
    """Class of the requested solver, or of the cheaper one, and a sentence that explains the choice; collective."""
    if options.solver == "cholesky":
        return Exact, []
    if options.solver == "cg":
        return Iterative, []
    solver, reason = cheaper(method, prepared, options, comm)
    return (Exact if solver == "cholesky" else Iterative), [reason]


def cheaper(method: RidgeMethod, prepared: RidgeRows, options: RidgeOptions, comm: Communicator) -> tuple[str, str]:
    """The available solver with the lower predicted cost, and a sentence that explains the choice; collective."""
    if flags := options.of_iteration():
        return "cg", f"solver cg: {' and '.join(flags)} would not apply to a factorisation"
    X, n = prepared.samples.X, comm.offset(prepared.samples.X.shape[0])[1]
    d, widths, targets = X.shape[1], options.widths(method, X.shape[1]), math.prod(prepared.samples["y"].shape[1:])
    pairs = len(widths) * len(options.lam)
    solutions = pairs + (pairs > 1)
    work = cost.Work(n, d, cost.sides(np.array(options.lam)) * targets, min(options.lam) * n, options.tol)
    direct = work.cholesky(solutions)
    iterated = work.conjugate_gradients(len(widths) + (pairs > 1))
    figures = f"{direct / 1e12:.3g} against {iterated / 1e12:.3g} Tflop predicted"
    with comm.uncounted():
        rows = float(comm.allreduce(np.array([nbytes(X)], np.int64))[0]) / n
        need = int(comm.allreduce(np.array([matrix_bytes(n, X, rows, comm)], np.int64), "max")[0])
        there = comm.all(comm.size == 1 or _has_scalapack())
    if need > options.memory_limit:
        room = f"{need / memory.GIB:.3g} GiB per rank, and the limit is {options.memory_limit / memory.GIB:.3g}"
        return "cg", f"solver cg: a factorisation needs {room}"
    if not there:
        return "cg", "solver cg: a factorisation on several ranks needs ScaLAPACK, which is not installed"
    if direct <= iterated:
        return "cholesky", f"solver cholesky: {figures}"
    return "cg", f"solver cg: {figures} for a factorisation"


def _has_scalapack() -> bool:
    try:
        scalapack.where()
    except InputError:
        return False
    return True


# Reasoned, not measured.
GRID_TOL = 1e-4  # tolerance for comparing pairs: validation errors converge long before
SINGULAR = 1e-2  # residual above which the system counts as singular
NOTHING = 0.999  # residuals above this are those of x = 0, up to rounding
UNSOLVED = ("stalled", "iterations", "time")  # reasons for a pair without a solution
REMEDY = "use a larger lambda, a larger --rank, a larger --tol, or --solver cholesky"


class Iterative(Exact):
    """One training, or one round of a metric, by conjugate gradients."""

    def __init__(
        self, method: RidgeMethod, prepared: RidgeRows, options: RidgeOptions, comm: Communicator, root: Any = None,
        last: Exact | None = None,
    ) -> None:  # fmt: skip
        super().__init__(method, prepared, options, comm, root, last)
        before = last if isinstance(last, Iterative) else None
        self.begun: float = before.begun if before else working_time()
        self.reached = options.tol  # tolerance of the final solution
        scratch = before.systems.scratch if before else None
        if options.scratch is not None and scratch is None:
            with comm.agreed():
                scratch = Scratch(options.scratch)
        self.systems: Systems = Systems(options, self._shape(), scratch)

    def _shape(self) -> tuple[int, int, int]:
        """Numbers of rows on all ranks, of rows on this rank, and of targets."""
        return self.n, self.X.shape[0], math.prod(self.rows.y.shape[1:])

    def _check_memory(self, row_bytes: float, comm: Communicator) -> None:
        limit = self.options.memory_limit
        need = needed(self._shape(), row_bytes, len(self.options.lam), limit, comm)
        if self.options.near:  # dense rows in spatial order, and those of an island
            need += 3 * self.X.shape[0] * self.X.shape[1] * self.X.dtype.itemsize
        what = f"storing rows and vectors of a system of {self.n:,} rows, with {self.X.shape[0]:,} on a rank,"
        memory.require(need, limit, what, "use more ranks, a smaller grid of lambdas, or bkrr2")

    def _weights(self, rows: NDArray[np.bool_]) -> NDArray[np.float64] | None:
        """Sample weights of some of this rank's rows, if there are any."""
        return self.prepared.samples.row_weights()[rows] if "weight" in self.prepared.samples.columns else None

    def _targets(self) -> NDArray[np.float64]:
        """Targets of this rank's rows, shape (n_local, t)."""
        y = self.prepared.samples["y"].astype(np.float64)
        return y.reshape(len(y), math.prod(y.shape[1:]))

    # -- the steps of the exact method -------------------------------------------------------------

    def _remaining(self) -> float:
        """Seconds left until the time limit, on this rank."""
        limit = math.inf if self.options.max_time is None else self.options.max_time
        return max(0.0, limit - (working_time() - self.begun))

    def _criteria(self, tol: float, final: bool) -> StoppingCriteria:
        return StoppingCriteria(tol, max_time=self._remaining(), final=final)

    def _of_pair(self, name: str) -> str:
        """Name in the checkpoint of a piece for the chosen pair; another run, with more time, may choose another."""
        return self._piece(f"{name}-{self.width.like.kind}-{float(self.width.sigma)!r}-{float(self.lam)!r}")

    @property
    def folds(self) -> int:
        """1: one held-out share; repeating the iterations on folds would take too long."""
        return 1

    def _grid(
        self, split: RowSplit, validation: Samples, comm: Communicator
    ) -> tuple[NDArray[np.float64], PairOutcomes]:
        """See :meth:`cakrr.methods.factored.Exact._grid`: every lambda of a sigma at once."""
        lams, shape = self.options.lam, (validation.X.shape[0], *split.y.shape[1:])
        X, number = self.X[split.learned], split.number
        y, weights = self._targets()[split.learned], self._weights(split.learned)
        predicted = np.zeros((len(self.widths), len(lams), *shape))
        failed = np.full(predicted.shape[:2], -1, np.int64)
        residual, reason = np.zeros(failed.shape), np.full(failed.shape, "time", "U10")
        for s, width in enumerate(self.widths):
            kernel, name = width.kernel, f"width-{s:04d}"
            piece = self._piece(f"{name}-{float(width.sigma)!r}")
            if not comm.all(self._remaining() > 0):
                predicted[s], failed[s], residual[s] = np.nan, 0, 1.0
                continue

            def work(kernel: Kernel = kernel, name: str = name, piece: str = piece) -> Kept:
                criteria = self._criteria(max(self.options.tol, GRID_TOL), False)
                if self.options.early is not None:
                    criteria.early = SettledErrors(
                        validation, X, kernel, self.options.early, len(lams), self.prepared.scale
                    )
                wanted = RidgeProblem(X, number, y, weights, kernel, lams, name, piece)
                alpha, solution = self.systems.solve(wanted, criteria, comm)
                with comm.phase("predict"):
                    model = PartModel(X, np.ascontiguousarray(alpha.T, X.dtype))
                    values = model.predict(in_memory(validation.X), kernel).astype(np.float64)
                values = values.T.reshape(len(lams), y.shape[1], len(values)).swapaxes(1, 2)
                return {
                    "given": values.reshape(len(lams), *shape),
                    "residual": solution.residual.reshape(len(lams), -1).max(axis=1),
                    "stopped": np.array(solution.stopped, "U10"),
                }  # fmt: skip

            with comm.phase("train"):
                done = self._unless_late(piece, work, comm)
            residual[s] = done["residual"]
            words = done["stopped"].reshape(len(lams), -1)
            reason[s] = [next((word for word in UNSOLVED if word in row), "") for row in words.tolist()]
            # A solution stopped by the time limit counts, unless it is still x = 0, with a residual of 1.
            solved = (reason[s] == "") | ((reason[s] == "time") & (residual[s] < NOTHING))
            predicted[s] = np.where(solved.reshape(-1, *[1] * len(shape)), done["given"], np.nan)
            failed[s] = np.where(solved, -1, 0)
        comm.wait()
        return predicted, PairOutcomes(failed, residual, reason)

    def _left_out(self, outcomes: PairOutcomes) -> list[str]:
        what = "conjugate gradients have no solution"
        return left_out(outcomes.failed, self.widths, self.options.lam, what, outcomes.reason)

    def _hopeless(self, outcomes: PairOutcomes) -> str:
        if (outcomes.reason == "time").any():
            return f"--max-time {self.options.max_time:g} was exceeded: allow more, or use a smaller grid"
        return f"conjugate gradients stopped by {', '.join(np.unique(outcomes.reason))}: {REMEDY}"

    def choose(self, comm: Communicator) -> PairOutcomes | None:
        """See :meth:`cakrr.methods.factored.Exact.choose`; with `early`, this also sets the final tolerance."""
        outcomes = super().choose(comm)
        if self.options.early is not None and outcomes is not None:
            s, ell = self.widths.index(self.width), self.options.lam.index(self.lam)
            self.reached = max(self.options.tol, float(outcomes.residual[s, ell]))
        return outcomes

    def _learned(self, X: Rows, y: NDArray[np.float64], comm: Communicator) -> NDArray[np.float64]:
        number, weights, piece = self.rows.number, self._weights(self.rows.learned), self._of_pair("moments")
        wanted = RidgeProblem(X, number, y[number], weights, self.width.kernel, (self.lam,), "moments", piece)
        return self._solved(wanted, self._criteria(max(self.options.tol, GRID_TOL), False), comm)["alpha"]

    def _solved(self, wanted: RidgeProblem, criteria: StoppingCriteria, comm: Communicator) -> Kept:
        """Solve a system of the chosen pair; collective."""

        def work() -> Kept:
            alpha, solution = self.systems.solve(wanted, criteria, comm)
            return {
                "alpha": alpha.T, "residual": solution.residual, "iterations": solution.iterations,
                "stopped": np.array(solution.stopped, "U10"),
            }  # fmt: skip

        with comm.phase("train"):
            return self._unless_late(wanted.piece, work, comm)

    def solve(self, comm: Communicator) -> ExactSolution:
        """Solve with the chosen pair; residuals are recomputed. Collective."""
        weights, piece = self.prepared.samples.columns.get("weight"), self._of_pair("solution")
        wanted = RidgeProblem(
            self.X, self.rows.place, self._targets(), weights, self.width.kernel, (self.lam,), "solution", piece
        )  # fmt: skip
        done = self._solved(wanted, self._criteria(self.reached, True), comm)
        comm.wait()
        stopped, residual = [str(word) for word in done["stopped"]], done["residual"]
        iteration = {
            "iterations": done["iterations"].tolist(), "stopped": stopped, "tol": self.reached,
            "preconditioner": self.options.preconditioner, "solutions": self.systems.solutions,
        }  # fmt: skip
        if "time" in stopped:
            self.notes = [
                *self.notes,
                f"--max-time {self.options.max_time:g} was exceeded: the relative residual is "
                f"{float(residual.max()):.1e}, above --tol {self.options.tol:g}",
            ]
        return ExactSolution(done["alpha"].reshape(self.prepared.samples["y"].shape), residual, stopped, iteration)

    def _unless_late(self, name: str, work: Callable[[], Kept], comm: Communicator) -> Kept:
        """Run `work` like :func:`remembered`, but do not store a result that the time limit cut short."""
        late: Kept = {}

        def checked() -> Kept:
            done = work()
            if "time" in done["stopped"]:
                late.update(done)
                raise _LateError
            return done

        try:
            return remembered(self.checkpoint, name, checked, comm)
        except _LateError:
            return late

    def _in_pieces(
        self, X: Rows, alpha: NDArray[np.float64], weights: NDArray[np.float64] | None, comm: Communicator
    ) -> KRRModel:  # fmt: skip
        """See :meth:`Exact._in_pieces`; of near rows, neighbours are put on one rank, so that new rows visit few."""
        if not (self.options.near and comm.size > 1):
            return super()._in_pieces(X, alpha, weights, comm)
        with comm.phase("partition"):
            A, shape = dense(X), alpha.shape[1:]
            columns = [A, alpha.reshape(len(A), -1)] + ([] if weights is None else [weights[:, None]])
            toward = owners(A, self.width.kernel, float(np.finfo(A.dtype).eps), comm)
            rows = Routed.to(np.column_stack(columns), toward, comm).rows
        d, t = A.shape[1], columns[1].shape[1]
        A = np.ascontiguousarray(rows[:, :d], A.dtype)
        order = spatial_order(A) if len(A) else np.zeros(0, np.int64)
        alpha = np.ascontiguousarray(rows[order, d : d + t].reshape(-1, *shape), alpha.dtype)
        return super()._in_pieces(A[order], alpha, None if weights is None else rows[order, d + t].copy(), comm)

    def accept(self, solution: ExactSolution, model: KRRModel, comm: Communicator) -> None:
        """Refuse a solution that did not converge, except a useful one stopped by the time limit; collective."""
        late = np.array([word == "time" for word in solution.stopped])
        if (late & ~(solution.residual < NOTHING)).any():
            with comm.agreed():
                raise InputError(
                    f"--max-time {self.options.max_time:g} was exceeded before there was a useful solution: allow "
                    "more, name one sigma and lambda, or resume with --checkpoint and more time"
                )
        others = solution.residual[~late]
        if (others <= self.reached).all():
            return
        residual = float(others.max())
        pair = f"sigma {model.sigma:g}, lambda {model.lam:g}"
        outcome = f"conjugate gradients reached a relative residual of {residual:.1e}, above {self.reached:g}"
        if not residual < SINGULAR:
            remedy = "K + lambda n I is numerically singular: use a larger lambda, or a smaller sigma"
        else:
            remedy = REMEDY
        with comm.agreed():
            raise InputError(f"{outcome} ({pair}): {remedy}")


class _LateError(Exception):
    """The time limit was exceeded, on all ranks."""


SETTLED = 3  # number of iterations over which an error must not change; reasoned


class SettledErrors:
    """Stopping criterion: the validation error of a right-hand side changed by less than a share of itself.

    Parameters
    ----------
    validation : Samples
        The rows on which pairs are compared, on every rank, with the columns "y" and "weight".
    X : ndarray or CSR, shape (m, d)
        This rank's rows of the system.
    kernel : Kernel
    share : float
    lams, targets : int
        Numbers of lambdas and targets; right-hand sides are ordered by lambda, then by target.
    scale : ndarray, shape (targets,)
        Units of the targets.

    Attributes
    ----------
    history, sent
        See :class:`cakrr.iterative.solver.EarlyStop`.
    """

    def __init__(
        self, validation: Samples, X: Rows, kernel: Kernel, share: float, lams: int, scale: NDArray[np.float64]
    ) -> None:
        self.validation, self.kernel, self.share, self.scale = validation, kernel, share, scale
        self.targets = len(scale)
        self.points = kernel.points(X)
        self.rows = kernel.points(in_memory(validation.X), like=self.points)
        self.history = np.full((lams * self.targets, SETTLED + 1), np.nan)
        self.sent = 0

    def __call__(self, x: cg.Vectors, ids: NDArray[np.int64], comm: Communicator) -> NDArray[np.bool_]:
        """Mask of the right-hand sides `ids` that may stop, given coefficients `x`, shape (a, m).

        One Allreduce of predictions. Rank 0 decides, since long sums may differ in the last bit between ranks.
        """
        rows, settled = len(self.validation), self._settled(x, ids, comm).astype(np.uint8)
        if comm.size > 1:
            self.sent += 8 * comm.size * rows * len(ids) + (comm.size - 1) * (64 + settled.nbytes)
        return comm.bcast(settled).astype(np.bool_)

    def _settled(self, x: cg.Vectors, ids: NDArray[np.int64], comm: Communicator) -> NDArray[np.bool_]:
        validation = self.validation
        predicted = comm.allreduce(self.kernel.apply(self.rows, self.points, np.ascontiguousarray(x.T)))
        targets = ids % self.targets
        y = validation["y"].reshape(len(validation), -1)[:, targets]
        gap = np.square((predicted - y) / self.scale[targets])
        errors = validation["weight"] @ gap
        recent = np.column_stack([self.history[ids, 1:], errors])
        self.history[ids] = recent
        moved = recent.max(axis=1) - recent.min(axis=1)
        return np.asarray(moved <= self.share * errors)  # False for NaN


train = around(fit, intervals=calibrated)  # what `cakrr.dkrr` names as its trainer
