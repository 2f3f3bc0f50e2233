"""Kernel ridge regression in parts: DC-KRR, KKRR2, BKRR2."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cakrr.estimators import BKRR2, DCKRR, KKRR2
    from cakrr.model import KRRModel

_HOMES = {"BKRR2": "estimators", "DCKRR": "estimators", "KKRR2": "estimators", "KRRModel": "model"}

__all__ = ["BKRR2", "DCKRR", "KKRR2", "KRRModel"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: `python -m cakrr.bkrr2` must not find its own module imported already.
    if name in _HOMES:
        return getattr(import_module(f"cakrr.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'cakrr' has no attribute {name!r}")
