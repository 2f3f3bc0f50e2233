"""C, epsilon and gamma of regressions, chosen by estimators; errors on rows left out, against LIBSVM."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers.checks import near, refusal
from helpers.data import sines
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVR

from cacore.kernels import Kernel
from casvm import CASVC, CASVR, SMOSVC, SMOSVR, DisSMOSVR, SMONuSVR, SMOOneClassSVM
from casvm.command import main
from casvm.options import ValueMethod, ValueOptions
from casvm.search.regression import TargetFolds, judge
from casvm.tasks import ValuesTask
from partition.in_parts import AROUND, around, in_parts


def test_errors_on_rows_left_out_are_those_of_libsvm():
    """For all settings and folds, with weights; none if there are no rows to train on."""
    (X, y, _), rng = sines(157), np.random.default_rng(0)
    X, y, weights = X[:90], (y[:90] - 300) / 10, rng.choice([0.0, 0.5, 2.0], 90)
    fold, Cs, epsilons, gammas = np.arange(90) % 4, (0.5, 5.0, 50.0), (0.02, 0.2), (0.2, 0.8)
    alike = tuple(Kernel("gaussian", gamma) for gamma in gammas)
    told = judge(TargetFolds(X, y, weights, fold, 3), alike, Cs, epsilons, 1e-6)
    for place, sse in np.ndenumerate(told["sse"]):
        g, e, ell, f = place
        model = SVR(C=Cs[ell], epsilon=epsilons[e], gamma=gammas[g], tol=1e-7)
        out = fold == f
        error = model.fit(X[~out], y[~out], weights[~out]).predict(X[out]) - y[out]
        assert sse == pytest.approx(weights[out] @ error**2, rel=1e-3)
        assert told["weight"][f] == weights[out].sum()
    assert (told["solved"], told["stopped"].sum()) == (36, 0)
    alone = judge(TargetFolds(X[:1], y[:1], np.ones(1), np.zeros(1, int), 3), alike, Cs, epsilons, 1e-6)
    assert not alone["weight"].any()


def test_estimators_choose_too():
    X, y, _ = sines(157)
    model = CASVR(3, partitioner="kmeans", C=[1, 20], epsilon="scale", gamma="grid", cv=4, random_state=0).fit(X, y)
    assert len(model.cv_results_["params"]) == 12
    assert model.best_score_ == model.cv_results_["mean_test_score"].max()
    assert model.model_.params["C"] == model.best_params_["C"]
    assert model.best_params_["epsilon"] == pytest.approx(0.1 * np.std(y))
    assert not hasattr(model.set_params(C=1.0, gamma="scale", cv=None).fit(X, y), "best_params_")
    exact = DisSMOSVR(C=[1, 20], gamma=0.5).fit(X, y)
    assert exact.best_params_["C"] == exact.model_.params["C"] == 20


def test_exact_svr_searches_settings():
    """Scores are those of folds that are left out; the same of a matrix of kernel values; the choice is trained on."""
    X, y, _ = sines(157)
    weights = (np.arange(len(y)) % 3).astype(float)
    given = {"C": [1, 20], "epsilon": "grid", "gamma": [0.1, 1.0], "cv": 4}
    one = SMOSVR(**given).fit(X, y, sample_weight=weights)
    present = np.flatnonzero(weights)
    T, t, w, fold = X[present], y[present], weights[present], np.arange(len(present)) % 4
    for setting, score in zip(one.cv_results_["params"], one.cv_results_["split2_test_score"], strict=True):
        model = SVR(**setting).fit(T[fold != 2], t[fold != 2], w[fold != 2])
        error = np.average((model.predict(T[fold == 2]) - t[fold == 2]) ** 2, weights=w[fold == 2])
        assert score == pytest.approx(1 - error / np.var(t), abs=0.02)
    assert len(one.cv_results_["params"]) == 8
    assert one.best_score_ == one.cv_results_["mean_test_score"].max()
    assert one.model_.params == {name: one.best_params_[name] for name in ("C", "epsilon")}
    assert one.model_.kernel.gamma == one.best_params_["gamma"]
    same = SMOSVR(**one.best_params_, tol="scale").fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(same.predict(X), one.predict(X))

    K = rbf_kernel(X, gamma=one.best_params_["gamma"])
    by_matrix = SMOSVR(**{**given, "gamma": "scale"}, kernel="precomputed").fit(K, y, sample_weight=weights)
    assert by_matrix.best_params_ == {name: one.best_params_[name] for name in ("C", "epsilon")}
    near(by_matrix.predict(K), one.predict(X), 0.01 * np.std(y))
    one.set_params(C="scale", epsilon=0.1, gamma="scale", cv=None).fit(X, y)
    assert not hasattr(one, "best_params_")
    assert one.model_.params["C"] == pytest.approx(np.std(y))


def test_the_exact_one_has_too_few_rows_to_choose():
    with pytest.warns(UserWarning, match="too few rows to compare settings") as caught:
        model = SMOSVR(C="grid").fit(np.eye(3), np.arange(3.0), sample_weight=[0, 1, 0])
    assert [one.filename for one in caught] == [__file__]
    assert not hasattr(model, "best_params_")


def test_a_grid_where_there_is_none():
    X, y, _ = sines(157)
    assert "C = 'grid': it must be a positive number" in refusal(SMONuSVR(C="grid").fit, X, y)
    assert "gamma = 'grid'" in refusal(SMOOneClassSVM(gamma="grid").fit, X)


@pytest.mark.parametrize(
    "words", ["--C 1 --gamma 1", "--C 1,10 --gamma 1", "--C 1 --gamma 0.5,1", "--C 2 --gamma 1 --cv 3"]
)
def test_a_search_changes_nothing_but_what_it_chose(words, tmp_path):
    """A task of one's own may have another dual than the options say."""
    solved = []

    class Median(ValuesTask):
        def columns(self, y, weights, comm):
            columns = super().columns(y, weights, comm)
            self.problem = replace(self.problem, params={**self.problem.params, "epsilon": 0.0})
            return columns

    def trainer(method, train, options, comm, test=None):
        task = Median.prepared(method, train, options, comm)
        fit = in_parts(task, comm)
        solved.append(task.problem.params)
        return fit

    X, y, _ = sines(157)
    np.savetxt(tmp_path / "rows.csv", np.column_stack([X, y]), delimiter=",")
    method = ValueMethod(name="median", summary="conditional median", trainer=trainer)
    main(method, [str(tmp_path / "rows.csv"), *words.split(), "--partitions", "2", "--quiet"])
    assert solved[0]["epsilon"] == 0
    assert str(int(solved[0]["C"])) in words.split()[1].split(",")


