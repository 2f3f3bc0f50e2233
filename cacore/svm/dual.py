"""The dual problem of a kernel SVM, what a solver returns for it, and the contract of a part's solver.

Minimise 1/2 beta'K beta + p'beta subject to lower <= beta <= upper and sum(beta) = total, for the kernel matrix K of n
rows. This covers

===================  =======================  ==========================  =======
problem              p                        bounds of beta              total
===================  =======================  ==========================  =======
C-SVC                -y                       0 to y C, beta = y alpha    0
epsilon-SVR, 2n rows  epsilon - y, -epsilon - y  0 to C, -C to 0          0
one-class            0                        0 to 1                      nu n
===================  =======================  ==========================  =======

In all solvers v = -p - K beta is the gradient with its sign changed. A row may rise while beta < upper, and fall while
beta > lower; at the solution no row that may rise has a larger v than one that may fall, and b lies between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.errors import InputError
from cacore.limits import Limits

if TYPE_CHECKING:
    from cacore.data.rows import Rows
    from cacore.kernels import Kernel

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Dual:
    """Minimise 1/2 beta'K beta + p'beta subject to lower <= beta <= upper and sum(beta) = total.

    Attributes
    ----------
    linear, lower, upper : ndarray of float64, shape (n,)
        p, and the bounds. Never changed.
    start : ndarray of float64, shape (n,), optional
        Beta to begin with; by default 0.
    total : float
        What beta adds up to.

    Raises
    ------
    InputError
        Arrays of different lengths, or a lower bound above the upper one.
    """

    linear: Vector
    lower: Vector
    upper: Vector
    start: Vector | None = None
    total: float = 0.0

    def __post_init__(self) -> None:
        n = len(self.linear)
        for name in ("linear term", "lower bounds", "upper bounds", "start"):
            values = getattr(self, name.split()[0])
            if values is not None and values.shape != (n,):
                raise InputError(f"the {name}: {n} numbers are needed, one a row, not the shape {values.shape}")
        if not (self.lower <= self.upper).all():
            raise InputError("the bounds: a lower one is above the upper one")

    @classmethod
    def classification(cls, y: ArrayLike, C: ArrayLike, start_alpha: ArrayLike | None = None) -> Dual:
        """The dual of C-SVC in terms of beta = y alpha.

        Parameters
        ----------
        y : array, shape (n,)
            +1 and -1.
        C : array, shape (n,)
            Upper bound of each row's alpha, at least 0.
        start_alpha : array, shape (n,), optional
            Alpha to begin with.
        """
        y = np.asarray(y, np.float64)
        bound = np.asarray(C, np.float64) * y
        start = None if start_alpha is None else np.asarray(start_alpha, np.float64)
        if start is not None and start.shape == y.shape:  # another shape is refused by the constructor
            start = start * y
        return cls(-y, np.minimum(0.0, bound), np.maximum(0.0, bound), start)

    @property
    def n(self) -> int:
        """Rows."""
        return len(self.linear)

    @property
    def largest_bound(self) -> float:
        """Of |beta|; 0 without rows."""
        return float(np.maximum(self.upper, -self.lower).max(initial=0.0))

    def initial(self) -> Vector:
        """Beta to begin with, a new array: the start, or 0.

        Raises
        ------
        InputError
            It is not within the bounds.
        """
        beta = np.zeros(self.n) if self.start is None else np.array(self.start, np.float64)
        if not ((beta >= self.lower) & (beta <= self.upper)).all():
            raise InputError(f"the start: {self.n} numbers within the bounds are needed, one a row")
        return beta

    def repaired(self) -> Dual:
        """With a feasible start, of a dual whose total is 0.

        The start is cut to the bounds, and beta of the sign that outweighs the other is scaled down until the sum is 0.
        """
        if self.start is None:
            return self
        beta = np.clip(self.start, self.lower, self.upper)
        positive = (self.upper > 0) & (beta >= 0)
        rise, fall = beta[positive].sum(), -beta[~positive].sum()
        # Rounding alone must not take rows off their bound.
        if self.total == 0 and abs(rise - fall) > 1e-12 * max(rise, fall):
            beta[positive if rise > fall else ~positive] *= min(rise, fall) / max(rise, fall)
        return replace(self, start=beta)


@dataclass(frozen=True)
class Progress:
    """How far a solver is.

    Attributes
    ----------
    iterations : int
    gap : float
        The largest violation of a pair of rows.
    objective : float
        As in :class:`Solution`.
    active : int
        Rows that are not shrunk, of all ranks.
    """

    iterations: int
    gap: float
    objective: float
    active: int


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver returns; of rows that lie on many ranks, `beta`, `decision` and the counters are of this rank.

    Attributes
    ----------
    beta : ndarray of float64, shape (n,)
    b : float
        The decision is sum beta_i K(x_i, x) + b.
    iterations : int
        Steps: pairs of rows optimised, or updates of one row.
    objective : float
        -(1/2 beta'K beta + p'beta), which is maximised, in double precision.
    gap : float
        The largest violation left, over all rows.
    converged : bool
    kernel_rows, kernel_values : int
        Rows of K computed; kernel values in all.
    seconds : float
    decision : ndarray of float64, shape (n,)
        Of the training rows.
    rounds, values_read : int
        Of solvers that work in rounds: how many; kernel values read again from memory.
    """

    beta: Vector
    b: float
    iterations: int
    objective: float
    gap: float
    converged: bool
    kernel_rows: int
    kernel_values: int
    seconds: float
    decision: Vector
    rounds: int = 0
    values_read: int = 0

    @property
    def alpha(self) -> Vector:
        """|beta|: of C-SVC, the coefficients before they take the sign of y."""
        return np.abs(self.beta)


class PartSolver(Protocol):
    """Solves the dual of one part's rows, on the threads that its caller has; see :mod:`cacore.svm.solvers`."""

    def __call__(
        self, X: Rows, kernel: Kernel | None, dual: Dual, limits: Limits, cache_bytes: int,
        watch: Callable[[Progress], None] | None = None,
    ) -> Solution:  # fmt: skip
        """Solve a part.

        Parameters
        ----------
        X : ndarray or CSR, shape (n, d)
            Not changed. Without a `kernel`, kernel values, shape (n, n).
        kernel : Kernel or None
        dual : Dual
            Its start need not be feasible. A solver without a bias leaves out the constraint on the sum; its b is 0.
        limits : Limits
        cache_bytes : int
            For kernel values and packed rows.
        watch : callable, optional
            Called now and then.

        Raises
        ------
        InputError
            A dual or a kernel that the solver is not made for.
        """
