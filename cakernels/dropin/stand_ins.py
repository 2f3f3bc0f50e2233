"""Stand-ins for the two compiled modules through which scikit-learn calls LIBSVM, for dense and for sparse rows.

scikit-learn's classes check their input, resolve gamma and class weights, evaluate callable kernels, warn and set their
attributes in Python. One function of a compiled module does the rest, with arrays and numbers only. Replacing these
functions leaves everything else to scikit-learn: parameters, attributes, pickles and messages are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cakernels.dropin import costs
from cakernels.dropin.calls import CallCounts, UnsuitedError
from cakernels.dropin.libsvm_problem import CLASSES, KERNELS, LibsvmModel, LibsvmProblem, Trained, Vector

Arrays: TypeAlias = "tuple[Rows | int, ...]"  # a trained model in the order that scikit-learn expects
Given = TypeVar("Given")

INDEFINITE = "the sigmoid kernel is not positive definite: another solver ends at another model"

_PREDICTING = ("support", "SV", "nSV", "sv_coef", "intercept", "probA", "probB")
_KERNEL_NAMES = (*KERNELS, "precomputed")
_SPARSE_TRAINING = (
    "n_features", "values", "indices", "indptr", "y", "svm_type", "kernel", "degree", "gamma", "coef0", "tol", "C",
    "class_weight", "sample_weight", "nu", "cache_size", "epsilon", "shrinking", "probability", "max_iter",
    "random_seed",
)  # fmt: skip
_SPARSE_PREDICTING = (
    "data", "indices", "indptr", "SV_data", "SV_indices", "SV_indptr", "sv_coef", "intercept", "svm_type", "kernel",
    "degree", "gamma", "coef0", "tol", "C", "class_weight", "nu", "epsilon", "shrinking", "probability", "nSV", "probA",
    "probB",
)  # fmt: skip
_SHAPE = ("svm_type", "kernel", "degree", "gamma", "coef0")
_PROBLEM = (
    *_SHAPE, "C", "nu", "epsilon", "tol", "class_weight", "sample_weight", "shrinking", "probability", "cache_size",
    "max_iter", "random_seed",
)  # fmt: skip


class _Library:
    """A compiled module whose other functions are left as they are.

    Parameters
    ----------
    original : module
    calls : CallCounts
    """

    def __init__(self, original: ModuleType, calls: CallCounts) -> None:
        self._original, self._calls = original, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def _train(
        self, svm_type: int, problem: Callable[[], LibsvmProblem], theirs: Callable[[], Arrays],
        order: Callable[[Trained], Arrays],
    ) -> Arrays:  # fmt: skip
        """Train the problem here or there; `order` turns our model into the tuple that is expected."""

        def ours() -> Arrays:
            asked = problem()
            self._calls.better_there(asked.kernel == "sigmoid", INDEFINITE)
            self._calls.worth(costs.of_training(asked))
            from cakernels.dropin.train import train

            return order(train(asked))

        return self._calls.call(f"{CLASSES[svm_type]}.fit", ours, theirs)

    def _predict(
        self, svm_type: int, name: str, what: Callable[[], tuple[LibsvmModel, Rows]], theirs: Callable[[], Vector]
    ) -> Vector:  # fmt: skip
        """Predict here, by the function of this name in :mod:`cakernels.dropin.train`, or there."""

        def ours() -> Vector:
            machine, X = what()
            self._calls.worth(costs.of_prediction(machine, X))
            from cakernels.dropin import train

            answer: Callable[[LibsvmModel, Rows], Vector] = getattr(train, name)
            return answer(machine, X)

        return self._calls.call(f"{CLASSES[svm_type]}.{_METHODS[name]}", ours, theirs)


_METHODS = {"answers": "predict", "decisions": "decision_function", "probabilities": "predict_proba"}


class Dense(_Library):
    """Stand-in for scikit-learn's ``_libsvm``."""

    def fit(self, X: Vector, Y: Vector, **options: Any) -> Arrays:
        """Train on dense rows, or on a kernel matrix."""

        def problem() -> LibsvmProblem:
            return LibsvmProblem(X=X, y=Y, **_checked_names(options, _PROBLEM))

        def order(trained: Trained) -> Arrays:
            return (
                trained.support, trained.vectors, trained.n_support, trained.coef, trained.intercept, trained.slopes,
                trained.shifts, trained.status, trained.iterations,
            )  # fmt: skip

        return self._train(options.get("svm_type", 0), problem, lambda: self._original.fit(X, Y, **options), order)

    def predict(self, X: Vector, *arrays: NDArray[np.generic], **options: Any) -> Vector:
        """Classes, numbered from 0, or values."""
        return self._decide("predict", "answers", X, arrays, options)

    def decision_function(self, X: Vector, *arrays: NDArray[np.generic], **options: Any) -> Vector:
        """Decisions of the pairs of classes, or values."""
        return self._decide("decision_function", "decisions", X, arrays, options)

    def predict_proba(self, X: Vector, *arrays: NDArray[np.generic], **options: Any) -> Vector:
        """Probabilities of the classes."""
        return self._decide("predict_proba", "probabilities", X, arrays, options)

    def _decide(
        self, function: str, name: str, X: Vector, arrays: tuple[NDArray[np.generic], ...], options: dict[str, Any]
    ) -> Vector:  # fmt: skip
        def what() -> tuple[LibsvmModel, Rows]:
            return _machine(_named(_PREDICTING, arrays), _checked_names(options, (*_SHAPE, "cache_size"))), X

        def theirs() -> Vector:
            original: Callable[..., Vector] = getattr(self._original, function)
            return original(X, *arrays, **options)

        return self._predict(options.get("svm_type", 0), name, what, theirs)


