"""The exact method by factorisation: choose a pair, solve, and make the model.

The system of all rows lies in block-cyclic layout over all ranks (section 3.3, Fig. 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.holdout import Holdout
from cacore.data.metric import check_features, sample_of
from cacore.data.rows import AnyRows, Rows, exchange_rows, gather_rows, in_memory, nbytes
from cacore.data.standardize import Root, Standardizer, mapped
from cacore.errors import InputError
from cacore.io.checkpoint import Kept, remembered
from cacore.kernels import Kernel
from cacore.kernels.gradients import stacked
from cacore.linalg.scalapack import BlockCyclic, layout
from cacore.machine import memory, threads
from cakrr.grid_search import CHOOSING, GridErrors, best, least, left_out, next_widths, not_definite, table
from cakrr.methods.prepare import RidgeRows
from cakrr.options import RidgeMethod, RidgeOptions, Width, few_rows
from cakrr.ridge_model import KRRModel
from cakrr.ridge_predictor import PartModel
from cakrr.solver import refine
from cakrr.solver.local import credible, longest


class BlockCyclicSystem:
    """K + lambda n I of n rows, distributed over all ranks, for any sigma and lambda.

    Parameters
    ----------
    X : ndarray or CSR, shape (n_local, d)
        This rank's rows.
    number : ndarray of int64, shape (n_local,)
        Places of these rows among the n rows of the system.
    weights : ndarray, shape (n,)
        Weights w of all rows, in the order of the system: the diagonal gets lambda sum(w)/w.
    like : Kernel
        The kernel, of any width.
    comm : Communicator
    """

    def __init__(
        self, X: Rows, number: NDArray[np.int64], weights: NDArray[np.float64], like: Kernel, comm: Communicator
    ) -> None:
        self.n = len(weights)
        self.ridge = weights.sum() / weights
        self.matrix = BlockCyclic(self.n, comm, X.dtype)
        rows, columns = self.matrix.rows, self.matrix.columns
        self.received, places = _panels(X, number, self.n, comm)
        order = np.argsort(places)
        self._rows, self._columns = (order[np.searchsorted(places[order], wanted)] for wanted in (rows, columns))
        points = like.points(self.received)
        self.column_points, self.row_points = points[self._columns], points[self._rows]
        _, self._i, self._j = np.intersect1d(rows, columns, assume_unique=True, return_indices=True)

    def factor(self, kernel: Kernel, lam: float) -> bool:
        """Form K + lambda n I and factor it; return True if it is positive definite."""
        local = self.matrix.local
        for columns, rows in self.matrix.column_blocks():
            kernel.fill(self.column_points[columns], self.row_points[rows], local[columns, rows])
        diagonal = self.matrix.rows[self._i]
        alone = kernel.diagonal(self.received[self._rows[self._i]])
        local[self._j, self._i] = (alone + lam * self.ridge[diagonal]).astype(local.dtype)
        return self.matrix.cholesky() == 0

    def solve(
        self, kernel: Kernel, lam: float, y: NDArray[np.float64], comm: Communicator
    ) -> tuple[NDArray[np.float64], float]:
        """Alpha of all n rows, in the shape of `y`, on all ranks, and the relative residual if it was refined."""
        if self.matrix.dtype == np.float64:
            if not self.factor(kernel, lam):
                return np.full_like(y, np.nan), np.inf
            alpha = self.matrix.solve(y)
            good = np.isfinite(alpha).all() and self._is_credible(kernel, lam, alpha, y, comm)
            return alpha, 0.0 if good else np.inf

        def agreed(residual: NDArray[np.float64]) -> NDArray[np.float64]:
            """Rank 0's residual, so that all ranks take the same number of steps."""
            return comm.bcast(np.atleast_1d(residual)).reshape(residual.shape)

        product = self._product(kernel, lam, comm)
        return refine.solve(lambda wider: self.factor(kernel, wider), self.matrix.solve, product, lam, y, agreed)

    def _is_credible(
        self, kernel: Kernel, lam: float, alpha: NDArray[np.float64], y: NDArray[np.float64], comm: Communicator
    ) -> bool:
        """True if the equations of the longest rows are solved; each rank sends a few numbers to all."""
        with comm.uncounted():
            mine = longest(self.row_points.squares)
            rows, squares = comm.allgather(self.matrix.rows[mine]), comm.allgather(self.row_points.squares[mine])
            rows, once = np.unique(rows, return_index=True)
            longest_rows = rows[longest(squares[once])]
            _, at, mine = np.intersect1d(longest_rows, self.matrix.rows, assume_unique=True, return_indices=True)
            residual = np.zeros((len(longest_rows), *y.shape[1:]))
            residual[at] = kernel.apply(self.row_points[mine], self.column_points, alpha[self.matrix.columns])
            residual = comm.allreduce(residual)
        residual += lam * _columns(self.ridge[longest_rows], y) * alpha[longest_rows] - y[longest_rows]
        with np.errstate(over="ignore"):
            return credible(residual, np.square(y).max(axis=0))

    def _product(self, kernel: Kernel, lam: float, comm: Communicator) -> refine.Operator:
        """Multiplication by K + lambda n I in double precision: each rank's blocks, and one Allreduce of n numbers."""
        points = kernel.points(self.received.astype(np.float64))
        rows, columns = points[self._rows], points[self._columns]

        def product(v: NDArray[np.float64]) -> NDArray[np.float64]:
            out = np.zeros_like(v)
            out[self.matrix.rows] = kernel.apply(rows, columns, v[self.matrix.columns])
            return np.asarray(comm.allreduce(out) + lam * _columns(self.ridge, v) * v)

        return product


