"""Kernel values, solution and prediction of scikit-learn's KernelRidge on all cores, in little memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from cakernels.dropin.calls import CallCounts, UnsuitedError

if TYPE_CHECKING:
    from sklearn.kernel_ridge import KernelRidge

    from cacore.data.rows import Rows


Array = NDArray[np.floating]
Metric: TypeAlias = "str | Callable[..., float]"

# scikit-learn's names of the kernels that this package evaluates, and its own.
KERNELS = {
    "linear": "linear", "poly": "polynomial", "polynomial": "polynomial", "rbf": "gaussian", "laplacian": "l1",
    "sigmoid": "sigmoid",
}  # fmt: skip
LEAST_VALUES = 1_000_000  # kernel values below which scikit-learn's own code is as fast
LEAST_ROWS = 1000  # likewise, rows of a system to solve
_SECONDS = 2e-8  # processor seconds of scikit-learn per kernel value, roughly

_FIT, _PREDICT = "KernelRidge.fit", "KernelRidge.predict"
_KERNEL = "KernelRidge's kernel"


def kernels(original: Callable[..., Array], calls: CallCounts) -> Callable[..., Array]:
    """Stand-in for ``pairwise_kernels``: the kernel matrix, computed on all threads."""

    @wraps(original)
    def pairwise_kernels(X: Rows, Y: Rows | None = None, metric: Metric = "linear", **options: Any) -> Array:
        if isinstance(metric, str) and metric == "precomputed":
            return original(X, Y, metric=metric, **options)

        def ours() -> Array:
            from cakernels.dropin.system import kernel_matrix

            if {"filter_params", "gamma", "degree", "coef0"} != options.keys():
                raise UnsuitedError(f"kernel {_metric_name(metric)}")
            parameters = _parameters(metric, options["gamma"], options["degree"], options["coef0"], X)
            values = X.shape[0] * (X if Y is None else Y).shape[0]
            calls.small(values, LEAST_VALUES, "kernel values")
            calls.worth_loading(_SECONDS * values)
            return kernel_matrix(X, Y, *parameters, single=_single(metric, X, Y))

        return calls.call(_KERNEL, ours, lambda: original(X, Y, metric=metric, **options))

    return pairwise_kernels


def solver(original: Callable[..., Array], calls: CallCounts) -> Callable[..., Array]:
    """Stand-in for ``_solve_cholesky_kernel``: the dual coefficients, by a Cholesky factorisation in place."""

    @wraps(original)
    def solve_cholesky_kernel(
        K: Array, y: Array, alpha: ArrayLike, sample_weight: float | Array | None = None, copy: bool = False
    ) -> Array:
        theirs: Callable[[], Array] = partial(original, K, y, alpha, sample_weight, copy)

        def ours() -> Array:
            nonlocal theirs
            if not isinstance(K, np.ndarray):
                raise UnsuitedError("a sparse matrix of kernel values")
            calls.small(len(K), LEAST_ROWS, "rows")
            calls.worth_loading(len(K) ** 3 / 6e10)
            from cakernels.dropin.system import System

            system = System(K, y, alpha, sample_weight, copy)
            theirs = partial(system.solve_there, original)  # from then on K may have changed
            return system.solve()

        return calls.call(_FIT, ours, lambda: theirs())

    return solve_cholesky_kernel


def predictor(original: Callable[..., Array], calls: CallCounts) -> Callable[..., Array]:
    """Stand-in for ``KernelRidge.predict``: by blocks of rows, without storing all kernel values."""

    @wraps(original)
    def predict(self: KernelRidge, X: Rows) -> Array:
        def ours() -> Array:
            from sklearn.utils.validation import validate_data

            from cakernels.dropin.system import predictions

            train = getattr(self, "X_fit_", None)
            if train is None or callable(self.kernel):
                raise UnsuitedError("a callable kernel" if train is not None else "the model is not fitted")
            parameters = _parameters(self.kernel, self.gamma, self.degree, self.coef0, train)
            n = X.shape[0] if hasattr(X, "shape") and len(X.shape) == 2 else 0
            calls.small(n * train.shape[0], LEAST_VALUES, "kernel values")
            calls.worth_loading(_SECONDS * n * train.shape[0])
            try:
                rows = validate_data(self, X, accept_sparse=("csr", "csc"), reset=False)
            except (TypeError, ValueError) as error:
                raise UnsuitedError("rows that it refuses") from error
            return predictions(rows, train, *parameters, self.dual_coef_, _single(self.kernel, rows, train))

        return calls.call(_PREDICT, ours, lambda: original(self, X))

    return predict


def _metric_name(metric: Metric) -> str:
    return metric if isinstance(metric, str) else "given as a callable"


def _parameters(
    metric: Metric, gamma: float | None, degree: float, coef0: float, X: Rows
) -> tuple[str, float, int, float]:
    """Name and parameters of the kernel in this package's terms."""
    if not isinstance(metric, str) or metric not in KERNELS:
        raise UnsuitedError(f"kernel {_metric_name(metric)}")
    name = KERNELS[metric]
    if name == "polynomial" and not (isinstance(degree, Integral) or float(degree).is_integer()):
        raise UnsuitedError(f"a degree of {degree}")
    return name, 1.0 / X.shape[1] if gamma is None else float(gamma), int(degree), float(coef0)


def _single(metric: Metric, X: Rows, Y: Rows | None) -> bool:
    """True if scikit-learn's kernel values are float32: those of float32 rows, except of the l1 distance."""
    rows = (X,) if Y is None else (X, Y)
    return metric != "laplacian" and all(_floating(points) == np.float32 for points in rows)


def _floating(X: Rows) -> np.dtype[np.generic]:
    return X.dtype if sp.issparse(X) or isinstance(X, np.ndarray) else np.dtype(np.float64)
