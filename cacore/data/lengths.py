"""Length scales of the features that minimise leave-one-out errors of kernel ridge regression, by their gradient.

With G = K + diag(ridge) and H its inverse, the error of row i by the model without it is e_i = alpha_i / H_ii. If G
changes by dG, alpha changes by -H dG alpha and H by -H dG H. The weighted sum of e_i^2 then changes by -<dG, B> with
B = (H u) alpha^T + H diag(v) H, u_i = 2 w_i e_i / H_ii and v_i = -2 w_i e_i^2 / H_ii.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import dense
from cacore.kernels.gradients import slope as slope_of_factor
from cacore.kernels.registry import L1
from cacore.kernels.values import Kernel, Points
from cacore.linalg.lapack import cholesky, inverse, of_symmetric
from cacore.machine.deadline import poll
from cacore.machine.threads import blocks, for_blocks, in_order, rows_in, suited_to

FARTHEST = 4.0  # largest change of a scale's logarithm
# Most rows for which LAPACK has one thread: two gain nothing there (888 rows 45 ms, 1,183 rows 91 ms either way), and
# beside other processes wait for each other. 2,000 rows take .31 s on two and .39 s on one.
NARROW = 1500
_BYTES = 1 << 20  # memory per thread for the values of pairs of rows


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Rows whose leave-one-out errors, inside this part, count.

    Attributes
    ----------
    X : ndarray of float64, shape (m, d)
    Y : ndarray of float64, shape (m, t)
        Centred targets.
    ridge, weights : ndarray of float64, shape (m,)
        Added to the diagonal of K; weights of the squared errors.
    """

    X: NDArray[np.float64]
    Y: NDArray[np.float64]
    ridge: NDArray[np.float64]
    weights: NDArray[np.float64]

    def first(self, count: int) -> LeftOut:
        """The first rows alone, with a ridge that has the same share in fewer rows."""
        share = count / len(self.Y)
        return LeftOut(self.X[:count], self.Y[:count], share * self.ridge[:count], self.weights[:count])


