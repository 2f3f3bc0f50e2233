"""Pieces of parts for the search: a whole part, or some rows of a part whose kernel matrix does not fit in cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, nbytes
from cacore.io.checkpoint import Checkpoint, Kept, remembered
from cacore.kernels.given import Precomputed
from cacore.machine import memory, threads
from cacore.svm.options import DualOptions
from casvm.methods.problems import predicted_cost
from partition.divide import divide
from partition.redistribute import Parts

ROWS = 2000  # approximate number of rows per piece
MOST = 3000  # a larger part is cut into pieces, since its kernel matrix does not fit in cache
WHOLE = 6000  # up to this number of rows in all, parts stay whole: their pieces would choose too small a gamma
_LEAST = 100  # the matrices of a piece of this number of rows must fit in memory
_SETTING = 500  # bytes per setting in the results


@dataclass(frozen=True)
class Piece:
    """A part, or some rows of a large part, on which settings are compared.

    Attributes
    ----------
    part : int
    rows : ndarray of int64, shape (m,)
        Local row numbers.
    first : int
        Number of rows in all previous pieces, on all ranks; dealing of folds continues from there, so that no fold is
        empty.
    name : str
        Name in a checkpoint; contains the maximum size of a piece, which depends on the memory of the run.
    """

    part: int
    rows: NDArray[np.int64]
    first: int
    name: str

    @property
    def cost(self) -> int:
        """Predicted cost per setting, in arbitrary units."""
        return int(predicted_cost(np.array(float(len(self.rows)))))


def pieces(parts: Parts, P: int, needed: Callable[[int], int], options: DualOptions, comm: Communicator) -> list[Piece]:
    """This rank's pieces, part by part; collective.

    A piece has at most :data:`MOST` or :data:`WHOLE` rows, or fewer if memory is short. ``needed(rows)`` returns the
    bytes that a thread needs for a piece.
    """
    sizes = np.zeros(P, np.int64)
    sizes[parts.parts] = np.diff(parts.bounds)
    sizes = comm.allreduce(sizes)
    most = MOST if sizes.sum() > WHOLE else WHOLE
    with comm.agreed():
        room = options.memory_limit - nbytes(parts.X)
        while most > _LEAST and needed(most) * threads.current() > room:
            most //= 2
        need = needed(_LEAST) * threads.current()
        what = f"a kernel matrix of {_LEAST} rows in each thread"
        memory.require(need, room, what, "allow more memory (--memory-limit) or use fewer threads (--threads)")
    most = int(comm.allreduce(np.array([most]), "min")[0])
    before = np.cumsum(sizes) - sizes
    found: list[Piece] = []
    for number, rows in parts:
        labels = _cut(parts.X[rows], most, options)
        first = int(before[number])
        for piece in range(int(labels.max(initial=0)) + 1):
            own = rows.start + np.flatnonzero(labels == piece)
            found.append(Piece(number, own, first, f"{number:06d}-{piece:04d}-of-{most}"))
            first += len(own)
    return found


def check_settings(total: int, each: int, room: int, what: str) -> None:
    """Refuse more settings than fit in `room` bytes; each takes `each` bytes besides its results."""
    memory.require(total * (each + _SETTING), room, what, "compare fewer values")


def over_pieces(
    pieces: list[Piece], name: str, judge: Callable[[Piece], Kept], checkpoint: Checkpoint | None,
    advance: Callable[[Piece], None],
) -> AbstractContextManager[Iterator[tuple[Piece, Kept]]]:  # fmt: skip
    """Context with an iterator of pieces, largest first, each with the result of ``judge(piece)``.

    If there are enough pieces, they run in parallel; otherwise the kernels of one piece do. A checkpoint stores the
    result under `name` and the piece's name, and a result found there is used; ``advance(piece)`` is called after each
    piece.
    """
    order, lock = sorted(pieces, key=lambda piece: -len(piece.rows)), threading.Lock()

    def work(piece: Piece) -> tuple[Piece, Kept]:
        kept = remembered(checkpoint, f"{name}-{piece.name}", lambda: judge(piece))
        with lock:
            advance(piece)
        return piece, kept

    return threads.in_order(work, [(piece,) for piece in order], len(order) >= 2 * threads.current())


def _cut(X: Rows, most: int, options: DualOptions) -> NDArray[np.int32]:
    """Piece of each row of a part; a piece consists of neighbouring rows, since kernels depend on near rows.

    With a precomputed kernel there are no distances, and rows are dealt at random.
    """
    m = X.shape[0]
    if m <= most:
        return np.zeros(m, np.int32)
    count = -(-m // min(ROWS, most))
    if isinstance(options.kernel, Precomputed):
        return np.asarray(np.random.default_rng(options.seed).permutation(m) % count, np.int32)
    return divide("kbalance", count, X, Communicator(), options.seed).labels
