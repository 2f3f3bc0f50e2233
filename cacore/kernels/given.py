"""Kernels that the caller evaluates: a callable on blocks of rows, or a precomputed kernel matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.data.rows import AnyRows, Rows, dense, is_sparse
from cacore.errors import InputError
from cacore.kernels.registry import GIVEN, KernelKind, named
from cacore.kernels.values import Kernel, Points
from cacore.machine.threads import blocks

_PRECOMPUTED = "a precomputed kernel"
_ALONE = 32  # rows per block from which the diagonal is taken


@dataclass(frozen=True)
class GivenKernel(Kernel):
    """A kernel ``function(A, B) -> K`` on blocks of rows; it has no width and no parameters.

    Attributes
    ----------
    function : callable
        Takes rows, ndarray or CSR, shape (m, d) and (n, d), and returns K, shape (m, n), of finite numbers. The value
        of a pair of rows must not depend on the blocks they are in, and K(B, A) must be the transpose of K(A, B).
        Several threads may call it at once.
    name : str
        Name of the kernel in messages.
    """

    kind: str = GIVEN.name
    function: Callable[[Rows, Rows], object] = field(kw_only=True)
    name: str = "the callable kernel"

    def __post_init__(self) -> None:
        """Skip the checks of :class:`Kernel`: a callable kernel has no parameters."""

    @property
    def compiled(self) -> bool:
        """See :class:`Kernel`."""
        return False

    @property
    def declared(self) -> KernelKind:
        """See :class:`Kernel`."""
        return GIVEN

    def stored(self) -> dict[str, Any]:
        """Refuse to be stored: a file cannot hold a function."""
        raise InputError(
            f"a model of {self.name} cannot be written to a file: pickle it, or declare the kernel, as "
            "cacore/kernels/functions.py does"
        )

    def block(self, A: Points, B: Points, out: NDArray[np.floating] | None = None) -> NDArray[np.floating]:
        """See :class:`Kernel`.

        Raises
        ------
        InputError
            If the function failed, or did not return finite numbers of the right shape.
        """
        if out is None:
            out = np.empty((len(A), len(B)), A.X.dtype)
        if out.size:
            X, Z = A.X, B.X
            if is_sparse(X) != is_sparse(Z):
                X, Z = dense(X), dense(Z)
            out[...] = self._checked(self._called(X, Z), out.shape)
        return out

    def _called(self, X: Rows, Z: Rows) -> object:
        try:
            return self.function(X, Z)
        except (InputError, MemoryError):
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise InputError(f"{self.name} failed for rows of shape {X.shape} and {Z.shape}: {what}") from error

    def _compare(self, A: Points, B: Points, out: NDArray[np.floating]) -> None:
        self.block(A, B, out)

    def _checked(self, returned: object, shape: tuple[int, ...]) -> NDArray[Any]:
        """The returned kernel values; an InputError if they are not finite numbers of this shape."""
        need = f"numbers of shape {shape} are needed, one for each row of A and of B"
        if not isinstance(returned, np.ndarray) or returned.dtype.kind not in "fiub":
            kind = f"an array of {returned.dtype}" if isinstance(returned, np.ndarray) else type(returned).__name__
            raise InputError(f"{self.name} returned {kind}: {need}")
        if returned.shape != shape:
            raise InputError(f"{self.name} returned the shape {returned.shape}: {need}")
        if not np.isfinite(returned).all():
            row, column = np.argwhere(~np.isfinite(returned))[0].tolist()
            raise InputError(
                f"{self.name} returned {returned[row, column]} for row {row} of A and row {column} of B: "
                "finite numbers are needed"
            )
        return returned

    def diagonal(self, X: AnyRows) -> NDArray[np.float64]:
        """See :class:`Kernel`; computed from blocks of 32 rows."""
        out = np.empty(X.shape[0])
        for lo, hi in blocks(len(out), _ALONE):
            points = Points(X[lo:hi].astype(np.float64))
            out[lo:hi] = np.diagonal(self.block(points, points))
        return out

    def largest(self, X: AnyRows, dtype: DTypeLike) -> float:
        """See :class:`Kernel`; the largest value of a positive definite kernel is on the diagonal."""
        value = float(np.abs(self.diagonal(X)).max(initial=0.0))
        if not value <= float(np.finfo(dtype).max) / 4:
            raise InputError(f"{self.name}: its values overflow {np.dtype(dtype)}; scale them")
        return value


def numbered(n: int, dtype: DTypeLike) -> NDArray[np.floating]:
    """Row numbers, shape (n, 1), that stand for the rows of a precomputed kernel."""
    return np.arange(n, dtype=dtype)[:, None]


def _numbers(X: Rows) -> NDArray[np.int64]:
    return np.asarray(X)[:, 0].astype(np.int64)


@dataclass(frozen=True, eq=False)
class Precomputed:
    """A kernel function on :func:`numbered` rows that looks values up in the kernel matrix `K`, shape (n, n)."""

    K: NDArray[np.floating]

    def __call__(self, A: Rows, B: Rows) -> NDArray[np.floating]:
        """Kernel values, shape (len(A), len(B))."""
        return np.asarray(self.K[np.ix_(_numbers(A), _numbers(B))])


def _of_new_rows(A: Rows, B: Rows) -> NDArray[np.floating]:
    return np.asarray(A)[:, _numbers(B)]


def of_new_rows() -> GivenKernel:
    """Precomputed kernel between new rows, given as kernel values with all training rows, and training rows.

    The training rows are :func:`numbered`.
    """
    return GivenKernel(function=_of_new_rows, name=_PRECOMPUTED)


def is_of_new_rows(kernel: Kernel) -> bool:
    """True if rows are given as kernel values with all training rows, so that K(x, x) is unknown."""
    return isinstance(kernel, GivenKernel) and kernel.function is _of_new_rows


def given_kernel(function: Callable[[Rows, Rows], object]) -> GivenKernel:
    """Kernel that evaluates this function."""
    precomputed = isinstance(function, Precomputed)
    return GivenKernel(
        function=function, name=_PRECOMPUTED if precomputed else f"the callable kernel {named(function)}"
    )
