"""Asynchronous greedy coordinate descent: a kernel SVM without a bias on all cores of one machine."""

from __future__ import annotations

from asygcd.estimators import AsyGCDSVC
from asygcd.model import AsyGCDModel

__all__ = ["AsyGCDModel", "AsyGCDSVC"]
