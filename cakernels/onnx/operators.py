"""Transformations and routes of rows as ONNX operators.

A transformation is levels, standardisation, normal scores and the map of a learned metric; normal scores and isotonic
probabilities are piecewise linear curves, one per column. A route is the weights of the parts' models for each row, and
their weighted answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cacore.data.standardize import Levels, Standardizer, curves
from cacore.errors import InputError
from cakernels.onnx.graph import Graph, Value
from partition.parts_model import InParts, Soft


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


Curve = tuple[
    NDArray[np.float64], NDArray[np.float64]
]  # points x, ascending, and their values, as np.interp takes them


def interpolated(g: Graph, x: Value, curves: Sequence[Curve]) -> Value:
    """``np.interp(x[:, j], *curves[j])`` for each column j of `x`, shape (n, k), in float64.

    The segment of a number is found by bisection, in all columns at once: log2 of the number of points steps.
    """
    longest = max(len(points) for points, _ in curves)
    steps = int(np.ceil(np.log2(longest + 1)))
    # Segment s lies between the points s - 1 and s. Missing points are infinite, so no number is beyond them.
    ends = np.full((1 << steps, len(curves)), np.inf)
    starts, values, slopes = np.zeros((3, *ends.shape))
    for j, (points, heights) in enumerate(curves):
        m = len(points)
        ends[1 : m + 1, j] = points
        starts[1 : m + 1, j], starts[0, j] = points, points[0]
        values[1 : m + 1, j], values[0, j] = heights, heights[0]
        width, rise = np.diff(points), np.diff(heights)
        slopes[1:m, j] = np.divide(rise, width, out=np.zeros(m - 1), where=width > 0)
    ends[0] = -np.inf
    place = g.cast(g.filled(x, np.zeros(len(curves))), np.int64)
    table = g.value(ends)
    for step in range(steps - 1, -1, -1):
        later = g.op("Add", place, np.int64(1 << step))
        place = g.op("Where", x >= g.op("GatherElements", table, later, axis=0), later, place)

    def at(numbers: NDArray[np.float64]) -> Value:
        return g.op("GatherElements", g.value(numbers), place, axis=0)

    return at(values) + at(slopes) * (x - at(starts))


Answer = Callable[[int, Value], Value]  # (number of a part, rows) -> its answers, shape (n, width)


def require_whole(model: InParts) -> None:
    """Raise an InputError for a model without a prediction of its own, or with parts on other ranks."""
    if model.route == "oracle":
        raise InputError(f"{model.method} is an oracle: it needs the true targets and cannot predict")
    if len(model.parts) != len(model.sizes):
        raise InputError("other ranks hold parts of the model: save it, and export the file in one process")


def answered(g: Graph, Z: Value, model: InParts, width: int, answer: Answer) -> Value:
    """Prediction by the model's route, shape (n, width); see :meth:`partition.parts_model.InParts._answered`.

    With "nearest" and "soft", a part's operators see only the rows that the part predicts, and the last row, which the
    outputs leave out: no batch is empty.
    """
    P = len(model.sizes)
    if P == 1:
        return answer(0, Z)
    if model.route == "sum" or (model.route == "all" and model.soft is None):
        total = answer(0, Z)
        for part in range(1, P):
            total = total + answer(part, Z)
        return total / float(P) if model.route == "all" else total
    weights = _weights(g, Z, model)
    total = g.filled(Z, np.zeros(width))
    for part in range(P):
        share = g.columns(weights, part)
        rows = g.op("Transpose", g.op("NonZero", share > 0.0))
        rows = g.op("Concat", rows, g.reshaped(g.last, 1, 1), axis=0)
        prediction = answer(part, g.op("GatherND", Z, rows))
        weighted = prediction * g.op("Unsqueeze", g.op("GatherND", share, rows), g.indices(1))
        total = g.op("ScatterND", total, rows, weighted, reduction="add")
    return total


def _weights(g: Graph, Z: Value, model: InParts) -> Value:
    """Weights of all parts for each row, shape (n, P), with sum 1."""
    soft = model.soft or Soft(1, 0.0)
    if model.route == "all":  # all divisions' centres together
        return _near(g, Z, model.centers, soft)
    P = len(model.centers) // model.divisions
    per_division = [_near(g, Z, model.centers[lo : lo + P], soft) for lo in range(0, len(model.centers), P)]
    return per_division[0] if len(per_division) == 1 else g.op("Concat", *per_division, axis=1) / float(model.divisions)


def _near(g: Graph, Z: Value, centers: NDArray[np.float64], soft: Soft) -> Value:
    """Weights of :meth:`partition.parts_model.Soft.weights`, in the order of the centres."""
    shift = centers.mean(axis=0)
    C = centers - shift
    squares = np.square(C).sum(axis=1) - 2.0 * ((Z - shift) @ np.ascontiguousarray(C.T))  # without |x|^2, equal for all
    k = min(soft.k, len(C))
    least, places = g.ops("TopK", 2, squares, g.indices(k), axis=1, largest=0, sorted=1)
    raised = least - g.op("Slice", least, g.indices(0), g.indices(1), g.indices(1))
    weights = g.op("Exp", raised / -max(soft.t, float(np.finfo(float).tiny)))
    weights = weights / g.reduced("Sum", weights)
    return g.op("ScatterElements", g.filled(Z, np.zeros(len(C))), places, weights, axis=1)
