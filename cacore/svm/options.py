"""Options of the dual problem of a kernel SVM and of its solvers, and the registry of the solvers of a part.

A solver is a function with the interface :class:`cacore.svm.dual.PartSolver`, decorated with ``@register("its name")``.
A package names the solver's module in the entry-point group "cakernels.solvers". The module is imported, and so
registered, when the solver is first requested. So a new solver is one new module, and no package imports another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from numbers import Real
from typing import TYPE_CHECKING, TypeVar

from cacore import checks
from cacore.errors import InputError
from cacore.kernels.registry import KINDS, MOST_DEGREE
from cacore.learn import options
from cacore.learn.options import KERNEL, RESOURCES, SOLVER, Options, option
from cacore.limits import Limits

if TYPE_CHECKING:
    from cacore.data.labels import ClassWeight
    from cacore.kernels import Kernel
    from cacore.svm.dual import PartSolver


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
    class_weight: ClassWeight = options.balanced()
    standardize: bool = options.standardize(False)
    seed: int = options.random_state()
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


GROUP = "cakernels.solvers"
DEFAULT = "smo"

_registered: dict[str, PartSolver] = {}

Solver = TypeVar("Solver", bound="PartSolver")


def register(name: str) -> Callable[[Solver], Solver]:
    """Decorator that registers a function as the solver of this name.

    Raises
    ------
    ValueError
        If another solver has the name.

    Examples
    --------
    >>> from cacore.svm.options import part_solver, register
    >>> @register("smo of mine")
    ... def solve(*problem, **watched):
    ...     return part_solver("smo")(*problem, **watched)
    >>> part_solver("smo of mine") is solve
    True
    """

    def registered(solver: Solver) -> Solver:
        if _registered.setdefault(name, solver) is not solver:
            raise ValueError(f"solver {name!r}: registered already, by {_registered[name].__module__}")
        return solver

    return registered


def solver_names() -> tuple[str, ...]:
    """Names of all solvers, the default first; none of them is imported."""
    return tuple(sorted({*_registered, *_installed()}, key=lambda name: (name != DEFAULT, name)))


def part_solver(name: str) -> PartSolver:
    """The solver of this name, imported if necessary.

    Raises
    ------
    InputError
        If there is no solver of this name.
    """
    if name not in _registered and name in _installed():
        _installed()[name].load()
    if name not in _registered:
        raise InputError(f"solver {name!r}: choose one of {', '.join(solver_names())}")
    return _registered[name]


@cache
def _installed() -> dict[str, EntryPoint]:
    """Entry points of the solvers that installed packages declare, by name."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}
