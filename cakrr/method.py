"""The record of a ridge method: partitioner, route, and options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cacore.learn.method import Method
from cacore.tuning import grid
from cakrr.options import LOCAL_LAMS, LOCAL_SIGMAS, RidgeOptions
from cakrr.rules import ROUTES


@dataclass(frozen=True, kw_only=True)
class RidgeMethod(Method):
    """A method of this family: how rows are divided, and which models predict a row.

    Attributes
    ----------
    route : {"nearest", "soft", "all", "oracle", "sum"}
        Models that predict a row: the nearest centre's ("nearest"), a weighted mean of the nearest few ("soft"), the
        mean of all ("all"), the one with the smallest error given the true target ("oracle"), or the sum of all pieces
        of an exact model ("sum").
    partitioner : str
        Registered name of a partitioner; if empty, one system of all rows is solved.
    coarse : bool
        True if the parts' models learn the residual of a coarse model of all rows.
    """

    package: ClassVar[str] = "cakrr"
    options: ClassVar[type] = RidgeOptions

    route: str
    partitioner: str = ""
    coarse: bool = False

    @property
    def oracle(self) -> bool:
        """True if the method needs the true targets: a bound for other methods, not a usable method."""
        return self.route == "oracle"

    def sigmas(self, width: float) -> tuple[float, ...]:
        """Widths that the command tries, around the kernel's natural one (:meth:`KernelKind.typical_distance`)."""
        if self.coarse:
            return tuple(times * width for times in LOCAL_SIGMAS)
        return tuple(grid.spaced(width / 4, width * 4, 5))

    @property
    def lams(self) -> tuple[float, ...]:
        """Lambdas that the command tries."""
        return LOCAL_LAMS if self.coarse else (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)

    @property
    def without(self) -> Collection[str]:
        """Common options that this command lacks."""
        return ("libsvm",)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Defaults of the command's options that differ from the declared ones."""
        return {"route": self.route, "lam": grid.listed(self.lams)}

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Choices of the command's options that differ from the declared ones."""
        return {"route": tuple(dict.fromkeys([self.route, *ROUTES]))}
