"""Kernel support vector machines: the local solver, and the methods that train in parts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casvm.estimators import CASVC
    from casvm.exact import SMOSVC
    from casvm.libsvm import export_libsvm
    from casvm.model import SVMModel

_HOMES = {"CASVC": "estimators", "SMOSVC": "exact", "SVMModel": "model", "export_libsvm": "libsvm"}

__all__ = ["CASVC", "SMOSVC", "SVMModel", "export_libsvm"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: `python -m casvm.cpsvm` must not find its own module imported already.
    if name in _HOMES:
        return getattr(import_module(f"casvm.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'casvm' has no attribute {name!r}")
