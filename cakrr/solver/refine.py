"""Mixed precision: a factor in single precision, the solution to double precision.

The factor preconditions conjugate gradients on the system in double precision, whose matrix is formed
anew, tile by tile, for every product. It may be of a slightly larger lambda than the system's, where
the system's own matrix is not positive definite to single precision. Many targets are a run of conjugate
gradients each, side by side: a product forms the matrix once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import as_communicator
from cacore.kernels import Kernel
from cakrr.iterative.keep import Keep
from cakrr.iterative.products import KernelProducts
from cakrr.iterative.spread import SpreadRows
from cakrr.solver.system import RidgeSystem

TOLERANCE = 1e-12  # relative residual at which a solution is as good as the double-precision solver's
ACCEPTED = 1e-8  # relative residual above which it is none
STEPS = 200
_WIDER = 6  # times that lambda is tried ten times larger in the factor

Vector = NDArray[np.float64]
Operator = Callable[[Vector], Vector]
Agreed = Callable[[Vector], Vector]


def conjugate_gradients(
    product: Operator, precondition: Operator, y: Vector, agreed: Agreed = np.asarray
) -> tuple[Vector, float]:
    """Solve a positive definite system; the solution and its relative residual |y - A x| / |y|, recomputed.

    `y`, shape (m,) or (m, t), has a right-hand side a column, and the residual is the largest of theirs. A column
    stops at `TOLERANCE`, or when its residual has not halved in 20 products; all do after `STEPS`.
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
        going = going & (curvature > 0.0)  # rounding is all that is left
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
    left = np.divide(_norm(y - product(x)), size, out=np.zeros_like(size), where=size != 0)
    return x, float(left.max())


def _inner(a: Vector, b: Vector) -> Vector:
    """Of each column of `a` with that of `b`; of two vectors as an array of no dimensions."""
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
        Given a lambda, factor that system in single precision; whether there is a factor.
    apply_inverse : callable
        Solve with the factor.
    product : callable
        Multiply by the system's matrix in double precision.
    lam : float
    y : ndarray of float64, shape (m,) or (m, t)
    agreed : callable
        Makes numbers the same on all ranks, where they solve together.

    Returns
    -------
    alpha : ndarray of float64, shape of `y`
    residual : float
        Relative, the largest of all columns; infinite where there was no factor.

    Notes
    -----
    A factorisation in single precision and a product in double precision a step, of which there are about
    3 where lambda m is well above single precision's rounding, and up to `STEPS` where it is not.
    """
    wider = lam
    for _ in range(_WIDER):
        if factor(wider):
            break
        wider *= 10
    else:
        return np.full_like(y, np.nan), np.inf

    def precondition(r: Vector) -> Vector:
        largest = np.abs(r).max(axis=0)  # single precision has little room below 1
        largest = np.where(largest > 0, largest, 1.0)
        return apply_inverse(r / largest).astype(np.float64) * largest

    return conjugate_gradients(product, precondition, y, agreed)


def solve_part(system: RidgeSystem, kernel: Kernel, lam: float, y: Vector) -> tuple[Vector, float]:
    """:func:`solve` on the rows of one part; m^2 d flops and m^2/2 kernel values a step."""
    m = len(y)
    multiply = KernelProducts(SpreadRows(system.rows, np.arange(m), kernel, as_communicator(None)), kernel, Keep(0))
    ridge = lam * m / system.scale**2
    ridge = ridge if y.ndim == 1 else ridge[:, None]

    def product(v: Vector) -> Vector:
        return np.asarray(multiply(np.atleast_2d(v.T), single=False).T.reshape(v.shape) + ridge * v)

    def apply_inverse(r: Vector) -> Vector:
        z: NDArray[Any] = np.array(np.atleast_2d(r.T), np.float32, order="C")
        system.apply_inverse(z)
        return np.asarray(z.T.reshape(r.shape))

    return solve(lambda wider: system.factor(kernel, wider), apply_inverse, product, lam, y)
