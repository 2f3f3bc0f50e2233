"""Trace of a rank: seconds of computation and MPI calls, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

COLLECTIVES = ("barrier", "bcast", "allreduce", "allgather", "alltoall")


@dataclass(frozen=True, slots=True)
class Step:
    """A computation, and the call that ended it.

    Attributes
    ----------
    phase : str
        Phase of the communicator (:class:`cacore.comm.communicator.PhaseCosts`) during the computation.
    seconds : float
        Seconds of computation, on a core of its own.
    call : str
        "allreduce", "allgather", "alltoall", "barrier", "bcast", "send" or "recv"; empty if only the phase ended.
    sizes : ndarray of int64
        Bytes that this rank contributes: one number, or for an alltoall one per receiver.
    peer : int
        The root, receiver or sender; -1 for none. Of a broadcast in a team, its number in the team.
    team : tuple of int
        Ranks that make a collective call; empty for all of them.
    """

    phase: str
    seconds: float
    call: str = ""
    sizes: Any = None
    peer: int = -1
    team: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Total number of bytes that this rank contributes."""
        return 0 if self.sizes is None else int(np.sum(self.sizes))


Trace = list[Step]  # all steps of a rank


def collectives(traces: list[Trace]) -> list[list[Step]]:
    """Collective calls in order, each with the steps of all ranks."""
    return [
        list(steps) for steps in zip(*([s for s in trace if s.call in COLLECTIVES] for trace in traces), strict=True)
    ]
