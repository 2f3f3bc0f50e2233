"""Piecewise linear curves as operators, one per column: normal scores and isotonic probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cakernels.onnx.graph import Graph, Value

Curve = tuple[
    NDArray[np.float64], NDArray[np.float64]
]  # points x, ascending, and their values, as np.interp takes them


def interpolated(g: Graph, x: Value, curves: Sequence[Curve]) -> Value:
    """``np.interp(x[:, j], *curves[j])`` for each column j of `x`, shape (n, k), in float64.

    The segment of a number is found by bisection, in all columns at once: log2 of the number of points steps.
    """
    most = max(len(points) for points, _ in curves)
    steps = int(np.ceil(np.log2(most + 1)))
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
