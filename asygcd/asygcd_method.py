"""The record of the only method of this family."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from asygcd.options import AsyGCDOptions
from cacore.learn.method import Method


@dataclass(frozen=True, kw_only=True)
class AsyGCDMethod(Method):
    """The only method of this family."""

    package: ClassVar[str] = "asygcd"
    options: ClassVar[type] = AsyGCDOptions

    @property
    def prog(self) -> str:
        """Name of the command."""
        return self.package

    @property
    def without(self) -> Collection[str]:
        """Common options that this command lacks, since it runs in one process and searches no grid."""
        return "comm_matrix", "libsvm", "plot"

    @property
    def example(self) -> str:
        """A command that a user can type, for ``--help``."""
        return "python -m asygcd DATA.h5 --C 10 --gamma 0.5 --model MODEL.h5"


METHOD = AsyGCDMethod(
    name="asygcd", summary="asynchronous greedy coordinate descent, without a bias", trainer="asygcd.training:fit"
)