def best_scales(
    kernel: Kernel, parts: Sequence[LeftOut], d: int, evaluations: int, comm: Communicator, tied: bool = False
) -> NDArray[np.float64]:  # fmt: skip
    """Factors of the d features and of the ridge, shape (d + 1,), that minimise the errors in all parts; collective.

    Parameters
    ----------
    kernel : Kernel
        A kernel of a distance.
    parts : sequence of LeftOut
        This rank's.
    d, evaluations : int
        Number of features, and of evaluations of the error at most.
    comm : Communicator
    tied : bool
        True for one factor that all features share, which changes the kernel's width only.

    Notes
    -----
    L-BFGS on the logarithms, with the same steps on all ranks. 2 m^3 flops per part and evaluation, and one Allreduce
    of d + 3 numbers. Each thread evaluates parts of its own, in two m x m matrices: the threads of a BLAS would wait
    for each other. Three rounds on 4,177 rows, two cores: 11 instead of 13 s of processor time, and beside other work
    12 to 23 s instead of 82.
    """
    from scipy.optimize import minimize  # not loaded by commands without length scales

    room = _Room(max((len(part.Y) for part in parts), default=0))
    spread = np.eye(d + 1)
    if tied:
        spread = np.vstack([spread[:d].any(axis=0), spread[d]]).astype(np.float64)

    def error(free: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Logarithm of the mean squared error, the same on all ranks, and its gradient."""
        total, factors = np.zeros(d + 3), np.exp(free @ spread)

        def of_part(part: LeftOut) -> NDArray[np.float64]:
            loss, slopes = slope(kernel, part.X * factors[:d], part.Y, factors[d] * part.ridge, part.weights, room)
            return np.concatenate([[loss, part.weights.sum()], slopes])

        with in_order(of_part, [(part,) for part in parts]) as sums:
            for part_sum in sums:
                total += part_sum
        with comm.phase("train"):
            total = comm.allreduce(total)
        with comm.uncounted():  # the ranks' sums may differ in the last bit
            total = comm.bcast(total)
        if not 0.0 < total[0] < np.inf:
            return 1e3, np.zeros(len(free))  # no solution: L-BFGS backtracks
        return math.log(total[0] / total[1]), spread @ (total[2:] / total[0])

    optimum = minimize(
        error, np.zeros(len(spread)), jac=True, method="L-BFGS-B", bounds=[(-FARTHEST, FARTHEST)] * len(spread),
        options={"maxfun": evaluations},
    )  # fmt: skip
    factors = np.exp(optimum.x @ spread)
    flat = (spread.T @ optimum.jac)[:d] == 0.0  # a constant feature has no effect
    return np.append(np.where(flat, factors[:d].min(), factors[:d]), factors[d])


def slope(
    kernel: Kernel, X: NDArray[np.float64], Y: NDArray[np.float64], ridge: NDArray[np.float64],
    weights: NDArray[np.float64], room: _Room | None = None,
) -> tuple[float, NDArray[np.float64]]:  # fmt: skip
    """Sum of squared leave-one-out errors, and its derivatives by the logarithms of the scales and the ridge.

    Parameters
    ----------
    kernel : Kernel
        A kernel of a distance.
    X : ndarray of float64, shape (m, d)
    Y : ndarray of float64, shape (m, t)
        Centred targets.
    ridge : ndarray of float64, shape (m,)
        Added to the diagonal of K.
    weights : ndarray of float64, shape (m,)
        Weights of the rows' squared errors.
    room : optional
        Memory that is used again. First touching new memory can take longer than all flops.

    Returns
    -------
    total : float
        Infinite if the matrix is not positive definite.
    slopes : ndarray of float64, shape (d + 1,)
        Derivatives by the logarithm of each feature's scale, and by that of a common factor of the ridge.

    Notes
    -----
    2 m^3 + m^2 (3 d + 8 t) flops; for l1 distances and products over the features about 10 m^2 d instead of 3. On all
    threads. Two m x m matrices.
    """
    poll()
    m = len(X)
    H, scaled = (room or _Room(m)).matrices(m)
    points = kernel.points(X)
    kernel.gram(points, H)
    H.reshape(-1)[:: m + 1] += ridge
    with suited_to(m, most=NARROW):
        if cholesky(H):
            return np.inf, np.zeros(X.shape[1] + 1)
        inverse(H)
        alpha, diagonal = of_symmetric(H, Y), H.diagonal().copy()
        errors = alpha / diagonal[:, None]
        squares = weights * np.square(errors).sum(axis=1)
        u = of_symmetric(H, 2.0 * weights[:, None] * errors / diagonal[:, None])
    root = np.sqrt(2.0 * squares / diagonal)  # of -v, since no v is positive: H diag(v) H = -(root H)^T (root H)
    cut = blocks(m, rows_in(_BYTES, m))
    for_blocks(lambda lo, hi: _scaled_rows(H, root, lo, hi, scaled), cut)
    by_ridge = -(ridge @ ((u * alpha).sum(axis=1) - np.einsum("ij,ij->j", scaled, scaled)))

    def of_rows(lo: int, hi: int) -> NDArray[np.float64]:
        W = (u[lo:hi] @ alpha[:hi].T + alpha[lo:hi] @ u[:hi].T) / 2.0 - scaled[:, lo:hi].T @ scaled[:, :hi]
        W[:, lo:] = np.tril(W[:, lo:], -1)
        return _by_scales(kernel, points[lo:hi], points[:hi], W)

    with in_order(of_rows, cut) as slopes:
        by_scales = np.sum(list(slopes), axis=0)
    return float(squares.sum()), np.append(by_scales, by_ridge)


class _Room(threading.local):
    """Memory for :func:`slope` of at most `rows` rows, of each thread its own."""

    def __init__(self, rows: int) -> None:
        self._buffers = np.empty((2, rows * rows))

    def matrices(self, m: int) -> list[NDArray[np.float64]]:
        """Two m x m matrices, not initialised."""
        return [buffer[: m * m].reshape(m, m) for buffer in self._buffers]


def _scaled_rows(
    H: NDArray[np.float64], factors: NDArray[np.float64], lo: int, hi: int, out: NDArray[np.float64]
) -> None:  # fmt: skip
    """Rows lo:hi of diag(factors) H, whose lower triangle is given."""
    out[lo:hi, :lo] = H[lo:hi, :lo]
    corner = np.tril(H[lo:hi, lo:hi])
    out[lo:hi, lo:hi] = corner + np.tril(corner, -1).T
    out[lo:hi, hi:] = H[hi:, lo:hi].T
    out[lo:hi] *= factors[lo:hi, None]


def _by_scales(kernel: Kernel, rows: Points, columns: Points, W: NDArray[np.float64]) -> NDArray[np.float64]:
    """Derivatives by the logarithms of the scales, from those `W` by the kernel values of pairs; changes `W`.

    W has 0 for all but one of the orders of two rows.
    """
    t = kernel.arguments(rows, columns)
    W *= t if kernel.separable else kernel.derivative(t)
    A, B = dense(rows.X), dense(columns.X)
    if kernel.separable or kernel.declared.of == L1:

        def changes(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
            gaps = a[:, None] - b
            return gaps * slope_of_factor(kernel, a, b) if kernel.separable else np.abs(gaps)

        return np.array([-2.0 * np.vdot(W, changes(a, b)) for a, b in zip(A.T, B.T, strict=True)])
    across = np.einsum("ij,ij->j", A, W @ B)
    return np.asarray(-4.0 * (W.sum(axis=1) @ np.square(A) + W.sum(axis=0) @ np.square(B) - 2.0 * across))
