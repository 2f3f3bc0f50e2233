"""Gaussian fields of known covariance on a grid, by circulant embedding, and points chosen from it.

C. R. Dietrich, G. N. Newsam: Fast and exact simulation of stationary Gaussian processes through circulant embedding of
the covariance matrix. SIAM J. Sci. Comput. 18, 1997.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from cakriging.near_matrix import Correlation

Array = NDArray[np.float64]
_NEGATIVE = 1e-6  # most variance in negative eigenvalues of the embedding, which are set to 0


@dataclass
class FieldData:
    """Observations of a field, and values of the field at places that were not observed.

    Attributes
    ----------
    X, y : ndarray, shapes (n, d) and (n,)
        Observed places in [0, 1)^d, and values there with noise.
    Q, truth : ndarray, shapes (q, d) and (q,)
        Other places, and new values there, with noise of the same variance.
    """

    X: Array
    y: Array
    Q: Array
    truth: Array


def on_grid(correlation: Correlation, side: int, d: int, rng: np.random.Generator) -> Array:
    """A field of mean 0 and variance 1 on a grid of side^d places, `side` per unit of length; shape (side,) * d.

    Raises
    ------
    ValueError
        The correlation does not end or decay within half of the unit cube around it.

    Notes
    -----
    The grid is periodic in twice its size, unless the correlation ends: then a border as wide as its reach suffices.
    Memory: 16 bytes per place of the periodic grid.
    """
    reach = min(correlation.reach, 1.0)
    size = scipy.fft.next_fast_len(side + int(np.ceil(reach * side)) + 1, real=True)
    steps = np.minimum(np.arange(size), size - np.arange(size)) / side
    squares = steps**2
    for _ in range(d - 1):
        squares = np.add.outer(squares, steps**2)
    power = scipy.fft.rfftn(correlation(np.sqrt(squares, out=squares)), workers=-1, overwrite_x=True).real
    lost = -power[power < 0].sum() / np.abs(power).sum()
    if lost > _NEGATIVE:
        raise ValueError(f"the embedding is not positive definite: {lost:.1e} of the variance is negative")
    np.sqrt(np.maximum(power, 0.0, out=power), out=power)
    noise = scipy.fft.rfftn(rng.standard_normal((size,) * d), workers=-1, overwrite_x=True)
    noise *= power
    found = scipy.fft.irfftn(noise, s=(size,) * d, workers=-1, overwrite_x=True)
    return np.ascontiguousarray(found[(slice(0, side),) * d])


def observed(correlation: Correlation, n: int, q: int, d: int, nugget: float, seed: int, gaps: int = 0) -> FieldData:
    """A field of variance 1, observed at n random places of a grid with noise of variance `nugget`, and q other places.

    With `gaps`, nothing is observed in so many discs like clouds, of radii of a quarter to twice the reach; places to
    predict lie everywhere.
    """
    rng = np.random.default_rng(seed)
    side = 1 << int(np.ceil(np.log2((2.0**d) * (n + q)) / d))
    values = on_grid(correlation, side, d, rng).ravel()
    chosen = rng.choice(len(values), int(1.3 * (n + q)), replace=False, shuffle=True)
    X = np.stack(np.unravel_index(chosen, (side,) * d), axis=1) / side
    hidden = np.zeros(len(X), np.bool_)
    for _ in range(gaps):
        radius = rng.uniform(0.25, 2.0) * min(correlation.reach, 0.1)
        hidden |= ((X - rng.random(d)) ** 2).sum(axis=1) < radius**2
    new = np.zeros(len(X), np.bool_)
    new[:q] = True
    seen = np.flatnonzero(~hidden & ~new)[:n]
    noisy = values[chosen] + np.sqrt(nugget) * rng.standard_normal(len(chosen))
    return FieldData(X[seen], noisy[seen], X[:q], noisy[:q])
