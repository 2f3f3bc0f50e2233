"""What every method does first: check, standardise, centre, and take up a checkpoint."""

from __future__ import annotations

import math
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.comm import Communicator
from cacore.data.rows import Rows, check_alike
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.io import Dataset
from cacore.io.fingerprints import fingerprint
from cacore.machine import memory, threads
from cakrr.options import Method, Options

ROWS_PER_PART = 8000


@dataclass
class Prepared:
    """This rank's rows, ready to be learnt from.

    Attributes
    ----------
    X : ndarray or CSR, shape (n_local, d)
        Standardised.
    columns : dict of str to ndarray
        "y", centred, and "weight", if there are weights.
    offset : float
        Mean of the targets.
    standardizer : Standardizer or None
    test : Dataset or None
    partitions : int
        P.
    """

    X: Rows
    columns: dict[str, NDArray[Any]]
    offset: float
    standardizer: Standardizer | None
    test: Dataset | None
    partitions: int

    def test_rows(self) -> tuple[Rows, NDArray[np.float64], NDArray[np.float64]]:
        """Test rows, standardised, their centred targets, and weights of 1."""
        assert self.test is not None
        X, y = self.test.X, self.test.target() - self.offset
        return X if self.standardizer is None else self.standardizer.apply(X), y, np.ones(len(y))


def prepare(
    method: Method,
    train: Dataset,
    options: Options,
    comm: Communicator,
    test: Dataset | None,
    weights: NDArray[Any] | None,
) -> Prepared:
    """Check what is given, on all ranks alike, and take the rows; collective."""
    with comm.agreed():
        options.checked(method)
        y = train.target()
        if options.select == "test" and test is None:
            raise InputError("select test: there are no test rows; give --test, or use --select validation")
    with comm.phase("read"):
        check_alike(train.X, comm)
        told = _told(method, options)
        facts = {
            "the parameters (their fingerprint)": zlib.crc32(repr(told).encode()),
            "sample_weight given (1) or not (0)": int(weights is not None),
        }
        comm.require_equal(facts)
        n = comm.offset(train.X.shape[0])[1]
        # All ranks come to the same number: the limit is theirs together.
        with comm.agreed():
            known = options.checkpoint.fact("partitions") if options.checkpoint is not None else None
            P = (
                options.partitions
                or known
                or (
                    default_parts(n, train.X.dtype.itemsize, options.memory_limit, comm.size)
                    if method.partitioner
                    else 1
                )
            )
        if options.checkpoint is not None:
            # What memory is free differs from run to run, and decides about P alone, which is told.
            del told["memory_limit"]
            told |= {"partitions": P, "ranks": comm.size, "threads": threads.current(), "features": train.X.shape[1]}
            told |= {"dtype": str(train.X.dtype), "training rows": fingerprint(train.X, train.target(), weights, comm)}
            told |= {"package": __version__}
            if method.coarse:
                told["coarse tried"] = options.coarse.tried(n, train.X.shape[1])
            if options.select == "test" and test is not None:
                told["test rows"] = fingerprint(test.X, test.target(), None, comm)
            options.checkpoint.open(told, comm)
        X, standardizer = _standardized(train, options, comm, weights)
        offset = _mean(y, weights, comm)
    columns = {"y": y - offset} if weights is None else {"y": y - offset, "weight": weights}
    return Prepared(X, columns, offset, standardizer, test, P)


def default_parts(n: int, itemsize: int, limit: int, ranks: int) -> int:
    """One part a rank, or as many as keep a part at 8,000 rows and its matrix inside the limit.

    Raises
    ------
    MemoryLimitError
        Where parts of 500 rows do not fit: so little memory is a mistake, not a setting.
    """
    least = min(n, 500)
    memory.require(
        least * least * itemsize, limit, f"the matrix of a part of {least} rows", "free some, or set --memory-limit"
    )
    most = min(ROWS_PER_PART, max(least, math.isqrt(int(limit / 1.15) // itemsize)))
    return min(n, max(ranks, -(-n // most)))


def _told(method: Method, options: Options) -> dict[str, Any]:
    """The options that decide about the result."""
    values = {name: value for name, value in vars(options).items() if name not in ("progress", "checkpoint", "coarse")}
    return {"method": method.name, **values, **{f"coarse {k}": v for k, v in asdict(options.coarse).items()}}


def _standardized(
    train: Dataset, options: Options, comm: Communicator, weights: NDArray[Any] | None
) -> tuple[Rows, Standardizer | None]:
    X = train.X
    train.X = np.empty((0, X.shape[1]), X.dtype)
    if not options.standardize:
        return X, None
    standardizer = Standardizer.fit(X, comm, weights)
    return standardizer.apply(X, in_place=True), standardizer


def _mean(y: NDArray[Any], weights: NDArray[Any] | None, comm: Communicator) -> float:
    w = np.ones(len(y)) if weights is None else weights
    total = comm.allreduce(np.array([w @ y, w.sum()]))
    return float(total[0] / total[1])
