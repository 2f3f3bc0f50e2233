"""Shapley values against all coalitions, and their sums against the models' answers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers.data import as_csr

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.explain import shapley
from cacore.explain.explanation import Explanation
from cacore.explain.shapley import Game, values
from cacore.kernels import Kernel
from cacore.probability.calibrator import Calibrator
from cacore.probability.left_out import pairs_of
from cacore.svm.decision import Expansion
from cakernels import (
    BKRR2,
    CASVC,
    CASVR,
    DKRR,
    SMOSVC,
    SMOSVR,
    AsyGCDSVC,
    BKRR2Classifier,
    SMOOneClassSVM,
    TwoLevelKRR,
)
from cakernels.explain.command import _columns, _levels, drawn
from cakernels.families import Blend, ClassBlend
from partition.parts_model import nearest

RNG = np.random.default_rng(0)
X = RNG.normal(size=(160, 4))
Z = RNG.normal(size=(7, 4))
y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
two, five = y > 0, np.digitize(y, [-1.0, -0.3, 0.3, 1.0])


def by_coalitions(f, Z, game):
    """Shapley's formula: the mean gain over all orders in which players enter."""
    g = game.players
    out = np.zeros((len(Z), g, len(f.b)))
    for r, b in itertools.product(range(len(Z)), game.baselines):
        worth = {}
        for coalition in itertools.product((False, True), repeat=g):
            row = np.where(np.array(coalition)[game.player], Z[r], b)
            worth[coalition] = f.at(row[None])[0]
        for coalition, j in itertools.product(worth, range(g)):
            if not coalition[j]:
                size, larger = sum(coalition), (*coalition[:j], True, *coalition[j + 1 :])
                share = math.factorial(size) * math.factorial(g - size - 1) / math.factorial(g)
                out[r, j] += share * (worth[larger] - worth[coalition]) / len(game.baselines)
    return out


@pytest.mark.parametrize(
    ("kind", "d"),
    [
        ("gaussian", 12),
        ("l1", 5),
        ("gaussian", 1),
        ("wendland0_product", 5),
        ("wendland2_product", 6),
        ("wendland4_product", 4),
    ],
)
def test_as_all_coalitions(kind, d):
    """Also for features that enter together."""
    rng = np.random.default_rng(1)
    f = Expansion(rng.normal(size=(30, d)), rng.normal(size=(30, 2)), np.ones(2), Kernel(kind, gamma=0.3))
    player = np.arange(d) if d != 5 else np.array([0, 1, 0, 2, 3])
    game = Game(rng.normal(size=(1 if d == 12 else 3, d)), player)
    rows = rng.normal(size=(2, d))
    np.testing.assert_allclose(values(f, rows, game), by_coalitions(f, rows, game), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "groups"), [("gaussian", None), ("wendland2_product", None), ("l1", [[0, 3]])])
