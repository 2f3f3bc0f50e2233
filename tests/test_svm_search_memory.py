"""Cross-validation inside parts too large for memory: pieces of parts, the bytes they take, and a full disk."""

import errno
from dataclasses import replace

import numpy as np
from helpers.checks import refusal
from helpers.data import curved

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.holdout import stratified
from cacore.io.checkpoint import Checkpoint
from cacore.kernels import Kernel
from cacore.machine import threads
from casvm import SMOSVC, cpsvm, dissmo
from casvm.options import SVMOptions
from casvm.search import classes
from casvm.search.cross_validation import ClassFolds, bytes_needed, judge

CS, GAMMAS = (0.5, 2.0, 20.0), (0.05, 0.5, 3.0)


def test_large_parts_are_searched_in_pieces(tuned, recorded):
    """The pieces' counts add up: every row is judged once in each round, and the choice is as good."""
    X, y = curved(400)
    whole = SMOSVC(C=CS, gamma=GAMMAS).fit(X, y)
    tuned(piece_most=150, piece_rows=100, whole_parts=399)
    seen = recorded(classes, "judge", lambda _, task, *rest: task.X.shape[0])
    cut = SMOSVC(C=CS, gamma=GAMMAS).fit(X, y)
    assert sum(seen) == 2 * 400  # rounds
    assert max(seen) <= 100
    tuned(whole_parts=400)  # few rows stay together
    together = SMOSVC(C=CS, gamma=GAMMAS).fit(X, y)
    assert seen[-2:] == [400] * 2
    np.testing.assert_array_equal(together.cv_results_["mean_test_score"], whole.cv_results_["mean_test_score"])
    assert cut.cv_results_["mean_test_score"].max() > whole.best_score_ - 0.1


def test_pieces_of_a_precomputed_kernel_have_all_classes(tuned, recorded):
    """Also where the rows are sorted by class: numbers of rows say nothing of what lies together."""
    tuned(piece_most=100, piece_rows=60, whole_parts=100)
    seen = recorded(classes, "judge", lambda _, task, *rest: task.codes)
    X, y = curved(300)
    X, y = X[np.argsort(y)], np.sort(y)
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
    given = SMOSVC(C=[1e-4, 10.0], kernel="precomputed").fit(K, y)
    assert {len(codes) for codes in seen} == {60}
    assert all(len(set(codes)) == 2 for codes in seen)
    assert given.best_params_ == {"C": 10.0}


def test_memory_that_does_not_suffice():
    """Smaller pieces where the matrices do not fit, and a line where nothing does."""
    X, y = curved(400)

    def train(limit):
        options = SVMOptions(C=CS, gamma=0.5, memory_limit=limit)
        return cpsvm.METHOD(Dataset(X, y), replace(options, cache_gib=0.0), Communicator())

    assert train(3_000_000).search.chosen["C"] in CS
    message = refusal(train, 100_000)
    assert "a kernel matrix of 100 rows in each thread needs" in message
    assert "allow more memory (--memory-limit) or use fewer threads (--threads)" in message


def test_the_bytes_of_a_part():
    """With more than two classes, each thread has the matrices of one pair in memory at a time."""
    import tracemalloc

    X = np.random.default_rng(0).normal(size=(1000, 2))
    for k, y, rows in ((2, np.arange(1000) % 2, 1000), (5, np.arange(1000) % 5, 400)):
        task = ClassFolds(X, y, np.ones(1000), stratified(y, 2), np.ones((1, 1, 2), bool))
        judge(task, [Kernel("gaussian", 1.0)], (1e7,), k)
        tracemalloc.start()
        judge(task, [Kernel("gaussian", 1.0)], (1e7,), k)  # of a large C in double precision
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        at_once = min(threads.current(), k * (k - 1) // 2)
        assert 0.6 * bytes_needed(rows) < peak < 1.1 * at_once * bytes_needed(rows)


def test_parts_of_many_classes_stay_whole(tuned, recorded):
    """A part is cut only if its two largest classes are too many rows for one kernel matrix."""
    X, y = np.random.default_rng(0).normal(size=(400, 2)), np.arange(400) % 8
    tuned(piece_most=110, piece_rows=50, whole_parts=399)
    seen = recorded(classes, "judge", lambda _, task, *rest: task.X.shape[0])
    SMOSVC(C=CS, gamma=0.5).fit(X, y)
    assert set(seen) == {400}
    tuned(piece_most=90)
    SMOSVC(C=CS, gamma=0.5).fit(X, y)
    assert max(seen[-8:]) <= 50


def test_pieces_of_another_size_are_not_mixed(tmp_path):
    """A run that goes on with less memory cuts its parts otherwise, and begins its search anew."""
    X, y = curved(400)

    def found(limit, kept):
        options = SVMOptions(C=CS, gamma=0.5, memory_limit=limit, cache_gib=0.0, checkpoint=kept and Checkpoint(kept))
        return cpsvm.METHOD(Dataset(X, y), options, Communicator()).search

    first, second = found(1 << 40, tmp_path / "kept"), found(3_000_000, tmp_path / "kept")
    fresh = found(3_000_000, None)
    np.testing.assert_array_equal(second.scores, fresh.scores)
    assert (second.scores != first.scores).any()
    np.testing.assert_array_equal(found(1 << 40, tmp_path / "kept").scores, first.scores)


def test_more_settings_than_memory():
    X, y = curved(60)
    values = tuple(np.linspace(1.0, 2.0, 1000))
    options = SVMOptions(C=values, gamma=values, memory_limit=1 << 29, cache_gib=0.0)
    message = refusal(cpsvm.METHOD, Dataset(X, y), options, Communicator())
    assert "comparing 1,000,000 settings of C and gamma needs" in message
    assert message.endswith("compare fewer values")


def test_copies_of_the_rows_that_do_not_fit():
    """If parts are made for the search, the copies of the rows are refused before one is made."""
    X, y = curved(400)
    options = SVMOptions(C=CS, gamma=0.5, memory_limit=2 * X.nbytes, cache_gib=0.0)
    message = refusal(dissmo.METHOD, Dataset(X, y), options, Communicator())
    assert "storing a rank's rows and two copies for the search needs" in message


def test_full_disk_is_reported(tmp_path, monkeypatch):
    """Also of a checkpoint inside the run's own."""
    kept = Checkpoint(tmp_path / "kept")

    def full(*_, **arrays):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    X, y = curved(60)
    dissmo.METHOD(Dataset(X, y), SVMOptions(C=CS, gamma=0.5, checkpoint=kept), Communicator())
    assert "No space left on device" in str(kept.failure)
    assert str(kept.path / "search") in str(kept.failure)
