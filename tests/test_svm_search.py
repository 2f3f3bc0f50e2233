"""C and gamma by cross-validation inside parts, against scikit-learn's SVC on the same rows and folds."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from helpers.checks import near, refusal, same_content
from helpers.data import clouds, curved, drawn_clouds, forms, read_only
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.svm import SVC

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.holdout import stratified
from cacore.kernels import Kernel
from cacore.tuning import scores
from casvm import CASVC, SMOSVC, DCFilterSVC, DisSMOSVC, SVMModel, cpsvm
from casvm.options import SVMOptions
from casvm.search.cross_validation import ClassFolds, along, judge
from casvm.solver.kernel_rows import padded

CS, GAMMAS = (0.5, 2.0, 20.0), (0.05, 0.5, 3.0)


@pytest.fixture
def to_the_end(tuned):
    """No setting is ended early."""
    tuned(errors_apart=np.inf)


# -- a path along C --------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_decisions_on_a_fold_are_those_of_svc(weighted, dtype):
    """On all rows, also on those left out. Both are at most a violation of 1e-5 off, margins about that times ten."""
    X, y = curved(130)
    held = stratified((y > 0).astype(int), 5) == 2
    weights = np.where(np.arange(130) % 3, 1.0, 0.4) if weighted else np.ones(130)
    K = np.zeros((130, padded(130)), dtype)
    K[:, :130] = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
    Cs = (0.1, 1.0, 5.0, 500.0)
    solutions = along(K, y, np.where(held, 0.0, weights), Cs, 1e-5, 10**7)
    assert solutions.converged.all()
    for C, decision, beta in zip(Cs, solutions.decision, solutions.beta, strict=True):
        theirs = SVC(C=C, gamma=0.5, tol=1e-5).fit(X[~held], y[~held], weights[~held])
        expected = theirs.decision_function(X)
        near(decision, expected, 2e-4 if C < 100 else 5e-3)
        assert not beta[held].any()
        assert abs(beta.sum()) < 1e-9 * C
        assert (np.abs(beta) <= C * weights).all()


def test_path_over_c_stops_at_its_iteration_limit():
    X, y = curved(130)
    K = np.zeros((130, padded(130)))
    K[:, :130] = np.exp(-0.01 * ((X[:, None] - X) ** 2).sum(-1))
    solutions = along(K, y, np.ones(130), (1e4,), 1e-6, 40)
    assert (solutions.iterations.tolist(), solutions.converged.tolist()) == ([40], [False])


# -- a part ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "laplacian", "l1", "wendland2_product", "polynomial", "linear"])
@pytest.mark.parametrize("csr", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("k", [2, 3])
def test_scores_are_those_of_grid_search_cv(k, csr, kind):
    """With the same folds, at the same tolerance: not a row is taken for another class. Far from the origin, too."""
    X, y = clouds(120, k=k, csr=csr)
    X = X if csr else X + 50.0 * (kind not in ("polynomial", "linear"))
    # With all values of K at 0 or 1 the bias, and so the class of a distant row, would be rounding.
    gammas = {"polynomial": (0.02, 0.1), "linear": (1.0,), "wendland2_product": (0.02, 0.1)}.get(kind, GAMMAS)
    fold, kernels = stratified(y, 4), [Kernel(kind, gamma, 2, 1.0) for gamma in gammas]
    read_only(X, y, fold)
    task = ClassFolds(X, y, np.ones(120), fold, np.ones((len(kernels), len(CS), 4), bool))
    got = scores("accuracy", judge(task, kernels, CS, k, tol=1e-5)["counts"])
    grid = {"C": CS, "gamma": [one.gamma for one in kernels]}
    for g, kernel in enumerate(kernels):
        ours = SMOSVC(kernel=kind, gamma=kernel.gamma, degree=2, coef0=1.0, tol=1e-5)
        theirs = {"gaussian": SVC(gamma=kernel.gamma, tol=1e-5)}.get(kind, ours)
        search = GridSearchCV(theirs, {"C": grid["C"]}, cv=PredefinedSplit(fold)).fit(X, y)
        expected = [[search.cv_results_[f"split{f}_test_score"][ell] for f in range(4)] for ell in range(len(CS))]
        near(got[g], expected, 1e-12)


@forms
def test_scores_of_many_classes_are_those_of_fits_on_each_fold(csr, dtype):
    """With weights, at a tolerance of 1e-5: one of the 60 rows of a fold may have another class."""
    X, y = drawn_clouds(180, k=4, csr=csr, dtype=dtype)
    weights, fold = 0.5 + np.arange(180) % 3, stratified(y, 3)
    task = ClassFolds(X, y, weights, fold, np.ones((len(GAMMAS), len(CS), 3), bool))
    result = judge(task, [Kernel("gaussian", gamma) for gamma in GAMMAS], CS, 4, tol=1e-5)
    accuracies = scores("accuracy", result["counts"])
    for g, ell, f in np.ndindex(accuracies.shape):
        out = fold == f
        model = SVC(C=CS[ell], gamma=GAMMAS[g], tol=1e-5).fit(X[~out], y[~out], weights[~out])
        near(accuracies[g, ell, f], model.score(X[out], y[out]), 1.01 / 60)
    assert result["solved"] == accuracies.size * 6
    assert not result["stopped"].any()


def test_all_folds_and_values_of_c_share_kernel_values(recorded):
    """With many classes, a pair computes its distances once, and its kernel values once for each gamma."""
    X, y = clouds(120, k=5)
    distances = recorded(Kernel, "compare_all", lambda _, self, points, out: len(points))
    values = recorded(Kernel, "values_from", lambda _, self, compared, points, out: self.gamma)
    task = ClassFolds(X, y, np.ones(120), stratified(y, 4), np.ones((len(GAMMAS), len(CS), 4), bool))
    assert judge(task, [Kernel("gaussian", gamma) for gamma in GAMMAS], CS, 5)["solved"] == 10 * task.todo.size
    sizes = np.bincount(y)
    assert sorted(distances) == sorted(sizes[i] + sizes[j] for i, j in combinations(range(5), 2))
    assert sorted(values) == sorted(GAMMAS * 10)


def test_gammas_apart_have_the_same_scores(tuned):
    """If the coefficients of all gammas are too much memory, gammas are compared one after the other."""
    X, y = clouds(120, k=5)
    task = ClassFolds(X, y, np.ones(120), stratified(y, 4), np.ones((len(GAMMAS), len(CS), 4), bool))
    kernels = [Kernel("gaussian", gamma) for gamma in GAMMAS]
    together = judge(task, kernels, CS, 5)
    tuned(search_coefficients=1)
    apart = judge(task, kernels, CS, 5)
    for name in together:
        np.testing.assert_array_equal(apart[name], together[name])


def test_settings_that_are_not_asked_for():
    X, y = clouds(90, k=3)
    task = ClassFolds(X, y, np.ones(90), stratified(y, 3), np.zeros((3, 3, 3), bool))
    task.todo[1, 0, 1] = task.todo[2, :, 2] = True
    kernels = [Kernel("gaussian", gamma) for gamma in GAMMAS]
    some, whole = judge(task, kernels, CS, 3), judge(replace(task, todo=np.ones((3, 3, 3), bool)), kernels, CS, 3)
    assert not some["counts"][~task.todo].any()
    np.testing.assert_array_equal(some["counts"][task.todo][1:], whole["counts"][task.todo][1:])
    assert some["solved"] == 3 * task.todo.sum()
    assert not judge(replace(task, todo=np.zeros((3, 3, 3), bool)), kernels, CS, 3)["counts"].any()


@pytest.mark.parametrize("codes", [[0] * 9, [1] * 8 + [0], [0, 2] * 4 + [1]])
def test_folds_that_lack_a_class(codes):
    """A fold without one, learning rows of one class only, a part of one class: every left-out row has an answer."""
    codes = np.array(codes)
    X = np.random.default_rng(0).normal(size=(9, 2)) + 3 * codes[:, None]
    fold = stratified(codes, 3)
    task = ClassFolds(X, codes, np.ones(9), fold, np.ones((1, 1, 3), bool))
    counts = judge(task, [Kernel("gaussian", 0.5)], (1.0,), 3)["counts"][0, 0]
    for f in range(3):
        right, said, true = counts[f]
        np.testing.assert_array_equal(true, np.bincount(codes[fold == f], minlength=3))
        assert said.sum() == true.sum()
        learned = set(codes[fold != f])
        assert not said[[code for code in range(3) if code not in learned]].any()
        if len(learned) == 1:
            assert right.sum() == true[learned.pop()]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_change_nothing(count, tuned):
    X, y = curved(100)
    task = ClassFolds(
        X, (y > 0).astype(int), np.ones(100), stratified((y > 0).astype(int), 5), np.ones((3, 3, 5), bool)
    )
    tuned(threads=count)
    got = judge(task, [Kernel("gaussian", gamma) for gamma in GAMMAS], CS, 2)
    tuned(threads=1)
    np.testing.assert_array_equal(got["counts"], judge(task, [Kernel("gaussian", g) for g in GAMMAS], CS, 2)["counts"])


# -- estimators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [CASVC, SMOSVC, DisSMOSVC, DCFilterSVC])
def test_estimators_have_what_grid_search_cv_has(estimator, to_the_end):
    """In one part. The search stops at a violation of 0.1: up to 2 rows of a fold of 40 may have another class."""
    X, y = curved(200)
    y = np.where(y > 0, "yes", "no")
    ours = estimator(C=CS, gamma=list(GAMMAS), cv=5)
    if "random_state" in ours.get_params():
        ours.set_params(random_state=0)
    assert clone(ours).get_params()["gamma"] == list(GAMMAS)
    ours.fit(X, y)
    fold = stratified((y == "yes").astype(int), 5)
    if estimator in (DisSMOSVC, DCFilterSVC):  # K-balance puts the rows in another order
        fold = np.arange(200) % 5
    theirs = GridSearchCV(SVC(), {"C": CS, "gamma": GAMMAS}, cv=PredefinedSplit(fold)).fit(X, y)
    got, expected = ours.cv_results_, theirs.cv_results_
    assert got["params"] == expected["params"]
    for name in ("param_C", "param_gamma"):
        np.testing.assert_array_equal(got[name], expected[name].astype(float))
    if estimator in (CASVC, SMOSVC):
        for f in range(5):
            near(got[f"split{f}_test_score"], expected[f"split{f}_test_score"], 0.05)
        near(got["mean_test_score"], expected["mean_test_score"], 0.02)
    score = dict(zip(map(str, expected["params"]), expected["mean_test_score"], strict=True))
    assert score[str(ours.best_params_)] >= theirs.best_score_ - 0.025
    assert ours.best_score_ == got["mean_test_score"][ours.best_index_] == got["mean_test_score"].max()
    single = clone(ours).set_params(**ours.best_params_, cv=None).fit(X, y)
    np.testing.assert_array_equal(ours.decision_function(X), single.decision_function(X))  # trained on all rows
    assert not hasattr(single, "best_params_")


def test_the_end_of_a_grid_stands_in_an_attribute():
    """Noise is fitted best by the smallest C."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 2)), np.repeat([0, 1], 40)
    wrong = (X[:, 0] > 0).astype(int)  # separable: the largest C of small ones is best, or all are equal
    model = SMOSVC(C=[1e-6, 1e-5, 1e-4, 1e3], gamma=[1.0]).fit(X, wrong)
    assert model.at_grid_end_ == {"C": 1e3}
    assert SMOSVC(C=[1.0, 1e3], gamma=[1.0]).fit(X, wrong).at_grid_end_ == {}
    assert not hasattr(SMOSVC(C=1.0).fit(X, y), "at_grid_end_")


