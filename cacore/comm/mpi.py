"""What lies between the communicator and mpi4py: calls that are timed, and that hear of another rank's failure."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

import numpy as np

from cacore.errors import InputError, RankError

_LAUNCHER_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "PALS_RANKID")
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_SPIN, _LONGEST = 1e-3, 5e-3  # seconds of waiting in a loop, and of the longest pause afterwards
DATA, FAILURE = 0, 32767  # tags: of arrays, and of a rank's last message

# Requests that will never complete, because a rank has failed: MPI may still write to the memory that they hold.
_ABANDONED: list[Any] = []


class Transport:
    """An mpi4py communicator whose calls are timed, and end with an error when another rank has failed.

    Every call is a nonblocking one that is waited for, at no measurable cost (MPICH, 2 ranks, 8 bytes to 80 MB):
    so a rank that fails can tell the others, wherever they are waiting, and all of them raise its error.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    spent : callable
        Called with the seconds of each call, also of one that fails.

    Attributes
    ----------
    failed : bool
        Whether a rank has failed: calls of the others may be pending, and the communicator cannot be used any more.
    """

    def __init__(self, comm: Any, spent: Callable[[float], None]) -> None:
        self.comm, self._spent, self.failed = comm, spent, False

    def call(self, name: str, *args: Any, **options: Any) -> None:
        """Make the nonblocking call ``name`` (``"Iallreduce"``) and wait until it is done."""
        start = perf_counter()
        try:
            request = getattr(self.comm, name)(*args, **options)
            try:
                self._wait(request.Test, start)
            except BaseException:
                _ABANDONED.append(request)
                raise
        finally:
            self._spent(perf_counter() - start)

    def probe(self, source: int) -> None:
        """Wait until a message from `source` is there."""
        start = perf_counter()
        try:
            self._wait(lambda: self.comm.Iprobe(source=source, tag=DATA), start)
        finally:
            self._spent(perf_counter() - start)

    def _wait(self, done: Callable[[], bool], start: float) -> None:
        """Wait without keeping a core busy for long, which ranks that share it may have work for.

        A pause is at most a tenth of the time waited so far: it delays nothing by more than that.
        """
        while not done():
            waited = perf_counter() - start
            if waited > _SPIN:
                self._raise_failure()
                sleep(min(_LONGEST, 0.1 * waited))

    def _raise_failure(self) -> None:
        """Raise the error of a rank that has failed, if there is one."""
        from mpi4py import MPI

        status = MPI.Status()
        if not self.comm.Iprobe(source=MPI.ANY_SOURCE, tag=FAILURE, status=status):
            return
        self.failed = True
        message = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        self.comm.Recv([message, MPI.BYTE], source=status.Get_source(), tag=FAILURE)
        kind, text = message.tobytes().decode().split(" ", 1)
        raise agreed(InputError(text) if kind == "input" else RankError(text))

    def fail(self, error: BaseException) -> BaseException:
        """Tell all other ranks of this rank's failure; the error that all of them raise."""
        from mpi4py import MPI

        self.failed = True
        shared = error
        if not isinstance(error, InputError):
            shared = RankError(f"rank {self.comm.Get_rank()}: {type(error).__name__}: {error}")
        kind = "input" if isinstance(error, InputError) else "other"
        message = np.frombuffer(f"{kind} {shared}".encode(), np.uint8).copy()
        for rank in range(self.comm.Get_size()):
            if rank != self.comm.Get_rank():
                _ABANDONED.append(self.comm.Isend([message, MPI.BYTE], dest=rank, tag=FAILURE))
        return agreed(shared)


def agreed(error: BaseException) -> BaseException:
    """`error`, marked as one that every rank raises."""
    error.agreed = True  # type: ignore[attr-defined]
    return error


def all_ranks() -> Any:
    """mpi4py's COMM_WORLD; None where no MPI library can be loaded."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        if any(name in os.environ for name in _LAUNCHER_VARIABLES):
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
