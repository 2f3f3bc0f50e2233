"""What a kernel declares about itself, once, and where SVM, KRR, Asy-GCD, models and exports look it up.

A declaration in any module makes a kernel known everywhere, once that module is imported::

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

from cacore.errors import InputError

# What a kernel may be a function of: x.z, the sum of (x_k - z_k)^2, the sum of |x_k - z_k|.
PRODUCT, SQUARED, L1 = "inner product", "squared distance", "l1 distance"


@dataclass(frozen=True)
class KernelKind:
    """A kernel k(x, z) = f(t), a function of one number t for each pair of rows.

    Attributes
    ----------
    name : str
    formula : str
    of : {PRODUCT, SQUARED, L1}
        What t is: the inner product x.z, the squared distance |x-z|^2, or the l1 distance |x-z|_1. Distances are never
        negative; k(x, x) is then f(0), and single precision is widened where their rounding would show.
    row : callable or None
        ``row(row, a, b, gamma, coef0, degree)`` puts kernel values in the place of the inner products `row` of an x
        with the rows z, `a` being |x|^2 and `b` all |z|^2; :func:`distance` makes squared distances of them, and
        :func:`length` their square roots. For a kernel of the l1 distance `row` has the distances, and `a` and `b` say
        nothing. A function of a module: numba compiles it, when it is needed, for `row` and `b` contiguous arrays,
        shape (n,), of float32 or float64, for `a`, `gamma` and `coef0` of that type and an int64 `degree`, and keeps
        it on disk. None: f(t) = t.
    derivative : callable
        ``derivative(t, gamma, coef0, degree)`` is df/dt, of a numpy array t. Where it is infinite, at t = 0, it says 0:
        a row itself is left out.
    parameters : tuple of str
        Which of "gamma", "coef0" and "degree" f depends on. One with gamma has a width sigma, see :meth:`gamma_of`.
    aliases : tuple of str
        Other names that estimators accept.
    libsvm : str or None
        LIBSVM's name for it, if it has one.
    per_length : bool
        Whether gamma is 1 over a length, 1 / sigma, and not over its square, 1 / (2 sigma^2).
    least_degree : int
        The smallest degree for which there is such a kernel.
    """

    name: str
    formula: str
    of: str
    row: Callable[[Any, Any, Any, Any, Any, Any], None] | None
    derivative: Callable[[Any, float, float, int], Any]
    parameters: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    libsvm: str | None = None
    per_length: bool = False
    least_degree: int = 0

    def __post_init__(self) -> None:
        if self.of not in (PRODUCT, SQUARED, L1):
            raise ValueError(f"kernel {self.name}: of {self.of!r}: give PRODUCT, SQUARED or L1")

    @property
    def of_distance(self) -> bool:
        """Whether t is a distance, which is 0 between equal rows."""
        return self.of != PRODUCT

    @property
    def has_width(self) -> bool:
        """Whether there is a width sigma."""
        return "gamma" in self.parameters

    def gamma_of(self, sigma: float) -> float:
        """Gamma of the kernel of this width; the largest double where it would be infinite, 0 where it vanishes."""
        most = float(np.finfo(float).max)
        if self.per_length:
            return min(1.0 / sigma, most) if sigma > 1e-300 else most
        return 1.0 / (2.0 * sigma * sigma) if sigma > 1e-150 else most

    def typical_distance(self, d: int) -> float:
        """Of two rows of d standardised features, as the kernel measures distances: the natural width."""
        return float(d) if self.of == L1 else math.sqrt(d)

    def address(self, dtype: np.dtype[Any]) -> int:
        """Where the compiled :attr:`row` for this dtype lies; 0 if there is none."""
        if self.row is None:
            return 0
        from cacore.kernels.evaluate import compiled  # a command's --help needs no compiler

        return int(compiled(self.row, dtype).address)


MOST_DEGREE = 2**31 - 1

KINDS: dict[str, KernelKind] = {}  # by name


def _unknown(t: Any, gamma: float, coef0: float, degree: int) -> Any:
    raise InputError("a callable kernel has no derivative: declare the kernel, see CONTRIBUTING.md")


GIVEN = KernelKind("callable", "k(x, z)", PRODUCT, None, _unknown)  # what is known of the caller's own: not registered


def register(kind: KernelKind) -> None:
    """Make a kernel known by its name and aliases.

    Raises
    ------
    ValueError
        Another kernel has one of them.
    """
    for name in (kind.name, *kind.aliases):
        if name in KINDS or canonical(name) != name:
            raise ValueError(f"there is a kernel {name!r} already")
    KINDS[kind.name] = kind


def declaration(kernel: Any) -> KernelKind:
    """The declaration of the kernel of this name; of a callable :data:`GIVEN`."""
    return KINDS[kernel] if isinstance(kernel, str) else GIVEN


def named(kernel: Any) -> str:
    """A kernel's name, or that of a callable: the same in every process."""
    return kernel if isinstance(kernel, str) else str(getattr(kernel, "__qualname__", type(kernel).__name__))


def canonical(name: str) -> str:
    """The name of the kernel that has this name or alias; `name` itself if there is none."""
    return next((kind.name for kind in KINDS.values() if name in kind.aliases), name)


def distance(product: Any, a: Any, b: Any) -> Any:
    """|x-z|^2, at least 0, from x.z, |x|^2 and |z|^2, for :attr:`KernelKind.row`."""
    return np.maximum(0.0, a + b - 2.0 * product)


EQUAL = 16  # roundings of |x|^2 + |z|^2 within which two rows are taken to be equal


def length(product: Any, a: Any, b: Any) -> Any:
    """|x-z| from x.z, |x|^2 and |z|^2, for :attr:`KernelKind.row`.

    A squared distance below 16 eps (|x|^2 + |z|^2), which may be rounding alone (measured: 3 up to 54 features, 13 at
    5,000), counts as 0: equal rows are at distance 0. So are rows that are closer than about 6 sqrt(eps) |x|, 8e-8 |x|
    in double precision and 2e-3 |x| in single precision. Farther ones, at distance r, have a relative error of about
    eps |x|^2 / r^2.
    """
    size = a + b
    squared = size - 2.0 * product
    return np.sqrt(np.where(squared <= EQUAL * np.finfo(np.asarray(product).dtype).eps * size, 0.0, squared))


def exp(x: Any) -> Any:
    """For :attr:`KernelKind.row`: compiled code has its own, see :mod:`cacore.kernels.evaluate`."""
    return np.exp(x)


def exp_near(x: Any) -> Any:
    """As :func:`exp`, for a number that is known to be no less than where :func:`exp` ends: -345, or -43 of float32."""
    return np.exp(x)
