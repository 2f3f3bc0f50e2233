"""The classifiers that end in one model: what is special about them as estimators.

What they share with others is in test_svm_classifiers.py, and that they are exact in test_svm_exact.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import near
from helpers.data import as_csr, clouds, first_classes, formats

from casvm import DCSVC, SMOSVC, CascadeSVC, DCFilterSVC, DisSMOSVC, SVMModel

TREES = [CascadeSVC, DCSVC, DCFilterSVC]
trees = pytest.mark.parametrize("cls", TREES)


def test_one_part_is_smosvc(digits):
    """And so is Dis-SMO without other ranks: the same solver, the same bits."""
    X, y = first_classes(digits, 3)
    expected = SMOSVC().fit(X, y)
    for cls in (*TREES, DisSMOSVC):
        model = cls(**({"passes": 1} if cls is CascadeSVC else {})).fit(X, y)
        if cls in (CascadeSVC, DisSMOSVC):  # K-means takes the rows in an order of its own
            np.testing.assert_array_equal(model.decision_function(X), expected.decision_function(X))
            np.testing.assert_array_equal(model.dual_coef_, expected.dual_coef_)
        near(model.decision_function(X), expected.decision_function(X), 1e-2)
        assert model.sizes_.tolist() == [len(y)]


@pytest.mark.parametrize("cls", [*TREES, DisSMOSVC])
@formats
def test_saved_and_loaded(cls, csr, digits, tmp_path):
    X, y = first_classes(digits, 3)
    X, names = as_csr(X, csr), np.array(["aye", "nay", "żub"])[y]
    several = {"working_set": 64} if cls is DisSMOSVC else {"n_parts": 3, "random_state": 0}
    model = cls(standardize=True, **several).fit(X, names)
    model.model_.save(tmp_path / "m.h5")
    loaded = SVMModel.load(tmp_path / "m.h5")
    np.testing.assert_array_equal(loaded.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert (loaded.method, loaded.route) == (model.model_.method, "sum")


@trees
def test_fitted_attributes(cls, digits):
    X, y = first_classes(digits, 3)
    model = cls(5, random_state=0).fit(X, y)
    depth = 4
    assert (len(model.sizes_), model.sizes_.sum()) == (5, len(y))
    passes = model.layers_[-1]["pass"]
    assert passes == 1 or cls is CascadeSVC
    assert len(model.layers_) == passes * depth
    for name in ("iterations", "n_support", "objective", "gap", "seconds", "kernel_rows", "kernel_values"):
        assert model.solver_[name].shape == (passes * depth,)
    assert sum(sum(layer["iterations"]) for layer in model.layers_) == model.n_iter_.sum()
    assert model.solver_["n_support"][-1] == len(model.support_) == model.n_support_.sum()
    np.testing.assert_array_equal(model.support_vectors_, X[model.support_])
    assert model.dual_coef_.shape == (2, len(model.support_))
    assert model.intercept_.shape == (3,)
    assert model.n_features_in_ == 64


def test_fitted_attributes_of_one_problem(digits):
    X, y = first_classes(digits, 3)
    for model in (DisSMOSVC().fit(X, y), DisSMOSVC(working_set=4).fit(X, y)):
        assert not hasattr(model, "layers_")
        assert model.sizes_.tolist() == [len(y)]
        assert all(values.shape == (1,) for values in model.solver_.values())
        assert model.n_iter_ == model.solver_["iterations"] > 0
        assert model.solver_["n_support"] == len(model.support_)


@trees
def test_a_seed(cls):
    """The same seed, the same bits; another one, other parts."""
    X, y = clouds(d=3)
    first, again, other = (cls(4, gamma=0.5, random_state=seed).fit(X, y) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.decision_function(X), again.decision_function(X))
    objectives = [[layer["objective"] for layer in model.layers_] for model in (first, again, other)]
    assert objectives[0] == objectives[1] != objectives[2]


def test_passes(digits):
    """Two at most of Cascade and one of DC-Filter, by default."""
    X, y = first_classes(digits, 3)
    for cls, usual in ((CascadeSVC, 2), (DCFilterSVC, 1)):
        assert cls(4, random_state=0).fit(X, y).layers_[-1]["pass"] == usual
        assert cls(4, passes=1, random_state=0).fit(X, y).layers_[-1]["pass"] == 1
