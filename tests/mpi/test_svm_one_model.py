"""Dis-SMO and the trees on 1 to 4 ranks against the exact solver on all rows in one process."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.data import drawn_clouds, forms, write_hdf5
from helpers.distributed import RANK, WORLD, R, even, labelled

from cacore.comm import Communicator
from cacore.data.rows import bcast_rows, exchange_rows, gather_rows, recv_rows, send_rows
from cacore.io.checkpoint import Checkpoint
from cacore.run import command
from casvm import DCSVC, SMOSVC, CascadeSVC, DCFilterSVC, DisSMOSVC, SVMModel, cascade, dcfilter, dcsvm, dissmo
from casvm.options import Options
from casvm.solver import distributed as distributed_module

pytestmark = pytest.mark.mpi(min_size=1)

N, GAMMA, C = 331, 0.4, 2.0  # 331 is no multiple of any number of ranks
TOL = 1e-5
METHODS = {"cascade": cascade.METHOD, "dcsvm": dcsvm.METHOD, "dcfilter": dcfilter.METHOD, "dissmo": dissmo.METHOD}


def rows(n=N, k=2, csr=False, dtype=np.float64, seed=0):
    return drawn_clouds(n, seed, k, csr, dtype)


def train(name, X, y, my=None, comm=None, weights=None, **options):
    """On this rank's rows `my` of all ranks'."""
    given = {"C": C, "gamma": GAMMA, "tol": TOL, "cache_gib": 2**-6, "seed": 3, **options}
    return METHODS[name](labelled(X, y, my, weights), Options(**given), comm or Communicator(WORLD))


def exact(X, y, weights=None):
    return SMOSVC(C=C, gamma=GAMMA, tol=TOL).fit(X, y, weights)


@forms
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize(
    ("name", "more"), [("dissmo", {}), ("dissmo", {"working_set": 16}), ("dcsvm", {"partitions": 7})]
)
def test_exact_on_any_number_of_ranks(name, more, csr, dtype, k):
    X, y = rows(k=k, csr=csr, dtype=dtype)
    reference = exact(X, y)
    made = train(name, X, y, even(N), **more)
    assert made.notes == []
    objective = made.solver["objective"][-1]
    np.testing.assert_allclose(objective, reference.objective_.sum(), rtol=1e-6)
    T, _ = rows(97, k, csr, dtype, seed=9)
    expected, sure = reference.decision_function(T), 1e-2
    given = made.model.decision_function(T[even(97)])
    np.testing.assert_allclose(given, expected[even(97)], atol=sure)
    # The pieces together are one solution: feasible, and optimal for its own gradient.
    parts = made.model.parts.values()
    total = WORLD.allreduce(sum(np.concatenate([part.coef[:, : part.n_support[0]].sum(axis=1) for part in parts])))
    if k == 2:
        every = WORLD.allreduce(float(sum(part.coef.sum() for part in parts)))
        assert abs(every) < 1e-9
        assert total > 0


def test_the_textbooks_pair():
    X, y = rows(157)
    made = train("dissmo", X, y, even(157), working_set=2, tol=1e-3)
    np.testing.assert_allclose(made.solver["objective"][0], exact(X, y).objective_[0], rtol=1e-4)
    assert made.notes == []


@pytest.mark.parametrize("seed", range(6))
def test_ranks_with_a_row_or_two(seed):
    """A rank's own largest and smallest gradient may be one row, and that row all ranks' smallest."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(R + 2, 30))
    X, y = rows(n, seed=seed)
    y[:2] = 0, 1
    last = np.sort(rng.choice(np.arange(1, n), R - 1, replace=False))
    bounds = [0, *last.tolist(), n]
    made = train("dissmo", X, y, slice(bounds[RANK], bounds[RANK + 1]), working_set=(2, 8)[seed % 2])
    assert made.notes == []
    np.testing.assert_allclose(made.solver["objective"][0], exact(X, y).objective_[0], rtol=1e-4)


