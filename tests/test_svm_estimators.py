"""The SVM classifiers as scikit-learn estimators: SMOSVC is SVC, and CASVC is one SVC a part."""

from __future__ import annotations

import pickle
import warnings
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from cacore.errors import InputError
from cacore.svm.decision import votes
from casvm import CASVC, SMOSVC
from partition import FCFS, BalancedKMeans, KBalance, KMeans, Partitioner, RandomPartition
from partition.routing import closest

ESTIMATORS = [SMOSVC, CASVC]
estimators = pytest.mark.parametrize("cls", ESTIMATORS)
formats = pytest.mark.parametrize("csr", [False, True], ids=["dense", "csr"])
TOL = 1e-6  # of both solvers, where they are compared
# scikit-learn's own SVC is exempt from these two as well.
REPETITION = "gamma='scale' and the tolerance see a row twice where a weight of 2 is one row"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": REPETITION,
    "check_sample_weight_equivalence_on_sparse_data": REPETITION,
}


@parametrize_with_checks([SMOSVC(), CASVC()], expected_failed_checks=lambda _: EXPECTED)
def test_scikit_learn(estimator, check):
    check(estimator)


# Scikit-learn's checks are one process, which is one part by default.
@parametrize_with_checks([CASVC(2, partitioner="kmeans", random_state=0)], expected_failed_checks=lambda _: EXPECTED)
def test_scikit_learn_with_parts(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    """Features from 0 to 1, 450 rows of ten classes."""
    X, y = load_digits(return_X_y=True)
    return X[:450] / 16, y[:450]


def of(digits, k):
    X, y = digits
    return X[y < k], y[y < k]


def rows(n=150, seed=0, classes=2):
    """Overlapping clouds, so that there are support vectors at the bound and inside."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return rng.normal(size=(n, 3)) + 1.2 * np.eye(3)[y % 3], y


# -- SMOSVC is SVC -----------------------------------------------------------------------------


def same(mine, reference, T, rows_of_alpha=True):
    """Both solved to 1e-6. Decisions to 1e-5 of the largest, coefficients to 2e-4 of C: the dual is flat."""
    np.testing.assert_array_equal(mine.classes_, reference.classes_)
    assert mine.classes_.dtype == reference.classes_.dtype
    np.testing.assert_array_equal(mine.predict(T), reference.predict(T))
    for shape in ("ovo", "ovr"):
        mine.set_params(decision_function_shape=shape)
        reference.set_params(decision_function_shape=shape)
        got, expected = mine.decision_function(T), reference.decision_function(T)
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))
    np.testing.assert_allclose(mine.intercept_, reference.intercept_, rtol=0, atol=1e-5 * mine.C)
    if not rows_of_alpha:
        return
    np.testing.assert_array_equal(mine.support_, reference.support_)
    np.testing.assert_array_equal(mine.n_support_, reference.n_support_)
    for name in ("support_", "n_support_", "dual_coef_", "intercept_"):
        assert getattr(mine, name).dtype == getattr(reference, name).dtype
    coefficients, expected = mine.dual_coef_, reference.dual_coef_
    expected = expected.toarray() if sp.issparse(expected) else expected
    assert coefficients.shape == expected.shape
    np.testing.assert_allclose(coefficients, expected, rtol=0, atol=2e-4 * mine.C)
    assert mine.fit_status_ == reference.fit_status_ == 0


KERNELS = {
    "rbf": {"kernel": "rbf"},
    "linear": {"kernel": "linear", "C": 0.5},
    "poly": {"kernel": "poly", "degree": 2, "coef0": 1.0, "gamma": 0.1},
    "sigmoid": {"kernel": "sigmoid", "gamma": 0.01, "C": 5.0},  # nearly linear: its kernel has one solution then
}


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("kernel", KERNELS)
def test_is_svc(kernel, k, digits):
    X, y = of(digits, k)
    mine, reference = SMOSVC(tol=TOL, **KERNELS[kernel]).fit(X, y), SVC(tol=TOL, **KERNELS[kernel]).fit(X, y)
    same(mine, reference, digits[0])
    np.testing.assert_array_equal(mine.support_vectors_, X[mine.support_])
    assert len(mine.objective_) == len(mine.gap_) == len(mine.n_iter_) == k * (k - 1) // 2
    assert (mine.gap_ < TOL).all()
    assert hasattr(mine, "coef_") == (kernel == "linear")
    if kernel == "linear":
        np.testing.assert_allclose(mine.coef_, reference.coef_, rtol=0, atol=1e-5)


def test_names_of_kernels(digits):
    X, y = of(digits, 3)
    for name, known in (("rbf", "gaussian"), ("poly", "polynomial")):
        expected = SMOSVC(kernel=known).fit(X, y).decision_function(X)
        np.testing.assert_array_equal(SMOSVC(kernel=name).fit(X, y).decision_function(X), expected)


@pytest.mark.parametrize("gamma", ["scale", "auto", 0.3])
def test_gamma(gamma):
    """Far from 0, where a variance by squares loses its digits, and with features of different size."""
    X, y = rows()
    X = X * [1, 20, 0.1] + [1e4, 0, -50]
    same(SMOSVC(tol=TOL, gamma=gamma).fit(X, y), SVC(tol=TOL, gamma=gamma).fit(X, y), X)


@pytest.mark.parametrize("k", [2, 3])
def test_objective_is_that_of_the_dual(k, digits):
    X, y = of(digits, k)
    mine = SMOSVC(tol=TOL, gamma=0.05).fit(X, y)
    for pair, (i, j) in enumerate([(0, 1)] if k == 2 else [(0, 1), (0, 2), (1, 2)]):
        one = (y == i) | (y == j)
        beta = SVC(tol=TOL, gamma=0.05).fit(X[one], y[one])
        K = rbf_kernel(X[one][beta.support_], gamma=0.05)
        expected = np.abs(beta.dual_coef_).sum() - 0.5 * float((beta.dual_coef_ @ K @ beta.dual_coef_.T)[0, 0])
        assert mine.objective_[pair] == pytest.approx(expected, rel=1e-8)


LABELS = {
    "words": np.array(["zero", "one", "a longer word"]), "objects": np.array(["zero", "one", "two"], object),
    "floats": np.array([-2.0, 7.0, 1e6]), "far integers": np.array([2**40, -3, 7]),
}  # fmt: skip


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("what", LABELS)
def test_labels(what, k, digits):
    X, y = of(digits, k)
    names = LABELS[what][y]
    if what in ("floats", "far integers"):
        assert SMOSVC().fit(X, names).predict(X).dtype == names.dtype
    same(SMOSVC(tol=TOL).fit(X, names), SVC(tol=TOL).fit(X, names), X)


@pytest.mark.parametrize("k", [2, 3])
def test_sample_weight(k, digits):
    X, y = of(digits, k)
    w = np.random.default_rng(1).uniform(0.1, 3, len(y))
    same(SMOSVC(tol=TOL, C=0.3).fit(X, y, w), SVC(tol=TOL, C=0.3).fit(X, y, w), X)


@pytest.mark.parametrize("weight", [{0: 0.2, 1: 4.0}, {2: 0.05}, "balanced"], ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["rows alike", "rows weighted"])
def test_class_weight(weight, weighted, digits):
    X, y = of(digits, 3)
    kept = (y > 0) | (np.arange(len(y)) % 4 == 0)
    X, y = X[kept], y[kept]
    w = np.random.default_rng(1).uniform(0.5, 2, len(y)) if weighted else None
    mine = SMOSVC(tol=TOL, C=0.2, class_weight=weight).fit(X, y, w)
    if weight == "balanced" and weighted:  # by the weights, as scikit-learn's other estimators and our parts count
        count = np.bincount(y, w)
        weight = dict(enumerate(count.sum() / (3 * count)))
    reference = SVC(tol=TOL, C=0.2, class_weight=weight).fit(X, y, w)
    same(mine, reference, X)
    np.testing.assert_allclose(mine.class_weight_, reference.class_weight_, rtol=1e-12)


def test_class_weight_by_label(digits):
    X, y = of(digits, 2)
    names = np.array(["rare", "common"])[y]
    weight = {"rare": 5.0}
    same(
        SMOSVC(tol=TOL, class_weight=weight, C=0.1).fit(X, names),
        SVC(tol=TOL, class_weight=weight, C=0.1).fit(X, names),
        X,
    )


@pytest.mark.parametrize("k", [2, 3])
def test_precomputed(k, digits):
    X, y = of(digits, k)
    train, test = slice(0, None, 2), slice(1, None, 2)
    K, T = rbf_kernel(X[train], gamma=0.05), rbf_kernel(X[test], X[train], gamma=0.05)
    mine, reference = (cls(kernel="precomputed", tol=TOL).fit(K, y[train]) for cls in (SMOSVC, SVC))
    same(mine, reference, T)
    assert mine.support_vectors_.shape == (len(mine.support_), 0)
    by_rows = SMOSVC(gamma=0.05, tol=TOL).fit(X[train], y[train])
    np.testing.assert_allclose(mine.decision_function(T), by_rows.decision_function(X[test]), rtol=0, atol=1e-5)
    searches = [GridSearchCV(cls(kernel="precomputed", tol=TOL), {"C": [0.1, 1.0]}, cv=3) for cls in (SMOSVC, SVC)]
    found, expected = (search.fit(K, y[train]).cv_results_["mean_test_score"] for search in searches)
    np.testing.assert_array_equal(found, expected)  # K is cut both ways


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_csr(kernel, k, digits):
    X, y = of(digits, k)
    S, T = sp.csr_matrix(X), sp.csr_matrix(digits[0])
    mine = SMOSVC(tol=TOL, kernel=kernel, C=0.5).fit(S, y)
    reference = SVC(tol=TOL, kernel=kernel, C=0.5).fit(S, y)
    same(mine, reference, T)
    assert sp.issparse(mine.support_vectors_)
    assert abs(mine.support_vectors_ - S[mine.support_]).sum() == 0
    if kernel == "linear":
        assert sp.issparse(mine.coef_)
        np.testing.assert_allclose(mine.coef_.toarray(), reference.coef_.toarray(), rtol=0, atol=1e-5)
    dense = SMOSVC(tol=TOL, kernel=kernel, C=0.5).fit(X, y).decision_function(digits[0])
    for other in (sp.csr_matrix, sp.csr_array, sp.csc_matrix, sp.coo_array, np.array):
        np.testing.assert_allclose(mine.decision_function(other(digits[0])), dense, rtol=0, atol=1e-5)


@pytest.mark.parametrize("k", [2, 3])
@formats
def test_float32(csr, k, digits):
    """Kept in single precision; few rows are solved in double all the same, and predicted to 1e-4."""
    X, y = of(digits, k)
    X = np.float32(X + 0.01 * np.random.default_rng(0).normal(size=X.shape) * (X > 0))
    given = sp.csr_matrix(X) if csr else X
    mine, reference = SMOSVC(tol=TOL, gamma=0.05).fit(given, y), SVC(tol=TOL, gamma=0.05).fit(given, y)
    assert mine.support_vectors_.dtype == np.float32
    np.testing.assert_array_equal(mine.support_, reference.support_)
    np.testing.assert_allclose(mine.intercept_, reference.intercept_, rtol=0, atol=1e-5)
    got = mine.decision_function(given)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, reference.decision_function(given), rtol=0, atol=1e-4)
    np.testing.assert_array_equal(mine.predict(given), reference.predict(given))


def test_without_shrinking_and_cache(digits):
    """Neither changes what is found."""
    X, y = digits
    expected = SMOSVC(tol=TOL).fit(X, y)
    for given in ({"shrinking": False}, {"cache_gib": 0}):
        same(SMOSVC(tol=TOL, **given).fit(X, y), expected, X)


def test_verbose(digits, capsys):
    SMOSVC(verbose=True).fit(*of(digits, 2))
    assert capsys.readouterr().err == ""


# -- what scikit-learn does with a classifier ----------------------------------------------------


@estimators
def test_composes(cls, digits):
    X, y = of(digits, 3)
    given = {"n_parts": 2, "partitioner": "kmeans", "random_state": 0} if cls is CASVC else {}
    search = GridSearchCV(cls(**given), {"C": [1e-4, 1.0], "gamma": ["scale", 1e3]}, cv=3).fit(X, y)
    assert search.best_params_ == {"C": 1.0, "gamma": "scale"}
    calibrated = CalibratedClassifierCV(cls(**given), cv=3).fit(X, y)
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(axis=1), 1.0)
    assert calibrated.score(X, y) > 0.95
    one_vs_rest = OneVsRestClassifier(cls(**given)).fit(X, y)
    assert one_vs_rest.score(X, y) > 0.95
    scaled = StandardScaler().fit(X)
    pipe = make_pipeline(StandardScaler(), cls(**given)).fit(X, y)
    alone = cls(**given).fit(scaled.transform(X), y)
    np.testing.assert_allclose(pipe.decision_function(X), alone.decision_function(scaled.transform(X)), rtol=1e-12)


def test_one_vs_rest_is_that_of_svc(digits):
    X, y = of(digits, 3)
    mine, reference = (OneVsRestClassifier(cls(tol=TOL)).fit(X, y).decision_function(X) for cls in (SMOSVC, SVC))
    np.testing.assert_allclose(mine, reference, rtol=0, atol=1e-5)


@estimators
def test_clone_and_pickle(cls, digits):
    X, y = of(digits, 3)
    given = {"n_parts": 3, "random_state": 4, "route": "soft"} if cls is CASVC else {"decision_function_shape": "ovo"}
    model = cls(C=3.0, class_weight={0: 2.0}, **given).fit(X, y)
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    for call in (fresh.predict, fresh.decision_function):
        with pytest.raises(NotFittedError):
            call(X)
    assert not hasattr(fresh, "coef_")
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
    more = {"n_parts": 3, "partitioner": "fcfs", "ratio": True, "standardize": True} if cls is CASVC else {}
    for weights in (None, w):
        model = cls(class_weight="balanced", **more).fit(given, y, weights)
        model.predict(given)
        model.decision_function(given)
    assert abs(given - before).sum() == 0


@estimators
def test_predictions_do_not_change_the_model(cls):
    X, y = rows()
    model = cls().fit(X, y)
    first = model.decision_function(X)
    model.predict(X[:7])
    np.testing.assert_array_equal(model.decision_function(X), first)


# -- CASVC: one SVC a part -----------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3])
@formats
def test_one_part_is_smosvc(csr, k, digits):
    X, y = of(digits, k)
    X = sp.csr_matrix(X) if csr else X
    w = np.random.default_rng(0).uniform(0.5, 2, len(y))
    one, whole = CASVC(1, random_state=0).fit(X, y, w), SMOSVC().fit(X, y, w)
    np.testing.assert_array_equal(one.decision_function(X), whole.decision_function(X))
    for name in ("support_", "n_support_", "dual_coef_", "classes_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(whole, name))
    assert abs(one.support_vectors_ - whole.support_vectors_).sum() == 0
    assert (one.sizes_.tolist(), one.n_iter_.tolist()) == ([len(y)], [whole.n_iter_.sum()])


@pytest.mark.parametrize("partitioner", ["random", "fcfs", "kmeans"])
@pytest.mark.parametrize("P", [1, 2])
def test_support_is_in_the_order_of_the_rows(P, partitioner):
    """A partitioner's rows lie in a shuffled order inside a part."""
    X, y = rows()
    model = CASVC(P, partitioner=partitioner, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.support_vectors_, X[model.support_])
    np.testing.assert_array_equal(model.support_, model.support_[np.lexsort((model.support_, y[model.support_]))])
    np.testing.assert_array_equal(np.sign(model.dual_coef_[0]), 2 * y[model.support_] - 1)


def parts_of(model, X):
    """Rows of each part, from the partition that the model was trained on: nothing else names rows without support."""
    maker = {"fcfs": FCFS, "bkm": BalancedKMeans, "kmeans": KMeans, "kbalance": KBalance}[model.partitioner]
    more = {"ratio": True} if model.ratio else {}
    seed = int(np.random.RandomState(model.random_state).randint(2**31 - 1))
    return maker(model.n_parts, random_state=seed, **more)


NAMED = ["fcfs", "bkm", "kmeans", "kbalance"]


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("partitioner", NAMED)
def test_parts_are_svcs(partitioner, k, digits):
    """Each part is SVC on the rows that the partitioner put there, with the gamma of all rows."""
    X, y = of(digits, k)
    model = CASVC(3, partitioner=partitioner, tol=TOL, random_state=1).fit(X, y)
    divided = parts_of(model, X).fit(X)
    np.testing.assert_array_equal(model.sizes_, divided.sizes_)
    np.testing.assert_array_equal(model.centers_, divided.centers_)
    gamma = 1 / (X.shape[1] * X.var())
    route = divided.predict(X)
    scores = model.decision_function(X)
    for p, part in model.model_.parts.items():
        mine = np.flatnonzero(divided.labels_ == p)
        assert np.isin(part.rows, mine).all()
        assert part.classes.tolist() == np.unique(y[mine]).tolist()
        here = route == p
        if len(part.classes) == 1:
            assert (model.predict(X[here]) == part.classes[0]).all()
            continue
        reference = SVC(gamma=gamma, tol=TOL).fit(X[mine], y[mine])
        assert sorted(part.rows) == sorted(mine[reference.support_])
        np.testing.assert_array_equal(part.n_support, reference.n_support_)
        np.testing.assert_array_equal(model.predict(X[here]), reference.predict(X[here]))
        if len(part.classes) == k:
            np.testing.assert_allclose(scores[here], reference.decision_function(X[here]), rtol=0, atol=1e-5)


def test_random_parts_are_svcs():
    """All rows at the bound have support, so that the parts' rows are known: C is tiny."""
    X, y = rows(90)
    model = CASVC(3, C=1e-3, gamma=0.5, tol=TOL, random_state=0).fit(X, y)
    parts = model.model_.parts
    assert model.sizes_.tolist() == [30, 30, 30]
    every = np.concatenate([part.rows for part in parts.values()])
    assert len(every) == len(np.unique(every))
    for p, part in parts.items():
        mine = np.sort(part.rows)
        reference = SVC(C=1e-3, gamma=0.5, tol=TOL).fit(X[mine], y[mine])
        label = model.model_.asked(X, np.full(len(X), p, np.int32))[:, 0]
        np.testing.assert_allclose(label, reference.decision_function(X), rtol=0, atol=1e-5)


def test_random_parts_are_dealt_at_random():
    """Sorted rows do not give parts of one class; another seed gives other parts, the same seed the same."""
    X, y = rows(120)
    X, y = X[np.argsort(y)], np.sort(y)
    first, again, other = (CASVC(4, random_state=seed).fit(X, y) for seed in (0, 0, 1))
    assert all(len(part.classes) == 2 for part in first.model_.parts.values())
    np.testing.assert_array_equal(first.support_, again.support_)
    assert not np.array_equal(first.centers_, other.centers_)


@pytest.fixture(scope="module", params=[2, 3])
def routed(request):
    """Parts with centres well apart, fitted once for each route."""
    X, y = rows(160, classes=request.param)
    given = {"partitioner": "kmeans", "tol": TOL, "random_state": 0}
    return X, {route: CASVC(5, route=route, **given).fit(X, y) for route in ("nearest", "soft", "all")}


def every_part(model, X):
    """What each part says of each row, shape (P, n, columns)."""
    k = len(model.classes_)
    return np.array([part.scores(X, model.model_.kernel, k) for part in model.model_.parts.values()])


def column(scores):
    return scores[:, 0] if scores.shape[1] == 1 else scores


def test_nearest_route(routed):
    X, models = routed
    model, said = models["nearest"], every_part(models["nearest"], X)
    distance = ((X[:, None] - model.centers_) ** 2).sum(axis=2)
    chosen = said[distance.argmin(axis=1), np.arange(len(X))]
    np.testing.assert_allclose(model.decision_function(X), column(chosen), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), model.classes_[votes(chosen)])


