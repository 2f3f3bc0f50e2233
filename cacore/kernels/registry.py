"""Declarations of kernels, and the table in which SVM, KRR, Asy-GCD, models and exports look them up.

A kernel can be declared in any module; once the module is imported, the kernel is known everywhere::

    def cauchy(row, a, b, gamma, coef0, degree):
        one = row.dtype.type(1.0)
        for j in range(row.size):
            row[j] = one / (one + gamma * distance(row[j], a, b[j]))

    def slope(t, gamma, coef0, degree):
        return -gamma / (1.0 + gamma * t) ** 2

    register(KernelKind("cauchy", "1 / (1 + gamma |x-z|^2)", SQUARED, cauchy, slope, ("gamma",)))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cacore.arrays import Reals
from cacore.errors import InputError

# The argument t of a kernel f(t): x.z, the sum of (x_k - z_k)^2, or the sum of |x_k - z_k|.
PRODUCT, SQUARED, L1 = "inner product", "squared distance", "l1 distance"
# A kernel without such a number: the product over the features of a function of |x_k - z_k|.
FEATURES = "product over features"


@dataclass(frozen=True)
class KernelKind:
    """A kernel k(x, z) = f(t), a function of one number t for each pair of rows, or a product over the features.

    Attributes
    ----------
    name : str
    formula : str
    of : {PRODUCT, SQUARED, L1, FEATURES}
        Meaning of t: the inner product x.z, the squared distance |x-z|^2, or the l1 distance |x-z|_1. Distances are
        never negative, so k(x, x) = f(0). Single precision is widened to double if the rounding of distances would
        show in the kernel values. FEATURES: the kernel is the product of its `factor` over the features.
    row : callable or None
        ``row(row, a, b, gamma, coef0, degree)`` replaces the inner products `row` of one x with n rows z by kernel
        values, in place; `a` is |x|^2 and `b` holds each |z|^2. It calls :func:`distance` for squared distances and
        :func:`length` for distances. For a kernel of the l1 distance `row` holds the distances, and `a` and `b` are
        unused. It must be a function at module level: numba compiles it on first use and caches it on disk. `row` and
        `b` are contiguous arrays, shape (n,), of float32 or float64; `a`, `gamma` and `coef0` are of that type, and
        `degree` is an int64. None: f(t) = t, or a product over the features.
    derivative : callable
        ``derivative(t, gamma, coef0, degree)`` returns df/dt for a numpy array t. If df/dt is infinite at t = 0, it
        returns 0 there: a row does not count in its own gradient. For a product over the features, t is |x_k - z_k| of
        one feature, and the derivative that of the factor's logarithm, or 0 where the factor is 0.
    parameters : tuple of str
        The names among "gamma", "coef0" and "degree" that f depends on. A kernel with gamma has a width sigma, see
        :meth:`gamma_of`.
    aliases : tuple of str
        Other names that estimators accept.
    libsvm : str or None
        LIBSVM's name for the kernel, if it has one.
    per_length : bool
        True if gamma = 1 / sigma, the inverse of a length; False if gamma = 1 / (2 sigma^2).
    least_degree : int
        The smallest valid degree.
    limited : bool
        True if the kernel is positive definite for rows of at most `degree` features only.
    factor : callable or None
        For kernels that are a product over the features: ``factor(row, a, b, gamma, coef0, degree)`` multiplies `row`
        by the factors of one feature, in place; `a` is its value x_k in one row, and `b` holds those of n rows z. The
        factor depends on |x_k - z_k| alone, does not increase with it, and is 1 at 0. Types as for `row`. Kernels of a
        distance may have both: explanations use `factor`.

    Examples
    --------
    >>> from cacore.kernels import KINDS, KernelKind
    >>> kind: KernelKind = KINDS["matern52"]
    >>> kind.of, kind.parameters
    ('squared distance', ('gamma',))
    >>> kind.gamma_of(sigma=2.0)
    0.125
    """

    name: str
    formula: str
    of: str
    row: Callable[[Reals, float, Reals, float, float, int], None] | None
    derivative: Callable[[Reals, float, float, int], Reals]
    parameters: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    libsvm: str | None = None
    per_length: bool = False
    least_degree: int = 0
    limited: bool = False
    factor: Callable[[Reals, float, Reals, float, float, int], None] | None = None

    def __post_init__(self) -> None:
        if self.of not in (PRODUCT, SQUARED, L1, FEATURES):
            raise ValueError(f"kernel {self.name}: of {self.of!r}: give PRODUCT, SQUARED, L1 or FEATURES")
        if self.of == FEATURES and (self.factor is None or self.row is not None):
            raise ValueError(f"kernel {self.name}: a product over the features needs a factor, and no row")

    @property
    def separable(self) -> bool:
        """True if the kernel is computed as a product over the features."""
        return self.of == FEATURES

    @property
    def of_distance(self) -> bool:
        """True if the kernel depends on differences of rows alone, so that k(x, x) is the same for all rows."""
        return self.of != PRODUCT

    @property
    def of_length(self) -> bool:
        """True if the kernel is a function of |x-z| by :func:`length`, which counts tiny distances as 0."""
        return self.row is not None and "length" in self.row.__code__.co_names

    @property
    def has_width(self) -> bool:
        """True if the kernel has a width sigma."""
        return "gamma" in self.parameters

    def gamma_of(self, sigma: float) -> float:
        """Gamma for this width; the largest double instead of infinity, and 0 if it underflows."""
        largest = float(np.finfo(float).max)
        if self.per_length:
            return min(1.0 / sigma, largest) if sigma > 1e-300 else largest
        return 1.0 / (2.0 * sigma * sigma) if sigma > 1e-150 else largest

    def typical_distance(self, d: int) -> float:
        """Typical distance between rows of d standardised features, in the kernel's metric: a natural width.

        For a product over the features it is the width at which the product, near its peak, falls off like the gaussian
        of width sqrt(d); or like the kernel l1 of width d, if it has a tip.
        """
        if self.of == FEATURES:
            near = 1e-6
            tip, slope = -self.derivative(np.array([0.0, near]), 1.0, 0.0, 0)
            return float(d * tip) if tip > 0.0 else math.sqrt(d * slope / near)
        return float(d) if self.of == L1 else math.sqrt(d)


MOST_DEGREE = 2**31 - 1  # LIBSVM reads a C int

KINDS: dict[str, KernelKind] = {}  # the registered kernels by name


def _unknown(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    raise InputError("a callable kernel has no derivative: declare the kernel, as cacore/kernels/functions.py does")


GIVEN = KernelKind("callable", "k(x, z)", PRODUCT, None, _unknown)  # stands for the caller's own kernel; not registered


def register(kind: KernelKind) -> None:
    """Register a kernel under its name and aliases.

    Raises
    ------
    ValueError
        If another kernel has one of these names.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from cacore.kernels import KINDS, register
    >>> register(replace(KINDS["gaussian"], name="bell", aliases=(), libsvm=None))
    >>> KINDS["bell"].formula
    'exp(-gamma |x-z|^2)'
    """
    for name in (kind.name, *kind.aliases):
        if name in KINDS or canonical(name) != name:
            raise ValueError(f"there is a kernel {name!r} already")
    KINDS[kind.name] = kind


def declaration(kernel: str | Callable[..., object]) -> KernelKind:
    """Declaration of the kernel of this name; :data:`GIVEN` for a callable."""
    return KINDS[kernel] if isinstance(kernel, str) else GIVEN


def named(kernel: str | Callable[..., object]) -> str:
    """Name of a kernel or of a callable; the same in every process."""
    return kernel if isinstance(kernel, str) else str(getattr(kernel, "__qualname__", type(kernel).__name__))


def canonical(name: str) -> str:
    """Name of the kernel with this name or alias; `name` itself if no kernel has it as an alias."""
    return next((kind.name for kind in KINDS.values() if name in kind.aliases), name)


def distance(product: float, a: float, b: float) -> float:
    """|x-z|^2, at least 0, from x.z, |x|^2 and |z|^2, for :attr:`KernelKind.row`."""
    return np.maximum(0.0, a + b - 2.0 * product)


EQUAL = 16  # rows count as equal if |x-z|^2 <= EQUAL eps (|x|^2 + |z|^2)


def length(product: float, a: float, b: float) -> Any:
    """|x-z| from x.z, |x|^2 and |z|^2, for :attr:`KernelKind.row`.

    A squared distance up to 16 eps (|x|^2 + |z|^2) counts as 0, because it may be rounding alone (measured: up to 3 eps
    with 54 features, 13 eps with 5,000). So equal rows are at distance 0, but so are rows closer than about
    6 sqrt(eps) |x|: 8e-8 |x| in double precision, 2e-3 |x| in single precision. Beyond that, a distance r has a
    relative error of about eps |x|^2 / r^2.
    """
    size = a + b
    squared = size - 2.0 * product
    return np.sqrt(np.where(squared <= EQUAL * np.finfo(np.asarray(product).dtype).eps * size, 0.0, squared))


def exp(x: float) -> float:
    """exp(x) for :attr:`KernelKind.row`; compiled code uses that of :mod:`cacore.kernels.evaluate`."""
    return np.exp(x)


def exp_near(x: float) -> float:
    """exp(x) for x known to be at least -345 (float32: -43), which saves the comparison in :func:`exp`."""
    return np.exp(x)
