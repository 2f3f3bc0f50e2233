"""The dual problem of a kernel SVM: gamma as a number, and the precision of its kernel values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cacore.comm import Communicator
from cacore.data.rows import Rows, is_sparse
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.registry import declaration

_SMALL = 2000, 100_000  # rows, and numbers in them, whose kernel values cost next to nothing in double precision


def numeric_gamma(X: Rows, gamma: float | str, comm: Communicator, kernel: Any = "gaussian") -> float:
    """Gamma as a number; "scale" is one Allreduce of 3 numbers.

    "scale" is 1 / (d var(X)); of a kernel whose gamma is 1 over a length the root of that (laplacian), or 1 over d
    times the deviation (l1). "auto" is the same for a variance of 1.

    Raises
    ------
    InputError
        On all ranks: numbers whose variance is too small, or too large, for a double.
    """
    if not isinstance(gamma, str):
        return float(gamma)
    kind = declaration(kernel)
    length, d = kind.typical_distance(X.shape[1]), int(X.shape[1])
    if gamma == "auto":
        return 1.0 / (length if kind.per_length else d)
    values = X.data if is_sparse(X) else X
    shift = float(comm.bcast(np.array([values.flat[0] if values.size and not is_sparse(X) else 0.0]))[0])
    about = values.ravel() - shift if not is_sparse(X) else values
    count = X.shape[0] * X.shape[1]
    total, square, count = comm.allreduce(
        np.array([about.sum(dtype=np.float64), np.einsum("i,i->", about, about, dtype=np.float64), count])
    )
    variance = square / count - (total / count) ** 2
    vanished = square < 1e-290 * count and not comm.all(not about.any())
    if vanished or not variance < np.inf:
        raise InputError(
            f'gamma = "scale": the features are so {"small" if vanished else "large"} that their variance is no number '
            "of double precision; standardise the features"
        )
    if not variance > 0:
        return 1.0
    return float(1.0 / (length * math.sqrt(variance) if kind.per_length else d * variance))


def overflow() -> InputError:
    """What every solver raises where its gradients cannot be numbers."""
    return InputError("C times the kernel values overflows: scale the features, or use a smaller C")


def precision(n: int, sample: Rows, kernel: Kernel, C: float, tol: float) -> Any:
    """float64 for few rows, and where the rounding of C K_ij in single precision comes near the tolerance.

    `n` rows, of which `sample` is a part; `C` is the largest bound.
    """
    if n <= _SMALL[0] and n * sample.shape[1] <= _SMALL[1]:
        return np.float64
    largest = float(np.abs(kernel.diagonal(sample)).max())
    if not 1e-30 < largest < 1e30:  # near the ends of what single precision holds
        return np.float64
    return np.float64 if 8 * np.finfo(np.float32).eps * C * largest > tol else np.float32
