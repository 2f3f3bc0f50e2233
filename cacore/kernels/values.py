"""The kernel object with its parameters, and blocks of kernel values: of two sets of rows, or of all pairs.

Rows are prepared once, with their squared norms and shifted towards the origin. Their inner products, l1 distances or
products of factors are the argument of the kernel function.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numba
import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.arrays import Ints, Reals
from cacore.data.rows import CSR, AnyRows, Rows, dense, in_blocks, is_sparse, shifted
from cacore.errors import InputError
from cacore.kernels.evaluate import DIFFERENCES, FACTORS, NONZEROS, PRODUCTS, KernelFormula, Parameters, finish
from cacore.kernels.precision import WIDEST, Extent, rounding, shift_of
from cacore.kernels.registry import EQUAL, SQUARED
from cacore.kernels.sums import GROUP, meet, pack, room, width
from cacore.kernels.wide import Arranged, Features, Wide
from cacore.machine.threads import blocks, for_blocks


class Points:
    """Rows prepared for kernel values: shifted, with their squared norms.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d), float32 or float64
        Not changed. With a shift, the rows are copied; CSR rows stay CSR if few features are shifted.
    shift : ndarray of shape (d,) or None
        Vector subtracted from the rows in double precision; only for kernels of a distance, and the same on both sides.
        |x|^2 + |z|^2 - 2 x.z loses all digits for rows that are close to each other and far from the origin; a shift
        moves the origin.
    gaps : bool
        True if squared distances are sums of squared differences, since inner products are not accurate enough
        (:func:`cacore.kernels.precision.rounding`). The rows are then dense.

    Attributes
    ----------
    X : ndarray or CSR
        The shifted rows.
    squares : ndarray, shape (m,)
        Squared norms, in the dtype of `X`; 0 with `gaps`, whose sums take the place of inner products.
    """

    def __init__(self, X: Rows, shift: NDArray[np.floating] | None = None, gaps: bool = False) -> None:
        dtype = X.dtype
        if shift is not None:
            X = shifted(X, shift).astype(dtype, copy=False)
        if gaps:
            X = dense(X)
        self.X, self.shift, self.gaps = X, shift, gaps
        if gaps:
            self.squares = np.zeros(X.shape[0], dtype)
        elif is_sparse(X):
            self.squares = np.asarray(X.multiply(X).sum(axis=1), X.dtype).ravel()
        else:
            self.squares = np.einsum("ij,ij->i", X, X)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, rows: slice | NDArray[np.integer] | NDArray[np.bool_]) -> Points:
        part = object.__new__(Points)
        part.X, part.squares, part.shift, part.gaps = self.X[rows], self.squares[rows], self.shift, self.gaps
        return part


class Nonzeros(Points):
    """Points whose rows are CSR, see :func:`cacore.kernels.panels.nonzeros`."""

    X: CSR


_FIRST = 1 << 15  # bytes of packed rows that fit in the L1 cache
_BLOCK, _ROWS = 1024, 4096  # CSR rows of `A` and of `B` per block: 32 MiB of kernel values; not measured
_FEATURES = 4096  # features of CSR rows that are dense at a time: 1,024 rows of them are 32 MiB, as much as the values


def compare(kernel: Parameters, A: Rows, B: Rows, out: NDArray[np.floating]) -> None:
    """Write what the kernel's measure says of all pairs of rows to `out`, in the calling thread.

    That is inner products, ``A @ B.T``, l1 distances, ``-|x-z|^2 / 2``, or the kernel values of a product over the
    features.

    Parameters
    ----------
    kernel : tuple
        From :meth:`cacore.kernels.Kernel.parameters` for the dtype of `out`; its measure is PRODUCTS, WHOLE, FACTORS or
        DIFFERENCES.
    A, B : ndarray or CSR, shape (m, d), (n, d)
    out : ndarray, shape (m, n)
        Rows contiguous; it may be a slice of a larger matrix.

    Notes
    -----
    2 m n d flops for dense rows, 3 m n d for distances; for CSR rows see :class:`cacore.kernels.wide.Wide`. Extra
    memory: a copy of a block of rows if both sides are CSR; a copy of the dense side if one is; dense copies for l1
    distances and for factors. These take all features that are not 0 in all CSR rows.
    """
    measure = kernel[4]
    if measure == FACTORS and is_sparse(A) and is_sparse(B):
        _sparse_factors(kernel, A, B, out)
    elif is_sparse(A) and is_sparse(B):
        _sparse(measure, A, B, out)
    elif measure == PRODUCTS and is_sparse(A):
        out[...] = A @ np.ascontiguousarray(dense(B).T)
    elif measure == PRODUCTS and is_sparse(B):
        out[...] = (B @ np.ascontiguousarray(dense(A).T)).T
    elif measure == PRODUCTS:
        np.matmul(dense(A), dense(B).T, out=out)
    elif out.size:
        A, B = (np.ascontiguousarray(dense(rows), out.dtype) for rows in (A, B))
        d, W = A.shape[1], width(out.dtype)
        panels = min(GROUP, max(1, _FIRST // (d * W * out.itemsize)), -(-len(B) // W))
        _meet_all(A, B, np.arange(d, dtype=np.int32), kernel, *flat(out), room((panels, d, W), out.dtype))


def _sparse(measure: int, A: CSR, B: CSR, out: NDArray[np.floating]) -> None:
    """:func:`compare` for CSR rows: blocks of `A` are the columns, and all rows of `B` meet each block."""
    measure = PRODUCTS if measure == PRODUCTS else NONZEROS
    for lo, hi in blocks(A.shape[0], _BLOCK):
        part_of_A, (part_of_out, ld) = A[lo:hi], flat(out[lo:hi])
        features = Features.of(part_of_A)
        columns = Wide(part_of_A, features, out.dtype, measure=measure)
        for first, last in blocks(B.shape[0], _ROWS):
            rows = Arranged.of(B, features, out.dtype, np.arange(first, last), measure)
            columns.compare(rows, part_of_out, ld, first)


def _sparse_factors(kernel: Parameters, A: CSR, B: CSR, out: NDArray[np.floating]) -> None:
    """:func:`compare` for CSR rows and a product over the features: of those that are not all 0, some at a time."""
    present = np.unique(np.concatenate([A.indices, B.indices]))
    out[...] = 1.0
    for lo, hi in blocks(len(present), _FEATURES):
        features, part = present[lo:hi], np.empty_like(out)
        compare(kernel, dense(A[:, features]), dense(B[:, features]), part)
        out *= part


def flat(G: NDArray[np.floating]) -> tuple[NDArray[np.floating], int]:
    """A block as one vector, and its row stride: numba vectorises only arrays that it knows to be contiguous."""
    ld = G.strides[0] // G.itemsize
    span = (G.shape[0] - 1) * ld + G.shape[1] if G.size else 0
    return np.lib.stride_tricks.as_strided(G, (span,), (G.itemsize,)), ld


@numba.njit(cache=True, nogil=True)
def _meet_all(
    A: Reals, B: Reals, columns: Ints, kernel: Parameters, G: Reals, ld: int, data: Reals
) -> None:  # pragma: no cover - compiled
    """Write l1 distances, or products of factors, of dense rows, (m, d) and (n, d), to `G`, 1-D, with rows `ld` apart.

    Rows of B are packed in `data`, shape (panels, d, width), which stays in cache while all rows of A meet it.
    `columns` holds the int32 numbers 0 to d - 1.
    """
    (m, d), n, W = A.shape, B.shape[0], data.shape[2]
    line = np.empty(W, A.dtype)
    for at in range(0, n, data.shape[0] * W):
        count = min(data.shape[0] * W, n - at)
        panels = -(-count // W)
        pack(B[at : at + count], data[:panels])
        for i in range(m):
            row = A[i]
            for p in range(panels):
                here, remaining = i * ld + at + p * W, count - p * W
                if remaining >= W:
                    meet(row, columns, 0, d, data[p], G[here : here + W], kernel)
                else:
                    meet(row, columns, 0, d, data[p], line, kernel)
                    for k in range(remaining):
                        G[here + k] = line[k]


Real = TypeVar("Real", bound=np.floating)

# Size of one task's products: they should still be in cache when the kernel function is applied.
_BLOCK_BYTES = 1 << 20
_COLUMNS = 1024  # columns of l1 distances per task, which stay in cache until their exponential (677285b2)
_TILE, _LINE = 64, 256  # columns and rows of a tile when a triangle is filled


class Kernel(KernelFormula):
    """A kernel with its parameters, and its values for rows.

    Attributes
    ----------
    kind : str
        A name in :data:`cacore.kernels.KINDS`.
    gamma, coef0 : float
    degree : int

    Examples
    --------
    >>> import numpy as np
    >>> from cacore.kernels import Kernel
    >>> kernel = Kernel.gaussian(sigma=2.0)
    >>> kernel.gamma
    0.125
    >>> points = kernel.points(np.array([[0.0], [2.0]]))
    >>> kernel.block(points, points).round(3).tolist()
    [[1.0, 0.607], [0.607, 1.0]]
    """

    def arguments(self, A: Points, B: Points) -> NDArray[np.floating]:
        """Argument t of the kernel function for all pairs of rows, shape (len(A), len(B)); :attr:`KernelKind.of`.

        The squared distance of equal rows is exactly 0. A product over the features has no argument: the kernel values.
        """
        t = np.empty((len(A), len(B)), A.X.dtype)
        self._compare(A, B, t)
        if A.gaps:
            t *= -2.0
        elif self.declared.of == SQUARED:
            norms = A.squares[:, None] + B.squares
            np.maximum(norms - 2.0 * t, 0.0, out=t)
            t[t <= EQUAL * np.finfo(t.dtype).eps * norms] = 0.0
        return t

    def points(self, X: Rows, like: Points | None = None, allowed: float | None = None) -> Points:
        """`X` prepared for this kernel, and for wider ones.

        Parameters
        ----------
        X : ndarray or CSR, shape (m, d)
        like : Points, optional
            The other side of the kernel values, with the shift to take; by default the rows' own mean, or of CSR rows
            that of the features that all of them store.
        allowed : float, optional
            Largest error of a kernel value, beyond which distances are summed up from differences; by default 1e-11 in
            double and 1e-4 in single precision, since a ridge system divides it by lambda m.
        """
        if like is not None:
            return Points(X, like.shift, like.gaps)
        if not (self.compiled and self.of_distance and X.shape[0]):
            return Points(X)
        shift = shift_of(X, self) if is_sparse(X) or not self.shifts else X.mean(axis=0, dtype=np.float64)
        points = Points(X, shift)
        if self.declared.of != SQUARED or X.shape[1] > WIDEST:
            return points
        tolerated = (1e-11 if X.dtype == np.float64 else 1e-4) if allowed is None else allowed
        square = float(points.squares.max())
        if rounding(self, Extent(square, 0.0, math.sqrt(square), X.shape[1]), X.dtype) <= tolerated:
            return points
        return Points(X, shift, gaps=True)

    def block(self, A: Points, B: Points, out: NDArray[np.floating] | None = None) -> NDArray[np.floating]:
        """Kernel values of every row of `A` with every row of `B`, computed in the calling thread.

        Parameters
        ----------
        A, B : Points
            Rows with the same shift: dense, CSR or one of each.
        out : ndarray, shape (len(A), len(B)), optional
            Rows contiguous; it may be a slice of a larger matrix.

        Returns
        -------
        ndarray, shape (len(A), len(B)), in the dtype of `A`

        Notes
        -----
        2 len(A) len(B) d flops (3 for l1 distances, which are no matrix product, and about 10 for factors) and one pass
        over the result. CSR rows take fewer flops and extra memory, see :func:`compare`. Split
        large work with
        :func:`cacore.machine.threads.for_blocks`.
        """
        if out is None:
            out = np.empty((len(A), len(B)), A.X.dtype)
        parameters = self._parameters_of(A, out)
        # A matrix product is fastest over all columns; distances come in blocks that stay in cache for the kernel.
        for lo, hi in [(0, len(B))] if parameters[4] == PRODUCTS else blocks(len(B), _COLUMNS):
            part = out[:, lo:hi]
            compare(parameters, A.X, B.X[lo:hi], part)
            _finish_rows(*flat(part), A.squares, B.squares[lo:hi], parameters)
        return out

    def diagonal(self, X: Rows) -> NDArray[np.float64]:
        """Kernel values of each row of `X` with itself, shape (m,), in double precision."""
        return self.of_squares(self._squares(X))

    def largest(self, X: AnyRows, dtype: DTypeLike) -> float:
        """Upper bound of |K(x, z)| over all pairs of rows of `X`.

        Raises
        ------
        InputError
            If the bound overflows this dtype.
        """
        row_blocks = () if self.of_distance else [X] if is_sparse(X) else in_blocks(X)
        square = np.max([self._squares(block).max(initial=0.0) for block in row_blocks], initial=0.0)
        # The longest row with itself, and with its negative.
        value = float(np.abs(self.of_squares(np.array([square, -square]))).max())
        if not value <= float(np.finfo(dtype).max) / 4:  # the curvature of a pair adds up four kernel values
            remedy = "scale the features" + (", or use a smaller degree" if self.has("degree") else "")
            raise InputError(f"{self.kind} kernel: its values overflow {np.dtype(dtype)}; {remedy}")
        return value

    def _squares(self, X: Rows) -> NDArray[np.float64]:
        """Argument of the kernel function for each row with itself."""
        return np.zeros(X.shape[0]) if self.of_distance else Points(X.astype(np.float64)).squares

    def of_squares(self, squares: NDArray[Real]) -> NDArray[Real]:
        """K(x, x) for rows x of these squared norms, shape (m,), in the dtype of `squares`."""
        zeros = np.zeros_like(squares)
        values = np.ones_like(squares) if self.separable else zeros.copy() if self.of_distance else squares.copy()
        finish(values, squares.dtype.type(0), zeros, self.parameters(squares.dtype))
        return values

    def fill(self, A: Points, B: Points, out: NDArray[np.floating]) -> None:
        """:meth:`block` on all threads."""
        step = _block_rows(len(B), out.itemsize, A)
        for_blocks(lambda lo, hi: self.block(A[lo:hi], B, out[lo:hi]), blocks(len(A), step))

    def gram(self, A: Points, out: NDArray[np.floating]) -> None:
        """Write the kernel values of all pairs of rows of `A` to the lower triangle and the diagonal of `out`.

        m^2 d flops, on all threads. The strict upper triangle is undefined.
        """
        m = len(A)
        # Later rows are longer: start with them, so that the threads finish together.
        tasks = blocks(m, _block_rows(m, out.itemsize, A))[::-1]
        for_blocks(lambda lo, hi: self.block(A[lo:hi], A[0:hi], out[lo:hi, :hi]), tasks)
        if self.of_distance:
            out.reshape(-1)[:: m + 1] = self.of_squares(A.squares)

    def compare(self, A: Points, out: NDArray[np.floating]) -> None:
        """Write the kernel's argument (inner products or l1 distances) for all pairs above the diagonal of `out`.

        It serves kernels of all widths. m^2 d flops, on all threads. The diagonal and the lower triangle, where the
        kernel values and their factor go, are undefined. Nothing is written for a product over the features, which has
        no such argument.
        """
        if self.separable:
            return
        m = len(A)
        tasks = blocks(m, _block_rows(m, out.itemsize, A))
        for_blocks(lambda lo, hi: self._compare(A[lo:hi], A[lo:m], out[lo:hi, lo:]), tasks)

    def _compare(self, A: Points, B: Points, out: NDArray[np.floating]) -> None:
        compare(self._parameters_of(A, out), A.X, B.X, out)

    def _parameters_of(self, A: Points, out: NDArray[np.floating]) -> Parameters:
        """Parameters for the kernel values of these rows, whose sums may be of differences."""
        return self.parameters(out.dtype, DIFFERENCES if A.gaps else None)

    def gram_from(self, G: NDArray[np.floating], A: Points) -> None:
        """Fill the lower triangle and the diagonal of `G` with kernel values, from the result of :meth:`compare`.

        Parameters
        ----------
        G : ndarray, shape (m, m), C-contiguous
        A : Points
            The m rows.

        Notes
        -----
        m^2/2 kernel values, on all threads. The strict upper triangle is kept for the next kernel. A product over the
        features is computed anew.
        """
        if self.separable:
            self.gram(A, G)
            return
        m, parameters = len(G), self.parameters(G.dtype)

        for_blocks(lambda lo, hi: _mirrored(G.reshape(-1), A.squares, lo, hi, parameters), blocks(m, _TILE))
        G.reshape(-1)[:: m + 1] = self.of_squares(A.squares) if self.compiled else self.diagonal(A.X)

    def compare_all(self, A: Points, out: NDArray[np.floating]) -> None:
        """Write the kernel's argument for all pairs of rows to the whole of `out`, shape (m, m); see :meth:`compare`.

        2 m^2 d flops, on all threads.
        """
        if self.separable:
            return
        m = len(A)
        tasks = blocks(m, _block_rows(m, out.itemsize, A))
        for_blocks(lambda lo, hi: self._compare(A[lo:hi], A, out[lo:hi]), tasks)

    def values_from(self, compared: NDArray[np.floating], A: Points, out: NDArray[np.floating]) -> None:
        """Kernel values of all pairs of rows of `A`, from the result of :meth:`compare_all`.

        Parameters
        ----------
        compared : ndarray, shape (m, m), C-contiguous
            Not changed, so that further kernels can start from it.
        A : Points
            The m rows.
        out : ndarray, shape (m, >= m)
            Rows contiguous, in the dtype of `compared`; further columns are not touched.

        Notes
        -----
        m^2 kernel values, on all threads. A product over the features is computed anew.
        """
        if self.separable:
            self.fill(A, A, out[:, : len(A)])
            return
        m, parameters = len(A), self.parameters(out.dtype)

        def rows(lo: int, hi: int) -> None:
            part = out[lo:hi, :m]
            np.copyto(part, compared[lo:hi])
            _finish_rows(*flat(part), A.squares[lo:hi], A.squares, parameters)

        for_blocks(rows, blocks(m, _block_rows(m, out.itemsize)))
        if self.of_distance:
            out[np.arange(m), np.arange(m)] = self.of_squares(A.squares)

    def apply(self, A: Points, B: Points, coefficients: NDArray[np.floating]) -> NDArray[np.floating]:
        """``K(A, B) @ coefficients`` without storing K, on all threads.

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
            with np.errstate(invalid="ignore"):  # the kernel may have overflowed: a grid search then skips it
                np.matmul(self.block(A[lo:hi], B), coefficients, out=out[lo:hi])

        for_blocks(rows, blocks(len(A), _block_rows(len(B), out.itemsize, A)))
        return out


