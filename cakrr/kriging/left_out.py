"""Predictions of left-out blocks of a sample: another judge of the parameters of a covariance.

The sample is divided into blocks of neighbouring points. Each value is predicted from the nearest values of other
blocks, at distances that maps with gaps have, and judged by its density. This asks less of the model than the
likelihood does, which also believes it at distances that no prediction needs.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from cacore.comm import Communicator
from cacore.kernels import Kernel
from cacore.kernels.near import spatial_order
from cacore.machine import threads
from cacore.near.correlation import Correlation
from cakrr.kriging.likelihood import NEIGHBOURS, Likelihood, deviance, drift_of
from cakrr.kriging.sample import Sample

BLOCKS, SMALLEST = 50, 10  # blocks at most, and their least number of points


class LeftOutBlocks(Likelihood):
    """The density of left-out values; construction and calls are collective, and the same on all ranks.

    Coefficients of the drift are those of the whole sample.

    Notes
    -----
    Per evaluation: one of the likelihood, for the drift, and s m^3/3 flops for s points with m = 40 neighbours, which
    the ranks share, with an Allreduce of 2 numbers.
    """

    def __init__(self, sample: Sample, kernel: Kernel, taper: float, comm: Communicator) -> None:
        super().__init__(sample, kernel, taper, comm)
        self.nearest = nearest_of_other_blocks(sample.X, NEIGHBOURS)

    def __call__(self, length: float, sill: float | None, nugget: float, ratio: float | None) -> tuple[float, float]:
        """Minus twice the sum of the logarithms of the left-out values' densities, and the sill.

        `length` is the range. If the sill is None, it maximises the densities for this `ratio` of nugget and sill.
        """
        y, noise = self.sample.y, self.sample.noise(sill, nugget, ratio)
        logdet, gram = self.terms(length, noise)
        if not math.isfinite(logdet):
            return math.inf, 1.0
        residual = y - self.sample.F @ drift_of(gram) if len(gram) > 1 else y
        correlation = Correlation(self.kernel.with_sigma(length), self.taper)
        left, variance = self.left(residual[:, None], noise, self.nearest, correlation)
        sums = self.comm.allreduce(np.array([np.log(variance).sum(), (left[:, 0] ** 2 / variance).sum()]))
        return deviance(len(y), float(sums[0]), float(sums[1]), sill if ratio is None else None)


def nearest_of_other_blocks(X: NDArray[np.float64], m: int) -> NDArray[np.int32]:
    """The m nearest points of other blocks for each point of `X`, shape (n, m); -1 where there are no more.

    There are up to 50 blocks of neighbouring points, and at least 10 points in each, if there are as many.
    """
    n = len(X)
    out = np.full((n, m), -1, np.int32)
    order = spatial_order(X, SMALLEST)
    for block in np.array_split(order, max(2, min(BLOCKS, n // SMALLEST))):
        others = np.setdiff1d(order, block)
        many = min(m, len(others))
        _, found = cKDTree(X[others]).query(X[block], many, workers=threads.current())
        out[block, :many] = others[found.reshape(len(block), many)]
    return out
