"""Training in parts: partition, choose sigma and lambda, solve every part. The frame of every method."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import grid, memory, threads
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import Dataset
from cacore.progress import silent
from cacore.rows import Rows, check_alike, nbytes
from cacore.shuffle import Shuffle
from cacore.standardize import Standardizer
from cakrr.local import Workspace, solve
from cakrr.model import ROUTES, KRRModel, PartModel
from cakrr.search import Judges, best_pair, grid_errors, hold_out, left_out
from partition import Partitioner
from partition.redistribute import OwnedRows, assign_owners, redistribute

ROWS_PER_PART = 8000
SELECTIONS = ("validation", "test")


@dataclass(frozen=True)
class Method:
    """A member of the family: how rows are divided, and which models answer.

    Attributes
    ----------
    name : str
    partitioner : type of Partitioner
    route : {"nearest", "all"}
    summary : str
        One line for the command's help.
    """

    name: str
    partitioner: type[Partitioner]
    route: str
    summary: str


@dataclass(frozen=True)
class Options:
    """What a training run can be told.

    Attributes
    ----------
    partitions : int or None
        P; None is one a rank, or as many as keep a part at 8,000 rows and its matrix inside the limit.
    sigma : tuple of float or None
        Widths to try; None is the square root of the number of features.
    lam : tuple of float
        Ridges to try.
    select : {"validation", "test"}
        Which rows judge a pair. "test" is the listings' rule, and leaks.
    validation_fraction : float
    route : str or None
        Other than the method's own.
    standardize : bool
    seed : int
    memory_limit : int
        Bytes a rank may use.
    progress : callable
        See :func:`cacore.progress.bar`.
    """

    partitions: int | None = None
    sigma: tuple[float, ...] | None = None
    lam: tuple[float, ...] = (1e-4,)
    select: str = "validation"
    validation_fraction: float = 0.1
    route: str | None = None
    standardize: bool = True
    seed: int = 0
    memory_limit: int = 1 << 62
    progress: Callable[[str, int], Callable[[], None]] = silent

    def checked(self) -> Options:
        """These options, if they make sense.

        Raises
        ------
        InputError
        """
        if self.partitions is not None and not (isinstance(self.partitions, Integral) and self.partitions >= 1):
            raise InputError(f"partitions = {self.partitions!r}: it must be a whole number of at least 1")
        if not 0 < self.validation_fraction < 1:
            raise InputError(f"validation fraction {self.validation_fraction:g}: it must lie between 0 and 1")
        if self.select not in SELECTIONS:
            raise InputError(f"select {self.select!r}: choose one of {', '.join(SELECTIONS)}")
        if self.route is not None and self.route not in ROUTES:
            raise InputError(f"route {self.route!r}: choose one of {', '.join(ROUTES)}")
        if self.sigma is not None:
            grid.checked(self.sigma, "sigma")
        grid.checked(self.lam, "lambda")
        return self


@dataclass
class Fit:
    """What training returns: the model, and what the report says about it."""

    model: KRRModel
    grid: list[dict[str, float | None]] = field(default_factory=list)
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    notes: list[str] = field(default_factory=list)


def fit(
    method: Method,
    train: Dataset,
    options: Options,
    comm: Communicator,
    test: Dataset | None = None,
    weights: NDArray[Any] | None = None,
) -> Fit:
    """Train one model a part (Algorithms 8 and 10); a collective call.

    Parameters
    ----------
    method : Method
    train : Dataset
        This rank's rows, which are taken from it: it is empty afterwards, so that the rows are not
        held twice while the matrices are.
    options : Options
    comm : Communicator
    test : Dataset, optional
        Looked at only with ``select="test"``.
    weights : ndarray, shape (n_local,), optional
        Positive weights of the rows.

    Returns
    -------
    Fit

    Raises
    ------
    InputError
        On all ranks: options that make no sense, more parts than rows, a matrix that cannot fit, one
        that is not positive definite.

    Notes
    -----
    m^2 d + m^3/3 flops a part and grid point; this rank's rows, and one matrix of its largest part.
    Training sends nothing; the grid's errors are one reduction, counted under "predict".
    """
    with comm.agreed():
        options.checked()
        y = train.target()
        if options.select == "test" and test is None:
            raise InputError("select test: there are no test rows; give --test, or use --select validation")
    with comm.phase("read"):
        check_alike(train.X, comm)
        told = [method.name, *(value for name, value in vars(options).items() if name != "progress")]
        facts = {
            "the parameters (their fingerprint)": zlib.crc32(repr(told).encode()),
            "sample_weight given (1) or not (0)": int(weights is not None),
        }
        comm.require_equal(facts)
        X, standardizer = _standardized(train, options, comm, weights)
        offset = _mean(y, weights, comm)
    columns = {"y": y - offset} if weights is None else {"y": y - offset, "weight": weights}
    with comm.phase("partition"):
        division = _divide(method, X, columns, options, comm)
        del X, y, columns
    workspace = Workspace(division.largest, division.parts.X.dtype)
    route = options.route or method.route
    judged = None if test is None else (test.X, test.y, standardizer, offset)
    sigma, lam, table, notes = _choose(division, route, options, workspace, comm, judged)
    model = KRRModel(
        method.name, route, sigma, lam, offset, division.centers, division.sizes, division.owners, standardizer,
        str(workspace.dtype),
    )  # fmt: skip
    with comm.phase("train"):
        seconds, failed = _train_parts(model, division.parts, workspace, options)
    comm.wait()
    with comm.phase("predict"), comm.agreed():
        if failed is not None:
            remedy = "a larger --lambda" + (" or --dtype float64" if model.dtype == "float32" else "")
            raise InputError(
                f"part {failed} ({division.sizes[failed]:,} rows): K + lambda m I is not positive definite at sigma "
                f"{sigma:g}, lambda {lam:g}; use {remedy}"
            )
    with comm.uncounted():
        seconds = comm.allreduce(seconds)
    model.comm = comm
    return Fit(model, table, seconds, notes)


@dataclass
class _Division:
    """Rows divided into parts, in the hands of their owners."""

    parts: OwnedRows
    centers: NDArray[np.float64]
    sizes: NDArray[np.int64]
    owners: NDArray[np.int64]

    @property
    def largest(self) -> int:
        """Rows of this rank's largest part."""
        return max((int(self.sizes[part]) for part in self.parts.parts), default=0)


