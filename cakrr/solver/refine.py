"""Mixed precision: a factor in single precision, the solution to double precision.

The factor preconditions conjugate gradients on the system in double precision, whose matrix is formed
anew, block by block, for every product. It may be of a slightly larger lambda than the system's, where
the system's own matrix is not positive definite to single precision.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cacore.kernels import Kernel
from cakrr.solver.system import RidgeSystem

TOLERANCE = 1e-12  # relative residual at which a solution is as good as the double-precision solver's
ACCEPTED = 1e-8  # relative residual above which it is none
STEPS = 200
_WIDER = 6  # times that lambda is tried ten times larger in the factor

Vector = NDArray[np.float64]
Operator = Callable[[Vector], Vector]


def conjugate_gradients(
    product: Operator, precondition: Operator, y: Vector, agreed: Callable[[float], float] = float
) -> tuple[Vector, float]:
    """Solve a positive definite system; the solution and its relative residual |y - A x| / |y|, recomputed.

    Stops at `TOLERANCE`, after `STEPS` products, or when the residual has not halved in 20 of them.
    """
    x, r = np.zeros_like(y), y.copy()
    size = float(np.linalg.norm(y))
    if size == 0.0:
        return x, 0.0
    z = precondition(r)
    p, rz = z.copy(), float(r @ z)
    least, since = np.inf, 0
    for _ in range(STEPS):
        Ap = product(p)
        curvature = float(p @ Ap)
        if not curvature > 0.0:
            break  # rounding is all that is left
        step = rz / curvature
        x += step * p
        r -= step * Ap
        now = agreed(float(np.linalg.norm(r)))
        least, since = (now, 0) if now < 0.5 * least else (least, since + 1)
        if not now > TOLERANCE * size or since > 20:
            break
        z = precondition(r)
        rz, old = float(r @ z), rz
        p = z + (rz / old) * p
    return x, float(np.linalg.norm(y - product(x))) / size


def solve(
    factor: Callable[[float], bool],
    apply_inverse: Operator,
    product: Operator,
    lam: float,
    y: Vector,
    agreed: Callable[[float], float] = float,
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
    y : ndarray of float64, shape (m,)
    agreed : callable
        Makes a number the same on all ranks, where they solve together.

    Returns
    -------
    alpha : ndarray of float64, shape (m,)
    residual : float
        Relative; infinite where there was no factor.

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
        return np.full(len(y), np.nan), np.inf

    def precondition(r: Vector) -> Vector:
        largest = float(np.abs(r).max()) or 1.0  # single precision has little room below 1
        return apply_inverse(r / largest).astype(np.float64) * largest

    return conjugate_gradients(product, precondition, y, agreed)


def solve_part(system: RidgeSystem, kernel: Kernel, lam: float, y: Vector) -> tuple[Vector, float]:
    """:func:`solve` on the rows of one part; m^2 d flops and m^2 exponentials a step."""
    points = kernel.points(system.rows.astype(np.float64))
    ridge = lam * len(y) / system.scale**2

    def product(v: Vector) -> Vector:
        return np.asarray(kernel.apply(points, points, v) + ridge * v)

    def apply_inverse(r: Vector) -> Vector:
        z = r.astype(np.float32)[None, :]
        system.apply_inverse(z)
        return np.asarray(z[0])

    return solve(lambda wider: system.factor(kernel, wider), apply_inverse, product, lam, y)
