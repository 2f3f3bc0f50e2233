"""The empirical variogram: half the mean squared difference of values, by distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from cacore.near.correlation import Correlation
from cakrr.kriging.sample import Sample

BINS, MOST = 20, 1500  # lags; points of each kind whose pairs are compared


@dataclass(frozen=True)
class Variogram:
    """Semivariances of the values without their drift, and the fitted curve at the same distances.

    Attributes
    ----------
    lags : ndarray, shape (b,)
        Mean distance of the pairs in each bin.
    values : ndarray, shape (b,)
        Half the mean squared difference.
    pairs : ndarray of int64, shape (b,)
    fitted : ndarray, shape (b,)
        nugget + sill (1 - rho(lag)).
    """

    lags: NDArray[np.float64]
    values: NDArray[np.float64]
    pairs: NDArray[np.int64]
    fitted: NDArray[np.float64]

    @classmethod
    def of(cls, sample: Sample, correlation: Correlation, sill: float, nugget: float) -> Variogram:
        """The variogram of a sample, up to the distance at which the correlation is 2 % or half the largest one.

        The pairs are those of 1,500 random points and, if the sample has blocks of neighbours, of 1,500 of these.
        """
        residual = sample.y
        if sample.F.shape[1]:
            residual = sample.y - sample.F @ np.linalg.lstsq(sample.F, sample.y, rcond=None)[0]
        first = len(sample) - sample.blocks
        kinds = [slice(0, min(MOST, first))] + ([slice(first, first + MOST)] if sample.blocks else [])
        r = np.concatenate([pdist(sample.X[some]) for some in kinds])
        halves = np.concatenate([pdist(residual[some, None], "sqeuclidean") / 2.0 for some in kinds])
        most = float(r.max(initial=0.0)) / 2.0
        decayed = np.flatnonzero(correlation(np.linspace(0.0, most, 1001)) < 0.02)
        if decayed.size:
            most *= max(1, int(decayed[0])) / 1000.0
        if not most > 0:
            return cls(np.zeros(0), np.zeros(0), np.zeros(0, np.int64), np.zeros(0))
        bins = np.floor(r / most * BINS)
        inside = bins < BINS
        bins = bins[inside].astype(np.int64)
        pairs = np.bincount(bins, minlength=BINS)
        there = pairs > 0
        lags = np.bincount(bins, r[inside], BINS)[there] / pairs[there]
        values = np.bincount(bins, halves[inside], BINS)[there] / pairs[there]
        return cls(lags, values, pairs[there], nugget + sill * (1.0 - correlation(lags)))
