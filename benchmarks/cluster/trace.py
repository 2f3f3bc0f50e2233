"""What a rank did: seconds of computation and calls of MPI, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Step:
    """Some computation, and the call that ended it.

    Attributes
    ----------
    phase : str
        Of the communicator (:class:`cacore.comm.ledger.Ledger`), during the computation.
    seconds : float
        Of computation, on a core of its own.
    call : str
        "allreduce", "allgather", "alltoall", "barrier", "bcast", "send" or "recv"; "" where only the phase ended.
    sizes : ndarray of int64
        Bytes that this rank brings: one number, of an alltoall one a receiver.
    peer : int
        The root, receiver or sender; -1 for none.
    """

    phase: str
    seconds: float
    call: str = ""
    sizes: Any = None
    peer: int = -1

    @property
    def nbytes(self) -> int:
        """All that this rank brings."""
        return 0 if self.sizes is None else int(np.sum(self.sizes))


Trace = list[Step]  # of a rank


def computation(trace: Trace, phases: tuple[str, ...]) -> float:
    """Seconds that a rank computed in some phases."""
    return sum(step.seconds for step in trace if step.phase in phases)


def scaled(trace: Trace, factor: float) -> Trace:
    """The same trace on cores that are `factor` times as slow."""
    return [Step(step.phase, factor * step.seconds, step.call, step.sizes, step.peer) for step in trace]
