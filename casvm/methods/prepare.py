"""What all members of the family do first: labels, bounds of alpha, standardised rows, gamma as a number."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.comm import Communicator
from cacore.data.labels import Labelled, all_classes, class_factors, one_class
from cacore.data.rows import Rows, check_alike, is_sparse
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.io.fingerprints import fingerprint
from cacore.kernels import Kernel
from cacore.svm.problem import numeric_gamma
from casvm.options import Method, Options


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
        if options.ratio and method.partitioner is not None and not method.partitioner.balances_classes:
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


def _columns(
    train: Labelled, classes: NDArray[Any], options: Options, first: int, comm: Communicator
) -> dict[str, NDArray[Any]]:
    """What each row carries: the code of its class, its bound of alpha, its global number."""
    codes = np.searchsorted(classes, train.y).astype(np.int64)
    codes[codes == len(classes)] = 0  # a label of rows of weight 0 alone
    weights = np.ones(len(codes)) if train.weights is None else train.weights
    factor = class_factors(options.class_weight, codes, weights, len(classes), comm)
    return {"code": codes, "C": options.C * factor[codes] * weights, "row": np.arange(first, first + len(codes))}


def _standardized(train: Labelled, options: Options, comm: Communicator) -> tuple[Rows, Standardizer | None]:
    if not options.standardize:
        return train.X, None
    standardizer = Standardizer.fit(train.X, comm, train.weights)
    return standardizer.apply(train.X), standardizer


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
