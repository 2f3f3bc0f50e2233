"""Least squares by QR over ranks (TSQR): blocks of rows are folded into triangles, which a fixed tree combines.

A tall matrix [A B], with M columns of unknowns and t right sides, has the triangle

    [R  q]
    [0  s]    with |A c - b|^2 = |R c - q|^2 + |s|^2 for each right side,

which LAPACK's `tpqrt` updates with one block of rows after the other. No matrix product A^T A is formed, which would
square the condition number. The rows are cut into a fixed number of *leaves*. A leaf is folded by one rank, and a
binary tree over the leaves, not over the ranks, combines their triangles. So the bits of the result do not depend on
the number of ranks, nor on how the rows of a leaf are cut into blocks (Demmel, Grigori, Hoemmen and Langou,
EECS-2008-74).

n rows and N = M + t columns cost 2 n N^2 - 2/3 N^3 flops, shared by the ranks. With R ranks, a power of two, R - 1
messages of N (N + 1) / 2 numbers travel, log2 R of them one after the other. A rank holds two squares of N^2 numbers,
one block of rows, and up to log2(leaves / R) + 1 packed triangles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg import lapack

from cacore.comm import Communicator
from cacore.errors import InputError

if TYPE_CHECKING:
    from cacore.io.checkpoint import Checkpoint, Kept

# Folding 500,000 x 1,000 numbers takes 33 s on one thread, 1.16 times its flops at the rate of dgeqrf (commit
# f5a2ce1d); the four numbers were not varied one by one.
PANEL = 64  # columns per panel of tpqrt
BLOCK, MOST_BLOCK = 1024, 4096  # least and most rows that are folded at a time, after the first square
LEAF = 2  # least rows of a leaf, in units of the columns
MOST_LEAVES = 1024
_HEADER = 64  # bytes that announce a message: 8 numbers, `_HEADER` of cacore/comm/communicator.py

Array = NDArray[np.float64]
# blocks(leaf, skipped): the blocks of a leaf, each of shape (any, N), without its first `skipped` blocks.
Blocks = Callable[[int, int], Iterator[Array]]


def leaves_of(n: int, columns: int) -> int:
    """Number of leaves for n rows: the largest power of two with `LEAF` x `columns` rows each, at most 1,024."""
    limit = min(MOST_LEAVES, n // (LEAF * columns))
    return 1 << max(0, limit.bit_length() - 1)


def bounds(total: int, pieces: int) -> NDArray[np.int64]:
    """The pieces + 1 borders of `total` things cut into even pieces: rows into leaves, or leaves among ranks."""
    return total * np.arange(pieces + 1, dtype=np.int64) // pieces


def owners(leaves: int, ranks: int) -> NDArray[np.int64]:
    """Rank that folds each leaf, shape (leaves,), ascending."""
    return np.asarray(np.searchsorted(bounds(leaves, ranks), np.arange(leaves), side="right") - 1, np.int64)


def merges(leaves: int, ranks: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the tree's merges, from the leaves up: (level, node, rank of its left half, rank of its right half).

    The left half's rank merges; if the right half is another rank's, that rank sends its triangle.
    """
    owner, level = owners(leaves, ranks), 1
    while leaves >> level:
        for node in range(leaves >> level):
            first = node << level
            yield level, node, int(owner[first]), int(owner[first + (1 << level - 1)])
        level += 1


def messages(leaves: int, ranks: int) -> int:
    """Number of triangles that are sent between ranks; R - 1 for R ranks, if R is a power of two."""
    return sum(left_rank != right_rank for _, _, left_rank, right_rank in merges(leaves, ranks))


