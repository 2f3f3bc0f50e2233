"""A ridge task: rows divided into parts, and the state that all steps of training share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.metric import Root, change, check_features, mapped
from cacore.data.rows import AnyRows, dense, nbytes
from cacore.data.standardize import Standardizer
from cacore.data.stored import StoredRows
from cacore.machine import memory
from cakrr.methods.prepare import RidgeRows
from cakrr.options import RidgeMethod, RidgeOptions
from cakrr.solver.local import Workspace
from partition.divide import divide, hand_out, order_of
from partition.redistribute import Parts, assign_owners

_COPIES = 3  # copies of the rows of a part that is read from a file: shifted, and packed for products
_COLUMN_BYTES = 48  # memory per row stored in a file: target, residual, place and coefficient


@dataclass(frozen=True, eq=False)
class RidgeTask:
    """One division of the rows into parts, with one metric, on which models are trained.

    Attributes
    ----------
    method : RidgeMethod
    options : RidgeOptions
    rows : RidgeRows
        All rows before the division; empty unless they will be divided again.
    parts : Parts
        The parts, with the columns "y" and, if there are weights, "weight".
    workspace : Workspace
    comm : Communicator
    root : Root or None
        Root of the metric, by which the rows of `parts` are mapped.
    round : int
        Number of the metric's round.
    division : int
        Number of the division.
    """

    method: RidgeMethod
    options: RidgeOptions
    rows: RidgeRows
    parts: Parts
    workspace: Workspace
    comm: Communicator
    root: Root | None = None
    round: int = 0
    division: int = 0

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
        route = self.options.route or self.method.route
        return "nearest" if route == "soft" and len(self.parts.sizes) == 1 else route  # there is only one model

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

    def in_metric(self, root: Root) -> RidgeTask:
        """The next round: the rows in this metric, divided again unless the parts are random; collective."""
        if self.method.partitioner == "random":
            step = change(self.root, root)
            parts = replace(self.parts, X=mapped(self.parts.X, step), centers=dense(mapped(self.parts.centers, step)))
        else:
            with self.comm.phase("partition"):
                parts = _divided(self.method, self.rows, root, self.options, self.comm)
        return replace(self, parts=parts, root=root, round=self.round + 1)

    def divided_again(self, number: int) -> RidgeTask:
        """Divide the rows again, for the division with this number, in the same metric; collective."""
        with self.comm.phase("partition"):
            parts = _divided(self.method, self.rows, self.root, self.options, self.comm, number)
        return replace(self, parts=parts, division=number)


def divided(method: RidgeMethod, rows: RidgeRows, options: RidgeOptions, comm: Communicator) -> RidgeTask:
    """Divide the rows for the first time, and send them to the ranks that own their parts; collective.

    Raises
    ------
    MemoryLimitError
        On all ranks: the matrix of a part, or the metric, does not fit.
    """
    with comm.phase("partition"):
        if options.metric != "none":
            with comm.agreed():
                check_features(options.metric, rows.samples.X.shape[1], options.memory_limit)
        if options.compares:
            rows.samples.columns["order"] = order_of(rows.samples, options.seed, comm)
        parts = _divided(method, rows, None, options, comm)
    largest = int(np.diff(parts.bounds).max(initial=0))
    workspace = Workspace(largest, parts.X.dtype, options.memory_limit)
    return RidgeTask(method, options, rows, parts, workspace, comm)


def _divided(
    method: RidgeMethod, rows: RidgeRows, root: Root | None, options: RidgeOptions, comm: Communicator, number: int = 0
) -> Parts:
    """Partition the rows in their metric, and send them to the owners of their parts."""
    if not options.keeps_rows:
        samples = rows.samples.give()
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
