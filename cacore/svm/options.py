"""Options of the dual problem of a kernel SVM and of its solvers, which all families of SVMs have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

from cacore import checks
from cacore.kernels.registry import KINDS, MOST_DEGREE
from cacore.learn import shared
from cacore.learn.options import KERNEL, RESOURCES, SOLVER, Options, option
from cacore.limits import Limits

if TYPE_CHECKING:
    from cacore.data.labels import ClassWeight
    from cacore.kernels import Kernel

GIB = 1 << 30


@dataclass(frozen=True)
class DualOptions(Options):
    """Options for training any kernel SVM; the help text of each option describes it.

    C is multiplied by the weights of the class and the row. `class_weight` maps a class's code to its weight;
    "balanced" is n / (classes x rows of the class), over all ranks. The limits apply to each two-class problem, and
    `memory_limit` is in bytes per rank.
    """

    C: float = option(1.0, "upper bound of the coefficients alpha", checks.positive, metavar="C")
    kernel: str | Callable[..., object] = option(
        "gaussian", "kernel; --gamma, --degree and --coef0 are its parameters", checks.kernel_or_callable,
        choices=tuple(KINDS),
    )  # fmt: skip
    gamma: float | str = option(
        "scale", "kernel parameter gamma: a number, scale = 1 / (features x variance), or auto = 1 / features; for "
        "laplacian and the wendland kernels 1 over the square roots, for l1 1 / (features x deviation)",
        checks.number_or("scale", "auto"),
        metavar="G",
    )  # fmt: skip
    degree: int = option(
        3, "degree of the polynomial kernel, exponent of the rational kernel, largest number of features for the "
        "wendland kernels", checks.whole(0, MOST_DEGREE),
        group=KERNEL, metavar="D",
    )  # fmt: skip
    coef0: float = option(
        0.0, "constant term of the polynomial and sigmoid kernels", checks.finite, group=KERNEL, metavar="R"
    )
    tol: float = option(
        1e-3, "stop when the largest violation of the optimality conditions is below this", checks.positive,
        report=True, group=SOLVER, metavar="T",
    )  # fmt: skip
    cache_gib: float = option(
        1.0, "size of a rank's kernel cache", checks.at_least_zero, report=True, group=RESOURCES, metavar="GIB"
    )
    max_iter: int = option(
        -1, "maximum number of iterations of a part's solver; -1 is no limit", checks.whole(types=Real), group=SOLVER,
        metavar="N",
    )  # fmt: skip
    max_time: float | None = option(
        None, "time limit of a part's solver, in seconds", checks.seconds, group=SOLVER, metavar="S"
    )
    class_weight: ClassWeight = shared.balanced()
    standardize: bool = shared.standardize(False)
    seed: int = shared.random_state()
    memory_limit: int = 1 << 62

    @property
    def limits(self) -> Limits:
        """Limits at which a solver stops."""
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
