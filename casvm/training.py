"""Training in parts: divide the rows, solve every part on its own. The frame of the methods that send nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import __version__, memory, threads
from cacore.checkpoint import fingerprint, remembered
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.rows import Rows, check_alike, is_sparse, nbytes
from cacore.shuffle import Shuffle
from cacore.standardize import Standardizer
from casvm.model import SVMModel
from casvm.options import Fit, Method, Options
from casvm.part import Learning, PartSVM, fit_part
from casvm.smo import Solution
from partition.redistribute import OwnedRows, assign_owners, redistribute
from partition.routing import Soft, gap

SOFT = Soft(4, 0.35)  # t in units of the mean gap d_2^2 - d_1^2 between the two nearest centres
_STATISTICS = ("iterations", "n_support", "objective", "gap", "seconds", "kernel_rows", "kernel_values")


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


def fit(method: Method, train: Labelled, options: Options, comm: Communicator) -> Fit:
    """Train one SVM a part (Algorithm 5 and its clustered relatives); a collective call.

    Parameters
    ----------
    method : Method
    train : Labelled
        This rank's rows; with standardisation or a partitioner they are taken from it.
    options : Options
    comm : Communicator

    Returns
    -------
    Fit

    Raises
    ------
    InputError
        On all ranks: options that make no sense, one class only, more parts than rows, memory that does not
        suffice, a checkpoint of another run.

    Notes
    -----
    A part costs what :func:`casvm.smo.solve` does; this rank's rows, and the kernel caches. Training
    sends nothing; partitioning sends nothing without a partitioner.
    """
    with comm.agreed():
        options.checked()
        if options.ratio and method.partitioner is None:
            raise InputError(f"ratio: {method.name} leaves the rows where they are, and does not balance classes")
        P = options.partitions or comm.size
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
            _open(method, train, columns["C"], options, comm)
        X, standardizer = _standardized(train, options, comm)
        kernel = options.kernel(numeric_gamma(X, options.gamma, comm))
    with comm.phase("partition"):
        parts, centers = _divide(method, X, columns, options, comm)
    with comm.agreed():
        _check_memory(parts, options)
    dtype, sparse = str(X.dtype), is_sparse(X)
    del X, train.X
    trained, solver, busy = _train(parts, kernel, options, comm)
    with comm.phase("predict"):
        centers, sizes, owners = _gathered(centers, parts, comm)
        soft = _soft(parts, centers, options, comm)
    route = "nearest" if len(sizes) == 1 else options.route
    model = SVMModel(
        method.name, route, classes, kernel, options.C, centers, sizes, owners, standardizer, dtype, soft, trained,
        {"sparse": sparse}, comm,
    )  # fmt: skip
    return _result(model, sizes, solver, busy, options, comm)


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
    factor = np.ones(len(classes))
    if options.class_weight == "balanced":
        count = comm.allreduce(np.bincount(codes, weights, len(classes)).astype(np.float64))
        factor = count.sum() / (len(classes) * count)
    elif options.class_weight is not None:
        factor = np.array([float(options.class_weight.get(code, 1.0)) for code in range(len(classes))])
    return {"code": codes, "C": options.C * factor[codes] * weights, "row": np.arange(first, first + len(codes))}


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


def _divide(
    method: Method, X: Rows, columns: dict[str, NDArray[Any]], options: Options, comm: Communicator
) -> tuple[OwnedRows, NDArray[np.float64] | None]:
    """Rows in parts, in the hands of their owners, and the parts' centres if all ranks know them."""
    P = options.partitions or comm.size
    if method.partitioner is None:
        return _deal(X, columns, P, options, comm), None
    chosen = {"ratio": True} if options.ratio else {}
    try:
        partitioner = method.partitioner(P, random_state=options.seed, **chosen)
    except TypeError as error:
        raise InputError(f"ratio: the partitioner of {method.name} does not balance classes") from error
    partitioner.fit(X, columns["code"] if getattr(partitioner, "ratio", False) else None, comm=comm)
    owners = assign_owners(partitioner.sizes_, comm.size, lambda m: m**1.7)
    order = {**columns, "order": Shuffle(comm.offset(X.shape[0])[1], options.seed).position(columns["row"])}
    parts = redistribute(X, partitioner.labels_, owners, comm, order, order="order")
    return parts, partitioner.centers_


