"""Kernel expansions as operators: K(Z, A) W, for each kernel of the package, in double precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import AnyRows, dense
from cacore.data.stored import in_memory
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.given import is_of_new_rows
from cacore.kernels.registry import EQUAL, FEATURES, L1, PRODUCT
from cacore.svm.decision import feature_weights
from cakernels.onnx.graph import Graph, Value

# Largest r of exp(-r) in cacore.kernels.evaluate, by the type of the kernel values. Kernel values of rows beyond it are
# equal there, so that the sign of a decision without bias is that of the sum of the coefficients. It is here, too.
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