def _divide(
    method: Method, X: Rows, columns: dict[str, NDArray[Any]], options: Options, comm: Communicator
) -> _Division:
    """Partition the rows and send them to the owners of their parts: lines 1 to 7 of Algorithm 10."""
    first, n = comm.offset(X.shape[0])
    # All ranks come to the same number: the limit is theirs together.
    with comm.agreed():
        P = options.partitions or default_parts(n, X.dtype.itemsize, options.memory_limit, comm.size)
    partitioner = method.partitioner(P, random_state=options.seed).fit(X, comm=comm)
    sizes = partitioner.sizes_
    owners = assign_owners(sizes, comm.size)
    with comm.agreed():
        _check_memory(sizes, X.dtype.itemsize, nbytes(X), options.memory_limit)
    # The rows of a part lie in shuffled order, so that its first ones are a random sample.
    columns = {**columns, "order": Shuffle(n, options.seed).position(np.arange(first, first + X.shape[0]))}
    parts = redistribute(X, partitioner.labels_, owners, comm, columns, order="order", consume=True)
    return _Division(parts, partitioner.centers_, sizes, owners)


def _choose(
    division: _Division,
    route: str,
    options: Options,
    workspace: Workspace,
    comm: Communicator,
    test: tuple[Rows, Any, Standardizer | None, float] | None,
) -> tuple[float, float, list[dict[str, float | None]], list[str]]:
    """Sigma, lambda and the grid's errors: the loop of Algorithm 10 around lines 9 to 22."""
    sigmas = options.sigma or (math.sqrt(division.centers.shape[1]),)
    if len(sigmas) * len(options.lam) == 1:
        return sigmas[0], options.lam[0], [], []
    fraction = options.validation_fraction if options.select == "validation" else 0.0
    parts = division.parts
    with comm.phase("partition" if fraction else "predict"):
        with comm.agreed():
            if fraction and division.sizes.max() < 2:
                raise InputError("parts of one row leave no rows to validate on; ask for fewer parts")
        if fraction:
            X, y, weights = hold_out(parts, fraction)
        else:
            assert test is not None
            X, y, standardizer, offset = test
            X, y = X if standardizer is None else standardizer.apply(X), y - offset
            weights = np.ones(len(y))
        judges = Judges.route(X, y, weights, division.centers, division.owners, route, comm)
    advance = options.progress("choosing sigma and lambda", len(sigmas) * len(parts.parts))
    errors, failed = grid_errors(
        parts,
        judges,
        len(division.sizes),
        fraction,
        sigmas,
        options.lam,
        workspace,
        options.memory_limit,
        comm,
        advance,
    )
    with comm.phase("predict"), comm.agreed():
        sigma, lam = best_pair(errors, sigmas, options.lam)
    note = left_out(failed, sigmas, options.lam)
    return sigma, lam, _table(errors, sigmas, options), [note] if note else []


