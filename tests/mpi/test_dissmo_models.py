"""Dis-SMO on rows of many ranks: models, checkpoints, killed runs, and the estimator."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from helpers.checks import inodes, names, near
from helpers.data import FORMS, drawn_clouds
from helpers.dissmo_on_ranks import GAMMA, KERNEL, PLENTY, T_ROWS, C, N, serial, signs, train
from helpers.distributed import RANK, WORLD, R, by_one, even, refused_by_all
from sklearn.exceptions import ConvergenceWarning

from cacore.comm import Communicator
from cacore.io.checkpoint import Checkpoint, Unfinished
from cacore.limits import Limits
from cacore.svm.dual import Dual
from casvm import SMOSVC, DisSMOSVC, SVMModel
from casvm.methods import all_rows
from casvm.model.part_svm import join
from casvm.solver.smo import PartTraining

pytestmark = pytest.mark.mpi(min_size=1)


# -- the same solution on any number of ranks ----------------------------------------------------------


def test_a_killed_run_goes_on(folder):
    """From the last state that all ranks have; one of them was killed before it had written the newest."""
    X, y = drawn_clouds()
    my, comm, checkpoint = even(N), Communicator(WORLD), Checkpoint(folder / "kept")
    checkpoint.open({}, comm)

    def go(watch, most=-1):
        dual, state = Dual.classification(signs(y)[my], np.full(N, C)[my]), Unfinished(checkpoint, "piece", comm, 0.0)
        limits = Limits(1e-3, max_iter=most)
        return all_rows.solve(X[my], dual, PartTraining(KERNEL, limits, PLENTY, watch=watch), comm, 8, state), state

    go(None, 100)
    kept = Unfinished(checkpoint, "piece", comm).get()
    if RANK == R - 1:
        newest = max(checkpoint.path.glob(f"*-rank{RANK:06d}.npz"), key=lambda path: int(np.load(path)["state"]))
        newest.unlink()
    WORLD.Barrier()
    before, seen = Unfinished(checkpoint, "piece", comm).get(), []
    assert 0 < before["counts"][0] < kept["counts"][0]
    share, state = go(seen.append)
    assert share.rounds == before["counts"][1] + len(seen)
    assert share.converged
    assert share.objective == pytest.approx(serial(X, signs(y)).objective, rel=1e-6)
    state.remove()
    WORLD.Barrier()
    assert names(checkpoint.path) == ["lock", "run.json"]


# -- models, checkpoints -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "csr"), [(2, False), (3, True)])
def test_saved_by_many_and_loaded_by_one(k, csr, folder, half, everywhere):
    (X, y), (T, _) = drawn_clouds(k=k, csr=csr), drawn_clouds(T_ROWS, 1, k, csr)
    model = train(X, y, even(N), Communicator(WORLD), standardize=True).model
    model.save(folder / "many.h5")
    got, labels = everywhere(model.decision_function(T[even(T_ROWS)])), everywhere(model.predict(T[even(T_ROWS)]))
    b, whole = model.intercepts(), join(WORLD.allgather(model.parts[RANK]))
    together = SVMModel.load(folder / "many.h5", WORLD)
    again, same_b = everywhere(together.decision_function(T[even(T_ROWS)])), together.intercepts()
    of_half = SVMModel.load(folder / "many.h5", half)
    decided, half_b = of_half.decision_function(T), of_half.intercepts()  # each half of the ranks by itself
    alone = SVMModel.load(folder / "many.h5")
    for other in (again, decided, alone.decision_function(T)):
        near(other, got, 1e-12)
    for other in (same_b, half_b, alone.intercepts()):
        np.testing.assert_array_equal(other, b)
    np.testing.assert_array_equal(alone.predict(T), labels)
    for field in ("rows", "coef", "b", "n_support"):
        np.testing.assert_array_equal(getattr(alone.parts[0], field), getattr(whole, field))
    assert alone.sizes.tolist() == [model.sizes.sum()]
    assert names(folder) == ["many.h5"]


def test_saved_by_one_and_loaded_by_many(folder, everywhere):
    """One piece, which one of the ranks then has."""
    (X, y), (T, _) = drawn_clouds(k=3), drawn_clouds(T_ROWS, 1, k=3)
    alone = by_one(train, X, y).model
    if RANK == 0:
        alone.save(folder / "one.h5")
    WORLD.Barrier()
    loaded = SVMModel.load(folder / "one.h5", WORLD)
    got, b = everywhere(loaded.decision_function(T[even(T_ROWS)])), loaded.intercepts()
    near(got, alone.decision_function(T), 1e-12)
    np.testing.assert_array_equal(b, alone.intercepts())


def test_checkpoint(folder, recorded):
    """Every rank keeps its share of each pair of classes; if one share is missing, all begin that pair again."""
    X, y = drawn_clouds(k=3)

    def again():
        result = train(X, y, even(N), Communicator(WORLD), working_set=8, checkpoint=Checkpoint(folder / "kept"))
        WORLD.Barrier()
        files = inodes(folder / "kept")
        WORLD.Barrier()
        return result, files

    first, kept = again()
    assert sorted(kept) == [
        "lock",
        *(f"pair-{p:06d}-rank{rank:06d}.npz" for p in range(3) for rank in range(R)),
        "run.json",
    ]
    solved = recorded(all_rows, "solve")
    second, now = again()
    assert (now, solved) == (kept, [])
    if RANK == R - 1:
        (folder / "kept" / f"pair-000001-rank{RANK:06d}.npz").unlink()
    WORLD.Barrier()
    third, now = again()
    assert (len(solved), sorted(now)) == (1, sorted(kept))
    for other in (second, third):
        for name in ("iterations", "n_support", "objective", "gap", "kernel_rows"):
            np.testing.assert_array_equal(other.solver[name], first.solver[name])
        for field in ("X", "rows", "coef", "b", "n_support"):
            one, same = (getattr(result.model.parts[RANK], field) for result in (first, other))
            np.testing.assert_array_equal(one, same)


# -- the estimator --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["dense", "csr float32"])
def test_estimator(form, mine, everywhere):
    """Labels of text; rows of weight 0 count as absent."""
    csr, dtype = FORMS[form]
    (X, y), (T, u) = drawn_clouds(csr=csr, dtype=dtype, k=3), drawn_clouds(T_ROWS, 1, 3, csr, dtype)
    names, my, our = np.array(["aye", "nay", "żub"]), mine(N), mine(T_ROWS)
    w = np.random.default_rng(4).integers(0, 3, N).astype(float)
    model = DisSMOSVC(gamma=GAMMA, C=C, class_weight="balanced", comm=WORLD).fit(X[my], names[y[my]], w[my])
    labels, score = everywhere(model.predict(T[our])), model.score(T[our], names[u[our]])
    decisions = everywhere(model.decision_function(T[our]))
    supports = WORLD.allgather((model.support_, model.n_support_, model.intercept_))
    alone = by_one(SMOSVC(gamma=GAMMA, C=C, class_weight="balanced").fit, X, names[y], w)
    near(decisions, alone.decision_function(T), 5e-3)
    assert np.count_nonzero(labels != alone.predict(T)) <= 1
    assert score == pytest.approx((labels == names[u]).mean())
    assert set(WORLD.allgather(score)) == {score}
    assert model.classes_.tolist() == names.tolist()
    near(sum(counts for _, counts, _ in supports), alone.n_support_, 3)
    for *_, b in supports:
        near(b, alone.intercept_, 2e-3)


def test_convergence_warning():
    """On every rank, the same."""
    X, y = drawn_clouds()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DisSMOSVC(comm=WORLD, max_iter=7).fit(X[even(N)], y[even(N)])
    assert [w.category for w in caught] == [ConvergenceWarning]
    said = set(WORLD.allgather(str(caught[0].message)))
    assert len(said) == 1
    assert "the solver stopped after 7 iterations" in said.pop()


@pytest.mark.parametrize("partitions", [R + 1, 1])
def test_parts_are_refused(partitions):
    """But as many as ranks are what there is."""
    X, y = drawn_clouds()
    if partitions == R:
        train(X, y, even(N), Communicator(WORLD), partitions=partitions)
        return
    refused_by_all(
        lambda: train(X, y, even(N), Communicator(WORLD), partitions=partitions),
        match=f"partitions = {partitions} on {R} ranks",
    )
