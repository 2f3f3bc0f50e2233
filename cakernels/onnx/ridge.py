"""Kernel ridge regression models as operators: regressors of one or many targets, and classifiers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cakernels.onnx.graph import Graph, Value
from cakernels.onnx.kernels import expansion
from cakernels.onnx.operators import answered, require_whole, transformed
from cakernels.onnx.svm import Classified, largest, of_classes
from cakrr.ridge_model import KRRModel


def values(g: Graph, model: KRRModel) -> Value:
    """:meth:`KRRModel.predict`, shape (n, t), with one column for a single target."""
    require_whole(model)
    Z = transformed(g, g.X, model.standardizer, model.dtype)
    offset = np.atleast_1d(np.asarray(model.offset, np.float64))

    def answer(number: int, rows: Value) -> Value:
        part = model.parts[number]
        return expansion(g, rows, part.X, _columns(part.alpha), model.kernel_of(number))

    total = answered(g, Z, model, len(offset), answer) + offset
    if model.coarse is None:
        return total
    coarse = model.coarse
    return total + expansion(g, Z, coarse.centers, _columns(coarse.beta), coarse.kernel.with_sigma(coarse.sigma))


def classifier(g: Graph, model: KRRModel) -> Classified:
    """Answers of a classifier: :meth:`KRRModel.labels` and :meth:`KRRModel.probabilities`."""
    outputs = values(g, model)
    many = bool(model.target_shape)
    codes = largest(g, outputs) if many else g.cast(g.columns(outputs, 0) > 0.0, np.int64)
    shares = _clipped(g, outputs, many) if model.calibrator is None else of_classes(g, outputs, model.calibrator)
    return Classified(codes, outputs, model.target_shape[0] if many else 1, shares)


def _clipped(g: Graph, outputs: Value, many: bool) -> Value:
    """Probabilities from outputs without a calibrator; `many` says that there are more than two classes."""
    if not many:
        second = g.op("Max", g.op("Min", (1.0 + outputs) / 2.0, 1.0), 0.0)
        return g.op("Concat", 1.0 - second, second, axis=1)
    positive = g.reduced("Max", outputs) > 0.0
    share = g.op("Where", positive, g.op("Max", outputs, 0.0), outputs - g.reduced("Min", outputs))
    share = g.op("Where", g.reduced("Max", share) > 0.0, share, 1.0)
    return share / g.reduced("Sum", share)


def _columns(coefficients: NDArray[np.floating]) -> np.ndarray:
    return np.asarray(coefficients).reshape(len(coefficients), -1)
