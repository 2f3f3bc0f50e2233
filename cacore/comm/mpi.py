"""Layer between the communicator and mpi4py: calls that are timed and that detect the failure of another rank."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from cacore.comm.failure import Failures, abandon, agree, wait
from cacore.errors import InputError
from cacore.terminal import say

if TYPE_CHECKING:
    from mpi4py import MPI

    from cacore.comm.communicator import Communicator

CommLike: TypeAlias = "MPI.Comm | Communicator | None"  # ranks as a caller names them; None is a single rank

_RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID")
_LAUNCHER_VARIABLES = (*_RANK_VARIABLES, "MPI_LOCALRANKID")
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_HEAD_START = 5.0  # seconds; rank 0 may start later than others
DATA = 0  # tag of messages that carry arrays


class Transport:
    """Wrapper of an mpi4py communicator whose calls are timed, and fail when another rank has failed.

    Every call is nonblocking and then waited for, at no measurable cost (MPICH, 2 ranks, 8 bytes to 80 MB). A rank
    that fails can therefore reach the others wherever they wait, and all of them raise its error.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    spent : callable
        Called with the seconds of each call, including calls that fail.
    """

    def __init__(self, comm: MPI.Comm, spent: Callable[[float], None]) -> None:
        self.comm, self._spent, self.failures = comm, spent, Failures(comm)
        self._abandoned = False

    @property
    def failed(self) -> bool:
        """True if calls of some ranks may be pending for ever, so that the communicator cannot be used any more."""
        return self._abandoned or bool(self.failures.word)

    def call(self, name: str, *args: Any, pauses: bool = True, **options: Any) -> None:
        """Make the nonblocking call ``name``, such as ``"Iallreduce"``, and wait for it; see :func:`wait`."""
        self.failures.check()
        start = perf_counter()
        try:
            self._complete(getattr(self.comm, name)(*args, **options), pauses, name)
        finally:
            self._spent(perf_counter() - start)

    def begin(self, leaving: list[tuple[Any, int]], coming: list[tuple[Any, int]]) -> list[MPI.Request]:
        """Start to send arrays, each to its rank, and to receive others; :class:`Exchange` waits for them."""
        self.failures.check()
        receive, send = self.comm.Irecv, self.comm.Isend
        requests = [receive(array, source=source, tag=DATA) for array, source in coming]
        return requests + [send(array, dest=dest, tag=DATA) for array, dest in leaving]

    def finish(self, requests: list[MPI.Request]) -> None:
        """Wait until all of these calls are complete."""
        start = perf_counter()
        try:
            for at, request in enumerate(requests):
                try:
                    if not request.Test():
                        self._complete(request, pauses=False, name="an exchange of messages")
                except BaseException:
                    abandon(*requests[at + 1 :])
                    raise
        finally:
            self._spent(perf_counter() - start)

    def probe(self, source: int) -> None:
        """Wait until a message from `source` has arrived."""
        self.failures.check()
        start = perf_counter()
        try:
            what = self._waiting(f"a message from rank {source}")
            wait(lambda: self.comm.Iprobe(source=source, tag=DATA), self.failures.listen, what=what)
        finally:
            self._spent(perf_counter() - start)

    def last_barrier(self) -> None:
        """Barrier after which no rank looks for failures; a KeyboardInterrupt is delayed until it is complete."""
        self.failures.check()
        interruption: KeyboardInterrupt | None = None
        request, waiting = self.comm.Ibarrier(), True
        while waiting:
            try:
                self._complete(request, name="the end of the command")
                waiting = False
            except KeyboardInterrupt as error:
                interruption = error
        if interruption is not None:
            raise agree(interruption, self.failures.ranks)  # the other ranks have left: do not report it to them

    def _waiting(self, name: str) -> str:
        """Words for what this rank waits for, for :func:`wait`."""
        return f"rank {self.comm.Get_rank()} of {self.comm.Get_size()}: waiting for {name}"

    def _complete(self, request: MPI.Request, pauses: bool = True, name: str = "") -> None:
        try:
            wait(request.Test, self.failures.listen, pauses, self._waiting(name))
        except BaseException:
            self._abandoned = True
            abandon(request)
            raise


class Exchange:
    """Pending messages; see :meth:`cacore.comm.Communicator.exchange`."""

    def __init__(self, transport: Transport, requests: list[MPI.Request]) -> None:
        self._transport, self._requests = transport, requests

    def move(self) -> None:
        """Let the MPI library make progress on the messages while this rank computes."""
        self._requests = [request for request in self._requests if not request.Test()]

    def wait(self) -> None:
        """Wait until all messages have been sent and received."""
        if self._requests:
            self._transport.finish(self._requests)
            self._requests = []


def launched() -> bool:
    """True if a known MPI launcher started this process."""
    return any(name in os.environ for name in _LAUNCHER_VARIABLES)


def launched_size() -> int:
    """Number of ranks that the launcher reports; 0 if it reports none, or if there is no launcher."""
    return max(_number(name) for name in _SIZE_VARIABLES)


def launched_rank() -> int:
    """Rank of this process as the launcher reports it; 0 if it does not."""
    return max(_number(name) for name in (*_RANK_VARIABLES, *(["SLURM_PROCID"] if launched_size() > 1 else [])))


def alone_by_mistake(size: int) -> str | None:
    """Message if this is one process, of `size` ranks, in a Slurm job for several; None otherwise.

    The process itself cannot know that it was not meant to be alone, as with ``sbatch`` and without ``srun``.
    """
    tasks = _number("SLURM_NTASKS")
    if size > 1 or tasks <= 1:
        return None
    return f"Slurm gave this job {tasks} tasks, and this is one process alone: start it with srun or mpiexec"


def first_prints(line: str) -> None:
    """Print an error that all ranks have found before they met: rank 0 does, the others give it the time to.

    A launcher ends all processes once one has failed: rank 0's line would be lost if another rank failed first.
    """
    if launched_rank() == 0:
        say(line, error=True)
    else:
        time.sleep(_HEAD_START)


def _number(variable: str) -> int:
    """Whole number in an environment variable; 0 if the variable is not set or not a number."""
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _library() -> ModuleType:
    """Import mpi4py's MPI; do not initialise it if Open MPI's mpiexec started this process and the library is another.

    In that case, initialising MPICH would end the process without telling the user what to do.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "suspicious MPI execution environment")  # our own error also gives a remedy
        if "mpi4py.MPI" in sys.modules or _number("OMPI_COMM_WORLD_SIZE") <= 1:
            from mpi4py import MPI

            return MPI
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
    if MPI.get_vendor()[0] == "Open MPI":
        MPI.Init_thread(MPI.THREAD_MULTIPLE)  # as mpi4py itself does
    return MPI


