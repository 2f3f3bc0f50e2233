"""Kernel values: the one place that evaluates kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cacore.kernels.functions  # noqa: F401 - declares the kernels of the package
from cacore.kernels.registry import KINDS, KernelKind, register

if TYPE_CHECKING:
    from cacore.kernels.values import Kernel, Points

__all__ = ["KINDS", "Kernel", "KernelKind", "Points", "register"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the names of the kernels need no compiler.
    if name in __all__:
        from cacore.kernels import values

        return getattr(values, name)
    raise AttributeError(f"module 'cacore.kernels' has no attribute {name!r}")
