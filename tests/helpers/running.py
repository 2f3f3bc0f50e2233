"""Events during a run: it is killed at some call, or its time limit passes."""

from __future__ import annotations

from dataclasses import dataclass

from helpers.tuned import CONSTANTS


class Interrupted(Exception):  # noqa: N818
    pass


@dataclass
class Calls:
    """How many were made; the one numbered `last` does not come to pass."""

    made: int = 0
    last: int = -1


def interruptible(monkeypatch, place, name):
    """Count the calls of ``place.name``, on one thread, so that they come in order."""
    work, calls = getattr(place, name), Calls()

    def counting(*args, **kwargs):
        if calls.made == calls.last:
            raise Interrupted
        calls.made += 1
        return work(*args, **kwargs)

    monkeypatch.setattr(CONSTANTS["threads"], 1)
    monkeypatch.setattr(place, name, counting)
    return calls


class Clock:
    """A clock that goes on by as much whenever somebody looks."""

    def __init__(self, step):
        self.step, self.now = step, 0.0

    def perf_counter(self):
        self.now += self.step
        return self.now
