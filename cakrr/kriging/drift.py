"""The drift: known functions of the place, whose coefficients are estimated with the field."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.errors import InputError

DEGREES = {"none": -1, "constant": 0, "linear": 1, "quadratic": 2}
_ROUNDING = 8 * float(np.finfo(np.float64).eps)  # of a value without its drift, relative to the largest value
_DEPENDENT = 1e-9  # smallest eigenvalue of the functions' scaled Gram matrix, relative to the largest


@dataclass(frozen=True)
class Drift:
    """Polynomials of the coordinates, and further columns of the rows.

    Attributes
    ----------
    degree : int
        Degree of the polynomials; -1 for none, not even a constant: the mean is known to be 0.
    columns : tuple of int
        Columns of the rows that are functions of the drift, and not coordinates.
    width : int
        Number of columns of the rows.
    ignored : tuple of int
        Columns of the rows that are neither.
    center, scale : tuple of float
        One per column of the rows: the functions are those of (x - center) / scale.
    """

    degree: int
    columns: tuple[int, ...]
    ignored: tuple[int, ...]
    width: int
    center: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def of(
        cls, drift: str | Sequence[int | str], X: NDArray[np.float64], comm: Communicator, names: Sequence[str] = (),
        ignored: tuple[int, ...] = (),
    ) -> Drift:  # fmt: skip
        """The drift of this name, or of these columns and a constant, scaled by all ranks' rows; collective."""
        d = X.shape[1]
        with comm.agreed():
            columns = () if isinstance(drift, str) else tuple(column_of(one, d, names, "drift") for one in drift)
            if len(set(columns)) < len(columns):
                raise InputError(f"drift: a column is named twice in {list(drift)}")
            if len({*columns, *ignored}) >= d:
                raise InputError(f"drift: {len(columns)} of {d} columns, which leaves no coordinates")
        ends = comm.allreduce(np.concatenate([X.min(axis=0, initial=np.inf), -X.max(axis=0, initial=-np.inf)]), "min")
        low, high = ends[:d], -ends[d:]
        scale = np.where(high > low, (high - low) / 2.0, 1.0)
        degree = DEGREES[drift] if isinstance(drift, str) else 0
        return cls(degree, columns, ignored, d, tuple(((low + high) / 2.0).tolist()), tuple(scale.tolist()))

    @property
    def coordinates(self) -> list[int]:
        """Columns of the rows that are coordinates."""
        return [j for j in range(self.width) if j not in self.columns and j not in self.ignored]

    def functions(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values of the functions for rows `X`, shape (n, width): shape (n, p)."""
        Z = (X - np.array(self.center)) / np.array(self.scale)
        found = [Z[:, j] for j in self.columns]
        for degree in range(self.degree + 1):
            for factors in itertools.combinations_with_replacement(self.coordinates, degree):
                found.append(np.prod(Z[:, list(factors)], axis=1) if factors else np.ones(len(Z)))
        return np.column_stack(found) if found else np.zeros((len(Z), 0))


def check_independent(gram: NDArray[np.float64], n: int) -> None:
    """Raise an InputError if functions of the drift with this Gram matrix, over n points, depend on each other."""
    p = len(gram)
    if not p:
        return
    size = np.sqrt(np.diagonal(gram))
    values = np.linalg.eigvalsh(gram / np.outer(size, size)) if (size > 0).all() else np.zeros(1)
    if n < p or not values[0] > _DEPENDENT * values[-1]:
        raise InputError(
            f"drift: its {p} functions depend on each other at the {n:,} points, as those of points on a line do; use "
            "a drift of lower degree, or fewer columns"
        )


def subtracted(
    y: NDArray[np.float64], F: NDArray[np.float64], gram: NDArray[np.float64], comm: Communicator
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Values minus their least squares fit by the drift, its coefficients, and a bound on the rounding error.

    Values far from 0 would lose their digits in the squares of a likelihood. Collective: two Allreduces of p numbers,
    the second of which corrects the rounding of the first.

    Parameters
    ----------
    y : ndarray, shape (n_local,)
    F : ndarray, shape (n_local, p)
        Functions of the drift.
    gram : ndarray, shape (p, p)
        Gram matrix of the functions over all ranks' rows.
    comm : Communicator
    """
    base, left = np.zeros(F.shape[1]), y
    for _ in range(2 if base.size else 0):
        step = np.linalg.solve(gram, comm.allreduce(F.T @ left))
        base, left = base + step, left - F @ step
    largest = np.append(np.abs(y), np.abs(F) @ np.abs(base)).max(initial=0.0)
    with comm.uncounted():
        largest = float(comm.allreduce(np.array([largest]), "max")[0])
    return left, base, _ROUNDING * largest


def column_of(one: object, d: int, names: Sequence[str], option: str) -> int:
    """Number of a column given by number or name, for this option."""
    if isinstance(one, str) and one in names:
        return list(names).index(one)
    try:
        number = int(one)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise InputError(f"{option}: there is no column {one!r}; give a number or a name of the table") from None
    if not -d <= number < d:
        raise InputError(f"{option}: there is no column {number}; the rows have {d}")
    return int(number % d)
