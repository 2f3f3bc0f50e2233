"""Kriging: Gaussian processes in few coordinates, by a dense system, near points, or windows of the nearest points.

==================  ====================================================================================
`kriging_fit`       the algorithm on all ranks, step by step: read this first
`kriging_method`    the record of the method; `options`: its options
`space`             coordinates, the drift, the division of the points over ranks, and the halo
`selection`         kernel, drift and criterion, where no kernel is named
`estimation`        range, sill and nugget: likelihood, left-out blocks, variogram
`kriging_system`    the linear system: conjugate gradients on near points with a sparse factor of the inverse, or a
                    dense factor; also Vecchia's regressions
`windows`           predictions and draws from the nearest points of each place alone
`counts`            counts and presence, by Laplace's approximation
`near_matrix`       correlations with a cutoff radius, and products with the sparse matrix of them
`kriging_model`     means, standard deviations and draws at new places, and the model file
`interpolation`     points to a grid by one call, over NumPy and xarray
`maps`              predictions on a grid, and their files
`kriging_family`    kriging in the commands; `command`: the commands; `estimators`: the scikit-learn class
==================  ====================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cakriging.estimators import Kriging
    from cakriging.interpolation import interpolate
    from cakriging.kriging_model import KrigingModel

_HOMES = {"Kriging": "estimators", "KrigingModel": "kriging_model", "interpolate": "interpolation"}

__all__ = ["Kriging", "KrigingModel", "interpolate"]


def __getattr__(name: str) -> object:
    # Loaded on first use: the commands need no scikit-learn.
    if name in _HOMES:
        return getattr(import_module(f"cakriging.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'cakriging' has no attribute {name!r}")
