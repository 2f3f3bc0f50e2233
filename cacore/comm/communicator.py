"""The communicator: mpi4py, or a single rank without it, behind calls that are timed, counted and watched.

It sends arrays, counts time, bytes and messages by phase, and detects the failure of another rank.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm.failure import PATIENCE, Failures, abandon, agree, agreed, end_job, packed, unpacked, wait
from cacore.errors import InputError, OutputError
from cacore.terminal import say

if TYPE_CHECKING:
    from mpi4py import MPI


PHASES = ("read", "partition", "train", "predict")


class PhaseCosts:
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

    def absorb(self, other: PhaseCosts) -> None:
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


Number = TypeVar("Number", bound=np.generic)
_DTYPES = tuple(np.dtype(code) for code in "bBhHiIqQfd?")
_LARGE = 1 << 16  # bytes; above this, every MPI library waits for the receiver before it sends
_HEADER = 8  # numbers: dtype, number of dimensions, up to six sizes; cacore/linalg/tsqr.py counts their 64 bytes


class Communicator(PhaseCosts):
    """Wrapper of an mpi4py communicator, or a stand-in for one, that counts what this rank sends: :class:`PhaseCosts`.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm or None
        None means one rank: nothing is imported and nothing is sent.
    chunk_bytes : int
        Longest single message. Larger transfers are split into rounds, so that no count exceeds 2^31 bytes.
    ends_job : bool
        Action of :meth:`guard` if a single rank fails. True, for a command: end the job. False, for the library: raise
        the same error on every rank.
    own : bool
        True if :meth:`free` frees `comm` as well.

    Notes
    -----
    Cost of each call as counted here (a rank's message to itself is never counted):

    =============================  ===============================================================
    bcast, scatter                 the root counts what it hands to each other rank
    gather                         each rank counts what it hands to the root
    allgather, allreduce           each rank counts its contribution once, under no single receiver
    alltoall                       each rank counts what goes to each other rank
    send, exchange, exchange_all   the sender counts it
    =============================  ===============================================================

    Lengths and headers exchanged by these calls are counted as well (an allgather with `counts` needs none). Every
    call but ``send``, ``recv`` and the exchanges is collective: all ranks must make it, in the same order.

    Examples
    --------
    >>> import numpy as np
    >>> from cacore.comm import Communicator
    >>> comm = Communicator()  # one rank; Communicator(MPI.COMM_WORLD) under mpiexec
    >>> with comm.phase("train"):
    ...     total = comm.allreduce(np.array([1.0, 2.0]))
    >>> total.tolist(), comm.size
    ([1.0, 2.0], 1)
    """

    def __init__(
        self,
        comm: MPI.Comm | None = None,
        chunk_bytes: int = 1 << 30,
        *,
        ends_job: bool = False,
        owns_comm: bool = False,
    ) -> None:
        # A communicator of one rank needs no MPI library and sends nothing.
        self._mpi = comm if comm is not None and comm.Get_size() > 1 else None
        super().__init__(*((self._mpi.Get_rank(), self._mpi.Get_size()) if self._mpi is not None else (0, 1)))
        self._transport: Any = Transport(self._mpi, self._spent) if self._mpi is not None else None
        self._chunk, self._ends_job = int(chunk_bytes), ends_job
        self._node: Communicator | None = None
        self._to_free = [comm] if owns_comm and comm is not None else []
        self._guards, self._ranks = 0, object()

    @property
    def mpi(self) -> MPI.Comm | None:
        """The mpi4py communicator of several ranks; None for a single rank."""
        return self._mpi

    @property
    def failed(self) -> bool:
        """True if a rank has failed: calls of others may be pending for ever, and the communicator cannot be used."""
        return self._transport is not None and self._transport.failed

    def __deepcopy__(self, memo: dict[int, object]) -> Communicator:
        return self  # cloning an estimator copies its parameters, but a communicator must be shared

    def wait(self) -> None:
        """Wait for the slowest rank; the time is charged to phase "wait"."""
        with self.phase("wait"):
            self.barrier()

    def totals(self) -> tuple[dict[str, dict[str, int]], dict[str, float]]:
        """Traffic summed over ranks, and seconds of the slowest rank, by phase; its own messages are not counted."""
        seconds = self.clock()
        sent = np.array([self.sent(phase).sum(axis=1) for phase in seconds])
        with self.uncounted():
            sent, slowest = self.allreduce(sent), self.allreduce(np.array(list(seconds.values())), "max")
        traffic = {
            phase: {"bytes": int(nbytes), "messages": int(messages)}
            for phase, (nbytes, messages) in zip(seconds, sent, strict=True)
            if phase in PHASES or messages
        }
        return traffic, dict(zip(seconds, slowest.tolist(), strict=True))

    def barrier(self) -> None:
        """Wait for every rank."""
        if self._mpi is not None:
            self._transport.call("Ibarrier")

    def bcast(self, array: NDArray[Number] | None, root: int = 0) -> NDArray[Number]:
        """Broadcast the root's array to every rank; the argument of the other ranks is ignored."""
        if self._mpi is None:
            assert array is not None
            return array
        head = np.zeros(_HEADER, np.int64)
        if self.rank == root:
            assert array is not None
            array = np.ascontiguousarray(array)
            head[:2] = _DTYPES.index(array.dtype), array.ndim
            head[2 : 2 + array.ndim] = array.shape
        self._bcast(head, root)
        if self.rank != root:
            array = np.empty(tuple(head[2 : 2 + head[1]]), _DTYPES[head[0]])
        assert array is not None
        self._bcast(array, root)
        return array

    def _bcast(self, array: NDArray[np.generic], root: int) -> None:
        for piece in self._pieces(array):
            self._transport.call("Ibcast", piece, root=root)
            if self.rank == root:
                for dest in range(self.size):
                    self._count(piece.nbytes, dest)

    def allreduce(self, array: NDArray[Number], op: str = "sum") -> NDArray[Number]:
        """Element-wise "sum", "min" or "max" over all ranks, on every rank; all arrays have one shape and dtype."""
        if self._mpi is None:
            return np.array(array)
        from mpi4py import MPI

        out, operation = np.array(array, order="C"), {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}[op]
        for piece in self._pieces(out):
            self._transport.call("Iallreduce", MPI.IN_PLACE, piece, op=operation)
            self._count(piece.nbytes)
        return out

    def allgather(self, array: NDArray[Number], counts: NDArray[np.int64] | None = None) -> NDArray[Number]:
        """Concatenate all ranks' rows in rank order, on every rank.

        If all ranks know how many rows each of them has, they pass these `counts`, and no lengths are sent.
        """
        return self.allgather_parts(array, counts)[0]

    def allgather_parts(
        self, array: NDArray[Number], counts: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[Number], NDArray[np.int64]]:
        """All ranks' rows (see :meth:`allgather`), and the number of rows from each rank."""
        array = np.ascontiguousarray(array)
        if counts is not None and (len(counts) != self.size or counts[self.rank] != len(array)):
            raise ValueError(f"counts {counts}, and rank {self.rank} of {self.size} has {len(array)} rows")
        if self._mpi is None:
            return array, np.array([len(array)], np.int64)
        if counts is None:
            counts = np.empty(self.size, np.int64)
            mine = np.array([len(array)], np.int64)
            self._transport.call("Iallgather", mine, counts)
            self._count(mine.nbytes)
        out = np.empty((int(counts.sum()), *array.shape[1:]), array.dtype)
        places = np.cumsum(counts) - counts
        with self._row_type(array) as (row, step):
            for lo in range(0, int(counts.max()), step):
                now = np.clip(counts - lo, 0, step)
                send = array[lo : lo + step]
                where = [out, now, places + lo * (now > 0), row]
                self._transport.call("Iallgatherv", [send, len(send), row], where)
                self._count(send.nbytes)
        return out, counts

    def gather(self, array: NDArray[Number], root: int = 0) -> NDArray[Number] | None:
        """Concatenate all ranks' rows in rank order on the root; None elsewhere."""
        if self._mpi is None:
            return array
        counts = np.zeros(self.size, np.int64)
        counts[root] = len(array)
        rows, _ = self.alltoall(array, counts)
        return rows if self.rank == root else None

    def scatter(self, array: NDArray[Number] | None, counts: NDArray[np.int64], root: int = 0) -> NDArray[Number]:
        """Send ``counts[rank]`` rows of the root's array to each rank; every rank must know `counts`."""
        if self._mpi is None:
            assert array is not None
            return array
        example = self.bcast(array[:0] if array is not None else None, root)
        send = array if self.rank == root and array is not None else example
        return self.alltoall(send, counts if self.rank == root else np.zeros(self.size, np.int64))[0]

    def alltoall(self, array: NDArray[Number], counts: NDArray[np.int64]) -> tuple[NDArray[Number], NDArray[np.int64]]:
        """Send a block of rows from every rank to every rank.

        Parameters
        ----------
        array : ndarray, shape (sum(counts), ...)
            Rows sorted by receiver.
        counts : ndarray of int64, shape (size,)
            Number of rows for each rank.

        Returns
        -------
        rows : ndarray
            Received rows, sorted by sender.
        arrived : ndarray of int64, shape (size,)
            Number of rows from each rank.
        """
        array = np.ascontiguousarray(array)
        if self._mpi is None:
            return array, np.array(counts, np.int64)
        sends = np.array(counts, np.int64)
        arrives = np.empty(self.size, np.int64)
        self._transport.call("Ialltoall", sends, arrives)
        for dest in range(self.size):
            self._count(sends.itemsize, dest)
        out = np.empty((int(arrives.sum()), *array.shape[1:]), array.dtype)
        from_, to = np.cumsum(sends) - sends, np.cumsum(arrives) - arrives
        longest = int(self.allreduce(sends.max(keepdims=True), "max")[0])
        with self._row_type(array) as (row, step):
            for lo in range(0, longest, step):
                now, then = np.clip(sends - lo, 0, step), np.clip(arrives - lo, 0, step)
                leaving, coming = [array, now, from_ + lo * (now > 0), row], [out, then, to + lo * (then > 0), row]
                # All ranks are here after the Allreduce, so no pauses: MPICH moves only 16 KiB per poll, and with
                # pauses 8 MB take 1.2 s instead of 2 ms.
                self._transport.call("Ialltoallv", leaving, coming, pauses=False)
                for dest, rows in enumerate(now):
                    self._count(int(rows) * (array.nbytes // max(1, len(array))), dest)
        return out, arrives

    def send(self, array: NDArray[np.generic], dest: int) -> None:
        """Send an array to rank `dest`, which calls :meth:`recv`."""
        array = np.ascontiguousarray(array)
        head = np.zeros(_HEADER, np.int64)
        head[:2] = _DTYPES.index(array.dtype), array.ndim
        head[2 : 2 + array.ndim] = array.shape
        large = array.nbytes > _LARGE  # wait for the receiver with pauses, then send the pieces without
        self._transport.call("Issend" if large else "Isend", head, dest=dest, tag=DATA)
        self._count(head.nbytes, dest)
        for piece in self._pieces(array):
            self._transport.call("Isend", piece, pauses=not large, dest=dest, tag=DATA)
            self._count(piece.nbytes, dest)

    def recv(self, source: int) -> NDArray[Any]:
        """Receive the array that rank `source` sends."""
        head = np.empty(_HEADER, np.int64)
        self._transport.probe(source)
        self._transport.call("Irecv", head, source=source, tag=DATA)
        array = np.empty(tuple(head[2 : 2 + head[1]]), _DTYPES[head[0]])
        for piece in self._pieces(array):
            self._transport.call("Irecv", piece, pauses=False, source=source, tag=DATA)
        return array

    def exchange(self, array: NDArray[Number], dest: int, out: NDArray[Number], source: int) -> Exchange:
        """Begin to send `array` to rank `dest` and to receive into `out` from rank `source`.

        Both arrays must be C-contiguous and must not be touched until :meth:`Exchange.wait` has returned.
        """
        return self.exchange_all([(array, dest)], [(out, source)])

    def exchange_all(
        self, leaving: list[tuple[NDArray[Number], int]], coming: list[tuple[NDArray[Number], int]]
    ) -> Exchange:
        """Begin to send arrays, each to its rank, and to receive into others, each from its rank; see :meth:`exchange`.

        Empty arrays make no message.
        """
        receives = [(piece, source) for out, source in coming for piece in self._pieces(out)]
        sends = [(piece, dest) for array, dest in leaving for piece in self._pieces(array)]
        for piece, dest in sends:
            self._count(piece.nbytes, dest)
        return Exchange(self._transport, self._transport.begin(sends, receives) if sends or receives else [])

    def offset(self, count: int) -> tuple[int, int]:
        """Global index of the first of this rank's `count` rows, and total number of rows of all ranks."""
        counts = self.allgather(np.array([count], np.int64))
        return int(counts[: self.rank].sum()), int(counts.sum())

    def node(self) -> Communicator:
        """Communicator of the ranks that share this machine."""
        if self._node is None:
            if self._mpi is not None:
                from mpi4py import MPI

                self.barrier()  # detects failed ranks, which Split_type does not
                self._to_free.append(self._mpi.Split_type(MPI.COMM_TYPE_SHARED))
            self._node = Communicator(self._to_free[-1] if self._to_free else None, self._chunk)
            self._node.share_failures(self)
        return self._node

    def share_failures(self, other: Communicator) -> None:
        """From now on, notice every rank of `other` that fails."""
        if self._mpi is not None:
            self._transport.failures = other._transport.failures

    def _pieces(self, array: NDArray[Number]) -> Iterator[NDArray[Number]]:
        flat = array.reshape(-1)
        step = max(1, self._chunk // max(1, flat.itemsize))
        if 0 < flat.size <= step:
            yield flat
            return
        for lo in range(0, flat.size, step):
            yield flat[lo : lo + step]

    @contextmanager
    def _row_type(self, array: NDArray[Number]) -> Iterator[tuple[MPI.Datatype, int]]:
        """MPI datatype of one row, and the number of rows that each pair of ranks may exchange per round."""
        from mpi4py import MPI

        nbytes = int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize
        row = MPI.BYTE.Create_contiguous(nbytes).Commit()
        try:
            yield row, max(1, self._chunk // max(1, nbytes * self.size))
        finally:
            row.Free()

    # -- failure ---------------------------------------------------------------------------

    @contextmanager
    def agreed(self, own_rows: bool = False) -> Iterator[None]:
        """Raise an InputError or OutputError of this block on all ranks, if it fails on any of them.

        If several ranks fail, the lowest rank's error is raised; with `own_rows`, for checks of rows that each rank has
        to itself, it names the rank. The block itself must not communicate.
        """
        error: InputError | OutputError | None = None
        try:
            yield
        except (InputError, OutputError) as caught:
            named = own_rows and self.size > 1 and isinstance(caught, InputError)
            error = InputError(f"rank {self.rank}: {caught}") if named else caught
        failed = np.array([self.rank if error is not None else self.size], np.int64)
        first = int(self.allreduce(failed, "min")[0])
        if first == self.size:
            return
        mine = error if self.rank == first else None
        word = self.bcast(None if mine is None else np.frombuffer(packed(mine, first), np.uint8), first)
        try:
            raise agree(unpacked(word.tobytes()) if mine is None else mine, self._ranks)
        finally:
            del error, mine  # this frame is in their tracebacks: a cycle that keeps all frames until it is collected

    def all(self, true: bool) -> bool:
        """True if `true` holds on every rank; the messages are not counted."""
        with self.uncounted():
            return bool(self.allreduce(np.array([int(true)], np.int64), "min")[0])

    def in_step(self, error: BaseException | None) -> bool:
        """True if `error` is None or raised on all ranks, so that collective calls may continue."""
        return error is None or agreed(error, self._ranks)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Handle a failure of this rank alone inside a block of collective work.

        In a command, the failure ends the job and prints its message, unless it is an InputError or OutputError that
        others soon learn of. Otherwise all ranks raise the same error, that of the lowest rank that failed: these two
        as they are, anything else as a RankError. They learn of it in their current or next call of this class, at the
        latest in a barrier at the end of the block. The communicator is unusable afterwards.
        """
        self._guards += 1
        try:
            yield
            if self._guards == 1 and self._mpi is not None and not self._ends_job:
                self._transport.last_barrier()
        except BaseException as error:
            if self._mpi is None or self.in_step(error) or agreed(error, self._transport.failures.ranks):
                raise
            if not self._ends_job:
                self._transport.failures.report(error)
            elif isinstance(error, InputError | OutputError):
                self._transport.failures.report(error, PATIENCE)
            elif not isinstance(error, SystemExit) or error.code:
                end_job(error, self.rank)
            raise
        finally:
            self._guards -= 1

    def free(self) -> None:
        """Free the communicator made by :meth:`node`, and `comm` if it is the Communicator's own; collective."""
        for comm in reversed(self._to_free):
            comm.Free()
        self._node, self._to_free = None, []