def _train_parts(
    model: KRRModel, parts: OwnedRows, workspace: Workspace, options: Options
) -> tuple[NDArray[np.float64], int | None]:
    """Solve every part of this rank at the chosen pair: lines 9 to 12 of Algorithm 10. Sends nothing."""
    seconds, failed = np.zeros(len(model.sizes)), None
    advance = options.progress("training", len(parts.parts))
    kernel = model.kernel

    def train(part: int, rows: slice) -> tuple[NDArray[Any], bool]:
        begun = time.perf_counter()
        weights = parts.columns["weight"][rows] if "weight" in parts.columns else None
        points = kernel.points(parts.X[rows])
        alphas, solved = solve(points, parts.columns["y"][rows], kernel, (model.lam,), workspace, weights)
        seconds[part] = time.perf_counter() - begun
        advance()
        return alphas[0], solved[0]

    results = threads.in_order(train, list(parts), parallel=workspace.one_a_thread)
    for (part, rows), (alpha, solved) in zip(parts, results, strict=True):
        model.parts[part] = PartModel(parts.X[rows], alpha)
        failed = failed if solved else part
    return seconds, failed


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


def _check_memory(sizes: NDArray[np.int64], itemsize: int, rows: int, limit: int) -> None:
    """Refuse parts whose largest matrix does not fit beside this rank's rows."""
    largest, even = int(sizes.max()), sizes.sum() / len(sizes)
    remedy = "--dtype float32, more ranks or a larger --memory-limit"
    if limit > rows + itemsize:
        # Parts that are uneven now are taken to be as uneven when there are more of them.
        enough = math.ceil(sizes.sum() * (largest / even) / math.isqrt((limit - rows) // itemsize))
        remedy = f"more --partitions (about {enough}), {remedy}"
    what = f"the matrix of a part of {largest:,} rows, beside a rank's rows,"
    memory.require(largest * largest * itemsize + rows, limit, what, f"use {remedy}")


def _table(errors: NDArray[np.float64], sigmas: tuple[float, ...], options: Options) -> list[dict[str, float | None]]:
    """The report's grid."""
    on_test = options.select == "test"
    rows: list[dict[str, float | None]] = []
    for sigma, line in zip(sigmas, errors, strict=True):
        for lam, mse in zip(options.lam, line, strict=True):
            value = float(mse) if np.isfinite(mse) else None
            rows.append({
                "sigma": sigma, "lambda": lam,
                "validation_mse": None if on_test else value, "test_mse": value if on_test else None,
            })  # fmt: skip
    return rows
