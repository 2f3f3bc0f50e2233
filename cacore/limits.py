"""Stopping criteria of iterative solvers."""

from __future__ import annotations

from dataclasses import dataclass

from cacore.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Tolerance, iteration limit and time limit of a solver.

    Attributes
    ----------
    tol : float
        Tolerance of the stopping criterion: largest allowed violation of the optimality conditions.
    max_iter : int
        Maximum number of iterations. Negative: a limit so large that only a diverging solver reaches it.
    max_time : float
        Maximum time in seconds.
    shrinking : bool
        If True, solvers that support shrinking set aside rows that stay at a bound until the end.

    Raises
    ------
    InputError
        The tolerance or the time is not positive.
    """

    tol: float = 1e-3
    max_iter: int = -1
    max_time: float = float("inf")
    shrinking: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.tol < float("inf"):
            raise InputError(f"tol = {self.tol:g}: it must be a positive number")
        if not self.max_time > 0:
            raise InputError(f"max_time = {self.max_time:g}: it must be a positive number of seconds")

    def iterations(self, n: int) -> int:
        """Maximum number of iterations for n rows."""
        return min(int(self.max_iter), 1 << 62) if self.max_iter >= 0 else 1000 * max(n, 10_000)
