"""Preconditioned conjugate gradients for many right-hand sides at once, on vectors distributed over ranks.

The form of Chronopoulos and Gear (1989): an iteration has two reductions over ranks, one together with the
preconditioner's and one after the product. Each right-hand side has its own step lengths; all share the products, and
each one leaves when it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.arrays import Doubles, Longs

Vectors = NDArray[np.float64]  # shape (t, n_local): one right-hand side per row

PATIENCE = 200  # iterations within which a residual must halve; preconditioned systems take 5 to 25 in all (ddee931e)


class LinearSystem(Protocol):
    """Symmetric positive definite systems A_j x = b_j, with vectors distributed over ranks."""

    def product(self, V: Vectors, which: NDArray[np.int64]) -> Vectors:
        """A_j v for each row v of `V`, with j the matching entry of `which`."""

    def precondition(
        self, R: Vectors, which: NDArray[np.int64], sums: NDArray[np.float64]
    ) -> tuple[Vectors, NDArray[np.float64]]:
        """Preconditioner times each row of `R`, and `sums` added up over ranks as by :meth:`add_up`."""

    def add_up(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums over ranks of each number; the same bits on all ranks."""


@dataclass
class State:
    """State of the iteration: everything that the next one needs.

    Attributes
    ----------
    which : ndarray of int64, shape (a,)
        Active right-hand sides, one per row of r, p and s.
    x : ndarray, shape (t, n_local)
        Solutions so far.
    residual : ndarray, shape (t,)
        Norm of r; for finished right-hand sides, the last one.
    r, p, s : ndarray, shape (a, n_local)
        Residual, direction, and the matrix times the direction.
    gamma, step : ndarray, shape (a,)
        r.z and step length of the last iteration; 0 before the first.
    iterations : ndarray of int64, shape (t,)
        Iterations of each right-hand side.
    least, since : ndarray, shape (a,)
        Norm of r when it last halved, and iterations since.
    """

    which: NDArray[np.int64]
    x: Vectors
    residual: NDArray[np.float64]
    r: Vectors
    p: Vectors
    s: Vectors
    gamma: NDArray[np.float64]
    step: NDArray[np.float64]
    iterations: NDArray[np.int64]
    least: NDArray[np.float64]
    since: NDArray[np.int64]

    @classmethod
    def first(cls, B: Vectors) -> State:
        """The state at x = 0."""
        t = len(B)
        return cls(
            np.arange(t), np.zeros_like(B), np.full(t, np.inf), B.copy(), np.zeros_like(B), np.zeros_like(B),
            np.zeros(t), np.zeros(t), np.zeros(t, np.int64), np.full(t, np.inf), np.zeros(t, np.int64),
        )  # fmt: skip

    def leave(self, done: NDArray[np.bool_]) -> None:
        """Remove the active right-hand sides that are done."""
        for name in ("which", "r", "p", "s", "gamma", "step", "least", "since"):
            setattr(self, name, getattr(self, name)[~done])

    def arrays(self) -> dict[str, NDArray[np.float64] | NDArray[np.int64]]:
        """The arrays by name, for a checkpoint."""
        return {array_field.name: getattr(self, array_field.name) for array_field in fields(self)}


# Stopping criterion: called once per iteration with the state, |x| of the active right-hand sides, and True if a rank's
# time limit has passed; returns a mask of those that stop.
Watch = Callable[[State, NDArray[np.float64], bool], NDArray[np.bool_]]


def iterate(
    system: LinearSystem, state: State, watch: Watch, late: Callable[[], bool] = lambda: False,
    keep: Callable[[State], None] = lambda state: None,
) -> None:  # fmt: skip
    """Iterate until `watch` has stopped all right-hand sides; a collective call.

    Parameters
    ----------
    system : LinearSystem
    state : State
        Changed in place.
    watch : callable
        Stopping criterion, see :data:`Watch`. The current residual norms are in ``state.residual[state.which]``.
    late : callable
        Returns True if this rank's time limit has passed.
    keep : callable
        Called with the state before each iteration. Restarting from a copy of it gives the same bits.

    Notes
    -----
    A right-hand side also ends, without `watch`, if the matrix or the preconditioner is not positive definite to
    rounding, or if its residual has not halved within `PATIENCE` iterations. An iteration takes one product, one
    application of the preconditioner, and 10 t n_local flops.
    """
    while state.which.size:
        keep(state)
        r = state.r
        x = state.x if state.which.size == len(state.x) else state.x[state.which]
        local = np.concatenate([_squares(r), _squares(x), [float(late())]])
        z, sums = system.precondition(r, state.which, local)
        a = len(r)
        norm = np.sqrt(sums[:a])
        state.residual[state.which] = norm
        halved = norm < 0.5 * state.least
        state.since = np.where(halved, 0, state.since + 1)
        state.least = np.where(halved, norm, state.least)
        done = watch(state, np.sqrt(sums[a : 2 * a]), bool(sums[-1] > 0))
        done |= ~(state.since <= PATIENCE)
        if done.any():
            state.leave(done)
            z = z[~done]
        if not state.which.size:
            return
        _advance(system, state, z)


def _advance(system: LinearSystem, state: State, z: Vectors) -> None:
    """One step of each active right-hand side along its direction."""
    w = system.product(z, state.which)
    a = len(z)
    sums = system.add_up(np.concatenate([np.einsum("ij,ij->i", state.r, z), np.einsum("ij,ij->i", z, w)]))
    gamma, delta = sums[:a], sums[a:]
    with np.errstate(divide="ignore", invalid="ignore"):
        beta = np.where(state.gamma > 0, gamma / state.gamma, 0.0)
        curvature = delta - np.where(state.step > 0, beta * gamma / state.step, 0.0)
        step = gamma / curvature
    good = (gamma > 0) & (curvature > 0) & np.isfinite(step)
    if not good.all():
        state.leave(~good)
        z, w, beta, gamma, step = z[good], w[good], beta[good], gamma[good], step[good]
    _update(beta, step, state.which, z, w, state.p, state.s, state.x, state.r)
    state.gamma, state.step = gamma, step
    state.iterations[state.which] += 1


@numba.njit(cache=True, nogil=True)
def _update(
    beta: Doubles, step: Doubles, which: Longs, z: Doubles, w: Doubles, p: Doubles, s: Doubles, x: Doubles, r: Doubles
) -> None:  # pragma: no cover - compiled
    """Let p = z + beta p, s = w + beta s, x[which] += step p, r -= step s for each right side, in one pass."""
    for a in range(len(which)):
        b, alpha, z_a, w_a, p_a, s_a, x_a, r_a = beta[a], step[a], z[a], w[a], p[a], s[a], x[which[a]], r[a]
        for i in range(z_a.size):
            p_a[i] = p_a[i] * b + z_a[i]
            s_a[i] = s_a[i] * b + w_a[i]
            x_a[i] += alpha * p_a[i]
            r_a[i] -= alpha * s_a[i]


def _squares(x: Vectors) -> NDArray[np.float64]:
    return np.asarray(np.einsum("ij,ij->i", x, x))
