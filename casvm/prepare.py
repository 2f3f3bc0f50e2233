"""What all members of the family do first: labels, bounds of alpha, standardised rows, gamma as a number."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.checkpoint import fingerprint
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.rows import Rows, check_alike, is_sparse
from cacore.standardize import Standardizer
from casvm.options import Method, Options


@dataclass
class Labelled:
    """This rank's rows with their labels.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
    y : ndarray, shape (m,)
    weights : ndarray of float64, shape (m,), or None
    """

    X: Rows
    y: NDArray[Any]
    weights: NDArray[np.float64] | None = None


@dataclass
class Prepared:
    """This rank's rows, ready for training.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
        Standardised, if that was asked for.
    columns : dict of str to ndarray, shape (m,)
        "code" of the class, bound "C" of alpha, global number "row".
    classes : ndarray, shape (k,)
    kernel : Kernel
    standardizer : Standardizer or None
    P : int
        Parts.
    nonzeros : float
        Of a row, on average over all ranks.
    """

    X: Rows
    columns: dict[str, NDArray[Any]]
    classes: NDArray[Any]
    kernel: Kernel
    standardizer: Standardizer | None
    P: int
    nonzeros: float


def prepare(method: Method, train: Labelled, options: Options, comm: Communicator) -> Prepared:
    """Check and prepare; takes the rows from `train`. Collective.

    Raises
    ------
    InputError
        On all ranks: options that make no sense, one class only, fewer parts than ranks, a checkpoint of another run.
    """
    with comm.agreed():
        options.checked()
        if options.ratio and method.partitioner is None:
            raise InputError(f"ratio: {method.name} leaves the rows where they are, and does not balance classes")
        if options.ratio and method.partitioner is not None and not hasattr(method.partitioner(1), "ratio"):
            raise InputError(f"ratio: the partitioner of {method.name} does not balance classes")
        P = options.partitions or comm.size
        if method.whole and comm.size != P:
            raise InputError(
                f"partitions = {P} on {comm.size} ranks: {method.name} solves one problem, of which every rank "
                "holds a share; leave the option out"
            )
        if comm.size > P:
            raise InputError(
                f"partitions = {P} on {comm.size} ranks: every rank needs a part; ask for {comm.size} or more"
            )
    with comm.phase("read"):
        check_alike(train.X, comm)
        comm.require_equal({"sample_weight given (1) or not (0)": int(train.weights is not None)})
        classes = all_classes(train.y if train.weights is None else train.y[train.weights > 0], comm)
        with comm.agreed():
            if len(classes) < 2:
                raise InputError(one_class(classes))
        first, _ = comm.offset(train.X.shape[0])
        columns = _columns(train, classes, options, first, comm)
        if options.checkpoint is not None:
            _open(method, train, columns["C"], P, options, comm)
        if train.weights is not None:  # rows of weight 0 count as absent
            kept = np.flatnonzero(train.weights > 0)
            train.X, train.weights = train.X[kept], train.weights[kept]
            columns = {name: values[kept] for name, values in columns.items()}
        X, standardizer = _standardized(train, options, comm)
        kernel = options.kernel(numeric_gamma(X, options.gamma, comm))
        with comm.uncounted():
            count = X.nnz if is_sparse(X) else np.count_nonzero(X)
            total, rows = comm.allreduce(np.array([count, X.shape[0]], np.int64)).tolist()
    del train.X
    return Prepared(X, columns, classes, kernel, standardizer, P, total / rows)


def one_class(classes: NDArray[Any]) -> str:
    """One line about labels of fewer than two classes."""
    if not len(classes):
        return "Sample weights must contain at least one non-zero number."
    return f"the labels must be of at least 2 classes; there is one class only, {classes[0]}"


def all_classes(y: NDArray[Any], comm: Communicator) -> NDArray[Any]:
    """Labels that occur on any rank, ascending, of one type on all of them."""
    mine = np.unique(y)
    if comm.size == 1:
        return mine
    text = np.frombuffer((json.dumps(mine.tolist()) + "\n").encode(), np.uint8)
    lines = comm.allgather(text).tobytes().decode().splitlines()
    return np.unique([label for line in lines for label in json.loads(line)])


def _columns(
    train: Labelled, classes: NDArray[Any], options: Options, first: int, comm: Communicator
) -> dict[str, NDArray[Any]]:
    """What each row carries: the code of its class, its bound of alpha, its global number."""
    codes = np.searchsorted(classes, train.y).astype(np.int64)
    codes[codes == len(classes)] = 0  # a label of rows of weight 0 alone
    weights = np.ones(len(codes)) if train.weights is None else train.weights
    factor = class_factors(options.class_weight, codes, weights, len(classes), comm)
    return {"code": codes, "C": options.C * factor[codes] * weights, "row": np.arange(first, first + len(codes))}


def class_factors(
    class_weight: Any, codes: NDArray[np.int64], weights: NDArray[np.float64], k: int, comm: Communicator
) -> NDArray[np.float64]:
    """What C is multiplied by for each of the k classes; "balanced" counts all ranks' rows, by weight."""
    if class_weight == "balanced":
        count = comm.allreduce(np.bincount(codes, weights, k).astype(np.float64))
        return np.asarray(count.sum() / (k * count))
    return np.array([1.0 if class_weight is None else class_weight.get(code, 1.0) for code in range(k)])


def _standardized(train: Labelled, options: Options, comm: Communicator) -> tuple[Rows, Standardizer | None]:
    if not options.standardize:
        return train.X, None
    standardizer = Standardizer.fit(train.X, comm, train.weights)
    return standardizer.apply(train.X), standardizer


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


def _open(
    method: Method, train: Labelled, C: NDArray[np.float64], P: int, options: Options, comm: Communicator
) -> None:
    assert options.checkpoint is not None
    told = {
        name: value
        for name, value in vars(options).items()
        if name not in ("progress", "checkpoint", "memory_limit", "cache_bytes")
    }
    told |= {"limits": vars(options.limits), "method": method.name, "ranks": comm.size, "package": __version__}
    told |= {"features": train.X.shape[1], "dtype": str(train.X.dtype), "partitions": P}
    told |= {"class_weight": repr(options.class_weight)}
    codes = np.array([float(hash_label(label)) for label in train.y]) if train.y.dtype.kind not in "biuf" else train.y
    told |= {"training rows": fingerprint(train.X, np.asarray(codes, np.float64), C, comm)}
    options.checkpoint.open(told, comm)


def hash_label(label: Any) -> int:
    """A number for a label that is none, the same in every process."""
    return int.from_bytes(blake2b(str(label).encode(), digest_size=6).digest(), "little")
