"""Communicators of some of the ranks, whose traffic and failures are those of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from cacore.comm.communicator import Communicator

if TYPE_CHECKING:
    from mpi4py import MPI


class _Team(Communicator):
    """Communicator of ranks of `whole`, to which it charges its traffic and seconds."""

    def __init__(self, whole: Communicator, comm: MPI.Comm | None) -> None:
        super().__init__(comm)
        self._whole = whole
        self._numbers = self.allgather(np.array([whole.rank]), np.ones(self.size, np.int64)).tolist()
        self.share_failures(whole)

    def _count(self, nbytes: int, dest: int | None = None) -> None:
        self._whole._count(nbytes, None if dest is None else self._numbers[dest])

    def _spent(self, seconds: float) -> None:
        self._whole._spent(seconds)


@contextmanager
def team(comm: Communicator, number: int) -> Iterator[Communicator]:
    """Provide the communicator of the ranks that give the same number, in their order; collective.

    Notes
    -----
    Its traffic is counted by `comm`, in its phase. A rank that fails is noticed by all ranks of `comm`. One MPI call,
    and an Allgather of 8 bytes per rank that is not counted. Inside the block, `comm` must not be used by some teams
    only.
    """
    ranks = None
    if comm.mpi is not None:
        comm.barrier()  # detects failed ranks, which Split does not
        ranks = comm.mpi.Split(number, comm.rank)
    with comm.uncounted():
        made = _Team(comm, ranks)
    failed = True
    try:
        yield made
        failed = False
    finally:
        if ranks is not None and not failed:
            ranks.Free()
