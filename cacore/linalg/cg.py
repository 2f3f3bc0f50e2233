"""Preconditioned conjugate gradients for many right sides at once, on vectors that may lie over ranks.

The form of Chronopoulos and Gear (1989): what an iteration has to add up over ranks comes in two sums, one with the
preconditioner's own and one behind the product. Each right side has steps of its own; they share the products, and
one that is done leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float64]  # shape (t, n_local): a right side a row

PATIENCE = 200  # iterations in which a residual has to halve


class System(Protocol):
    """Symmetric positive definite systems A_j x = b_j, whose vectors lie over ranks."""

    def product(self, V: Vectors, which: NDArray[np.int64]) -> Vectors:
        """A_j v for each row v of `V`, j from `which`."""

    def precondition(
        self, R: Vectors, which: NDArray[np.int64], sums: NDArray[np.float64]
    ) -> tuple[Vectors, NDArray[np.float64]]:
        """An approximate inverse times each row of `R`; and `sums`, added up as :meth:`add_up` does."""

    def add_up(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers of this rank, added up over ranks; the same bits on all of them."""


@dataclass
class State:
    """Where an iteration stands: all that the next one needs.

    Attributes
    ----------
    which : ndarray of int64, shape (a,)
        Right sides that are still at it; the rows of r, p and s are theirs.
    x : ndarray, shape (t, n_local)
    residual : ndarray, shape (t,)
        Norm of r, of those that are done at their end.
    r, p, s : ndarray, shape (a, n_local)
        Residual, direction, and the matrix times the direction.
    gamma, step : ndarray, shape (a,)
        r.z of the last iteration, and its step; 0 before the first.
    iterations : ndarray of int64, shape (t,)
    least, since : ndarray, shape (a,)
        The least norm of r that counted, and iterations since.
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
        """At x = 0."""
        t = len(B)
        return cls(
            np.arange(t), np.zeros_like(B), np.full(t, np.inf), B.copy(), np.zeros_like(B), np.zeros_like(B),
            np.zeros(t), np.zeros(t), np.zeros(t, np.int64), np.full(t, np.inf), np.zeros(t, np.int64),
        )  # fmt: skip

    def leave(self, done: NDArray[np.bool_]) -> None:
        """Let some of those that are at it go."""
        for name in ("which", "r", "p", "s", "gamma", "step", "least", "since"):
            setattr(self, name, getattr(self, name)[~done])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """For a file."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


# Called once an iteration with the state, |x| of those at it, and whether a rank's time is over: who should stop.
Watch = Callable[[State, NDArray[np.float64], bool], NDArray[np.bool_]]


def iterate(
    system: System, state: State, watch: Watch, late: Callable[[], bool] = lambda: False,
    keep: Callable[[State], None] = lambda state: None,
) -> None:  # fmt: skip
    """Go on until `watch` has stopped all right sides; a collective call.

    Parameters
    ----------
    system : System
    state : State
        Changed in place.
    watch : callable
        See :data:`Watch`; it sees norms of residuals in ``state.residual[state.which]`` before the next product.
    late : callable
        Whether this rank's time is over: all stop if one is late.
    keep : callable
        Called with the state before each iteration: from a copy of it the rest follows bit for bit.

    Notes
    -----
    A right side also ends where the matrix, or the preconditioner, is not positive definite to the rounding, and where
    its residual has not halved in `PATIENCE` iterations: `watch` has not stopped it then. An iteration is one product,
    one application of the preconditioner, and 10 t n_local flops.
    """
    while state.which.size:
        keep(state)
        r = state.r
        local = np.concatenate([np.einsum("ij,ij->i", r, r), _squares(state.x[state.which]), [float(late())]])
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


def _advance(system: System, state: State, z: Vectors) -> None:
    """One step of each right side along its direction."""
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
    state.p *= beta[:, None]
    state.p += z
    state.s *= beta[:, None]
    state.s += w
    state.x[state.which] += step[:, None] * state.p
    state.r -= step[:, None] * state.s
    state.gamma, state.step = gamma, step
    state.iterations[state.which] += 1


def _squares(x: Vectors) -> NDArray[np.float64]:
    return np.asarray(np.einsum("ij,ij->i", x, x))
