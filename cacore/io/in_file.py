"""Out-of-core loading: each rank copies its rows of a native file to a scratch file, instead of into memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.resolution import Mask, Moments
from cacore.data.rows import Rows, block_bounds, dense
from cacore.data.stored import StoredRows
from cacore.errors import InputError
from cacore.io import native, stream, text
from cacore.io.loading import TEST, label, ordered
from cacore.io.names import UNKNOWN, Expected, Order
from cacore.io.native import Shape
from cacore.io.table import Table, Targets
from cacore.machine import memory
from cacore.machine.threads import blocks

_COLUMN_BYTES = 128  # most memory per row on disk: its target, label and index, and a copy of these in a message
_COPIES = 2  # copies of the rows on disk: in the order of the file, and sorted by part


def load_in_file(
    path: Path,
    comm: Communicator,
    dtype: str,
    target: str | None,
    folder: Path,
    limit: int,
    wanted: Targets,
    expected: Expected = UNKNOWN,
    training: bool = False,
) -> dict[str, Dataset]:
    """Load an HDF5 file like :func:`cacore.io.load`, but copy each rank's rows to a scratch file; collective.

    Parameters
    ----------
    path, comm, dtype, target, limit, wanted, expected, training
        See :func:`cacore.io.load`.
    folder : Path
        Folder of the scratch file, with room for two copies of the rows. The file has no name, so a killed run leaves
        nothing behind.

    Raises
    ------
    InputError
        On every rank: an error of `load`, sparse rows, a file that is not HDF5, or too little space in the folder.

    Notes
    -----
    Rows are read, checked, converted and written a few MiB at a time; only their targets stay in memory.
    """
    real = np.dtype(dtype)
    with comm.phase("read"), stream.unchanging(path, comm):
        with comm.agreed():
            if comm.rank == 0 and text.kind(path) != "hdf5":
                raise InputError(
                    f"{path}: --out-of-core reads HDF5; run python -m cacore.io convert {path} OUT.h5 first"
                )
        here = comm.node().size
        with comm.agreed():
            shapes, orders = ordered(path, native.describe(path), expected, target)
            for split, shape in shapes.items():
                wanted.check(shape.y or (), f"{path} ({split})")
                if shape.sparse:
                    raise InputError(
                        f"{path} ({split}): --out-of-core takes dense rows, not CSR; use more ranks instead"
                    )
            mine = {split: block_bounds(shape.n, comm.size, comm.rank) for split, shape in shapes.items()}
            _check_room(path, shapes, mine, real, folder, limit, here)
        learned = [split for split in shapes if training and split != TEST]
        moments = {split: Moments(shapes[split].d) for split in learned if real == np.float32}
        with comm.agreed():
            copied = {
                split: _copied(
                    path, split, shapes[split], *rows, real, folder, limit, orders[split], moments.get(split), wanted
                )
                for split, rows in mine.items()
            }
        label(copied.values(), wanted, comm)
        for split in learned:
            copied[split].check_resolved(real, comm, moments.get(split))
        return {
            split: Dataset(table.X, table.y, shapes[split].n, table.where, columns=table.columns)
            for split, table in copied.items()
        }


def _check_room(
    path: Path, shapes: dict[str, Shape], mine: dict[str, tuple[int, int]], real: np.dtype[np.floating], folder: Path,
    limit: int, ranks: int,
) -> None:  # fmt: skip
    """Raise an InputError if targets do not fit into memory, or rows of the node's `ranks` ranks into the folder."""
    count = {split: hi - lo for split, (lo, hi) in mine.items()}
    columns = sum(n * (_COLUMN_BYTES + 24 * int(np.prod((shapes[split].y or (0,))[1:]))) for split, n in count.items())
    what = f"{path}: keeping the targets and row numbers of a rank's rows in memory"
    memory.require(columns, limit, what, f"use more ranks{memory.enough_ranks(columns, limit)}")
    try:
        free = os.statvfs(folder)
    except OSError as error:
        raise InputError(f"--scratch {folder}: cannot make a file there ({error.strerror})") from error
    size = sum(_COPIES * n * shapes[split].d * real.itemsize for split, n in count.items()) * ranks
    if size > free.f_bavail * free.f_frsize:
        raise InputError(
            f"{path}: --out-of-core needs {size / memory.GIB:.3g} GiB of disk in {folder}, where "
            f"{free.f_bavail * free.f_frsize / memory.GIB:.3g} GiB are free: name another folder with --scratch DIR"
        )


def _copied(
    path: Path, split: str, shape: Shape, lo: int, hi: int, real: np.dtype[np.floating], folder: Path, limit: int,
    order: Order, moments: Moments | None, wanted: Targets,
) -> Table:  # fmt: skip
    """Copy rows ``lo:hi`` of a split to a scratch file."""
    rows = StoredRows.empty(folder, hi - lo, shape.d, real)
    step = max(1, native.step_bytes(limit) // native.row_bytes(path, split, shape))
    need = native.needed(path, split, lo, min(lo + step, hi), real, limit, order)
    memory.require(need, limit, f"{path}: a block of {min(step, hi - lo):,} rows", "raise --memory-limit")
    none = native.read_block(path, split, lo, lo, real, order)  # a rank without rows has targets of the same type
    none.check_targets(wanted)
    targets: list[NDArray[Any]] = [] if none.y is None else [none.y]
    features, labels = none.rounded
    for a, b in blocks(hi - lo, step):
        block = native.read_block(path, split, lo + a, lo + b, real, order, moments)
        block.check_targets(wanted)
        features, labels = _either(features, block.rounded[0]), _either(labels, block.rounded[1])
        rows[a:b] = dense(block.X)
        if block.y is not None:
            targets.append(block.y)
    y = np.concatenate(targets) if targets else None
    held = cast(Rows, rows)  # indexed like an array
    return Table(held, y, f"{path} ({split})", lo, columns=shape.columns, rounded=(features, labels))


def _either(first: Mask | None, second: Mask | None) -> Mask | None:
    """Columns in either mask."""
    return first if second is None else second if first is None else first | second
