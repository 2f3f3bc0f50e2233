"""scikit-learn's partial dependence and individual curves with the estimators as they are."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from helpers.checks import near
from sklearn.inspection import PartialDependenceDisplay

from cakernels import BKRR2, SMOSVC, SMOSVR, SMOQuantileSVR

X = np.random.default_rng(0).normal(size=(60, 3))
Y = np.sin(X[:, 0]) + X[:, 1]


@pytest.mark.parametrize(("estimator", "y", "answer"), [
    (SMOSVR(gamma=0.3), Y, "predict"), (BKRR2(2, sigma=2.0, lam=1e-3), Y, "predict"),
    (SMOSVC(gamma=0.3, probability=True), Y > 0, "predict_proba"),
    (SMOQuantileSVR(quantile=0.9, gamma=0.3), Y, "predict"),
], ids=["SMOSVR", "BKRR2", "SMOSVC", "SMOQuantileSVR"])  # fmt: skip
def test_curves_are_answers_with_one_feature_replaced(estimator, y, answer):
    mpl.use("Agg")
    model = estimator.fit(X, y)
    shown = PartialDependenceDisplay.from_estimator(model, X, [0, (1, 2)], kind=["both", "average"], grid_resolution=5)
    curve = shown.pd_results[0]
    (grid,) = curve["grid_values"]
    for place, value in enumerate(grid):
        moved = X.copy()
        moved[:, 0] = value
        values = getattr(model, answer)(moved)
        near(curve["individual"][0, :, place], values[:, 1] if values.ndim > 1 else values, 1e-12)
    near(curve["average"], curve["individual"].mean(axis=1), 1e-12)
    assert np.ptp(curve["average"]) > 0.1
    mpl.pyplot.close("all")
