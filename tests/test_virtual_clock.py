"""The clock of virtual ranks leaves out garbage collection and its own reading."""

from __future__ import annotations

import gc
import itertools

from benchmarks.cluster.world import World


def test_collections_of_garbage_are_not_timed(tuned):
    """The collector looks at the objects of all ranks; here the clock stands still, except while it works."""
    now = [0.0]

    class Slow:
        def __init__(self):
            self.circle = self

        def __del__(self):
            now[0] += 5.0

    def work(comm):
        comm.barrier()
        Slow()
        gc.collect()
        comm.barrier()

    tuned(virtual_clock=lambda: now[0])
    traces = World(3).run(work)
    assert now == [15.0]
    assert [step.seconds for trace in traces for step in trace] == [0.0] * 6


def test_reading_the_clock_is_not_timed(monkeypatch, tuned):
    """Every reading takes a second here, and nothing else does."""
    seconds = itertools.count()
    tuned(virtual_clock=lambda: float(next(seconds)))
    monkeypatch.setattr("benchmarks.cluster.world.gc.callbacks", [])  # a collection reads the clock as well
    traces = World(3).run(lambda comm: [comm.barrier() for _ in range(3)])
    assert [step.seconds for trace in traces for step in trace] == [0.0] * 9
