"""The settings to compare: the user's values, or a default grid scaled by the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, Rows
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.registry import KernelKind
from cacore.svm.options import DualOptions
from cacore.svm.problem import numeric_gamma
from cacore.tuning.grid import spaced
from casvm.options import SVMOptions
from casvm.rules import GRID

SETTINGS, QUICK = 10, 5  # number of values of C and of gamma in the default grid
_C = 0.1, 1000.0
_GAMMA = 0.25, 256.0  # in units of 1 / median squared distance within a part; the best values are far above 1
_NORMAL = 1e-300  # smallest distance of which 256 over it is a number
_SAMPLE = 256  # rows of a part whose distances are sampled


@dataclass(frozen=True)
class Settings:
    """Values of C, ascending, and kernels that differ in gamma, ascending."""

    Cs: tuple[float, ...]
    kernels: tuple[Kernel, ...]

    @property
    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of each parameter; without gamma if the kernel has none."""
        gammas = {"gamma": tuple(one.gamma for one in self.kernels)} if self.kernels[0].has("gamma") else {}
        return {"C": self.Cs, **gammas}


def settings(options: SVMOptions, X: AnyRows, pieces: list[NDArray[np.int64]], comm: Communicator) -> Settings:
    """The settings to compare; collective.

    Parameters
    ----------
    options : SVMOptions
    X : ndarray, CSR or rows in a file, shape (n_local, d)
        This rank's rows; of each piece, a sample is read.
    pieces : list of ndarray of int64
        The rows of each piece that is searched.
    comm : Communicator
    """
    count = QUICK if options.quick else SETTINGS
    if options.C == GRID:
        Cs = tuple(spaced(*_C, count))
    else:
        Cs = options.C if isinstance(options.C, tuple) else (float(options.C),)
    return Settings(Cs, kernels(options, X, pieces, _GAMMA, count, comm))


def kernels(
    options: DualOptions, X: AnyRows, pieces: list[NDArray[np.int64]], ends: tuple[float, float], count: int,
    comm: Communicator,
) -> tuple[Kernel, ...]:  # fmt: skip
    """One kernel per gamma; collective.

    A default grid has `count` values of gamma between `ends`, in units of 1 over the median squared distance within a
    piece.
    """
    kind = options.kernel_with(1.0).declared
    gammas: Any = options.gamma
    if gammas != GRID:
        if not isinstance(gammas, tuple):
            gammas = (numeric_gamma(X, gammas, comm, options.kernel),)
    elif kind.of_distance and kind.has_width:
        gammas = _around(_median(options.kernel_with(1.0), X, pieces, comm), kind, ends, count)
    else:
        gammas = (numeric_gamma(X, "scale", comm, options.kernel) if kind.has_width else 1.0,)
    return tuple(options.kernel_with(gamma) for gamma in gammas)


def _around(distance: float, kind: KernelKind, ends: tuple[float, float], count: int) -> tuple[float, ...]:
    """Values of gamma for this typical distance of rows, a squared one unless the kernel's gamma is 1 / length."""
    low, high = (np.sqrt(times) if kind.per_length else times for times in ends)
    return tuple(spaced(low / distance, high / distance, count))


def _median(kernel: Kernel, X: AnyRows, pieces: list[NDArray[np.int64]], comm: Communicator) -> float:
    """Median over all pieces of the median distance, as the kernel defines it, between rows of a piece; collective.

    Returns 1 if all rows are equal. Each rank sends its medians to all ranks.

    Raises
    ------
    InputError
        On all ranks: the distances are so small or large that gammas around 1 over them overflow or vanish.
    """
    own = np.array([_typical(kernel, X[rows[:: -(-len(rows) // _SAMPLE)]]) for rows in pieces])
    known = comm.allgather(own)
    known = known[known > 0]
    distance = float(np.median(known)) if len(known) else 1.0
    with comm.uncounted(), comm.agreed():
        if not _NORMAL < distance < 1 / _NORMAL:
            raise InputError(
                f'gamma = "grid": the distances of the features are so {"small" if distance < 1 else "large"}, about '
                f"{distance:g}, that 1 over them is no number of double precision; standardise the features"
            )
    return distance


def _typical(kernel: Kernel, X: Rows) -> float:
    if kernel.separable:  # Euclidean distances, in units in which standardised features have the natural width
        d = X.shape[1]
        return _typical(Kernel("laplacian"), X) / math.sqrt(d) * kernel.declared.typical_distance(d)
    points = kernel.points(X.astype(np.float64))
    compared = kernel.arguments(points, points)
    apart = compared[np.triu_indices(len(points), 1)]
    if kernel.declared.per_length and kernel.shifts:
        apart = np.sqrt(apart)
    apart = apart[apart > 1e-12 * apart.max(initial=0.0)]
    return float(np.median(apart)) if len(apart) else 0.0
