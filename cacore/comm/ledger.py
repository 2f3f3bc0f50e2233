"""Traffic and time of a rank, by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

PHASES = ("read", "partition", "train", "predict")


class Ledger:
    """Bytes, messages and seconds of one rank, charged to its current phase.

    Parameters
    ----------
    rank, size : int

    Attributes
    ----------
    seconds : dict of str to float
        Wall-clock seconds of this rank in each phase. In a command, `start` is the time of the process before, and
        `compile` that of compilation, in whichever phase it is needed.
    mpi_seconds : dict of str to float
        Seconds of these inside MPI calls, including waits for other ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._phase = "other"
        self._entered, self._compiled = time.perf_counter(), 0.0
        self._compiling: Callable[[], float] = float  # 0, until there is a clock
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.mpi_seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        # See `sent` for the layout. Lists, since every message adds to one entry: 0.2 us, and 10 in an array.
        self._sent: dict[str, tuple[list[int], list[int]]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge bytes, messages and seconds inside the block to phase `name`; phases may nest."""
        outer = self._switch(name)
        try:
            yield
        finally:
            self._switch(outer)

    def charge_compilation(self, clock: Callable[[], float]) -> None:
        """From now on, charge to phase "compile" the seconds by which `clock` advances in any phase."""
        self._compiling, self._compiled = clock, clock()

    def _switch(self, name: str) -> str:
        now, compiled = time.perf_counter(), self._compiling()
        aside = compiled - self._compiled
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._entered - aside
        if aside:
            self.seconds["compile"] = self.seconds.get("compile", 0.0) + aside
        self._entered, self._compiled = now, compiled
        outer, self._phase = self._phase, name
        return outer

    def clock(self) -> dict[str, float]:
        """Seconds of this rank in each phase so far: PHASES first, then the others sorted by name."""
        self._switch(self._phase)
        return {p: self.seconds[p] for p in (*PHASES, *sorted(set(self.seconds) - set(PHASES)))}

    def _spent(self, seconds: float) -> None:
        self.mpi_seconds[self._phase] = self.mpi_seconds.get(self._phase, 0.0) + seconds

    def _count(self, nbytes: int, dest: int | None = None) -> None:
        slot = self.size if dest is None else dest
        if slot == self.rank or nbytes == 0:
            return
        if self._phase not in self._sent:
            self._sent[self._phase] = [0] * (self.size + 1), [0] * (self.size + 1)
        total, messages = self._sent[self._phase]
        total[slot] += nbytes
        messages[slot] += 1

    def sent(self, phase: str) -> NDArray[np.int64]:
        """Bytes (row 0) and messages (row 1) sent in `phase`, by receiver; the last column has no single receiver."""
        return np.array(self._sent.get(phase, np.zeros((2, self.size + 1))), np.int64)

    def absorb(self, other: Ledger) -> None:
        """Add what `other`, a ledger of the same ranks, has counted as sent."""
        for phase in other._sent:
            total, messages = (self.sent(phase) + other.sent(phase)).tolist()
            self._sent[phase] = total, messages

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave the traffic of the block, such as that of the measurement itself, out of the counters."""
        saved = {phase: (total.copy(), messages.copy()) for phase, (total, messages) in self._sent.items()}
        try:
            yield
        finally:
            self._sent = saved
