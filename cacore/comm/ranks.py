"""Communicators of a library call, of a command, and of some of the ranks.

Traffic and failures of the last are those of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from cacore.arrays import usual_errors
from cacore.comm.communicator import CommLike, Communicator, all_ranks, check_usable
from cacore.comm.failure import wait

if TYPE_CHECKING:
    from mpi4py import MPI


@contextmanager
def collective(comm: CommLike) -> Iterator[Communicator]:
    """Provide the communicator for one collective call of the library.

    Parameters
    ----------
    comm : mpi4py communicator, Communicator or None
        An mpi4py communicator is duplicated, so that messages sent here cannot match the caller's. After an error,
        which all ranks raise, the caller's communicator still works. The duplicate is freed at the end, unless a
        single rank failed: then calls on it may be pending for ever. A Communicator is used directly, because it counts
        the traffic of several calls. After a rank has failed, neither it nor the communicator it wraps can be used.

    Raises
    ------
    InputError, RankError
        Error of the rank that failed, on all ranks. An InputError of this rank alone, if `comm` cannot be used at all;
        see :func:`cacore.comm.communicator.check_usable`.
    """
    check_usable(comm.mpi if isinstance(comm, Communicator) else comm)
    if comm is None or isinstance(comm, Communicator) or comm.Get_size() == 1:
        ranks = as_communicator(comm)
        with ranks.guard(), usual_errors():
            yield ranks
        return
    ranks = Communicator(_duplicate(comm, "the other ranks to make this call"), owns_comm=True)
    try:
        with ranks.guard(), usual_errors():
            yield ranks
    finally:
        if not ranks.failed:
            ranks.free()


def as_communicator(comm: CommLike) -> Communicator:
    """Return `comm` itself if it is a Communicator; wrap an mpi4py communicator; None gives a single rank."""
    if isinstance(comm, Communicator):
        return comm
    check_usable(comm)
    return Communicator(comm)


def _duplicate(comm: MPI.Comm, purpose: str) -> MPI.Comm:
    """A duplicate of the communicator; a rank that waits long for it says what for, its `purpose`."""
    duplicate, request = comm.Idup()
    wait(request.Test, what=f"rank {comm.Get_rank()} of {comm.Get_size()}: waiting for {purpose}")
    return duplicate


def world() -> Communicator:
    """Communicator of all ranks of the job, for a command; a single rank if no MPI library can be loaded."""
    ranks = all_ranks()
    if ranks is None or ranks.Get_size() == 1:
        return Communicator(ranks, ends_job=True)
    # At the end MPICH prints a line about calls that are pending on the original.
    return Communicator(_duplicate(ranks, "the other ranks to start"), ends_job=True, owns_comm=True)


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
        members = _Team(comm, ranks)
    failed = True
    try:
        yield members
        failed = False
    finally:
        if ranks is not None and not failed:
            ranks.Free()
