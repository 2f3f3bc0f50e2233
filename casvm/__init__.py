"""Kernel support vector machines: an exact solver, methods that train in parts, and methods that communicate."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from casvm.estimators.collective import CASVC, CASVR, DCSVC, CascadeSVC, DCFilterSVC, DisSMOSVC, DisSMOSVR
    from casvm.estimators.exact import SMOSVC, SMONuSVC
    from casvm.estimators.exact_values import SMOSVR, SMONuSVR, SMOOneClassSVM
    from casvm.estimators.quantiles import CAQuantileSVR, SMOQuantileSVR
    from casvm.model.libsvm_files import export_libsvm, import_libsvm
    from casvm.model.quantile_model import QuantileModel
    from casvm.model.svm_model import SVMModel
    from casvm.model.svr_model import SVRModel

_HOMES = {
    **dict.fromkeys(("CASVC", "CascadeSVC", "DCFilterSVC", "DCSVC", "DisSMOSVC"), "estimators.collective"),
    **dict.fromkeys(("SMOSVC", "SMONuSVC"), "estimators.exact"),
    **dict.fromkeys(("SMOSVR", "SMONuSVR", "SMOOneClassSVM"), "estimators.exact_values"),
    **dict.fromkeys(("CASVR", "DisSMOSVR"), "estimators.collective"),
    **dict.fromkeys(("CAQuantileSVR", "SMOQuantileSVR"), "estimators.quantiles"),
    **dict.fromkeys(("export_libsvm", "import_libsvm"), "model.libsvm_files"),
    "QuantileModel": "model.quantile_model", "SVMModel": "model.svm_model", "SVRModel": "model.svr_model",
}  # fmt: skip

__all__ = [
    "CASVC", "CASVR", "DCSVC", "SMOSVC", "SMOSVR", "CAQuantileSVR", "CascadeSVC", "DCFilterSVC", "DisSMOSVC",
    "DisSMOSVR", "QuantileModel", "SMONuSVC", "SMONuSVR", "SMOOneClassSVM", "SMOQuantileSVR", "SVMModel", "SVRModel",
    "export_libsvm", "import_libsvm",
]  # fmt: skip


def __getattr__(name: str) -> object:
    # Loaded on first use: `python -m casvm.cpsvm` must not find its own module imported already.
    if name in _HOMES:
        return getattr(import_module(f"casvm.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'casvm' has no attribute {name!r}")
