"""Several parts' models for a row: soft routing, the mean of all, and the oracles; against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.checks import refusal
from helpers.data import as_csr, formats, waves
from helpers.references import ridge
from scipy.spatial.distance import cdist
from sklearn.preprocessing import StandardScaler

from cacore.comm import Communicator
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError
from cacore.io import Dataset
from cakrr import BKRR2, KRRModel, bkrr, bkrr2, bkrr3, kkrr, kkrr2, kkrr3
from cakrr.methods.choose import SOFT_TRIED
from cakrr.options import RidgeOptions
from cakrr.ridge_family import Ridge
from partition import KBalance, KMeans
from partition.parts_model import SOFT, Soft, closest, nearest

# -- which parts, and how far ------------------------------------------------------------------


@formats
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "P", "k"), [(1, 1, 1, 1), (700, 3, 17, 4), (300, 20, 50, 50), (9, 4, 40, 2)])
def test_closest(n, d, P, k, dtype, csr):
    rng = np.random.default_rng(n + P)
    X, centers = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(P, d))
    if csr:
        X[rng.random(X.shape) < 0.5] = 0
    parts, squares = closest(as_csr(X, csr), centers, k)
    exact = cdist(X.astype(np.float64), centers, "sqeuclidean")
    assert (parts.shape, parts.dtype, squares.shape, squares.dtype) == ((n, k), np.int32, (n, k), np.float64)
    np.testing.assert_array_equal(parts, np.argsort(exact, axis=1, kind="stable")[:, :k])
    np.testing.assert_allclose(squares, np.sort(exact, axis=1)[:, :k], rtol=0, atol=1e-12)
    assert (np.diff(squares, axis=1) >= 0).all()
    if dtype == np.float64:
        np.testing.assert_array_equal(parts[:, 0], nearest(as_csr(X, csr), centers))


def test_ties_go_to_the_lower_number():
    parts, squares = closest(np.array([[0.0], [1.0], [2.0]]), np.array([[2.0], [0.0], [2.0], [0.0]]), 4)
    assert parts.tolist() == [[1, 3, 0, 2], [0, 1, 2, 3], [0, 2, 1, 3]]
    assert squares.tolist() == [[0, 0, 4, 4], [1, 1, 1, 1], [0, 0, 4, 4]]


def test_closest_far_from_the_origin():
    """Rows and centres 1e6 away, 1 apart: |x|^2 - 2 x.c alone would keep 3 of 16 digits."""
    rng = np.random.default_rng(0)
    X, centers = 1e6 + rng.random((200, 3)), 1e6 + rng.random((6, 3))
    parts, squares = closest(X, centers, 3)
    exact = cdist(X, centers, "sqeuclidean")
    np.testing.assert_allclose(squares, np.sort(exact, axis=1)[:, :3], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(parts, np.argsort(exact, axis=1)[:, :3])


def test_closest_of_no_rows():
    parts, squares = closest(np.empty((0, 3)), np.ones((4, 3)), 2)
    assert parts.shape == squares.shape == (0, 2)


# -- weights -----------------------------------------------------------------------------------

SQUARES = np.sort(np.random.default_rng(0).uniform(0, 9, (50, 6)), axis=1)


@pytest.mark.parametrize("k", [1, 3, 6, 20])
@pytest.mark.parametrize("t", [1e-300, 0.5, 3.0, 1e300])
def test_weights(k, t):
    weights = Soft(k, t).weights(SQUARES)
    expected = np.exp(-(SQUARES - SQUARES[:, :1]) / t)
    expected[:, k:] = 0
    np.testing.assert_allclose(weights, expected / expected.sum(axis=1, keepdims=True), rtol=1e-14)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-14)


def test_weights_at_the_ends():
    """One model, or none but the nearest; the mean of k; equals share."""
    only = np.eye(6)[[0] * 50]
    np.testing.assert_array_equal(Soft(1, 3.0).weights(SQUARES), only)
    np.testing.assert_array_equal(Soft(6, 1e-200).weights(SQUARES), only)
    np.testing.assert_allclose(Soft(4, 1e200).weights(SQUARES), np.repeat([[0.25] * 4 + [0.0] * 2], 50, axis=0))
    np.testing.assert_array_equal(Soft(3, 0.1).weights(np.array([[2.0, 2.0, 2e3]])), [[0.5, 0.5, 0.0]])


@pytest.mark.parametrize("t", [0.0, 1e-320])
def test_weights_without_a_width(t):
    np.testing.assert_array_equal(Soft(3, t).weights(np.array([[1.0, 1.0, 30.0]])), [[0.5, 0.5, 0.0]])


# -- whole runs --------------------------------------------------------------------------------


def train(method, X, y, options, weights=None):
    return method(Dataset(X.copy(), y, weights=weights), options)


def judged(model, X, y):
    """The metrics of a command's report."""
    test, comm = Dataset(X, y, len(y)), Communicator()
    return Ridge().tested(model, test, comm).metrics(test, comm)


