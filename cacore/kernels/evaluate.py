"""Evaluation of kernel functions in compiled code, by address: callers are compiled once, not once per kernel.

The exp of this module is a polynomial that the compiler vectorises, in double and single precision. It takes 0.8 ns per
element on one thread (AMD EPYC, AVX-512); numpy's exp takes 3.4 ns and libm's inside numba 4.3 ns. It also fuses with
the loop around it. It agrees with libm to 2 units in the last place, or to 1 if the compiler fuses multiply and add.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numba
import numpy as np
from numba import types
from numba.extending import overload, register_jitable
from numpy.typing import DTypeLike

from cacore.arrays import Reals
from cacore.compiled.pointers import bits32, bits64, call_kernel, float32_of, float64_of
from cacore.errors import InputError
from cacore.kernels.registry import (
    EQUAL,
    FEATURES,
    KINDS,
    L1,
    MOST_DEGREE,
    SQUARED,
    KernelKind,
    distance,
    exp,
    exp_near,
    length,
)

# A kernel in compiled code: address of its function (0: the inner product itself), gamma, coef0, degree, and the
# measure. Both reals have the type of the kernel values.
Parameters = tuple[int, np.floating, np.floating, int, int]

# Measures: what is added up over the features, or multiplied (:func:`cacore.kernels.sums.meet`).
PRODUCTS, NONZEROS, WHOLE, FACTORS, DIFFERENCES = range(5)

# x = k ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^52 rounds x / ln 2 to the integer k and leaves k in the low bits
# of the sum, from where it is shifted into the exponent. The least arguments stand, negated, in
# cacore/kernels/functions.py and cakernels/onnx/kernels.py: kernels and exports end where exp does.
_LOG2E = 1.4426950408889634
_ROUND64, _LN2_HI64, _LN2_LO64, _LEAST64 = (
    6755399441055744.0,
    6.93147180369123816490e-01,
    1.90821492927058770002e-10,
    -345.0,
)
_ROUND32, _LN2_HI32, _LN2_LO32, _LEAST32 = (
    np.float32(12582912.0), np.float32(0.693145751953125), np.float32(1.42860682030941723212e-6), np.float32(-43.0)
)  # fmt: skip
_LOG2E32 = np.float32(_LOG2E)
_C = tuple(1.0 / math.factorial(k) for k in range(14))
_F = tuple(np.float32(1.0 / math.factorial(k)) for k in range(8))


@numba.njit(inline="always")
def exp64(x: float) -> float:  # pragma: no cover - compiled
    """exp(x) of a float64 up to 700; below -345 it returns 1.5e-150 instead of smaller values.

    Products of two such values are still normal numbers: denormal ones halved the speed of factoring kernel matrices
    with far outliers.
    """
    return near64(max(x, _LEAST64))


@numba.njit(inline="always")
def near64(x: float) -> float:  # pragma: no cover - compiled
    """exp(x) of a float64 from -345 to 700."""
    t = x * _LOG2E + _ROUND64
    k = t - _ROUND64
    r = (x - k * _LN2_HI64) - k * _LN2_LO64
    p = _C[13]
    p = p * r + _C[12]
    p = p * r + _C[11]
    p = p * r + _C[10]
    p = p * r + _C[9]
    p = p * r + _C[8]
    p = p * r + _C[7]
    p = p * r + _C[6]
    p = p * r + _C[5]
    p = p * r + _C[4]
    p = p * r + _C[3]
    p = p * r + _C[2]
    p = p * r + 1.0
    p = p * r + 1.0
    return float64_of(bits64(p) + (bits64(t) << 52))


@numba.njit(inline="always")
def exp32(x: float) -> float:  # pragma: no cover - compiled
    """exp(x) of a float32 up to 80; below -43 it returns 2.1e-19, see :func:`exp64`."""
    return near32(max(x, _LEAST32))


@numba.njit(inline="always")
def near32(x: float) -> float:  # pragma: no cover - compiled
    """exp(x) of a float32 from -43 to 80."""
    t = x * _LOG2E32 + _ROUND32
    k = t - _ROUND32
    r = (x - k * _LN2_HI32) - k * _LN2_LO32
    p = _F[7]
    p = p * r + _F[6]
    p = p * r + _F[5]
    p = p * r + _F[4]
    p = p * r + _F[3]
    p = p * r + _F[2]
    p = p * r + _F[1]
    p = p * r + _F[0]
    return float32_of(bits32(p) + np.int32(bits32(t) << np.int32(23)))


@overload(exp, inline="always")
def _exp(x):  # type: ignore[no-untyped-def]
    return (lambda x: exp32(x)) if x == types.float32 else (lambda x: exp64(x))


@overload(exp_near, inline="always")
def _exp_near(x):  # type: ignore[no-untyped-def]
    return (lambda x: near32(x)) if x == types.float32 else (lambda x: near64(x))


@overload(distance, inline="always")
def _distance(product, a, b):  # type: ignore[no-untyped-def]
    zero, two = (np.float32(0), np.float32(2)) if product == types.float32 else (0.0, 2.0)
    return lambda product, a, b: max(zero, a + b - two * product)


@overload(length, inline="always")
def _length(product, a, b):  # type: ignore[no-untyped-def]
    real = np.float32 if product == types.float32 else np.float64
    zero, two, rounding = real(0), real(2), real(EQUAL * np.finfo(real).eps)

    def root(product, a, b):  # type: ignore[no-untyped-def]
        size = a + b
        squared = size - two * product
        return math.sqrt(zero if squared <= rounding * size else squared)

    return root


@functools.cache
def compiled(row: Callable[..., None], dtype: np.dtype[np.floating]) -> Any:
    """:attr:`KernelKind.row` or `factor` compiled for this dtype; cached, so that its address stays valid."""
    real = numba.from_dtype(dtype)
    array = types.Array(real, 1, "C")
    signature = types.void(array, real, array, real, real, types.int64)
    return numba.cfunc(signature, cache=True, error_model="numpy", fastmath={"contract"})(row)


def address(kind: KernelKind, dtype: np.dtype[np.floating]) -> int:
    """Address of the kernel's compiled :attr:`KernelKind.row`, or its factor, for this dtype; 0 if it has none."""
    function = kind.factor if kind.separable else kind.row
    return 0 if function is None else int(compiled(function, dtype).address)