def test_all_route(routed):
    X, models = routed
    model, said = models["all"], every_part(models["all"], X)
    mean = said.mean(axis=0)
    np.testing.assert_allclose(model.decision_function(X), column(mean), rtol=1e-12, atol=1e-12)
    codes = (mean[:, 0] > 0).astype(int) if mean.shape[1] == 1 else mean.argmax(axis=1)
    np.testing.assert_array_equal(model.predict(X), model.classes_[codes])


def test_soft_route(routed):
    """The four nearest, weighted by exp(-(d^2 - d_min^2) / t); t is 0.35 of the mean of d_2^2 - d_1^2 of the rows."""
    X, models = routed
    model, said = models["soft"], every_part(models["soft"], X)
    squares = ((X[:, None] - model.centers_) ** 2).sum(axis=2)
    ordered = np.sort(squares, axis=1)
    t = 0.35 * (ordered[:, 1] - ordered[:, 0]).mean()
    assert model.model_.soft.t == pytest.approx(t, rel=1e-10)
    w = np.where(squares <= ordered[:, 3:4], np.exp(-(squares - ordered[:, :1]) / t), 0.0)
    mean = np.einsum("np,pnc->nc", w / w.sum(axis=1, keepdims=True), said)
    np.testing.assert_allclose(model.decision_function(X), column(mean), rtol=1e-10, atol=1e-10)
    codes = (mean[:, 0] > 0).astype(int) if mean.shape[1] == 1 else mean.argmax(axis=1)
    np.testing.assert_array_equal(model.predict(X), model.classes_[codes])


