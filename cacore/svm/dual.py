"""The dual problem of a kernel SVM, what a solver returns for it, and the contract of a part's solver.

Minimise 1/2 beta'K beta + p'beta + epsilon |beta|_1 subject to lower <= beta <= upper and sum(beta) = total, for the
kernel matrix K of n rows. This covers

===============  ========  ==========================  ===============================
problem          p         bounds of beta              total
===============  ========  ==========================  ===============================
C-SVC            -y        0 to y C, beta = y alpha    0
epsilon-SVR      -y        -C to C                     0
one-class        0         0 to 1                      nu n
nu-SVC           0         0 to y, beta = y alpha      nu n / 2 and -nu n / 2, by sign
nu-SVR, 2n rows  -y, -y    0 to C, -C to 0             C nu n / 2 and its negative
===============  ========  ==========================  ===============================

In all solvers v = -p - K beta is the gradient with its sign changed, of all but the term with epsilon. A row may rise
while beta < upper, and fall while beta > lower. That term has a kink at 0, and so a row has two gradients there: v is
v - epsilon for a row that rises, v + epsilon while beta < 0; and v + epsilon for a row that falls, v - epsilon while
beta > 0. At the solution no row that may rise has a larger v than one that may fall, and b lies between them; where the
sums are kept by sign, that holds among the rows of each sign, which have a b each.
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
    """Minimise 1/2 beta'K beta + p'beta + epsilon |beta|_1 subject to lower <= beta <= upper and sum(beta) = total.

    Attributes
    ----------
    linear, lower, upper : ndarray of float64, shape (n,)
        p, and the bounds. Never changed.
    start : ndarray of float64, shape (n,), optional
        Beta to begin with; by default 0.
    total : float
        What beta adds up to.
    epsilon : float
        At least 0.
    by_sign : bool
        Whether the rows with an upper bound above 0, and the others, both keep the sum that they have in the start.
        No row may then have bounds of both signs, and epsilon, which would change nothing, is 0.

    Raises
    ------
    InputError
        Arrays of different lengths, a lower bound above the upper one, or terms that do not go together.
    """

    linear: Vector
    lower: Vector
    upper: Vector
    start: Vector | None = None
    total: float = 0.0
    epsilon: float = 0.0
    by_sign: bool = False

    def __post_init__(self) -> None:
        n = len(self.linear)
        for name in ("linear term", "lower bounds", "upper bounds", "start"):
            values = getattr(self, name.split()[0])
            if values is not None and values.shape != (n,):
                raise InputError(f"the {name}: {n} numbers are needed, one a row, not the shape {values.shape}")
        if not (self.lower <= self.upper).all():
            raise InputError("the bounds: a lower one is above the upper one")
        if not self.epsilon >= 0:
            raise InputError(f"epsilon = {self.epsilon!r}: it must be at least 0")
        if self.by_sign and (self.epsilon or (self.lower * self.upper).any()):
            raise InputError("sums by sign: each row has a bound of 0, and epsilon is 0")

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

    @classmethod
    def regression(cls, y: ArrayLike, C: ArrayLike, epsilon: float) -> Dual:
        """The dual of epsilon-SVR in terms of beta = alpha - alpha*, for n rows: no row needs both.

        Parameters
        ----------
        y, C : array, shape (n,)
            Targets; the bound of each row's |beta|.
        epsilon : float
            Errors up to it cost nothing.
        """
        bound = np.asarray(C, np.float64)
        return cls(-np.asarray(y, np.float64), -bound, bound, epsilon=epsilon)

    @classmethod
    def one_class(cls, weights: ArrayLike, nu: float, before: float = 0.0, after: float = 0.0) -> Dual:
        """The dual of the one-class SVM, started as LIBSVM does: the first nu n rows at their bounds.

        Parameters
        ----------
        weights : array, shape (n,)
            The bound of each row's alpha.
        nu : float
            Above 0, at most 1.
        before, after : float
            What the bounds of other ranks' rows, before these and after them, add up to.
        """
        bound = np.asarray(weights, np.float64)
        total = nu * (before + float(bound.sum()) + after)
        start = _filled(bound, total - before)
        return cls(np.zeros(len(bound)), np.zeros(len(bound)), bound, start, total)

    @classmethod
    def nu_classification(cls, y: ArrayLike, weights: ArrayLike, nu: float) -> Dual:
        """The dual of nu-SVC in terms of beta = y alpha, started as LIBSVM does.

        Parameters
        ----------
        y : array, shape (n,)
            +1 and -1.
        weights : array, shape (n,)
            Upper bound of each row's alpha.
        nu : float
            Above 0, at most 1.

        Raises
        ------
        InputError
            A class whose alpha cannot add up to nu n / 2.
        """
        y, bound = np.asarray(y, np.float64), np.asarray(weights, np.float64)
        half, least = 0.5 * nu * float(bound.sum()), min(float(bound[y > 0].sum()), float(bound[y < 0].sum()))
        if half > least * (1 + 1e-12):
            most = nu * least / half if half else 0.0
            raise InputError(f"nu = {nu:g} is infeasible: with classes of these sizes it is at most {most:.6g}")
        start = _filled(np.where(y > 0, bound, 0.0), half) - _filled(np.where(y < 0, bound, 0.0), half)
        signed = y * bound
        return cls(np.zeros(len(y)), np.minimum(signed, 0.0), np.maximum(signed, 0.0), start, start.sum(), by_sign=True)

    @classmethod
    def nu_regression(cls, y: ArrayLike, C: ArrayLike, nu: float) -> Dual:
        """The dual of nu-SVR for 2n rows: alpha of the n rows, and -alpha* of the same rows; started as LIBSVM does.

        Both may be positive here, which leaves out what C nu n is more than an epsilon of 0 needs.

        Parameters
        ----------
        y, C : array, shape (n,)
            Targets; the bound of each row's alpha and alpha*.
        nu : float
            Above 0, at most 1.
        """
        y, bound = np.asarray(y, np.float64), np.asarray(C, np.float64)
        none, start = np.zeros(len(y)), _filled(bound, 0.5 * nu * float(bound.sum()))
        return cls(
            np.r_[-y, -y], np.r_[none, -bound], np.r_[bound, none], np.r_[start, -start], by_sign=True
        )  # fmt: skip

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


def _filled(bound: Vector, total: float) -> Vector:
    """The first rows at their bounds, until they add up to the total."""
    return np.clip(total - (np.cumsum(bound) - bound), 0.0, bound)


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
        -(1/2 beta'K beta + p'beta + epsilon |beta|_1), which is maximised, in double precision.
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
    margin : float
        Of sums by sign: half of what the b of rows with positive beta has above that of the others; `b` is their mean.
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
    margin: float = 0.0

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
