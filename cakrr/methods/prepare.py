"""The first steps of every method: check, standardise, centre and divide the rows, and open the checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.comm import Communicator
from cacore.comm.alike import canonical
from cacore.data.dataset import Dataset, Samples
from cacore.data.encoding import FIRST_LEVEL
from cacore.data.labels import all_classes, class_codes, class_factors, require_classes
from cacore.data.metric import change, check_features, root_of
from cacore.data.resolution import check_resolved, check_steps
from cacore.data.rows import LARGEST_TARGET, AnyRows, check_squares, check_targets, dense, is_sparse, nbytes
from cacore.data.standardize import Root, Standardizer, mapped, normal_scores, quantiles_of, relative
from cacore.data.stored import StoredRows, is_stored, scaled_in_file
from cacore.errors import InputError
from cacore.io.fingerprints import fingerprint
from cacore.kernels.registry import named
from cacore.machine import memory, threads
from cakrr.options import CATEGORIES, LEVELS, ClassOptions, GridOptions, RidgeMethod, RidgeOptions
from cakrr.ridge_predictor import Offset
from cakrr.solver.local import Workspace
from partition.algorithms import divide
from partition.redistribute import Parts, assign_owners, hand_out, order_of

ROWS_PER_PART = 8000  # by default at most: a matrix of 512 MB in double precision, and 1.7e11 flops per pair
_COPIES = 3  # copies of the rows of a part that is read from a file: shifted, and packed for products
_COLUMN_BYTES = 48  # memory per row stored in a file: target, residual, place and coefficient
# RidgeOptions for storage, saved data and time limits, which do not affect the result.
WHERE = ("scratch", "max_time", "keep_factors", "out_of_core")


@dataclass
class RidgeRows:
    """The training rows, checked, standardised and centred, with facts about them that every method needs.

    Attributes
    ----------
    samples : Samples
        This rank's rows, standardised, with the columns "y", centred, shape (n_local,) or (n_local, t), and "weight",
        if there are weights.
    offset : float or ndarray, shape (t,)
        Mean of the targets.
    scale : ndarray, shape (t,)
        Unit of each target's errors in the choice of sigma and lambda.
    classes : ndarray, shape (k,), or None
        The labels, if targets are class indicators.
    standardizer : Standardizer or None
    test : Dataset or None
    partitions : int
        P.
    scaling : {"deviation", "quantile"}
        Scaling applied to the features.
    """

    samples: Samples
    offset: Offset
    scale: NDArray[np.float64]
    classes: NDArray[np.generic] | None
    standardizer: Standardizer | None
    test: Dataset | None
    partitions: int
    scaling: str = "deviation"

    def piece(self, name: str, number: int, options: RidgeOptions) -> str:
        """Name in the checkpoint of a piece of round `number` on these rows."""
        name = f"{options.kernel}-{name}" if options.of_several else name
        name = f"{self.scaling}-{name}" if options.scaling == "auto" else name
        return f"round-{number}-{name}" if number else name

    def test_rows(self, standardizer: Standardizer | None) -> tuple[AnyRows, NDArray[np.float64], NDArray[np.float64]]:
        """Standardised test rows, their centred targets, and weights of 1."""
        assert self.test is not None
        X, y = self.test.X, self.test.target()
        if self.classes is not None:
            y = indicators(class_codes(y, self.classes), len(self.classes))
        y = y - self.offset
        return X if standardizer is None else standardizer.apply(X), y, np.ones(len(y))


def prepare(
    method: RidgeMethod, train: Dataset, options: RidgeOptions, comm: Communicator, test: Dataset | None
) -> RidgeRows:
    """Check the options and the rows, with the same result on all ranks, and take the rows; collective."""
    with comm.agreed():
        options.checked(method)
        y = train.target()
        _check_targets(method, options, y, test)
    classes, weights = None, train.weights
    with comm.phase("read"):
        if options.classify:
            y, classes, weights = _classes(train, options, comm)
        w = np.ones(len(y)) if weights is None else relative(weights, comm)
        n = comm.offset(train.X.shape[0])[1]
        with comm.agreed():
            P = _partitions(method, options, n, train.X.dtype.itemsize, comm.size)
        if options.checkpoint is not None:
            _open_checkpoint(method, replace(train, weights=weights), options, P, n, comm, test)
        X, standardizer = train.give(), None
        width = _widest(method, options, X.shape[1])
        if options.standardize:
            standardizer = _standardizer(X, weights, train.columns.kinds, options, comm)
            if standardizer.levels is None:
                scale = np.where(standardizer.scale == 1.0, 0.0, standardizer.scale)  # 1 for constant columns
                with comm.agreed():
                    check_steps(standardizer.mean, scale, X.dtype, width=scale * np.where(scale, width, 0.0))
            X = standardizer.apply(X, in_place=True)
        else:
            check_resolved(X, X.dtype, comm, width=width)
        check_squares(X, comm)
        for like in options.kernels():
            like.suited(X.shape[1])
        check_targets(y, train.where, 1e30 if X.dtype == np.float32 else LARGEST_TARGET, comm)
        if not options.kernels()[0].of_distance:
            with comm.uncounted(), comm.agreed():  # for the widest kernel: a narrower one may drop out of the grid
                widest = max(options.widths(method, X.shape[1]), key=lambda width: width.sigma)
                widest.kernel.largest(X, X.dtype)
        total = comm.allreduce(np.append(w @ y, w.sum()))
        offset: Offset = float(total[0] / total[1]) if y.ndim == 1 else total[:-1] / total[-1]
        y = y - offset
        scale = np.ones(1) if y.ndim == 1 else _scale(y, w, np.asarray(offset), options, comm)
    columns = {"y": y} if weights is None else {"y": y, "weight": weights}
    return RidgeRows(Samples(X, columns), offset, scale, classes, standardizer, test, P)


def _widest(method: RidgeMethod, options: GridOptions, d: int) -> float:
    """The largest width to try; infinite if a kernel has none."""
    widths = options.widths(method, d)
    return max(width.sigma if width.like.declared.has_width and width.like.of_distance else np.inf for width in widths)


def _standardizer(
    X: AnyRows, weights: NDArray[np.float64] | None, kinds: str, options: RidgeOptions, comm: Communicator
) -> Standardizer:  # fmt: skip
    """The standardiser of these rows, with levels if they are wanted; collective."""
    if options.scaling == CATEGORIES:
        with comm.agreed():
            if FIRST_LEVEL not in kinds or is_sparse(X):
                raise InputError(f"scaling {CATEGORIES}: no column of words is known; leave it out")
        return Standardizer.fit(X, comm, weights, kinds)
    if options.scaling != LEVELS:
        return Standardizer.fit(X, comm, weights)
    with comm.agreed():
        if not isinstance(X, np.ndarray):
            raise InputError(f"scaling {LEVELS}: columns for levels need dense rows in memory; leave it out")
    standardizer = Standardizer.with_levels(X, comm, weights)
    columns = len(standardizer.mean)
    with comm.agreed():
        size = X.itemsize * len(X) * columns
        memory.require(size, options.memory_limit, f"{columns:,} columns for levels", f"leave out scaling {LEVELS}")
    return standardizer


def _check_targets(method: RidgeMethod, options: RidgeOptions, y: NDArray[np.generic], test: Dataset | None) -> None:
    if options.select == "test" and test is None:
        raise InputError("select test: there are no test rows; give --test, or use --select validation")
    if options.classify and y.ndim > 1:
        raise InputError(f"y has shape {y.shape}: a classifier takes one label per row")
    if y.ndim > 1 and (y.ndim > 2 or not y.shape[1]):
        raise InputError(f"y has shape {y.shape}: there is no target; give (rows,) or (rows, targets)")
    if y.ndim > 1 and method.oracle:
        raise InputError(f"y has shape {y.shape}: {method.name} takes a single target; select a column of y")


def _classes(
    train: Dataset, options: ClassOptions, comm: Communicator
) -> tuple[NDArray[np.float64], NDArray[np.generic], NDArray[np.float64] | None]:
    """Indicator columns, the ascending labels of all ranks, and row weights times class weights."""
    y, weights = train.target(), train.weights
    classes = all_classes(y, comm)
    with comm.agreed():
        require_classes(classes, pairs=False)
    codes = class_codes(y, classes)
    if options.class_weight is not None:
        factors = class_factors(options.class_weight, codes, train.row_weights(), len(classes), comm)
        weights = train.row_weights() * factors[codes]
    return indicators(codes, len(classes)), classes, weights


def indicators(codes: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Indicator columns: 1 for rows of the class, else 0; for two classes a single column of -1 and 1, shape (n,)."""
    if k == 2:
        return np.where(codes < 0, 0.0, 2.0 * codes - 1.0)
    return np.asarray(codes[:, None] == np.arange(k), np.float64)