def test_routes_share_their_parts(routed):
    _, models = routed
    for part in range(5):
        for name in ("rows", "coef", "b"):
            values = [getattr(models[route].model_.parts[part], name) for route in models]
            np.testing.assert_array_equal(values[0], values[1])
            np.testing.assert_array_equal(values[0], values[2])


def test_fewer_parts_than_soft_asks():
    X, y = rows()
    model = CASVC(2, partitioner="kmeans", route="soft", random_state=0).fit(X, y)
    assert model.model_.soft.k == 2
    one = CASVC(1, route="soft", random_state=0).fit(X, y)  # one part: nothing to weigh
    np.testing.assert_array_equal(one.decision_function(X), SMOSVC().fit(X, y).decision_function(X))


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("route", ["nearest", "soft", "all"])
def test_part_of_one_class(route, k):
    """Clouds far apart: with one part a cloud, each holds one class and says so, without support vectors."""
    rng = np.random.default_rng(0)
    y = np.arange(90) % k
    X = rng.normal(size=(90, 2)) + 100.0 * np.array([[0, 0], [1, 0], [0, 1]])[y]
    names = np.array(["a", "b", "c"])[y]
    model = CASVC(k, partitioner="kmeans", route=route, random_state=0).fit(X, names)
    assert [len(part.classes) for part in model.model_.parts.values()] == [1] * k
    assert (model.support_.size, model.solver_["n_support"].tolist()) == (0, [0] * k)
    assert model.dual_coef_.shape == (k - 1, 0)
    assert model.support_vectors_.shape == (0, 2)
    if route != "all":  # the mean of parts that know one class each says nothing
        np.testing.assert_array_equal(model.predict(X), names)
    decisions = model.decision_function(X)
    assert np.isfinite(decisions).all()
    if k == 2 and route == "nearest":
        np.testing.assert_array_equal(decisions, np.where(y == 1, 1.0, -1.0))