def opinions(model, X, T, y, labels, sigma=1.3, lam=1e-4):
    """Predictions of each part's model for the rows T, by scikit-learn: shape (q, P)."""
    scaler, said = StandardScaler().fit(X), []
    Z, S = scaler.transform(X), scaler.transform(T)
    for p in range(len(model.sizes)):
        own = labels == p
        said.append(ridge(sigma, lam * own.sum()).fit(Z[own], y[own] - y.mean()).predict(S) + y.mean())
    return np.array(said).T, cdist(S, model.centers, "sqeuclidean")


def shared(said, squares, soft):
    """Weighted by hand, row by row."""
    out = np.empty(len(said))
    for i, (values, distances) in enumerate(zip(said, squares, strict=True)):
        near = np.argsort(distances)[: soft.k]
        weights = np.exp(-(distances[near] - distances[near[0]]) / soft.t)
        out[i] = weights @ values[near] / weights.sum()
    return out


ONE = RidgeOptions(partitions=10, sigma=(1.3,), lam=(1e-4,), route="soft")


@pytest.mark.parametrize("name", ["bkrr2", "kkrr2"])
def test_prediction_is_the_weighted_mean(name):
    (X, y), (T, _) = waves(), waves(50, 1)
    method, partitioner = {"bkrr2": (bkrr2.METHOD, KBalance), "kkrr2": (kkrr2.METHOD, KMeans)}[name]
    result = train(method, X, y, ONE)
    model = result.model
    labels = partitioner(10, random_state=0).fit(StandardScaler().fit_transform(X)).labels_
    said, squares = opinions(model, X, T, y, labels)
    for soft in (model.soft, Soft(3, 0.8), Soft(10, 5.0), Soft(40, 1.0), Soft(1, 1.0)):
        changed = replace(model, soft=soft)
        np.testing.assert_allclose(changed.predict(T), shared(said, squares, soft), rtol=1e-8)
    answers = model.predict_routes(T)
    assert set(answers) == {"soft", "nearest"}
    np.testing.assert_array_equal(answers["soft"], model.predict(T))
    np.testing.assert_allclose(answers["nearest"], said[np.arange(50), squares.argmin(axis=1)], rtol=1e-8)
    assert result.params == {"soft_k": model.soft.k, "soft_t": model.soft.t}
    both = judged(model, T, y[:50])
    assert both["mse"] == pytest.approx(np.mean((answers["soft"] - y[:50]) ** 2))
    assert both["nearest_mse"] == pytest.approx(np.mean((answers["nearest"] - y[:50]) ** 2))


def held_of(labels, seed, fraction, P):
    place, held = Shuffle(len(labels), seed).position(np.arange(len(labels))), np.zeros(len(labels), bool)
    for p in range(P):
        own = np.flatnonzero(labels == p)
        held[own[np.argsort(place[own])][: max(1, round(fraction * len(own)))]] = True
    return held


