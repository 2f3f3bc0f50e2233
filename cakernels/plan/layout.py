"""The layout of a training: rows, parts, ranks and threads, and what a method does with them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from math import ceil
from typing import TYPE_CHECKING, Any

from cacore.errors import InputError
from cacore.linalg.tsqr import leaves_of

if TYPE_CHECKING:
    from cacore.learn.method import Method

_HOMES = {
    "cakrr": ("bkrr2", "bkrr", "bkrr3", "kkrr2", "kkrr", "kkrr3", "dckrr", "twolevel", "dkrr", "subset"),
    "casvm": (
        "casvm", "cpsvm", "bkmsvm", "fcfssvm", "dissmo", "cascade", "dcsvm", "dcfilter", "svr", "oneclass",
    ),
}  # fmt: skip
METHODS = tuple(name for names in _HOMES.values() for name in names)


class Kind(Enum):
    """How the work of a method depends on the layout."""

    RIDGE_PARTS = "one ridge system per part"
    SVM_PARTS = "one SVM per part"
    SYSTEM = "one ridge system of all rows"
    TREE = "a tree of merged SVMs"
    SHARED = "one SVM of all rows"
    POINTS = "least squares on M points"

    @property
    def in_parts(self) -> bool:
        """True if parts are trained independently of each other."""
        return self in (Kind.RIDGE_PARTS, Kind.SVM_PARTS)


def method_named(name: str) -> Method:
    """The record of a method.

    Raises
    ------
    InputError
        There is no such method.
    """
    for package, names in _HOMES.items():
        if name in names:
            method: Method = import_module(f"{package}.{name}").METHOD
            return method
    raise InputError(f"METHOD {name}: choose one of {', '.join(METHODS)}")


def kind_of(method: Any, options: Any) -> Kind:
    """Kind of a training by this method with these options."""
    if method.name == "subset":
        return Kind.POINTS
    if method.package == "cakrr":
        return Kind.RIDGE_PARTS if method.partitioner else Kind.SYSTEM
    if getattr(options, "exact", False) or getattr(method, "whole", False):
        return Kind.SHARED
    return Kind.TREE if getattr(method, "merge", "") else Kind.SVM_PARTS


@dataclass(frozen=True)
class JobLayout:
    """Rows, parts, ranks and threads of one training.

    Attributes
    ----------
    n, d : int
        Number of training rows and of features.
    parts : int
        P; 1 for methods of one problem.
    ranks : int
        R.
    ranks_per_node : int
    threads : int
        Threads per rank.
    centers : tuple of int
        Numbers of points that least squares on M points compares, ascending; empty for other methods.
    coarse : int
        Largest number of centres of a coarse model; 0 for methods without one.
    """

    n: int
    d: int
    parts: int
    ranks: int
    ranks_per_node: int
    threads: int
    centers: tuple[int, ...] = ()
    coarse: int = 0

    @property
    def points(self) -> int:
        """M, the largest number of points; 0 for other methods."""
        return max(self.centers, default=0)

    @property
    def leaves(self) -> int:
        """Number of leaves into which least squares on M points cuts the rows; at most as many ranks work."""
        return leaves_of(self.n, self.points + 2)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return ceil(self.ranks / self.ranks_per_node)

    @property
    def rows_per_rank(self) -> float:
        """Rows that a rank reads, n/R."""
        return self.n / self.ranks

    @property
    def part(self) -> float:
        """Rows per part, n/P."""
        return self.n / self.parts

    @property
    def parts_per_rank(self) -> int:
        """Parts of the busiest rank."""
        return ceil(self.parts / self.ranks)