def test_more_classes_than_a_part_holds(digits):
    """Ten classes; parts with few of them never name another, and their coefficients stand where SVC has them."""
    X, y = digits
    model = CASVC(12, partitioner="kmeans", random_state=0).fit(X, y)
    parts = model.model_.parts
    held = [set(part.classes.tolist()) for part in parts.values()]
    assert min(map(len, held)) < 5
    route = closest(X, model.centers_, 1)[0][:, 0]
    predicted, decisions = model.predict(X), model.decision_function(X)
    for p, classes in enumerate(held):
        assert set(predicted[route == p]) <= classes
        absent = [code for code in range(10) if code not in classes]
        assert (decisions[route == p][:, absent] == -1).all()
    assert model.dual_coef_.shape == (9, len(model.support_))
    np.testing.assert_array_equal(model.n_support_, np.bincount(y[model.support_], minlength=10))
    np.testing.assert_array_equal(y[model.support_], np.sort(y[model.support_]))
    np.testing.assert_array_equal(model.support_vectors_, X[model.support_])
    position = {row: place for place, row in enumerate(model.support_)}
    for part in parts.values():  # a part's coefficients, found again by row and pair of classes
        owner = part.classes.repeat(part.n_support)
        for place, (row, i) in enumerate(zip(part.rows, owner, strict=True)):
            for line, j in enumerate(part.classes[part.classes != i]):
                there = j - (j > i)
                assert model.dual_coef_[there, position[row]] == part.coef[line, place]
            missing = [j - (j > i) for j in range(10) if j not in part.classes]
            assert (model.dual_coef_[missing, position[row]] == 0).all()
    assert model.score(X, y) > 0.9