def _scale(
    y: NDArray[np.float64],
    w: NDArray[np.float64],
    offset: NDArray[np.float64],
    options: ClassOptions,
    comm: Communicator,
) -> NDArray[np.float64]:
    """Divisors of the errors of t targets: squared errors then add up to the mean of MSE / variance; collective.

    One Allreduce of t + 1 numbers, none for one target. Class indicators already share one unit. A constant target has
    no error and does not count.
    """
    t = y.shape[1]
    if t == 1 or options.classify:
        return np.ones(t)
    *squares, weight = comm.allreduce(np.append(w @ np.square(y), w.sum()))
    deviation = np.sqrt(np.array(squares) / weight)
    constant = deviation <= 10 * np.finfo(np.float64).eps * np.abs(offset)
    return np.where(constant, np.inf, deviation * math.sqrt(t))


def _partitions(method: RidgeMethod, options: RidgeOptions, n: int, itemsize: int, ranks: int) -> int:
    """Number of parts, P; the same on all ranks, whose memory limits are equal."""
    stored = options.checkpoint.fact("partitions") if options.checkpoint is not None else None
    if options.partitions or stored or not method.partitioner:
        return options.partitions or stored or 1
    return default_parts(n, itemsize, options.memory_limit, ranks)


def _open_checkpoint(
    method: RidgeMethod, train: Dataset, options: RidgeOptions, P: int, n: int, comm: Communicator, test: Dataset | None
) -> None:
    """Resume the run in the checkpoint's directory, or begin one; collective."""
    assert options.checkpoint is not None
    facts = _facts(method, options)
    # Free memory differs between runs, and only determines P, which is compared itself.
    del facts["memory_limit"]
    facts |= {
        "partitions": P, "ranks": comm.size, "threads": threads.current(), "features": train.X.shape[1],
        "dtype": str(train.X.dtype), "training rows": fingerprint(train.X, train.target(), train.weights, comm),
        "package": __version__,
    }  # fmt: skip
    if method.coarse:
        tried = options.coarse_grid(n, train.X.shape[1])
        facts["coarse tried"] = [(width.sigma, Ms, lams) for width, Ms, lams in tried]
    if options.select == "test" and test is not None:
        facts["test rows"] = fingerprint(test.X, test.target(), None, comm)
    settings = len(options.widths(method, train.X.shape[1])) * len(options.lam)
    options.checkpoint.open(facts, comm, {"parts": P, "settings": settings})


