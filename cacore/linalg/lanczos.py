"""The inverse square root of a matrix times vectors, by Lanczos' method, on vectors distributed over ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal

from cacore.linalg.cg import Vectors

_LEAST = 1e-14  # smallest eigenvalue that counts, relative to the largest


def inverse_root(
    product: Callable[[Vectors], Vectors], Z: Vectors, add_up: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    tol: float, most: int = 300,
) -> tuple[Vectors, int, float]:  # fmt: skip
    """``M^(-1/2) z`` for each row z of `Z`, shape (t, n_local), with M symmetric positive definite; collective.

    Parameters
    ----------
    product : callable
        M times each row of an array like `Z`.
    Z : ndarray
    add_up : callable
        Sums over ranks of each number; the same bits on all ranks.
    tol : float
        Relative change between two iterations at which they end.
    most : int
        Most iterations.

    Returns
    -------
    found : ndarray, shape (t, n_local)
    iterations : int
    change : float
        Largest relative change in the last one.

    Notes
    -----
    In the basis V of the Krylov space of z, M is a tridiagonal matrix T, and the result is |z| V T^(-1/2) e_1. V is
    kept: 8 t n_local bytes per iteration, in which there are a product and two sums over ranks of t numbers. Errors
    fall as (1 - 2 / sqrt(condition))^iterations (Frommer, Guettel, Schweitzer, SIAM J. Matrix Anal. Appl. 35, 2014).
    """
    t = len(Z)
    size = np.sqrt(add_up(np.einsum("ij,ij->i", Z, Z)))
    basis = [Z / np.where(size > 0, size, 1.0)[:, None]]
    diagonal, beside = np.zeros((0, t)), np.zeros((0, t))
    last, change = np.zeros((0, t)), np.inf
    while True:
        V = basis[-1]
        W = product(V)
        if len(beside):
            W -= beside[-1][:, None] * basis[-2]
        a = add_up(np.einsum("ij,ij->i", V, W))
        W -= a[:, None] * V
        diagonal = np.vstack([diagonal, a])
        found = np.stack([_first_column(diagonal[:, j], beside[:, j]) for j in range(t)], axis=1)
        gap = found.copy()
        gap[:-1] -= last
        change = float((np.linalg.norm(gap, axis=0) / np.linalg.norm(found, axis=0)).max(initial=0.0))
        if change <= tol or len(basis) == most:
            break
        last = found
        b = np.sqrt(add_up(np.einsum("ij,ij->i", W, W)))
        beside = np.vstack([beside, b])
        basis.append(W / np.where(b > 0, b, 1.0)[:, None])
    out = np.zeros_like(Z)
    for coefficients, V in zip(found, basis, strict=True):
        out += (size * coefficients)[:, None] * V
    return out, len(basis), change


def _first_column(diagonal: NDArray[np.float64], beside: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first column of T^(-1/2), for a symmetric tridiagonal matrix T."""
    values, vectors = eigh_tridiagonal(diagonal, beside)
    values = np.maximum(values, _LEAST * max(float(values[-1]), 1e-300))
    return np.asarray(vectors @ (vectors[0] / np.sqrt(values)))