@pytest.mark.parametrize("partitioner", ["fcfs", "bkm"])
def test_ratio_balances_classes(partitioner):
    X, y = rows(120)
    y = (np.arange(120) % 6 == 0).astype(int)  # one in six
    X[y == 1] += 3  # to one side, so that without balance some parts lack it
    balanced = CASVC(5, partitioner=partitioner, ratio=True, random_state=0).fit(X, y)
    divided = parts_of(balanced, X).fit(X, y)
    counts = np.array([np.bincount(y[divided.labels_ == p], minlength=2) for p in range(5)])
    assert (np.ptp(counts, axis=0) <= 1).all()
    np.testing.assert_array_equal(balanced.sizes_, counts.sum(axis=1))
    plain = CASVC(5, partitioner=partitioner, random_state=0).fit(X, y)
    held = [[len(part.classes) for part in model.model_.parts.values()] for model in (balanced, plain)]
    assert held[0] == [2] * 5
    assert min(held[1]) == 1
    words = np.array(["no", "yes"])[y]  # labels need not be numbers
    np.testing.assert_array_equal(
        CASVC(5, partitioner=partitioner, ratio=True, random_state=0).fit(X, words).centers_, balanced.centers_
    )


@pytest.mark.parametrize("partitioner", ["kmeans", "kbalance"])
def test_ratio_of_others(partitioner):
    with pytest.raises(InputError, match="does not balance classes"):
        CASVC(2, partitioner=partitioner, ratio=True).fit(*rows())


def test_ratio_of_random():
    with pytest.raises(InputError, match="ratio"):
        CASVC(2, partitioner="random", ratio=True).fit(*rows())


@pytest.mark.parametrize("partitioner", ["random", *NAMED])
def test_named_partitioners(partitioner):
    X, y = rows()
    model = CASVC(4, partitioner=partitioner, random_state=0).fit(X, y)
    assert (len(model.sizes_), model.sizes_.sum(), model.centers_.shape) == (4, 150, (4, 3))
    if partitioner != "kmeans":
        assert np.ptp(model.sizes_) <= 1
    assert model.score(X, y) > 0.7
    for name in ("iterations", "n_support", "objective", "gap", "seconds"):
        assert model.solver_[name].shape == (4,)
    assert [len(part.rows) for part in model.model_.parts.values()] == model.solver_["n_support"].tolist()
    np.testing.assert_array_equal(model.n_iter_, model.solver_["iterations"])


@pytest.mark.parametrize("make", [FCFS, BalancedKMeans, KMeans, KBalance])
def test_partitioner_instance(make):
    """As if it had been named, with its own number of parts if none is given."""
    X, y = rows()
    name = {FCFS: "fcfs", BalancedKMeans: "bkm", KMeans: "kmeans", KBalance: "kbalance"}[make]
    own, before = make(4), make(4).get_params()
    expected = CASVC(4, partitioner=name, random_state=0).fit(X, y).decision_function(X)
    for given in ({}, {"n_parts": 4}):
        model = CASVC(**given, partitioner=own, random_state=0).fit(X, y)
        np.testing.assert_array_equal(model.decision_function(X), expected)
    assert len(CASVC(3, partitioner=own).fit(X, y).sizes_) == 3
    assert own.get_params() == before
    assert not hasattr(own, "labels_")
    assert clone(model).get_params()["partitioner"].get_params() == before
    pickle.loads(pickle.dumps(model)).predict(X)


