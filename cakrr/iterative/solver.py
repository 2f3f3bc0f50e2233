"""Conjugate gradients in single precision, refined in double: (K + mu_j I) x_j = b_j for many j at once.

Kernel values in single precision define a slightly different system. The iteration therefore stops when its residual
reaches their rounding error. The residual is then recomputed from kernel values in double precision, and becomes the
right side of the next pass. If a pass in single precision gains nothing, the next one is in double. The residual of a
returned solution is recomputed from scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.io.checkpoint import Checkpoint, Kept, Unfinished
from cacore.linalg import cg
from cacore.machine.clock import working_time
from cakrr.iterative.preconditioner import Preconditioner
from cakrr.iterative.products import KernelProducts

MOST = 2000  # iterations; a preconditioned system that needs more has a ridge near the rounding errors
_UNIT = {True: 6e-8, False: 1.2e-16}  # unit roundoff of single and of double precision
_MARGIN = 0.7  # share of the tolerance that the iteration's own residual must reach, as the recomputed one is larger
_GAIN = {True: 0.25, False: 0.5}  # factor by which a pass must reduce the residual, in single and in double precision
SAVE_EVERY = 15.0  # seconds between two checkpoints: most work that a killed run repeats


class EarlyStop(Protocol):
    """Criterion that may stop right sides before their residual reaches the tolerance.

    Attributes
    ----------
    history : ndarray
        State that is kept between iterations, for a checkpoint.
    sent : int
        Bytes sent by its calls on all ranks, according to their formula.
    """

    history: NDArray[np.float64]
    sent: int

    def __call__(self, x: cg.Vectors, ids: NDArray[np.int64], comm: Communicator) -> NDArray[np.bool_]:
        """Return a mask of the right sides `ids` to stop, given their solutions, shape (a, n_local); collective.

        The mask is the same on all ranks.
        """


@dataclass
class StoppingCriteria:
    """Criteria that end the iterations.

    Attributes
    ----------
    tol : float
        Tolerance of the residual over the norm of the right side.
    max_iter : int
    max_time : float
        Time limit of all passes together, in seconds.
    final : bool
        Recompute the residual of all right sides at the end, not only of those that continue.
    early : EarlyStop or None
    """

    tol: float
    max_iter: int = MOST
    max_time: float = np.inf
    final: bool = True
    early: EarlyStop | None = None


@dataclass
class CGSolution:
    """Solutions of all right sides.

    Attributes
    ----------
    x : ndarray, shape (t, n_local)
    residual : ndarray, shape (t,)
        |b - A x| / |b|; recomputed from kernel values in double precision if `StoppingCriteria.final`.
    iterations : ndarray of int64, shape (t,)
    stopped : list of str
        Reason per right side: "residual", "early", "time", "iterations", or "stalled".
    size : ndarray, shape (t,)
        |b|, or 1 if b = 0.
    products : dict
        Number of products in single and in double precision.
    sent : int
        Bytes sent by all ranks, according to the formulas of products, preconditioner, sums, and early stopping.
    """

    x: cg.Vectors
    residual: NDArray[np.float64]
    iterations: NDArray[np.int64]
    stopped: list[str]
    size: NDArray[np.float64]
    products: dict[str, int] = field(default_factory=dict)
    sent: int = 0


class _Systems:
    """The systems K + mu_j I of a pass, in the form that :func:`cacore.linalg.cg.iterate` needs."""

    def __init__(
        self, products: KernelProducts, preconditioner: Preconditioner, ids: NDArray[np.int64], single: bool
    ) -> None:
        self.products, self.preconditioner, self.ids, self.single = products, preconditioner, ids, single
        self.comm, self.sent = products.spread.comm, 0

    def product(self, V: cg.Vectors, which: NDArray[np.int64]) -> cg.Vectors:
        return self.products(V, self.single) + self.preconditioner.ridges[self.ids[which]][:, None] * V

    def precondition(
        self, R: cg.Vectors, which: NDArray[np.int64], sums: NDArray[np.float64]
    ) -> tuple[cg.Vectors, NDArray[np.float64]]:
        z, sums = self.preconditioner.apply(R, self.ids[which], sums, self.comm)
        return z, self._alike(sums)

    def add_up(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        self.sent += 8 * len(sums) * self.comm.size
        return self._alike(self.comm.allreduce(sums))

    def _alike(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rank 0's sums: MPI does not guarantee the same bits on all ranks, and the sums decide who stops."""
        self.sent += _broadcast(sums, self.comm)
        return self.comm.bcast(sums)


