"""Asynchronous greedy coordinate descent: a kernel SVM without a bias on all cores of one machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asygcd.asygcd_model import AsyGCDModel
    from asygcd.estimators import AsyGCDSVC

_HOMES = {"AsyGCDModel": "asygcd_model", "AsyGCDSVC": "estimators"}

__all__ = ["AsyGCDModel", "AsyGCDSVC"]


def __getattr__(name: str) -> object:
    # Loaded on first use: the commands need no scikit-learn.
    if name in _HOMES:
        return getattr(import_module(f"asygcd.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'asygcd' has no attribute {name!r}")
