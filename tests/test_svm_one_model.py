"""The classifiers that end in one model, as scikit-learn estimators; the exact ones among them are SVC."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks
from test_svm_estimators import BAD, BAD_ROWS, BAD_WEIGHTS, EXPECTED, refused, rows

from cacore.errors import InputError
from casvm import DCSVC, SMOSVC, CascadeSVC, DCFilterSVC, DisSMOSVC, SVMModel

TREES = [CascadeSVC, DCSVC, DCFilterSVC]
ESTIMATORS = [*TREES, DisSMOSVC]
estimators = pytest.mark.parametrize("cls", ESTIMATORS)
trees = pytest.mark.parametrize("cls", TREES)
formats = pytest.mark.parametrize("csr", [False, True], ids=["dense", "csr"])
TOL = 1e-6


def several(cls, **more):
    """In three parts, or by a working set: what several ranks would do."""
    own = {"working_set": 64} if cls is DisSMOSVC else {"n_parts": 3, "random_state": 0}
    return cls(**own, **more)


# With parts, or with a working set: by default one process is one part.
@parametrize_with_checks(
    [CascadeSVC(), DCSVC(2, random_state=0), DCFilterSVC(2, random_state=0), DisSMOSVC(working_set=64)],
    expected_failed_checks=lambda _: EXPECTED,
)
def test_scikit_learn(estimator, check):
    check(estimator)


@parametrize_with_checks([CascadeSVC(2, passes=20, random_state=0)], expected_failed_checks=lambda _: EXPECTED)
def test_scikit_learn_with_random_parts(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    """Features from 0 to 1, 450 rows of ten classes."""
    X, y = load_digits(return_X_y=True)
    return X[:450] / 16, y[:450]


def of(digits, k):
    X, y = digits
    return X[y < k], y[y < k]


# -- the exact ones are SVC ----------------------------------------------------------------------

EXACT = {
    "dcsvm": lambda **more: DCSVC(3, random_state=0, tol=TOL, **more),
    "dissmo": lambda **more: DisSMOSVC(tol=TOL, **more),
    "dissmo in rounds": lambda **more: DisSMOSVC(working_set=64, tol=TOL, **more),
    "cascade": lambda **more: CascadeSVC(3, random_state=0, passes=50, tol=TOL, **more),
    "dcfilter": lambda **more: DCFilterSVC(3, random_state=0, passes=50, tol=TOL, **more),
}
exact = pytest.mark.parametrize("name", EXACT)
KERNELS = {
    "rbf": {"kernel": "rbf"},
    "linear": {"kernel": "linear", "C": 0.5},
    "poly": {"kernel": "poly", "degree": 2, "coef0": 1.0, "gamma": 0.1},
    "sigmoid": {"kernel": "sigmoid", "gamma": 0.01, "C": 5.0},  # nearly linear: its kernel has one solution then
}


def same(mine, reference, T):
    """Both solved to 1e-6. Decisions to 1e-5 of the largest, coefficients to 2e-4 of C: the dual is flat."""
    np.testing.assert_array_equal(mine.classes_, reference.classes_)
    np.testing.assert_array_equal(mine.predict(T), reference.predict(T))
    got, expected = mine.decision_function(T), reference.decision_function(T)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))
    np.testing.assert_allclose(mine.intercept_, reference.intercept_, rtol=0, atol=1e-5 * mine.C)
    np.testing.assert_array_equal(mine.support_, reference.support_)
    np.testing.assert_array_equal(mine.n_support_, reference.n_support_)
    assert abs(mine.support_vectors_ - reference.support_vectors_).sum() == 0
    assert sp.issparse(mine.support_vectors_) == sp.issparse(reference.support_vectors_)
    coefficients = reference.dual_coef_.toarray() if sp.issparse(reference.dual_coef_) else reference.dual_coef_
    np.testing.assert_allclose(mine.dual_coef_, coefficients, rtol=0, atol=2e-4 * mine.C)
    for field in ("support_", "n_support_", "intercept_"):
        assert getattr(mine, field).dtype == getattr(reference, field).dtype


@exact
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("k", [2, 3])
def test_is_svc(name, kernel, k, digits):
    X, y = of(digits, k)
    same(EXACT[name](**KERNELS[kernel]).fit(X, y), SVC(tol=TOL, **KERNELS[kernel]).fit(X, y), digits[0])


@exact
def test_more_classes_in_csr(name, digits):
    X, y = of(digits, 6)
    S, y = sp.csr_matrix(X[:160]), y[:160]
    same(EXACT[name](C=0.5).fit(S, y), SVC(tol=TOL, C=0.5).fit(S, y), S)


@exact
@pytest.mark.parametrize("weighted", [False, True], ids=["rows alike", "rows weighted"])
def test_class_weight(name, weighted, digits):
    X, y = of(digits, 3)
    w = np.random.default_rng(1).uniform(0.5, 2, len(y)) if weighted else None
    for weight in ({0: 0.2, 1: 4.0}, "balanced"):
        expected = weight
        if weight == "balanced" and weighted:  # by the weights, as scikit-learn's other estimators count
            count = np.bincount(y, w)
            expected = dict(enumerate(count.sum() / (3 * count)))
        mine = EXACT[name](C=0.2, class_weight=weight).fit(X, y, w)
        same(mine, SVC(tol=TOL, C=0.2, class_weight=expected).fit(X, y, w), X)


LABELS = {
    "words": np.array(["zero", "one", "a longer word"]), "objects": np.array(["zero", "one", "two"], object),
    "floats": np.array([-2.0, 7.0, 1e6]), "far integers": np.array([2**40, -3, 7]),
}  # fmt: skip


@exact
@pytest.mark.parametrize("what", LABELS)
def test_labels(name, what, digits):
    for k in (2, 3):
        X, y = of(digits, k)
        names = LABELS[what][y]
        mine = EXACT[name]().fit(X, names)
        same(mine, SVC(tol=TOL).fit(X, names), X)
        assert mine.predict(X).dtype == names.dtype or what == "objects"


@exact
def test_float32(name, digits):
    X, y = of(digits, 3)
    X = np.float32(X + 0.01 * np.random.default_rng(0).normal(size=X.shape) * (X > 0))
    mine, reference = EXACT[name](gamma=0.05).fit(X, y), SVC(tol=TOL, gamma=0.05).fit(X, y)
    assert mine.support_vectors_.dtype == np.float32
    np.testing.assert_array_equal(mine.support_, reference.support_)
    np.testing.assert_allclose(mine.decision_function(X), reference.decision_function(X), rtol=0, atol=1e-4)


@exact
@formats
def test_weight_zero_is_absence(name, csr):
    """With a gamma that does not depend on the rows."""
    X, y = rows(classes=3)
    X = sp.csr_matrix(X) if csr else X
    w = np.random.default_rng(0).integers(0, 3, 150).astype(float)
    kept = w > 0
    mine = EXACT[name](gamma=0.5).fit(X, y, w)
    reference = SVC(gamma=0.5, tol=TOL).fit(X[kept], y[kept], w[kept])
    np.testing.assert_allclose(mine.decision_function(X), reference.decision_function(X), rtol=0, atol=1e-5)


@estimators
def test_class_of_weight_zero_is_absent(cls):
    """A label that only rows of weight 0 have is none of the model's."""
    X, y = rows(classes=3)
    model = several(cls).fit(X, y, (y < 2).astype(float))
    assert model.classes_.tolist() == [0, 1]
    assert set(model.predict(X)) <= {0, 1}


