"""Options of the dual problem of a kernel SVM and of its solvers, which all families of SVMs have."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from cacore import checks
from cacore.kernels.registry import KINDS, MOST_DEGREE
from cacore.learn import shared
from cacore.learn.options import Options, option
from cacore.limits import Limits

if TYPE_CHECKING:
    from cacore.kernels import Kernel

GIB = 1 << 30


@dataclass(frozen=True)
class DualOptions(Options):
    """Options of the training of any kernel SVM; each option's text says what it is.

    C is multiplied by the weights of the class and the row. `class_weight` maps a class's code to its weight;
    "balanced" is n / (classes x rows of the class), over all ranks. The limits are of each problem of two classes,
    and `memory_limit` is in bytes a rank.
    """

    C: float = option(1.0, "bound of the coefficients alpha", checks.positive, metavar="C")
    kernel: Any = option("gaussian", "of the rows", checks.kernel_or_callable, choices=tuple(KINDS))
    gamma: float | str = option(
        "scale", "number, scale = 1 / (features x variance; of laplacian and l1 their lengths), or auto",
        checks.number_or("scale", "auto"), metavar="G",
    )  # fmt: skip
    degree: int = option(
        3, "of the polynomial kernel; exponent of the rational one", checks.whole(0, MOST_DEGREE), metavar="D"
    )
    coef0: float = option(0.0, "of the polynomial and sigmoid kernels", checks.finite, metavar="R")
    tol: float = option(
        1e-3, "largest violation at which training stops", checks.positive, report=True, metavar="T"
    )  # fmt: skip
    cache_gib: float = option(
        1.0, "of kernel values that a rank keeps", checks.at_least_zero, report=True, metavar="GIB"
    )  # fmt: skip
    max_iter: int = option(-1, "iterations a part's solver may take", checks.whole(types=Real), metavar="N")
    max_time: float | None = option(None, "seconds it may take", checks.seconds, metavar="S")
    class_weight: Any = option(
        None, "weigh the classes so that each counts as much", flag="--balanced", estimator="",
        action="store_const", const="balanced",
    )  # fmt: skip
    standardize: bool = shared.switch(False, "scale features by the training rows' mean and deviation", report=True)
    seed: int = option(0, "of everything random", shared.seed, estimator="", report=True, metavar="S")
    memory_limit: int = 1 << 62

    @property
    def limits(self) -> Limits:
        """When a solver stops."""
        return Limits(float(self.tol), self.max_iter, float("inf") if self.max_time is None else self.max_time)

    @property
    def cache_bytes(self) -> int:
        """The kernel cache in bytes, at most what an int64 holds with room to spare."""
        return int(min(self.cache_gib * GIB, 2.0**62))

    def kernel_with(self, gamma: float) -> Kernel:
        """The kernel, with gamma as a number."""
        from cacore.kernels import Kernel

        if callable(self.kernel):
            from cacore.kernels.given import given_kernel

            return given_kernel(self.kernel)
        return Kernel(self.kernel, gamma, self.degree, self.coef0)
