"""The dual problem of a kernel SVM, a solver's solution of it, and the interface of a part's solver.

Minimise 1/2 beta'K beta + p'beta + epsilon |beta|_1 subject to lower <= beta <= upper and sum(beta) = total, for the
kernel matrix K of n rows. This covers

===============  ========  ==========================  ===============================
problem          p         bounds of beta              total
===============  ========  ==========================  ===============================
C-SVC            -y        0 to y C, beta = y alpha    0
epsilon-SVR      -y        -C to C                     0
quantile tau     -y        -C (1 - tau) to C tau       0
one-class        0         0 to 1                      nu n
nu-SVC           0         0 to y, beta = y alpha      nu n / 2 and -nu n / 2, by sign
nu-SVR, 2n rows  -y, -y    0 to C, -C to 0             C nu n / 2 and its negative
===============  ========  ==========================  ===============================

In all solvers v = -p - K beta is the negative gradient without the term in epsilon. The coefficient of a row may rise
while beta < upper, and fall while beta > lower. The term in epsilon has a kink at 0, so the two directions have
different gradients: to rise, v - epsilon if beta >= 0, and v + epsilon if beta < 0; to fall, v + epsilon if beta <= 0,
and v - epsilon if beta > 0. At the solution no row that may rise has a larger value than one that may fall, and b lies
between the two. If the sums are fixed by sign, this holds among the rows of each sign, with one b for each sign.
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
_ROUNDING = 1e-12  # change of a coefficient, relative to the distance between its bounds, that counts as none


@dataclass(frozen=True, eq=False)
class KnownProduct:
    """A vector and its product with K.

    Attributes
    ----------
    beta, product : ndarray of float64, shape (n,)
        The vector, which need not be feasible, and ``K beta``.
    """

    beta: Vector
    product: Vector


@dataclass(frozen=True, eq=False)
class Dual:
    """Minimise 1/2 beta'K beta + p'beta + epsilon |beta|_1 subject to lower <= beta <= upper and sum(beta) = total.

    Attributes
    ----------
    linear, lower, upper : ndarray of float64, shape (n,)
        p and the bounds. Never changed.
    start : ndarray of float64, shape (n,), optional
        Initial beta; 0 by default.
    total : float
        Required sum of beta.
    epsilon : float
        At least 0.
    by_sign : bool
        True if two sums are fixed at their initial values: that over the rows with an upper bound above 0, and that
        over the others. Then no row may have bounds of both signs, and epsilon, which would have no effect, is 0.
    near_start : KnownProduct, optional
        A vector near the start: a solver may compute the product of K with their difference only.

    Raises
    ------
    InputError
        If arrays differ in length, a lower bound is above the upper one, or terms cannot be combined.

    Examples
    --------
    >>> from cacore.svm.dual import Dual
    >>> dual = Dual.classification(y=[1, -1, 1], C=[1.0, 1.0, 2.0])
    >>> dual.lower.tolist(), dual.upper.tolist(), dual.total
    ([0.0, -1.0, 0.0], [1.0, 0.0, 2.0], 0.0)
    """

    linear: Vector
    lower: Vector
    upper: Vector
    start: Vector | None = None
    total: float = 0.0
    epsilon: float = 0.0
    by_sign: bool = False
    near_start: KnownProduct | None = None

    def __post_init__(self) -> None:
        n = len(self.linear)
        for name, values in (
            ("linear term", self.linear), ("lower bounds", self.lower), ("upper bounds", self.upper),
            ("start", self.start),
        ):  # fmt: skip
            if values is not None and values.shape != (n,):
                raise InputError(f"the {name}: {n} numbers are needed, one per row, not the shape {values.shape}")
        if not (self.lower <= self.upper).all():
            raise InputError("the bounds: a lower one is above the upper one")
        if not self.epsilon >= 0:
            raise InputError(f"epsilon = {self.epsilon!r}: it must be at least 0")
        if self.by_sign and (self.epsilon or (self.lower * self.upper).any()):
            raise InputError("by_sign: each row needs a bound of 0, and epsilon must be 0")

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
            Initial alpha.
        """
        y = np.asarray(y, np.float64)
        bound = np.asarray(C, np.float64) * y
        start = None if start_alpha is None else np.asarray(start_alpha, np.float64)
        if start is not None and start.shape == y.shape:  # the constructor refuses other shapes
            start = start * y
        return cls(-y, np.minimum(0.0, bound), np.maximum(0.0, bound), start)

    @classmethod
    def regression(cls, y: ArrayLike, C: ArrayLike, epsilon: float) -> Dual:
        """The dual of epsilon-SVR in terms of beta = alpha - alpha*, with n variables: one of the two is always 0.

        Parameters
        ----------
        y, C : array, shape (n,)
            Targets, and the bound of each row's |beta|.
        epsilon : float
            Half-width of the tube: errors up to epsilon cost nothing.
        """
        bound = np.asarray(C, np.float64)
        return cls(-np.asarray(y, np.float64), -bound, bound, epsilon=epsilon)

    @classmethod
    def quantile(cls, y: ArrayLike, C: ArrayLike, tau: float) -> Dual:
        """The dual of support vector quantile regression (Takeuchi et al., 2006).

        The primal is 1/2 |w|^2 + sum_i C_i loss(y_i - w phi(x_i) - b), where an error r above 0 costs tau r, and one
        below 0 costs (tau - 1) r. At the solution, b is a tau-quantile of the residuals y - w phi(x), weighted by C;
        where these quantiles form an interval, no beta need lie between its bounds, and solvers return the middle.

        Parameters
        ----------
        y, C : array, shape (n,)
            Targets, and the price of an error of each row.
        tau : float
            Level of the quantile, between 0 and 1.

        Raises
        ------
        InputError
            If tau is not between 0 and 1.
        """
        if not 0 < tau < 1:
            raise InputError(f"tau = {tau!r}: a quantile's level must be between 0 and 1")
        price = np.asarray(C, np.float64)
        return cls(-np.asarray(y, np.float64), (tau - 1.0) * price, tau * price)

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
            Sums of the bounds of other ranks' rows, before and after these rows.
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
            If the alpha of a class cannot add up to nu n / 2.
        """
        y, bound = np.asarray(y, np.float64), np.asarray(weights, np.float64)
        half, least = 0.5 * nu * float(bound.sum()), min(float(bound[y > 0].sum()), float(bound[y < 0].sum()))
        if half > least * (1 + 1e-12):
            largest_nu = nu * least / half if half else 0.0
            raise InputError(f"nu = {nu:g} is infeasible: with classes of these sizes it is at most {largest_nu:.6g}")
        start = _filled(np.where(y > 0, bound, 0.0), half) - _filled(np.where(y < 0, bound, 0.0), half)
        signed = y * bound
        return cls(np.zeros(len(y)), np.minimum(signed, 0.0), np.maximum(signed, 0.0), start, start.sum(), by_sign=True)

    @classmethod
    def nu_regression(cls, y: ArrayLike, C: ArrayLike, nu: float) -> Dual:
        """The dual of nu-SVR with 2n variables, alpha and -alpha* of the n rows; started as LIBSVM does.

        Alpha and alpha* of a row may both be positive: if C nu n is more than epsilon = 0 needs, they absorb the rest.

        Parameters
        ----------
        y, C : array, shape (n,)
            Targets, and the bound of each row's alpha and alpha*.
        nu : float
            Above 0, at most 1.
        """
        y, bound = np.asarray(y, np.float64), np.asarray(C, np.float64)
        none, start = np.zeros(len(y)), _filled(bound, 0.5 * nu * float(bound.sum()))
        return cls(np.r_[-y, -y], np.r_[none, -bound], np.r_[bound, none], np.r_[start, -start], by_sign=True)

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.linear)

    @property
    def largest_bound(self) -> float:
        """Largest bound of |beta|; 0 without rows."""
        return float(np.maximum(self.upper, -self.lower).max(initial=0.0))

    @property
    def half_range(self) -> float:
        """Half the range of the linear term: 1 for two classes; 1 if all numbers are equal."""
        return 0.5 * float(np.ptp(self.linear)) or 1.0 if self.n else 1.0

    def initial(self) -> Vector:
        """Initial beta as a new array: the start, or 0.

        Raises
        ------
        InputError
            If the start violates the bounds.
        """
        beta = np.zeros(self.n) if self.start is None else np.array(self.start, np.float64)
        if not ((beta >= self.lower) & (beta <= self.upper)).all():
            raise InputError(f"the start: {self.n} numbers within the bounds are needed, one per row")
        return beta

    def unknown(self, beta: Vector) -> tuple[Vector, Vector]:
        """``-p - K z`` and ``beta - z``, each of shape (n,), with z from `near_start`; without it, -p and beta."""
        if self.near_start is None:
            return -self.linear, beta
        change = beta - self.near_start.beta
        change[np.abs(change) < _ROUNDING * (self.upper - self.lower)] = 0.0
        return -self.linear - self.near_start.product, change

    def terms(self, beta: Vector) -> float:
        """``p'beta + epsilon |beta|_1``, for `beta` of shape (n,)."""
        return float(np.sum(self.linear * beta) + self.epsilon * np.abs(beta).sum())

    def repaired(self) -> Dual:
        """A copy with a feasible start, for a dual whose total is 0.

        The start is clipped to the bounds. Then the beta of the sign with the larger sum is scaled down, so that the
        total is 0.
        """
        if self.start is None:
            return self
        beta = np.clip(self.start, self.lower, self.upper)
        positive = (self.upper > 0) & (beta >= 0)
        rise, fall = beta[positive].sum(), -beta[~positive].sum()
        # Rounding alone must not move rows off their bounds.
        if self.total == 0 and abs(rise - fall) > 1e-12 * max(rise, fall):
            beta[positive if rise > fall else ~positive] *= min(rise, fall) / max(rise, fall)
        return replace(self, start=beta)


