"""Rows of data, dense, CSR or in a file: types, stacking, moving between ranks, and checks of their numbers.

scipy.sparse is loaded only for runs with sparse rows, and has no types: `CSR` stands for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cacore.arrays import Integers
from cacore.comm import Communicator, Unquoted, require_same
from cacore.data.stored import RowNumbers, StoredRows
from cacore.errors import InputError
from cacore.machine.threads import blocks, for_blocks

if TYPE_CHECKING:
    from scipy.sparse import sparray, spmatrix
    from typing_extensions import TypeIs


# ruff: noqa: D102 - scipy documents the methods


Numbers: TypeAlias = NDArray[Any]


class CSR(Protocol):
    """A scipy CSR matrix or array, as far as it is used."""

    data: Numbers
    indices: Integers
    indptr: Integers
    shape: tuple[int, int]
    dtype: np.dtype[np.floating]
    format: str
    nnz: int
    T: CSR  # or compressed by columns
    has_canonical_format: bool

    def __abs__(self) -> CSR: ...
    def __getitem__(self, cells: RowNumbers | tuple[slice, slice | NDArray[np.integer]], /) -> CSR: ...
    def __matmul__(self, other: Numbers, /) -> Numbers: ...
    def __rmatmul__(self, other: Numbers, /) -> Numbers: ...
    def __sub__(self, other: CSR, /) -> CSR: ...
    def astype(self, dtype: DTypeLike, copy: bool = True) -> CSR: ...
    def copy(self) -> CSR: ...
    def mean(self, axis: int, dtype: DTypeLike) -> Numbers: ...
    def multiply(self, factors: Numbers | CSR, /) -> CSR: ...  # or another sparse format
    def resize(self, shape: tuple[int, int]) -> None: ...
    def sort_indices(self) -> None: ...
    def sum(self, axis: int) -> Numbers: ...
    def sum_duplicates(self) -> None: ...
    def toarray(self) -> Numbers: ...
    def tocsr(self) -> CSR: ...


_PACKED = 0.7  # share of nonzeros up to which dense rows travel without their zeros, as a bit each
_SAMPLE = 1000  # rows that tell the share
_NUMBERS = 1 << 20  # numbers per block when rows are read block by block
LARGEST_TARGET = 1e150  # whose square, and sums of squares, do not overflow double precision

Rows: TypeAlias = Numbers | CSR  # in memory
DenseRows: TypeAlias = Numbers | StoredRows
AnyRows: TypeAlias = Rows | StoredRows  # in memory or in a file
SameRows = TypeVar("SameRows", Numbers, CSR, StoredRows, Rows, DenseRows, AnyRows)  # a function returns what it takes
RowsLike: TypeAlias = "ArrayLike | spmatrix | sparray"  # rows as users give them; a DataFrame is array-like


def block_bounds(n: int, size: int, rank: int) -> tuple[int, int]:
    """First and one-past-last row of `rank`'s block when n rows are split evenly over `size` ranks."""
    return n * rank // size, n * (rank + 1) // size


def in_blocks(X: DenseRows) -> Iterator[NDArray[Any]]:
    """Blocks of dense rows; the same blocks for rows in memory and in a file."""
    for lo, hi in blocks(X.shape[0], max(1, _NUMBERS // max(1, X.shape[1]))):
        yield X[lo:hi]


def is_sparse(X: object) -> TypeIs[CSR]:
    """True if `X` is CSR."""
    return hasattr(X, "indptr")


def csr(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, ...]) -> CSR:
    """CSR rows from these arrays, without a copy. scipy.sparse is loaded only here, for runs with sparse rows."""
    from scipy.sparse import csr_matrix

    rows: CSR = csr_matrix((data, indices, indptr), shape=shape)
    return rows


def is_csr(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, ...]) -> bool:
    """True if these arrays are valid CSR rows of this shape; compiled code reads them without bounds checks."""
    if len(shape) != 2 or indices.dtype.kind not in "iu" or indptr.dtype.kind not in "iu":
        return False
    (n, d), starts = shape, indptr.astype(np.int64)
    return bool(
        data.ndim == 1 and indices.shape == data.shape and indptr.shape == (n + 1,)
        and starts[0] == 0 and starts[-1] == len(data) and (np.diff(starts) >= 0).all()
        and (not indices.size or 0 <= indices.min() <= indices.max() < d)
    )  # fmt: skip