@pytest.mark.parametrize("name", ["dissmo", "dcsvm", "cascade"])
def test_sorted_by_label_and_unevenly_spread(name):
    """A rank may hold one class only, and very few rows."""
    X, y = rows()
    order = np.argsort(y, kind="stable")
    X, y = X[order], y[order]
    cuts = np.concatenate([[0], np.sort(N - np.geomspace(2 * R, N - 60, R - 1).astype(int)), [N]]) if R > 1 else [0, N]
    my = slice(int(cuts[RANK]), int(cuts[RANK + 1]))
    more = {"passes": 30} if name == "cascade" else {}
    made = train(name, X, y, my, **more)
    rtol = 1e-4 if name == "cascade" else 1e-6
    np.testing.assert_allclose(made.solver["objective"][-1], exact(X, y).objective_[0], rtol=rtol)


@pytest.mark.parametrize("name", ["dcsvm", "dcfilter"])
@pytest.mark.parametrize("P", [4, 5, 8])
def test_trees_are_the_same_on_any_number_of_ranks(name, P):
    X, y = rows(k=3)
    made = train(name, X, y, even(N), partitions=P)
    alone = train(name, X, y, comm=Communicator(), partitions=P)
    np.testing.assert_allclose(made.solver["objective"], alone.solver["objective"], rtol=1e-5)
    assert made.more["layers"][0]["rows"] == alone.more["layers"][0]["rows"]
    assert 1 <= made.more["average_parallelism"] <= R


def test_weights():
    X, y = rows()
    weights = np.random.default_rng(1).uniform(0, 2, N).round(1)
    reference = exact(X, y, weights)
    for name in ("dissmo", "dcsvm"):
        made = train(name, X, y, even(N), weights=weights)
        np.testing.assert_allclose(made.solver["objective"][-1], reference.objective_[0], rtol=1e-6)


@pytest.mark.parametrize("tight", [False, True], ids=["room", "evictions"])
def test_no_rank_holds_all_rows(monkeypatch, tight):
    X, y = rows(2000)
    pools, capacity = [], distributed_module._Distributed._capacity

    def spy(self, most, budget):
        pools.append(2 * self.q if tight else capacity(self, most, budget))
        return pools[-1]

    monkeypatch.setattr(distributed_module._Distributed, "_capacity", spy)
    made = train("dissmo", X, y, even(2000), comm=Communicator(WORLD), working_set=64)
    np.testing.assert_allclose(made.solver["objective"][0], exact(X, y).objective_[0], rtol=1e-6)
    if R > 1:
        assert len(pools) == 1
        assert pools[0] + len(y[even(2000)]) < 2000


def test_ranks_that_round_differently(monkeypatch):
    """Then rank 0's solution of each working set is everybody's."""
    X, y = rows()
    monkeypatch.setattr(distributed_module, "cpu_name", lambda: f"processor {RANK}")
    made = train("dissmo", X, y, even(N), working_set=16)
    np.testing.assert_allclose(made.solver["objective"][0], exact(X, y).objective_[0], rtol=1e-6)


def test_messages_of_blocks_and_of_pairs():
    X, y = rows(600)
    sent = {}
    for q in (2, 64):
        comm = Communicator(WORLD)
        made = train("dissmo", X, y, even(600), comm=comm, working_set=q, tol=1e-2)
        sent[q] = comm.totals()[0]["train"]["messages"], made.solver["iterations"][0]
    if R == 1:
        assert sent[2][0] == sent[64][0] == 0
        return
    assert sent[2][0] >= R * sent[2][1]  # a combined reduction a pair on each rank, and rows
    assert sent[2][0] > 10 * sent[64][0]


def test_same_bits_twice():
    X, y = rows()
    first, again = (train("dissmo", X, y, even(N), working_set=16) for _ in range(2))
    for one, other in zip(first.model.parts.values(), again.model.parts.values(), strict=True):
        assert one.coef.tobytes() == other.coef.tobytes()
        assert one.rows.tobytes() == other.rows.tobytes()


@pytest.mark.parametrize("name", ["dissmo", "cascade"])
def test_checkpoint(folder, name, monkeypatch):
    X, y = rows(k=3)
    kept = folder / "kept"
    first = train(name, X, y, even(N), checkpoint=Checkpoint(kept))

    def never(*_, **__):
        raise AssertionError("solved again")

    monkeypatch.setattr("casvm.solver.smo.solve", never)
    monkeypatch.setattr("casvm.solver.distributed.solve", never)
    again = train(name, X, y, even(N), checkpoint=Checkpoint(kept))
    for one, other in zip(first.model.parts.values(), again.model.parts.values(), strict=True):
        assert one.coef.tobytes() == other.coef.tobytes()
    assert first.solver["objective"].tolist() == again.solver["objective"].tolist()


