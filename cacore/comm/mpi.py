"""What lies between the communicator and mpi4py: all ranks of the job, and a clock around every call."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

from cacore.errors import InputError

_LAUNCHER_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "PALS_RANKID")
_SPIN, _LONGEST = 1e-3, 5e-3  # seconds of waiting in a loop, and of the longest pause afterwards
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


class Timed:
    """An mpi4py communicator whose every call tells how long it took.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    spent : callable
        Called with the seconds of each call, also of one that fails.
    """

    def __init__(self, comm: Any, spent: Callable[[float], None]) -> None:
        self._comm, self._spent = comm, spent

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):  # no call of MPI's: what copying and pickling ask for
            raise AttributeError(name)
        call, spent = getattr(self._comm, name), self._spent

        def timed(*args: Any, **options: Any) -> Any:
            start = perf_counter()
            try:
                return call(*args, **options)
            finally:
                spent(perf_counter() - start)

        setattr(self, name, timed)  # made once: the next call finds it without coming here
        return timed


def patiently(done: Callable[[], bool], spent: Callable[[float], None]) -> None:
    """Wait until it is done, and tell the seconds; without keeping a core busy for long: others may have work for it.

    MPI libraries wait in a loop, so that ranks that have nothing to do slow down those that share their cores.
    """
    start, pause = perf_counter(), 0.0
    while not done():
        if perf_counter() - start > _SPIN:
            pause = min(_LONGEST, pause + _SPIN / 10)
            sleep(pause)
    spent(perf_counter() - start)


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
