"""Distributed partitions against serial ones; rows travel to the owners of their parts."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.data import as_csr, formats
from helpers.distributed import RANK, WORLD, R, by_one

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.rows import block_bounds
from partition import BY_NAME
from partition.base import Division
from partition.parts_model import InParts
from partition.redistribute import assign_owners, overlapping, redistribute

pytestmark = pytest.mark.mpi(min_size=1)

BALANCED = ("random", "fcfs", "bkm", "kbalance")


def blobs(n=307, d=5, seed=0, dtype=np.float64, csr=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 3 * rng.integers(0, 2, size=(n, d))
    if csr:
        X[rng.random(X.shape) < 0.6] = 0
    return as_csr(X.astype(dtype), csr)


@formats
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", BY_NAME)
def test_as_serial(name, dtype, csr, mine, everywhere):
    X, P = blobs(dtype=dtype, csr=csr), 5
    part = BY_NAME[name](P, random_state=3).fit(X[mine(X.shape[0])], comm=WORLD)
    labels, centers = everywhere(part.labels_), WORLD.allgather(part.centers_)
    serial = by_one(BY_NAME[name](P, random_state=3).fit, X)
    # The sums of K-means come in another order, and a row between two centres may change sides: at most
    # 1 row in 100. The other partitioners add nothing up before the labels are settled.
    assert np.mean(labels != serial.labels_) <= (0 if name in ("random", "fcfs") else 0.01)
    assert part.sizes_.tolist() == np.bincount(labels, minlength=P).tolist()
    assert all(np.array_equal(other, centers[0]) for other in centers)
    if np.array_equal(labels, serial.labels_):
        np.testing.assert_allclose(part.centers_, serial.centers_, rtol=1e-9, atol=1e-9)
    if name in BALANCED:
        assert np.ptp(part.sizes_) <= 1


@pytest.mark.parametrize("name", ["kmeans", "bkm", "kbalance"])
@pytest.mark.parametrize(("P", "csr"), [(4, False), (9, True), (60, False)])
def test_two_levels(name, P, csr, mine, everywhere, tuned):
    """2, 3 and 8 groups: of several ranks each, of one rank, and several on a rank."""
    tuned(one_level=1)
    X = blobs(csr=csr)
    part = BY_NAME[name](P, random_state=3).fit(X[mine(X.shape[0])], comm=WORLD)
    labels = everywhere(part.labels_)
    serial = by_one(BY_NAME[name](P, random_state=3).fit, X)
    assert np.mean(labels != serial.labels_) <= 0.01
    assert part.sizes_.tolist() == np.bincount(labels, minlength=P).tolist()
    if np.array_equal(labels, serial.labels_):
        np.testing.assert_allclose(part.centers_, serial.centers_, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["fcfs", "bkm", "kbalance"])
def test_sizes_settled_by_owners_of_parts(name, mine, tuned):
    """The same parts, whether histograms are added up or each part's rows are sorted by one rank."""
    X, labels = blobs()[mine(307)], {}
    for kind, message in (("histograms", np.inf), ("owners", -np.inf)):
        tuned(message_numbers=message)
        part = BY_NAME[name](23, random_state=1).fit(X, comm=WORLD)
        labels[kind] = part.labels_
        assert np.ptp(part.sizes_) <= 1
    np.testing.assert_array_equal(labels["owners"], labels["histograms"])


@pytest.mark.parametrize("name", BALANCED)
@pytest.mark.parametrize(("n", "P"), [(4, 4), (11, 1), (11, 7), (100, 33)])
def test_balanced(name, n, P, mine, everywhere):
    # All rows but a few lie in one place: K-means' parts are as uneven as can be.
    X = np.where(np.arange(n)[:, None] < n - 3, 0.001, 10.0) * blobs(n, 2)
    part = BY_NAME[name](P, random_state=0).fit(X[mine(n)], comm=WORLD)
    assert np.bincount(everywhere(part.labels_), minlength=P).tolist() == part.sizes_.tolist()
    assert (np.ptp(part.sizes_) <= 1, part.sizes_.sum()) == (True, n)


@pytest.mark.parametrize(("overlap", "twice"), [(0.5, False), (30.0, False), (1.0, True)])
def test_overlap(overlap, twice, mine, everywhere):
    """The rows that each part gets beside its own are those that sorting finds; of equal ones the first."""
    X, P = blobs(60 if twice else 121), 5
    X = np.repeat(X, 2, axis=0) if twice else X
    n = len(X)
    part = BY_NAME["kmeans"](P, random_state=3).fit(X)
    here = mine(n)
    division = Division(part.labels_[here], part.centers_, part.sizes_, 0)
    places, larger = overlapping(X[here], division, overlap, Communicator(WORLD))
    local = here.stop - here.start
    np.testing.assert_array_equal(places[:local], np.arange(local))
    np.testing.assert_array_equal(larger.labels[:local], part.labels_[here])
    added, toward = everywhere(places[local:] + here.start), everywhere(larger.labels[local:])
    squares = ((X[:, None] - part.centers_) ** 2).sum(axis=2)
    for q in range(P):
        others = np.flatnonzero(part.labels_ != q)
        closer = squares[others, q] - squares[others, part.labels_[others]]
        count = min(round(overlap * part.sizes_[q]), len(others))
        assert larger.sizes[q] == part.sizes_[q] + count
        expected = others[np.argsort(closer, kind="stable")[:count]]
        assert sorted(added[toward == q]) == sorted(expected)


