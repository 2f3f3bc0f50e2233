"""CASVC: one SVM a part, by every partitioner and on every route, each of them SVC on the rows of its part."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import equal_fields, limit_warning, near
from helpers.data import as_csr, first_classes, flat_clouds, formats, separate_clouds
from sklearn.base import clone
from sklearn.svm import SVC

from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.machine.memory import MemoryLimitError
from casvm import CASVC, SMOSVC
from casvm.casvm import casvm
from casvm.options import SVMOptions
from partition import FCFS, BalancedKMeans, KBalance, KMeans, Partitioner, RandomPartition
from partition.parts_model import closest

TOL = 1e-6  # of both solvers, where they are compared


@pytest.mark.parametrize("k", [2, 3])
@formats
def test_one_part_is_smosvc(csr, k, digits):
    X, y = first_classes(digits, k)
    X = as_csr(X, csr)
    w = np.random.default_rng(0).uniform(0.5, 2, len(y))
    one, whole = CASVC(1, random_state=0).fit(X, y, w), SMOSVC().fit(X, y, w)
    np.testing.assert_array_equal(one.decision_function(X), whole.decision_function(X))
    equal_fields(one, whole, "support_", "n_support_", "dual_coef_", "classes_")
    assert abs(one.support_vectors_ - whole.support_vectors_).sum() == 0
    assert (one.sizes_.tolist(), one.n_iter_.tolist()) == ([len(y)], [whole.n_iter_.sum()])


@formats
def test_few_rows_need_little_memory(csr):
    """However large a cache they may have."""
    X, y = flat_clouds()
    matrices = 2 * 8 * len(y) ** 2

    def trained(limit):
        options = SVMOptions(partitions=2, C=1.0, gamma=0.5, memory_limit=limit, cache_gib=8.0)
        return casvm(Dataset(as_csr(X, csr), y), options)

    trained(8 * matrices)
    with pytest.raises(MemoryLimitError, match="kernel cache needs"):
        trained(matrices // 4)


@pytest.mark.parametrize("partitioner", ["random", "fcfs", "kmeans"])
@pytest.mark.parametrize("P", [1, 2])
def test_support_is_in_the_order_of_the_rows(P, partitioner):
    """A partitioner's rows lie in a shuffled order inside a part."""
    X, y = flat_clouds()
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
    X, y = first_classes(digits, k)
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
            near(scores[here], reference.decision_function(X[here]), 1e-5)


def test_random_parts_are_svcs():
    """All rows at the bound have support, so that the parts' rows are known: C is tiny."""
    X, y = flat_clouds(90)
    model = CASVC(3, partitioner="random", C=1e-3, gamma=0.5, tol=TOL, random_state=0).fit(X, y)
    parts = model.model_.parts
    assert model.sizes_.tolist() == [30, 30, 30]
    every = np.concatenate([part.rows for part in parts.values()])
    assert len(every) == len(np.unique(every))
    for p, part in parts.items():
        mine = np.sort(part.rows)
        reference = SVC(C=1e-3, gamma=0.5, tol=TOL).fit(X[mine], y[mine])
        label = model.model_.asked(X, np.full(len(X), p, np.int32))[:, 0]
        near(label, reference.decision_function(X), 1e-5)


def test_random_parts_are_dealt_at_random():
    """Sorted rows do not give parts of one class; another seed gives other parts, the same seed the same."""
    X, y = flat_clouds(120)
    X, y = X[np.argsort(y)], np.sort(y)
    first, again, other = (CASVC(4, random_state=seed).fit(X, y) for seed in (0, 0, 1))
    assert all(len(part.classes) == 2 for part in first.model_.parts.values())
    np.testing.assert_array_equal(first.support_, again.support_)
    assert not np.array_equal(first.centers_, other.centers_)


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
    X, y = flat_clouds(120)
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


@pytest.mark.parametrize("partitioner", ["random", *NAMED])
def test_named_partitioners(partitioner):
    X, y = flat_clouds()
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
    """A partitioner instance acts like its name, with its own number of parts unless one is given."""
    X, y = flat_clouds()
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
    X, y = flat_clouds()
    kept = CASVC(partitioner=FCFS(4, recompute_centers=False), random_state=0).fit(X, y)
    assert all((center == X).all(axis=1).any() for center in kept.centers_)  # centres are rows
    assert len(CASVC(partitioner=RandomPartition(3)).fit(X, y).sizes_) == 3
    model = CASVC(partitioner=FCFS(4), ratio=True, random_state=0).fit(X, y)
    np.testing.assert_array_equal(
        model.centers_, CASVC(4, partitioner="fcfs", ratio=True, random_state=0).fit(X, y).centers_
    )