def _filled(bound: Vector, total: float) -> Vector:
    """Coefficients that put the first rows at their bounds, until they add up to the total."""
    return np.clip(total - (np.cumsum(bound) - bound), 0.0, bound)


@dataclass(frozen=True)
class Progress:
    """Progress of a solver.

    Attributes
    ----------
    iterations : int
    gap : float
        The largest violation of the optimality conditions by a pair of rows.
    objective : float
        Objective, see :class:`Solution`.
    active : int
        Rows of all ranks that are not shrunk.
    """

    iterations: int
    gap: float
    objective: float
    active: int


@dataclass(frozen=True, eq=False)
class Solution:
    """Solution of a dual problem. If rows are distributed, `beta`, `decision` and the counters are this rank's.

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
        The largest remaining violation over all rows.
    converged : bool
    kernel_rows, kernel_values : int
        Rows of K computed, and kernel values computed in total.
    seconds : float
    decision : ndarray of float64, shape (n,)
        Decisions of the training rows.
    rounds, values_read : int
        For solvers that work in rounds: number of rounds, and kernel values read again from memory.
    margin : float
        For sums fixed by sign: half the difference between the b of rows with positive beta and that of the others;
        `b` is the mean of the two.

    Examples
    --------
    >>> import numpy as np
    >>> from cacore.kernels import Kernel
    >>> from cacore.limits import Limits
    >>> from cacore.svm import dual, options
    >>> problem = dual.Dual.classification(y=[1, 1, -1, -1], C=np.ones(4))
    >>> solve, x, limits = options.part_solver("smo"), np.arange(4.0)[:, None], Limits(1e-6, -1, np.inf)
    >>> solve(x, Kernel("linear"), problem, limits, cache_bytes=1 << 20).alpha.tolist()  # of a Solution
    [0.0, 1.0, 1.0, 0.0]
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
        """|beta|; for C-SVC, the coefficients alpha without the sign of y."""
        return np.abs(self.beta)


class PartSolver(Protocol):
    """Interface of a solver for the dual of one part, on the caller's threads; see :mod:`cacore.svm.options`.

    Examples
    --------
    >>> from cacore.svm.dual import PartSolver
    >>> from cacore.svm.options import part_solver
    >>> solve: PartSolver = part_solver("smo")
    >>> solve.__module__
    'casvm.solver.smo'
    """

    def __call__(
        self, X: Rows, kernel: Kernel | None, dual: Dual, limits: Limits, cache_bytes: int,
        watch: Callable[[Progress], None] | None = None,
    ) -> Solution:  # fmt: skip
        """Solve a part.

        Parameters
        ----------
        X : ndarray or CSR, shape (n, d)
            Rows; not changed. Without a `kernel`, the kernel matrix, shape (n, n).
        kernel : Kernel or None
        dual : Dual
            Its start need not be feasible. A solver without a bias ignores the constraint on the sum and returns b = 0.
        limits : Limits
        cache_bytes : int
            Memory for kernel values and packed rows.
        watch : callable, optional
            Called at intervals with the progress.

        Raises
        ------
        InputError
            If the solver does not support this dual or this kernel.
        """
