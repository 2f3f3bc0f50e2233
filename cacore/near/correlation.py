"""A correlation: a kernel of distance, times a taper, which is 0 beyond a radius."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.evaluate import Parameters, finish
from cacore.kernels.registry import SQUARED
from cacore.machine.threads import blocks, for_blocks

if TYPE_CHECKING:
    from cacore.arrays import Doubles

# A correlation in compiled code: the kernel's parameters, and 1 / taper, or 0 without one.
Compiled = tuple[Parameters, float]

_BLOCK = 1 << 18  # correlations computed at a time


@dataclass(frozen=True)
class Correlation:
    """The function rho(|x-z|) = k(|x-z|) w(|x-z| / taper) of distance, with w Wendland's function of smoothness 2.

    A product of two positive definite functions is one: a taper makes any kernel end, and keeps K positive definite for
    points of at most three coordinates.

    Attributes
    ----------
    kernel : Kernel
        A kernel of Euclidean distance, k(x, x) = 1.
    taper : float
        Radius from which on the correlation is 0; infinity for no taper.
    """

    kernel: Kernel
    taper: float = math.inf

    def __post_init__(self) -> None:
        if self.kernel.declared.of != SQUARED or not self.kernel.compiled:
            raise InputError(f"kernel {self.kernel.kind}: it must be a function of Euclidean distance")
        if not self.taper > 0:
            raise InputError(f"taper = {self.taper:g}: it must be a positive radius")

    @property
    def reach(self) -> float:
        """Distance from which on the correlation is exactly 0; infinity if there is none."""
        ends = self.kernel.declared.limited
        return min(self.taper, 1.0 / self.kernel.gamma if ends else math.inf)

    @property
    def compiled(self) -> Compiled:
        """The form that compiled code takes; see :func:`correlate`."""
        return self.kernel.parameters(np.dtype(np.float64)), 0.0 if math.isinf(self.taper) else 1.0 / self.taper

    def __call__(self, distances: NDArray[np.float64]) -> NDArray[np.float64]:
        """Correlations at these distances, in an array of the same shape."""
        values = np.square(np.asarray(distances, np.float64)).ravel()
        correlate(values, np.zeros_like(values), np.empty_like(values), *self.compiled)
        return values.reshape(np.shape(distances))

    def matrix(self, X: NDArray[np.float64], Z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Correlations of all points `X`, shape (n, d), with all points `Z`, (m, d): n m (3 d + about 10) flops.

        Beside the result, two blocks of at most 2 MiB, or of a row, per thread.
        """
        found = np.empty((len(X), len(Z)))

        def fill(lo: int, hi: int) -> None:
            squares, gap = found[lo:hi], np.empty((hi - lo, len(Z)))
            squares[:] = 0.0
            for x, z in zip(X[lo:hi].T, Z.T, strict=True):
                np.subtract(x[:, None], z, out=gap)
                squares += np.square(gap, out=gap)
            correlate(squares.reshape(-1), np.zeros(squares.size), gap.reshape(-1), *self.compiled)

        for_blocks(fill, blocks(len(X), max(1, _BLOCK // max(1, len(Z)))))
        return found

    def cut(
        self, corners: NDArray[np.float64], counts: NDArray[np.float64], edge: NDArray[np.float64], bound: float
    ) -> tuple[float, float]:  # fmt: skip
        """The smallest radius at which the correlation may be cut, and the bound on what is then left out.

        Parameters
        ----------
        corners : ndarray, shape (b, d)
            Lower corners of boxes that hold all points.
        counts : ndarray, shape (b,)
            Number of points in each.
        edge : ndarray, shape (d,)
            Size of the boxes.
        bound : float
            Largest admissible spectral norm of the part of K that is left out.

        Returns
        -------
        radius : float
            Infinity if there is none below the diameter of the points.
        norm : float
            The largest row sum of what is left out, which bounds its spectral norm.

        Notes
        -----
        From a box, the points of another one count with the correlation at the least distance between the two, which
        must decrease with distance: b^2 correlations, and as many products for each of about 12 radii.
        """
        least = np.zeros((len(corners), len(corners)))
        for x, width in zip(corners.T, edge, strict=True):
            least += np.square(np.maximum(np.abs(x[:, None] - x) - width, 0.0))
        least = np.sqrt(least)
        values, most = self(least), float(least.max())

        def left_out(radius: float) -> float:
            # Below the radius, a box's points count with its correlation: those that are left out lie beyond it.
            return float((np.minimum(values, self(np.array([radius]))) @ counts).max())

        low, high = 1e-9, 1.0  # of the largest distance
        if not left_out(most) <= bound:
            return math.inf, 0.0
        while high > 1.01 * low:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if left_out(most * middle) <= bound else (middle, high)
        return most * high, left_out(most * high)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def correlate(squares: Doubles, zeros: Doubles, factors: Doubles, kernel: Parameters, taper: float) -> None:
    """Replace squared distances by correlations, in place.

    Parameters
    ----------
    squares : contiguous array of float64, shape (n,)
    zeros : contiguous array of float64, shape (>= n,)
        Zeros.
    factors : array of float64, shape (>= n,)
        Work space.
    kernel, taper
        From :attr:`Correlation.compiled`.

    Notes
    -----
    Kernels compute |x|^2 + |z|^2 - 2 x.z; with norms of 0 and a product of -|x-z|^2 / 2 that is exact.
    """  # pragma: no cover - compiled
    n = squares.size
    if taper > 0.0:
        for k in range(n):
            r = taper * math.sqrt(squares[k])
            x = max(0.0, 1.0 - r)
            factors[k] = x * x * x * x * (1.0 + 4.0 * r) if x > 0.0 else 0.0
    for k in range(n):
        squares[k] *= -0.5
    finish(squares, 0.0, zeros, kernel)
    if taper > 0.0:
        for k in range(n):
            squares[k] *= factors[k]
