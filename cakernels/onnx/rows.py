"""The transformation of rows as operators: levels, standardisation, normal scores, and the map of a learned metric."""

from __future__ import annotations

import numpy as np

from cacore.data.levels import Levels
from cacore.data.quantiles import curves
from cacore.data.standardize import Standardizer
from cakernels.onnx.curves import interpolated
from cakernels.onnx.graph import Graph, Value


def transformed(g: Graph, X: Value, standardizer: Standardizer | None, dtype: str) -> Value:
    """Rows as the model's kernels see them, in float64; computed in `dtype`, the model's type, as in training."""
    Z = g.cast(X, dtype)
    if standardizer is None:
        return g.cast(Z, np.float64)
    if standardizer.levels is not None:
        Z = _levels(g, Z, standardizer.levels, dtype)
    mean, scale = standardizer.mean, standardizer.scale
    if dtype == "float32" and standardizer.narrow:
        Z = (Z - mean.astype(np.float32)) / scale.astype(np.float32)
    else:
        Z = g.cast((g.cast(Z, np.float64) - mean) / scale, dtype)
    if standardizer.quantiles is not None:
        Z = g.cast(interpolated(g, g.cast(Z, np.float64), list(curves(standardizer.quantiles))), dtype)
    if standardizer.root is not None:
        root = standardizer.root.astype(dtype)
        Z = Z * root if root.ndim == 1 else Z @ root
    return g.cast(Z, np.float64)


def _levels(g: Graph, X: Value, levels: Levels, dtype: str) -> Value:
    """The columns of the levels, and the other features as they are."""
    Z = g.columns(X, levels.feature)
    return g.op("Where", levels.indicates, g.cast(g.op("Equal", Z, levels.value.astype(dtype)), dtype), Z)
