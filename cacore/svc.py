"""What the kernel SVMs of all families share: parameters, of a command and of a classifier, and decisions."""

from __future__ import annotations

import argparse
import math
from itertools import combinations
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from cacore import threads
from cacore.columns import Layout
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import KINDS, Kernel, Points
from cacore.labels import Labelled
from cacore.memory import GIB
from cacore.rows import Rows, is_sparse
from cacore.threads import blocks, for_blocks
from cacore.validation import checked_weights, validated

ALIASES = {"rbf": "gaussian", "poly": "polynomial"}
_KINDS = ("float64", "float32")
_SMALL = 2000, 100_000  # rows, and numbers in them, whose kernel values cost next to nothing in double precision
_BLOCK_BYTES = 1 << 25


def add_problem_options(p: argparse.ArgumentParser) -> None:
    """Options of the dual problem and its solver."""
    p.add_argument("--C", metavar="C", type=float, default=1.0, help="bound of the coefficients alpha")
    p.add_argument("--kernel", choices=KINDS, default="gaussian")
    p.add_argument("--gamma", metavar="G", default="scale", help="number, scale = 1 / (features x variance), or auto")
    p.add_argument("--degree", metavar="D", type=int, default=3, help="of the polynomial kernel")
    p.add_argument("--coef0", metavar="R", type=float, default=0.0, help="of the polynomial and sigmoid kernels")
    p.add_argument("--tol", metavar="T", type=float, default=1e-3, help="largest violation at which training stops")
    p.add_argument("--cache-gib", metavar="GIB", type=float, default=1.0, help="of kernel values that a rank keeps")
    p.add_argument("--max-iter", metavar="N", type=int, default=-1, help="pairs a part's solver may take")
    p.add_argument("--max-time", metavar="S", type=float, default=float("inf"), help="seconds it may take")
    p.add_argument("--balanced", action="store_true", help="weigh the classes so that each counts as much")


def gamma_option(args: argparse.Namespace) -> float | str:
    """``--gamma`` as a number, "scale" or "auto"."""
    try:
        return str(args.gamma) if args.gamma in ("scale", "auto") else float(args.gamma)
    except ValueError as error:
        raise InputError(f"--gamma {args.gamma}: it must be a positive number, scale or auto") from error


def cache_option(args: argparse.Namespace) -> int:
    """``--cache-gib`` in bytes."""
    if not 0 <= args.cache_gib < float("inf"):
        raise InputError(f"--cache-gib {args.cache_gib:g}: it must be a number of at least 0")
    return cache_bytes(args.cache_gib)


def cache_bytes(gib: float) -> int:
    """Of so many GiB; more than there can be is as much as there can be."""
    return int(min(gib * GIB, 2.0**62))


def described(C: float, kernel: Kernel) -> dict[str, Any]:
    """C and the kernel's parameters for a report."""
    told: dict[str, Any] = {"C": C, "kernel": kernel.kind}
    if kernel.kind != "linear":
        told["gamma"] = kernel.gamma
    if kernel.kind in ("polynomial", "sigmoid"):
        told["coef0"] = kernel.coef0
    if kernel.kind == "polynomial":
        told["degree"] = kernel.degree
    return told


def check_problem(C: float, kind: str, gamma: float | str, degree: int, coef0: float) -> None:
    """Refuse parameters of the kernel SVM that make no sense.

    Raises
    ------
    InputError
    """
    text = isinstance(gamma, str)
    checks = (
        (_positive(C), f"C = {C:g}: it must be a positive number"),
        (kind in KINDS, f"kernel {kind!r}: choose one of {', '.join(KINDS)}"),
        (
            gamma in ("scale", "auto") if text else _positive(gamma),
            f"gamma = {gamma!r}: it must be a positive number, 'scale' or 'auto'",
        ),
        (whole(degree, 0), f"degree = {degree!r}: it must be a whole number of at least 0"),
        (math.isfinite(coef0), f"coef0 = {coef0:g}: it must be a finite number"),
    )
    for good, message in checks:
        if not good:
            raise InputError(message)


def whole(value: Any, least: int, may_be_none: bool = False) -> bool:
    """Whether this is a whole number of at least `least`."""
    return (value is None and may_be_none) or (isinstance(value, Integral) and int(value) >= least)


def _positive(value: Any) -> bool:
    return math.isfinite(value) and value > 0


def numeric_gamma(X: Rows, gamma: float | str, comm: Communicator) -> float:
    """Gamma as a number; "scale" is one Allreduce of 3 numbers."""
    if not isinstance(gamma, str):
        return float(gamma)
    if gamma == "auto":
        return 1.0 / X.shape[1]
    values = X.data if is_sparse(X) else X
    shift = float(comm.bcast(np.array([values.flat[0] if values.size and not is_sparse(X) else 0.0]))[0])
    about = values.ravel() - shift if not is_sparse(X) else values
    count = X.shape[0] * X.shape[1]
    total, square, count = comm.allreduce(
        np.array([about.sum(dtype=np.float64), np.einsum("i,i->", about, about, dtype=np.float64), count])
    )
    variance = square / count - (total / count) ** 2
    return float(1.0 / (X.shape[1] * variance)) if variance > 0 else 1.0


def precision(n: int, sample: Rows, kernel: Kernel, C: float, tol: float) -> Any:
    """float64 for few rows, and where the rounding of C K_ij in single precision comes near the tolerance.

    `n` rows, of which `sample` is a part; `C` is the largest bound.
    """
    if n <= _SMALL[0] and n * sample.shape[1] <= _SMALL[1]:
        return np.float64
    largest = float(np.abs(kernel.diagonal(sample)).max())
    return np.float64 if 8 * np.finfo(np.float32).eps * C * largest > tol else np.float32