@pytest.mark.parametrize("P", [2, 10])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("seed", [0, 1])
def test_choice_of_the_route(P, weighted, seed):
    """Sigma and lambda under one soft route, then k and t: the least error on the rows held out, by brute force."""
    X, y = waves(seed=seed)
    w = np.random.default_rng(2).uniform(0.2, 4, 160) if weighted else np.ones(160)
    grid = RidgeOptions(
        partitions=P, sigma=(0.7, 2.0), lam=(1e-5, 1e-2), route="soft", seed=seed, standardize=False,
        validation_fraction=0.25,
    )  # fmt: skip
    X = StandardScaler().fit_transform(X)
    result = train(bkrr2.METHOD, X, y, grid, w if weighted else None)
    labels = KBalance(P, random_state=seed).fit(X).labels_
    held, mean = held_of(labels, seed, 0.25, P), np.average(y, weights=w)
    squares = cdist(X[held], result.model.centers, "sqeuclidean")
    unit = np.mean(np.diff(np.sort(squares, axis=1)[:, :2], axis=1))

    def said(sigma, lam):
        columns = []
        for p in range(P):
            own = (labels == p) & ~held
            model = ridge(sigma, lam * w[own].sum()).fit(X[own], y[own] - mean, sample_weight=w[own])
            columns.append(model.predict(X[held]))
        return np.array(columns).T

    def error(values, soft):
        return np.average((shared(values, squares, Soft(soft.k, soft.t * unit)) + mean - y[held]) ** 2, weights=w[held])

    errors = {(s, lam): error(said(s, lam), SOFT) for s in grid.sigma for lam in grid.lam}
    got = [row["validation_mse"] for row in result.grid]
    np.testing.assert_allclose(got, list(errors.values()), rtol=1e-6)
    pair = min(errors, key=errors.get)
    assert (result.model.sigma, result.model.lam) == pair
    tried = [Soft(min(soft.k, P), soft.t) for soft in SOFT_TRIED]
    best = min(tried, key=lambda soft: error(said(*pair), soft))
    assert result.model.soft.k == best.k
    assert result.model.soft.t == pytest.approx(best.t * unit, rel=1e-9)


def test_soft_routing_beats_the_nearest_part():
    """With noisy rows in many parts, several models predict better than the nearest one."""
    (X, y), (T, t) = waves(400), waves(400, 1)
    y += 0.3 * np.random.default_rng(9).normal(size=400)
    grid = {"n_parts": 20, "sigma": 1.0, "lam": 1e-4, "random_state": 0}
    soft, hard = BKRR2(**grid, route="soft").fit(X, y), BKRR2(**grid).fit(X, y)
    assert soft.params_["soft_k"] > 1
    assert np.mean((soft.predict(T) - t) ** 2) < 0.8 * np.mean((hard.predict(T) - t) ** 2)


def test_predictions_do_not_depend_on_batch_size():
    (X, y), (T, _) = waves(), waves(50, 1)
    model = train(bkrr2.METHOD, X, y, ONE).model
    alone = np.concatenate([model.predict(T[i : i + 1]) for i in range(50)])
    np.testing.assert_allclose(model.predict(T), alone, rtol=1e-12)
    assert model.predict(T[:0]).shape == (0,)


@formats
def test_model_file(csr, tmp_path):
    (X, y), (T, _) = waves(), waves(50, 1)
    X, T = as_csr(X, csr, 1), as_csr(T, csr, 1)
    model = train(bkrr2.METHOD, X, y, ONE).model
    model.save(tmp_path / "m.h5")
    back = KRRModel.load(tmp_path / "m.h5")
    assert (back.route, back.soft, back.method) == ("soft", model.soft, "bkrr2")
    for route, expected in model.predict_routes(T).items():
        np.testing.assert_array_equal(back.predict_routes(T)[route], expected)


@pytest.mark.parametrize("sigma", [(1.3,), (1.3, 2.6)])
def test_one_part(sigma, tmp_path):
    (X, y), (T, _) = waves(), waves(50, 1)
    model = train(bkrr2.METHOD, X, y, replace(ONE, partitions=1, sigma=sigma)).model
    expected = train(bkrr2.METHOD, X, y, replace(ONE, partitions=1, sigma=sigma, route=None)).model.predict(T)
    np.testing.assert_allclose(model.predict(T), expected, rtol=1e-12)
    model.save(tmp_path / "m.h5")
    np.testing.assert_allclose(KRRModel.load(tmp_path / "m.h5").predict(T), expected, rtol=1e-12)


def test_parts_of_one_row_have_no_route_to_choose():
    with pytest.raises(InputError, match="no rows to validate"):
        train(bkrr2.METHOD, *waves(), replace(ONE, partitions=160))