def in_memory(X: AnyRows) -> Rows:
    """The rows in memory; read if they are in a file."""
    return X[:] if isinstance(X, StoredRows) else X


def take_rows(X: SameRows, rows: RowNumbers) -> SameRows:
    """Some of the rows; if they are in a file, a view without reading."""
    return X.subset(rows) if isinstance(X, StoredRows) else X[rows]


def nbytes(X: AnyRows) -> int:
    """Bytes of memory of the rows; 0 for rows in a file."""
    return X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if is_sparse(X) else int(X.nbytes)


def check_alike(X: AnyRows, comm: Communicator) -> None:
    """Raise an error on all ranks if rows differ between ranks in their number of features, kind or type."""
    require_same(kind_of_rows(X), comm)


def kind_of_rows(X: AnyRows) -> dict[str, object]:
    """Facts in which all ranks' rows must be alike: number of features, dense or CSR, type of the numbers."""
    return {
        "features of X": X.shape[1],
        "X": Unquoted("CSR" if is_sparse(X) else "dense"),
        "type of X": Unquoted(X.dtype.name),
    }


def concatenate(pieces: Sequence[AnyRows]) -> Rows:
    """Stack blocks of rows of one kind; they are read if they are in a file."""
    if len(pieces) == 1:
        return in_memory(pieces[0])
    if not is_sparse(pieces[0]):
        return np.concatenate([dense(piece) for piece in pieces])
    from scipy.sparse import vstack

    rows: CSR = vstack(pieces, format="csr")
    return rows


def dense(X: AnyRows) -> NDArray[Any]:
    """The rows as an ndarray; read if they are in a file."""
    if is_sparse(X):
        return X.toarray()
    return X[:] if isinstance(X, StoredRows) else X


def shifted(X: Rows, shift: NDArray[np.floating] | None) -> Rows:
    """``X - shift`` in double precision; CSR rows stay CSR if few features are shifted."""
    if shift is None:
        return X
    if not is_sparse(X):
        return X - shift.astype(np.float64, copy=False)
    places = np.flatnonzero(shift)
    if 2 * len(places) > X.shape[1]:
        return dense(X) - shift.astype(np.float64, copy=False)
    n = X.shape[0]
    columns = np.tile(places.astype(X.indices.dtype), n)
    starts = np.arange(0, n * len(places) + 1, len(places), dtype=X.indptr.dtype)
    rows: CSR = X.astype(np.float64) - csr(np.tile(shift[places].astype(np.float64), n), columns, starts, X.shape)
    return rows