@register_jitable
def with_zeros(measure: int) -> bool:
    """True if rows meet in all features, 0 or not."""
    return measure >= WHOLE


def warm_up(kernels: Iterable[str]) -> None:
    """Compile these kernels, or load them from the cache, in both precisions of their values."""
    for kernel in kernels:
        for values in ("float32", "float64"):
            address(KINDS[kernel], np.dtype(values))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def finish(row: Reals, a: float, b: Reals, kernel: Parameters) -> None:  # pragma: no cover - compiled
    """Replace inner products, or l1 distances, of one row with n others by kernel values, in place.

    Compiled code calls it while the products are still in cache. It is compiled once for all kernels. Products of
    factors are kernel values already, and stay as they are.

    Parameters
    ----------
    row : contiguous array of float32 or float64, shape (n,)
        Inner products or l1 distances; overwritten by kernel values.
    a : number of that type
        Squared norm of the row.
    b : contiguous array of that type, shape (>= n,)
        Squared norms of the others.
    kernel : tuple
        From :meth:`cacore.kernels.Kernel.parameters` for that type.
    """
    function, gamma, coef0, degree, measure = kernel
    if function != 0 and measure != FACTORS:
        call_kernel(function, row, a, b, gamma, coef0, degree)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def multiply(row: Reals, a: float, b: Reals, factor: Parameters) -> None:  # pragma: no cover - compiled
    """Multiply `row` by the factors of one feature, in place; see :attr:`KernelKind.factor`.

    Parameters
    ----------
    row, b : contiguous arrays of float32 or float64, shape (n,)
    a : number of that type
    factor : tuple
        From :meth:`cacore.kernels.Kernel.factor` for that type.
    """
    function, gamma, coef0, degree, _ = factor
    call_kernel(function, row, a, b, gamma, coef0, degree)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def at_distances(
    squares: Reals, values: Reals, zeros: Reals, kernel: Parameters
) -> None:  # pragma: no cover - compiled
    """Kernel values at squared distances; of a product over the features, those of rows that differ in one feature.

    Parameters
    ----------
    squares : contiguous array of float32 or float64, shape (n,)
    values : array of that type, shape (n,)
        Overwritten.
    zeros : array of that type, shape (>= n,)
    kernel : tuple
        From :meth:`cacore.kernels.Kernel.parameters` for that type.

    Notes
    -----
    Kernels compute |x|^2 + |z|^2 - 2 x.z; with norms of 0 and a product of -|x-z|^2 / 2 that is exact.
    """
    if kernel[4] == FACTORS:
        gaps = np.sqrt(squares)
        values[:] = 1.0
        multiply(values, values.dtype.type(0), gaps, kernel)
    else:
        for k in range(values.size):
            values[k] = squares[k] * -values.dtype.type(0.5)
        finish(values, values.dtype.type(0), zeros, kernel)


_MOST_FEATURES = 10**6  # largest degree of a kernel of limited support, whose values take a loop over it


