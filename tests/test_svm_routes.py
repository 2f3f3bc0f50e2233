"""The routes of CASVC: which parts answer for a row, what each says of the classes that it holds, and its weight."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from helpers.checks import equal_fields
from helpers.data import as_csr, clouds, flat_clouds, formats, separate_clouds
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

from cacore.comm import Communicator
from cacore.svm.decision import counted, shares, votes
from casvm import CASVC, SMOSVC, SVMModel
from partition.parts_model import double_variance

TOL = 1e-6


# -- what a part says ------------------------------------------------------------------------------


def shares_of(decisions, k):
    """Shares of one row: each class's worst decision, clipped to [-1, 1] and shifted to [0, 2], divided by the sum."""
    duels = dict(zip(combinations(range(k), 2), decisions, strict=True))
    worst = [min([duels[i, j] if i < j else -duels[j, i] for j in range(k) if j != i], default=1) for i in range(k)]
    weights = [1 + min(1, max(-1, one)) for one in worst]
    return np.array(weights) / sum(weights) if sum(weights) > 0 else np.full(k, 1 / k)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("scale", [1e-3, 0.5, 20.0])
def test_shares(k, scale):
    decisions = np.random.default_rng(k).normal(scale=scale, size=(300, k * (k - 1) // 2))
    got = shares(decisions, k)
    np.testing.assert_allclose(got, [shares_of(row, k) for row in decisions], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-14)
    if k == 2:
        np.testing.assert_allclose(got[:, 0], (1 + decisions[:, 0].clip(-1, 1)) / 2, atol=1e-15)
    scores = counted(decisions, k)
    clear = np.rint(scores).max(axis=1) == k - 1  # a class that wins all of its duels is LIBSVM's choice
    assert clear.any()
    np.testing.assert_array_equal(got.argmax(axis=1)[clear], np.rint(scores).argmax(axis=1)[clear])


def test_shares_at_the_ends():
    """Clear of all others; nothing known; a circle in which each is clearly beaten."""
    rows = np.array([[2.0, 1.0, 0.3], [0.0, 0.0, 0.0], [5.0, -5.0, 5.0]])
    np.testing.assert_allclose(shares(rows, 3), [[1, 0, 0], [1 / 3] * 3, [1 / 3] * 3], atol=1e-15)
    assert shares(np.zeros((2, 0)), 1).tolist() == [[1.0], [1.0]]
    assert shares(np.zeros((0, 3)), 3).shape == (0, 3)


# -- whose words count, and how much -------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 3])
def routed(request):
    """Parts with centres well apart, fitted once for each route."""
    X, y = flat_clouds(160, request.param)
    given = {"partitioner": "kmeans", "tol": TOL, "random_state": 0}
    return X, {route: CASVC(5, route=route, **given).fit(X, y) for route in ("nearest", "soft", "all")}


def every_part(model, X):
    """Outputs of each part for each row, shape (P, n, columns): decisions of two classes, else shares or votes."""
    k, kernel, parts = len(model.classes_), model.model_.kernel, model.model_.parts.values()
    if k == 2 or model.route == "nearest":
        return np.array([part.scores(X, kernel, k) for part in parts])
    said = np.zeros((len(parts), len(X), k))
    for part, its in zip(parts, said, strict=True):
        pairs = part.pairs(X, kernel) if len(part.classes) > 1 else np.zeros((len(X), 0))
        its[:, part.classes] = [shares_of(row, len(part.classes)) for row in pairs]
    return said


def nearness(X, centers, t, k):
    """Weights of the k nearest centres, exp(-(d^2 - d_min^2) / t), shape (n, P)."""
    squares = cdist(X, centers, "sqeuclidean")
    ordered = np.sort(squares, axis=1)
    w = np.where(squares <= ordered[:, k - 1 : k], np.exp(-(squares - ordered[:, :1]) / t), 0.0)
    return w / w.sum(axis=1, keepdims=True)


def variance_over_mean(X, centers):
    """Variance over mean of the squared distances to the nearest centre."""
    squares = cdist(X, centers, "sqeuclidean").min(axis=1)
    return squares.var() / squares.mean()


def column(scores):
    return scores[:, 0] if scores.shape[1] == 1 else scores


def answers_with(model, X, mean, tol):
    """The model's decisions are these means of what the parts say, and its labels follow from them."""
    np.testing.assert_allclose(model.decision_function(X), column(mean), rtol=tol, atol=tol)
    codes = (mean[:, 0] > 0).astype(int) if mean.shape[1] == 1 else mean.argmax(axis=1)
    np.testing.assert_array_equal(model.predict(X), model.classes_[codes])


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
    if mean.shape[1] > 1:  # weighted, all five of them
        t = variance_over_mean(X, model.centers_)
        assert model.model_.soft.t == pytest.approx(t, rel=1e-9)
        mean = np.einsum("np,pnc->nc", nearness(X, model.centers_, t, 5), said)
    answers_with(model, X, mean, 1e-9)


def test_soft_route(routed):
    """The four nearest, weighted by exp(-(d^2 - d_min^2) / t); t is 0.35 of the mean of d_2^2 - d_1^2 of the rows."""
    X, models = routed
    model, said = models["soft"], every_part(models["soft"], X)
    ordered = np.sort(cdist(X, model.centers_, "sqeuclidean"), axis=1)
    t = 0.35 * (ordered[:, 1] - ordered[:, 0]).mean()
    assert model.model_.soft.t == pytest.approx(t, rel=1e-10)
    mean = np.einsum("np,pnc->nc", nearness(X, model.centers_, t, 4), said)
    answers_with(model, X, mean, 1e-10)


def test_routes_share_their_parts(routed):
    _, models = routed
    for number, part in models["nearest"].model_.parts.items():
        for route in ("soft", "all"):
            equal_fields(models[route].model_.parts[number], part, "rows", "coef", "b")


def test_fewer_parts_than_soft_asks():
    X, y = flat_clouds()
    model = CASVC(2, partitioner="kmeans", route="soft", random_state=0).fit(X, y)
    assert model.model_.soft.k == 2
    one = CASVC(1, route="soft", random_state=0).fit(X, y)  # one part: nothing to weigh
    np.testing.assert_array_equal(one.decision_function(X), SMOSVC().fit(X, y).decision_function(X))


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("route", ["nearest", "soft", "all"])
def test_part_of_one_class(route, k):
    """Clouds far apart: with one part a cloud, each holds one class and says so, without support vectors."""
    X, y = separate_clouds(90, k)
    names = np.array(["a", "b", "c"])[y]
    model = CASVC(k, partitioner="kmeans", route=route, random_state=0).fit(X, names)
    assert [len(part.classes) for part in model.model_.parts.values()] == [1] * k
    assert (model.support_.size, model.solver_["n_support"].tolist()) == (0, [0] * k)
    assert model.dual_coef_.shape == (k - 1, 0)
    assert model.support_vectors_.shape == (0, 2)
    if route != "all" or k > 2:  # the mean of two parts that know one class each says nothing
        np.testing.assert_array_equal(model.predict(X), names)
    decisions = model.decision_function(X)
    assert np.isfinite(decisions).all()
    if k == 2 and route == "nearest":
        np.testing.assert_array_equal(decisions, np.where(y == 1, 1.0, -1.0))


# -- parts that hold different classes ---------------------------------------------------------------


@pytest.mark.parametrize("solver", ["smo", "asygcd"])
@pytest.mark.parametrize("partitioner", ["kmeans", "bkm", "fcfs", "random"])
def test_routes_of_ten_classes(partitioner, solver):
    """A part with ten classes does not outshout one with two: `soft` and `all` lose nothing that `nearest` knew."""
    X, y = load_digits(return_X_y=True)
    train, test = np.arange(len(y)) % 3 > 0, np.arange(len(y)) % 3 == 0
    score = {}
    for route in ("nearest", "soft", "all"):
        model = CASVC(8, partitioner=partitioner, solver=solver, route=route, random_state=0).fit(X[train], y[train])
        score[route] = np.array([model.score(X[rows], y[rows]) for rows in (train, test)])
    for route in ("soft", "all"):
        assert (score[route] >= score["nearest"]).all(), score


def three_parts(route):
    """Clouds on a line: of classes 0 and 1 about -100; 0, 1 and 2 about 0; and only 2 about 100."""
    places = np.array([[-110, 0], [-90, 1], [-20, 0], [0, 1], [20, 2], [100, 2]])
    x, y = places.repeat(30, axis=0).T
    X = x[:, None] + np.random.default_rng(0).normal(size=(180, 1))
    return X, y, CASVC(3, partitioner="kmeans", route=route, C=10, gamma=0.01, random_state=0).fit(X, y)


@pytest.mark.parametrize("route", ["soft", "all"])
def test_parts_without_a_class(route):
    """They add nothing to it, and a part far away is not heard, however sure of its own classes it is."""
    X, y, model = three_parts(route)
    assert sorted(tuple(part.classes) for part in model.model_.parts.values()) == [(0, 1), (0, 1, 2), (2,)]
    np.testing.assert_array_equal(model.predict(X), y)
    got = model.decision_function(X)
    np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-12)
    assert got[X[:, 0] < -80][:, 2].max() < 0.05
    assert got[X[:, 0] > 80][:, :2].max() < 0.05
    assert (every_part(model, X).mean(axis=0).argmax(axis=1) != y).any()  # without weights


@formats
def test_double_variance(csr):
    X, _ = clouds(200, k=3, csr=csr)
    dense = X.toarray() if csr else X
    centers = dense[:5].copy()
    assert double_variance(X, centers, Communicator()) == pytest.approx(variance_over_mean(dense, centers), rel=1e-9)
    assert double_variance(X[:0], centers, Communicator()) == 0  # a rank without rows
    assert double_variance(as_csr(centers, csr), centers, Communicator()) < 1e-14  # each row is a centre


@pytest.mark.parametrize("route", ["soft", "all"])
def test_one_part_is_no_mixture(route, digits):
    """Votes of its pairs, as on the nearest route."""
    X, y = digits
    one, nearest = (CASVC(1, route=other, random_state=0).fit(X, y) for other in (route, "nearest"))
    np.testing.assert_array_equal(one.decision_function(X), nearest.decision_function(X))


def test_models_without_weights(tmp_path):
    """Files of before: the route "all" has no weights there, and all parts say as much."""
    X, y = flat_clouds(160, 3)
    model = CASVC(5, partitioner="kmeans", route="all", random_state=0).fit(X, y)
    model.model_.save(tmp_path / "new.h5")
    model.model_.soft = None
    model.model_.save(tmp_path / "old.h5")
    new, old = (SVMModel.load(tmp_path / f"{name}.h5") for name in ("new", "old"))
    mean = every_part(model, X).mean(axis=0)
    assert (new.soft.k, old.soft) == (5, None)
    np.testing.assert_allclose(old.decision_function(X), mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(old.predict(X), mean.argmax(axis=1))
    assert (old.predict(X) == y).mean() < (new.predict(X) == y).mean()


def test_two_classes_have_plain_means():
    """Their decisions are on one scale, and the route "all" is the mean of all, whatever the distance."""
    X, y = flat_clouds()
    assert CASVC(5, partitioner="kmeans", route="all", random_state=0).fit(X, y).model_.soft is None
