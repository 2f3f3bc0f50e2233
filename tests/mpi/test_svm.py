"""SVMs of distributed rows against the same parts trained by one process, to the last bit wherever nothing is summed.

Random parts depend on which rank has which rows, and a sum over ranks on their number: so the parts are
compared with SVMs trained on the same rows by themselves, and those of the partitioners also with one process.
"""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest
from helpers.checks import names, near, same_part
from helpers.data import FORMS, dense, drawn_clouds
from helpers.distributed import RANK, WORLD, R, by_one, even, in_order
from helpers.svm_on_ranks import GAMMA, METHODS, NAMES, PARTITIONED, T_ROWS, N, methods, train
from sklearn.exceptions import ConvergenceWarning

from cacore.comm import Communicator
from cacore.limits import Limits
from casvm import CASVC, SVMModel
from casvm.solver.smo import PartTraining, fit_part
from partition import FCFS

pytestmark = pytest.mark.mpi(min_size=1)


# -- against one process ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARTITIONED)
@pytest.mark.parametrize("form", FORMS)
def test_parts_as_one_process_trains_them(name, form, mine, everywhere):
    """The partitioners divide the rows of any number of ranks alike, and a part's rows come in the same order."""
    csr, dtype = FORMS[form]
    k = 3 if csr else 2
    (X, y), (T, _) = drawn_clouds(csr=csr, dtype=dtype, k=k), drawn_clouds(T_ROWS, 1, k, csr, dtype)
    comm = Communicator(WORLD)
    result = train(name, X, y, mine(N), comm)
    model, traffic = result.model, comm.totals()[0]
    parts = in_order(model.parts)
    got, decisions = everywhere(model.predict(T[mine(T_ROWS)])), everywhere(model.decision_function(T[mine(T_ROWS)]))
    serial = by_one(train, name, X, y)
    assert model.sizes.tolist() == serial.model.sizes.tolist()
    assert model.classes.tolist() == serial.model.classes.tolist()
    np.testing.assert_allclose(model.centers, serial.model.centers, rtol=1e-6 if dtype == np.float32 else 1e-10)
    assert sorted(parts) == list(range(6))
    for number, part in serial.model.parts.items():
        same_part(parts[number], part, 1e-12)
    assert result.solver["iterations"].tolist() == serial.solver["iterations"].tolist()
    assert result.solver["n_support"].tolist() == [len(parts[p].rows) for p in range(6)]
    np.testing.assert_array_equal(got, serial.model.predict(T))
    near(decisions, serial.model.decision_function(T), 1e-10 if dtype == np.float64 else 1e-5)
    assert traffic["train"] == {"bytes": 0, "messages": 0}
    assert (traffic["partition"]["bytes"] > 0) == (R > 1)


@pytest.mark.parametrize(
    ("kernel", "csr"),
    [("matern32", False), ("laplacian", True), ("l1", True), ("l1", False), ("wendland2_product", True)],
)
def test_parts_of_other_kernels(kernel, csr, everywhere):
    (X, y), (T, _), comm = drawn_clouds(csr=csr), drawn_clouds(T_ROWS, 1, csr=csr), Communicator(WORLD)
    model = train("bkmsvm", X, y, even(N), comm, kernel=kernel).model
    serial = by_one(train, "bkmsvm", X, y, kernel=kernel)
    near(everywhere(model.decision_function(T[even(T_ROWS)])), serial.model.decision_function(T), 1e-10)


