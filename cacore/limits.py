"""When an iterative solver stops."""

from __future__ import annotations

from dataclasses import dataclass

from cacore.errors import InputError


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Attributes
    ----------
    tol : float
        Of the solver's stopping rule: the largest violation of its optimality conditions.
    max_iter : int
        Iterations; below 0 there is no limit but one that no healthy problem meets.
    max_time : float
        Seconds.
    shrinking : bool
        Whether rows that stay at a bound are left out until the end, by solvers that can.

    Raises
    ------
    InputError
        A tolerance or a time that is not positive.
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
        """Iterations that n rows may take."""
        return min(int(self.max_iter), 1 << 62) if self.max_iter >= 0 else 1000 * max(n, 10_000)
