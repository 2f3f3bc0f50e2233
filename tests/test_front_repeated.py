"""The command that a search prints trains the model that the search has trained."""

import shlex

import numpy as np
import pytest
from helpers.checks import close
from helpers.commands import run
from helpers.data import clouds, saddle, write_csv
from sklearn.base import clone

import cakrr
import casvm
from cacore.comm import Communicator
from cakernels.families import load
from cakernels.leaderboard import command

SVM = {"C": 2.0, "partitioner": "kmeans", "random_state": 3, "tol": 1e-5}
CLASSES = {
    "CASVC": (casvm.CASVC(2, **{**SVM, "C": [1.0, 4.0]}, standardize=True), 2),
    "CASVC, lengths": (casvm.CASVC(1, **SVM, metric="lengths", kernel="laplacian"), 1),
    "DisSMOSVC": (casvm.DisSMOSVC(C=2.0, gamma=0.5), 1),
    "BKRR2Classifier": (cakrr.BKRR2Classifier(2, kernel="auto", route="soft", standardize=False, random_state=0), 2),
    "SubsetKRRClassifier": (cakrr.SubsetKRRClassifier(centers=20, sigma=[1.0, 2.0], random_state=1), 1),
}
VALUES = {
    "CASVR": (casvm.CASVR(2, **SVM, epsilon=0.1), 2),
    "BKRR2": (cakrr.BKRR2(3, kernel="laplacian", metric="lengths", metric_rounds=1, random_state=2), 3),
    "BKRR2, a share": (
        cakrr.BKRR2(2, route="soft", sigma="auto", lam="auto", validation_fraction=0.15, random_state=0),
        2,
    ),
    "TwoLevelKRR": (cakrr.TwoLevelKRR(2, centers=20, random_state=5), 2),
    "SubsetKRR": (cakrr.SubsetKRR(centers=20, kernel="auto", scaling="levels", random_state=0), 1),
}


@pytest.mark.parametrize("name", [*CLASSES, *VALUES])
def test_the_command_makes_the_same_model(name, tmp_path):
    """The printed command is run. It has six digits of sigma, so predictions agree to 1e-4."""
    X, y = clouds(80, k=3) if name in CLASSES else saddle(80)
    X[:, 1] = np.round(X[:, 1])
    estimator, parts = (CLASSES | VALUES)[name]
    fitted = clone(estimator).fit(X, y)
    write_csv(tmp_path / "my data.csv", X, y)
    _, _, program, *words = shlex.split(command(fitted, str(tmp_path / "my data.csv"), parts))
    run(program, [*words, "--quiet", "--model", tmp_path / "again.h5"])
    again = load(tmp_path / "again.h5", Communicator())
    close(again.predict(X), fitted.model_.predict(X), 1e-4)
