"""Hints of messages name options and classes that exist, for whoever reads them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.commands import run
from helpers.data import write_csv

import cakernels
import cakriging
import cakrr
import casvm
from cacore.checks import path
from cacore.errors import InputError
from cakernels import AutoKernelRegressor

X = np.random.default_rng(0).normal(size=(40, 2))
WORDS = np.where(X[:, 0] > 0, "a", "b")


class Own(cakrr.BKRR2):
    """A regressor of a user."""


REGRESSORS = [AutoKernelRegressor, cakrr.BKRR2, cakrr.TwoLevelKRR, cakriging.Kriging, casvm.CASVR, casvm.DisSMOSVR, Own]


@pytest.mark.parametrize("kind", REGRESSORS)
def test_the_classifier_that_is_named_exists(kind):
    with pytest.raises(InputError, match="has classes") as caught:
        kind().fit(X, WORDS)
    name = str(caught.value).removesuffix(" has classes").rpartition(", and ")[2]
    assert name == "a classifier" or any(hasattr(home, name) for home in (cakernels, cakriging, cakrr, casvm))
    assert (name == "a classifier") == (kind is cakriging.Kriging)


@pytest.mark.parametrize("program", ["cakernels fit", "casvm.casvm"])
def test_data_may_follow_an_option_whose_value_is_left_out(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv("a.csv", X, np.where(X[:, 0] > 0, 1, -1))
    module, *first = program.split()
    few = ["--max-candidates", "1", "--within", "1h"] if first else []
    run(module, [*first, *few, "--quiet", "--model", "m.h5", "--probability", "a.csv"])
    run("cakernels", ["predict", "m.h5", "a.csv", "--quiet", "--probability", "-o", "p.csv"])
    assert "probability" in (tmp_path / "p.csv").read_text().splitlines()[0]


def test_fit_names_its_own_options(tmp_path, refuses):
    write_csv(tmp_path / "a.csv", X, X[:, 0])
    refuses(
        "cakernels fit", ["a.csv", "--task", "classification"], "--task regression, or AutoKernelRegressor", tmp_path
    )


def test_only_files_that_are_written_can_be_the_terminal():
    with pytest.raises(InputError, match="/dev/stdout prints to the terminal"):
        path("-", "--report")
    for name in ("data", "--test"):
        with pytest.raises(InputError, match=r"name of a file$"):
            path("-", name)
