"""Kernel expansions: a trained model, or one of its parts, as a function of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import AnyRows, Rows
from cacore.data.stored import in_memory
from cacore.kernels import Kernel
from cacore.svm.decision import expansion


@dataclass(frozen=True)
class Expansion:
    """The function ``f(z) = K(z, X) weights + b`` of standardised rows.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
        Support vectors, or training rows.
    weights : ndarray of float64, shape (m, q)
    b : ndarray of float64, shape (q,)
    kernel : Kernel or None
        None if kernel values were given instead of rows.
    """

    X: AnyRows
    weights: NDArray[np.float64]
    b: NDArray[np.float64]
    kernel: Kernel | None

    def at(self, Z: Rows) -> NDArray[np.float64]:
        """Values at these rows, shape (n, q): 2 n nnz(X) flops."""
        if not len(self.weights):
            return np.tile(self.b, (Z.shape[0], 1))
        assert self.kernel is not None
        return expansion(self.kernel, in_memory(self.X), self.weights, Z, dtype=np.float64) + self.b
