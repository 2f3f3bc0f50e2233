"""Kernel values, block by block: the one place that evaluates kernels."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.data.rows import Rows, dense, in_blocks, is_sparse
from cacore.errors import InputError
from cacore.kernels.evaluate import finish
from cacore.kernels.pairs import compare, flat
from cacore.kernels.registry import KINDS, L1, SQUARED, KernelKind
from cacore.kernels.sums import NONZEROS, PRODUCTS, WHOLE
from cacore.machine.threads import blocks, for_blocks

# A kernel in compiled code: where its function lies (0: the inner product itself), gamma, coef0, degree, and what is
# added up over the features (:func:`cacore.kernels.sums.meet`).
Parameters = tuple[int, Any, Any, int, int]

# Rows of one task: the product of a block with all columns should still be in cache for the pass over it.
_BLOCK_BYTES = 1 << 20
_COLUMNS = 1024
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
        least = self.declared.least_degree
        if self.degree < least:
            raise InputError(f"degree = {self.degree}: the {self.kind} kernel needs a whole number of at least {least}")

    @property
    def compiled(self) -> bool:
        """Whether compiled code can evaluate it."""
        return True

    def stored(self) -> dict[str, Any]:
        """What a model's file holds: the fields."""
        return asdict(self)

    @property
    def declared(self) -> KernelKind:
        """What the kernel's declaration says."""
        return KINDS[self.kind]

    @classmethod
    def gaussian(cls, sigma: float) -> Kernel:
        """exp(-|x-z|^2 / (2 sigma^2)), the form of Table 3.1."""
        return cls("gaussian").with_sigma(sigma)

    def with_sigma(self, sigma: float) -> Kernel:
        """The same kernel of width `sigma`, if it has one; see :meth:`KernelKind.gamma_of`."""
        if not (math.isfinite(sigma) and sigma > 0):
            raise InputError(f"sigma = {sigma:g}: it must be a positive number")
        gamma = self.declared.gamma_of(sigma)
        if gamma == 0.0:
            raise InputError(f"sigma = {sigma:g}: gamma = 1 / (2 sigma^2) is 0 in double precision; use a smaller one")
        return replace(self, gamma=gamma) if self.has("gamma") else self

    def has(self, parameter: str) -> bool:
        """Whether "gamma", "coef0" or "degree" is a parameter of this kernel."""
        return parameter in self.declared.parameters

    def fits(self, dtype: Any) -> bool:
        """Whether gamma leaves nothing to squared distances that single precision rounds to 0 or to infinity."""
        return bool(dtype == np.float64 or not self.has("gamma") or 1e-30 < self.gamma < 1e30)

    @property
    def of_distance(self) -> bool:
        """Whether this is a function of a distance, and not of the inner product."""
        return self.declared.of_distance

    @property
    def shifts(self) -> bool:
        """Whether rows far from the origin should be shifted: where squared distances are made of inner products."""
        return self.declared.of == SQUARED

    def measure(self, nonzeros: bool = False) -> int:
        """What is added up over the features: of rows without their zeros, or of whole rows."""
        if self.declared.of != L1:
            return PRODUCTS
        return NONZEROS if nonzeros else WHOLE

    def parameters(self, dtype: np.dtype[Any], measure: int = PRODUCTS) -> Parameters:
        """What :func:`finish` takes for kernel values of this dtype; compiles the function of the kernel, once."""
        gamma = min(self.gamma, float(np.finfo(dtype).max))
        with np.errstate(over="ignore"):
            coef0 = dtype.type(self.coef0)
        return self.declared.address(dtype), dtype.type(gamma), coef0, int(self.degree), measure

    def derivative(self, t: Any) -> Any:
        """Derivative of the kernel by what it is a function of (:attr:`KernelKind.of`), `t`: a number or an ndarray."""
        return self.declared.derivative(t, self.gamma, self.coef0, self.degree)

    def points(self, X: Rows, like: Points | None = None) -> Points:
        """`X` ready for this kernel, shifted to its own mean, or as `like` is, where the kernel does not mind."""
        if like is not None:
            return Points(X, like.shift)
        centered = self.shifts and not sp.issparse(X) and len(X)
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
        2 len(A) len(B) d flops (3 for l1 distances, which are no matrix product) and one pass; fewer, and memory
        beside `out`, of CSR rows, see :func:`cacore.kernels.pairs.compare`. Runs in the calling thread:
        cut large work with :func:`cacore.machine.threads.for_blocks`.
        """
        if out is None:
            out = np.empty((len(A), len(B)), A.X.dtype)
        measure, parameters = self.measure(), self.parameters(out.dtype)
        # A matrix product does best with all columns; of distances some are still in cache when the kernel follows.
        for lo, hi in [(0, len(B))] if measure == PRODUCTS else blocks(len(B), _COLUMNS):
            part = out[:, lo:hi]
            compare(measure, A.X, B.X[lo:hi], part)
            _finish_rows(*flat(part), A.squares, B.squares[lo:hi], parameters)
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
        every = [self._squares(block).max(initial=0.0) for block in ([X] if is_sparse(X) else in_blocks(X))]
        most = np.max(every, initial=0.0)
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
        step = _block_rows(len(B), out.itemsize, A)
        for_blocks(lambda lo, hi: self.block(A[lo:hi], B, out[lo:hi]), blocks(len(A), step))

    def gram(self, A: Points, out: NDArray[Any]) -> None:
        """Kernel values of `A` with itself, in the lower triangle and the diagonal of `out`.

        m^2 d flops, on all threads. What lies above the diagonal is undefined.
        """
        m = len(A)
        # The later rows are the longer ones: they go first, so that the threads finish together.
        tasks = blocks(m, _block_rows(m, out.itemsize, A))[::-1]
        for_blocks(lambda lo, hi: self.block(A[lo:hi], A[0:hi], out[lo:hi, :hi]), tasks)
        if self.of_distance:
            out.reshape(-1)[:: m + 1] = self.of_squares(A.squares)

    def compare(self, A: Points, out: NDArray[Any]) -> None:
        """What the kernel is a function of, for the rows of `A`, above the diagonal of `out`: once for all widths.

        m^2 d flops, on all threads. What lies on and below the diagonal, where the kernel values and their
        factor go, is undefined.
        """
        m = len(A)
        tasks = blocks(m, _block_rows(m, out.itemsize, A))
        for_blocks(lambda lo, hi: self._compare(A[lo:hi], A[lo:m], out[lo:hi, lo:]), tasks)

    def _compare(self, A: Points, B: Points, out: NDArray[Any]) -> None:
        compare(self.measure(), A.X, B.X, out)

    def gram_from(self, G: NDArray[Any], A: Points) -> None:
        """Kernel values in the lower triangle of `G` and its diagonal, from what :meth:`compare` left above it.

        Parameters
        ----------
        G : ndarray, shape (m, m), C-contiguous
        A : Points
            Of m rows.

        Notes
        -----
        m^2/2 kernel values, on all threads; what lies above the diagonal stays, for the next kernel.
        """
        m, parameters = len(G), self.parameters(G.dtype)

        for_blocks(lambda lo, hi: _mirrored(G.reshape(-1), A.squares, lo, hi, parameters), blocks(m, _TILE))
        G.reshape(-1)[:: m + 1] = self.of_squares(A.squares) if self.compiled else self.diagonal(A.X)

    def compare_all(self, A: Points, out: NDArray[Any]) -> None:
        """As :meth:`compare`, for all pairs of rows: the whole of `out`, shape (m, m).

        2 m^2 d flops, on all threads.
        """
        m = len(A)
        tasks = blocks(m, _block_rows(m, out.itemsize, A))
        for_blocks(lambda lo, hi: self._compare(A[lo:hi], A, out[lo:hi]), tasks)

    def values_from(self, compared: NDArray[Any], A: Points, out: NDArray[Any]) -> None:
        """All kernel values of the rows of `A` with each other, from what :meth:`compare_all` left.

        Parameters
        ----------
        compared : ndarray, shape (m, m), C-contiguous
            Not changed: the next kernel begins with it.
        A : Points
            Of m rows.
        out : ndarray, shape (m, >= m)
            Rows contiguous, in the dtype of `compared`; further columns are left as they are.

        Notes
        -----
        m^2 kernel values, on all threads.
        """
        m, parameters = len(A), self.parameters(out.dtype)

        def rows(lo: int, hi: int) -> None:
            part = out[lo:hi, :m]
            np.copyto(part, compared[lo:hi])
            _finish_rows(*flat(part), A.squares[lo:hi], A.squares, parameters)

        for_blocks(rows, blocks(m, _block_rows(m, out.itemsize)))
        if self.of_distance:
            out[np.arange(m), np.arange(m)] = self.of_squares(A.squares)

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

        for_blocks(rows, blocks(len(A), _block_rows(len(B), out.itemsize, A)))
        return out


def _block_rows(columns: int, itemsize: int, A: Points | None = None) -> int:
    """Rows of a task; more of `A`, if they are CSR: they are made ready first, and then meet all columns' nonzeros."""
    least = 256 if A is not None and sp.issparse(A.X) else 64
    return int(np.clip(_BLOCK_BYTES // max(1, columns * itemsize), least, 1024))


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
