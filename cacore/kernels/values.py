"""Kernel values (Tables 2.1 and 3.1), block by block: the one place that evaluates kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.data.rows import Rows, dense
from cacore.errors import InputError
from cacore.kernels.evaluate import finish
from cacore.kernels.registry import KINDS
from cacore.machine.threads import blocks, for_blocks

# A kernel in compiled code: where its function lies (0: the inner product itself), gamma, coef0, degree.
Parameters = tuple[int, Any, Any, int]

# Rows of one task: the product of a block with all columns should still be in cache for the pass over it.
_BLOCK_BYTES = 1 << 20
_TILE, _LINE = 64, 256  # columns of a triangle that are filled in one go, and rows at a time


class Points:
    """Rows made ready for kernel values: shifted, with their squared norms.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d), float32 or float64
        Not changed. If a shift is given, the rows are copied, and are dense.
    shift : ndarray of shape (d,) or None
        Subtracted. |x|^2 + |z|^2 - 2 x.z loses every digit when rows are close to each other and far
        from the origin; a shift, the same on both sides, moves the origin. Only for kernels of a distance.

    Attributes
    ----------
    X : ndarray or CSR
    squares : ndarray, shape (m,)
        Squared norms, in the dtype of `X`.
    """

    def __init__(self, X: Rows, shift: NDArray[Any] | None = None) -> None:
        if shift is not None:
            X = dense(X) - shift.astype(X.dtype)
        self.X, self.shift = X, shift
        if sp.issparse(X):
            self.squares = np.asarray(X.multiply(X).sum(axis=1), X.dtype).ravel()
        else:
            self.squares = np.einsum("ij,ij->i", X, X)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, rows: slice | NDArray[Any]) -> Points:
        part = object.__new__(Points)
        part.X, part.squares, part.shift = self.X[rows], self.squares[rows], self.shift
        return part


@dataclass(frozen=True)
class Kernel:
    """A kernel with its parameters.

    Attributes
    ----------
    kind : str
        A name in :data:`cacore.kernels.KINDS`.
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
        if self.has("gamma") and not (math.isfinite(self.gamma) and self.gamma > 0):
            raise InputError(f"gamma = {self.gamma:g}: it must be a positive number")

    @classmethod
    def gaussian(cls, sigma: float) -> Kernel:
        """exp(-|x-z|^2 / (2 sigma^2)), the form of Table 3.1."""
        return cls("gaussian").with_sigma(sigma)

    def with_sigma(self, sigma: float) -> Kernel:
        """The same kernel of width `sigma`, gamma = 1 / (2 sigma^2), if it has gamma."""
        if not (math.isfinite(sigma) and sigma > 0):
            raise InputError(f"sigma = {sigma:g}: it must be a positive number")
        gamma = 1.0 / (2.0 * sigma * sigma) if sigma > 1e-150 else float(np.finfo(float).max)
        if gamma == 0.0:
            raise InputError(f"sigma = {sigma:g}: gamma = 1 / (2 sigma^2) is 0 in double precision; use a smaller one")
        return replace(self, gamma=gamma) if self.has("gamma") else self

    def has(self, parameter: str) -> bool:
        """Whether "gamma", "coef0" or "degree" is a parameter of this kernel."""
        return parameter in KINDS[self.kind].parameters

    def fits(self, dtype: Any) -> bool:
        """Whether gamma leaves nothing to squared distances that single precision rounds to 0 or to infinity."""
        return bool(dtype == np.float64 or not self.has("gamma") or 1e-30 < self.gamma < 1e30)

    @property
    def of_distance(self) -> bool:
        """Whether this is a function of the squared distance, and not of the inner product."""
        return KINDS[self.kind].of_distance

    def parameters(self, dtype: np.dtype[Any]) -> Parameters:
        """What :func:`finish` takes for kernel values of this dtype; compiles the function of the kernel, once."""
        gamma = min(self.gamma, float(np.finfo(dtype).max))
        return KINDS[self.kind].address(dtype), dtype.type(gamma), dtype.type(self.coef0), int(self.degree)

    def derivative(self, t: Any) -> Any:
        """Derivative of the kernel by the squared distances, or inner products, `t`: a number or an ndarray."""
        return KINDS[self.kind].derivative(t, self.gamma, self.coef0, self.degree)

    def points(self, X: Rows, like: Points | None = None) -> Points:
        """`X` ready for this kernel, shifted to its own mean, or as `like` is, where the kernel does not mind."""
        if like is not None:
            return Points(X, like.shift)
        centered = self.of_distance and not sp.issparse(X) and len(X)
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
        _finish_rows(*_flat(out), A.squares, B.squares, self.parameters(out.dtype))
        return out

    def diagonal(self, X: Rows) -> NDArray[np.float64]:
        """Kernel value of each row of `X` with itself, shape (m,), in double precision."""
        return self.of_squares(self._squares(X))

    def largest(self, X: Rows, dtype: Any) -> float:
        """A bound of |K(x, z)| for the rows of `X`.

        Raises
        ------
        InputError
            It does not fit in this dtype.
        """
        most = self._squares(X).max(initial=0.0)
        # Of the longest row with itself, and with one that points the other way.
        value = float(np.abs(self.of_squares(np.array([most, -most]))).max())
        if not value <= float(np.finfo(dtype).max) / 4:  # the curvature of a pair of rows has four of them
            remedy = "scale the features" + (", or use a smaller degree" if self.has("degree") else "")
            raise InputError(f"{self.kind} kernel: its values overflow {np.dtype(dtype)}; {remedy}")
        return value

    def _squares(self, X: Rows) -> NDArray[np.float64]:
        """Of each row with itself, what the kernel is a function of."""
        return np.zeros(X.shape[0]) if self.of_distance else Points(X.astype(np.float64)).squares

    def of_squares(self, squares: NDArray[Any]) -> NDArray[Any]:
        """Kernel values of rows of these squared norms with themselves, shape (m,), in the dtype of `squares`."""
        values, zeros = np.zeros_like(squares) if self.of_distance else squares.copy(), np.zeros_like(squares)
        finish(values, squares.dtype.type(0), zeros, self.parameters(squares.dtype))
        return values

    def fill(self, A: Points, B: Points, out: NDArray[Any]) -> None:
        """:meth:`block` on all threads."""
        for_blocks(
            lambda lo, hi: self.block(A[lo:hi], B, out[lo:hi]), blocks(len(A), _block_rows(len(B), out.itemsize))
        )

    def gram(self, A: Points, out: NDArray[Any]) -> None:
        """Kernel values of `A` with itself, in the lower triangle and the diagonal of `out`.

        m^2 d flops, on all threads. What lies above the diagonal is undefined.
        """
        m = len(A)
        # The later rows are the longer ones: they go first, so that the threads finish together.
        tasks = blocks(m, _block_rows(m, out.itemsize))[::-1]
        for_blocks(lambda lo, hi: self.block(A[lo:hi], A[0:hi], out[lo:hi, :hi]), tasks)
        if self.of_distance:
            out.reshape(-1)[:: m + 1] = self.of_squares(A.squares)

    def gram_from(self, G: NDArray[Any], squares: NDArray[Any]) -> None:
        """Kernel values in the lower triangle of `G` and its diagonal, from what :func:`products` left above it.

        Parameters
        ----------
        G : ndarray, shape (m, m), C-contiguous
        squares : ndarray, shape (m,)
            Squared norms of the rows, see :class:`Points`.

        Notes
        -----
        m^2/2 kernel values, on all threads; what lies above the diagonal stays, for the next kernel.
        """
        m, parameters = len(G), self.parameters(G.dtype)

        for_blocks(lambda lo, hi: _mirrored(G.reshape(-1), squares, lo, hi, parameters), blocks(m, _TILE))
        G.reshape(-1)[:: m + 1] = self.of_squares(squares)

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
            with np.errstate(invalid="ignore"):  # of a kernel that overflowed: a grid goes on without it
                np.matmul(self.block(A[lo:hi], B), coefficients, out=out[lo:hi])

        for_blocks(rows, blocks(len(A), _block_rows(len(B), out.itemsize)))
        return out


