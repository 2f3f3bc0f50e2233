"""The operators of a prediction: rows are transformed, routed to parts, and expanded in kernel values.

1. A transformation is levels, standardisation, normal scores and the map of a learned metric; normal scores and
   isotonic probabilities are piecewise linear curves, one per column.
2. A route is the weights of the parts' models for each row, and their weighted answers.
3. An expansion is K(Z, A) W, for each kernel of the package, in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import AnyRows, dense, in_memory
from cacore.data.standardize import Levels, Standardizer, curves
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.given import is_of_new_rows
from cacore.kernels.registry import EQUAL, FEATURES, L1, PRODUCT
from cacore.svm.decision import feature_weights
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


Curve = tuple[NDArray[np.float64], NDArray[np.float64]]  # ascending points and values, as np.interp takes them


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


# -- kernel expansions ------------------------------------------------------------------------------------

# Largest r of exp(-r) in cacore.kernels.functions, by the type of the kernel values. Kernel values of rows beyond it
# are equal there, so that the sign of a decision without bias is that of the sum of the coefficients. It is here, too.
_FAR = {"float64": 345.0, "float32": 43.0}


def _decaying(polynomial: Callable[[Value], Value | float]) -> Callable[[Graph, Value, float, float], Value]:
    def matern(g: Graph, r: Value, scale: float, far: float) -> Value:
        r = g.op("Min", scale * r, far)  # r exp(-r) must not be inf * 0
        return polynomial(r) * g.op("Exp", -r)

    return matern


def _ending(g: Graph, r: Value, kernel: Kernel, polynomial: float | Value) -> Value:
    """``(1 - gamma r)^p polynomial`` up to r = 1 / gamma, and 0 beyond; p = floor(degree/2) + 1, 3 or 5 (Wendland)."""
    power = kernel.degree // 2 + int(kernel.kind[-1]) + 1
    return g.op("Max", 1.0 - kernel.gamma * r, 0.0) ** float(power) * polynomial


def _wendland4(r: Value, ell: int) -> Value:
    return 1.0 + r * (ell + 2.0 + (ell * ell + 4.0 * ell + 3.0) / 3.0 * r)


_exponential = _decaying(lambda r: 1.0)
_matern32 = _decaying(lambda r: 1.0 + r)
_matern52 = _decaying(lambda r: 1.0 + r * (1.0 + r / 3.0))

# Kernel values from x.z, |x-z|^2 (as a callable: |x-z|) or |x-z|_1, see cacore.kernels.functions.
_OF_PRODUCT: dict[str, Callable[[Graph, Value, Kernel], Value]] = {
    "linear": lambda g, t, k: t,
    "polynomial": lambda g, t, k: (k.gamma * t + k.coef0) ** float(k.degree),
    "sigmoid": lambda g, t, k: g.op("Tanh", k.gamma * t + k.coef0),
}
_OF_SQUARE: dict[str, Callable[[Graph, Value, Kernel, float], Value]] = {
    "gaussian": lambda g, t, k, far: _exponential(g, t, k.gamma, far),
    "rational": lambda g, t, k, far: (1.0 + k.gamma / k.degree * t) ** -float(k.degree),
}
_OF_LENGTH: dict[str, Callable[[Graph, Value, Kernel, float], Value]] = {
    "laplacian": lambda g, r, k, far: _exponential(g, r, k.gamma, far),
    "matern32": lambda g, r, k, far: _matern32(g, r, float(np.sqrt(6.0 * k.gamma)), far),
    "matern52": lambda g, r, k, far: _matern52(g, r, float(np.sqrt(10.0 * k.gamma)), far),
    "wendland0": lambda g, r, k, far: _ending(g, r, k, 1.0),
    "wendland2": lambda g, r, k, far: _ending(g, r, k, 1.0 + (k.degree // 2 + 3) * (k.gamma * r)),
    "wendland4": lambda g, r, k, far: _ending(g, r, k, _wendland4(k.gamma * r, k.degree // 2 + 3)),
}
_OF_L1: dict[str, Callable[[Graph, Value, Kernel, float], Value]] = {
    "l1": lambda g, t, k, far: _exponential(g, t, k.gamma, far)
}
# Factors (1 - r)^p q(r), as p and q, of r = gamma |x_k - z_k|.
_OF_FEATURE: dict[str, tuple[float, Callable[[Value], float | Value]]] = {
    "wendland0_product": (1.0, lambda r: 1.0),
    "wendland2_product": (3.0, lambda r: 1.0 + 3.0 * r),
    "wendland4_product": (5.0, lambda r: 1.0 + r * (5.0 + 8.0 * r)),
}
KNOWN = frozenset({*_OF_PRODUCT, *_OF_SQUARE, *_OF_LENGTH, *_OF_L1, *_OF_FEATURE})


def expansion(
    g: Graph, Z: Value, A: AnyRows, weights: NDArray[np.floating], kernel: Kernel | None,
    rows: NDArray[np.int64] | None = None, dtype: str = "float64", biased: bool = True,
) -> Value:  # fmt: skip
    """``K(Z, A) @ weights`` in float64, shape (n, t).

    Parameters
    ----------
    g : Graph
    Z : Value, shape (n, d)
        Float64.
    A : ndarray or CSR, shape (m, d)
        Becomes a dense constant of 8 m d bytes; for the linear kernel only 8 d t bytes are stored.
    weights : ndarray, shape (m, t)
    kernel : Kernel or None
        None, or the kernel :func:`cacore.kernels.given.of_new_rows`: `Z` holds kernel values with all training rows.
    rows : ndarray of int64, shape (m,)
        Numbers of the rows of `A` among the training rows, for such a kernel.
    dtype : {"float64", "float32"}
        Type of the kernel values of the model itself, below whose smallest exponential values do not decrease.
    biased : bool
        True if a bias is added to the sums; see :func:`cacore.svm.decision.feature_weights`.

    Raises
    ------
    InputError
        A kernel that the export does not know, or too many numbers for one file.

    Notes
    -----
    The graph takes 2 n m (d + t) flops and n x m numbers of memory. With the l1 distance, or a product over the
    features, a loop over the features takes 3 n m d flops, or about 10 n m d.
    """
    W = np.asarray(weights, np.float64)
    if not len(W):
        return g.filled(Z, np.zeros(W.shape[1]))
    if kernel is None or is_of_new_rows(kernel):
        columns = rows if kernel is None else np.asarray(in_memory(A))[:, 0].astype(np.int64)
        return g.columns(Z, columns) @ W  # type: ignore[arg-type]
    require_known(kernel)
    if kernel.kind == "linear":
        return Z @ feature_weights(kernel, in_memory(A), W, biased)
    g.require_room(8 * int(np.prod(A.shape)))
    return _values(g, Z, np.asarray(dense(in_memory(A)), np.float64), kernel, _FAR[dtype]) @ W


def require_known(kernel: Kernel) -> None:
    """Raise an InputError for a kernel that the export does not know."""
    if not kernel.compiled:
        raise InputError("ONNX cannot hold a callable kernel: train with a kernel of the package")
    if kernel.kind not in KNOWN:
        raise InputError(f"the export to ONNX has no {kernel.kind} kernel; it has {', '.join(sorted(KNOWN))}")


def _values(g: Graph, Z: Value, A: NDArray[np.float64], kernel: Kernel, far: float) -> Value:
    of = kernel.declared.of
    if of == PRODUCT:
        return _OF_PRODUCT[kernel.kind](g, Z @ A.T, kernel)
    if of == L1:
        zero = g.filled(Z, np.zeros(len(A)))
        return _OF_L1[kernel.kind](g, _feature_by_feature(g, Z, A, zero, lambda total, gap: total + gap), kernel, far)
    if of == FEATURES:
        ones = g.filled(Z, np.ones(len(A)))
        return _feature_by_feature(g, Z, A, ones, lambda total, gap: total * _factor(g, gap, kernel))
    shift = A.mean(axis=0)  # |x|^2 + |z|^2 - 2 x.z loses digits far from the origin
    Z, A = Z - shift, A - shift
    size = g.reduced("SumSquare", Z) + np.square(A).sum(axis=1)
    squares = size - 2.0 * (Z @ np.ascontiguousarray(A.T))
    if kernel.kind in _OF_SQUARE:
        return _OF_SQUARE[kernel.kind](g, g.op("Max", squares, 0.0), kernel, far)
    rounding = float(EQUAL * np.finfo(np.float64).eps) * size >= squares  # cacore.kernels.registry.length
    return _OF_LENGTH[kernel.kind](g, g.op("Sqrt", g.op("Where", rounding, 0.0, squares)), kernel, far)


def _factor(g: Graph, gap: Value, kernel: Kernel) -> Value:
    """Factor of one feature of a product over the features (Wendland)."""
    r = g.op("Min", kernel.gamma * gap, 1.0)
    power, factor = _OF_FEATURE[kernel.kind]
    return (1.0 - r) ** power * factor(r)


def _feature_by_feature(
    g: Graph, Z: Value, A: NDArray[np.float64], start: Value, take: Callable[[Value, Value], Value]
) -> Value:
    """``start = take(start, |x_k - z_k|)`` for each feature k in turn: n x m numbers of memory."""
    features = g.value(np.ascontiguousarray(A.T))

    def further(j: Value, total: Value) -> list[Value]:
        x = g.op("Unsqueeze", g.op("Gather", Z, j, axis=1), g.indices(1))
        return [take(total, g.op("Abs", x - g.op("Gather", features, j, axis=0)))]

    return g.loop(A.shape[1], [start], further)[0]
