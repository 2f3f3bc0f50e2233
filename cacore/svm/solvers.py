"""Registry of the solvers of a part, by name.

A solver is a function with the interface :class:`cacore.svm.dual.PartSolver`, decorated with ``@register("its name")``.
A package names the solver's module in the entry-point group "cakernels.solvers". The module is imported, and so
registered, when the solver is first requested. So a new solver is one new module, and no package imports another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, TypeVar

from cacore.errors import InputError

if TYPE_CHECKING:
    from cacore.svm.dual import PartSolver

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