def test_a_fit_without_a_search_forgets_the_last_one():
    X, y = curved(80)
    model = CASVC(C=[1, 2]).fit(X, y)
    assert set(model.best_params_) == {"C", "gamma"}
    assert not hasattr(model.set_params(C=1.0).fit(X, y), "cv_results_")


def test_cv_evaluates_a_single_setting():
    X, y = curved(150)
    model = SMOSVC(C=2.0, gamma=0.5, cv=3).fit(X, y)
    assert model.best_params_ == {"C": 2.0, "gamma": 0.5}
    fold = stratified((y > 0).astype(int), 3)
    theirs = GridSearchCV(SVC(C=2.0, gamma=0.5), {}, cv=PredefinedSplit(fold)).fit(X, y)
    assert model.best_score_ == pytest.approx(theirs.best_score_, abs=0.02)


@pytest.mark.parametrize("scoring", ["balanced_accuracy", "f1", "recall_macro"])
def test_choice_depends_on_the_scoring(scoring):
    """With a rare class, accuracy chooses a model that never predicts it."""
    rng = np.random.default_rng(0)
    y = (np.arange(300) % 12 == 0).astype(int)
    X = rng.normal(size=(300, 2)) + 1.0 * y[:, None]
    model = SMOSVC(C=[1e-2, 1e3], gamma=5.0, scoring=scoring).fit(X, y)
    assert model.best_params_["C"] == 1e3
    assert SMOSVC(C=[1e-2, 1e3], gamma=5.0).fit(X, y).best_params_["C"] == 1e-2