def check_usable(comm: object) -> None:
    """Raise an InputError if `comm` is neither None nor an mpi4py communicator on which this rank can communicate.

    MPI itself would end the process after MPI_Finalize, and give errors without a remedy for the others.
    """
    if comm is None:
        return
    if not hasattr(comm, "Get_size") or not hasattr(comm, "Isend"):  # groups of ranks have a size, too
        raise InputError(f"comm = {comm!r}: give an mpi4py communicator, or None")
    from mpi4py import MPI

    need = "give a communicator of the ranks that take part, or None for this process alone"
    if MPI.Is_finalized():
        raise InputError("comm: MPI is finalized already (MPI.Finalize), so ranks cannot communicate; give None")
    if not MPI.Is_initialized():
        raise InputError("comm: MPI is not initialized yet; call MPI.Init first, or give None")
    if comm == MPI.COMM_NULL:
        raise InputError(f"comm is MPI.COMM_NULL: it was freed, or this rank has no part in it; {need}")
    try:
        between = isinstance(comm, MPI.Comm) and comm.Is_inter()
    except MPI.Exception as error:  # freed under another name
        raise InputError(f"comm: it was freed, and is no communicator any more; {need}") from error
    if between:
        raise InputError("comm: it is an intercommunicator, between two groups of ranks; give what its Merge returns")


def all_ranks() -> MPI.Comm | None:
    """COMM_WORLD of mpi4py; None if no MPI library can be loaded."""
    try:
        mpi = _library()
    except (ImportError, RuntimeError) as error:
        if launched():
            raise InputError(
                f"started by mpiexec, but mpi4py cannot load an MPI ({error}): pip install 'cakernels[mpi]'"
            ) from error
        return None
    ranks = mpi.COMM_WORLD.Get_size() if mpi.Is_initialized() else 1
    started = launched_size() or launched_rank() + 1  # rank 2 implies at least three ranks
    if ranks == 1 < started:
        raise InputError(
            f"started as {started} ranks, but by another MPI than the one that mpi4py loaded ({mpi.get_vendor()[0]}), "
            "so each would run alone: use the mpiexec of that library, or install mpi4py for your mpiexec's library"
        )
    world: MPI.Comm = mpi.COMM_WORLD
    return world