def test_soft_width_is_scale_invariant(tuned):
    """t goes with the squared distances between rows and centres: scaled rows choose alike."""
    X, y = waves()
    X = StandardScaler().fit_transform(X)
    options = replace(ONE, standardize=False)
    once = train(bkrr2.METHOD, X, y, options).model
    large = train(bkrr2.METHOD, 8 * X, y, replace(options, sigma=(8 * 1.3,))).model
    assert large.soft.k == once.soft.k
    assert large.soft.t == pytest.approx(64 * once.soft.t)
    tuned(soft_tried=(Soft(2, 0.5),))
    assert train(bkrr2.METHOD, X, y, options).model.soft.k == 2


# -- the mean of all, and the oracles ----------------------------------------------------------

OTHERS = {
    "kkrr": (kkrr.METHOD, KMeans), "bkrr": (bkrr.METHOD, KBalance), "kkrr3": (kkrr3.METHOD, KMeans),
    "bkrr3": (bkrr3.METHOD, KBalance),
}  # fmt: skip
FIXED = RidgeOptions(partitions=5, sigma=(1.3,), lam=(1e-4,))


def everything(name):
    """The model, what each part says of test rows, and the answers."""
    (X, y), (T, t) = waves(), waves(50, 1)
    method, partitioner = OTHERS[name]
    model = train(method, X, y, FIXED).model
    labels = partitioner(5, random_state=0).fit(StandardScaler().fit_transform(X)).labels_
    return model, T, t, opinions(model, X, T, y, labels)[0]


@pytest.mark.parametrize("name", ["kkrr", "bkrr"])
def test_mean_of_all_models(name):
    model, T, _, said = everything(name)
    np.testing.assert_allclose(model.predict(T), said.mean(axis=1), rtol=1e-8)
    assert set(model.predict_routes(T)) == {"all"}


@pytest.mark.parametrize("name", ["kkrr3", "bkrr3"])
def test_oracle(name, tmp_path):
    """The error of the best model for each row; it neither predicts nor saves."""
    model, T, t, said = everything(name)
    least = np.abs(said - t[:, None]).min(axis=1)
    np.testing.assert_allclose(model.oracle(T, t), least, rtol=1e-5, atol=1e-8)
    with pytest.raises(InputError, match="is an oracle"):
        model.predict(T)
    with pytest.raises(InputError, match="its model cannot be saved"):
        model.save(tmp_path / "m.h5")
    assert list(tmp_path.iterdir()) == []
    metrics = judged(model, T, t)
    assert metrics["mse"] == pytest.approx(np.mean(least**2), rel=1e-5)


@pytest.mark.parametrize("name", ["kkrr", "kkrr3"])
def test_grid_of_other_rules(name):
    """The mean of all models judges the pairs of the one, the best model those of the other."""
    X, y = waves()
    X = StandardScaler().fit_transform(X)
    method, partitioner = OTHERS[name]
    grid = replace(FIXED, sigma=(0.5, 1.3), lam=(1e-5, 1e-2), validation_fraction=0.2, standardize=False)
    result = train(method, X, y, grid)
    labels = partitioner(5, random_state=0).fit(X).labels_
    held, expected = held_of(labels, 0, 0.2, 5), []
    for sigma in grid.sigma:
        for lam in grid.lam:
            said = []
            for p in range(5):
                own = (labels == p) & ~held
                model = ridge(sigma, lam * own.sum()).fit(X[own], y[own] - y.mean())
                said.append(model.predict(X[held]) + y.mean() - y[held])
            gap = np.mean(said, axis=0) if name == "kkrr" else np.abs(said).min(axis=0)
            expected.append(np.mean(gap**2))
    np.testing.assert_allclose([row["validation_mse"] for row in result.grid], expected, rtol=1e-6)
    chosen = [(row["sigma"], row["lambda"]) for row in result.grid][int(np.argmin(expected))]
    assert (result.model.sigma, result.model.lam) == chosen


@pytest.mark.parametrize("route", ["nearest", "soft", "all"])
def test_oracle_route_is_refused_elsewhere(route):
    with pytest.raises(InputError, match=f"route {route}: bkrr3 has only its own route"):
        train(bkrr3.METHOD, *waves(), replace(FIXED, route=route))


def test_a_route_that_is_none():
    """The routes that are offered instead can be asked for."""
    refusal(lambda: BKRR2(route="x").fit(np.ones((9, 2)), np.ones(9)), match="it must be one of nearest, soft, all")