def _deal(X: Rows, columns: dict[str, NDArray[Any]], P: int, options: Options, comm: Communicator) -> OwnedRows:
    """This rank's rows, dealt at random to its own parts: line 1 of Algorithm 5. Sends nothing."""
    lo, hi = P * comm.rank // comm.size, P * (comm.rank + 1) // comm.size
    n = X.shape[0]
    with comm.uncounted(), comm.agreed():
        if n < hi - lo:
            raise InputError(
                f"{hi - lo} parts of the {n} rows of rank {comm.rank}: every part needs a row; ask for fewer"
            )
    place = np.random.default_rng([options.seed, comm.rank]).permutation(n)
    cuts = [n * k // (hi - lo) for k in range(hi - lo + 1)]
    if hi - lo > 1:
        X, columns = X[place], {name: values[place] for name, values in columns.items()}
    return OwnedRows(np.arange(lo, hi), np.array(cuts, np.int64), X, columns)


def _check_memory(parts: OwnedRows, options: Options) -> None:
    need = nbytes(parts.X) + options.cache_bytes
    remedy = "use a smaller cache (--cache-gib), more ranks or --dtype float32"
    memory.require(need, options.memory_limit, "a rank's rows and its kernel cache", remedy)


def _train(
    parts: OwnedRows, kernel: Any, options: Options, comm: Communicator
) -> tuple[dict[int, PartSVM], dict[int, NDArray[np.float64]], float]:
    """Solve every part of this rank; models, statistics and seconds."""
    todo = sorted(parts, key=lambda part: part[1].start - part[1].stop)  # the largest first
    side_by_side = min(threads.current(), len(todo))
    learning = Learning(kernel, options.limits, options.cache_bytes // max(1, side_by_side))
    advance, lock = options.progress("training", len(todo)), threading.Lock()

    def train(part: int, rows: slice) -> dict[str, NDArray[Any]]:
        def work() -> dict[str, NDArray[Any]]:
            begun = time.perf_counter()
            columns = {name: values[rows] for name, values in parts.columns.items()}
            made, solutions = fit_part(parts.X[rows], columns["code"], columns["C"], columns["row"], learning)
            numbers = _statistics(made, solutions, time.perf_counter() - begun)
            support = np.searchsorted(np.sort(columns["row"]), made.rows)
            places = np.argsort(columns["row"], kind="stable")[support]
            kept = {name: value for name, value in vars(made).items() if name != "X"}
            return {**kept, "places": places, "statistics": numbers}

        done = remembered(options.checkpoint, f"part-{part:06d}", work)
        with lock:
            advance()
        return done

    trained: dict[int, PartSVM] = {}
    statistics: dict[int, NDArray[np.float64]] = {}
    with comm.phase("train"):
        begun = time.perf_counter()
        for (part, rows), done in zip(todo, _results(train, todo), strict=True):
            fields = {name: value for name, value in done.items() if name not in ("places", "statistics")}
            trained[part] = PartSVM(X=parts.X[rows][done["places"]], **fields)
            statistics[part] = done["statistics"]
        busy = time.perf_counter() - begun
    return dict(sorted(trained.items())), statistics, busy


def _results(work: Any, todo: list[tuple[int, slice]]) -> Iterator[Any]:
    yield from threads.in_order(work, todo)


def _statistics(part: PartSVM, solutions: list[Solution], seconds: float) -> NDArray[np.float64]:
    def total(name: str) -> float:
        return float(sum(getattr(one, name) for one in solutions))

    worst = max((one.gap for one in solutions), default=0.0)
    met = all(one.converged for one in solutions)
    counts = (total("kernel_rows"), total("kernel_values"))
    return np.array([total("iterations"), len(part.rows), total("objective"), worst, seconds, *counts, met])


def _gathered(
    centers: NDArray[np.float64] | None, parts: OwnedRows, comm: Communicator
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """All parts' centres, sizes and owners, on every rank: what routing needs."""
    numbers = comm.allgather(parts.parts)
    order = np.argsort(numbers)
    sizes = comm.allgather(np.diff(parts.bounds).astype(np.int64))[order]
    owners = comm.allgather(np.full(len(parts.parts), comm.rank))[order]
    if centers is None:
        mine = [np.asarray(parts.X[rows].mean(axis=0, dtype=np.float64)).ravel() for _, rows in parts]
        centers = comm.allgather(np.array(mine).reshape(-1, parts.X.shape[1]))[order]
    return centers, sizes, owners


def _soft(parts: OwnedRows, centers: NDArray[np.float64], options: Options, comm: Communicator) -> Soft | None:
    if options.route != "soft" or len(centers) == 1:
        return None
    return Soft(min(SOFT.k, len(centers)), SOFT.t * gap(parts.X, centers, comm))


def _open(method: Method, train: Labelled, C: NDArray[np.float64], options: Options, comm: Communicator) -> None:
    assert options.checkpoint is not None
    told = {
        name: value
        for name, value in vars(options).items()
        if name not in ("progress", "checkpoint", "memory_limit", "cache_bytes")
    }
    told |= {"limits": vars(options.limits), "method": method.name, "ranks": comm.size, "package": __version__}
    told |= {"features": train.X.shape[1], "dtype": str(train.X.dtype), "partitions": options.partitions or comm.size}
    told |= {"class_weight": repr(options.class_weight)}
    codes = np.array([float(hash_label(label)) for label in train.y]) if train.y.dtype.kind not in "biuf" else train.y
    told |= {"training rows": fingerprint(train.X, np.asarray(codes, np.float64), C, comm)}
    options.checkpoint.open(told, comm)


def hash_label(label: Any) -> int:
    """A number for a label that is none, the same in every process."""
    return int.from_bytes(blake2b(str(label).encode(), digest_size=6).digest(), "little")


def _result(
    model: SVMModel, sizes: NDArray[np.int64], statistics: dict[int, NDArray[np.float64]], busy: float,
    options: Options, comm: Communicator,
) -> Fit:  # fmt: skip
    """Every part's figures, on every rank."""
    table = np.zeros((len(sizes), len(_STATISTICS) + 1))
    for part, numbers in statistics.items():
        table[part] = numbers
    with comm.uncounted():
        table = comm.allreduce(table)
        every = comm.allgather(np.array([busy]))
    solver: dict[str, NDArray[Any]] = dict(zip(_STATISTICS, table[:, :-1].T, strict=True))
    for name in ("iterations", "n_support", "kernel_rows", "kernel_values"):
        solver[name] = solver[name].astype(np.int64)
    met = table[:, -1] > 0
    notes = []
    if not met.all():
        short, worst = np.count_nonzero(~met), solver["gap"].max()
        where = "the solver" if len(sizes) == 1 else f"{short} of {len(sizes)} parts"
        notes.append(
            f"{where} stopped after {solver['iterations'].sum():,} iterations at a violation of {worst:.3g}, "
            f"above tol = {options.limits.tol:g}: raise the limit, or scale the features"
        )
    return Fit(model, sizes, solver, bool(met.all()), every, notes)
