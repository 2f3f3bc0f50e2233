"""The accuracy of kernel values: where rows are centred, and how far rounding can move a value at any distance.

One decision for training, searches, calibration and predictions. :func:`rounding` bounds the error of a kernel value
over all pairs of rows; the caller compares it with the largest error that its tolerance allows, which is the tolerance
over the largest coefficient (C of an SVM). Of the ways that are accurate enough, :class:`cacore.kernels.columns.Layout`
takes the cheapest: single or double precision, inner products or differences of the features.

Inner products are cheap, but |x|^2 + |z|^2 - 2 x.z has an absolute error of a few units of rounding of |x|^2, however
close the rows are. Differences of the features have an error that shrinks with the distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.data.rows import CSR, AnyRows, Rows, in_blocks, is_sparse, shifted
from cacore.errors import InputError
from cacore.kernels.evaluate import DIFFERENCES, NONZEROS, PRODUCTS, WHOLE, KernelFormula, at_distances, multiply
from cacore.kernels.registry import EQUAL, L1, SQUARED

AnyKernel = TypeVar("AnyKernel", bound=KernelFormula)

_GRID = 256  # arguments at which slopes are taken; a slope changes by under 25 % to the next
_TERM = 4.0  # units of rounding of |x|^2 in a squared distance (measured: 3 with 54 features, 13 with 5,000)
_LONG = 32.0  # square root of the number of features that doubles _TERM
_VALUE = 8.0  # units of rounding of a value itself: of exp, or of a power
WIDEST = 4096  # features of which differences are summed up: a panel of them still fits in the L2 cache
_GAPS = 1.7  # cost of a difference and its square, in units of a product (measured: 1.4 to 2.1 for 8 to 200 features)
_SAMPLE = 1000  # rows from which a shift is taken
_FAR = 4.0  # columns whose squared mean is above this multiple of their variance are shifted


@dataclass(frozen=True)
class Extent:
    """Largest norms of rows about their shift.

    Attributes
    ----------
    square, size, entry : float
        The largest |x|^2, |x|_1 and |x_k|.
    features : int
        Number of features.
    """

    square: float
    size: float
    entry: float
    features: int

    @classmethod
    def of(cls, X: AnyRows, shift: NDArray[np.float64] | None = None) -> Extent:
        """Extent of rows about `shift`; one pass over their numbers."""
        if is_sparse(X):
            X, shift = shifted(X, shift), None
        if is_sparse(X):
            row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
            sizes = np.abs(X.data[X.indptr[0] : X.indptr[-1]].astype(np.float64))
            squares, sums = np.bincount(row, sizes**2), np.bincount(row, sizes)
            return cls(_largest(squares), _largest(sums), _largest(sizes), X.shape[1])
        largest = np.zeros(3)
        for block in in_blocks(X):
            about = block.astype(np.float64) if shift is None else block - shift
            sizes = np.abs(about)
            norms = np.einsum("ij,ij->i", about, about), sizes.sum(axis=1), sizes.ravel()
            largest = np.maximum(largest, [_largest(norm) for norm in norms])
        return cls(float(largest[0]), float(largest[1]), float(largest[2]), X.shape[1])

    @property
    def norms(self) -> NDArray[np.float64]:
        """The three norms as an array, for a reduction over ranks."""
        return np.array([self.square, self.size, self.entry])

    def over_ranks(self, norms: NDArray[np.float64]) -> Extent:
        """The extent with these norms, the largest over all ranks."""
        square, size, entry = norms.tolist()
        return Extent(square, size, entry, self.features)


@dataclass(frozen=True)
class Accuracy:
    """Errors of kernel values: the largest that is allowed, and one that is refused where no sums are more accurate."""

    allowed: float
    refused: float = np.inf

    @classmethod
    def of_solution(cls, C: float, tol: float, size: float = 1.0) -> Accuracy:
        """Accuracy for coefficients up to `C` and a solver's tolerance `tol` of violations.

        An error is allowed while C times it is below the tolerance. It is refused from a tenth of `size` on, which is
        the margin of a classifier, or half the range of a regression's targets.
        """
        return cls(tol / C, max(0.1 * size, 100.0 * tol) / C) if C > 0 else cls(np.inf)


def _largest(values: NDArray[Any]) -> float:
    return float(values.max(initial=0.0))


def sampled(X: Rows) -> Rows:
    """About a thousand of the rows, evenly spaced; a layout and the extent given to it look at the same ones."""
    return X[:: max(1, X.shape[0] // _SAMPLE)]


def shift_of(X: Rows, kernel: KernelFormula, balanced: bool = False) -> NDArray[np.float64] | None:
    """Vector to subtract from rows that lie far from the origin, from a sample `X` of them; None if there is no need.

    Dense rows are shifted by their mean in all features. CSR rows are shifted only in features that every row of the
    sample stores, so that they stay sparse. Kernels of a distance do not depend on the shift; if coefficients add up to
    0 (`balanced`), nor does the solution for the linear kernel, but for its bias.
    """
    invariant = kernel.of_distance or (balanced and kernel.kind == "linear")
    if not (kernel.compiled and invariant and X.shape[0]):
        return None
    if is_sparse(X):
        return _shift_of_sparse(X)
    mean = X.mean(axis=0, dtype=np.float64)
    about = (X - mean).ravel()
    return mean if mean @ mean * len(X) > _FAR * (about @ about) else None


def _shift_of_sparse(X: CSR) -> NDArray[np.float64] | None:
    n, d = X.shape
    stored = slice(X.indptr[0], X.indptr[-1])
    columns = X.indices[stored]
    full = np.bincount(columns, minlength=d) == n
    if not full.any():
        return None
    values = X.data[stored].astype(np.float64)
    mean = np.where(full, np.bincount(columns, values, d) / n, 0.0)
    about = np.bincount(columns, (values - mean[columns]) ** 2, d) / n
    shift = np.where(full & (mean**2 > _FAR * about), mean, 0.0)
    return shift if shift.any() else None


def rounding(kernel: KernelFormula, extent: Extent, dtype: DTypeLike, measure: int = PRODUCTS) -> float:
    """Upper bound of the error of a kernel value over all pairs of rows, whatever their distance.

    Parameters
    ----------
    kernel : KernelFormula
    extent : Extent
        Of the rows about the shift with which they are stored.
    dtype : dtype
        Precision of the rows and of the sums over their features.
    measure : {PRODUCTS, NONZEROS, WHOLE, FACTORS, DIFFERENCES}
        Terms of the sums, see :func:`cacore.kernels.sums.meet`.

    Returns
    -------
    float
        0 for callables, which have their own precision.

    Notes
    -----
    The largest slope of the kernel times the error of its argument, and the difference of the values at 0 and at the
    distance below which rounding hides distances (:func:`cacore.kernels.registry.length` counts them as 0). The slope
    is taken over all distances at which rows may lie: where rows lie in groups, typical distances say nothing about
    those inside a group.
    """
    kind = kernel.declared
    if not kernel.compiled or not extent.entry > 0:
        return 0.0
    eps = float(np.finfo(dtype).eps)
    unit = _TERM * eps * (1.0 + np.sqrt(extent.features) / _LONG)
    with np.errstate(all="ignore"):
        if not kernel.of_distance:
            grid = np.concatenate([-np.geomspace(1e-8, 1.0, _GRID), [0.0], np.geomspace(1e-8, 1.0, _GRID)])
            error = unit * extent.square * np.abs(kernel.derivative(grid * extent.square)).max()
        elif kernel.separable:
            gaps = 2.0 * extent.entry * _grid(eps**2)
            factors = _factors_at(kernel, gaps)
            error = extent.features * 2.0 * eps * extent.entry * np.abs(kernel.derivative(gaps) * factors).max()
        elif kind.of == L1:
            sums = 2.0 * extent.size * _grid(eps**2)
            error = (unit if measure == NONZEROS else 2.0 * eps) * extent.size * np.abs(kernel.derivative(sums)).max()
        else:
            error = _of_squares(kernel, extent.square, eps, unit, measure)
        return float(error) if np.isfinite(error) else np.inf


def _of_squares(kernel: KernelFormula, square: float, eps: float, unit: float, measure: int) -> float:
    """:func:`rounding` for a kernel of the squared distance, up to 4 `square`."""
    assert kernel.declared.of == SQUARED
    t = 4.0 * square * _grid(eps**2)
    if measure == DIFFERENCES:  # rows nearer than their own rounding, and all others
        near, error = 4.0 * eps**2 * square, 2.0 * eps * np.sqrt(t * square) + unit * t
    else:
        near = max(unit, 2.0 * EQUAL * eps if kernel.declared.of_length else 0.0) * square
        t, error = np.maximum(t, near), np.full_like(t, unit * square)
    values = _at_squares(kernel, np.array([0.0, near]))
    return float(np.max(np.abs(kernel.derivative(t)) * error) + abs(values[0] - values[1]))


def steepest(kernels: Sequence[AnyKernel], X: Rows) -> AnyKernel:
    """The kernel whose values change most by the rounding of these rows."""
    if len(kernels) == 1:
        return kernels[0]
    extent = Extent.of(X, None if is_sparse(X) else X.mean(axis=0, dtype=np.float64))
    return max(kernels, key=lambda kernel: rounding(kernel, extent, X.dtype))


def value_rounding(largest: float, dtype: DTypeLike) -> float:
    """Upper bound of the error of a stored kernel value of at most `largest`, from rounding the value itself."""
    return _VALUE * float(np.finfo(dtype).eps) * largest


def cheapest(
    kernels: Sequence[KernelFormula], extent: Extent, dtype: DTypeLike, measure: int, met: float, gaps: bool,
    accuracy: Accuracy,
) -> tuple[np.dtype[Any], int]:  # fmt: skip
    """Precision and measure of the cheapest sums in which kernel values are accurate enough.

    Parameters
    ----------
    kernels : sequence of KernelFormula
        Kernels of one kind, of any widths.
    extent : Extent
    dtype : dtype
        The lowest precision.
    measure : int
        That of inner products, l1 distances or factors.
    met : float
        Mean number of features of a row that meet in this measure.
    gaps : bool
        True if rows can meet in all features, whose differences are then known.
    accuracy : Accuracy

    Raises
    ------
    InputError
        The error of all sums is refused.
    """
    d, kernel, double = float(extent.features), kernels[0], np.dtype(np.float64)
    whole = {SQUARED: DIFFERENCES, L1: WHOLE}.get(kernel.declared.of, measure) if gaps else measure
    costs = {measure: met, whole: d * (1.0 if whole == measure else _GAPS)}
    types = dict.fromkeys((np.dtype(dtype), double))
    ways = [(costs[sums] * real.itemsize, real, sums) for real in types for sums in costs]
    least = np.inf
    for _, real, sums in sorted(ways, key=lambda way: way[0]):
        error = max(rounding(kernel, extent, real, sums) for kernel in kernels)
        if error <= accuracy.allowed:
            return real, sums
        least = min(least, error)
    if least > accuracy.refused and measure == PRODUCTS and whole == measure:
        apart, remedy = ("each other", "scale") if kernel.of_distance else ("0", "centre and scale")
        raise InputError(
            f"{kernel.kind} kernel: the rows lie so far from {apart} (|x| up to {np.sqrt(extent.square):.3g}) that the "
            f"rounding of its values hides the solution; {remedy} the features, or use a smaller C"
        )
    return double, whole


def _grid(least: float) -> NDArray[np.float64]:
    return np.geomspace(least, 1.0, _GRID)


def _at_squares(kernel: KernelFormula, squares: NDArray[np.float64]) -> NDArray[np.float64]:
    values = np.empty_like(squares)
    at_distances(squares, values, np.zeros_like(squares), kernel.parameters(np.dtype(np.float64)))
    return values


def _factors_at(kernel: KernelFormula, gaps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factors of one feature at these |x_k - z_k|, of a kernel that is a product over the features."""
    values = np.ones_like(gaps)
    multiply(values, 0.0, gaps, kernel.factor(np.dtype(np.float64)))
    return values