@pytest.mark.parametrize("k", [2, 3])
def test_saved_in_pieces(folder, k):
    X, y = rows(k=k)
    T, _ = rows(97, k, seed=9)
    made = train("dissmo", X, y, even(N))
    path = folder / f"pieces-{k}.h5"
    made.model.save(path)
    here = made.model.predict(T[even(97)])
    together = SVMModel.load(path, WORLD)
    assert together.predict(T[even(97)]).tolist() == here.tolist()
    alone = SVMModel.load(path)
    assert len(alone.parts) == 1
    assert alone.predict(T)[even(97)].tolist() == here.tolist()
    np.testing.assert_allclose(alone.decision_function(T), exact(X, y).decision_function(T), atol=1e-2)
    np.testing.assert_allclose(alone.intercepts(), made.model.intercepts(), rtol=1e-12)


@pytest.mark.parametrize("cls", [DisSMOSVC, DCSVC, CascadeSVC, DCFilterSVC])
def test_estimators(cls):
    X, y = rows()
    labels = np.array(["ham", "spam"])[y]
    model = cls(C=C, gamma=GAMMA, comm=WORLD).fit(X[even(N)], labels[even(N)])
    assert model.classes_.tolist() == ["ham", "spam"]
    assert model.sizes_.sum() == N
    reference = SMOSVC(C=C, gamma=GAMMA).fit(X, labels)
    # What the filters drop on so few rows hangs on how K-means' sums round, which is the processor's: 0.024 was seen.
    near = 0.05 if cls in (CascadeSVC, DCFilterSVC) else 0.02
    assert model.score(X[even(N)], labels[even(N)]) == pytest.approx(reference.score(X, labels), abs=near)
    if cls in (DisSMOSVC, DCSVC):
        np.testing.assert_allclose(model.intercept_, reference.intercept_, atol=2e-3)


@forms
@pytest.mark.parametrize("zeros", [0.0, 0.6, 1.0])
def test_rows_travel_whole(csr, dtype, zeros):
    """Packed, point to point and broadcast, as they were: bit by bit."""
    rng = np.random.default_rng(RANK)
    X = rng.normal(size=(11 + RANK, 9)).astype(dtype)
    X[rng.random(X.shape) < zeros] = 0
    if not csr:
        X[0, :2] = -0.0, np.nan
    mine = sp.csr_matrix(X) if csr else X
    comm = Communicator(WORLD)

    def plain(rows):
        return rows.toarray().tobytes() if csr else rows.tobytes()

    counts = np.full(R, len(X) // R)
    counts[0] += len(X) - counts.sum()
    packed, whole = exchange_rows(mine, counts, comm, True), exchange_rows(mine, counts, comm)
    assert plain(packed) == plain(whole)
    every = gather_rows(mine, comm, np.arange(11, 11 + R))
    assert every.shape[0] == sum(range(11, 11 + R))
    from_last = bcast_rows(mine if R - 1 == RANK else None, comm, R - 1)
    assert plain(from_last) == plain(every[every.shape[0] - (10 + R) :])
    if R > 1:
        if RANK == R - 1:
            send_rows(mine, 0, comm)
        elif RANK == 0:
            assert plain(recv_rows(R - 1, comm, mine)) == plain(from_last)


def test_command(folder):
    """From a file to a model in pieces and a matrix of bytes."""
    path = folder / "command.h5"
    X, y = rows(400)
    if RANK == 0:
        write_hdf5(path, train=(X[:N], y[:N]), test=(X[N:], y[N:]))
    WORLD.barrier()
    for method in (dissmo.METHOD, cascade.METHOD):
        words = [str(path), "--gamma", "0.4", "--quiet", "--model", str(folder / f"{method.name}.h5")]
        words += ["--comm-matrix", str(folder / f"{method.name}.npz")]
        command.train(method, Communicator(WORLD), words)
        WORLD.barrier()
        model = SVMModel.load(folder / f"{method.name}.h5")
        assert (model.method, model.route) == (method.name, "sum")
        with np.load(folder / f"{method.name}.npz") as made:
            assert made["bytes"].shape[1:] == (R, R + 1)
