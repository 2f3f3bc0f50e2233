"""What a kernel declares about itself, once, and where SVM, KRR, Asy-GCD, models and exports look it up.

A declaration in any module makes a kernel known everywhere, once that module is imported::

    def cauchy(row, a, b, gamma, coef0, degree):
        one = row.dtype.type(1.0)
        for j in range(row.size):
            row[j] = one / (one + gamma * distance(row[j], a, b[j]))

    def slope(t, gamma, coef0, degree):
        return -gamma / (1.0 + gamma * t) ** 2

    register(KernelKind("cauchy", "1 / (1 + gamma |x-z|^2)", True, cauchy, slope, ("gamma",)))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class KernelKind:
    """A kernel k(x, z) = f(t), a function of the squared distance t = |x-z|^2 or of the inner product t = x.z.

    Attributes
    ----------
    name : str
    formula : str
    of_distance : bool
        Whether t is the squared distance, which is never negative: rows may then be shifted, and k(x, x) is f(0).
        Single precision is widened where the rounding of distances would show, by the derivative at 0 (the largest
        there is, of a kernel that is positive definite in any number of dimensions).
    row : callable or None
        ``row(row, a, b, gamma, coef0, degree)`` puts kernel values in the place of the inner products `row` of an x
        with the rows z, `a` being |x|^2 and `b` all |z|^2; :func:`distance` makes squared distances of them. A function
        of a module: numba compiles it, when it is needed, for `row` and `b` contiguous arrays, shape (n,), of float32
        or float64, for `a`, `gamma` and `coef0` of that type and an int64 `degree`, and keeps it on disk.
        None: f(t) = t.
    derivative : callable
        ``derivative(t, gamma, coef0, degree)`` is df/dt, of a numpy array t.
    parameters : tuple of str
        Which of "gamma", "coef0" and "degree" f depends on. One with gamma has a width sigma: gamma = 1 / (2 sigma^2).
    aliases : tuple of str
        Other names that estimators accept.
    libsvm : str or None
        LIBSVM's name for it, if it has one.
    """

    name: str
    formula: str
    of_distance: bool
    row: Callable[[Any, Any, Any, Any, Any, Any], None] | None
    derivative: Callable[[Any, float, float, int], Any]
    parameters: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    libsvm: str | None = None

    def address(self, dtype: np.dtype[Any]) -> int:
        """Where the compiled :attr:`row` for this dtype lies; 0 if there is none."""
        if self.row is None:
            return 0
        from cacore.kernels.evaluate import compiled  # a command's --help needs no compiler

        return int(compiled(self.row, dtype).address)


MOST_DEGREE = 2**31 - 1

KINDS: dict[str, KernelKind] = {}  # by name


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


def canonical(name: str) -> str:
    """The name of the kernel that has this name or alias; `name` itself if there is none."""
    return next((kind.name for kind in KINDS.values() if name in kind.aliases), name)


def distance(product: Any, a: Any, b: Any) -> Any:
    """|x-z|^2, at least 0, from x.z, |x|^2 and |z|^2, for :attr:`KernelKind.row`."""
    return np.maximum(0.0, a + b - 2.0 * product)


def exp(x: Any) -> Any:
    """For :attr:`KernelKind.row`: compiled code has its own, see :mod:`cacore.kernels.evaluate`."""
    return np.exp(x)