def test_one_part_is_smosvc(digits):
    """And so is Dis-SMO without other ranks: the same solver, the same bits."""
    X, y = of(digits, 3)
    expected = SMOSVC().fit(X, y)
    for cls in ESTIMATORS:
        model = cls(**({} if cls is DisSMOSVC else {"passes": 1} if cls is CascadeSVC else {})).fit(X, y)
        if cls in (CascadeSVC, DisSMOSVC):  # K-means takes the rows in an order of its own
            np.testing.assert_array_equal(model.decision_function(X), expected.decision_function(X))
            np.testing.assert_array_equal(model.dual_coef_, expected.dual_coef_)
        np.testing.assert_allclose(model.decision_function(X), expected.decision_function(X), rtol=0, atol=1e-2)
        assert model.sizes_.tolist() == [len(y)]


# -- what scikit-learn does with a classifier ------------------------------------------------------


@estimators
def test_composes(cls, digits):
    X, y = of(digits, 3)
    search = GridSearchCV(several(cls), {"C": [1e-4, 1.0], "gamma": ["scale", 1e3]}, cv=2).fit(X, y)
    assert search.best_params_ == {"C": 1.0, "gamma": "scale"}
    calibrated = CalibratedClassifierCV(several(cls), cv=2).fit(X, y)
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(axis=1), 1.0)
    assert calibrated.score(X, y) > 0.95
    assert OneVsRestClassifier(several(cls)).fit(X, y).score(X, y) > 0.95
    scaled = StandardScaler().fit(X)
    pipe = make_pipeline(StandardScaler(), several(cls)).fit(X, y)
    alone = several(cls).fit(scaled.transform(X), y)
    np.testing.assert_allclose(pipe.decision_function(X), alone.decision_function(scaled.transform(X)), rtol=1e-12)


