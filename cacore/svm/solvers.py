"""The solvers of a part by name.

A solver is a function as :class:`cacore.svm.dual.PartSolver` describes it, decorated with ``@register("its name")``.
A package names the module of its solver in the entry-point group "cakernels.solvers"; the module is imported, which
registers the solver, when the solver is asked for. So another solver is one new module, and no package imports another.
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
    """Decorator: the function is the solver of this name.

    Raises
    ------
    ValueError
        Another one has the name.
    """

    def registered(solver: Solver) -> Solver:
        if _registered.setdefault(name, solver) is not solver:
            raise ValueError(f"solver {name!r}: registered already, by {_registered[name].__module__}")
        return solver

    return registered


def solver_names() -> tuple[str, ...]:
    """Names of all solvers, the default one first; imports none of them."""
    return tuple(sorted({*_registered, *_installed()}, key=lambda name: (name != DEFAULT, name)))


def part_solver(name: str) -> PartSolver:
    """The solver of this name, imported if need be.

    Raises
    ------
    InputError
        There is none.
    """
    if name not in _registered and name in _installed():
        _installed()[name].load()
    if name not in _registered:
        raise InputError(f"solver {name!r}: choose one of {', '.join(solver_names())}")
    return _registered[name]


@cache
def _installed() -> dict[str, EntryPoint]:
    """Modules of solvers by name, as installed packages declare them."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}
