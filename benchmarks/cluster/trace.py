"""What a rank did: seconds of computation and calls of MPI, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

COLLECTIVES = ("barrier", "bcast", "allreduce", "allgather", "alltoall")


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


def collectives(traces: list[Trace]) -> list[list[Step]]:
    """The collective calls in order, each as every rank made it."""
    return [
        list(steps) for steps in zip(*([s for s in trace if s.call in COLLECTIVES] for trace in traces), strict=True)
    ]