def sent_bytes(columns: int, leaves: int, ranks: int, shared: bool = True) -> int:
    """Bytes that all ranks together send: packed triangles along the tree and, if `shared`, one broadcast."""
    each = 8 * (columns * (columns + 1) // 2) + _HEADER
    return each * (messages(leaves, ranks) + shared * (ranks - 1))


def memory_bytes(columns: int, leaves: int, ranks: int) -> int:
    """Bytes that a rank needs: two squares, a block of rows, and packed triangles that wait for their other half."""
    waiting = (-(-leaves // ranks)).bit_length() + 1
    return 8 * (2 * columns**2 + block_rows(columns) * columns + waiting * (columns * (columns + 1) // 2))


def block_rows(columns: int) -> int:
    """Rows folded at a time: a quarter of the columns, within bounds; a leaf's first block is a square."""
    return int(np.clip(columns // 4, BLOCK, MOST_BLOCK))


class BlockError(ValueError):
    """A block of rows that does not fit; whoever knows where it comes from names the place (:func:`named`)."""


def named(error: Exception, where: str) -> InputError:
    """The error of one line that names the place, and the kind of an error that is not this package's."""
    kind = "" if isinstance(error, BlockError) else f"{type(error).__name__}: "
    return InputError(f"{where}: {kind}{error}")


@dataclass(frozen=True)
class Triangle:
    """The triangle of a least-squares problem of M unknowns and t right sides.

    Attributes
    ----------
    R : ndarray of float64, shape (M, M)
        Upper triangle; R^T R = A^T A.
    q : ndarray of float64, shape (M, t)
        Right sides in the span of A: the problem is R c = q.
    s : ndarray of float64, shape (t, t)
        Upper triangle of the right sides outside that span: s^T s are the products of the least residuals.
    rows : int
        Number of rows folded.
    """

    R: Array
    q: Array
    s: Array
    rows: int

    def solve(self) -> Array:
        """Coefficients of the least residual, shape (M, t); M^2 t flops.

        Raises
        ------
        InputError
            A column is a combination of those before it, up to rounding: its diagonal entry is 0 beside the largest.
        """
        size = np.abs(np.diagonal(self.R))
        tiny = np.finfo(np.float64).eps * len(size) * size.max(initial=0.0)
        if (size <= tiny).any():
            raise InputError(
                f"least squares: column {int(np.argmax(size <= tiny))} is a combination of those before it, up to "
                "rounding; leave it out, or use a ridge"
            )
        return np.asarray(scipy.linalg.solve_triangular(self.R, self.q, check_finite=False))

    def condition(self) -> float:
        """Estimate of the condition number of A, in the 1-norm (LAPACK's `gecon`); 2 M^2 flops per iteration."""
        # R is its own LU factorisation; scipy has `trcon`, which would need half the flops, in recent versions only.
        reciprocal, _ = lapack.dgecon(self.R, np.abs(self.R).sum(axis=0).max(initial=0.0), norm="1")
        return 1.0 / float(reciprocal) if reciprocal > 0 else float("inf")


def tsqr(
    blocks: Blocks, columns: int, right: int, leaves: int, comm: Communicator, *, checkpoint: Checkpoint | None = None,
    piece: str = "tsqr", seconds: float = 300.0,
) -> Triangle:  # fmt: skip
    """Fold the rows of all leaves into one triangle, the same on every rank; collective.

    Parameters
    ----------
    blocks : callable
        ``blocks(leaf, skipped)`` yields the blocks of a leaf's rows, shape (any, M + t), float64, without the first
        `skipped` ones; called for the leaves of this rank only (:func:`owners`). It must not communicate. The blocks
        are not changed, and may share one buffer.
    columns, right : int
        M and t: the first M columns are unknowns, the last t right sides.
    leaves : int
        A power of two, and the same for every number of ranks (:func:`leaves_of`).
    comm : Communicator
    checkpoint : Checkpoint, optional
        Saves this rank's triangles under the name `piece` every `seconds`, after any block, when its leaves are done,
        and when a block fails; continues there. One file per rank, so a run continues on as many ranks as it began on.

    Returns
    -------
    Triangle

    Raises
    ------
    InputError
        On all ranks, once every rank is done with its leaves: a block with another number of columns, with NaN or
        infinity, or any error that `blocks` raises.
    """
    N = columns + right
    mine = _Folding(blocks, N, owners(leaves, comm.size), comm.rank)
    name = f"{piece}-rank{comm.rank:06d}"
    with comm.agreed():
        if checkpoint is not None and (stored := checkpoint.get(name)) is not None:
            mine.resume(stored)
        _fold_leaves(mine, checkpoint, name, seconds)
    root, rows = _combined(mine, leaves, comm)
    R = unpacked(root, N)
    return Triangle(R[:columns, :columns], R[:columns, columns:], R[columns:, columns:], rows)


def _fold_leaves(mine: _Folding, checkpoint: Checkpoint | None, name: str, seconds: float) -> None:
    """Fold this rank's leaves, and save the state from time to time."""
    saved = monotonic()
    try:
        for _ in mine.run():
            if checkpoint is not None and monotonic() - saved > seconds:
                checkpoint.put(name, **mine.state())
                saved = monotonic()
    finally:
        if checkpoint is not None:  # whether it is done, or a block has failed
            checkpoint.put(name, **mine.state())


def _combined(mine: _Folding, leaves: int, comm: Communicator) -> tuple[Array, int]:
    """The packed triangle of all leaves and the number of their rows, on every rank; collective."""
    N, nodes = mine.columns, mine.finished
    for level, node, left_rank, right_rank in merges(leaves, comm.size):
        if comm.rank == right_rank != left_rank:
            comm.send(nodes.pop((level - 1, 2 * node + 1)), left_rank)
        elif comm.rank == left_rank and (level, node) not in nodes and (level - 1, 2 * node) in nodes:
            mine_half = unpacked(nodes.pop((level - 1, 2 * node)), N)
            other_half = comm.recv(right_rank) if right_rank != left_rank else nodes.pop((level - 1, 2 * node + 1))
            nodes[level, node] = packed(_merged(mine_half, unpacked(other_half, N)))
    root = nodes.get((leaves.bit_length() - 1, 0))
    rows = int(comm.allreduce(np.array([mine.rows], np.int64))[0])
    return comm.bcast(root, int(owners(leaves, comm.size)[0])), rows


class _Folding:
    """The leaves of one rank: those that are done, as nodes of the tree, and the one that is being folded.

    Attributes
    ----------
    finished : dict of (level, node) to ndarray
        Packed triangles that wait for their other half.
    rows : int
        Number of rows folded so far.
    """

    def __init__(self, blocks: Blocks, columns: int, owner: NDArray[np.int64], rank: int) -> None:
        self.columns, self.finished, self.rows, self._rank = columns, dict[tuple[int, int], Array](), 0, rank
        own_leaves = np.flatnonzero(owner == rank)
        self._leaf, self._end = (int(own_leaves[0]), int(own_leaves[-1]) + 1) if own_leaves.size else (0, 0)
        self._blocks, self._taken = blocks, 0  # blocks taken of the present leaf
        self._new_leaf()

    def _new_leaf(self) -> None:
        self._R: Array | None = None
        self._pending = np.zeros((0, self.columns))  # a rank that has no leaf left needs no block
        self._filled = 0

    @property
    def _step(self) -> int:
        """Rows of the next block: for a square, or as many as are folded at a time."""
        later = block_rows(self.columns)
        return later if self._R is not None else max(self.columns, later)

    def run(self) -> Iterator[None]:
        """Fold the leaves that are left; yields after every block."""
        while self._leaf < self._end:
            for block in self._named():
                self._add(block)
                self._taken += 1
                yield
            self._close()
            self._leaf, self._taken = self._leaf + 1, 0

    def _named(self) -> Iterator[Array]:
        """Blocks of the present leaf, checked; errors name rank, leaf and block."""
        try:
            for block in self._blocks(self._leaf, self._taken):
                self._check(block)
                yield block
        except InputError:
            raise
        except Exception as error:
            raise named(error, self._where()) from error

    def _where(self) -> str:
        return f"rows, share {self._leaf}, block {self._taken} (rank {self._rank})"

    def _check(self, block: Array) -> None:
        if block.ndim != 2 or block.shape[1] != self.columns:
            raise InputError(f"{self._where()}: its shape is {block.shape}, and {self.columns} columns were expected")
        good = np.isfinite(block)
        if not good.all():
            i, j = np.argwhere(~good)[0]
            raise InputError(
                f"{self._where()}: row {i}, column {j} is {block[i, j]}; correct the value, or leave the row out"
            )

    def _add(self, block: Array) -> None:
        """Take the rows of a block; the triangle is updated by `step` rows at a time, however blocks are cut."""
        at = 0
        self.rows += len(block)
        while at < len(block):
            step = self._step
            if len(self._pending) != step:
                self._pending = np.zeros((step, self.columns), order="F")
            take = min(step - self._filled, len(block) - at)
            self._pending[self._filled : self._filled + take] = block[at : at + take]
            self._filled, at = self._filled + take, at + take
            if self._filled == step:
                self._fold()

    def _fold(self) -> None:
        rows = self._pending[: self._filled]
        if self._R is None and self._filled >= self.columns:
            self._R = _first(rows)
            self._pending = np.zeros((0, self.columns))  # a square has become the triangle
        else:
            R = np.zeros((self.columns,) * 2, order="F") if self._R is None else self._R
            self._R = _folded(R, rows, 0)
        self._filled = 0

    def _close(self) -> None:
        """Finish the present leaf, and merge it with the halves that wait for it."""
        if self._filled:
            self._fold()
        R = np.zeros((self.columns,) * 2, order="F") if self._R is None else self._R
        level, node = 0, self._leaf
        self._new_leaf()
        while node & 1 and (level, node - 1) in self.finished:
            R = _merged(unpacked(self.finished.pop((level, node - 1)), self.columns), R)
            level, node = level + 1, node >> 1
        self.finished[level, node] = packed(R)

    def state(self) -> Kept:
        """Arrays from which :meth:`resume` continues."""
        arrays: Kept = {
            "at": np.array([self._leaf, self._taken, self.rows, self._filled], np.int64),
            "pending": self._pending[: self._filled],
            "nodes": np.array(sorted(self.finished), np.int64).reshape(-1, 2),
        }
        arrays |= {f"node-{level}-{node}": R for (level, node), R in self.finished.items()}
        return arrays if self._R is None else arrays | {"R": packed(self._R)}

    def resume(self, state: Kept) -> None:
        """Continue from the arrays of :meth:`state`."""
        self._leaf, self._taken, self.rows, self._filled = map(int, state["at"])
        self._R = unpacked(state["R"], self.columns) if "R" in state else None
        if self._filled:
            self._pending = np.zeros((self._step, self.columns), order="F")
            self._pending[: self._filled] = state["pending"]
        self.finished = {(i, j): state[f"node-{i}-{j}"] for i, j in state["nodes"].tolist()}


def _first(rows: Array) -> Array:
    """Triangle of at least as many rows as columns; the rows are overwritten, and become the triangle if square."""
    N = rows.shape[1]
    factored, _, _, info = lapack.dgeqrf(np.asfortranarray(rows), overwrite_a=1, lwork=PANEL * N)
    assert info == 0
    R = factored if len(factored) == N else np.array(factored[:N], order="F")
    for j in range(N):  # in place: np.triu would need two more squares
        R[j + 1 :, j] = 0.0
    return np.asarray(R)


def _folded(R: Array, rows: Array, trapezoid: int) -> Array:
    """Triangle of R above `rows`, whose last `trapezoid` rows are upper triangular; both are overwritten."""
    rows = np.asfortranarray(rows)
    triangle, _, _, info = lapack.dtpqrt(trapezoid, min(PANEL, len(R)), R, rows, overwrite_a=1, overwrite_b=1)
    assert info == 0
    return np.asarray(triangle)


def _merged(upper: Array, lower: Array) -> Array:
    """Triangle of two triangles, one above the other; 2/3 N^3 flops."""
    return _folded(upper, lower, len(lower))


def stacked(upper: Array, lower: Array) -> Array:
    """Rows of the triangle of two matrices, one above the other, whose first M columns are triangular.

    Both have shape (M, M + t), and are not changed, as has the result. 2/3 M^3 + 2 M^2 t flops.
    """
    M = len(upper)
    if upper.shape[1] == M:
        return _merged(np.array(upper, order="F"), np.array(lower, order="F"))
    R, V, T, info = lapack.dtpqrt(M, min(PANEL, M), upper[:, :M], lower[:, :M])
    assert info == 0
    above, _, info = lapack.dtpmqrt(M, V, T, upper[:, M:], lower[:, M:], trans="T")
    assert info == 0
    return np.hstack([np.triu(R), above])


def packed(R: Array) -> Array:
    """Upper triangle column by column, shape (N (N + 1) / 2,)."""
    out, at = np.empty(len(R) * (len(R) + 1) // 2), 0
    for j in range(len(R)):
        out[at : at + j + 1] = R[: j + 1, j]
        at += j + 1
    return out


def unpacked(values: Array, N: int) -> Array:
    """The square, zero below the diagonal and Fortran-contiguous, of :func:`packed`."""
    R, at = np.zeros((N, N), order="F"), 0
    for j in range(N):
        R[: j + 1, j] = values[at : at + j + 1]
        at += j + 1
    return R
