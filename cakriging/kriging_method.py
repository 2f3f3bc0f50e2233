"""The record of kriging, the only method of this family."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from cacore.learn.method import Method
from cakriging.options import KrigingOptions


@dataclass(frozen=True, kw_only=True)
class KrigingMethod(Method):
    """The record of kriging."""

    package: ClassVar[str] = "cakriging"
    options: ClassVar[type] = KrigingOptions

    @property
    def prog(self) -> str:
        """Name of the command."""
        return self.package

    @property
    def without(self) -> Collection[str]:
        """Common options that this command lacks."""
        return ("libsvm", "dtype", "weight")

    @property
    def example(self) -> str:
        """A command that a user can type, for ``--help``."""
        return f"mpiexec -n 4 python -m {self.prog} DATA.csv --grid 0:10:0.1,0:5:0.1 --map MAP.h5"


METHOD = KrigingMethod(
    name="kriging",
    summary="Gaussian processes in few dimensions, in the words of geostatistics",
    trainer="cakriging.kriging_fit:fit",
)
