"""Asynchronous greedy coordinate descent for the dual of the kernel SVM without a bias (section 4.4).

Minimise f(alpha) = 1/2 alpha'Q alpha - e'alpha with 0 <= alpha <= C (eq. 4.9). Threads solve one problem
together: each owns a block of rows and, again and again, moves the coordinate of its block with the largest projected
gradient to its optimum. There are no locks and no barriers; shared counters detect convergence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asygcd.solver import UPDATES
from asygcd.solver.algorithm14 import work_atomic, work_stochastic
from asygcd.solver.kernel_columns import KernelCaches
from asygcd.solver.owned import finish, thread_state, work, working_set
from asygcd.solver.shared_state import DONE, LINE, LOG, SharedState, blocks, shared_state, together
from cacore.compiled.pointers import Bundle
from cacore.data.rows import Rows
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout, weighted
from cacore.kernels.precision import Accuracy
from cacore.limits import Limits
from cacore.machine.clock import working_time
from cacore.machine.threads import for_blocks
from cacore.svm.problem import overflow

Vector = NDArray[np.float64]
_Loop = tuple[Callable[[], int], Callable[[], None] | None]

# Runs of the threads until the gradient in double precision meets the tolerance, which is halved for each further run.
_RUNS = 4
TURNS = 1 << 20  # turns of a thread's loop before it returns from compiled code


@dataclass(frozen=True)
class AsyGCDProgress:
    """Progress of the threads while they work.

    Attributes
    ----------
    seconds : float
    iterations : int
        Number of updates of one coordinate.
    objective : float
        f(alpha), from each thread's last check of all its rows (0 before the first); in the last call, the solution's.
    gap : float
        Largest violation at these checks.
    alpha : callable
        Returns a copy of the current alpha, shape (n,).
    """

    seconds: float
    iterations: int
    objective: float
    gap: float
    alpha: Callable[[], Vector]


@dataclass(frozen=True)
class AsyGCDSolution:
    """Solution of one dual problem.

    Attributes
    ----------
    alpha, gradient : ndarray of float64, shape (n,)
        The gradient g = Q alpha - e is the one that the threads maintained; for PSCD it is computed at the end.
    objective : float
        f(alpha) = 1/2 alpha'(g - e), minimised.
    gap : float
        Largest |projected gradient|.
    converged : bool
    steps, hits, misses : ndarray of int64, shape (T,)
        Each thread's number of updates, of columns found in its cache, and of columns computed.
    kernel_values : int
        Number of kernel values computed by all threads.
    seconds : float
    """

    alpha: Vector
    gradient: Vector
    objective: float
    gap: float
    converged: bool
    steps: NDArray[np.int64]
    hits: NDArray[np.int64]
    misses: NDArray[np.int64]
    kernel_values: int
    seconds: float

    @property
    def iterations(self) -> int:
        """Number of updates of one coordinate by all threads."""
        return int(self.steps.sum())


class AsyGCD:
    """Threads with their blocks of rows and their caches, for one set of rows and any labels.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Not changed.
    kernel : Kernel
    threads : int
        Number of threads, T; at most n are used. More threads than cores are possible, but slow.
    cache_bytes : int
        Memory for kernel values, divided evenly: each thread has its own LRU cache.
    dtype : dtype
        Type of the cached kernel values.
    update : {"owned", "atomic", "stochastic"}
        "owned": a gradient with one writer per row, and logs. "atomic": Algorithm 14 as published, with atomic adds.
        "stochastic": PSCD.
    seed : int
        Seed of the blocks, and of PSCD's order.
    accuracy : Accuracy, optional
        Of the kernel values; see :meth:`cacore.kernels.columns.Layout.of`.

    Attributes
    ----------
    log : int
        Maximum number of updates by which a thread may be ahead of the others.
    threads : int
    sizes : ndarray of int64, shape (T,)
        Number of rows of each block.
    seconds : float
        Time to determine the blocks and pack the rows.

    Raises
    ------
    InputError
        `threads` is below 1, the cache does not hold two columns per thread, or kernel values overflow.

    Notes
    -----
    For the memory, see :class:`asygcd.solver.kernel_columns.KernelCaches`. Cached kernel columns are kept for the next
    :meth:`solve`.
    """

    def __init__(
        self, X: Rows, kernel: Kernel, threads: int, cache_bytes: int, dtype: DTypeLike = np.float32,
        update: str = "owned", seed: int = 0, accuracy: Accuracy | None = None,
    ) -> None:  # fmt: skip
        if threads < 1:
            raise InputError(f"threads = {threads}: at least 1 is needed")
        if update not in UPDATES:
            raise InputError(f"update {update!r}: choose one of {', '.join(UPDATES)}")
        begun = working_time()
        self.X, self.kernel, self.update, self.seed, self.log = X, kernel, update, seed, LOG
        self._accuracy = accuracy
        self.n = int(X.shape[0])
        self.threads = min(threads, self.n)
        self.order, self.bounds = blocks(X, self.threads, seed)
        self.sizes = np.diff(self.bounds)
        self.gram = KernelCaches(X, kernel, self.order, self.bounds, cache_bytes, dtype, update == "owned", accuracy)
        self.seconds = working_time() - begun

    def solve(
        self, y: Vector, C: Vector, limits: Limits | None = None, start: Vector | None = None,
        watch: Callable[[AsyGCDProgress], None] | None = None,
    ) -> AsyGCDSolution:  # fmt: skip
        """Solve the dual for these labels.

        Parameters
        ----------
        y : ndarray, shape (n,)
            +1 and -1.
        C : ndarray, shape (n,)
            Upper bound of each row's alpha, at least 0.
        limits : Limits, optional
            The tolerance applies to the largest |projected gradient|; it is multiplied by max(C) if that is below 1.
        start : ndarray, shape (n,), optional
            Initial alpha, clipped to the bounds.
        watch : callable, optional
            Called with the :class:`AsyGCDProgress` about 20 times per second, and at the end.

        Returns
        -------
        AsyGCDSolution

        Notes
        -----
        Each update costs every thread a pass over its working set: 2 flops and 12 bytes per row, from cache. A thread's
        own update includes a search for the next row. A column that is not cached costs n nnz multiplications, shared
        by the threads.
        """
        limits, begun = limits or Limits(), working_time()
        signs, bounds = np.asarray(y, np.float64)[self.order], np.asarray(C, np.float64)[self.order]
        # A NaN violation would never fall below the tolerance.
        if not self.n * float(bounds.max(initial=0.0)) * self.gram.largest < np.inf:
            raise overflow()
        counts, values = self.gram.counts()
        state, written = self._shared_state(signs, bounds, start), np.zeros(self.threads, np.int64)

        def look(objective: float | None = None, gap: float | None = None) -> None:
            """Call `watch` with the progress, or with the final objective and gap."""
            if watch is not None:
                reached = float(state.part[::LINE].sum()) if objective is None else objective
                worst = float(state.gap[::LINE].max()) if gap is None else gap
                iterations, seconds = int((written + state.written[::LINE]).sum()), working_time() - begun
                watch(AsyGCDProgress(seconds, iterations, reached, worst, lambda: self._by_row(state.beta * signs)))

        goal = tol = _tolerance(limits.tol, bounds)
        runs = 0
        while True:
            loops = [self._loop(state, me, tol, limits.iterations(self.n)) for me in range(self.threads)]
            remaining = limits.max_time - (working_time() - begun)
            together([turn for turn, _ in loops], state, remaining, look)
            for_blocks(lambda end: end(), [(end,) for _, end in loops if end is not None])
            runs, done = runs + 1, bool(state.stop[0] == DONE)
            if self.update == "stochastic":
                state.r[:] = self.product(state.beta) - signs
            else:
                self._verify(state, signs, goal)
            gap = float(np.abs(state.beta - np.clip(state.beta - state.r, state.low, state.high)).max())
            if not done or gap <= goal or (self.update != "stochastic" and runs == _RUNS):
                break
            # A row's gradient may have changed since its turn, or rounding may have added up in it: convergence needs
            # the gradient of all rows at once, in double precision.
            tol *= 0.5
            if self.update == "stochastic":
                state.stop[0], state.calm[:] = 0, -1
            else:
                written, start = written + state.written[::LINE], self._by_row(state.beta * signs)
                state = self._shared_state(signs, bounds, start)
        objective = float(0.5 * (state.beta @ (state.r - signs)))
        look(objective, gap)
        counts_after, values_after = self.gram.counts()
        hits, misses = (counts_after - counts).T
        return AsyGCDSolution(
            self._by_row(state.beta * signs), self._by_row(state.r * signs), objective, gap,
            done and gap <= goal, written + state.written[::LINE], hits, misses, values_after - values,
            working_time() - begun,
        )  # fmt: skip

    def _shared_state(self, signs: Vector, bounds: Vector, start: Vector | None) -> SharedState:
        """The threads' shared arrays, from alpha of the rows, if any, clipped to the bounds."""
        state = shared_state(signs, bounds, self.gram.diagonal, self.threads, self.log, self.update != "owned")
        if start is not None:
            state.beta[:] = np.clip(signs * start[self.order], state.low, state.high)
            if self.update == "atomic":
                state.r[:] = self.product(state.beta) - signs
        return state

    def _by_row(self, values: Vector) -> Vector:
        """Reorder `values` from the order of the blocks to that of the rows."""
        out = np.empty(self.n)
        out[self.order] = values
        return out

    def product(self, beta: Vector, places: NDArray[np.int64] | None = None) -> Vector:
        """``K beta`` in double precision at these places, by default all, in the order of the blocks.

        s m nnz flops for s nonzeros of `beta` and m places.
        """
        layout = Layout.of(self.X, self.kernel, np.float64, None, self._accuracy)
        chosen, at = np.flatnonzero(beta), self.order if places is None else self.order[places]
        return weighted(self.kernel, layout, self.X, self.order[chosen], beta[chosen], self.X, at)

    def _verify(self, state: SharedState, signs: Vector, goal: float) -> None:
        """Compute the gradient anew in double precision at support vectors and at rows that may violate.

        Rows without an alpha are left out if their gradient is beyond 0 by more than the error found at the others.
        """
        support = state.beta != 0
        before = state.r[support]
        state.r[support] = self.product(state.beta, np.flatnonzero(support)) - signs[support]
        error = goal + 4.0 * float(np.abs(state.r[support] - before).max(initial=0.0))
        moved = np.clip(-state.r - error, state.low, state.high), np.clip(error - state.r, state.low, state.high)
        others = np.flatnonzero(~support & ((moved[0] != 0) | (moved[1] != 0)))
        state.r[others] = self.product(state.beta, others) - signs[others]

    def _loop(self, state: SharedState, me: int, tol: float, max_steps: int) -> _Loop:
        """Return the loop that thread `me` calls repeatedly, and its final call after all have stopped, or None."""
        shared, cache, lo, hi = Bundle(state), self.gram.whole[me], int(self.bounds[me]), int(self.bounds[me + 1])
        whole, columns = Bundle(cache), cache.columns
        if self.update == "atomic":
            return (lambda: work_atomic(shared, whole, columns, me, lo, hi, tol, max_steps, TURNS)), None
        if self.update == "stochastic":
            shuffled = np.random.default_rng([self.seed, me]).permutation
            return (
                lambda: work_stochastic(shared, whole, columns, shuffled(np.arange(lo, hi)), me, tol, max_steps)
            ), None
        near, ws = Bundle(self.gram.near[me]), Bundle(working_set(self.gram.room[me]))
        thread = Bundle(thread_state(self.n, self.threads, state.beta))
        return (
            lambda: work(shared, whole, near, ws, thread, me, lo, hi, tol, max_steps, TURNS),
            lambda: finish(shared, whole, near, ws, thread, me, lo, hi),
        )


def _tolerance(tol: float, C: Vector) -> float:
    """Tolerance of |alpha - P(alpha - g)|, times max(C) if that is below 1: otherwise alpha = 0 might pass the test."""
    largest = float(C.max())
    return tol * largest if 0.0 < largest < 1.0 else tol
