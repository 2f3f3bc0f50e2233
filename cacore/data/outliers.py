"""Columns with a number so far from the others that it may be a fill value or an error of unit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.rows import in_blocks, is_sparse
from cacore.data.stored import is_stored

FAR = 1e6  # deviations of the other numbers
_SAMPLE, _NUMBERS = 1000, 1_000_000  # most rows, and most numbers of them, from which the deviations come
_USUAL = 0.9  # share of the rows of which the deviation is taken, so that the far ones do not count


def notes(data: Dataset, comm: Communicator) -> list[str]:
    """Notes on the dense features in memory, and on targets that are numbers; collective, one pass, not counted.

    The deviation is the range of nine tenths of a sample about its median, as a normal distribution has it.
    """
    said: list[str] = []
    columns = data.columns
    if not (is_sparse(data.X) or is_stored(data.X)):
        said += _of_columns(data.X, "feature", columns.features, data.where, comm)
    if data.y is not None and data.y.dtype.kind == "f":
        targets = data.y.reshape(len(data.y), -1)
        said += _of_columns(targets, "target", columns.target, data.where, comm)
    return said


def _of_columns(
    X: NDArray[np.floating], kind: str, names: tuple[str, ...], where: str, comm: Communicator
) -> list[str]:  # fmt: skip
    """A note on the column with the farthest number, if it is far."""
    rows, d = X.shape
    most = max(1, min(_SAMPLE, _NUMBERS // d) // comm.size)
    with comm.uncounted(), np.errstate(over="ignore", invalid="ignore"):
        sample = comm.allgather(np.ascontiguousarray(X[:: max(1, -(-rows // most))], np.float64))
        if len(sample) < 10:
            return []
        middle = np.median(sample, axis=0)
        scale = np.quantile(np.abs(sample - middle), _USUAL, axis=0) / 1.645
        far, place = np.zeros(d), np.zeros(d)
        for block in in_blocks(X):
            for ends in (block.max(axis=0), block.min(axis=0)):
                further = np.abs(ends - middle) > np.abs(far)
                far[further], place[further] = (ends - middle)[further], ends[further]
        every = comm.allgather(np.column_stack([far, place])[None])
    best = every[np.abs(every[:, :, 0]).argmax(axis=0), np.arange(d)]
    ratio = np.divide(np.abs(best[:, 0]), scale, out=np.zeros(d), where=scale > 0)
    j = int(ratio.argmax())
    if ratio[j] <= FAR:
        return []
    label = f"{kind} {j} ({names[j]})" if j < len(names) else f"{kind} {j}"
    return [
        f"{where}: {label} has the number {best[j, 1]:.6g}, {ratio[j]:.2g} deviations of the others from their median: "
        "does it mark a gap?"
    ]