def _block_rows(columns: int, itemsize: int, A: Points | None = None) -> int:
    """Rows per task; at least 256 for CSR rows `A`, because each task has a fixed cost for preparing them."""
    least = 256 if A is not None and is_sparse(A.X) else 64
    return int(np.clip(_BLOCK_BYTES // max(1, columns * itemsize), least, 1024))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _finish_rows(G: Reals, ld: int, a: Reals, b: Reals, kernel: Parameters) -> None:  # pragma: no cover - compiled
    """Apply :func:`finish` to rows with squared norms `a`, shape (m,), which begin `ld` (int) apart in `G`, 1-D."""
    for i in range(a.size):
        finish(G[i * ld : i * ld + b.size], a[i], b, kernel)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _mirrored(G: Reals, squares: Reals, lo: int, hi: int, kernel: Parameters) -> None:  # pragma: no cover - compiled
    """Fill columns lo to hi (int) below the diagonal of `G`, 1-D, with kernel values from rows lo to hi above it.

    Each tile is computed along its rows above the diagonal and written along its columns below. `squares` has shape
    (m,) and the dtype of `G`; `kernel` holds the parameters of :func:`finish`.
    """
    m, tile = squares.size, np.empty((hi - lo, _LINE + 8), G.dtype)  # + 8 puts its columns in different cache sets
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