@pytest.mark.parametrize("name", ["fcfs", "bkm"])
def test_ratio(name, mine, everywhere):
    n, P = 203, 6
    X, y = blobs(n), np.sort(np.random.default_rng(1).choice([-1.0, 1.0, 4.0], n, p=[0.1, 0.6, 0.3]))
    part = BY_NAME[name](P, ratio=True, random_state=0).fit(X[mine(n)], y[mine(n)], comm=WORLD)
    labels = everywhere(part.labels_)
    counts = np.array([np.bincount(labels[y == c], minlength=P) for c in np.unique(y)])
    assert np.ptp(counts, axis=1).max() <= 1
    assert np.ptp(counts.sum(axis=0)) <= 1


@pytest.mark.parametrize("name", ["fcfs", "kmeans", "bkm", "kbalance"])
def test_sorted_file(name, everywhere):
    """Parts of a sorted file are as tight as those of a shuffled one: within 5 % in the mean over 12 seeds."""
    n, P = 480, 6
    X = np.random.default_rng(0).random((n, 3))
    X = X[np.argsort(X[:, 0])]
    shuffled = X[np.random.default_rng(1).permutation(n)]
    lo, hi = block_bounds(n, R, RANK)
    tightness = {}
    for kind, rows in (("sorted", X), ("shuffled", shuffled)):
        spread = []
        for seed in range(12):
            labels = everywhere(BY_NAME[name](P, random_state=seed).fit(rows[lo:hi], comm=WORLD).labels_)
            spread.append(sum(((rows[labels == p] - rows[labels == p].mean(axis=0)) ** 2).sum() for p in range(P)))
        tightness[kind] = np.mean(spread)
    assert tightness["sorted"] == pytest.approx(tightness["shuffled"], rel=0.05)


def test_in_place():
    X = blobs(40, seed=RANK)
    part = BY_NAME["random"](R, in_place=True).fit(X, comm=WORLD)
    assert (part.labels_ == RANK).all()
    np.testing.assert_allclose(part.centers_[RANK], X.mean(axis=0), rtol=1e-12)


def test_more_parts_than_rows():
    with pytest.raises(ValueError, match=f"9 parts of {R} rows"):
        BY_NAME["kbalance"](9, random_state=0).fit(np.ones((1, 2)), comm=WORLD)


@pytest.mark.mpi(min_size=2)
def test_bad_rows_of_one_rank():
    X = blobs(20)
    if RANK == 1:
        X[3, 2] = np.nan
    with pytest.raises(ValueError, match="NaN") as caught:
        BY_NAME["kmeans"](2).fit(X, comm=WORLD)
    assert len(set(WORLD.allgather(str(caught.value)))) == 1


# -- redistribution ----------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
@formats
@pytest.mark.parametrize("P", [2, 7, 90])
@pytest.mark.parametrize("consume", [False, True])
def test_redistribute(P, csr, ordered, consume, mine):
    n = 101
    X, rng = blobs(n, csr=csr), np.random.default_rng(5)
    labels = rng.integers(0, P, n).astype(np.int32)
    columns = {"number": np.arange(n), "order": rng.permutation(n), "y": rng.random(n).astype(np.float32)}
    owners = assign_owners(np.bincount(labels, minlength=P), R)
    comm, my = Communicator(WORLD), mine(n)
    order = "order" if ordered else None
    local = {name: values[my] for name, values in columns.items()}
    given = X[my].copy()
    owned = redistribute(Samples(given, local), labels[my], owners, comm, order=order, consume=consume)
    numbers = {part: owned.columns["number"][rows] for part, rows in owned}
    every = WORLD.allgather(numbers)

    assert consume or abs(given - X[my]).sum() == 0
    assert list(numbers) == np.flatnonzero(owners == RANK).tolist() == owned.parts.tolist()
    for part, found in numbers.items():
        expected = np.flatnonzero(labels == part)
        if ordered:
            expected = expected[np.argsort(columns["order"][expected])]
        np.testing.assert_array_equal(found, expected)
    everyone = np.concatenate([rows for each in every for rows in each.values()])
    np.testing.assert_array_equal(np.sort(everyone), np.arange(n))
    here = owned.columns["number"]
    assert abs(owned.X - X[here]).sum() == 0
    assert (owned.X.dtype, sp.issparse(owned.X)) == (X.dtype, csr)
    for name, values in columns.items():
        np.testing.assert_array_equal(owned.columns[name], values[here], strict=True)


def test_rows_in_their_place_stay():
    """Bytes sent, for lengths and sizes, do not grow with the rows."""
    sent = []
    for n in (50, 500):
        comm, X = Communicator(WORLD), blobs(n)
        redistribute(Samples(X, {"y": X[:, 0]}), np.full(n, RANK, np.int32), np.arange(R), comm)
        sent.append(int(comm.sent("other")[0].sum()))
    assert sent[0] == sent[1] < 100 * R


class Echo(InParts):
    """Every part says what the row is, and its own number."""

    def _answer(self, part, rows):
        return np.column_stack([rows[:, 0], np.full(len(rows), part)])


def test_answers_return():
    """To the rows that asked, of parts that lie on any rank."""
    P = R + 2
    owners, none = np.random.default_rng(5).integers(0, R, P), np.zeros(0)
    model = Echo(
        method="", route="", centers=none, sizes=none, owners=owners, standardizer=None, dtype="",
        parts=dict.fromkeys(np.flatnonzero(owners == RANK).tolist()),
    )  # fmt: skip
    labels = np.random.default_rng(RANK).integers(0, P, 30).astype(np.int32)
    X = RANK * 100.0 + np.arange(30)[:, None]
    got = model._asked(X, labels, Communicator(WORLD), (2,))
    np.testing.assert_array_equal(got, np.column_stack([X[:, 0], labels]))
