"""Pieces of parts that a search looks at: a whole part, or some rows of one whose kernel values would leave cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, nbytes
from cacore.io.checkpoint import Checkpoint, remembered
from cacore.kernels.given import Precomputed
from cacore.machine import memory, threads
from cacore.svm.options import DualOptions
from casvm.methods.problems import predicted_cost
from partition.divide import divide
from partition.redistribute import Parts

ROWS = 2000  # of a piece, about
MOST = 3000  # of a part that is searched as it is: the kernel values of a larger one leave the cache
WHOLE = 6000  # of all rows that are searched together: pieces of so few choose a smaller gamma than all of them would
_LEAST = 100  # rows of a piece, whose matrices have to fit
_SETTING = 500  # bytes of a setting in the results

Kept = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Piece:
    """A part, or some rows of a large one, that is searched in one go.

    Attributes
    ----------
    part : int
    rows : ndarray of int64, shape (m,)
        Of this rank.
    first : int
        Rows of all pieces before it, on all ranks: folds are dealt on from there, so that none of them is empty.
    name : str
        In a checkpoint, with the most rows that a piece may have, which depends on the memory of the run.
    """

    part: int
    rows: NDArray[np.int64]
    first: int
    name: str

    @property
    def cost(self) -> int:
        """Cost of a setting, in any unit."""
        return int(predicted_cost(np.array(float(len(self.rows)))))


def pieces(
    parts: Parts, P: int, needed: Callable[[int], int], options: DualOptions, comm: Communicator
) -> list[Piece]:  # fmt: skip
    """This rank's, part after part, of at most :data:`MOST` or :data:`WHOLE` rows, or fewer where memory is short.

    ``needed(rows)`` are the bytes that a thread has for a piece of so many rows. Collective.
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
        what = f"what each thread has of the kernel matrix of {_LEAST} rows"
        memory.require(need, room, what, "leave it more memory (--memory-limit) or use fewer threads (--threads)")
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
    """Refuse more settings than `room` bytes have place for, `each` of them per setting beside its results."""
    memory.require(total * (each + _SETTING), room, what, "compare fewer values")


def over_pieces(
    pieces: list[Piece], name: str, judge: Callable[[Piece], Kept], checkpoint: Checkpoint | None,
    advance: Callable[[Piece], None],
) -> AbstractContextManager[Iterator[tuple[Piece, Kept]]]:  # fmt: skip
    """Context with an iterator of the pieces, the largest first, each with what `judge` returns or has returned for it.

    Pieces run side by side where there are enough of them, otherwise the kernels of one. A checkpoint keeps a piece
    under its name behind `name`; ``advance(piece)`` is called after each.
    """
    order, lock = sorted(pieces, key=lambda piece: -len(piece.rows)), threading.Lock()

    def work(piece: Piece) -> tuple[Piece, Kept]:
        kept = remembered(checkpoint, f"{name}-{piece.name}", lambda: judge(piece))
        with lock:
            advance(piece)
        return piece, kept

    return threads.in_order(work, [(piece,) for piece in order], len(order) >= 2 * threads.current())


def _cut(X: Rows, most: int, options: DualOptions) -> NDArray[np.int32]:
    """The piece that each row of a part belongs to: rows that lie together, for kernels see what is near.

    The rows of a precomputed kernel are numbers, which lie nowhere: they are dealt at random.
    """
    m = X.shape[0]
    if m <= most:
        return np.zeros(m, np.int32)
    count = -(-m // min(ROWS, most))
    if isinstance(options.kernel, Precomputed):
        return np.asarray(np.random.default_rng(options.seed).permutation(m) % count, np.int32)
    return divide("kbalance", count, X, Communicator(), options.seed).labels