def test_partitioner_instance_keeps_its_parameters():
    X, y = rows()
    kept = CASVC(partitioner=FCFS(4, recompute_centers=False), random_state=0).fit(X, y)
    assert all((center == X).all(axis=1).any() for center in kept.centers_)  # centres are rows
    assert len(CASVC(partitioner=RandomPartition(3)).fit(X, y).sizes_) == 3
    model = CASVC(partitioner=FCFS(4), ratio=True, random_state=0).fit(X, y)
    np.testing.assert_array_equal(
        model.centers_, CASVC(4, partitioner="fcfs", ratio=True, random_state=0).fit(X, y).centers_
    )


def test_partitioner_instance_that_balances():
    X, y = rows()
    model = CASVC(partitioner=FCFS(4, ratio=True), random_state=0).fit(X, y)
    expected = CASVC(4, partitioner="fcfs", ratio=True, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.centers_, expected.centers_)


class Halves(Partitioner):
    """Of another package: by the sign of the first feature."""

    def _partition(self, rows, y):
        labels = (rows.X[:, 0] > 0).astype(np.int32)
        return labels, np.array([[-1.0, 0, 0], [1.0, 0, 0]])


def test_partitioner_of_others():
    X, y = rows()
    model = CASVC(partitioner=Halves(2)).fit(X, y)
    assert model.sizes_.tolist() == [(X[:, 0] <= 0).sum(), (X[:, 0] > 0).sum()]


@pytest.mark.parametrize("standardize", [False, True])
@formats
def test_standardized(csr, standardize):
    X, y = rows()
    X = X * [1, 50, 0.01]
    if csr:
        X[np.abs(X) < 0.005] = 0
    given = sp.csr_matrix(X) if csr else X
    model = CASVC(3, partitioner="fcfs", standardize=standardize, random_state=0).fit(given, y)
    if standardize:
        by_hand = given.multiply(1 / X.std(axis=0)).tocsr() if csr else StandardScaler().fit_transform(X)
        expected = CASVC(3, partitioner="fcfs", random_state=0).fit(by_hand, y).decision_function(by_hand)
        np.testing.assert_allclose(model.decision_function(given), expected, rtol=0, atol=1e-2)  # tol is 1e-3
    else:
        assert model.model_.standardizer is None


