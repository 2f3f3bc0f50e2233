"""Labels of distributed rows: words, numbers of several types, ranks and parts of one class."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.data import drawn_clouds
from helpers.distributed import RANK, WORLD, R, by_one, even, in_order

from cacore.comm import Communicator
from cacore.data.labels import all_classes
from casvm import CASVC, SVMModel

pytestmark = pytest.mark.mpi(min_size=1)

T_ROWS, GAMMA = 41, 0.4


@pytest.mark.parametrize("partitioner", ["random", "kmeans", "bkm", "fcfs"])
def test_rank_of_one_class(partitioner, everywhere):
    """Rows sorted by label: the classes are those of all ranks, and a part of one says it."""
    (X, y), (T, _) = drawn_clouds(60), drawn_clouds(T_ROWS, 1)
    y = (np.arange(60) >= 60 - 60 // (2 * R)).astype(int)  # class 1 on the last rank alone
    model = CASVC(R, partitioner=partitioner, gamma=GAMMA, random_state=0, comm=WORLD).fit(X[even(60)], y[even(60)])
    got = everywhere(model.predict(T[even(T_ROWS)]))
    assert set(WORLD.allgather(tuple(model.classes_.tolist()))) == {(0, 1)}
    assert set(got) <= {0, 1}
    if partitioner == "random":
        parts = in_order(model.model_.parts)
        assert [part.classes.tolist() for part in parts.values()] == [[0]] * (R - 1) + [[0, 1]]
        route = ((T[:, None] - model.centers_) ** 2).sum(axis=2).argmin(axis=1)
        assert (got[route < R - 1] == 0).all()


@pytest.mark.parametrize("partitioner", ["random", "kmeans"])
@pytest.mark.parametrize("k", [2, 3])
def test_words(partitioner, k, everywhere, folder):
    """Labels of one length on all ranks, some of which lack a class."""
    (X, y), (T, _) = drawn_clouds(90, k=k), drawn_clouds(T_ROWS, 1, k=k)
    X, names = X[np.argsort(y)], np.array(["aye", "nay", "żub"])[np.sort(y)]
    given = {"n_parts": 5, "partitioner": partitioner, "gamma": GAMMA, "tol": 1e-6, "random_state": 0}
    model = CASVC(**given, comm=WORLD).fit(X[even(90)], names[even(90)])
    got = everywhere(model.predict(T[even(T_ROWS)]))
    model.model_.save(folder / "m.h5")
    assert model.classes_.tolist() == ["aye", "nay", "żub"][:k]
    np.testing.assert_array_equal(SVMModel.load(folder / "m.h5").predict(T), got)
    if partitioner == "kmeans":
        np.testing.assert_array_equal(got, by_one(CASVC(**given).fit, X, names).predict(T))


@pytest.mark.mpi(min_size=2)
def test_words_of_different_length():
    """Each rank's array is as wide as its longest word."""
    names = np.array(["a", "b" * (2 + RANK)])
    told = WORLD.allgather(all_classes(names, Communicator(WORLD)).tolist())
    assert told == [["a", *("b" * (2 + rank) for rank in range(R))]] * R


@pytest.mark.mpi(min_size=2)
def test_whole_and_broken_labels():
    """Whole numbers on one rank, and not on another, as a command reads them from a file."""
    y = np.array([0.5, 1.0]) if RANK % 2 else np.array([0, 1])
    told = WORLD.allgather(all_classes(y, Communicator(WORLD)).tolist())
    assert told == [[0.0, 0.5, 1.0]] * R


@pytest.mark.parametrize("partitioner", ["kmeans", "bkm"])
@pytest.mark.parametrize("route", ["nearest", "soft"])
def test_part_of_one_class(partitioner, route, everywhere, folder):
    """Clouds far apart, one a class and a part: no support vectors anywhere, on any number of ranks."""
    P = max(2, R)
    y = np.arange(20 * P) % P
    X = np.random.default_rng(0).normal(size=(20 * P, 2)) + 100.0 * np.c_[y, y**2]
    model = CASVC(P, partitioner=partitioner, route=route, random_state=0, comm=WORLD).fit(
        X[even(20 * P)], y[even(20 * P)]
    )
    got = everywhere(model.predict(X[even(20 * P)]))
    model.model_.save(folder / "m.h5")
    assert SVMModel.load(folder / "m.h5").predict(X).tolist() == got.tolist()
    if [len(part.classes) for part in in_order(model.model_.parts).values()] == [1] * P:  # as K-means finds them
        assert model.support_.size == 0
        assert got.tolist() == y.tolist()