def _broadcast(array: NDArray[Any], comm: Communicator) -> int:
    """Bytes that a broadcast of `array` sends: its shape and its values to every other rank."""
    return (comm.size - 1) * (64 + array.nbytes)


def solve(
    products: KernelProducts, preconditioner: Preconditioner, B: cg.Vectors, criteria: StoppingCriteria,
    largest: float = 1.0, checkpoint: Checkpoint | None = None, name: str = "cg",
    advance: Callable[[], None] = lambda: None,
) -> CGSolution:  # fmt: skip
    """Solve for every row of `B`, shape (t, n_local); collective.

    Parameters
    ----------
    products : KernelProducts
    preconditioner : Preconditioner
        Preconditioner, with the ridge of each right side.
    B : ndarray
    criteria : StoppingCriteria
    largest : float
        Largest kernel value, which determines the rounding error of products.
    checkpoint : Checkpoint or None
        Saves the state every `SAVE_EVERY` seconds; a resumed solution has the same bits.
    name : str
        Prefix of the solution's pieces in the checkpoint.
    advance : callable
        Called after every iteration.

    Notes
    -----
    Per iteration: one product, and per right side one Allreduce of k + 2 numbers, one of 2 numbers, and two broadcasts
    of 2. Per pass, usually one or two: one more product in double precision.
    """
    saved = None if checkpoint is None else Unfinished(checkpoint, name, products.spread.comm, SAVE_EVERY)
    run = _Refinement(products, preconditioner, B, criteria, largest, saved, advance)
    while run.ids.size:
        run.one_pass()
    return run.solution()


