"""Settings of an SVM that follow from the data: the value of gamma, and the precision of kernel values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, in_blocks, is_sparse
from cacore.errors import InputError
from cacore.kernels.precision import value_rounding
from cacore.kernels.registry import declaration

_SMALL = 2000, 100_000  # rows, and numbers in them, up to which double precision costs next to nothing


def numeric_gamma(
    X: AnyRows, gamma: float | str, comm: Communicator, kernel: str | Callable[..., object] = "gaussian"
) -> float:
    """Gamma as a number; "scale" takes one Allreduce of 3 numbers.

    "scale" is 1 / (d var(X)). If the kernel's gamma is 1 over a length, it is the square root of that (laplacian), or
    1 / (d std(X)) (l1). "auto" is the same with a variance of 1.

    Raises
    ------
    InputError
        On all ranks, if the variance of the numbers underflows or overflows double precision.
    """
    if not isinstance(gamma, str):
        return float(gamma)
    kind = declaration(kernel)
    length, d = kind.typical_distance(X.shape[1]), int(X.shape[1])
    if gamma == "auto":
        return 1.0 / (length if kind.per_length else d)
    first = 0.0 if is_sparse(X) or not X.shape[0] else X[:1].flat[0]
    shift = float(comm.bcast(np.array([first]))[0])
    sums, constant = np.array([0.0, 0.0, X.shape[0] * X.shape[1]]), True
    for about in [X.data] if is_sparse(X) else (block.ravel() - shift for block in in_blocks(X)):
        sums[0] += about.sum(dtype=np.float64)
        sums[1] += np.einsum("i,i->", about, about, dtype=np.float64)
        constant &= not about.any()
    total, square, count = comm.allreduce(sums)
    variance = square / count - (total / count) ** 2
    vanished = square < 1e-290 * count and not comm.all(constant)
    if vanished or not variance < np.inf:
        raise InputError(
            f'gamma = "scale": the features are so {"small" if vanished else "large"} that their variance '
            f"{'underflows' if vanished else 'overflows'} double precision; standardise the features"
        )
    if not variance > 0:
        return 1.0
    return float(1.0 / (length * math.sqrt(variance) if kind.per_length else d * variance))


def overflow() -> InputError:
    """Error that every solver raises if its gradients overflow."""
    return InputError("C times the kernel values overflows: scale the features, or use a smaller C")


def precision(shape: tuple[int, ...], largest: float, C: float, tol: float) -> type[np.float32] | type[np.float64]:
    """Type in which kernel values are stored: float64 for few rows, or where their own rounding reaches the tolerance.

    The precision in which they are computed is decided by their distances, see
    :meth:`cacore.kernels.columns.Layout.of`.

    Parameters
    ----------
    shape : tuple of int
        Number of rows, and of features.
    largest : float
        The largest |K(x, z)|.
    C, tol : float
        Largest bound of a coefficient, and tolerance of the solver.
    """
    if shape[0] <= _SMALL[0] and math.prod(shape) <= _SMALL[1]:
        return np.float64
    if not 1e-30 < largest < 1e30:  # near the limits of single precision
        return np.float64
    return np.float64 if C * value_rounding(largest, np.float32) > tol else np.float32