def worth_packing(X: AnyRows, comm: Communicator) -> bool:
    """True if dense rows have enough zeros to send them without these; one Allreduce of two numbers."""
    if is_sparse(X) or comm.size == 1:
        return False
    sample = X[:: max(1, len(X) // _SAMPLE)]
    nonzero, size = comm.allreduce(np.array([np.count_nonzero(sample), sample.size], np.int64)).tolist()
    return bool(nonzero < _PACKED * size)


def _packed(X: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.int64]]:
    """Mask of the nonzero numbers as bits, these numbers, and their count per row; -0.0 counts as nonzero."""
    there = np.ascontiguousarray(X).view(f"u{X.itemsize}") != 0
    return np.packbits(there, axis=1), X[there], there.sum(axis=1, dtype=np.int64)


def _unpacked(bits: NDArray[np.uint8], values: NDArray[Any], d: int) -> NDArray[Any]:
    out = np.zeros((len(bits), d), values.dtype)
    out[np.unpackbits(bits, axis=1, count=d).view(np.bool_)] = values
    return out


def exchange_rows(X: SameRows, counts: NDArray[np.int64], comm: Communicator, pack: bool = False) -> SameRows:
    """Send rows, sorted by receiver, like :meth:`Communicator.alltoall`; CSR stays CSR.

    With `pack`, which must be the same on all ranks, dense rows are sent without their zeros. Rows in a file go
    to another file, block by block.
    """
    if comm.size == 1:
        return X
    if isinstance(X, StoredRows):
        return _exchanged_in_file(X, counts, comm)
    if not is_sparse(X):
        if not pack:
            return comm.alltoall(X, counts)[0]
        bits, values, lengths = _packed(X)
        ends = np.append(0, np.cumsum(lengths))[np.cumsum(counts)]
        arrived, _ = comm.alltoall(bits, counts)
        return _unpacked(arrived, comm.alltoall(values, np.diff(ends, prepend=0))[0], X.shape[1])
    lengths, _ = comm.alltoall(np.diff(X.indptr).astype(np.int64), counts)
    stops = X.indptr[np.cumsum(counts)].astype(np.int64)
    values = np.diff(stops, prepend=0)
    data, _ = comm.alltoall(X.data, values)
    indices, _ = comm.alltoall(X.indices.astype(np.int64), values)
    return _csr(data, indices, lengths, X.shape[1])


def _exchanged_in_file(X: StoredRows, counts: NDArray[np.int64], comm: Communicator) -> StoredRows:
    """:func:`exchange_rows` for rows in a file; the file itself, if no rank has rows for another."""
    with comm.uncounted():
        table = comm.allgather(np.asarray(counts, np.int64)).reshape(comm.size, comm.size)
    if (table == np.diag(np.diagonal(table))).all():
        return X
    mine, ends, step = table[:, comm.rank], np.cumsum(counts), max(1, X.block_rows // comm.size)
    out, at = X.another(int(mine.sum())), np.cumsum(mine) - mine  # where the next row of each rank belongs
    for lo in range(0, int(table.sum(axis=1).max()), step):
        now = np.diff(np.clip(ends, lo, lo + step), prepend=lo).clip(0)
        arrived, lengths = comm.alltoall(X[lo : lo + step], now)
        for block, start in zip(np.split(arrived, np.cumsum(lengths)[:-1]), at, strict=True):
            out[start : start + len(block)] = block
        at += lengths
    return out


def gather_rows(X: SameRows, comm: Communicator, counts: NDArray[np.int64] | None = None) -> SameRows:
    """All ranks' rows, in rank order, on every rank; `counts` as for :meth:`Communicator.allgather`.

    If the rows are in files, each rank gets a file with all rows.
    """
    if isinstance(X, StoredRows):
        return X if comm.size == 1 else _gathered_in_file(X, comm)
    if not is_sparse(X):
        return comm.allgather(X, counts)
    lengths, counts = comm.allgather_parts(np.diff(X.indptr).astype(np.int64), counts)
    ends = np.append(0, np.cumsum(lengths))[np.append(0, np.cumsum(counts))]
    values = np.diff(ends).astype(np.int64)
    indices = comm.allgather(X.indices.astype(np.int64), values)
    return _csr(comm.allgather(X.data, values), indices, lengths, X.shape[1])


def _gathered_in_file(X: StoredRows, comm: Communicator) -> StoredRows:
    """:func:`gather_rows` for rows in a file, block by block."""
    counts = comm.allgather(np.array([len(X)], np.int64))
    starts, step = np.cumsum(counts) - counts, max(1, X.block_rows // comm.size)
    out = X.another(int(counts.sum()))
    for lo, hi in blocks(int(counts.max()), step):
        arrived, lengths = comm.allgather_parts(X[lo:hi])
        for block, start in zip(np.split(arrived, np.cumsum(lengths)[:-1]), starts + lo, strict=True):
            out[start : start + len(block)] = block
    return out


def bcast_rows(X: Rows | None, comm: Communicator, root: int) -> Rows:
    """The root's rows on every rank; the argument of the other ranks is ignored."""
    root_rows = X if comm.rank == root else None
    if root_rows is not None and comm.size == 1:
        return root_rows
    shape = comm.bcast(
        None if root_rows is None else np.array([*root_rows.shape, is_sparse(root_rows)], np.int64), root
    )
    if not shape[2]:
        return comm.bcast(None if root_rows is None or is_sparse(root_rows) else root_rows, root)
    sparse = root_rows if is_sparse(root_rows) else None
    lengths = comm.bcast(None if sparse is None else np.diff(sparse.indptr).astype(np.int64), root)
    data = comm.bcast(None if sparse is None else sparse.data, root)
    return _csr(data, comm.bcast(None if sparse is None else sparse.indices, root), lengths, int(shape[1]))


def send_rows(X: Rows, dest: int, comm: Communicator) -> None:
    """Send rows to rank `dest`, which calls :func:`recv_rows`; many zeros are left out."""
    if is_sparse(X):
        arrays: tuple[NDArray[Any], ...] = np.diff(X.indptr).astype(np.int64), X.data, X.indices
    else:
        arrays = _packed(X)[:2] if np.count_nonzero(X) < _PACKED * X.size else (X,)
    for values in arrays:
        comm.send(values, dest)


def recv_rows(source: int, comm: Communicator, like: Rows) -> Rows:
    """Receive rows from rank `source`, of the same kind and number of features as `like`."""
    if not is_sparse(like):
        X = comm.recv(source)
        return _unpacked(X, comm.recv(source), like.shape[1]) if X.dtype == np.uint8 else X
    lengths, data, indices = (comm.recv(source) for _ in range(3))
    return _csr(data, indices, lengths, like.shape[1])


def scatter_rows(X: Rows | None, n: int, comm: Communicator, root: int = 0) -> Rows:
    """This rank's block of the root's n rows, split evenly over the ranks."""
    counts = np.diff([block_bounds(n, comm.size, r)[0] for r in range(comm.size)] + [n]).astype(np.int64)
    kind = comm.bcast(np.array([X is not None and is_sparse(X), 0 if X is None else X.shape[-1]], np.int64), root)
    if not kind[0]:
        return comm.scatter(None if X is None else np.asarray(X), counts, root)
    # Other ranks take the value type from the root.
    root_csr = X if is_sparse(X) and comm.rank == root else None
    example = comm.bcast(None if root_csr is None else root_csr.data[:0], root)
    none = np.zeros(0, np.int64)
    send = _csr(example, none, none, int(kind[1])) if root_csr is None else root_csr
    return exchange_rows(send, np.zeros(comm.size, np.int64) if root_csr is None else counts, comm)


def _csr(data: NDArray[Any], indices: NDArray[np.int64], lengths: NDArray[np.int64], d: int) -> CSR:
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    index = np.int32 if max(d, len(data)) < 2**31 else np.int64
    return csr(data, indices.astype(index), indptr.astype(index), (len(lengths), d))


def first_nonfinite(X: Rows, dtype: np.dtype[np.floating] | None = None) -> tuple[int, int, float] | None:
    """Row, column and value of the first NaN or infinity, or None; one pass, on all threads.

    With a `dtype`, numbers that overflow it count as well.
    """
    values = X.data if is_sparse(X) else X
    if values.dtype.kind != "f":
        return None
    bad: list[int] = []

    def look(lo: int, hi: int) -> None:
        # A finite sum proves finite terms and costs a third of isfinite; only otherwise are the terms checked.
        with np.errstate(over="ignore", invalid="ignore"):
            part = values[lo:hi].astype(dtype or values.dtype, copy=False)
            if not np.isfinite(part.sum()) and not np.isfinite(part).all():
                bad.append(lo)

    step = max(1, (1 << 18) // max(1, values[:1].size))
    for_blocks(look, blocks(len(values), step))
    if not bad:
        return None
    lo = min(bad)
    block = values[lo : lo + step]
    with np.errstate(over="ignore", invalid="ignore"):
        place = np.argwhere(~np.isfinite(block.astype(dtype or values.dtype, copy=False)))[0]
    row, column = _where(X, lo + int(place[0]), *place[1:].tolist())
    return row, column, float(block[tuple(place)])


def _where(X: AnyRows, first: int, column: int = 0) -> tuple[int, int]:
    """Row and column of a number: given directly for dense rows, by its index among the stored numbers for CSR."""
    if not is_sparse(X):
        return first, column
    return int(np.searchsorted(X.indptr, first, side="right")) - 1, int(X.indices[first])


def largest_size(X: AnyRows) -> float:
    """Largest absolute value; 0 without entries."""
    if is_sparse(X):
        return _largest(X.data)
    return float(np.max([_largest(block) for block in in_blocks(X)], initial=0.0))


def _largest(values: NDArray[Any]) -> float:
    return float(max(values.max(), -values.min())) if values.size else 0.0


def power_of_two(size: float) -> float:
    """The largest power of two that is at most `size`; 1 for 0."""
    return math.ldexp(1.0, math.frexp(size)[1] - 1) if size > 0 else 1.0


def largest_usable(dtype: DTypeLike) -> float:
    """Largest number of this dtype for which squared norms of rows, and sums of them, do not overflow."""
    return 1e16 if np.dtype(dtype) == np.float32 else 1e150


def check_range(X: AnyRows, where: str = "X") -> float:
    """Largest absolute value; an InputError, beginning with `where`, if its square may overflow. One pass over `X`."""
    limit, largest = largest_usable(X.dtype), largest_size(X)
    if largest <= limit:
        return largest
    first = 0
    for values in [X.data] if is_sparse(X) else in_blocks(X):
        if len(places := np.argwhere(~(np.abs(values) <= limit))):
            break
        first += len(values)
    at, *others = places[0].tolist()
    (row, column), value = _where(X, first + at, *others), values[tuple(places[0])]
    raise InputError(
        f"{where}: row {row}, feature {column} is {value:g}, and squares of numbers above {limit:g} may overflow in "
        f"{X.dtype}: {range_remedy(X.dtype)}"
    )


def check_squares(X: AnyRows, comm: Communicator) -> None:
    """Refuse training rows whose squares, or those of their differences, overflow or all underflow; collective.

    Differences are looked at only where all numbers are so small that they could underflow: one more pass, and an
    Allreduce of two numbers per feature.
    """
    with comm.uncounted():
        with comm.agreed():
            local_largest = check_range(X, "the training rows")
        largest = float(comm.allreduce(np.array([local_largest]), "max")[0])
        with comm.agreed():
            if 0 < largest < 1 / largest_usable(X.dtype):
                raise InputError(
                    f"the training rows: no value is above {largest:g}, so squares underflow in {X.dtype}: "
                    f"{range_remedy(X.dtype)}"
                )
        # Kernel values may be wrong below this range of a feature: with a margin for gamma, and for rounding.
        least = 1e-16 if X.dtype == np.float32 else 1e-140
        if 0 < largest < least / np.finfo(X.dtype).eps:
            spread = _spread(X, comm)
            with comm.agreed():
                if 0 < spread < least:
                    raise InputError(
                        f"the training rows: no feature varies by more than {spread:g}, so squares of differences "
                        f"underflow in {X.dtype}: {range_remedy(X.dtype)}"
                    )


def _spread(X: AnyRows, comm: Communicator) -> float:
    """The largest difference between two rows in one feature, over all ranks; collective."""
    d = X.shape[1]
    low, high = np.full(d, np.inf), np.full(d, -np.inf)
    if is_sparse(X):
        zeros = np.bincount(X.indices, minlength=d) < X.shape[0]  # features that some row does not store
        low[zeros] = high[zeros] = 0.0
        np.minimum.at(low, X.indices, X.data)
        np.maximum.at(high, X.indices, X.data)
    for block in () if is_sparse(X) else in_blocks(X):
        low = np.minimum(low, block.min(axis=0, initial=np.inf))
        high = np.maximum(high, block.max(axis=0, initial=-np.inf))
    ends = comm.allreduce(np.concatenate([low, -high]), "min")
    return float(np.max(-ends[d:] - ends[:d], initial=0.0))


def range_remedy(dtype: DTypeLike) -> str:
    """Advice for messages about numbers whose squares overflow, or underflow, in this dtype."""
    return "standardise the features" + (", or use float64" if dtype == np.float32 else "")


def check_targets(y: NDArray[Any], where: str, limit: float, comm: Communicator) -> None:
    """Refuse targets whose squares overflow or all underflow: errors would all be NaN, or all 0.

    Parameters
    ----------
    y : ndarray, shape (n_local,) or (n_local, t)
    where : str
        Name of the rows in the message.
    limit : float
        Largest usable target; the inverse of the smallest.
    comm : Communicator
    """
    sizes = np.abs(y).reshape(len(y), math.prod(y.shape[1:])).max(axis=1, initial=0.0)
    with comm.uncounted():
        first = comm.offset(len(y))[0]
        largest = float(comm.allreduce(np.array([sizes.max(initial=0.0)]), "max")[0])
        with comm.agreed():
            if (over := np.flatnonzero(sizes > limit)).size:
                value = f"row {first + over[0]:,}, the target is {np.ravel(y[over[0]])[0]:g}"
                raise InputError(f"{where}: {value}; above {limit:g} a model's errors may overflow: scale the targets")
            if 0 < largest < 1 / limit:
                what = f"no target is above {largest:g}, so squares underflow"
                raise InputError(f"{where}: {what}: scale the targets")
