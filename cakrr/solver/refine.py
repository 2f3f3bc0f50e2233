"""Mixed precision: factor in single precision, solve to double precision.

The factor preconditions conjugate gradients on the system in double precision, whose matrix is formed again, tile by
tile, for every product. If the system's matrix is not positive definite in single precision, a larger lambda is used
for the factor. Targets are solved side by side, and a product forms the matrix once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cacore.comm import as_communicator
from cacore.kernels import Kernel
from cakrr.iterative.preconditioner import SpreadRows
from cakrr.iterative.products import Keep, KernelProducts
from cakrr.solver.local import RidgeSystem

TOLERANCE = 1e-12  # relative residual at which a solution is as accurate as the double-precision solver's
ACCEPTED = 1e-8  # relative residual above which a solution is rejected
STEPS = 200  # products; 3 are usual, more where lambda m is near the rounding errors of single precision
_WIDER = 6  # lambdas tried for the factor, each ten times the last

Vector = NDArray[np.float64]
Operator = Callable[[Vector], Vector]
Agreed = Callable[[Vector], Vector]


def conjugate_gradients(
    product: Operator, precondition: Operator, y: Vector, agreed: Agreed = np.asarray
) -> tuple[Vector, float]:
    """Solve a positive definite system; return the solution and its relative residual |y - A x| / |y|, recomputed.

    `y`, shape (m,) or (m, t), has one right-hand side per column, and the residual is the largest of the columns. A
    column stops at `TOLERANCE`, or if its residual has not halved in 20 products; all stop after `STEPS` products.
    """
    x, r, size = np.zeros_like(y), y.copy(), _norm(y)
    if not size.any():
        return x, 0.0
    going = size > 0.0
    z = precondition(r)
    p, rz = z.copy(), _inner(r, z)
    least, since = np.full_like(size, np.inf), np.zeros_like(size)
    for _ in range(STEPS):
        Ap = product(p)
        curvature = _inner(p, Ap)
        going = going & (curvature > 0.0)  # a curvature of 0 or less is a rounding error
        if not going.any():
            break
        step = np.divide(rz, curvature, out=np.zeros_like(rz), where=going)
        x += step * p
        r -= step * Ap
        now = agreed(_norm(r))
        since = np.where(now < 0.5 * least, 0, since + 1)
        least = np.where(since, least, now)
        going = going & (now > TOLERANCE * size) & (since <= 20)
        if not going.any():
            break
        z = precondition(r)
        rz, old = _inner(r, z), rz
        p = z + np.divide(rz, old, out=np.zeros_like(rz), where=going) * p
    relative = np.divide(_norm(y - product(x)), size, out=np.zeros_like(size), where=size != 0)
    return x, float(relative.max())


def _inner(a: Vector, b: Vector) -> Vector:
    """Inner products of the columns of `a` and `b`; of two vectors, as an array of shape ()."""
    return np.asarray(a @ b if a.ndim == 1 else np.einsum("ij,ij->j", a, b))


def _norm(a: Vector) -> Vector:
    return np.asarray(np.linalg.norm(a) if a.ndim == 1 else np.linalg.norm(a, axis=0), np.float64)


def solve(
    factor: Callable[[float], bool],
    apply_inverse: Operator,
    product: Operator,
    lam: float,
    y: Vector,
    agreed: Agreed = np.asarray,
) -> tuple[Vector, float]:
    """Solve a system to double precision with a factor in single precision.

    Parameters
    ----------
    factor : callable
        Factors the system of a given lambda in single precision; returns True if it is positive definite.
    apply_inverse : callable
        Solves with the factor.
    product : callable
        Multiplies by the system's matrix in double precision.
    lam : float
    y : ndarray of float64, shape (m,) or (m, t)
    agreed : callable
        Makes numbers identical on all ranks, if they solve the system together.

    Returns
    -------
    alpha : ndarray of float64, shape of `y`
    residual : float
        Largest relative residual of the columns; infinite if there was no factor.

    Notes
    -----
    One factorisation in single precision, and one product in double precision per step. There are about 3 steps if
    lambda m is well above the rounding errors of single precision, and otherwise up to `STEPS`.
    """
    wider = lam
    for _ in range(_WIDER):
        if factor(wider):
            break
        wider *= 10
    else:
        return np.full_like(y, np.nan), np.inf

    def precondition(r: Vector) -> Vector:
        largest = np.abs(r).max(axis=0)  # avoids underflow in single precision
        largest = np.where(largest > 0, largest, 1.0)
        return apply_inverse(r / largest).astype(np.float64) * largest

    return conjugate_gradients(product, precondition, y, agreed)


def solve_part(system: RidgeSystem, kernel: Kernel, lam: float, y: Vector) -> tuple[Vector, float]:
    """Solve the system of one part by :func:`solve`; m^2 d flops and m^2/2 kernel values per step."""
    m = len(y)
    multiply = KernelProducts(SpreadRows(system.rows, np.arange(m), kernel, as_communicator(None)), kernel, Keep(0))
    ridge = lam * m / system.scale**2
    ridge = ridge if y.ndim == 1 else ridge[:, None]

    def product(v: Vector) -> Vector:
        return np.asarray(multiply(np.atleast_2d(v.T), single=False).T.reshape(v.shape) + ridge * v)

    def apply_inverse(r: Vector) -> Vector:
        z: NDArray[np.floating] = np.array(np.atleast_2d(r.T), np.float32, order="C")
        system.apply_inverse(z)
        return np.asarray(z.T.reshape(r.shape))

    return solve(lambda wider: system.factor(kernel, wider), apply_inverse, product, lam, y)
