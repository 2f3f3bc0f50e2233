"""Kernel values (Tables 2.1 and 3.1), block by block: the one place that evaluates kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.errors import InputError
from cacore.kernels import fastmath
from cacore.machine.threads import blocks, for_blocks

KINDS = ("linear", "polynomial", "gaussian", "sigmoid")

# Rows of one task: the product of a block with all columns should still be in cache for the pass over it.
_BLOCK_BYTES = 1 << 20


class Points:
    """Rows made ready for kernel values: shifted, with their squared norms.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d), float32 or float64
        Not changed. Dense rows are copied if a shift is given.
    shift : ndarray of shape (d,) or None
        Subtracted from dense rows. |x|^2 + |z|^2 - 2 x.z loses every digit when rows are close to
        each other and far from the origin; a shift, the same on both sides, moves the origin. Only
        for kernels of a distance; CSR rows are not shifted.

    Attributes
    ----------
    X : ndarray or CSR
    squares : ndarray, shape (m,)
        Squared norms, in the dtype of `X`.
    """

    def __init__(self, X: Rows, shift: NDArray[Any] | None = None) -> None:
        self.shift = shift
        if sp.issparse(X) and shift is not None:
            X = X.toarray()  # a shift fills them
        if sp.issparse(X):
            self.X: Rows = X
            power = X.multiply(X).sum(axis=1)
            self.squares = np.asarray(power, X.dtype).ravel()
        else:
            self.X = X - shift.astype(X.dtype) if shift is not None else X
            self.squares = np.einsum("ij,ij->i", self.X, self.X)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, rows: slice | NDArray[Any]) -> Points:
        part = object.__new__(Points)
        part.X, part.squares, part.shift = self.X[rows], self.squares[rows], self.shift
        return part


@dataclass(frozen=True)
class Kernel:
    """One of the four kernels.

    Attributes
    ----------
    kind : {"gaussian", "linear", "polynomial", "sigmoid"}
        exp(-gamma |x-z|^2), x.z, (gamma x.z + coef0)^degree, tanh(gamma x.z + coef0).
    gamma, coef0 : float
    degree : int
    """

    kind: str = "gaussian"
    gamma: float = 1.0
    degree: int = 3
    coef0: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kernel {self.kind!r}: choose one of {', '.join(KINDS)}")
        if self.kind != "linear" and not (math.isfinite(self.gamma) and self.gamma > 0):
            raise InputError(f"gamma = {self.gamma:g}: it must be a positive number")

    @classmethod
    def gaussian(cls, sigma: float) -> Kernel:
        """exp(-|x-z|^2 / (2 sigma^2)), the form of Table 3.1."""
        if not (math.isfinite(sigma) and sigma > 0):
            raise InputError(f"sigma = {sigma:g}: it must be a positive number")
        return cls("gaussian", 1.0 / (2.0 * sigma * sigma) if sigma > 1e-150 else np.finfo(float).max)

    def parameters(self, dtype: np.dtype[Any]) -> tuple[int, Any, Any, int]:
        """What :func:`finish` takes: kind, gamma, coef0 and degree."""
        gamma = min(self.gamma, float(np.finfo(dtype).max))
        return KINDS.index(self.kind), dtype.type(gamma), dtype.type(self.coef0), int(self.degree)

    def points(self, X: Rows, like: Points | None = None) -> Points:
        """`X` ready for this kernel, shifted to its own mean, or as `like` is, where the kernel does not mind."""
        if like is not None:
            return Points(X, like.shift)
        centered = self.kind == "gaussian" and not sp.issparse(X) and len(X)
        return Points(X, X.mean(axis=0, dtype=np.float64) if centered else None)

    def block(self, A: Points, B: Points, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Kernel values of every row of `A` with every row of `B`.

        Parameters
        ----------
        A, B : Points
            With the same shift. Dense, CSR or one of each.
        out : ndarray, shape (len(A), len(B)), optional
            Rows contiguous; it may be a slice of a larger matrix.

        Returns
        -------
        ndarray, shape (len(A), len(B)), in the dtype of `A`

        Notes
        -----
        2 len(A) len(B) d flops and one pass; no memory beside `out`, but a
        dense copy of the CSR side of a mixed pair. Runs in the calling thread:
        cut large work with :func:`cacore.machine.threads.for_blocks`.
        """
        if out is None:
            out = np.empty((len(A), len(B)), A.X.dtype)
        _product(A.X, B.X, out)
        _finish_rows(*_flat(out), A.squares, B.squares, *self.parameters(out.dtype))
        return out

    def diagonal(self, X: Rows) -> NDArray[np.float64]:
        """Kernel value of each row of `X` with itself, shape (m,), in double precision."""
        if self.kind == "gaussian":
            return np.ones(X.shape[0])
        squares = Points(X.astype(np.float64)).squares
        finish(squares, 0.0, squares, *self.parameters(squares.dtype))
        return squares

    def fill(self, A: Points, B: Points, out: NDArray[Any]) -> None:
        """:meth:`block` on all threads."""

        def rows(lo: int, hi: int) -> None:
            self.block(A[lo:hi], B, out[lo:hi])

        for_blocks(rows, blocks(len(A), _block_rows(len(B), out.itemsize)))

    def gram(self, A: Points, out: NDArray[Any]) -> None:
        """Kernel values of `A` with itself, in the lower triangle and the diagonal of `out`.

        m^2 d flops, on all threads. What lies above the diagonal is undefined.
        """
        m = len(A)

        def rows(lo: int, hi: int) -> None:
            self.block(A[lo:hi], A[0:hi], out[lo:hi, :hi])

        # The later rows are the longer ones: they go first, so that the threads finish together.
        for_blocks(rows, blocks(m, _block_rows(m, out.itemsize))[::-1])
        if self.kind == "gaussian":
            out.reshape(-1)[:: m + 1] = 1.0

    def gram_from_distances(self, G: NDArray[Any]) -> None:
        """Gaussian kernel values in the lower triangle of `G`, from what :func:`distances` left above it.

        m^2/2 exponentials, on all threads; what lies above the diagonal stays, for the next sigma.
        """
        m, gamma = len(G), self.parameters(G.dtype)[1]

        def rows(lo: int, hi: int) -> None:
            _mirrored(G.reshape(-1), m, lo, hi, gamma)

        for_blocks(rows, blocks(m, _block_rows(m, G.itemsize))[::-1])
        G.reshape(-1)[:: m + 1] = 1.0

    def apply(self, A: Points, B: Points, coefficients: NDArray[Any]) -> NDArray[Any]:
        """``K(A, B) @ coefficients`` without ever holding K, on all threads.

        Parameters
        ----------
        A, B : Points
        coefficients : ndarray, shape (len(B),) or (len(B), k)

        Returns
        -------
        ndarray, shape (len(A),) or (len(A), k)
        """
        out = np.empty((len(A), *coefficients.shape[1:]), coefficients.dtype)

        def rows(lo: int, hi: int) -> None:
            np.matmul(self.block(A[lo:hi], B), coefficients, out=out[lo:hi])

        for_blocks(rows, blocks(len(A), _block_rows(len(B), out.itemsize)))
        return out