def test_class_and_sample_weights_bound_the_folds_too():
    """Rows of weight 0 are absent; a heavy class is found more often."""
    X, y = clouds(120)
    weights = np.where(np.arange(120) % 4, 1.0, 0.0)
    one = SMOSVC(C=CS, gamma=0.5).fit(X, y, weights)
    other = SMOSVC(C=CS, gamma=0.5).fit(X[weights > 0], y[weights > 0])
    for name in ("mean_test_score", "ended"):
        np.testing.assert_array_equal(one.cv_results_[name], other.cv_results_[name])
    plain, heavy = (
        SMOSVC(C=0.1, gamma=0.5, cv=4, scoring="recall", class_weight=some).fit(X, y) for some in (None, {1: 30.0})
    )
    assert heavy.best_score_ > plain.best_score_


def test_precomputed_and_callable_kernels():
    X, y = curved(120)
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
    plain = SMOSVC(C=CS, gamma=0.5).fit(X, y)
    given = SMOSVC(C=CS, kernel="precomputed").fit(K, y)
    called = SMOSVC(C=CS, kernel=lambda A, B: np.exp(-0.5 * ((A[:, None] - B) ** 2).sum(-1))).fit(X, y)
    for model in (given, called):
        assert model.best_params_ == {"C": plain.best_params_["C"]}
        near(model.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"], 0.02)


def test_parts_of_fewer_rows_than_folds():
    X, y = clouds(40)
    few = CASVC(10, C=[1, 10], gamma=0.5).fit(X, y)
    assert few.best_params_["C"] in (1.0, 10.0)
    assert np.isfinite(few.cv_results_["mean_test_score"]).all()
    X, y = clouds(12)
    many = CASVC(9, C=[1, 10], gamma=0.5).fit(X, y)  # parts of one row and of two: a row alone is not judged
    assert many.best_params_["C"] == 1.0
    assert "several values are compared inside the parts, but these have one row each" in refusal(
        CASVC(12, C=[1, 10]).fit, X, y
    )
    assert cpsvm.METHOD(Dataset(X, y), SVMOptions(partitions=12, C="grid"), Communicator()).search is None


def test_parts_choose_separate_settings(tmp_path):
    """Two clouds far apart with borders of other curvature: each is best at its own gamma."""
    X, y = curved(300)
    X = np.r_[X[:150], 20.0 * X[150:] + 1000.0]
    one = CASVC(2, partitioner="kmeans", C=[1.0, 10.0], gamma=[0.001, 0.5], random_state=0).fit(X, y)
    own = CASVC(2, partitioner="kmeans", C=[1.0, 10.0], gamma=[0.001, 0.5], per_part=True, random_state=0).fit(X, y)
    assert sorted(own.best_params_["gamma"]) == [0.001, 0.5]
    assert own.best_params_["C"].shape == (2,)
    assert own.best_score_ > one.best_score_ + 0.02
    assert own.score(X, y) > one.score(X, y)
    for part in range(2):
        chosen = {name: float(values[part]) for name, values in own.best_params_.items()}
        rows = own.predict(X)[(own.model_.parts[part].rows)]
        assert len(rows)
        assert own.model_.kernel_of(part).gamma == chosen["gamma"]
    assert own.model_.C in own.best_params_["C"]
    own.model_.save(tmp_path / "m.h5")
    loaded = SVMModel.load(tmp_path / "m.h5")
    np.testing.assert_array_equal(loaded.decision_function(X), own.decision_function(X))
    same_content(loaded.gammas, own.model_.gammas)


REFUSED = {
    "more folds than rows of a class": ({"cv": 9}, "cv = 9: class 1 has 8 rows; ask for 8 folds or fewer"),
    "one fold": ({"cv": 1}, "cv = 1: it must be a whole number of at least 2"),
    "a score that does not add up": ({"scoring": "roc_auc"}, "scoring = 'roc_auc': it must be a score that adds up"),
    "a negative C": ({"C": [1, -2]}, "C -2: it must be a positive number"),
    "no gamma": ({"gamma": []}, "gamma: give at least one value"),
    "a word": ({"gamma": "large"}, "gamma = 'large': it must be a positive number, scale or auto, a list"),
    "gammas of a kernel without": (
        {"kernel": "linear", "gamma": [0.1, 1]},
        "gamma: several values are given, but this kernel has no gamma; leave it out",
    ),
    "text": ({"C": "1,2"}, "C = '1,2': it must be a positive number, a list of them or grid"),
    "a command's default": ({"C": "default"}, "C = 'default': it must be a positive number, a list of them or grid"),
    "a score of nothing": ({"C": 1.0, "scoring": "f1"}, "scoring = f1: there is one value of C and of gamma; give sev"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("estimator", [CASVC, SMOSVC])
def test_refused(estimator, what):
    more, message = REFUSED[what]
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = (np.arange(60) < 8).astype(int)
    assert message in refusal(estimator(**{"C": [1, 2], **more}).fit, X, y)


def test_refused_in_words():
    X, y = clouds(60, k=3)
    assert "scoring = f1: it is for two classes" in refusal(SMOSVC(C=[1, 2], scoring="f1").fit, X, y)
    assert "per_part: there is one value" in refusal(CASVC(2, per_part=True).fit, X, y)
    assert "per_part: a metric" in refusal(CASVC(2, C=[1, 2], per_part=True, metric="diagonal").fit, X, y)
    for kernel in ("precomputed", lambda A, B: A @ B.T):
        assert "this kernel has no gamma" in refusal(SMOSVC(kernel=kernel, C=[1, 2], gamma=[1, 2]).fit, X @ X.T, y)
    y[:] = 0
    y[7] = 1
    assert "class 1 has one row only; give one value" in refusal(SMOSVC(C=[1, 2]).fit, X, y)
    for estimator in (SMOSVC, CASVC):  # nothing was named: C = 1 and gamma = scale
        with pytest.warns(UserWarning, match="has one row only: C = 1 and gamma = scale"):
            plain = estimator(C="grid", gamma="grid").fit(X, y)
        assert (plain.model_.C, hasattr(plain, "best_params_")) == (1.0, False)
