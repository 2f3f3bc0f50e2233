"""Routes as operators: the weights of the parts' models for each row, and their weighted answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError
from cakernels.onnx.graph import Graph, Value
from partition.model import InParts
from partition.routing import Soft

Answer = Callable[[int, Value], Value]  # (number of a part, rows) -> its answers, shape (n, width)


def require_whole(model: InParts) -> None:
    """Raise an InputError for a model without a prediction of its own, or with parts on other ranks."""
    if model.route == "oracle":
        raise InputError(f"{model.method} is an oracle: it needs the true targets and cannot predict")
    if len(model.parts) != len(model.sizes):
        raise InputError("other ranks hold parts of the model: save it, and export the file in one process")


def answered(g: Graph, Z: Value, model: InParts, width: int, answer: Answer) -> Value:
    """Prediction by the model's route, shape (n, width); see :meth:`partition.model.InParts._answered`.

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
        said = answer(part, g.op("GatherND", Z, rows))
        weighted = said * g.op("Unsqueeze", g.op("GatherND", share, rows), g.indices(1))
        total = g.op("ScatterND", total, rows, weighted, reduction="add")
    return total


def _weights(g: Graph, Z: Value, model: InParts) -> Value:
    """Weights of all parts for each row, shape (n, P), with sum 1."""
    soft = model.soft or Soft(1, 0.0)
    if model.route == "all":  # all divisions' centres together
        return _near(g, Z, model.centers, soft)
    P = len(model.centers) // model.divisions
    found = [_near(g, Z, model.centers[lo : lo + P], soft) for lo in range(0, len(model.centers), P)]
    return found[0] if len(found) == 1 else g.op("Concat", *found, axis=1) / float(model.divisions)


def _near(g: Graph, Z: Value, centers: NDArray[np.float64], soft: Soft) -> Value:
    """Weights of :meth:`partition.routing.Soft.weights`, in the order of the centres."""
    shift = centers.mean(axis=0)
    C = centers - shift
    squares = np.square(C).sum(axis=1) - 2.0 * ((Z - shift) @ np.ascontiguousarray(C.T))  # without |x|^2, equal for all
    k = min(soft.k, len(C))
    least, places = g.ops("TopK", 2, squares, g.indices(k), axis=1, largest=0, sorted=1)
    raised = least - g.op("Slice", least, g.indices(0), g.indices(1), g.indices(1))
    weights = g.op("Exp", raised / -max(soft.t, float(np.finfo(float).tiny)))
    weights = weights / g.reduced("Sum", weights)
    return g.op("ScatterElements", g.filled(Z, np.zeros(len(C))), places, weights, axis=1)
