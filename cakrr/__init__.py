"""Kernel ridge regression and classification: exact, in parts, and on two levels."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cakrr.estimators.classifiers import (
        BKRR2Classifier,
        BKRRClassifier,
        DCKRRClassifier,
        DKRRClassifier,
        KKRR2Classifier,
        KKRRClassifier,
        TwoLevelKRRClassifier,
    )
    from cakrr.estimators.on_points import SubsetKRR, SubsetKRRClassifier
    from cakrr.estimators.regressors import BKRR, BKRR2, DCKRR, DKRR, KKRR, KKRR2, TwoLevelKRR
    from cakrr.ridge_model import KRRModel

_IN_PARTS = ("BKRR", "BKRR2", "DCKRR", "KKRR", "KKRR2", "TwoLevelKRR")
_HOMES = {
    **dict.fromkeys(_IN_PARTS, "estimators.regressors"),
    "DKRR": "estimators.regressors",
    "SubsetKRR": "estimators.on_points",
    "SubsetKRRClassifier": "estimators.on_points",
    **dict.fromkeys((f"{name}Classifier" for name in (*_IN_PARTS, "DKRR")), "estimators.classifiers"),
    "KRRModel": "ridge_model",
}

_MOVED = ("Kriging", "KrigingModel")

__all__ = [
    "BKRR",
    "BKRR2",
    "DCKRR",
    "DKRR",
    "KKRR",
    "KKRR2",
    "BKRR2Classifier",
    "BKRRClassifier",
    "DCKRRClassifier",
    "DKRRClassifier",
    "KKRR2Classifier",
    "KKRRClassifier",
    "KRRModel",
    "SubsetKRR",
    "SubsetKRRClassifier",
    "TwoLevelKRR",
    "TwoLevelKRRClassifier",
]


def __getattr__(name: str) -> object:
    # Loaded on first use: `python -m cakrr.bkrr2` must not find its own module imported already.
    if name in _HOMES:
        return getattr(import_module(f"cakrr.{_HOMES[name]}"), name)
    if name in _MOVED:
        warnings.warn(f"cakrr.{name} is cakriging.{name} now", DeprecationWarning, stacklevel=2)
        return getattr(import_module("cakriging"), name)
    raise AttributeError(f"module 'cakrr' has no attribute {name!r}")
