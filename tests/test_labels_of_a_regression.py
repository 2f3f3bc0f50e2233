"""Targets of a regression given to a classifier by mistake are refused, before millions of pairs of classes begin."""

import numpy as np
import pytest
from helpers.checks import refusal
from helpers.data import normal_rows, write_hdf5

import casvm
from asygcd import AsyGCDSVC
from cacore.data.labels import MOST_CLASSES, require_classes

CLASSIFIERS = [
    casvm.SMOSVC, casvm.CASVC, casvm.CascadeSVC, casvm.DCSVC, casvm.DCFilterSVC, casvm.DisSMOSVC, AsyGCDSVC
]  # fmt: skip


@pytest.mark.parametrize("made", CLASSIFIERS)
def test_many_classes(made):
    """House prices, as an example: few rows have the same, though they are whole numbers."""
    X, prices = normal_rows(3000, 3), 1000 * np.random.default_rng(0).integers(0, 1500, 3000)
    k = len(np.unique(prices))
    refusal(
        lambda: made().fit(X, prices), match=f"{k:,} classes make {k * (k - 1) // 2:,} pairs of them: use a method of"
    )


@pytest.mark.parametrize("made", CLASSIFIERS)
def test_numbers_that_are_not_whole(made):
    """scikit-learn's own words."""
    X = normal_rows(100, 3)
    refusal(lambda: made().fit(X, X[:, 0]), match="regression target with continuous values")


@pytest.mark.parametrize("program", ["casvm.casvm", "casvm.dissmo", "asygcd"])
def test_commands(program, tmp_path, refuses):
    X = normal_rows(100, 3)
    path = write_hdf5(tmp_path / "data.h5", train=(X, X[:, 0]))
    refuses(program, [path], "is no whole number: use a method of cakrr", tmp_path)


def test_as_many_as_there_may_be():
    require_classes(np.arange(MOST_CLASSES))
    require_classes(np.arange(3) / 1.0)
    require_classes(np.array(["a", "b"]))
    require_classes(np.array([-0.5, 0.5]))  # two are classes, whatever they are
