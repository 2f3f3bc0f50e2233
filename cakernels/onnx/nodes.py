"""SVMClassifier and SVMRegressor, the nodes of ai.onnx.ml for exact SVMs, which compute in single precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, dense
from cacore.kernels import Kernel
from cakernels.onnx.graph import ML, Graph, Value

_TYPES = {"linear": "LINEAR", "polynomial": "POLY", "gaussian": "RBF", "sigmoid": "SIGMOID"}
_AGREES = 2e-6  # largest difference from double precision, relative to the largest decision, or to probability 1
_SAMPLE = 64  # support vectors on which that is measured
_NUMBERS = 1 << 22  # numbers of a block of differences
_MOST = 1 << 24  # numbers of the support vectors at most: an attribute is a list of objects before it is a file


def holds(
    X: Rows, weights: NDArray[np.float64], b: NDArray[np.float64], kernel: Kernel | None, steepness: float = 0.0
) -> bool:
    """True if a node can hold the model and agrees with double precision, measured on a sample of support vectors.

    Parameters
    ----------
    X : ndarray or CSR, shape (s, d)
        Support vectors.
    weights : ndarray, shape (s, p)
        Coefficients of p decisions.
    b : ndarray, shape (p,)
    kernel : Kernel or None
    steepness : float
        Largest change of a probability relative to that of a decision, since probabilities must agree as well.

    Notes
    -----
    With coefficients of size C, single precision loses about 6e-8 C sqrt(s) of a decision, which is near 1: with a
    large C the plain operators in double precision are needed. So they are without a bias, where the sign of a decision
    counts however small it is: kernel values of distant rows are 0 in single precision.
    """
    if not b.all() or kernel is None or kernel.kind not in _TYPES or not 0 < X.shape[0] * X.shape[1] <= _MOST:
        return False
    sample = np.asarray(dense(X[:: -(-X.shape[0] // _SAMPLE)]), np.float64)
    points = kernel.points(np.asarray(dense(X), np.float64))
    exact = kernel.block(kernel.points(sample, like=points), points) @ weights + b
    with np.errstate(all="ignore"):
        single = _single(kernel, sample, dense(X)) @ weights.astype(np.float32).astype(np.float64) + b.astype(
            np.float32
        )
        gap, scale = np.abs(single - exact).max(), np.abs(exact).max()
        return bool(gap <= _AGREES * scale and gap * steepness <= _AGREES)


def _single(kernel: Kernel, Z: NDArray[np.floating], A: NDArray[np.floating]) -> NDArray[np.float64]:
    """Kernel values as the nodes compute them, in float32, with squared distances from differences."""
    Z, A = Z.astype(np.float32), A.astype(np.float32)
    gamma, coef0 = np.float32(kernel.gamma), np.float32(kernel.coef0)
    if kernel.kind == "gaussian":
        step = max(1, _NUMBERS // A.size)
        near = [((Z[lo : lo + step, None] - A) ** 2).sum(axis=2) for lo in range(0, len(Z), step)]
        return np.asarray(np.exp(-gamma * np.concatenate(near)), np.float64)
    product = Z @ A.T
    if kernel.kind == "polynomial":
        product = (gamma * product + coef0) ** np.float32(kernel.degree)
    elif kernel.kind == "sigmoid":
        product = np.tanh(gamma * product + coef0)
    return np.asarray(product, np.float64)


def classifier(
    g: Graph, Z: Value, X: Rows, coef: NDArray[np.float64], b: NDArray[np.float64], counts: NDArray[np.int64],
    kernel: Kernel,
) -> tuple[Value, Value]:  # fmt: skip
    """An SVMClassifier: the index of each row's class, and the decisions of all pairs in float64.

    The arrays are those of :class:`casvm.model.part_svm.PartSVM`.
    """
    k = len(counts)
    codes, decisions = g.ops(
        "SVMClassifier", 2, g.cast(Z, np.float32), domain=ML, **_shared(g, X, kernel), coefficients=_list(coef),
        rho=_list(b), vectors_per_class=counts.tolist(), classlabels_ints=list(range(k)), post_transform="NONE",
    )  # fmt: skip
    decisions = g.cast(decisions, np.float64)
    return codes, g.columns(decisions, [1]) if k == 2 else decisions  # with two classes: the negative one stands first


def regressor(g: Graph, Z: Value, X: Rows, beta: NDArray[np.float64], b: NDArray[np.float64], kernel: Kernel) -> Value:
    """An SVMRegressor: the outputs of :class:`casvm.model.svr_model.PartSVR` in float64, shape (n, 1)."""
    values = g.op(
        "SVMRegressor", g.cast(Z, np.float32), domain=ML, **_shared(g, X, kernel), coefficients=_list(beta),
        rho=_list(b), n_supports=len(beta), post_transform="NONE",
    )  # fmt: skip
    return g.cast(values, np.float64)


def _shared(g: Graph, X: Rows, kernel: Kernel) -> dict[str, object]:
    g.reserve(4 * int(np.prod(X.shape)))
    return {
        "kernel_type": _TYPES[kernel.kind], "support_vectors": _list(dense(X)),
        "kernel_params": [kernel.gamma, kernel.coef0, float(kernel.degree)],
    }  # fmt: skip


def _list(values: NDArray[np.floating]) -> list[float]:
    return values.astype(np.float32).ravel().tolist()