def products(A: Points, out: NDArray[Any]) -> None:
    """Inner products of the rows of `A`, above the diagonal of `out`: one matrix product for all kernels.

    m^2 d flops, on all threads. What lies on and below the diagonal, where the kernel values and their
    factor go, is undefined.
    """
    m = len(A)
    for_blocks(lambda lo, hi: _product(A[lo:hi].X, A[lo:m].X, out[lo:hi, lo:]), blocks(m, _block_rows(m, out.itemsize)))


def _block_rows(columns: int, itemsize: int) -> int:
    return int(np.clip(_BLOCK_BYTES // max(1, columns * itemsize), 64, 1024))


def _product(A: Rows, B: Rows, out: NDArray[Any]) -> None:
    """``A @ B.T`` into `out`."""
    if sp.issparse(A) and sp.issparse(B):
        out[...] = 0
        sparse_product(A.data, A.indices, A.indptr, B.data, B.indices, B.indptr, out, np.zeros(A.shape[1], out.dtype))
        return
    np.matmul(dense(A), dense(B).T, out=out)


@numba.njit(cache=True, nogil=True)
def sparse_product(
    a: Any, a_index: Any, a_ptr: Any, b: Any, b_index: Any, b_ptr: Any, out: Any, row: Any
) -> None:  # pragma: no cover - compiled
    """Inner products of CSR rows A and B into `out`, shape (len(A), len(B)).

    One row of A at a time is spread out into `row`, shape (d,), all zero before and after; then it meets the nonzeros
    of every row of B. All floats are of one type, indices and starts int32 or int64.
    """
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


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _finish_rows(G: Any, ld: Any, a: Any, b: Any, kernel: Any) -> None:  # pragma: no cover - compiled
    """:func:`finish` for rows of squared norms `a`, shape (m,), which begin `ld` (int) apart in `G`, 1-D."""
    for i in range(a.size):
        finish(G[i * ld : i * ld + b.size], a[i], b, kernel)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _mirrored(G: Any, squares: Any, lo: Any, hi: Any, kernel: Any) -> None:  # pragma: no cover - compiled
    """Kernel values of the columns lo to hi (int) below the diagonal of `G`, 1-D, from the rows lo to hi above it.

    Tile by tile: a tile's values are computed along its rows above, and written down its columns below.
    `squares` is an array of shape (m,), in the dtype of `G`, and `kernel` what :func:`finish` takes.
    """
    m, tile = squares.size, np.empty((hi - lo, _LINE + 8), G.dtype)  # + 8: its columns lie in different cache sets
    for at in range(lo, m, _LINE):
        end = min(at + _LINE, m)
        for j in range(lo, min(hi, end)):
            first = max(at, j + 1)
            line, above = tile[j - lo, first - at : end - at], G[j * m + first : j * m + end]
            for i in range(line.size):
                line[i] = above[i]
            finish(line, squares[j], squares[first:end], kernel)
        for i in range(at, end):
            below = G[i * m + lo : i * m + min(hi, i)]
            for j in range(below.size):
                below[j] = tile[j, i - at]