def distances(A: Points, out: NDArray[Any]) -> None:
    """Squared distances between the rows of `A`, above the diagonal of `out`: one product for all sigmas.

    m^2 d flops, on all threads. What lies on and below the diagonal, where the kernel values and their
    factor go, is undefined.
    """
    m = len(A)

    def rows(lo: int, hi: int) -> None:
        block = out[lo:hi, lo:]
        _product(A[lo:hi].X, A[lo:m].X, block)
        _distances(*_flat(block), A.squares[lo:hi], A.squares[lo:])

    for_blocks(rows, blocks(m, _block_rows(m, out.itemsize)))


def _block_rows(columns: int, itemsize: int) -> int:
    return int(np.clip(_BLOCK_BYTES // max(1, columns * itemsize), 64, 1024))


def _product(A: Rows, B: Rows, out: NDArray[Any]) -> None:
    """``A @ B.T`` into `out`."""
    if sp.issparse(A) and sp.issparse(B):
        out[...] = 0
        sparse_product(A.data, A.indices, A.indptr, B.data, B.indices, B.indptr, out, np.zeros(A.shape[1], out.dtype))
        return
    A, B = (M.toarray() if sp.issparse(M) else M for M in (A, B))
    np.matmul(A, B.T, out=out)


@numba.njit(cache=True, nogil=True)
def sparse_product(
    a: Any, a_index: Any, a_ptr: Any, b: Any, b_index: Any, b_ptr: Any, out: Any, row: Any
) -> None:  # pragma: no cover - compiled
    """One row of A at a time is spread out, then meets the nonzeros of every row of B."""
    for i in range(out.shape[0]):
        for p in range(a_ptr[i], a_ptr[i + 1]):
            row[a_index[p]] += a[p]
        for j in range(out.shape[1]):
            dot = row[0] * 0
            for q in range(b_ptr[j], b_ptr[j + 1]):
                dot += b[q] * row[b_index[q]]
            out[i, j] = dot
        for p in range(a_ptr[i], a_ptr[i + 1]):
            row[a_index[p]] = 0


def _flat(G: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """A block as one vector, and its row stride: numba vectorises only what it knows is contiguous."""
    ld = G.strides[0] // G.itemsize
    span = (G.shape[0] - 1) * ld + G.shape[1] if G.size else 0
    return np.lib.stride_tricks.as_strided(G, (span,), (G.itemsize,)), ld


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def finish(
    row: Any, a: Any, b: Any, kind: Any, gamma: Any, coef0: Any, degree: Any
) -> None:  # pragma: no cover - compiled
    """Kernel values in place of inner products: of one row, of squared norm `a`, with those of squared norms `b`.

    `kind` is a place in :data:`KINDS`. Compiled code calls it where the products are still in cache.
    """
    zero, two = row.dtype.type(0.0), row.dtype.type(2.0)
    if kind == 2:
        for j in range(row.size):
            row[j] = fastmath.exp(-gamma * max(zero, a + b[j] - two * row[j]))
    elif kind == 1:
        for j in range(row.size):
            x = gamma * row[j] + coef0
            value = row.dtype.type(1.0)
            for _ in range(degree):
                value *= x
            row[j] = value
    elif kind == 3:
        for j in range(row.size):
            row[j] = math.tanh(gamma * row[j] + coef0)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _finish_rows(
    G: Any, ld: Any, a: Any, b: Any, kind: Any, gamma: Any, coef0: Any, degree: Any
) -> None:  # pragma: no cover - compiled
    for i in range(a.size):
        finish(G[i * ld : i * ld + b.size], a[i], b, kind, gamma, coef0, degree)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _distances(G: Any, ld: Any, a: Any, b: Any) -> None:  # pragma: no cover - compiled
    zero, two = G.dtype.type(0.0), G.dtype.type(2.0)
    for i in range(a.size):
        row = G[i * ld : i * ld + b.size]
        for j in range(b.size):
            row[j] = max(zero, a[i] + b[j] - two * row[j])


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _mirrored(G: Any, m: Any, lo: Any, hi: Any, gamma: Any) -> None:  # pragma: no cover - compiled
    """Tile by tile: a tile's exponentials are computed along its rows above, and written down its columns below."""
    tile = np.empty((64, 64), G.dtype)
    for i0 in range(lo, hi, 64):
        rows = min(64, hi - i0)
        for j0 in range(0, i0 + rows, 64):
            columns = min(64, i0 + rows - j0)
            for j in range(columns):
                above = G[(j0 + j) * m + i0 : (j0 + j) * m + i0 + rows]
                line = tile[j]
                for i in range(rows):
                    line[i] = fastmath.exp(-gamma * above[i])
            for i in range(rows):
                below = G[(i0 + i) * m + j0 : (i0 + i) * m + j0 + columns]
                for j in range(min(columns, i0 + i - j0)):
                    below[j] = tile[j, i]