def test_csr_parts_as_dense():
    X, y = rows(classes=3)
    X[np.abs(X) < 0.5] = 0
    given = {"n_parts": 4, "partitioner": "bkm", "gamma": 0.5, "tol": TOL, "random_state": 0}
    dense, sparse = CASVC(**given).fit(X, y), CASVC(**given).fit(sp.csr_matrix(X), y)
    expected = dense.decision_function(X)
    np.testing.assert_allclose(sparse.decision_function(sp.csr_matrix(X)), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(sparse.decision_function(X), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(dense.decision_function(sp.csr_matrix(X)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("partitioner", ["random", "kmeans"])
def test_balanced_counts_all_parts(partitioner):
    """A class is as rare in every part as it is over all: its weight is one number."""
    X, y = rows(120)
    y = (np.arange(120) % 5 == 0).astype(int)
    count = np.bincount(y)
    weight = {code: 120 / (2 * count[code]) for code in (0, 1)}
    given = {"partitioner": partitioner, "random_state": 0}
    balanced = CASVC(3, class_weight="balanced", **given).fit(X, y)
    by_hand = CASVC(3, class_weight=weight, **given).fit(X, y)
    np.testing.assert_array_equal(balanced.decision_function(X), by_hand.decision_function(X))


def test_score_with_weights():
    X, y = rows()
    model, w = CASVC(3, random_state=0).fit(X, y), np.random.default_rng(0).random(150)
    assert model.score(X, y, w) == pytest.approx(np.average(model.predict(X) == y, weights=w))


# -- limits --------------------------------------------------------------------------------------


def told(fit):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    assert [w.category for w in caught] == [ConvergenceWarning]
    assert caught[0].filename == __file__  # the caller's line
    return str(caught[0].message)


@pytest.mark.parametrize("limit", [{"max_iter": 1}, {"max_iter": 0}, {"max_time": 1e-9}], ids=str)
@pytest.mark.parametrize("k", [2, 3])
@estimators
def test_not_converged(cls, k, limit):
    """One line: how many iterations, and how far it is from the tolerance."""
    X, y = rows(classes=k)
    model = cls(**limit)
    said = told(lambda: model.fit(X, y))
    n_iter = model.n_iter_.max() if cls is SMOSVC else model.n_iter_.sum()
    gap = model.gap_.max() if cls is SMOSVC else model.solver_["gap"].max()
    assert f"stopped after {n_iter:,} iterations at a violation of {gap:.3g}, above tol = 0.001" in said
    assert "\n" not in said
    assert gap > 1e-3
    assert n_iter <= limit.get("max_iter", 10**6) * (1 if cls is SMOSVC else k * (k - 1) // 2)
    if cls is SMOSVC:
        assert model.fit_status_ == 1
    assert np.isfinite(model.decision_function(X)).all()
    assert set(model.predict(X)) <= set(range(k))


def test_parts_that_did_not_converge():
    X, y = rows()
    assert told(lambda: CASVC(3, max_iter=1).fit(X, y)).startswith("3 of 3 parts stopped after 3 iterations")


# -- what is refused -------------------------------------------------------------------------------

BAD = {
    "C 0": {"C": 0}, "C negative": {"C": -1.0}, "C nan": {"C": np.nan}, "C inf": {"C": np.inf},
    "gamma 0": {"gamma": 0}, "gamma negative": {"gamma": -1}, "gamma x": {"gamma": "x"}, "gamma nan": {"gamma": np.nan},
    "tol 0": {"tol": 0}, "tol negative": {"tol": -1e-3}, "tol inf": {"tol": np.inf}, "kernel": {"kernel": "cosine"},
    "kernel None": {"kernel": None}, "kernel function": {"kernel": np.dot}, "degree": {"degree": -1},
    "degree 2.5": {"degree": 2.5}, "coef0": {"coef0": np.nan}, "cache": {"cache_gib": -1}, "time": {"max_time": 0},
    "class_weight": {"class_weight": "equal"}, "class_weight list": {"class_weight": [1, 2]},
    "class_weight label": {"class_weight": {7: 1.0}}, "class_weight negative": {"class_weight": {0: -1.0}},
    "class_weight nan": {"class_weight": {0: np.nan}},
}  # fmt: skip
BAD_SMO = {"shape": {"decision_function_shape": "ovx"}}
BAD_CA = {
    "partitioner": {"partitioner": "voronoi"}, "partitioner number": {"partitioner": 3},
    "partitioner class": {"partitioner": FCFS}, "route": {"route": "oracle"}, "parts 0": {"n_parts": 0},
    "parts text": {"n_parts": "2"}, "parts 2.0": {"n_parts": 2.0}, "parts": {"n_parts": 151},
    "precomputed": {"kernel": "precomputed"},
}  # fmt: skip
BAD_CA |= {f"{name} parts": {"n_parts": 151, "partitioner": name} for name in NAMED}
REFUSED = [(cls, what) for cls, what in product(ESTIMATORS, BAD)]
REFUSED += [(SMOSVC, what) for what in BAD_SMO] + [(CASVC, what) for what in BAD_CA]


def refused(model, *given):
    """InputError, a ValueError, of one line."""
    with pytest.raises(InputError) as caught:
        model.fit(*given)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("cls", "what"), REFUSED, ids=[f"{cls.__name__} {what}" for cls, what in REFUSED])
def test_bad_parameters(cls, what):
    given = {**BAD, **BAD_SMO, **BAD_CA}[what]
    model = cls(**given)
    refused(model, *rows())
    assert model.get_params() == cls(**given).get_params() or what == "C nan"  # NaN differs from itself


@pytest.mark.parametrize(
    "given", [{"C": "x"}, {"C": None}, {"gamma": None}, {"tol": "x"}, {"cache_gib": "a"}, {"max_iter": "a"},
              {"class_weight": {0: "a"}}], ids=str,
)  # fmt: skip
def test_parameters_of_another_type(given):
    refused(SMOSVC(**given), *rows())


BAD_WEIGHTS = {
    "short": np.ones(149), "two columns": np.ones((150, 2)), "negative": np.r_[-1.0, np.ones(149)],
    "nan": np.r_[np.nan, np.ones(149)], "inf": np.r_[np.inf, np.ones(149)], "all zero": np.zeros(150),
    "words": np.array(["one"] * 150), "one class only": (np.arange(150) % 2).astype(float),
}  # fmt: skip


@estimators
@pytest.mark.parametrize("what", BAD_WEIGHTS)
def test_bad_weights(cls, what):
    refused(cls(), *rows(), BAD_WEIGHTS[what])


def entry(value):
    X = rows()[0]
    X[3, 1] = value
    return X


BAD_ROWS = {
    "nan": (entry(np.nan), rows()[1]), "inf": (entry(np.inf), rows()[1]),
    "csr nan": (sp.csr_matrix(entry(np.nan)), rows()[1]), "one label": (rows()[0], np.ones(150)),
    "continuous": (rows()[0], rows()[0][:, 0]), "label nan": (rows()[0], np.r_[np.nan, np.ones(149)]),
    "two columns": (rows()[0], np.c_[rows()[1], rows()[1]]), "short": (rows()[0], rows()[1][:-1]),
    "no rows": (np.ones((0, 3)), np.ones(0)), "words": (np.full((150, 3), "word"), rows()[1]),
}  # fmt: skip


@estimators
@pytest.mark.parametrize("how", BAD_ROWS)
def test_bad_rows(cls, how):
    with pytest.raises(InputError) as caught:
        cls().fit(*BAD_ROWS[how])
    if how == "one label":
        assert str(caught.value) == "the labels must be of at least 2 classes; there is one class only, 1.0"


@estimators
def test_bad_rows_to_predict(cls):
    model = cls().fit(*rows())
    for T in (np.ones((3, 2)), np.full((3, 3), np.nan), np.ones(3), np.ones((0, 3))):
        with pytest.raises(InputError):
            model.predict(T)


@pytest.mark.parametrize("what", ["wide", "sparse"])
def test_precomputed_refused(what):
    X, y = rows()
    K = X @ X.T
    given = {"wide": K[:, :-1], "sparse": sp.csr_matrix(K)}[what]
    message = {"wide": "is square; this has shape (150, 149)", "sparse": "has to be dense"}[what]
    assert refused(SMOSVC(kernel="precomputed"), given, y) == f"a precomputed kernel {message}"


def test_precomputed_tags():
    tags = SMOSVC(kernel="precomputed").__sklearn_tags__().input_tags
    assert tags.pairwise
    assert not tags.sparse


def test_class_without_weight():
    X, y = rows(classes=3)
    assert "must be a positive number" in refused(SMOSVC(class_weight={2: 0.0}), X, y)


def test_part_without_weight():
    """The rows of a class of weight 0 are a part of their own: refused, or answered by some class."""
    X = np.random.default_rng(0).normal(size=(60, 2)) + 100.0 * (np.arange(60) % 2)[:, None]
    y = np.arange(60) % 2
    try:
        model = CASVC(2, partitioner="kmeans", class_weight={0: 0.0}, random_state=0).fit(X, y)
    except InputError:
        return
    assert set(model.predict(X)) <= {0, 1}


# -- odd, and not refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1e6, 1e-12])
def test_extreme_gamma(gamma):
    """Every row alone, and no row different: as SVC."""
    X, y = rows()
    mine, reference = SMOSVC(gamma=gamma, tol=TOL).fit(X, y), SVC(gamma=gamma, tol=TOL).fit(X, y)
    got = mine.decision_function(X)
    np.testing.assert_allclose(got, reference.decision_function(X), rtol=0, atol=1e-5)
    assert np.isfinite(CASVC(3, gamma=gamma, partitioner="bkm", random_state=0).fit(X, y).decision_function(X)).all()
    if gamma > 1:
        np.testing.assert_array_equal(mine.predict(X), y)


@estimators
@pytest.mark.parametrize("n", [10, 11])
@formats
def test_rows_all_equal(cls, n, csr):
    """There is nothing to learn but which class has more rows."""
    X, y = np.ones((n, 2)), np.arange(n) % 2
    model = cls().fit(sp.csr_matrix(X) if csr else X, y)
    decisions = model.decision_function(sp.csr_matrix(X) if csr else X)
    assert np.isfinite(decisions).all()
    assert np.ptp(decisions) == 0
    if n % 2:
        assert (model.predict(X) == 0).all()
        np.testing.assert_allclose(decisions, SVC().fit(X, y).decision_function(X), rtol=0, atol=1e-2)


@pytest.mark.parametrize("partitioner", ["random", *NAMED])
def test_rows_all_equal_in_parts(partitioner):
    X, y = np.ones((12, 2)), np.arange(12) % 2
    model = CASVC(3, partitioner=partitioner, random_state=0).fit(X, y)
    assert model.sizes_.sum() == 12
    assert np.isfinite(model.decision_function(X)).all()


def test_decision_of_exactly_zero():
    """A file that LIBSVM reads must say the same, and so must two classes among three."""
    K, y = np.ones((10, 10)), np.arange(10) % 2
    mine, reference = SMOSVC(kernel="precomputed").fit(K, y), SVC(kernel="precomputed").fit(K, y)
    assert mine.decision_function(K).tolist() == reference.decision_function(K).tolist() == [0.0] * 10
    np.testing.assert_array_equal(mine.predict(K), reference.predict(K))


def test_duplicates_with_opposite_labels():
    X, _ = rows(40)
    X, y = np.r_[X, X], np.repeat([0, 1], 40)
    mine, reference = SMOSVC(tol=TOL).fit(X, y), SVC(tol=TOL).fit(X, y)
    np.testing.assert_allclose(mine.decision_function(X), reference.decision_function(X), rtol=0, atol=1e-5)
    X2, y2 = rows(60)
    X, y = np.r_[X2, X2[:9]], np.r_[y2, 1 - y2[:9]]  # some rows only
    same(SMOSVC(tol=TOL).fit(X, y), SVC(tol=TOL).fit(X, y), X)
    assert np.isfinite(CASVC(4, partitioner="fcfs", random_state=0).fit(X, y).decision_function(X)).all()


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_zero_row_in_csr(kernel):
    X, y = rows()
    X[np.abs(X) < 0.5] = 0
    X[[0, 17, -1]] = 0
    S = sp.csr_matrix(X)
    same(SMOSVC(kernel=kernel, tol=TOL).fit(S, y), SVC(kernel=kernel, tol=TOL).fit(S, y), S)
    model = CASVC(3, kernel=kernel, partitioner="kmeans", random_state=0).fit(S, y)
    assert np.isfinite(model.decision_function(S)).all()
    assert np.isfinite(model.decision_function(sp.csr_matrix((4, 3)))).all()  # nothing but zeros


def test_csr_with_stored_zeros_and_unsorted_indices():
    X, y = rows()
    S = sp.csr_matrix(X)
    S.data[::7] = 0
    odd = sp.csr_matrix((S.data.copy(), S.indices.copy(), S.indptr.copy()), shape=S.shape)
    for i in range(odd.shape[0]):
        row = slice(odd.indptr[i], odd.indptr[i + 1])
        odd.data[row], odd.indices[row] = odd.data[row][::-1].copy(), odd.indices[row][::-1].copy()
    odd.has_sorted_indices = False
    expected = SMOSVC(tol=TOL).fit(S.toarray(), y).decision_function(S.toarray())
    np.testing.assert_allclose(SMOSVC(tol=TOL).fit(odd, y).decision_function(odd), expected, rtol=0, atol=1e-5)


@estimators
@formats
@pytest.mark.parametrize("k", [2, 3])
def test_weight_zero_is_absence(cls, csr, k):
    """With a gamma that does not depend on the rows."""
    X, y = rows(classes=k)
    X = sp.csr_matrix(X) if csr else X
    w = np.random.default_rng(0).integers(0, 3, 150).astype(float)
    kept = w > 0
    more = {"n_parts": 3, "partitioner": "bkm", "random_state": 0} if cls is CASVC else {}
    with_zeros, without = cls(gamma=0.5, **more).fit(X, y, w), cls(gamma=0.5, **more).fit(X[kept], y[kept], w[kept])
    tolerance = 0 if cls is CASVC else 5e-3  # the solver goes other ways to within 1e-3
    np.testing.assert_allclose(with_zeros.decision_function(X), without.decision_function(X), rtol=0, atol=tolerance)
    if cls is SMOSVC:
        assert kept[with_zeros.support_].all()


@estimators
def test_class_of_weight_zero_is_absent(cls):
    """A label that only rows of weight 0 have is none of the model's."""
    X, y = rows(classes=3)
    model = cls().fit(X, y, (y < 2).astype(float))
    assert model.classes_.tolist() == [0, 1]
    assert set(model.predict(X)) <= {0, 1}


def test_one_feature_and_two_rows():
    for cls in ESTIMATORS:
        model = cls().fit([[0.0], [1.0]], ["a", "b"])
        assert model.predict([[-0.5], [1.5]]).tolist() == ["a", "b"]