class Sparse(_Library):
    """Stand-in for scikit-learn's ``_libsvm_sparse``."""

    def libsvm_sparse_train(self, *arguments: Any) -> Arrays:
        """Train on CSR rows."""

        def problem() -> LibsvmProblem:
            named = _numbered(_named(_SPARSE_TRAINING, arguments))
            y = named.pop("y")
            values, indices, indptr, d = (named.pop(name) for name in _SPARSE_TRAINING[1:4] + _SPARSE_TRAINING[:1])
            X = _csr(values, indices, indptr, d)
            return LibsvmProblem(X=X, y=y, **named)

        def order(trained: Trained) -> Arrays:
            return (
                trained.support, trained.vectors, trained.coef.ravel(), trained.intercept, trained.n_support,
                trained.slopes, trained.shifts, trained.status, trained.iterations,
            )  # fmt: skip

        return self._train(arguments[5], problem, lambda: self._original.libsvm_sparse_train(*arguments), order)

    def libsvm_sparse_predict(self, *arguments: Any) -> Vector:
        """Classes, numbered from 0, or values."""
        return self._decide("libsvm_sparse_predict", "answers", arguments)

    def libsvm_sparse_decision_function(self, *arguments: Any) -> Vector:
        """Decisions of the pairs of classes, or values."""
        return self._decide("libsvm_sparse_decision_function", "decisions", arguments)

    def libsvm_sparse_predict_proba(self, *arguments: Any) -> Vector:
        """Probabilities of the classes."""
        return self._decide("libsvm_sparse_predict_proba", "probabilities", arguments)

    def _decide(self, function: str, name: str, arguments: tuple[Any, ...]) -> Vector:
        def what() -> tuple[LibsvmModel, Rows]:
            named = _numbered(_named(_SPARSE_PREDICTING, arguments))
            d = 1 + max(int(named[key].max(initial=-1)) for key in ("indices", "SV_indices"))
            X = _csr(named["data"], named["indices"], named["indptr"], d)
            named["SV"] = _csr(named["SV_data"], named["SV_indices"], named["SV_indptr"], d)
            s = named["SV"].shape[0]
            named["sv_coef"] = named["sv_coef"].reshape(len(named["nSV"]) - 1, s)
            named["support"] = np.arange(s, dtype=np.int32)  # not passed, and not needed
            return _machine(named, named), X

        return self._predict(arguments[8], name, what, lambda: getattr(self._original, function)(*arguments))


def _named(names: tuple[str, ...], arguments: tuple[Given, ...]) -> dict[str, Given]:
    if len(arguments) != len(names):
        raise UnsuitedError("this version of scikit-learn calls LIBSVM in another way")
    return dict(zip(names, arguments, strict=True))


def _checked_names(options: dict[str, Given], names: tuple[str, ...]) -> dict[str, Given]:
    """The arguments, if each of them is one of these names."""
    if not options.keys() <= set(names):
        raise UnsuitedError("this version of scikit-learn calls LIBSVM in another way")
    return options


def _numbered(named: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, with the kernel's name for its number."""
    return named | {"kernel": _KERNEL_NAMES[named["kernel"]]}


def _machine(arrays: dict[str, Any], shape: dict[str, Any]) -> LibsvmModel:
    return LibsvmModel(
        support=arrays["support"], vectors=arrays["SV"], n_support=arrays["nSV"], coef=arrays["sv_coef"],
        intercept=arrays["intercept"], slopes=arrays["probA"], shifts=arrays["probB"],
        **{name: shape[name] for name in _SHAPE if name in shape},
    )  # fmt: skip


def _csr(values: Vector, indices: NDArray[np.int32], indptr: NDArray[np.int32], d: int) -> sp.csr_matrix:
    """CSR rows of these arrays, which are not copied; a column that occurs twice in a row is added up."""
    X = sp.csr_matrix((values, indices, indptr), (len(indptr) - 1, d), copy=False)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X