class _Refinement:
    """One call of :func:`solve`."""

    def __init__(
        self, products: KernelProducts, preconditioner: Preconditioner, B: cg.Vectors, criteria: StoppingCriteria,
        largest: float, saved: Unfinished | None, advance: Callable[[], None],
    ) -> None:  # fmt: skip
        self.products, self.preconditioner, self.criteria, self.saved, self.advance = (
            products, preconditioner, criteria, saved, advance
        )  # fmt: skip
        self.begun, self.largest = working_time(), largest
        self.sent, self.others = 0, self._sent_by_others()
        self.size = self._norms(B)
        self.size[self.size == 0] = 1.0  # x = 0 solves it
        self.B = B / self.size[:, None]
        t = len(B)
        self.x, self.residual = np.zeros_like(B), self._norms(self.B)
        self.iterations, self.stopped = np.zeros(t, np.int64), [""] * t
        self.ids, self.r, self.single = np.arange(t), self.B, products.single
        self.ended = np.full(t, "", dtype="U10")  # reasons of the right sides that have stopped in this pass
        self.state: cg.State | None = None
        self.late, self.calls = False, dict(products.calls)
        self._take_up(None if saved is None else saved.get())

    def _take_up(self, state: Kept | None) -> None:
        """Resume from the saved state of a killed run, if there is one."""
        if state is None:
            return
        self.x, self.residual, self.iterations, self.ids, self.ended = (
            state[key] for key in ("x", "residual", "iterations", "ids", "ended")
        )  # fmt: skip
        self.single = bool(state["single"])
        self.stopped = [str(word) for word in state["stopped"]]
        if self.criteria.early is not None:
            self.criteria.early.history = state["early"]
        self.state = cg.State(**{key[6:]: value for key, value in state.items() if key.startswith("state.")})

    def _keep(self, state: cg.State) -> None:
        if self.saved is None:
            return
        self.saved.put_if_due(
            x=self.x, residual=self.residual, iterations=self.iterations, ids=self.ids, single=np.array(self.single),
            stopped=np.array(self.stopped, dtype="U10"), ended=self.ended,
            early=np.zeros(0) if self.criteria.early is None else self.criteria.early.history,
            **{f"state.{key}": value for key, value in state.arrays().items()},
        )  # fmt: skip

    def one_pass(self) -> None:
        """Iterate to the tolerance or to the rounding error of the precision; then recompute the residuals."""
        state = self.state or cg.State.first(self.r)
        self.state = None
        before, ended, spread = self.residual[self.ids], self.ended, self.products.spread
        floor = _UNIT[self.single] * np.sqrt(spread.n) * self.largest

        def watch(state: cg.State, size: NDArray[np.float64], late: bool) -> NDArray[np.bool_]:
            now = state.residual[state.which]
            self.late = self.late or late
            reached, worth = now <= _MARGIN * self.criteria.tol, now <= floor * size
            over = self.iterations[self.ids[state.which]] + state.iterations[state.which] >= self.criteria.max_iter
            early = np.zeros(len(now), np.bool_)
            if self.criteria.early is not None and not (reached | worth).all():
                ids = self.ids[state.which]
                now_at = self.x[ids] + state.x[state.which]
                early = self.criteria.early(spread.scaled(now_at * self.size[ids, None]), ids, spread.comm)
            words = np.select(
                [reached, early, np.full(len(now), self.late), over, worth],
                ["residual", "early", "time", "iterations", "floor"], "",
            )  # fmt: skip
            ended[state.which] = words
            self.advance()
            return np.asarray(words != "")

        system = _Systems(self.products, self.preconditioner, self.ids, self.single)
        cg.iterate(system, state, watch, lambda: working_time() - self.begun > self.criteria.max_time, self._keep)
        last = self.x[self.ids]
        self.x[self.ids] += state.x
        self.iterations[self.ids] += state.iterations
        self.sent += system.sent
        self._look(before, ended, state.residual, last)

    def _look(
        self, before: NDArray[np.float64], ended: NDArray[Any], by_iteration: NDArray[np.float64], last: cg.Vectors
    ) -> None:
        """Recompute residuals, undo a pass that made one worse, and decide which right sides continue."""
        ids, trusted = self.ids, np.isin(ended, ("residual", "early")) & (not self.criteria.final)
        self.residual[ids[trusted]] = by_iteration[trusted]
        asked = ids[~trusted]
        residual_rows = np.zeros((0, self.B.shape[1]))
        if len(asked):
            residual_rows = self._recomputed(asked)
            self.residual[asked] = self._norms(residual_rows)
        now = self.residual[ids]
        # Residuals of conjugate gradients oscillate; a rise counts as worse only if the pass ended by itself.
        worse = ~trusted & ~(now <= before) & np.isin(ended, ("", "floor"))
        if worse.any():
            back = ids[worse]
            self.x[back] = last[worse]
            self.residual[back] = now[worse] = before[worse]
            residual_rows[worse[~trusted]] = self._recomputed(back)
        goes_on = ~trusted & ~(now <= self.criteria.tol) & ~np.isin(ended, ("early", "time", "iterations"))
        if self.late:
            goes_on[:] = False
        gained = np.isfinite(now) & (now <= _GAIN[self.single] * before)
        if not self.single:
            stalled = goes_on & ~gained
            ended[stalled], goes_on = "stalled", goes_on & gained
        elif (goes_on & ~gained).any():
            self.single = False
        for j, word, continues in zip(ids, ended, goes_on, strict=True):
            if not continues:
                word = word if word in ("early", "time", "iterations") else "stalled"
                self.stopped[j] = "residual" if self.residual[j] <= self.criteria.tol else str(word)
        continuing = goes_on[~trusted]
        self.ids, self.r = ids[goes_on], residual_rows[continuing]
        self.ended = np.full(len(self.ids), "", dtype="U10")

    def _recomputed(self, ids: NDArray[np.int64]) -> cg.Vectors:
        """Residuals of these right sides, from kernel values in double precision."""
        x = self.x[ids]
        return np.asarray(self.B[ids] - self.products(x, False) - self.preconditioner.ridges[ids][:, None] * x)

    def _norms(self, V: cg.Vectors) -> NDArray[np.float64]:
        comm = self.products.spread.comm
        squares = comm.allreduce(np.einsum("ij,ij->i", V, V))
        self.sent += squares.nbytes * comm.size + _broadcast(squares, comm)
        return np.asarray(np.sqrt(comm.bcast(squares)))

    def _sent_by_others(self) -> int:
        early = 0 if self.criteria.early is None else self.criteria.early.sent
        return self.products.sent + self.preconditioner.sent + early

    def solution(self) -> CGSolution:
        """The solution, scaled back to the norms of the right-hand sides."""
        calls = {name: count - self.calls[name] for name, count in self.products.calls.items()}
        sent = self._sent_by_others() - self.others + self.sent if len(self.products.spread.counts) > 1 else 0
        return CGSolution(
            self.x * self.size[:, None], self.residual, self.iterations, self.stopped, self.size, calls, sent
        )
