"""The caller's process, which fits neither depend on nor change: numpy's error state, `random`, the directory."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from helpers.commands import run

from asygcd import AsyGCDSVC
from cacore.errors import InputError
from cakernels import AutoKernelRegressor
from cakriging import Kriging
from cakrr import BKRR2, DKRR, SubsetKRR, TwoLevelKRR
from casvm import CASVC, CASVR, SMOSVC, SMONuSVR, SMOOneClassSVM, SMOQuantileSVR
from partition import KMeans

ESTIMATORS = {
    "bkrr2": BKRR2(n_parts=2, random_state=0), "dkrr": DKRR(random_state=0), "kriging": Kriging(random_state=0),
    "subset": SubsetKRR(random_state=0), "twolevel": TwoLevelKRR(n_parts=2, random_state=0),
    "casvc": CASVC(n_parts=2, probability=True, random_state=0), "casvr": CASVR(n_parts=2, random_state=0),
    "smo": SMOSVC(probability=True), "nu": SMONuSVR(), "one class": SMOOneClassSVM(), "quantiles": SMOQuantileSVR(),
    "asygcd": AsyGCDSVC(random_state=0), "kmeans": KMeans(2, random_state=0),
    "auto": AutoKernelRegressor(max_time=1, random_state=0),
}  # fmt: skip
SIZES = {"1": 1.0, "all features equal": 0.0, "1e-140": 1e-140}


def outputs(estimator, X, y):
    """What a fitted estimator says about the rows, by method, or the error of the fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            estimator.fit(X, y)
        except InputError as error:
            return {"error": str(error)}
        names = ("predict", "decision_function", "predict_proba", "transform")
        return {name: getattr(estimator, name)(X) for name in names if hasattr(estimator, name)}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_numpys_error_state_is_the_callers_own(name, size):
    if name == "auto" and size != 1:
        return  # one search is enough: what it trains is here
    X = np.random.default_rng(3).normal(size=(60, 2)) * size
    y = np.sin(np.arange(60.0))
    y = y > 0 if name in ("casvc", "smo", "asygcd") else y
    usual = outputs(ESTIMATORS[name], X, y)
    with np.errstate(all="raise"):
        strict = outputs(ESTIMATORS[name], X, y)
        assert np.geterr() == dict.fromkeys(("divide", "over", "under", "invalid"), "raise")
    assert usual.keys() == strict.keys()
    for method, values in usual.items() if name not in ("auto", "asygcd") else ():
        np.testing.assert_array_equal(strict[method], values)


def test_pythons_random_numbers_stay(python):
    """The first fit of a process, which loads modules: one of these drew from them."""
    code = """
import random
import numpy as np
random.seed(5)
before = random.getstate()
import cakernels
X = np.random.default_rng(0).normal(size=(50, 2))
for name in ("CAQuantileSVR", "SMOQuantileSVR", "BKRR2", "CASVC", "Kriging", "AsyGCDSVC"):
    getattr(cakernels, name)().fit(X, X[:, 0] > 0 if name.endswith("VC") else X[:, 0]).predict(X)
    assert random.getstate() == before, name
"""
    ended = python("-W", "ignore", "-c", code)
    assert (ended.returncode, ended.stderr) == (0, "")


RELATIVE = [
    ["cakrr.bkrr2", "rows.csv"],
    ["cakrr.bkrr2", "ROWS", "--model", "m.h5"],
    ["cakrr.bkrr2", "ROWS", "--report", "r.json"],
    ["cacore.io", "convert", "ROWS", "rows.h5"],
    ["cakernels", "fit", "ROWS"],
    ["casvm.svr", "ROWS", "--checkpoint", "kept"],
]


@pytest.fixture
def deleted(tmp_path):
    """A file of rows; the working directory is another folder, which was deleted."""
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 5}\n" for i in range(40)))
    gone, home = tmp_path / "gone", os.getcwd()
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    yield tmp_path / "rows.csv"
    os.chdir(home)


@pytest.mark.parametrize("words", RELATIVE, ids=" ".join)
def test_relative_names_in_a_deleted_directory(words, deleted, capfd):
    program, *rest = [deleted if word == "ROWS" else word for word in words]
    with pytest.raises(SystemExit) as ended:
        run(program, rest)
    out, err = capfd.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert "the working directory was deleted" in err
    assert [path.name for path in deleted.parent.iterdir()] == ["rows.csv"]


def test_full_names_in_a_deleted_directory(deleted):
    model = deleted.parent / "m.h5"
    run("cakrr.bkrr2", [deleted, "--sigma", "1", "--lambda", "1e-3", "--model", model, "--quiet"])
    run("cakernels", ["predict", model, deleted, "-o", deleted.parent / "o.csv", "--quiet"])
    fitted = DKRR(sigma=1.0, lam=1e-3).fit(np.eye(4), np.arange(4.0))
    fitted.save(model)
    with pytest.raises(InputError, match="the working directory was deleted"):
        fitted.save("m.h5")
