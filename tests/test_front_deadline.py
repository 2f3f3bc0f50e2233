"""Time limits of what the search tries: they are polled, so that no loading module is interrupted."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

import cacore.machine.clock
from cacore.comm import Communicator
from cacore.machine import threads
from cacore.machine.deadline import TimeIsUp, poll, until
from cakernels import AutoKernelRegressor
from cakernels.search.blending import started
from cakernels.search.candidates import first
from cakernels.search.data import Data
from cakernels.search.scores import SCORES
from cakernels.search.trial import Budget
from casvm import SMOSVC

ALONE = Communicator()


def endless():
    while True:
        time.sleep(1e-3)
        poll()


def test_compilation_does_not_count_as_work(monkeypatch):
    """A limit of working seconds ends a block, but not while nothing works; the other limit then does."""
    with pytest.raises(TimeIsUp), until(60, 0.01):
        endless()
    monkeypatch.setattr(cacore.machine.clock, "working_time", lambda: 0.0)
    begun = time.perf_counter()
    with pytest.raises(TimeIsUp), until(0.2, 0.01):
        endless()
    assert time.perf_counter() - begun >= 0.2


def test_nested_limits_end_separately():
    poll()
    with until(None):
        poll()
    with until(1e-9):
        with until(60):
            poll()
        with pytest.raises(TimeIsUp):
            poll()
    poll()


def test_pool_threads_observe_the_limit(tuned):
    """Tasks of the pool end at their own polls; another thread of the program has no limit."""
    tuned(threads=2)
    workers, apart = set(), []

    def work(number):
        workers.add(threading.current_thread().name)
        endless()

    with pytest.raises(TimeIsUp), until(0.05):
        threads.for_blocks(work, [(0,), (1,), (2,)])
    assert threading.current_thread().name not in workers
    with until(1e-9):
        other = threading.Thread(target=lambda: apart.append(poll()))
        other.start()
        other.join()
    assert apart == [None]


def test_limits_apply_in_any_thread():
    ended = []

    def apart():
        with pytest.raises(TimeIsUp), until(1e-3):
            endless()
        ended.append(True)

    thread = threading.Thread(target=apart)
    thread.start()
    thread.join()
    assert ended


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_every_candidate_ends_soon_after_its_limit(task):
    """A limit that has passed already ends each candidate at its first poll, before it has trained."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = X[:, 0] if task == "regression" else X[:, 0] > 0
    race = started(Data.of(X, y, None, task, ALONE), SCORES["rmse" if task == "regression" else "accuracy"],
                   Budget(None), ALONE, None, 0, 1)  # fmt: skip
    for candidate in first(race.data):
        with pytest.raises(TimeIsUp), until(0.0):
            race.trained(candidate, np.ones(300, bool), 300)


def test_limit_ends_with_its_block():
    X = np.random.default_rng(0).normal(size=(50, 2))
    with pytest.raises(TimeIsUp), until(0.0):
        SMOSVC().fit(X, X[:, 0] > 0)
    assert SMOSVC().fit(X, X[:, 0] > 0).score(X, X[:, 0] > 0) > 0.9


def test_the_callers_alarm_is_left_alone():
    """A watchdog of the program, set before the fit, still runs afterwards, with its own handler."""
    X = np.random.default_rng(0).normal(size=(40, 2))
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        signal.setitimer(signal.ITIMER_REAL, 500.0)
        AutoKernelRegressor(max_time=60.0, max_candidates=1, random_state=0).fit(X, X[:, 0])
        assert 400 < signal.getitimer(signal.ITIMER_REAL)[0] <= 500
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


LOADED = """
import sys
import numpy as np
from cakernels import AutoKernelClassifier, AutoKernelRegressor
from cakernels.search.race import Race

own = ("asygcd", "cacore", "cakernels", "cakriging", "cakrr", "casvm", "partition")
run = Race.run

def watched(race):
    before = set(sys.modules)
    run(race)
    print(sorted(name for name in set(sys.modules) - before if name.split(".")[0] in own))

Race.run = watched
X = np.random.default_rng(0).normal(size=(30, 2))
if sys.argv[1] == "regression":
    AutoKernelRegressor(max_time=None, max_candidates=14, random_state=0).fit(X, X[:, 0])
else:
    AutoKernelClassifier(max_time=None, max_candidates=10, random_state=0, probability=True).fit(X, X[:, 0] > 0)
"""


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_modules_are_loaded_before_the_first_candidate(task, python):
    """Loading them takes long on a cluster's file system, and would count as the first candidate's time."""
    done = python("-c", LOADED, task)
    assert done.stdout == "[]\n", done.stdout + done.stderr
