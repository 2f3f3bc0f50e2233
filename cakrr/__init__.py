"""Kernel ridge regression: exact, in parts, and on two levels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cakrr.estimators import BKRR, BKRR2, DCKRR, DKRR, KKRR, KKRR2, TwoLevelKRR
    from cakrr.model import KRRModel

_HOMES = {
    **dict.fromkeys(("BKRR", "BKRR2", "DCKRR", "DKRR", "KKRR", "KKRR2", "TwoLevelKRR"), "estimators"),
    "KRRModel": "model",
}

__all__ = ["BKRR", "BKRR2", "DCKRR", "DKRR", "KKRR", "KKRR2", "KRRModel", "TwoLevelKRR"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: `python -m cakrr.bkrr2` must not find its own module imported already.
    if name in _HOMES:
        return getattr(import_module(f"cakrr.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'cakrr' has no attribute {name!r}")
