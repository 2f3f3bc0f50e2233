"""Time limits of what the search tries."""

from __future__ import annotations

import signal
import threading
import time

import pytest

import cakernels.search.deadline
from cakernels.search.deadline import TimeIsUp, until


def test_compilation_does_not_count_as_work(monkeypatch):
    """A limit of working seconds ends a block, but not while nothing works; the other limit then does."""
    with pytest.raises(TimeIsUp), until(60, 0.01):
        time.sleep(60)
    with until(60, 0.2), pytest.raises(RuntimeError), until(60, 0.01):
        raise RuntimeError
    monkeypatch.setattr(cakernels.search.deadline, "working_time", lambda: 0.0)
    begun = time.perf_counter()
    with pytest.raises(TimeIsUp), until(0.2, 0.01):
        time.sleep(60)
    assert time.perf_counter() - begun >= 0.2


def test_time_is_up_in_the_main_thread_alone():
    with pytest.raises(TimeIsUp), until(0.01):
        time.sleep(60)
    before = signal.getsignal(signal.SIGALRM)
    with until(1000):
        pass
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with until(None):
        assert signal.getsignal(signal.SIGALRM) is before
    ended = []

    def apart():
        with until(1e-3):
            time.sleep(0.05)
        ended.append(True)

    thread = threading.Thread(target=apart)
    thread.start()
    thread.join()
    assert ended