@estimators
def test_clone_and_pickle(cls, digits):
    X, y = of(digits, 3)
    model = several(cls, C=3.0, class_weight={0: 2.0}).fit(X, y)
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    for call in (fresh.predict, fresh.decision_function):
        with pytest.raises(NotFittedError):
            call(X)
    back = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(back.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(fresh.fit(X, y).decision_function(X), model.decision_function(X))


@estimators
@pytest.mark.parametrize("kind", ["C", "F", "float32", "csr"])
def test_input_stays(cls, kind):
    X, y = rows(60)
    X[np.abs(X) < 0.3] = 0
    make = {"C": np.array, "F": np.asfortranarray, "float32": np.float32, "csr": sp.csr_matrix}[kind]
    given, before, w = make(X), make(X).copy(), np.ones(60)
    for array in (*((given.data, given.indices, given.indptr) if kind == "csr" else (given,)), y, w):
        array.setflags(write=False)
    for weights in (None, w):
        model = several(cls, class_weight="balanced", standardize=True).fit(given, y, weights)
        model.predict(given)
    assert abs(given - before).sum() == 0


@estimators
@formats
def test_saved_and_loaded(cls, csr, digits, tmp_path):
    X, y = of(digits, 3)
    X, names = sp.csr_matrix(X) if csr else X, np.array(["aye", "nay", "żub"])[y]
    model = several(cls, standardize=True).fit(X, names)
    model.model_.save(tmp_path / "m.h5")
    loaded = SVMModel.load(tmp_path / "m.h5")
    np.testing.assert_array_equal(loaded.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert (loaded.method, loaded.route) == (model.model_.method, "sum")


@trees
def test_fitted_attributes(cls, digits):
    X, y = of(digits, 3)
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
    X, y = of(digits, 3)
    for model in (DisSMOSVC().fit(X, y), DisSMOSVC(working_set=4).fit(X, y)):
        assert not hasattr(model, "layers_")
        assert model.sizes_.tolist() == [len(y)]
        assert all(values.shape == (1,) for values in model.solver_.values())
        assert model.n_iter_ == model.solver_["iterations"] > 0
        assert model.solver_["n_support"] == len(model.support_)


@trees
def test_a_seed(cls):
    """The same seed, the same bits; another one, other parts."""
    X, y = rows()
    first, again, other = (cls(4, gamma=0.5, random_state=seed).fit(X, y) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.decision_function(X), again.decision_function(X))
    told = [[layer["objective"] for layer in model.layers_] for model in (first, again, other)]
    assert told[0] == told[1] != told[2]


def test_passes(digits):
    """Two at most of Cascade and one of DC-Filter, unless told otherwise."""
    X, y = of(digits, 3)
    for cls, usual in ((CascadeSVC, 2), (DCFilterSVC, 1)):
        assert cls(4, random_state=0).fit(X, y).layers_[-1]["pass"] == usual
        assert cls(4, passes=1, random_state=0).fit(X, y).layers_[-1]["pass"] == 1


@estimators
@pytest.mark.parametrize("standardize", [False, True])
def test_standardized(cls, standardize):
    X, y = rows()
    X = X * [1, 50, 0.01]
    model = several(cls, standardize=standardize, tol=TOL).fit(X, y)
    assert (model.model_.standardizer is not None) == standardize
    if standardize:
        Z = StandardScaler().fit_transform(X)
        expected = several(cls, tol=TOL).fit(Z, y).decision_function(Z)
        np.testing.assert_allclose(model.decision_function(X), expected, rtol=0, atol=1e-4)


@estimators
def test_score_with_weights(cls):
    X, y = rows()
    model, w = several(cls).fit(X, y), np.random.default_rng(0).random(150)
    assert model.score(X, y, w) == pytest.approx(np.average(model.predict(X) == y, weights=w))


# -- limits, and what is refused -------------------------------------------------------------------


@estimators
@pytest.mark.parametrize("limit", [{"max_iter": 1}, {"max_iter": 0}, {"max_time": 1e-9}], ids=str)
@pytest.mark.parametrize("k", [2, 3])
def test_not_converged(cls, limit, k):
    """One line: how many iterations, and how far it is from the tolerance."""
    X, y = rows(classes=k)
    model = several(cls, **limit)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    assert [w.category for w in caught] == [ConvergenceWarning]
    assert caught[0].filename == __file__  # the caller's line
    said = str(caught[0].message)
    assert (
        f"stopped after {model.n_iter_.sum():,} iterations at a violation of {model.solver_['gap'].max():.3g}" in said
    )
    assert "\n" not in said
    assert model.solver_["gap"].max() > 1e-3
    assert np.isfinite(model.decision_function(X)).all()
    assert set(model.predict(X)) <= set(range(k))


OWN = {
    "parts 0": (TREES, {"n_parts": 0}), "parts text": (TREES, {"n_parts": "2"}), "parts 2.0": (TREES, {"n_parts": 2.0}),
    "parts": (TREES, {"n_parts": 151}),
    **{f"passes {value!r}": ([CascadeSVC, DCFilterSVC], {"passes": value}) for value in (0, -1, 1.5, "2", None)},
    **{f"working_set {value!r}": ([DisSMOSVC], {"working_set": value}) for value in (0, 1, -2, 2.0, "8")},
    "precomputed": (ESTIMATORS, {"kernel": "precomputed"}),
}  # fmt: skip
REFUSED = [(cls, given) for cls in ESTIMATORS for given in BAD.values()]
REFUSED += [(cls, given) for classes, given in OWN.values() for cls in classes]


@pytest.mark.parametrize(("cls", "given"), REFUSED, ids=[f"{cls.__name__} {given}" for cls, given in REFUSED])
def test_bad_parameters(cls, given):
    said = refused(cls(**given), *rows())
    (name,) = given
    if name in ("passes", "working_set"):
        assert said.startswith(f"{name} = {given[name]!r}: it must be a whole number")


@estimators
@pytest.mark.parametrize("what", BAD_WEIGHTS)
def test_bad_weights(cls, what):
    refused(several(cls), *rows(), BAD_WEIGHTS[what])


@estimators
@pytest.mark.parametrize("how", BAD_ROWS)
def test_bad_rows(cls, how):
    with pytest.raises(InputError):
        several(cls).fit(*BAD_ROWS[how])


@estimators
def test_bad_rows_to_predict(cls):
    model = several(cls).fit(*rows())
    for T in (np.ones((3, 2)), np.full((3, 3), np.nan), np.ones(3), np.ones((0, 3))):
        with pytest.raises(InputError):
            model.predict(T)


# -- odd, and not refused ------------------------------------------------------------------------------


@exact
@formats
def test_rows_all_equal(name, csr):
    """There is nothing to learn but which class has more rows, and support vectors alone do not tell that."""
    X, y = np.ones((11, 2)), np.arange(11) % 2
    X = sp.csr_matrix(X) if csr else X
    decisions = EXACT[name]().fit(X, y).decision_function(X)
    assert np.ptp(decisions) == 0
    expected = SVC().fit(X, y).decision_function(X)
    np.testing.assert_allclose(
        decisions, 0 * expected if name.startswith(("cas", "dcf")) else expected, rtol=0, atol=1e-2
    )


@estimators
@pytest.mark.parametrize("gamma", [1e6, 1e-12])
def test_extreme_gamma(cls, gamma):
    """Every row alone, and no row different."""
    X, y = rows()
    model = several(cls, gamma=gamma).fit(X, y)
    assert np.isfinite(model.decision_function(X)).all()
    if gamma > 1:
        np.testing.assert_array_equal(model.predict(X), y)


@estimators
def test_one_feature_and_two_rows(cls):
    for more in ({"working_set": 2},) if cls is DisSMOSVC else ({"n_parts": 1}, {"n_parts": 2}):
        model = cls(**more).fit([[0.0], [1.0]], ["a", "b"])
        assert model.predict([[-0.5], [1.5]]).tolist() == ["a", "b"]