def test_defaults_replace_grids_if_nothing_can_be_compared():
    options = ValueOptions(C=3.0, gamma=(0.5, 1.0), epsilon="grid").with_setting(None)
    assert (options.C, options.gamma, options.epsilon) == (3.0, "scale", "scale")
    assert ValueOptions(C=(1.0, 3.0), gamma=0.5, epsilon=0.1).with_setting(None).gamma == 0.5


@pytest.mark.parametrize("estimator", [SMOSVR, CASVR, SMOSVC, CASVC])
def test_fit_warns_where_solutions_of_the_search_stop_at_the_limit_of_pairs(estimator):
    """A polynomial kernel of large values: a good setting scores low, and a worse setting may be chosen."""
    X, y, _ = sines(90)
    made = estimator(C=[1e-6, 1e6], kernel="polynomial", degree=3, gamma=30.0, coef0=1.0, cv=3, max_iter=20_000)
    if "epsilon" in made.get_params():
        made.set_params(epsilon=1e-3)
    else:
        y = y > np.median(y)
    with pytest.warns(ConvergenceWarning, match=r"of 6 solutions of the search stopped at the iteration limit") as told:
        made.fit(X, y)
    stopped = made.cv_results_["stopped"]
    assert stopped.shape == (2,)
    assert any(str(warning.message).startswith(f"{estimator.__name__}: {stopped.sum()} of 6") for warning in told)
    assert all(warning.filename == __file__ for warning in told)


def test_wrappers_apply_in_the_frames_order():
    calls = []

    def wrapper(name, fit, *args):
        calls.append(name)
        return fit(*args)

    def fit(*args):
        return (*calls, *args)

    names = sorted(AROUND)
    assert around(fit, **{name: partial(wrapper, name) for name in names})("method", "rows") == (
        *AROUND, "method", "rows",
    )  # fmt: skip
    with pytest.raises(ValueError, match="later"):
        around(fit, later=partial(wrapper, "later"))
