"""A target that is not finite is refused with its row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from asygcd import AsyGCDSVC
from cacore.errors import InputError
from cakriging import Kriging
from cakrr import BKRR2, DKRR
from casvm import CASVC, CASVR, SMOSVC, SMOSVR, SMONuSVR, SMOQuantileSVR

X = np.random.default_rng(2).normal(size=(30, 2))
REGRESSORS = [BKRR2(), DKRR(), Kriging(), CASVR(), SMOSVR(), SMONuSVR(), SMOQuantileSVR()]
CLASSIFIERS = [CASVC(), SMOSVC(), AsyGCDSVC()]
FORMS = {"array": np.asarray, "list": np.ndarray.tolist, "series": pd.Series, "objects": lambda y: y.astype(object)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("estimator", REGRESSORS, ids=lambda one: type(one).__name__)
def test_the_row_is_named(estimator, value, form):
    y = X[:, 0].copy()
    y[[17, 23]] = value
    with pytest.raises(InputError, match=r"^y: row 17\b.* (NaN|-?inf)"):
        estimator.fit(X, FORMS[form](y))


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda one: type(one).__name__)
def test_labels(estimator):
    y = np.sign(X[:, 0])
    y[4] = np.nan
    with pytest.raises(InputError, match="y: row 4 is NaN"):
        estimator.fit(X, y)


def test_several_targets():
    Y = X.copy()
    Y[9, 1] = np.inf
    with pytest.raises(InputError, match="y, column 1: row 9 is infinity"):
        DKRR().fit(X, Y)
