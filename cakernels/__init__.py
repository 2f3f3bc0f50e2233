"""The front door: every estimator, a search for a model, a drop-in for scikit-learn, ONNX, pages of runs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cacore import __version__

if TYPE_CHECKING:
    from asygcd import AsyGCDSVC
    from cakernels.auto import AutoKernelClassifier, AutoKernelRegressor
    from cakernels.dropin import patch_sklearn, unpatch_sklearn
    from cakernels.families import load
    from cakernels.onnx.export import to_onnx
    from cakernels.run_page import RunPage
    from cakriging import Kriging
    from cakrr import (
        BKRR,
        BKRR2,
        DCKRR,
        DKRR,
        KKRR,
        KKRR2,
        BKRR2Classifier,
        BKRRClassifier,
        DCKRRClassifier,
        DKRRClassifier,
        KKRR2Classifier,
        KKRRClassifier,
        SubsetKRR,
        SubsetKRRClassifier,
        TwoLevelKRR,
        TwoLevelKRRClassifier,
    )
    from casvm import (
        CASVC,
        CASVR,
        DCSVC,
        SMOSVC,
        SMOSVR,
        CAQuantileSVR,
        CascadeSVC,
        DCFilterSVC,
        DisSMOSVC,
        DisSMOSVR,
        SMONuSVC,
        SMONuSVR,
        SMOOneClassSVM,
        SMOQuantileSVR,
    )
    from partition import FCFS, BalancedKMeans, KBalance, KMeans, RandomPartition

_PACKAGES = ("cakrr", "casvm", "asygcd", "partition", "cakriging")
_OWN = {
    "patch_sklearn": "cakernels.dropin", "unpatch_sklearn": "cakernels.dropin", "to_onnx": "cakernels.onnx.export",
    "RunPage": "cakernels.run_page", "load": "cakernels.families", "AutoKernelClassifier": "cakernels.auto",
    "AutoKernelRegressor": "cakernels.auto",
}  # fmt: skip

__all__ = [
    "BKRR", "BKRR2", "CASVC", "CASVR", "DCKRR", "DCSVC", "DKRR", "FCFS", "KKRR", "KKRR2", "SMOSVC", "SMOSVR",
    "AsyGCDSVC", "AutoKernelClassifier", "AutoKernelRegressor", "BKRR2Classifier", "BKRRClassifier",
    "BalancedKMeans", "CAQuantileSVR", "CascadeSVC", "DCFilterSVC", "DCKRRClassifier", "DKRRClassifier",
    "DisSMOSVC", "DisSMOSVR", "KBalance", "KKRR2Classifier", "KKRRClassifier", "KMeans", "Kriging",
    "RandomPartition", "RunPage", "SMONuSVC", "SMONuSVR", "SMOOneClassSVM", "SMOQuantileSVR", "SubsetKRR",
    "SubsetKRRClassifier", "TwoLevelKRR", "TwoLevelKRRClassifier", "__version__", "load", "patch_sklearn", "to_onnx",
    "unpatch_sklearn",
]  # fmt: skip


def __getattr__(name: str) -> object:
    # Loaded on first use: a command starts on many ranks at once, and needs one family.
    if name in _OWN:
        return getattr(import_module(_OWN[name]), name)
    if name in __all__:
        home = next(package for package in _PACKAGES if name in import_module(package).__all__)
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'cakernels' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