@dataclass(frozen=True)
class KernelFormula:
    """A kernel function with its parameters; :class:`cacore.kernels.Kernel` adds its values for rows.

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
        greatest = _MOST_FEATURES if self.declared.limited else MOST_DEGREE
        if self.degree > greatest:
            raise InputError(
                f"degree = {self.degree}: the {self.kind} kernel needs a whole number of at most {greatest}"
            )

    @property
    def compiled(self) -> bool:
        """True if compiled code can evaluate the kernel."""
        return True

    def stored(self) -> dict[str, Any]:
        """The fields, as a model file stores them."""
        return asdict(self)

    @property
    def declared(self) -> KernelKind:
        """The kernel's declaration."""
        return KINDS[self.kind]

    @classmethod
    def gaussian(cls, sigma: float) -> Self:
        """The Gaussian kernel exp(-|x-z|^2 / (2 sigma^2)), in the form of Table 3.1."""
        return cls("gaussian").with_sigma(sigma)

    def with_sigma(self, sigma: float) -> Self:
        """A copy with width `sigma`, or the kernel itself if it has no width; see :meth:`KernelKind.gamma_of`."""
        if not (math.isfinite(sigma) and sigma > 0):
            raise InputError(f"sigma = {sigma:g}: it must be a positive number")
        gamma = self.declared.gamma_of(sigma)
        if gamma == 0.0:
            raise InputError(f"sigma = {sigma:g}: gamma = 1 / (2 sigma^2) is 0 in double precision; use a smaller one")
        return replace(self, gamma=gamma) if self.has("gamma") else self

    def has(self, parameter: str) -> bool:
        """True if the kernel has this parameter: "gamma", "coef0" or "degree"."""
        return parameter in self.declared.parameters

    def suited(self, d: int, instead: str = "") -> Self:
        """The kernel itself, which is positive definite for rows of `d` features.

        Raises
        ------
        InputError
            The kernel is positive definite for fewer features only; the message names the degree that allows `d`, and
            what to use `instead`, by default the kernel's product over the features.
        """
        if self.declared.limited and d > self.degree:
            product = f"{self.kind}_product"
            instead = instead or (f"{product}, which allows any number" if product in KINDS else "another kernel")
            raise InputError(
                f"degree = {self.degree}: the {self.kind} kernel is then positive definite for at most {self.degree} "
                f"features, and the rows have {d}; use degree {d}, which makes the kernel narrower, or {instead}"
            )
        return self

    def fits(self, dtype: DTypeLike) -> bool:
        """True if gamma is moderate enough for this dtype.

        With an extreme gamma the kernel depends on distances that single precision rounds to 0 or to infinity.
        """
        return bool(dtype == np.float64 or not self.has("gamma") or 1e-30 < self.gamma < 1e30)

    @property
    def of_distance(self) -> bool:
        """True if the kernel depends on differences of rows, not on the inner product."""
        return self.declared.of_distance

    @property
    def separable(self) -> bool:
        """True if the kernel is a product over the features, of which each width needs a product of its own."""
        return self.declared.separable

    @property
    def shifts(self) -> bool:
        """True if dense rows far from the origin should be shifted, so that rounding shows less in differences."""
        return self.declared.of in (SQUARED, FEATURES)

    def measure(self, nonzeros: bool = False) -> int:
        """Terms to add up over the features, for rows without their zeros (`nonzeros`) or for whole rows."""
        if self.separable:
            return FACTORS
        if self.declared.of != L1:
            return PRODUCTS
        return NONZEROS if nonzeros else WHOLE

    def parameters(self, dtype: np.dtype[np.floating], measure: int | None = None) -> Parameters:
        """Parameters for kernel values of this dtype, by default for whole rows; compiles the function on first use."""
        measure = self.measure() if measure is None else measure
        return address(self.declared, dtype), *self._numbers(dtype), measure

    def factor(self, dtype: np.dtype[np.floating]) -> Parameters:
        """Parameters for :func:`cacore.kernels.evaluate.multiply`, of a kernel that has factors."""
        assert self.declared.factor is not None
        return int(compiled(self.declared.factor, dtype).address), *self._numbers(dtype), FACTORS

    def _numbers(self, dtype: np.dtype[np.floating]) -> tuple[np.floating, np.floating, int]:
        gamma = min(self.gamma, float(np.finfo(dtype).max))
        with np.errstate(over="ignore"):
            coef0 = dtype.type(self.coef0)
        return dtype.type(gamma), coef0, int(self.degree)

    def derivative(self, t: Reals) -> Reals:
        """Derivative df/dt of the kernel f(t), in the shape of `t`; :attr:`KernelKind.derivative` defines it."""
        return self.declared.derivative(t, self.gamma, self.coef0, self.degree)