def test_interactions_as_all_coalitions(kind, groups):
    """Half the mean of the mixed second difference over all coalitions of the others, by their sizes."""
    g = 5 if groups is None else 4
    model = DKRR(sigma=3.0, lam=1e-3, kernel=kind, standardize=False).fit(RNG.normal(size=(60, 5)), RNG.normal(size=60))
    rows, background = RNG.normal(size=(2, 5)), RNG.normal(size=(3, 5))
    found = model.explain(rows, background, groups, interactions=True)
    assert found.interactions.shape == (2, g, g)
    np.testing.assert_allclose(found.interactions.sum(axis=2), found.values, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(found.interactions, found.interactions.transpose(0, 2, 1))
    without = model.explain(rows, background, groups)
    assert without.interactions is None
    np.testing.assert_array_equal(without.values, found.values)

    def worth(row, players):
        present = np.isin(np.arange(5), [k for player in players for k in found.members[player]])
        return model.predict(np.where(present, row, background)).mean()

    for r, (j, k) in itertools.product(range(2), itertools.combinations(range(g), 2)):
        index, others = 0.0, [player for player in range(g) if player not in (j, k)]
        for size in range(g - 1):
            share = math.factorial(size) * math.factorial(g - size - 2) / math.factorial(g - 1)
            for rest in itertools.combinations(others, size):
                gains = [worth(rows[r], (*rest, *more)) for more in ((j, k), (j,), (k,), ())]
                index += share * (gains[0] - gains[1] - gains[2] + gains[3])
        np.testing.assert_allclose(found.interactions[r, j, k], index / 2, rtol=0, atol=1e-12)


def test_absent_features():
    """A factor of 1 for what is absent: a coalition's worth is the expansion over its features alone."""
    f = Expansion(X[:30], RNG.normal(size=(30, 1)), np.zeros(1), Kernel("gaussian", gamma=0.3))
    found = values(f, Z, Game(None, np.arange(4)))

    def worth(features):
        chosen = list(features)
        return Expansion(X[:30, chosen], f.weights, f.b, f.kernel).at(Z[:, chosen]) if chosen else f.weights.sum(0)

    alone = np.zeros(found.shape)
    for j, size in itertools.product(range(4), range(4)):
        for rest in itertools.combinations([k for k in range(4) if k != j], size):
            share = math.factorial(size) * math.factorial(3 - size) / math.factorial(4)
            alone[:, j] += share * (worth(sorted((*rest, j))) - worth(rest))
    np.testing.assert_allclose(found, alone, rtol=0, atol=1e-12)


def test_many_features():
    """Fewer nodes than the exact rule, whose values are the same to rounding; factors that are 0 divide nothing."""
    rng = np.random.default_rng(2)
    f = Expansion(rng.normal(size=(60, 150)), rng.normal(size=(60, 1)), np.zeros(1), Kernel("gaussian", gamma=0.01))
    rows, game = rng.normal(size=(3, 150)), Game(rng.normal(size=(2, 150)), np.arange(150))
    rows[0, 0] = 1e6
    found = values(f, rows, game)
    np.testing.assert_allclose(found.sum(1), f.at(rows) - game.base(f), rtol=0, atol=1e-13)
    assert np.abs(found[0, 0]).max() > 0


MODELS = {
    "SVC": (SMOSVC(C=3, gamma=0.3), two),
    "SVC, five classes": (SMOSVC(C=3, gamma=0.3), five),
    "SVR": (SMOSVR(C=3, gamma=0.3), y),
    "one class": (SMOOneClassSVM(gamma=0.3), None),
    "parts, nearest": (CASVC(n_parts=3, C=3, gamma=0.3), two),
    "parts, five classes": (CASVC(n_parts=3, C=3, gamma=0.3, route="nearest"), five),
    "parts, soft": (CASVC(n_parts=3, C=3, gamma=0.3, route="soft"), two),
    "parts, all": (CASVR(n_parts=3, C=3, gamma=0.3, partitioner="random", route="all"), y),
    "ridge": (DKRR(sigma=2.0, lam=1e-3), np.column_stack([y, y**2])),
    "ridge, soft": (BKRR2(3, sigma=2.0, lam=1e-3, route="soft", kernel="l1", n_divisions=2), y),
    "ridge, classes": (BKRR2Classifier(3, sigma=2.0, lam=1e-3), five),
    "ridge, lengths": (BKRR2(2, sigma=2.0, lam=1e-3, metric="lengths", metric_rounds=1), y),
    "ridge, wendland": (
        BKRR2(2, sigma=5.0, lam=1e-3, kernel="wendland2_product", metric="diagonal", metric_rounds=1),
        y,
    ),
    "SVC, wendland": (SMOSVC(C=3, gamma=0.2, kernel="wendland4_product"), two),
    "two levels": (TwoLevelKRR(3, sigma=2.0, lam=1e-3, centers=20), y),
    "Asy-GCD": (AsyGCDSVC(C=3, gamma=0.3), five),
}


def answers(estimator, rows):
    """The explained outputs, which add up over support vectors."""
    model = estimator.model_
    if isinstance(estimator, AsyGCDSVC):
        return model.decisions(rows)
    if getattr(model, "classes", None) is None or model.family == "krr":
        return model.predict(rows) if model.family == "krr" else model.decision_function(rows)
    if len(model.classes) == 2:
        return estimator.decision_function(rows)
    if model.route == "sum":
        return model.pair_decisions(rows)
    seen = model.standardized(rows, Communicator())
    found = np.zeros((rows.shape[0], 10))
    for i, part in enumerate(nearest(seen, model.centers)):
        one = model.parts[part]
        found[i, pairs_of(one.classes, 5)] = one.pairs(seen[i : i + 1], model.kernel)[0]
    return found


@pytest.mark.parametrize(
    ("name", "csr"), [(name, csr) for name in MODELS for csr in (False, True) if not (csr and "lengths" in name)]
)  # which are for dense rows
def test_sums(name, csr):
    """The values of a row, and its base, add up to the model's answer."""
    estimator, target = MODELS[name]
    rows, new = as_csr(X, csr), as_csr(Z, csr)
    model = estimator.fit(rows) if target is None else estimator.fit(rows, target)
    found = model.explain(new, rows[:5], interactions=True)
    np.testing.assert_allclose(found.interactions.sum(axis=2), found.values, rtol=0, atol=1e-12)
    total = found.values.sum(axis=1) + found.base
    np.testing.assert_allclose(total, answers(model, new), rtol=0, atol=1e-12 * max(1, np.abs(total).max()))
    assert found.values.shape == (7, 4, *total.shape[1:])
    assert (total.ndim == 1 and len(found.outputs) == 1) or len(found.outputs) == total.shape[1]
    np.testing.assert_array_equal(found.data, Z)


def test_blend():
    first, second = DKRR(sigma=2.0, lam=1e-3).fit(X, y), SMOSVR(C=3, gamma=0.3).fit(X, y)
    blend = Blend(members=[first.model_, second.model_], weights=np.array([0.25, 0.75]))
    found = blend.explain(Z, X[:5], interactions=True)
    np.testing.assert_allclose(found.interactions.sum(axis=2), found.values, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.values.sum(axis=1) + found.base, blend.predict(Z), rtol=0, atol=1e-12)


def test_names_groups_and_backgrounds():
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    model = SMOSVC(C=3, gamma=0.3).fit(frame, np.where(two, "yes", "no"))
    found = model.explain(frame[:7], groups=[["d", "b"]])
    assert (found.players, found.members, found.outputs) == (("a", "b+d", "c"), ((0,), (1, 3), (2,)), ("yes",))
    np.testing.assert_array_equal(found.values, model.explain(frame[:7], groups=[[3, 1]]).values)
    np.testing.assert_allclose(found.importances(), np.abs(found.values).mean(axis=0))
    np.testing.assert_array_equal(found.base, model.explain(frame[:7], frame[:7], [["d", "b"]]).base)
    absent = model.explain(frame[:7], "absent")
    np.testing.assert_allclose(
        absent.values.sum(axis=1) + absent.base, model.decision_function(frame[:7]), rtol=0, atol=1e-12
    )


WRONG = [
    ({"kernel": "laplacian"}, {}, "kernel is laplacian: use sklearn.inspection.permutation_importance"),
    ({"kernel": lambda A, B: A @ B.T, "sigma": None}, {}, "need a kernel that is a product over the features"),
    ({}, {"background": "mean"}, "background = 'mean': give rows, or 'absent'"),
    ({}, {"background": X[:, :3]}, "background: 3 features in its rows, 4 in the model"),
    ({}, {"background": np.full((2, 4), np.nan)}, "background: X, column 0: row 0 is NaN"),
    ({}, {"background": X[:0]}, "background: there are no rows"),
    ({}, {"groups": [["e"]]}, "groups: there is no feature 'e'; there are x0, x1, x2, x3"),
    ({}, {"groups": [[4]]}, "there is no feature 4; they are numbered from 0 to 3"),
    ({}, {"groups": [[0, 1], [1]]}, "feature x1 is in groups 0 and 1; give it one"),
    ({}, {"groups": [[]]}, "group 0 has no features"),
    ({}, {"groups": [[0.5]]}, "0.5 is neither the number nor the name of a feature"),
    ({}, {"groups": [0, 1]}, "groups = [0, 1]: give a list of lists of features"),
    ({}, {"groups": "x0"}, "groups = 'x0': give a list of lists of features"),
    ({}, {"groups": [["x0", "x0"]]}, "feature x0 is in a group twice"),
]


@pytest.mark.parametrize(("parameters", "asked", "message"), WRONG, ids=[one[2][:40] for one in WRONG])
def test_refused(parameters, asked, message):
    model = BKRR2(2, **{"sigma": 2.0, "lam": 1e-3, **parameters}).fit(X, y)
    with pytest.raises(InputError) as caught:
        model.explain(Z, **asked)
    assert message in str(caught.value)


def test_a_full_metric_is_refused():
    model = BKRR2(2, sigma=2.0, lam=1e-3).fit(X, y).model_
    model.standardizer = replace(model.standardizer, root=np.eye(4))
    with pytest.raises(InputError, match="this one is full: train with metric diagonal or lengths, or use sklearn"):
        model.explain(Z)


def test_as_an_explanation_of_shap():
    shap = pytest.importorskip("shap")
    model = SMOSVC(C=3.0, gamma=0.3).fit(X, np.digitize(y, [-0.5, 0.5]))
    found = model.explain(Z, background=X[:9])
    same = found.to_shap()
    assert isinstance(same, shap.Explanation)
    np.testing.assert_array_equal(same.values, found.values)
    np.testing.assert_array_equal(same.base_values, found.base_values)
    assert (same.feature_names, same.output_names) == (list(found.players), list(found.outputs))
    machine = SMOSVR(C=3.0, gamma=0.3).fit(X, y)
    sampler = shap.KernelExplainer(machine.predict, X[:9])  # with every coalition
    sampled = sampler.shap_values(Z[:2], nsamples=200, silent=True, l1_reg=False)
    np.testing.assert_allclose(sampled, machine.explain(Z[:2], background=X[:9]).values, atol=1e-9)


def test_numbers_without_spread():
    """Pictures of equal numbers: one colour, and no histogram; columns of one name are refused, not lost."""
    same = Explanation(np.ones((5, 2)), np.zeros(5), np.zeros((5, 2)), ("base", "b"), ((0,), (1,)), ("y",))
    drawn(same, np.ones((2, 1)))
    drawn(replace(same, values=np.ones((1, 2)), base=np.zeros(1), data=np.zeros((1, 2))), np.ones((2, 1)))
    np.testing.assert_array_equal(_levels(same, np.array([0, 1])), 0.5)
    with pytest.raises(InputError, match="two columns would be called base"):
        _columns(same)
    paired = _columns(replace(same, players=("a", "b"), interactions=np.full((5, 2, 2), 0.25)))
    assert {name: values[0] for name, values in paired.items()} == {"a": 1.0, "b": 1.0, "a:b": 0.5, "base": 0.0}
    assert BKRR2(2, sigma=2.0, lam=1e-3).fit(X, y).explain(X[:0], X[:5]).importances().tolist() == [0.0] * 4


@pytest.mark.parametrize("estimator", [BKRR2Classifier, SMOSVC])
def test_a_single_classifier_with_probabilities_is_explained_as_itself(estimator, tmp_path):
    """What `cakernels fit --probability` saves where no blend pays; several members are still refused."""
    labels = np.array(["a", "b", "c"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    given = {"sigma": 1.0, "lam": 1e-3} if estimator is BKRR2Classifier else {"gamma": 0.5}
    member = estimator(**given, probability=True).fit(X, labels).model_
    calibrator = Calibrator("sigmoid", 9, np.full(3, -1.0), np.zeros(3))
    blend = ClassBlend(
        members=[member], weights=np.ones(1), classes=member.classes, calibrators=[calibrator], source=member.source
    )
    blend.save(tmp_path / "m.h5")
    for one in (blend, ClassBlend.load(tmp_path / "m.h5")):
        got, own = (model.explain(Z, X[:5], interactions=True) for model in (one, member))
        assert (got.players, got.outputs) == (own.players, own.outputs)
        np.testing.assert_allclose(got.values, own.values, atol=1e-12)
        np.testing.assert_allclose(got.interactions, own.interactions, atol=1e-12)
    several = replace(blend, members=[member] * 2, weights=np.full(2, 0.5), calibrators=[calibrator] * 2)
    with pytest.raises(InputError, match="averages probabilities, which do not add up"):
        several.explain(Z, X[:5])


@pytest.mark.parametrize("far", [1.0, 6.0], ids=["alike", "some rows far away"])
@pytest.mark.parametrize("d", [33, 66, 150])
def test_many_features_are_as_exact_as_few(d, far):
    """The rows from which the number of nodes is chosen are the easy ones; values are those of the exact rule."""
    rng = np.random.default_rng(d)
    V = rng.normal(size=(40, d))
    V[:10] *= far
    f = Expansion(V, rng.normal(size=(40, 1)) * 1e6, np.zeros(1), Kernel("gaussian", gamma=30.0 / d))
    given = np.concatenate([0.01 * rng.normal(size=(3, d)), V[:5] + 0.05 * rng.normal(size=(5, d)), V[20:22]])
    given = given[[0, 3, 4, 1, 5, 6, 2, 7, 8, 9]]  # every third row is near the baselines
    game = Game(0.05 * rng.normal(size=(3, d)), np.arange(d), interactions=True)
    exact = shapley._on_all_threads(f, given, game, -(-d // 2), d, False)
    largest = np.abs(exact).max(axis=(1, 2), keepdims=True)
    assert (np.abs(values(f, given, game) - exact) <= 1e-11 * largest).all()
    some = given[[0, 3]]
    pairs = shapley._on_all_threads(f, some, game, -(-d // 2), game.pairs, True)
    got = shapley.interactions(f, some, game)
    assert (np.abs(got - pairs) <= 1e-11 * np.abs(pairs).max(axis=(1, 2), keepdims=True)).all()
