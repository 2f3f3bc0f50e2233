"""What lies between the communicator and mpi4py: calls that are timed, and that hear of another rank's failure."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

from cacore.comm.failure import Failures, abandon, agree, wait
from cacore.errors import InputError

_LAUNCHER_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "PALS_RANKID")
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
DATA = 0  # tag of arrays


class Transport:
    """An mpi4py communicator whose calls are timed, and end with an error when another rank has failed.

    Every call is a nonblocking one that is waited for, at no measurable cost (MPICH, 2 ranks, 8 bytes to 80 MB):
    so a rank that fails can tell the others, wherever they are waiting, and all of them raise its error.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    spent : callable
        Called with the seconds of each call, also of one that fails.
    """

    def __init__(self, comm: Any, spent: Callable[[float], None]) -> None:
        self.comm, self._spent, self.failures = comm, spent, Failures(comm)
        self._abandoned = False

    @property
    def failed(self) -> bool:
        """Whether calls of some ranks may be pending for ever: the communicator cannot be used any more."""
        return self._abandoned or bool(self.failures.word)

    def call(self, name: str, *args: Any, pauses: bool = True, **options: Any) -> None:
        """Make the nonblocking call ``name`` (``"Iallreduce"``) and wait until it is done; see :func:`wait`."""
        self.failures.check()
        start = perf_counter()
        try:
            self._complete(getattr(self.comm, name)(*args, **options), pauses)
        finally:
            self._spent(perf_counter() - start)

    def probe(self, source: int) -> None:
        """Wait until a message from `source` is there."""
        self.failures.check()
        start = perf_counter()
        try:
            wait(lambda: self.comm.Iprobe(source=source, tag=DATA), self.failures.listen)
        finally:
            self._spent(perf_counter() - start)

    def last_barrier(self) -> None:
        """A barrier after which nobody listens any more: a user's interruption of this rank waits for its end."""
        self.failures.check()
        interruption: KeyboardInterrupt | None = None
        request, waiting = self.comm.Ibarrier(), True
        while waiting:
            try:
                self._complete(request)
                waiting = False
            except KeyboardInterrupt as error:
                interruption = error
        if interruption is not None:
            raise agree(interruption, self.failures.ranks)  # there is nobody left to tell

    def _complete(self, request: Any, pauses: bool = True) -> None:
        try:
            wait(request.Test, self.failures.listen, pauses)
        except BaseException:
            self._abandoned = True
            abandon(request)
            raise


def launched() -> bool:
    """Whether a launcher of MPI that is known has started this process."""
    return any(name in os.environ for name in _LAUNCHER_VARIABLES)


def all_ranks() -> Any:
    """mpi4py's COMM_WORLD; None where no MPI library can be loaded."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        if launched():
            raise InputError(
                f"started by mpiexec, but mpi4py cannot load an MPI ({error}): pip install 'cakernels[mpi]'"
            ) from error
        return None
    ranks = MPI.COMM_WORLD.Get_size()
    started = max(int(os.environ.get(name, "1")) for name in _SIZE_VARIABLES)
    if ranks == 1 < started:
        library = MPI.Get_library_version().split()[0].strip("\0,:")
        raise InputError(
            f"started as {started} ranks, but by another MPI than the one that mpi4py loaded ({library}), so each "
            "would run alone: use that library's own mpiexec, or install mpi4py for yours"
        )
    return MPI.COMM_WORLD