def _columns(ridge: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Reshape one number per row for multiplication with `y`, shape (n,) or (n, t)."""
    return ridge if y.ndim == 1 else ridge[:, None]


def _panels(X: Rows, number: NDArray[np.int64], n: int, comm: Communicator) -> tuple[Rows, NDArray[np.int64]]:
    """Rows that this rank's blocks need, each once, and their places among the n rows; collective."""
    sends, counts = [], np.zeros(comm.size, np.int64)
    for rank, (rows, columns) in enumerate(layout(n, comm.size)):
        wanted = np.zeros(n, np.bool_)
        wanted[rows] = wanted[columns] = True
        rows_of_rank = np.flatnonzero(wanted[number])
        sends.append(rows_of_rank)
        counts[rank] = len(rows_of_rank)
    send = np.concatenate(sends)
    return exchange_rows(X[send], counts, comm), comm.alltoall(number[send], counts)[0]


def matrix_bytes(n: int, X: AnyRows, row_bytes: float, comm: Communicator) -> int:
    """Bytes of this rank's share of the n x n matrix, and of the rows it is computed from, `row_bytes` each."""
    rows, columns = layout(n, comm.size)[comm.rank]
    # Rows as read, sent and received, and two panels of them, in double precision if solutions are refined.
    copies = 2 if X.dtype == np.float64 else 5
    held = int(row_bytes * (2 * X.shape[0] + copies * (len(rows) + len(columns))))
    return len(rows) * len(columns) * int(X.dtype.itemsize) + held


PIECE = 2048  # rows per piece of the model, the unit of distribution when it is loaded; reasoned


@dataclass(frozen=True, eq=False)
class RowSplit:
    """All rows in an order in which those held out come first and the others are learned from.

    Attributes
    ----------
    place : ndarray of int64, shape (n_local,)
        Place of each of this rank's rows in the order.
    y : ndarray, shape (n,) or (n, t)
        Targets of all rows, in this order.
    weights : ndarray, shape (n,)
    held : int
        Number of held-out rows.
    name : str
        Prefix of the split's pieces in the checkpoint.
    """

    place: NDArray[np.int64]
    y: NDArray[np.float64]
    weights: NDArray[np.float64]
    held: int
    name: str = ""

    @property
    def learned(self) -> NDArray[np.bool_]:
        """Mask of this rank's rows that are learned from."""
        return np.asarray(self.place >= self.held)

    @property
    def number(self) -> NDArray[np.int64]:
        """Places of this rank's learned rows among all learned rows."""
        return self.place[self.place >= self.held] - self.held


@dataclass(frozen=True, eq=False)
class PairOutcomes:
    """How the solutions of the grid's pairs ended.

    Attributes
    ----------
    failed : ndarray of int64, shape (S, L)
        0 for a pair without a solution, otherwise -1.
    residual : ndarray, shape (S, L)
        Relative residuals of an iteration; 0 for a factorisation.
    reason : ndarray of str, shape (S, L)
        Why an iteration stopped without a solution; empty for a pair that is solved, and for a factorisation.
    """

    failed: NDArray[np.int64]
    residual: NDArray[np.float64]
    reason: NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class ExactSolution:
    """The solution with the chosen pair.

    Attributes
    ----------
    alpha : ndarray, shape (n_local,) or (n_local, t)
        Coefficients of this rank's rows.
    residual : ndarray, shape (1,) or (t,)
        Relative residuals.
    stopped : list of str
        Why an iteration stopped, for each target; empty for a factorisation.
    iteration : dict
        Entries of the report about conjugate gradients, if they were the solver.
    """

    alpha: NDArray[np.float64]
    residual: NDArray[np.float64]
    stopped: list[str] = field(default_factory=list)
    iteration: dict[str, Any] = field(default_factory=dict)


class Exact:
    """One training, or one round of a metric: the state that its steps share."""

    def __init__(
        self, method: RidgeMethod, prepared: RidgeRows, options: RidgeOptions, comm: Communicator,
        root: Root | None = None, last: Exact | None = None,
    ) -> None:  # fmt: skip
        self.method, self.prepared, self.options, self.root = method, prepared, options, root
        self.number: int = last.number + 1 if last else 0
        self.sent: int = last.sent if last else 0
        if options.metric != "none" and not last:
            with comm.agreed():
                check_features(options.metric, prepared.samples.X.shape[1], options.memory_limit)
        self.X = mapped(in_memory(prepared.samples.X), root)
        self.checkpoint, self.like = options.checkpoint, options.kernels()[0]
        self.standardizer = Standardizer.with_root(prepared.standardizer, root)
        self.grid: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.reasons: list[str] = []
        self.error, self.errors = math.inf, np.zeros((1, 1, 1))
        share = options.validation_fraction if options.select == "validation" else 0.0
        holdout = Holdout.shuffled(self.X.shape[0], options.seed, comm, share)
        self.n = holdout.n
        with comm.phase("partition"):
            y, weights = prepared.samples["y"], prepared.samples.row_weights()
            y, weights = (self._everywhere(values, holdout.place, comm) for values in (y, weights))
        self.rows = RowSplit(holdout.place, y, weights, holdout.run()[1])
        self.widths = last.nearby(comm) if last else options.widths(method, self.X.shape[1])
        self.width, self.lam = self.widths[0], options.lam[0]
        total = int(comm.allreduce(np.array([nbytes(self.X)], np.int64))[0])
        with comm.agreed():
            self._check_memory(total / self.n, comm)

    def _everywhere(
        self, values: NDArray[np.floating], place: NDArray[np.int64], comm: Communicator
    ) -> NDArray[np.float64]:
        """Gather the values of all ranks' rows on every rank, in shuffled order."""
        out = np.empty((self.n, *values.shape[1:]))
        out[comm.allgather(place)] = comm.allgather(values.astype(np.float64))
        return out

    def _check_memory(self, row_bytes: float, comm: Communicator) -> None:
        need = matrix_bytes(self.n, self.X, row_bytes, comm)
        what = f"storing a rank's rows and its share of the {self.n:,} x {self.n:,} matrix"
        remedy = "use --solver cg, more ranks, a larger --memory-limit, --dtype float32, or bkrr2 or twolevel"
        memory.require(need, self.options.memory_limit, what, remedy)

    def again(self, root: Root, comm: Communicator) -> Exact:
        """The next round, in this metric; collective."""
        return type(self)(self.method, self.prepared, self.options, comm, root, self)

    def nearby(self, comm: Communicator) -> tuple[Width, ...]:
        """Widths for the next round: the best of this round, and its neighbours; collective."""
        with comm.uncounted():  # the ranks' errors may differ in the last bit
            return next_widths(self.widths, comm.bcast(least(self.errors, 1)))

    @property
    def folds(self) -> int:
        """Number of folds on which the pairs are compared; 1 for one held-out share."""
        return self.options.folds(self.n)

    def splits(self) -> Iterator[RowSplit]:
        """The rows with each fold held out in turn, or with the held-out share."""
        if self.folds == 1:
            yield self.rows
            return
        holdout = Holdout(self.rows.place, self.n, folds=self.folds)
        for fold in range(self.folds):
            first, last = holdout.run(fold)
            y, weights = np.roll(self.rows.y, -first, axis=0), np.roll(self.rows.weights, -first)
            yield RowSplit((holdout.place - first) % self.n, y, weights, last - first, f"fold-{fold}-")

    def choose(self, comm: Communicator) -> PairOutcomes | None:
        """Choose sigma and lambda, and set the grid's errors and notes; one reduction of the errors of all pairs.

        Returns how the solutions of the pairs ended, if several were compared.
        """
        options, lams = self.options, self.options.lam
        if len(self.widths) * len(lams) == 1 and not options.compares and options.early is None:
            return None
        with comm.agreed():
            if options.select == "validation" and self.n < 2:
                raise InputError("n_samples = 1, and a choice needs 2: one row leaves none to validate on")
        results, weights, outcomes = zip(*(self._errors(split, comm) for split in self.splits()), strict=True)
        grid = GridErrors.over_folds(results, weights)
        errors = grid.errors
        outcome: PairOutcomes = replace(outcomes[0], failed=grid.failed)
        with comm.phase("predict"):
            _, s, ell = best(errors, self.widths, lams, self.X.dtype, comm, self._hopeless(outcome))
        self.notes, self.reasons = self._left_out(outcome), []
        if options.default_widths:  # no warning for pairs that nobody asked for
            self.notes, self.reasons = [], self.notes
        if self.folds > 1:
            self.reasons.append(few_rows(self.folds))
        self.width, self.lam, self.error = self.widths[s], lams[ell], float(errors[0, s, ell])
        self.errors = errors
        self.grid = table(errors, self.widths, lams, options)
        return outcome

    def _errors(self, split: RowSplit, comm: Communicator) -> tuple[GridErrors, float, PairOutcomes]:
        """Mean squared errors of all pairs on the held-out or test rows, the weight of these rows, and the outcomes."""
        options = self.options
        with comm.phase("partition"):
            if split.held:
                X = gather_rows(self.X[~split.learned], comm)
                places = comm.allgather(split.place[~split.learned])
                y, weights = split.y[places], split.weights[places]
            else:
                test, y, weights = self.prepared.test_rows(self.standardizer)
                X, y, weights = gather_rows(in_memory(test), comm), comm.allgather(y), comm.allgather(weights)
        with comm.agreed():
            need = 8 * len(self.widths) * len(options.lam) * X.shape[0] * math.prod(y.shape[1:])
            memory.require(need, options.memory_limit, "storing the grid's predictions", "use a smaller grid")
        predicted, outcomes = self._grid(split, Samples(X, {"y": y, "weight": weights}), comm)
        with comm.phase("predict"):
            gap = np.square((comm.allreduce(predicted) - y) / self.prepared.scale)
            if y.ndim > 1:
                gap = gap.sum(axis=-1)
        weight = float(weights.sum())
        return GridErrors((gap @ weights / weight)[None], outcomes.failed), weight, outcomes

    def _left_out(self, outcomes: PairOutcomes) -> list[str]:
        """A note on the pairs without a solution."""
        return left_out(outcomes.failed, self.widths, self.options.lam)

    def _hopeless(self, outcomes: PairOutcomes) -> str:
        """Reason and remedy if no pair has a solution; empty if lambda is too small."""
        return ""

    def moments(self, comm: Communicator) -> NDArray[np.float64]:
        """Sum of grad f grad f^T, or its diagonal, over a sample of the training rows; collective.

        f is the model of all training rows. n^3/3 flops on all ranks together, plus those of the gradients; one
        Allreduce of the gradients of the sample.
        """
        held, kernel, diagonal = self.rows.held, self.width.kernel, self.options.metric == "diagonal"
        X, number = self.X[self.rows.learned], self.rows.number
        y = (self.rows.y[held:].reshape(self.n - held, -1)) / self.prepared.scale
        with comm.phase("partition"):
            sample = gather_rows(X[number < sample_of(X.shape[1] * y.shape[1])], comm)
        alpha = self._learned(X, y, comm)
        with comm.phase("train"):
            slopes = comm.allreduce(stacked(kernel, sample, X, alpha.T))
        if diagonal:
            return np.asarray(np.square(slopes).sum(axis=(0, 1)))
        return np.asarray(np.einsum("kij,kil->jl", slopes, slopes))

    def _learned(self, X: Rows, y: NDArray[np.float64], comm: Communicator) -> NDArray[np.float64]:
        """Alpha of `X`, this rank's training rows, at the chosen pair; `y`: targets of all ranks', (n - held, t)."""
        number = self.rows.number
        with comm.phase("partition"):
            system = BlockCyclicSystem(X, number, self.rows.weights[self.rows.held :], self.like, comm)

        def work() -> Kept:
            if not system.factor(self.width.kernel, self.lam):
                return {"alpha": np.full(y.shape, np.nan)}
            self.sent += system.matrix.predicted_bytes()
            return {"alpha": system.matrix.solve(y)}

        with comm.phase("train"), system.matrix:
            return remembered(self.checkpoint, self._piece("moments"), work, comm)["alpha"][number]

    def _piece(self, name: str) -> str:
        """Name of this round's piece in the checkpoint."""
        return self.prepared.piece(name, self.number, self.options)

    def _grid(
        self, split: RowSplit, validation: Samples, comm: Communicator
    ) -> tuple[NDArray[np.float64], PairOutcomes]:
        """This rank's share of every pair's predictions, (S, L, q, ...), and how their solutions ended.

        `validation` are the rows on which pairs are compared, on every rank, with the columns "y" and "weight".
        """
        lams, X_validation = self.options.lam, in_memory(validation.X)
        X, number, y = self.X[split.learned], split.number, split.y[split.held :]
        shape = (X_validation.shape[0], *y.shape[1:])
        with comm.phase("partition"):
            system = BlockCyclicSystem(X, number, split.weights[split.held :], self.like, comm)
        predicted = np.zeros((len(self.widths), len(lams), *shape))
        failed = np.full(predicted.shape[:2], -1, np.int64)
        advance = self.options.progress(CHOOSING, failed.size)
        with comm.phase("train"):
            for s, ell in np.ndindex(failed.shape):
                kernel = self.widths[s].kernel

                def work(kernel: Kernel = kernel, lam: float = lams[ell]) -> Kept:
                    # For comparing pairs, solutions need no refinement.
                    if not system.factor(kernel, lam):
                        return {"given": np.full(shape, np.nan), "solved": np.array(False)}
                    self.sent += system.matrix.predicted_bytes()
                    model = PartModel(X, system.matrix.solve(y)[number].astype(X.dtype))
                    return {"given": model.predict(X_validation, kernel), "solved": np.array(True)}

                done = remembered(self.checkpoint, self._piece(f"{split.name}pair-{s:04d}-{ell:04d}"), work, comm)
                predicted[s, ell] = done["given"]
                failed[s, ell] = -1 if done["solved"] else 0
                advance()
        comm.wait()
        system.matrix.close()
        return predicted, PairOutcomes(failed, np.zeros(failed.shape), np.zeros(failed.shape, "U10"))

    def solve(self, comm: Communicator) -> ExactSolution:
        """Solve with the chosen pair; collective."""
        with comm.phase("partition"):
            system = BlockCyclicSystem(self.X, self.rows.place, self.rows.weights, self.like, comm)

        def work() -> Kept:
            alpha, residual = system.solve(self.width.kernel, self.lam, self.rows.y, comm)
            self.sent += system.matrix.predicted_bytes()
            return {"alpha": alpha, "residual": np.array(residual)}

        with comm.phase("train"), system.matrix:
            done = remembered(self.checkpoint, "alpha", work, comm)
        comm.wait()
        return ExactSolution(done["alpha"][self.rows.place], done["residual"].reshape(1))

    def accept(self, solution: ExactSolution, model: KRRModel, comm: Communicator) -> None:
        """Refuse a solution with a large residual; collective."""
        if not solution.residual.max() <= refine.ACCEPTED:  # also refuses NaN
            with comm.agreed():
                raise InputError(
                    not_definite(f"the system of all {self.n:,} rows", model.sigma, model.lam, model.dtype)
                )

    def model(self, alpha: NDArray[np.float64], comm: Communicator) -> KRRModel:
        """The model in pieces, each on the rank that has the rows."""
        weights = self.prepared.samples.columns.get("weight")
        if self.prepared.classes is not None and self.options.probability is None:
            weights = None  # not needed afterwards
        return self._in_pieces(self.X, alpha, weights, comm)

    def _in_pieces(
        self, X: Rows, alpha: NDArray[np.float64], weights: NDArray[np.float64] | None, comm: Communicator
    ) -> KRRModel:  # fmt: skip
        """The model of these rows, shape (m, d), with their coefficients and weights; collective."""
        pieces = threads.blocks(X.shape[0], PIECE)
        first, _ = comm.offset(len(pieces))
        owners = comm.allgather(np.full(len(pieces), comm.rank, np.int64))
        sizes = comm.allgather(np.array([hi - lo for lo, hi in pieces], np.int64))
        model = KRRModel(
            method=self.method.name, route=self.method.route, sigma=self.width.sigma, lam=self.lam,
            offset=self.prepared.offset, centers=np.zeros((0, X.shape[1])), sizes=sizes, owners=owners,
            standardizer=self.standardizer, dtype=str(X.dtype), like=self.width.like,
            classes=self.prepared.classes,
        )  # fmt: skip
        for i, (lo, hi) in enumerate(pieces):
            weight = None if weights is None else weights[lo:hi]
            model.parts[first + i] = PartModel(X[lo:hi], alpha[lo:hi], weight)
        return model
