"""Kernels: their declarations, and the code that computes kernel values.

=============================  ===============================================================================
`registry`, `functions`        what a kernel declares, and the kernels of the package
`evaluate`, `sums`             compiled code: the kernel function with its parameters, sums over features
`precision`                    the shift of rows, the error of kernel values at all distances, sums that are accurate
`values`                       :class:`Kernel`: rows prepared for kernel values, blocks of these, all pairs
`panels`, `wide`, `near`       rows laid out as columns of kernel values: dense or sparse, very wide, narrow kernels
`columns`                      the choice among these layouts; matrix products for dense rows
`gradients`                    gradients of kernel expansions
`given`                        kernels that the caller evaluates: callables, precomputed matrices
=============================  ===============================================================================

The loops over layouts are elsewhere: `cacore.svm.decision` and the solvers of casvm and asygcd choose a layout and ask
it for the values they need. Ridge regression uses the blocks of `values`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cacore.kernels.functions  # noqa: F401 - declares the kernels of the package
from cacore.kernels.registry import KINDS, KernelKind, register

if TYPE_CHECKING:
    from cacore.kernels.values import Kernel, Points

__all__ = ["KINDS", "Kernel", "KernelKind", "Points", "register"]


def __getattr__(name: str) -> object:
    # Loaded on first use: a command's --help needs the names of the kernels, but not the compiler.
    if name in __all__:
        from cacore.kernels import values

        return getattr(values, name)
    raise AttributeError(f"module 'cacore.kernels' has no attribute {name!r}")
