"""Gaussian fields of known covariance on a grid, by circulant embedding, and points chosen from it.

C. R. Dietrich, G. N. Newsam: Fast and exact simulation of stationary Gaussian processes through circulant embedding of
the covariance matrix. SIAM J. Sci. Comput. 18, 1997.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from cacore.kernels import Kernel
from cakriging.near_matrix import Correlation

Array = NDArray[np.float64]
_NEGATIVE = 1e-6  # most variance in negative eigenvalues of the embedding, which are set to 0
_LOST = 1e-3  # the same for scenes, whose long ranges decay less within the period


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


# -- fields like satellite images ------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """A grid of cells, seen between clouds, and what an oracle knows of it.

    Attributes
    ----------
    X, y : ndarray, shapes (n, 2) and (n,)
        Cells that are seen, in units of the longer side, and their values with noise.
    Q, truth : ndarray, shapes (q, 2) and (q,)
        Cells under clouds, and their values with noise.
    amplitude : callable
        Standard deviation of the field at places, shape (n, 2): shape (n,).
    drift : callable
        Mean of the field at places.
    """

    X: Array
    y: Array
    Q: Array
    truth: Array
    amplitude: Callable[[Array], Array]
    drift: Callable[[Array], Array]


def scene(
    kernel: Kernel, shape: tuple[int, int], nugget: float, seed: int, hidden: float = 0.3, varied: float = 0.2
) -> Scene:
    """A field of variance about 1 on a grid, with a linear drift, and clouds that hide this share of the cells.

    Parameters
    ----------
    kernel : Kernel
        With its width, in units of the longer side of the grid.
    shape : tuple of int
        Cells along both axes; the longer one first.
    nugget : float
        Variance of the noise.
    seed : int
    hidden : float
        Share of the cells under clouds.
    varied : float
        The amplitude of the field varies by as much from its mean: mild non-stationarity.

    Notes
    -----
    The field is periodic in four times the longer side, on which a correlation of a range up to 0.6 still has a
    positive definite embedding. Clouds are where a smooth field of range 0.05 is largest.
    """
    rng = np.random.default_rng(seed)
    size = scipy.fft.next_fast_len(4 * shape[0], real=True)
    field = _periodic(Correlation(kernel), shape, size, rng)
    cloud = _periodic(Correlation(Kernel("gaussian").with_sigma(0.05)), shape, size, rng)
    X = np.stack(np.meshgrid(*(np.arange(count) / shape[0] for count in shape), indexing="ij"), axis=-1).reshape(-1, 2)

    def amplitude(places: Array) -> Array:
        return np.asarray(1.0 + varied * np.sin(2 * np.pi * places[:, 0]) * np.cos(3 * places[:, 1]))

    def drift(places: Array) -> Array:
        return np.asarray(40.0 + places @ np.array([3.0, -2.0]))

    values = drift(X) + amplitude(X) * field + np.sqrt(nugget) * rng.normal(size=len(X))
    seen = cloud < np.quantile(cloud, 1.0 - hidden)
    return Scene(X[seen], values[seen], X[~seen], values[~seen], amplitude, drift)


def _periodic(correlation: Correlation, shape: tuple[int, int], size: int, rng: np.random.Generator) -> Array:
    """A field of variance 1 on a part of a periodic grid of size^2 places, `shape`[0] per unit of length, raveled."""
    steps = np.minimum(np.arange(size), size - np.arange(size)) / shape[0]
    power = scipy.fft.rfft2(correlation(np.hypot(steps[:, None], steps)), workers=-1).real
    lost = -power[power < 0].sum() / np.abs(power).sum()
    if lost > _LOST:
        raise ValueError(f"the embedding is not positive definite: {lost:.1e} of the variance is negative")
    noise = scipy.fft.rfft2(rng.standard_normal((size, size)), workers=-1)
    field = scipy.fft.irfft2(noise * np.sqrt(np.maximum(power, 0.0)), s=(size, size), workers=-1)
    return np.ascontiguousarray(field[: shape[0], : shape[1]]).ravel()