def default_parts(n: int, itemsize: int, limit: int, ranks: int) -> int:
    """Default number of parts: one per rank, or as many as keep a part at 8,000 rows and its matrix in the limit.

    Raises
    ------
    MemoryLimitError
        Parts of 500 rows do not fit, so the memory limit must be a mistake.
    """
    least = min(n, 500)
    memory.require(
        least * least * itemsize, limit, f"the matrix of a part of {least} rows", "free some, or set --memory-limit"
    )
    largest = min(ROWS_PER_PART, max(least, math.isqrt(int(limit / 1.15) // itemsize)))
    return min(n, max(ranks, -(-n // largest)))


def _facts(method: RidgeMethod, options: RidgeOptions) -> dict[str, object]:
    """The options that determine the result."""
    values = {name: value for name, value in vars(options).items() if name not in ("progress", "checkpoint", *WHERE)}
    for name in ("points", "metric_init"):  # arrays that the user gives: their digests
        if values.get(name) is not None:
            values[name] = canonical(dense(values[name]))
    return {"method": method.name, **values, "kernel": named(options.kernel)}


def scalings(rows: RidgeRows, options: RidgeOptions, comm: Communicator) -> list[RidgeRows]:
    """The rows with one scaling, or with both if validation chooses between them; collective.

    Raises
    ------
    InputError
        On all ranks: quantiles of sparse rows.
    """
    if options.scaling in ("deviation", LEVELS, CATEGORIES):
        return [rows]  # levels have been prepared
    if is_sparse(rows.samples.X):
        with comm.agreed():
            raise InputError(f"scaling {options.scaling}: normal scores would make the sparse rows dense; leave it out")
    scored = _scored(rows, options.seed, comm)
    return [scored] if options.scaling == "quantile" else [rows, scored]


def _scored(rows: RidgeRows, seed: int, comm: Communicator) -> RidgeRows:
    """The rows with features replaced by their normal scores; collective."""
    assert rows.standardizer is not None
    X = dense(rows.samples.X)
    with comm.phase("read"):
        quantiles = quantiles_of(X, seed, comm)
    samples = Samples(normal_scores(X, quantiles), dict(rows.samples.columns))
    standardizer = replace(rows.standardizer, quantiles=quantiles)
    return replace(rows, samples=samples, standardizer=standardizer, scaling="quantile")


@dataclass(frozen=True, eq=False)
class RidgeParts:
    """The rows in one scaling and one metric, divided into parts: what a round of the search compares settings on.

    Attributes
    ----------
    method : RidgeMethod
    options : RidgeOptions
    rows : RidgeRows
        All rows before the division; empty unless they will be divided again.
    parts : Parts
        The parts, with the columns "y" and, if there are weights, "weight".
    workspace : Workspace
    root : Root or None
        Root of the metric, by which the rows of `parts` are mapped.
    round : int
        Number of the metric's round.
    """

    method: RidgeMethod
    options: RidgeOptions
    rows: RidgeRows
    parts: Parts
    workspace: Workspace
    root: Root | None = None
    round: int = 0

    @classmethod
    def divided(cls, method: RidgeMethod, rows: RidgeRows, options: RidgeOptions, comm: Communicator) -> RidgeParts:
        """Divide the rows for the first time, and send them to the ranks that own their parts; collective.

        Raises
        ------
        MemoryLimitError
            On all ranks: the matrix of a part, or the metric, does not fit.
        """
        if options.metric != "none":
            with comm.agreed():
                check_features(options.metric, rows.samples.X.shape[1], options.memory_limit)
        if options.compares:
            rows.samples.columns["order"] = order_of(rows.samples, options.seed, comm)
        root = None
        if options.metric_init is not None:
            with comm.agreed():
                root = root_of(options.metric_init, options.metric, rows.samples.X.shape[1])
        parts = divide_rows(method, rows, root, options, comm)
        largest = int(np.diff(parts.bounds).max(initial=0))
        return cls(method, options, rows, parts, Workspace(largest, parts.X.dtype, options.memory_limit), root)

    @cached_property
    def y(self) -> NDArray[np.float64]:
        """Centred targets of this rank's rows in double precision, shape (n_local,) or (n_local, t)."""
        return self.parts["y"].astype(np.float64)

    @cached_property
    def folds(self) -> int:
        """Number of folds on which the settings are compared; 1 for one held-out share."""
        return 1 if self.method.coarse else self.options.folds(int(self.parts.sizes.sum()))

    @property
    def route(self) -> str:
        """The route: which models predict a row."""
        return self.options.route_of(self.method, self.rows.partitions)

    @property
    def standardizer(self) -> Standardizer | None:
        """Map from raw rows to rows in this metric."""
        return Standardizer.with_root(self.rows.standardizer, self.root)

    def weights(self, rows: slice) -> NDArray[np.float64] | None:
        """Sample weights of some rows of the parts, or None if there are none."""
        return self.parts.columns["weight"][rows] if "weight" in self.parts.columns else None

    def piece(self, name: str) -> str:
        """Name of this round's piece in the checkpoint."""
        return self.rows.piece(name, self.round, self.options)

    def in_metric(self, root: Root, comm: Communicator) -> RidgeParts:
        """The next round: the rows in this metric, divided again unless the parts are random; collective."""
        if self.method.partitioner == "random":
            step = change(self.root, root)
            parts = replace(self.parts, X=mapped(self.parts.X, step), centers=dense(mapped(self.parts.centers, step)))
        else:
            with comm.phase("partition"):
                parts = divide_rows(self.method, self.rows, root, self.options, comm)
        return replace(self, parts=parts, root=root, round=self.round + 1)

    def again(self, number: int, comm: Communicator) -> Parts:
        """The division with this number of the same rows, in the same metric; collective."""
        return divide_rows(self.method, self.rows, self.root, self.options, comm, number)


def divide_rows(
    method: RidgeMethod, rows: RidgeRows, root: Root | None, options: RidgeOptions, comm: Communicator, number: int = 0
) -> Parts:
    """Partition the rows in their metric, and send them to the owners of their parts."""
    if not options.keeps_rows:
        samples = rows.samples.give()
        samples.X = scaled_in_file(samples.X, root) if is_stored(samples.X) else mapped(samples.X, root)
    else:  # keep them for the next round or division
        samples = Samples(mapped(rows.samples.X, root), dict(rows.samples.columns))
    division = divide(method.partitioner, rows.partitions, samples.X, comm, (options.seed + number) % 2**32)
    owners = assign_owners(division.sizes, comm.size)
    with comm.agreed():
        _check_memory(division.sizes, samples.X, comm.size, options.memory_limit, not method.coarse)
    return hand_out(samples, division, owners, options.seed, comm, consume=not options.keeps_rows)


def _check_memory(sizes: NDArray[np.int64], X: AnyRows, ranks: int, limit: int, on_disk: bool) -> None:
    """Refuse parts whose largest matrix does not fit beside the rows in memory (only one part's, if in a file)."""
    largest, even, itemsize = int(sizes.max()), sizes.sum() / len(sizes), X.dtype.itemsize
    rows, matrix, what = nbytes(X), largest * largest * itemsize, "a rank's rows"
    disk = enough = ""
    if isinstance(X, StoredRows):
        what = "its rows and the columns of all parts"
        rows = _COPIES * largest * X.row_bytes + _COLUMN_BYTES * int(sizes.sum()) // ranks
    else:
        enough = memory.enough_ranks(ranks * rows, limit - matrix)
        disk = "--out-of-core, " if on_disk else ""
    remedy = f"{disk}--dtype float32, more ranks{enough} or a larger --memory-limit"
    if limit > rows + itemsize:
        # Assume that more parts would be as uneven as these.
        parts = math.ceil(sizes.sum() * (largest / even) / math.isqrt((limit - rows) // itemsize))
        remedy = f"more --partitions (about {parts}), {remedy}"
    what = f"the matrix of a part of {largest:,} rows, beside {what},"
    memory.require(matrix + rows, limit, what, f"use {remedy}")