@pytest.mark.parametrize(("csr", "dtype"), [*FORMS.values()])
def test_random_parts(csr, dtype):
    """Each rank deals its own rows to its own parts and sends nothing: as casvm on each rank's rows by itself."""
    k = 2 if csr else 3
    (X, y), my = drawn_clouds(csr=csr, dtype=dtype, k=k), even(N)
    comm, P = Communicator(WORLD), 2 * R + 1
    result = train("casvm", X, y, my, comm, partitions=P)
    traffic = comm.totals()[0]
    assert traffic["train"] == traffic["partition"] == {"bytes": 0, "messages": 0}
    model, at = result.model, my.start
    lo, hi = P * RANK // R, P * (RANK + 1) // R
    assert sorted(model.parts) == list(range(lo, hi))
    place = np.random.default_rng([2, RANK]).permutation(my.stop - at)
    cuts = [len(place) * j // (hi - lo) for j in range(hi - lo + 1)]
    for number, (first, last) in enumerate(pairwise(cuts), lo):
        chosen = at + place[first:last]
        ones = np.ones(len(chosen))
        training = PartTraining(model.kernel, Limits(1e-6), 1 << 26)
        expected, _ = fit_part(X[chosen], y[chosen], ones, chosen, training)
        same_part(model.parts[number], expected, 1e-12)
        center = dense(X[chosen]).mean(axis=0, dtype=np.float64)
        # Of CSR rows in single precision scipy takes the mean in single precision.
        near(model.centers[number], center, 1e-6 if dtype == np.float32 else 1e-12)
    assert (sum(model.sizes), len(model.sizes)) == (N, P)


@methods
@pytest.mark.parametrize(("route", "k"), [("nearest", 2), ("soft", 3), ("all", 3), ("all", 2)])
def test_saved_by_many_and_loaded_by_one(name, route, k, folder, half, everywhere):
    """The same labels, and decisions to 1e-12 (a mean over ranks is summed in another order)."""
    csr, comm = name == "bkmsvm", Communicator(WORLD)
    (X, y), (T, _) = drawn_clouds(k=k, csr=csr), drawn_clouds(T_ROWS, 1, k, csr)
    model = train(name, X, y, even(N), comm, route=route, standardize=True).model
    model.save(folder / "many.h5")
    got, labels = everywhere(model.decision_function(T[even(T_ROWS)])), everywhere(model.predict(T[even(T_ROWS)]))
    together = SVMModel.load(folder / "many.h5", comm)
    again = everywhere(together.decision_function(T[even(T_ROWS)]))
    of_half = SVMModel.load(folder / "many.h5", half).decision_function(T)  # each half of the ranks by itself
    alone = SVMModel.load(folder / "many.h5")
    counts = WORLD.allgather(len(together.parts))
    for other in (again, of_half, alone.decision_function(T)):
        near(other, got, 1e-12)
    np.testing.assert_array_equal(alone.predict(T), labels)
    assert (sum(counts), len(alone.parts)) == (6, 6)
    for number, part in model.parts.items():
        same_part(alone.parts[number], part, 0)
    assert (alone.soft is None) == (route == "nearest" or (route == "all" and k == 2))
    assert names(folder) == ["many.h5"]


@pytest.mark.parametrize("name", PARTITIONED)
@pytest.mark.parametrize("route", ["soft", "all"])
def test_routes_of_many_classes(name, route, mine, everywhere):
    """Parts hold different classes; shares and weights are those of one process, and weights cost no byte."""
    rng = np.random.default_rng(3)
    middles = rng.normal(scale=3, size=(9, 4))
    (X, y), (T, _) = ((middles[c] + rng.normal(size=(len(c), 4)), c) for c in (np.arange(N) % 9, np.arange(T_ROWS) % 9))
    comm = Communicator(WORLD)
    model = train(name, X, y, mine(N), comm, route=route).model
    serial = by_one(train, name, X, y, route=route).model
    sent, seen = [], set()
    for soft in (model.soft, None) if route == "all" else (model.soft,):
        model.soft, before = soft, comm.totals()[0]["predict"]
        got, labels = model.decision_function(T[mine(T_ROWS)], comm), model.predict(T[mine(T_ROWS)], comm)
        after = comm.totals()[0]["predict"]
        sent.append({what: after[what] - before[what] for what in after})
        got, labels, serial.soft = everywhere(got), everywhere(labels), serial.soft if soft is not None else None
        near(got, serial.decision_function(T), 1e-10)
        np.testing.assert_array_equal(labels, serial.predict(T))
    for classes in WORLD.allgather([part.classes.tolist() for part in model.parts.values()]):
        seen |= set(map(len, classes))
    assert len(seen) > 1
    assert sent == [sent[0]] * len(sent)


@pytest.mark.mpi(min_size=2)
def test_soft_route_of_a_rank_without_rows(everywhere):
    (X, y), (T, _) = drawn_clouds(), drawn_clouds(T_ROWS, 1)
    model = train("cpsvm", X, y, even(N), Communicator(WORLD), route="soft").model
    got = everywhere(model.decision_function(T if RANK == 0 else T[:0]))
    near(got, by_one(train, "cpsvm", X, y, route="soft").model.decision_function(T), 1e-10)


def test_saved_by_one_and_loaded_by_many(folder, everywhere):
    (X, y), (T, _) = drawn_clouds(k=3), drawn_clouds(T_ROWS, 1, k=3)
    serial = by_one(train, "cpsvm", X, y).model
    if RANK == 0:
        serial.save(folder / "one.h5")
    WORLD.Barrier()
    got = everywhere(SVMModel.load(folder / "one.h5", WORLD).decision_function(T[even(T_ROWS)]))
    near(got, serial.decision_function(T), 1e-12)


def weighed_over_all(name, my):
    """Gamma and the balanced weights are of all ranks' rows, not of a part's or a rank's."""
    X, y = drawn_clouds()
    y = (np.arange(N) % 5 == 0).astype(int)
    model = train(name, X, y, my, Communicator(WORLD), gamma="scale", class_weight="balanced", C=0.01).model
    parts, gammas = in_order(model.parts), WORLD.allgather(model.kernel.gamma)
    if name != "casvm":
        serial = by_one(train, name, X, y, gamma="scale", class_weight="balanced", C=0.01).model
        # A sum over ranks ends with other bits, and the labels are noise: other rows may be at the bound.
        assert all(parts[number].classes.tolist() == part.classes.tolist() for number, part in serial.parts.items())
    assert model.kernel.gamma == pytest.approx(1 / (4 * X.var()), rel=1e-12)
    assert gammas == [gammas[0]] * R
    bound = 0.01 * N / (2 * np.bincount(y))  # the largest coefficients: C is so small that some are there
    for part in parts.values():
        of = part.classes.repeat(part.n_support)
        largest = np.abs(part.coef).max(axis=0, initial=0)
        assert (largest <= bound[of] * (1 + 1e-12)).all()
        assert len(part.classes) == 1 or np.isclose(largest, bound[of]).any()


@methods
def test_gamma_and_balance_of_all_rows(name):
    weighed_over_all(name, even(N))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", PARTITIONED)
def test_gamma_and_balance_with_a_rank_without_rows(name):
    share = np.cumsum([0, 2, 0, 3, 1][: R + 1])
    cuts = N * share // share[-1]
    weighed_over_all(name, slice(int(cuts[RANK]), int(cuts[RANK + 1])))


# -- the estimator -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("form", ["dense", "csr float32"])
def test_estimator(name, form, mine, everywhere):
    csr, dtype = FORMS[form]
    (X, y), (T, u) = drawn_clouds(csr=csr, dtype=dtype, k=3), drawn_clouds(T_ROWS, 1, 3, csr, dtype)
    given = {"n_parts": 5, "partitioner": NAMES[name], "gamma": GAMMA, "tol": 1e-6, "random_state": 7}
    my, our = mine(N), mine(T_ROWS)
    if name == "casvm":
        my = even(N)  # every rank deals its rows to its parts, so that it needs some
    distributed = CASVC(**given, comm=WORLD).fit(X[my], y[my])
    labels, decisions = everywhere(distributed.predict(T[our])), everywhere(distributed.decision_function(T[our]))
    score = distributed.score(T[our], u[our])
    weighted = distributed.score(T[our], u[our], np.arange(1.0, T_ROWS + 1)[our])
    supports = WORLD.allgather((distributed.support_, distributed.support_vectors_, distributed.dual_coef_))
    assert score == pytest.approx((labels == u).mean())
    assert weighted == pytest.approx(np.average(labels == u, weights=np.arange(1.0, T_ROWS + 1)))
    assert len(set(WORLD.allgather(score))) == 1
    for support, vectors, coef in supports:
        np.testing.assert_array_equal(dense(vectors), dense(X[support]))  # global numbers of rows
        assert coef.shape == (2, len(support))
    if name == "casvm":
        return
    serial = by_one(CASVC(**given).fit, X, y)
    np.testing.assert_array_equal(np.sort(np.concatenate([s[0] for s in supports])), np.sort(serial.support_))
    np.testing.assert_array_equal(labels, serial.predict(T))
    near(decisions, serial.decision_function(T), 1e-10 if dtype == np.float64 else 1e-5)


def test_default_parts_and_seed(everywhere):
    """One part a rank; the seed of rank 0 counts, also where nobody names one."""
    X, y = drawn_clouds()
    for seed in (None, RANK):
        model = CASVC(comm=WORLD, random_state=seed, partitioner="fcfs").fit(X[even(N)], y[even(N)])
        assert len(model.sizes_) == R
        centers = WORLD.allgather(model.centers_)
        assert all((one == centers[0]).all() for one in centers)


@pytest.mark.parametrize("partitioner", ["random", "bkm"])
def test_weights(partitioner, mine, everywhere):
    """Rows of weight 0 count as absent."""
    (X, y), (T, _), my = drawn_clouds(), drawn_clouds(T_ROWS, 1), even(N)
    w = np.random.default_rng(4).integers(0, 3, N).astype(float)
    kept, given = w > 0, {"n_parts": 5, "gamma": GAMMA, "random_state": 7, "partitioner": partitioner, "comm": WORLD}
    with_zeros = CASVC(**given).fit(X[my], y[my], w[my])
    without = CASVC(**given).fit(X[my][kept[my]], y[my][kept[my]], w[my][kept[my]])
    got, expected = (everywhere(model.decision_function(T[mine(T_ROWS)])) for model in (with_zeros, without))
    np.testing.assert_array_equal(got, expected)


def test_partitioner_instance(mine, everywhere):
    (X, y), (T, _) = drawn_clouds(), drawn_clouds(T_ROWS, 1)
    model = CASVC(partitioner=FCFS(5), gamma=GAMMA, tol=1e-6, random_state=0, comm=WORLD).fit(X[mine(N)], y[mine(N)])
    got = everywhere(model.decision_function(T[mine(T_ROWS)]))
    serial = by_one(CASVC(5, partitioner="fcfs", gamma=GAMMA, tol=1e-6, random_state=0).fit, X, y)
    near(got, serial.decision_function(T), 1e-10)


def test_ratio(mine):
    """Every part has its share of a class that few rows have."""
    X, y = drawn_clouds()
    y = (np.arange(N) % 6 == 0).astype(int)
    model = CASVC(5, partitioner="fcfs", ratio=True, random_state=0, comm=WORLD).fit(X[mine(N)], y[mine(N)])
    assert [len(part.classes) for part in in_order(model.model_.parts).values()] == [2] * 5


def test_convergence_warning():
    """On every rank, with the steps of all."""
    X, y = drawn_clouds()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CASVC(comm=WORLD, max_iter=1, random_state=0).fit(X[even(N)], y[even(N)])
    assert [w.category for w in caught] == [ConvergenceWarning]
    said = set(WORLD.allgather(str(caught[0].message)))
    assert len(said) == 1
    assert f"stopped after {R} iterations" in said.pop()