def expansion(kernel: Kernel, A: Rows, weights: NDArray[np.float64], X: Rows) -> NDArray[np.float64]:
    """``K(X, A) @ weights`` for support vectors `A` and weights, shape (len(A), k), on all threads.

    2 len(X) nnz(A) flops; the memory of a block of rows beside the result, shape (len(X), k).
    """
    out = np.zeros((X.shape[0], weights.shape[1]))
    layout = Layout.of(A, kernel, X.dtype)
    points = layout.rows(A)
    step = max(1024, _BLOCK_BYTES // (8 * max(X.shape[1], len(points) if weights.shape[1] > 1 else 1)))
    # A block of rows a task where there are many, and threads within a block where there is one.
    for_blocks(lambda lo, hi: _decide(layout, kernel, points, weights, X[lo:hi], out[lo:hi]), blocks(X.shape[0], step))
    return out


def _decide(
    layout: Layout, kernel: Kernel, A: Points, weights: NDArray[np.float64], X: Rows, out: NDArray[np.float64]
) -> None:
    columns = layout.columns(X)
    tasks = columns.tasks(2 * threads.current())
    if weights.shape[1] == 1:
        total = np.zeros(X.shape[0])
        given = np.ascontiguousarray(weights[:, 0])
        for_blocks(lambda lo, hi: columns.add(kernel, A, lo, hi, given, total), tasks)
        out[:, 0] = total
        return
    K = np.empty((len(A), X.shape[0]), layout.dtype)
    for_blocks(lambda lo, hi: columns.add(kernel, A, lo, hi, store=K), tasks)
    out[:] = K.T @ weights


def counted(decisions: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Scores of k classes from the decisions of all their pairs: votes, and how clear they were."""
    votes, sure = np.zeros((2, len(decisions), k))
    for column, (i, j) in enumerate(combinations(range(k), 2)):
        first = decisions[:, column] > 0
        votes[:, i] += first
        votes[:, j] += ~first
        sure[:, i] += decisions[:, column]
        sure[:, j] -= decisions[:, column]
    return votes + sure / (3.0 * (np.abs(sure) + 1.0))


def votes(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Class of each row, from one model's scores: the most votes, the lower class of equals.

    A decision of 0 is for the second class of a pair, as in LIBSVM.
    """
    if scores.shape[1] == 1:
        return (scores[:, 0] >= 0).astype(np.int64)
    return np.rint(scores).argmax(axis=1)


class KernelClassifier(ClassifierMixin, BaseEstimator):
    """Checks of parameters, rows and labels that the scikit-learn classifiers share."""

    C: Any
    kernel: Any
    gamma: Any
    degree: Any
    coef0: Any
    tol: Any
    cache_gib: Any
    max_iter: Any
    max_time: Any
    class_weight: Any
    model_: Any

    def _kernel_name(self, kernel: Any) -> str:
        """The package's name of `kernel`, if the other parameters are numbers where they have to be."""
        if not isinstance(kernel, str):
            raise InputError(f"kernel {kernel!r}: give the name of one")
        for name in ("C", "gamma", "degree", "coef0", "tol", "cache_gib", "max_iter", "max_time"):
            value = getattr(self, name)
            usual = (name == "gamma" and isinstance(value, str)) or (name == "max_time" and value is None)
            if not (usual or isinstance(value, Real)):
                raise InputError(f"{name} = {value!r}: it must be a number")
        if not 0 <= self.cache_gib < float("inf"):
            raise InputError(f"cache_gib = {self.cache_gib:g}: it must be a number of at least 0")
        return ALIASES.get(kernel, kernel)

    def _seconds(self) -> float:
        return float("inf") if self.max_time is None else self.max_time

    def _class_weight(self, classes: NDArray[Any]) -> Any:
        if self.class_weight is None or self.class_weight == "balanced":
            return self.class_weight
        if not isinstance(self.class_weight, dict):
            raise InputError(f"class_weight {self.class_weight!r}: give a dict, 'balanced' or None")
        known = dict(zip(classes.tolist(), range(len(classes)), strict=True))
        unknown = [label for label in self.class_weight if label not in known]
        if unknown:
            raise InputError(f"class_weight: there is no class {unknown[0]!r} among the labels")
        for label, weight in self.class_weight.items():
            if not (isinstance(weight, Real) and 0 < float(weight) < float("inf")):
                raise InputError(f"class_weight of {label!r} = {weight!r}: it must be a positive number")
        return {known[label]: float(weight) for label, weight in self.class_weight.items()}

    def _checked(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, least: int = 1) -> Labelled:
        X, y = validated(
            self, X, y, accept_sparse="csr", dtype=_KINDS, order="C", accept_large_sparse=False,
            ensure_min_samples=least,
        )  # fmt: skip
        try:
            check_classification_targets(y)
            y = column_or_1d(y, warn=True)
        except ValueError as error:
            raise InputError(str(error)) from error
        return Labelled(X, np.asarray(y), None if sample_weight is None else checked_weights(sample_weight, X.shape[0]))

    def _rows(self, X: Any, least: int = 1) -> Any:
        """Rows to predict, as the model has them."""
        check_is_fitted(self, "model_")
        return validated(
            self, X, reset=False, accept_sparse="csr", dtype=self.model_.dtype, order="C", accept_large_sparse=False,
            ensure_min_samples=least,
        )  # fmt: skip

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
