"""Time limits of what the search tries."""

from __future__ import annotations

import signal
import threading
import time

import pytest

import cakernels.search.deadline
from cacore.machine.clock import working_time
from cakernels.search.deadline import TimeIsUp, until


def test_compilation_does_not_count_as_work(monkeypatch):
    """A limit of working seconds ends a block, but not while nothing works; the other limit then does."""
    with pytest.raises(TimeIsUp), until(60, 0.01):
        time.sleep(60)
    with pytest.raises(RuntimeError), until(60, 0.01):
        raise RuntimeError
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    monkeypatch.setattr(cakernels.search.deadline, "working_time", lambda: 0.0)
    begun = time.perf_counter()
    with pytest.raises(TimeIsUp), until(0.2, 0.01):
        time.sleep(60)
    assert time.perf_counter() - begun >= 0.2


def test_an_error_is_raised_once_and_leaves_no_timer():
    """The cleanup after the error, such as closing a file, is not interrupted a second time."""

    def work():
        try:
            time.sleep(60)
        finally:
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
            time.sleep(0.05)

    with pytest.raises(TimeIsUp), until(0.01):
        work()


def test_a_signal_may_come_while_the_clock_is_read(monkeypatch):
    """The handler reads the same clock, and must not wait for the reader, which it interrupts."""
    now, rung = time.perf_counter, []

    def ringing():
        if not rung:
            rung.append(True)
            signal.raise_signal(signal.SIGALRM)
        return now()

    with until(60, 60):
        monkeypatch.setattr(time, "perf_counter", ringing)
        working_time()
        assert rung
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 50


def test_a_late_signal_sets_no_timer_after_the_block(monkeypatch):
    """A signal that came before the end of the block may be handled while the timer is switched off."""
    switch = signal.setitimer

    def late(which, seconds):
        done = switch(which, seconds)
        if not seconds:
            signal.raise_signal(signal.SIGALRM)
        return done

    monkeypatch.setattr(signal, "setitimer", late)
    with until(60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


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
