"""Dis-SMO as a method: beside other SVMs, refusals, checkpoints, and runs that are killed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.checks import inodes, near, same_part
from helpers.data import as_csr, drawn_clouds
from helpers.dissmo import KERNEL, LIMITS, PLENTY, C, N, check, problem, reference

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint, Unfinished
from cacore.machine.memory import MemoryLimitError
from cacore.svm.dual import Dual
from cacore.svm.options import GIB
from casvm.dissmo import dissmo
from casvm.methods import all_rows
from casvm.options import SVMOptions
from casvm.solver import distributed
from casvm.solver.smo import PartTraining


@pytest.fixture
def eager(tuned):
    """Rows leave at the first occasion: often too early, so that some have to come back."""
    tuned(touch=0.0, look=1)
    eagerly = replace(distributed.SHRINKING, patience=1, share=0.05, share_if_copied=0.05)
    tuned(dissmo_shrinking=eagerly)


# -- as a method -------------------------------------------------------------------------------------


def classes(k):
    return drawn_clouds(200, k, k)


def trained(X, y, weights=None, **more):
    options = SVMOptions(**{"gamma": 0.4, "C": 2.0, "tol": 1e-6, "cache_gib": PLENTY / GIB, **more})
    return dissmo(Dataset(X, y, weights=weights), options)


@pytest.mark.parametrize(("k", "csr"), [(2, True), (3, True), (4, False)], ids=["2 csr", "3 csr", "4 dense"])
def test_alone_and_together(k, csr):
    """One rank is the local solver's, unless a working set is asked for: the same model, to the tolerance."""
    X, y = classes(k)
    X = as_csr(X, csr, 0.5)
    weights = np.random.default_rng(0).choice([0.0, 0.5, 1.0, 2.0], 200)
    alone, together = trained(X, y, weights), trained(X, y, weights, working_set=8)
    there = np.count_nonzero(weights)
    assert (alone.sizes.tolist(), together.sizes.tolist()) == ([there], [there])
    for name in ("n_support", "objective"):
        assert together.solver[name] == pytest.approx(alone.solver[name], rel=1e-6)
    assert together.solver["gap"][0] < 1e-6
    assert all(values.shape == (1,) for values in together.solver.values())
    (one,), (other,) = alone.model.parts.values(), together.model.parts.values()
    np.testing.assert_array_equal(one.rows, other.rows)
    assert (weights[other.rows] > 0).all()
    assert one.n_support.tolist() == other.n_support.tolist()
    near(other.coef, one.coef, 1e-3)
    near(other.b, one.b, 1e-5)
    assert abs(other.X - X[other.rows]).sum() == 0
    decisions = [result.model.decision_function(X) for result in (alone, together)]
    near(*decisions, 1e-5)


@pytest.mark.parametrize("limit", [{"max_iter": 5}, {"max_time": 1e-9}], ids=str)
def test_limit_is_noted(limit):
    X, y = classes(3)
    result = trained(X, y, working_set=4, **limit)
    (note,) = result.notes
    steps, gap = result.solver["iterations"][0], result.solver["gap"][0]
    assert note.startswith(
        f"the solver stopped after {steps} iterations at a violation of {gap:.3g}, above tol = 1e-06"
    )
    assert steps <= 15
    assert np.isfinite(result.model.decision_function(X)).all()


def test_as_a_function():
    X, y = classes(2)
    result = dissmo(Dataset(X, y), SVMOptions(working_set=8))
    assert (result.model.method, result.model.route) == ("dissmo", "sum")
    np.testing.assert_array_equal(
        result.model.predict(X), dissmo(Dataset(X, y), SVMOptions(partitions=1)).model.predict(X)
    )


def test_parts_are_refused():
    with pytest.raises(InputError, match="partitions = 2 on 1 ranks: dissmo solves one problem"):
        trained(*classes(2), partitions=2)


def test_memory_is_refused():
    X, y = classes(2)
    with pytest.raises(MemoryLimitError, match="storing a rank's rows and its kernel cache needs"):
        trained(X, y, memory_limit=X.nbytes + 1000, cache_gib=1001 / GIB)
    trained(X, y, memory_limit=X.nbytes + 1000, cache_gib=1000 / GIB)


@pytest.mark.parametrize("working_set", [None, 8])
def test_checkpoint(working_set, tmp_path, forbidden):
    """The second time nothing is solved, and the model is the same, bit for bit."""
    X, y = classes(3)

    def again():
        return trained(X, y, working_set=working_set, tol=1e-3, checkpoint=Checkpoint(tmp_path / "kept"))

    first = again()
    kept = inodes(tmp_path / "kept")
    pairs = [f"pair-{number:06d}-rank000000.npz" for number in range(3)]
    assert sorted(kept) == sorted([*(["alone.npz"] if working_set is None else pairs), "lock", "run.json"])
    with forbidden("casvm.methods.all_rows.solve", "casvm.solver.smo.solve"):
        second = again()
    if working_set is not None:
        (tmp_path / "kept" / pairs[1]).unlink()
    third = again()
    for other in (second, third):
        for name in ("iterations", "n_support", "objective", "gap", "kernel_rows"):
            assert other.solver[name].tolist() == first.solver[name].tolist()
        same_part(other.model.parts[0], first.model.parts[0])
    with pytest.raises(InputError, match="working_set was"):
        trained(X, y, working_set=16, tol=1e-3, checkpoint=Checkpoint(tmp_path / "kept"))


# -- runs that are killed ------------------------------------------------------------------------------


class KilledError(Exception):
    """The end of a run."""


def test_a_killed_run_goes_on(tmp_path, eager):
    """From the last state that was kept, with what was counted until then."""
    X, y = problem()
    K, expected = reference()
    checkpoint = Checkpoint(tmp_path / "kept")
    checkpoint.open({}, Communicator())

    def go(watch=None):
        state = Unfinished(checkpoint, "piece", Communicator(), seconds=0.0)
        dual = Dual.classification(y, np.full(N, C))
        training = PartTraining(KERNEL, LIMITS, PLENTY, watch=watch)
        return all_rows.solve(X, dual, training, Communicator(), 8, state), state

    def kill(now):
        if now.iterations > 200:
            raise KilledError

    with pytest.raises(KilledError):
        go(kill)
    kept = Unfinished(checkpoint, "piece", Communicator()).get()
    assert 150 < kept["counts"][0] <= 250
    seen = []
    share, state = go(seen.append)
    assert seen[0].iterations > kept["counts"][0]  # not from the beginning
    assert seen[0].objective > 0.5 * expected
    assert share.rounds == kept["counts"][1] + len(seen)
    check(share, K, y, C, 1e-3)
    assert share.objective == pytest.approx(expected, rel=1e-6)
    state.remove()
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["lock", "run.json"]


def test_states_that_count(tmp_path):
    """The newest, and the one before it where not all ranks have the newest."""
    checkpoint = Checkpoint(tmp_path / "kept")
    checkpoint.open({}, Communicator())

    def state():
        return Unfinished(checkpoint, "piece", Communicator(), seconds=1e9)

    assert state().get() is None
    first = state()
    for value in range(4):
        first.put(beta=np.full(3, value))
    assert not first.due()
    second = state()
    assert second.get()["beta"].tolist() == [3, 3, 3]
    second.put(beta=np.full(3, 9))
    assert state().get()["beta"].tolist() == [9, 9, 9]
    (tmp_path / "kept" / "piece-unfinished-1-rank000000.npz").unlink()
    assert state().get()["beta"].tolist() == [3, 3, 3]
