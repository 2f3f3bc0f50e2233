"""Estimators of all families, small and quick, for the fuzzers that call them in their own process."""

from __future__ import annotations

import numpy as np

from asygcd import AsyGCDSVC
from cakrr import BKRR2, DKRR, KKRR2, BKRR2Classifier, DKRRClassifier, TwoLevelKRR
from casvm import (
    CASVC,
    CASVR,
    DCSVC,
    SMOSVC,
    SMOSVR,
    CascadeSVC,
    DCFilterSVC,
    DisSMOSVC,
    DisSMOSVR,
    SMONuSVC,
    SMONuSVR,
    SMOOneClassSVM,
)

_PARTS = {"n_parts": 2, "random_state": 0}
MADE = {
    "SMOSVC": lambda **more: SMOSVC(**{"gamma": 0.1, **more}),
    "SMONuSVC": lambda **more: SMONuSVC(**{"gamma": 0.1, "nu": 0.2, **more}),
    "CASVC": lambda **more: CASVC(**{"gamma": 0.1, **_PARTS, **more}),
    "DCSVC": lambda **more: DCSVC(**{"gamma": 0.1, **_PARTS, **more}),
    "CascadeSVC": lambda **more: CascadeSVC(**{"gamma": 0.1, **_PARTS, **more}),
    "DCFilterSVC": lambda **more: DCFilterSVC(**{"gamma": 0.1, **_PARTS, **more}),
    "DisSMOSVC": lambda **more: DisSMOSVC(**{"gamma": 0.1, **more}),
    "AsyGCDSVC": lambda **more: AsyGCDSVC(**{"gamma": 0.1, "threads": 1, "random_state": 0, **more}),
    "SMOSVR": lambda **more: SMOSVR(**{"gamma": 0.1, **more}),
    "SMONuSVR": lambda **more: SMONuSVR(**{"gamma": 0.1, **more}),
    "CASVR": lambda **more: CASVR(**{"gamma": 0.1, "partitioner": "kmeans", **_PARTS, **more}),
    "DisSMOSVR": lambda **more: DisSMOSVR(**{"gamma": 0.1, **more}),
    "SMOOneClassSVM": lambda **more: SMOOneClassSVM(**{"gamma": 0.1, **more}),
    "DKRR": lambda **more: DKRR(**{"sigma": 2.0, "lam": 1e-3, **more}),
    "BKRR2": lambda **more: BKRR2(**{"sigma": 2.0, "lam": 1e-3, **_PARTS, **more}),
    "KKRR2": lambda **more: KKRR2(**{"sigma": 2.0, "lam": 1e-3, **_PARTS, **more}),
    "TwoLevelKRR": lambda **more: TwoLevelKRR(**{"sigma": 2.0, "lam": 1e-3, "centers": 10, "coarse_lam": 1e-3,
                                                 **_PARTS, **more}),
    "DKRRClassifier": lambda **more: DKRRClassifier(**{"sigma": 2.0, "lam": 1e-3, **more}),
    "BKRR2Classifier": lambda **more: BKRR2Classifier(**{"sigma": 2.0, "lam": 1e-3, **_PARTS, **more}),
}  # fmt: skip


def classifies(name):
    """True if the estimator learns classes."""
    return name.endswith(("SVC", "Classifier"))


def answers(name, made, X):
    """Predictions; of one class the decisions, since rounding decides their signs at the boundary."""
    return (made.decision_function if name == "SMOOneClassSVM" else made.predict)(X)


def target(name, y):
    """Targets of an estimator: numbers, or two classes of them."""
    return np.where(y > np.median(y), 1.0, -1.0) if classifies(name) else y