def test_partitioner_instance_that_balances():
    X, y = flat_clouds()
    model = CASVC(partitioner=FCFS(4, ratio=True), random_state=0).fit(X, y)
    expected = CASVC(4, partitioner="fcfs", ratio=True, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.centers_, expected.centers_)


class Halves(Partitioner):
    """A partitioner of another package: parts by the sign of the first feature."""

    def _partition(self, rows, y):
        labels = (rows.X[:, 0] > 0).astype(np.int32)
        return labels, np.array([[-1.0, 0, 0], [1.0, 0, 0]])


def test_partitioner_of_others():
    X, y = flat_clouds()
    model = CASVC(partitioner=Halves(2)).fit(X, y)
    assert model.sizes_.tolist() == [(X[:, 0] <= 0).sum(), (X[:, 0] > 0).sum()]


def test_csr_parts_as_dense():
    X, y = flat_clouds(k=3)
    X[np.abs(X) < 0.5] = 0
    given = {"n_parts": 4, "partitioner": "bkm", "gamma": 0.5, "tol": TOL, "random_state": 0}
    dense, sparse = CASVC(**given).fit(X, y), CASVC(**given).fit(sp.csr_matrix(X), y)
    expected = dense.decision_function(X)
    near(sparse.decision_function(sp.csr_matrix(X)), expected, 1e-5)
    near(sparse.decision_function(X), expected, 1e-5)
    near(dense.decision_function(sp.csr_matrix(X)), expected, 1e-5)


@pytest.mark.parametrize("partitioner", ["random", "kmeans"])
def test_balanced_counts_all_parts(partitioner):
    """A class is as rare in every part as it is over all: its weight is one number."""
    X, y = flat_clouds(120)
    y = (np.arange(120) % 5 == 0).astype(int)
    count = np.bincount(y)
    weight = {code: 120 / (2 * count[code]) for code in (0, 1)}
    given = {"partitioner": partitioner, "random_state": 0}
    balanced = CASVC(3, class_weight="balanced", **given).fit(X, y)
    by_hand = CASVC(3, class_weight=weight, **given).fit(X, y)
    np.testing.assert_array_equal(balanced.decision_function(X), by_hand.decision_function(X))


@formats
@pytest.mark.parametrize("k", [2, 3])
def test_weight_zero_is_absence(csr, k):
    """With a gamma that does not depend on the rows: the same bits."""
    X, y = flat_clouds(k=k)
    X = as_csr(X, csr)
    w = np.random.default_rng(0).integers(0, 3, 150).astype(float)
    kept = w > 0
    make = CASVC(3, gamma=0.5, partitioner="bkm", random_state=0)
    expected = make.fit(X[kept], y[kept], w[kept]).decision_function(X)
    np.testing.assert_array_equal(make.fit(X, y, w).decision_function(X), expected)


def test_part_without_weight():
    """The rows of a class of weight 0 are a part of their own: refused, or answered by some class."""
    X, y = separate_clouds()
    try:
        model = CASVC(2, partitioner="kmeans", class_weight={0: 0.0}, random_state=0).fit(X, y)
    except InputError:
        return
    assert set(model.predict(X)) <= {0, 1}


def test_parts_that_did_not_converge():
    X, y = flat_clouds()
    message = limit_warning(lambda: CASVC(3, max_iter=1).fit(X, y))
    assert message.startswith("CASVC: 3 of 3 parts stopped after 3 iterations")


@pytest.mark.parametrize("partitioner", ["random", *NAMED])
def test_rows_all_equal(partitioner):
    X, y = np.ones((12, 2)), np.arange(12) % 2
    model = CASVC(3, partitioner=partitioner, random_state=0).fit(X, y)
    assert model.sizes_.sum() == 12
    assert np.isfinite(model.decision_function(X)).all()


def test_duplicates_with_opposite_labels():
    X, y = flat_clouds(60)
    X, y = np.r_[X, X[:9]], np.r_[y, 1 - y[:9]]
    assert np.isfinite(CASVC(4, partitioner="fcfs", random_state=0).fit(X, y).decision_function(X)).all()


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_zero_row_in_csr(kernel):
    X, y = flat_clouds()
    X[[0, 17, -1]] = 0
    S = as_csr(X, True, 0.5)
    model = CASVC(3, kernel=kernel, partitioner="kmeans", random_state=0).fit(S, y)
    assert np.isfinite(model.decision_function(S)).all()
    assert np.isfinite(model.decision_function(sp.csr_matrix((4, 3)))).all()  # nothing but zeros
