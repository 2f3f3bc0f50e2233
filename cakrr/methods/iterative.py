"""The exact method by conjugate gradients: rows stay where they are, and all lambdas of a sigma share kernel values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import nbytes
from cacore.errors import InputError
from cacore.io.checkpoint import remembered
from cacore.kernels import Kernel
from cacore.linalg import cg, scalapack
from cacore.linalg.pivoted import Pivoted, pivoted_cholesky
from cacore.machine import memory, threads
from cakrr.grid_search import left_out
from cakrr.iterative import plan
from cakrr.iterative.keep import Keep, Scratch
from cakrr.iterative.preconditioner import Blocks, Factor, Preconditioner, residual_blocks
from cakrr.iterative.products import KernelProducts, gathers
from cakrr.iterative.solver import Rules, Solution, solve
from cakrr.iterative.spread import SpreadRows
from cakrr.methods.dkrr import Exact, Judging, matrix_bytes
from cakrr.methods.prepare import Prepared
from cakrr.model import KRRModel, PartModel
from cakrr.options import Method, Options
from partition.divide import divide

GRID_TOL = 1e-4  # of the systems that are only compared: the error is settled long before
PART = 768  # rows of a block of the preconditioners local and two-level
SINGULAR = 1e-2  # residual above which it is the system that is at fault
NOTHING = 0.999  # the residual of x = 0 is 1, but for rounding
UNSOLVED = ("stalled", "iterations", "time")  # why a pair may have no solution
REMEDY = "use a larger lambda, a larger --rank, a larger --tol, or --solver cholesky"
SETTLED = 3  # iterations over which an error must not move, for --early


def cheaper(method: Method, prepared: Prepared, options: Options, comm: Communicator) -> tuple[str, str]:
    """The solver that costs less of those that can be used, and a sentence that says why; collective."""
    if told := options.of_iteration():
        return "cg", f"solver cg: {' and '.join(told)} would mean nothing to a factorisation"
    X, n = prepared.rows.X, comm.offset(prepared.rows.X.shape[0])[1]
    d, widths, targets = X.shape[1], options.widths(method, X.shape[1]), math.prod(prepared.rows["y"].shape[1:])
    pairs = len(widths) * len(options.lam)
    solutions = pairs + (pairs > 1)
    work = plan.Work(n, d, plan.sides(np.array(options.lam)) * targets, min(options.lam) * n, options.tol)
    direct = work.cholesky(solutions)
    iterated = work.conjugate_gradients(len(widths) + (pairs > 1))
    figures = f"{direct / 1e12:.3g} against {iterated / 1e12:.3g} Tflop predicted"
    with comm.uncounted():
        rows = float(comm.allreduce(np.array([nbytes(X)], np.int64))[0]) / n
        need = int(comm.allreduce(np.array([matrix_bytes(n, X, rows, comm)], np.int64), "max")[0])
        there = comm.all(comm.size == 1 or _has_scalapack())
    if need > options.memory_limit:
        room = f"{need / memory.GIB:.3g} GiB a rank, and it may use {options.memory_limit / memory.GIB:.3g}"
        return "cg", f"solver cg: a factorisation needs {room}"
    if not there:
        return "cg", "solver cg: there is no ScaLAPACK for a factorisation over ranks"
    if direct <= iterated:
        return "cholesky", f"solver cholesky: {figures}"
    return "cg", f"solver cg: {figures} for a factorisation"


def _has_scalapack() -> bool:
    try:
        scalapack.where()
    except InputError:
        return False
    return True


class Iterative(Exact):
    """One training, or one round of it, by conjugate gradients."""

    def __init__(
        self, method: Method, prepared: Prepared, options: Options, comm: Communicator, root: Any = None,
        last: Exact | None = None,
    ) -> None:  # fmt: skip
        super().__init__(method, prepared, options, comm, root, last)
        self.begun: float = last.begun if isinstance(last, Iterative) else time.perf_counter()
        self.solutions: list[dict[str, Any]] = []
        self.reached = options.tol
        self.scratch: Scratch | None = last.scratch if isinstance(last, Iterative) else None
        if options.scratch is not None and self.scratch is None:
            with comm.agreed():
                self.scratch = Scratch(options.scratch)

    def _check_memory(self, row_bytes: float) -> None:
        need = self._base(row_bytes, len(self.options.lam))
        what = f"the rows and vectors of {self.n:,} rows, of which a rank has {self.X.shape[0]:,},"
        memory.require(need, self.options.memory_limit, what, "use more ranks, a smaller grid of lambdas, or bkrr2")

    def _base(self, row_bytes: float, lams: int) -> int:
        """Bytes of a rank for its rows in both precisions, those of others, and all vectors of a solution."""
        sides, n_local = lams * math.prod(self.y.shape[1:]), self.X.shape[0]
        everyone = int(1.5 * row_bytes * self.n) if self._gathers(row_bytes) else int(4 * row_bytes * n_local)
        vectors: int = 8 * sides * (12 * n_local + (2 * threads.current() + 2) * self.n // 2)
        return int(3 * row_bytes * n_local) + everyone + vectors + 24 * self.n

    def _gathers(self, row_bytes: float) -> bool:
        return gathers(self.comm, int(row_bytes * self.n), self.options.memory_limit)

    # -- one sigma ---------------------------------------------------------------------------------

    def _solved(
        self, rows: NDArray[np.bool_], number: NDArray[np.int64], kernel: Kernel, lams: tuple[float, ...],
        y: NDArray[np.float64], rules: Rules, name: str, piece: str,
    ) -> tuple[NDArray[np.float64], Solution]:  # fmt: skip
        """Alpha of these rows of this rank for every lambda and target, shape (L t, m); collective.

        `y`, shape (m, t), are their targets, and `number` their places among all rows that are learnt from; `name` is
        for the report, and `piece` for the checkpoint.
        """
        comm, options = self.comm, self.options
        weights = self.prepared.rows.row_weights()[rows] if "weight" in self.prepared.rows.columns else None
        X = self.X if rows.all() else self.X[rows]
        with comm.phase("partition"):
            spread = SpreadRows(X, number, kernel, comm, weights)
            total = int(comm.allreduce(np.array([nbytes(X)], np.int64))[0])
        each = total / max(1, spread.n)
        ridges = np.repeat(np.array(lams) * spread.n, y.shape[1])
        room = options.memory_limit - self._base(each, len(lams))
        room -= self._blocks_bytes(X.shape[0], len(set(lams)), room)
        begun, on_file = time.perf_counter(), self.scratch.end if self.scratch is not None else 0
        factor = self._factor(spread, kernel, ridges, room, piece)
        blocks = self._blocks(spread, kernel, factor)
        preconditioner = Preconditioner(factor, blocks, ridges, comm)
        taken = 8 * preconditioner.rank**2 * (2 + len(lams))
        if factor is not None and factor.scratch is None:
            taken += factor.rows.nbytes
        least = comm.allreduce(np.array([max(0, int(0.9 * (room - taken)))]), "min")[0]
        built = time.perf_counter() - begun
        with comm.phase("partition"):
            keep = Keep(int(least), self.scratch)
            products = KernelProducts(spread, kernel, keep, ring=not self._gathers(each))
        largest = float(comm.allreduce(np.array([spread.diagonal(kernel).max(initial=0.0)]), "max")[0])
        B = spread.scaled(np.ascontiguousarray(np.tile(y.T, (len(lams), 1))))
        advance = options.progress(f"conjugate gradients ({name})", plan.TYPICAL)
        begun, before = time.perf_counter(), int(comm.sent("train")[0].sum())
        solution = solve(products, preconditioner, B, rules, largest, self.checkpoint, piece, advance)
        with comm.uncounted():
            sent = comm.allreduce(np.array([int(comm.sent("train")[0].sum()) - before], np.int64))[0]
        self.solutions.append(
            {
                "what": name, "preconditioner": options.preconditioner, "rank": preconditioner.rank,
                "iterations": solution.iterations.tolist(), "residual": solution.residual.tolist(),
                "stopped": solution.stopped, "products": solution.products,
                "values": "single, refined in double" if products.single else "double",
                "kept": keep.share, "rows": "ring" if products.ring else "gathered",
                "seconds_factor": built, "seconds_iterations": time.perf_counter() - begun,
                "bytes": {"sent": int(sent), "predicted": solution.sent},
                **({"scratch_gbps": self.scratch.rate / 1e9} if self.scratch is not None and self.scratch.read else {}),
            }
        )  # fmt: skip
        keep.forget()
        if self.scratch is not None:
            del factor, preconditioner, blocks, products  # of which the first may lie in the file
            self.scratch.free(on_file)
        return spread.scaled(solution.x), solution

    def _factor(
        self, spread: SpreadRows, kernel: Kernel, every: NDArray[np.float64], room: int, piece: str
    ) -> Factor | None:
        """The low-rank factor, if the preconditioner has one: of the rank that is asked for, or that pays."""
        options, comm = self.options, self.comm
        if options.preconditioner == "local":
            return None
        mu, ridges = float(every.min()), len(np.unique(every))
        dtype = spread.factor_dtype(kernel, mu)
        share = room // 2 * 4 // dtype.itemsize
        fits = int(comm.allreduce(np.array([plan.largest_rank(share, spread.X.shape[0], ridges)], np.int64), "min")[0])
        most, on_disk = min(fits, spread.n), False
        if options.rank is not None and min(options.rank, spread.n) > most:
            on_disk = self.scratch is not None
            if not on_disk:
                with comm.agreed():
                    raise InputError(
                        f"rank {options.rank}: a factor of {spread.n:,} x {options.rank:,} does not fit into "
                        f"{options.memory_limit / memory.GIB:.3g} GiB a rank; the largest that does is {most:,}: "
                        "use it, more ranks, a larger --memory-limit, or --scratch DIR"
                    )
            with comm.agreed():
                need = 8 * options.rank**2 * (2 + ridges)
                what = f"the {options.rank:,} x {options.rank:,} cores of a factor"
                memory.require(need, room, what, "use a smaller --rank, fewer lambdas, or a larger --memory-limit")
        work = plan.Work(spread.n, spread.X.shape[1], plan.sides(every), max(mu, 1e-300), options.tol)

        def enough(traces: NDArray[np.float64]) -> bool:
            if options.rank is not None:
                return False
            with comm.uncounted():  # the ranks' traces may differ in the last bit
                return bool(comm.bcast(np.array([plan.enough(work, traces)], np.uint8))[0])

        def made() -> dict[str, NDArray[Any]]:
            found: Pivoted = pivoted_cholesky(
                spread, kernel, most if options.rank is None else min(options.rank, spread.n), options.seed, enough,
                dtype, options.preconditioner == "nystrom",
                self.scratch.array if on_disk and self.scratch is not None else np.empty,
            )  # fmt: skip
            return {"rows": found.rows, "traces": found.traces}

        with comm.phase("train"):
            # One that lies in a file is not written a second time, nor read into memory.
            rows = made()["rows"] if on_disk else remembered(self.checkpoint, f"{piece}-factor", made, comm)["rows"]
        return Factor(rows, self.scratch if on_disk else None) if len(rows) else None

    def _blocks_bytes(self, n_local: int, ridges: int, room: int) -> int:
        """What :meth:`_blocks` takes, if `room` has it; collective."""
        if self.options.preconditioner not in ("local", "two-level"):
            return 0
        need = 8 * n_local * PART * (1 + ridges)
        with self.comm.agreed():
            remedy = "use --preconditioner pivoted, or more ranks"
            memory.require(need, room, "the blocks of the preconditioner", remedy)
        return need

    def _blocks(self, spread: SpreadRows, kernel: Kernel, factor: Factor | None) -> Blocks | None:
        """Blocks of this rank's rows for the preconditioners that have some, of about `PART` rows each."""
        if self.options.preconditioner not in ("local", "two-level"):
            return None
        n_local = spread.X.shape[0]
        P = max(1, -(-n_local // PART))
        parts: list[NDArray[np.int64]] = []
        if n_local:
            labels = divide("kbalance", P, spread.X, Communicator(), self.options.seed).labels
            parts = [np.flatnonzero(labels == p) for p in range(P)]
        with self.comm.phase("train"):
            return residual_blocks(spread, kernel, factor, [part for part in parts if len(part)])

    def _targets(self) -> NDArray[np.float64]:
        """Of this rank's rows, shape (n_local, t)."""
        y = self.prepared.rows["y"].astype(np.float64)
        return y.reshape(len(y), math.prod(y.shape[1:]))

    # -- the steps of the exact method -------------------------------------------------------------

    def _left(self) -> float:
        """Seconds that are left to this rank."""
        most = math.inf if self.options.max_time is None else self.options.max_time
        return max(0.0, most - (time.perf_counter() - self.begun))

    def _rules(self, tol: float, final: bool) -> Rules:
        return Rules(tol, max_time=self._left(), final=final)

    def _of_pair(self, name: str) -> str:
        """The name of a piece that belongs to the chosen pair: with more time another one may be chosen."""
        return self._piece(f"{name}-{self.width.like.kind}-{float(self.width.sigma)!r}-{float(self.lam)!r}")

    def _grid(self, learnt: NDArray[np.bool_], judging: Judging) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """See :meth:`cakrr.methods.dkrr.Exact._grid`: every lambda of a sigma at once."""
        lams, comm, shape = self.options.lam, self.comm, (judging.X.shape[0], *self.y.shape[1:])
        X, number = self.X[learnt], self.place[learnt] - self.held
        y = self._targets()[learnt]
        predicted = np.zeros((len(self.widths), len(lams), *shape))
        failed = np.full(predicted.shape[:2], -1, np.int64)
        self.ended: NDArray[np.float64] = np.zeros(failed.shape)
        self.why = np.full(failed.shape, "time", "U10")
        for s, width in enumerate(self.widths):
            kernel, name = width.kernel, f"width-{s:04d}"
            piece = self._piece(f"{name}-{float(width.sigma)!r}")
            if not comm.all(self._left() > 0):
                predicted[s], failed[s], self.ended[s] = np.nan, 0, 1.0
                continue

            def work(kernel: Kernel = kernel, name: str = name, piece: str = piece) -> dict[str, NDArray[Any]]:
                rules = self._rules(max(self.options.tol, GRID_TOL), False)
                if self.options.early is not None:
                    rules.early = _Early(judging, X, kernel, self, y.shape[1])
                alpha, solution = self._solved(learnt, number, kernel, lams, y, rules, name, piece)
                with comm.phase("predict"):
                    model = PartModel(X, np.ascontiguousarray(alpha.T, X.dtype))
                    given = model.predict(judging.X, kernel).astype(np.float64)
                given = given.T.reshape(len(lams), y.shape[1], len(given)).swapaxes(1, 2)
                return {
                    "given": given.reshape(len(lams), *shape),
                    "residual": solution.residual.reshape(len(lams), -1).max(axis=1),
                    "stopped": np.array(solution.stopped, "U10"),
                }  # fmt: skip

            with comm.phase("train"):
                done = self._unless_late(piece, work)
            self.ended[s] = done["residual"]
            words = done["stopped"].reshape(len(lams), -1)
            self.why[s] = [next((word for word in UNSOLVED if word in row), "") for row in words.tolist()]
            # What its time has ended is a model as far as it came; x = 0, with a residual of 1, is none.
            solved = (self.why[s] == "") | ((self.why[s] == "time") & (self.ended[s] < NOTHING))
            predicted[s] = np.where(solved.reshape(-1, *[1] * len(shape)), done["given"], np.nan)
            failed[s] = np.where(solved, -1, 0)
        comm.wait()
        return predicted, failed

    def _left_out(self, failed: NDArray[np.int64]) -> list[str]:
        return left_out(failed, self.widths, self.options.lam, "conjugate gradients have no solution", self.why)

    def _hopeless(self) -> str:
        if (self.why == "time").any():
            return f"--max-time {self.options.max_time:g} was over: allow more, or use a smaller grid"
        return f"conjugate gradients ended by {', '.join(np.unique(self.why))}: {REMEDY}"

    def choose(self) -> None:
        """See :meth:`cakrr.methods.dkrr.Exact.choose`; with `early` it also says how far the solution has to go."""
        super().choose()
        if self.options.early is not None and self.grid:
            s, ell = self.widths.index(self.width), self.options.lam.index(self.lam)
            self.reached = max(self.options.tol, float(self.ended[s, ell]))

    def _learned(self, learnt: NDArray[np.bool_], y: NDArray[np.float64]) -> NDArray[np.float64]:
        number, piece = self.place[learnt] - self.held, self._of_pair("moments")
        rules = self._rules(max(self.options.tol, GRID_TOL), False)

        def work() -> dict[str, NDArray[Any]]:
            alpha, solution = self._solved(
                learnt, number, self.width.kernel, (self.lam,), y[number], rules, "moments", piece
            )
            return {"alpha": alpha.T, "stopped": np.array(solution.stopped, "U10")}

        with self.comm.phase("train"):
            return self._unless_late(piece, work)["alpha"]

    def solve(self) -> tuple[NDArray[np.float64], float]:
        """Alpha of this rank's rows, and the relative residual, which was computed from scratch."""
        shape = self.prepared.rows["y"].shape
        y = self._targets()
        every, piece = np.ones(len(self.place), np.bool_), self._of_pair("solution")

        def work() -> dict[str, NDArray[Any]]:
            rules = self._rules(self.reached, True)
            alpha, solution = self._solved(
                every, self.place, self.width.kernel, (self.lam,), y, rules, "solution", piece
            )  # fmt: skip
            return {
                "alpha": alpha.T.reshape(shape), "residual": solution.residual, "iterations": solution.iterations,
                "stopped": np.array(solution.stopped, "U10"),
            }  # fmt: skip

        with self.comm.phase("train"):
            done = self._unless_late(piece, work)
        self.comm.wait()
        self.stopped, self.residual = [str(word) for word in done["stopped"]], done["residual"]
        self.iteration = {
            "iterations": done["iterations"].tolist(), "stopped": self.stopped, "tol": self.reached,
            "preconditioner": self.options.preconditioner, "solutions": self.solutions,
        }  # fmt: skip
        if "time" in self.stopped:
            self.notes = [
                *self.notes,
                f"--max-time {self.options.max_time:g} is over: the relative residual is "
                f"{float(done['residual'].max()):.1e}, and --tol {self.options.tol:g} was asked for",
            ]
        return done["alpha"], float(done["residual"].max())

    def _unless_late(self, name: str, work: Callable[[], dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        """As :func:`remembered`; what stopped since its time was over is not kept, so that a later run goes on."""
        late: dict[str, NDArray[Any]] = {}

        def checked() -> dict[str, NDArray[Any]]:
            done = work()
            if "time" in done["stopped"]:
                late.update(done)
                raise _LateError
            return done

        try:
            return remembered(self.checkpoint, name, checked, self.comm)
        except _LateError:
            return late

    def accept(self, residual: float, model: KRRModel) -> None:
        """Refuse a solution that did not converge, unless its time was over and it is better than none; collective."""
        late = np.array([word == "time" for word in self.stopped])
        if (late & ~(self.residual < NOTHING)).any():
            with self.comm.agreed():
                raise InputError(
                    f"--max-time {self.options.max_time:g} was over before the solution was better than none: allow "
                    "more, name one sigma and lambda, or use --checkpoint and go on with more time"
                )
        others = self.residual[~late]
        if (others <= self.reached).all():
            return
        residual = float(others.max())
        pair = f"sigma {model.sigma:g}, lambda {model.lam:g}"
        told = f"conjugate gradients came to a relative residual of {residual:.1e}, asked for was {self.reached:g}"
        if not residual < SINGULAR:
            remedy = "K + lambda n I is singular to the rounding: use a larger lambda, or a smaller sigma"
        else:
            remedy = REMEDY
        with self.comm.agreed():
            raise InputError(f"{told} ({pair}): {remedy}")


class _LateError(Exception):
    """The time was over, on all ranks."""


class _Early:
    """Who may stop since its validation error has not moved over the last iterations by more than a share of it."""

    def __init__(self, judging: Judging, X: Any, kernel: Kernel, run: Iterative, targets: int) -> None:
        self.judging, self.kernel, self.run, self.targets = judging, kernel, run, targets
        self.points = kernel.points(X)
        self.rows = kernel.points(judging.X, like=self.points)
        self.history = np.full((len(run.options.lam) * targets, SETTLED + 1), np.nan)
        self.sent = 0

    def __call__(self, x: cg.Vectors, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of expansions `x`, shape (a, m), of the right sides `ids`; one Allreduce of the rows' predictions.

        The answer is rank 0's: sums of many numbers may differ in the last bit from rank to rank.
        """
        comm, rows = self.run.comm, len(self.judging.y)
        settled = self._settled(x, ids).astype(np.uint8)
        if comm.size > 1:
            self.sent += 8 * comm.size * rows * len(ids) + (comm.size - 1) * (64 + settled.nbytes)
        return comm.bcast(settled).astype(np.bool_)

    def _settled(self, x: cg.Vectors, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        comm, judging = self.run.comm, self.judging
        predicted = comm.allreduce(self.kernel.apply(self.rows, self.points, np.ascontiguousarray(x.T)))
        targets = ids % self.targets
        y = judging.y.reshape(len(judging.y), -1)[:, targets]
        gap = np.square((predicted - y) / self.run.prepared.scale[targets])
        errors = judging.weights @ gap
        recent = np.column_stack([self.history[ids, 1:], errors])
        self.history[ids] = recent
        share = self.run.options.early or 0.0
        return np.asarray(recent.max(axis=1) - recent.min(axis=1) <= share * errors)  # not of a number that is none
