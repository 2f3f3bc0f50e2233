"""Asy-GCD's solver watched, failing, and with threads that get in each other's way."""

from __future__ import annotations

import re
import threading
from itertools import pairwise

import numpy as np
import pytest
from helpers.asygcd_solver import (
    LONG,
    PLENTY,
    SUPPORT,
    check_small,
    machine,
    problem,
    slow_down,
    solve,
    working,
)

from asygcd.solver.asygcd import UPDATES, AsyGCD
from cacore.errors import InputError
from cacore.limits import Limits

# -- who watches -------------------------------------------------------------------------------


@pytest.mark.parametrize("update", UPDATES)
def test_progress_reports_are_consistent(monkeypatch, update):
    p = problem()
    same, seen, copies = machine(2, update), [], []
    solve(same, p.y, p.C)
    slow_down(monkeypatch, {0, 1}, 0.01, turns=30)

    def watch(progress):
        seen.append(progress)
        copies.append(progress.alpha())

    got = solve(same, p.y, p.C, watch=watch)
    check_small(got, update)
    assert len(seen) >= 2
    assert 0 < seen[0].seconds < seen[-1].seconds <= got.seconds
    assert all(one.seconds <= other.seconds for one, other in pairwise(seen))
    assert all(one.iterations <= other.iterations for one, other in pairwise(seen))
    assert all(((alpha >= 0) & (alpha <= p.C)).all() for alpha in copies)
    assert all(np.isfinite(one.objective) and isinstance(one.gap, float) and one.gap >= 0 for one in seen)
    assert (seen[-1].iterations, seen[-1].gap) == (got.iterations, got.gap)
    np.testing.assert_array_equal(copies[-1], got.alpha)
    copies[-1][:] = -1  # they are the caller's own
    np.testing.assert_array_equal(seen[-1].alpha(), got.alpha)


@pytest.mark.parametrize("start", ["zero", "warm", "infeasible"])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_reported_objective_matches_the_solution(threads, update, start):
    p, rng = problem(), np.random.default_rng(25)
    begins = {"zero": None, "warm": rng.uniform(0, 1, 203), "infeasible": rng.normal(0, 100, 203)}[start]
    same = machine(threads, update)
    for _ in range(2):
        seen = []
        got = solve(same, p.y, p.C, start=begins, watch=seen.append)
        assert seen[-1].objective == pytest.approx(got.objective, rel=1e-8)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("update", UPDATES)
def test_a_watch_that_fails_ends_all(monkeypatch, update, error):
    p = problem()
    same = machine(3, update)
    solve(same, p.y, p.C)
    slow_down(monkeypatch, {0, 1, 2}, 0.02, turns=3)

    def watch(progress):
        assert working()
        raise error("enough")

    with pytest.raises(error, match="enough"):
        solve(same, p.y, p.C, watch=watch)
    assert not working()
    monkeypatch.undo()
    check_small(solve(same, p.y, p.C), update)  # nothing of it is left


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("update", UPDATES)
def test_a_thread_that_fails_ends_all(monkeypatch, update, which):
    p = problem()
    same = machine(3, update)
    solve(same, p.y, p.C)
    slow_down(monkeypatch, {0, 1, 2}, 1e-3, turns=5)
    loop, calls = AsyGCD._loop, []

    def failing(self, state, me, *limits):
        once, end = loop(self, state, me, *limits)

        def turn():
            calls.append(me)
            if calls.count(which) >= 3:
                raise MemoryError("of a thread")
            return once()

        return turn, end

    monkeypatch.setattr(AsyGCD, "_loop", failing)
    with pytest.raises(MemoryError, match="of a thread"):
        solve(same, p.y, p.C, tol=1e-12)
    assert not working()
    monkeypatch.undo()
    check_small(solve(same, p.y, p.C), update)


# -- threads that get in each other's way ------------------------------------------------------


@pytest.mark.parametrize("update", ["owned", "atomic"])
@pytest.mark.parametrize("threads", [2, 3, 4])
def test_a_thread_slower_than_the_others(monkeypatch, threads, update):
    p = problem()
    same = machine(threads, update)
    slow_down(monkeypatch, {threads - 1}, 1e-3)
    check_small(solve(same, p.y, p.C), update)
    monkeypatch.undo()
    slow_down(monkeypatch, set(range(1, threads)), 1e-3, turns=50)
    check_small(solve(same, p.y, p.C), update)


def two_columns(threads, update):
    """Bytes of the smallest cache, as who asks for less is told."""
    with pytest.raises(InputError) as error:
        machine(threads, update, cache_bytes=1000)
    return int(re.search(r"([\d,]+) bytes would", str(error.value))[1].replace(",", ""))


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_a_cache_of_two_columns_a_thread(threads, update):
    p, least = problem(), two_columns(threads, update)
    with pytest.raises(InputError):
        machine(threads, update, cache_bytes=least - 1)
    same = machine(threads, update, cache_bytes=least)
    assert min(len(columns.held) for columns in same.gram.whole) == 2
    got = solve(same, p.y, p.C)
    check_small(got, update)
    assert got.misses.sum() > 203
    check_small(solve(same, -p.y, p.C), update)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("log", [1, 2, 3, 100])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_short_logs(monkeypatch, threads, log, slow):
    p = problem()
    same = machine(threads, cache_bytes=PLENTY if log != 2 else two_columns(threads, "owned"))
    same.log = log
    if slow:
        slow_down(monkeypatch, {0}, 2e-4)
    check_small(solve(same, p.y, p.C), "owned")
    check_small(solve(same, p.y, p.C, start=np.linspace(0, 1, 203)), "owned")


def test_more_threads_than_rows_in_a_cluster():
    p = problem()
    for threads in (40, 203, 500):
        same = machine(threads)
        assert same.threads == min(threads, 203)
        if threads == 40:  # more of them take long to find out that all is done
            check_small(solve(same, p.y, p.C))


def test_two_at_once():
    """Nothing is shared by two solvers that run in threads of their own."""
    p = problem()
    machines, found = [machine(2, update) for update in UPDATES], {}

    def run(k):
        found[k] = machines[k].solve(p.y, p.C, Limits(SUPPORT, max_time=LONG))

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG + 20)
        assert not thread.is_alive()
    for k, update in enumerate(UPDATES):
        check_small(found[k], update)
