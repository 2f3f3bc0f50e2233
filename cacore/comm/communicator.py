"""The one communicator: mpi4py or none, buffers only, every byte counted by phase."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cacore.comm.mpi import Timed, all_ranks, patiently
from cacore.errors import InputError

PHASES = ("read", "partition", "train", "predict")

_DTYPES = tuple(np.dtype(code) for code in "bBhHiIqQfd?")
_HEADER = 8  # dtype, number of dimensions, up to six dimensions


class Communicator:
    """Wrap an mpi4py communicator, or stand in for one, and count what this rank sends.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm or None
        None means one rank; nothing is imported and nothing is sent.
    chunk_bytes : int
        Longest single message. Larger transfers go in rounds, so that no count passes 2^31 bytes.

    Attributes
    ----------
    rank, size : int
    seconds : dict of str to float
        Wall-clock seconds of this rank in each phase.
    mpi_seconds : dict of str to float
        Those of them that it was inside calls of MPI, waiting for other ranks included.

    Notes
    -----
    What a call costs, as counted here (a rank's message to itself is never counted):

    =============================  ===============================================================
    bcast, scatter                 the root counts what it hands to each other rank
    gather                         each rank counts what it hands to the root
    allgather, allreduce           each rank counts its contribution once, under no single receiver
    alltoall                       each rank counts what goes to each other rank
    send                           the sender counts it
    =============================  ===============================================================

    The lengths and headers that these calls exchange are counted as well (an allgather that is given
    `counts` needs none). Every call but ``send`` and ``recv`` is collective: all ranks make it, in the
    same order.
    """

    def __init__(self, comm: Any = None, chunk_bytes: int = 1 << 30) -> None:
        # A communicator of one rank needs no library, and sends nothing.
        self._mpi: Any = comm if comm is not None and comm.Get_size() > 1 else None
        self._timed: Any = Timed(comm, self._spent) if self._mpi is not None else None
        self.rank: int = comm.Get_rank() if self._mpi is not None else 0
        self.size: int = comm.Get_size() if self._mpi is not None else 1
        self._chunk = int(chunk_bytes)
        self._node: Communicator | None = None
        self._phase = "other"
        self._entered = time.perf_counter()
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.mpi_seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        # The last column counts what has no single receiver.
        self._bytes: dict[str, NDArray[np.int64]] = {}
        self._messages: dict[str, NDArray[np.int64]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Communicator:
        return self  # estimators are cloned with their parameters; a communicator is one thing

    # -- phases and counters ---------------------------------------------------------------

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge bytes, messages and seconds inside the block to phase `name` (it may nest)."""
        outer, self._phase = self._switch(name), name
        try:
            yield
        finally:
            self._switch(outer)
            self._phase = outer

    def wait(self) -> None:
        """Wait for the slowest rank, on a clock of its own: phase "wait"."""
        with self.phase("wait"):
            self.barrier()

    def _switch(self, name: str) -> str:
        now = time.perf_counter()
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._entered
        self._entered = now
        outer, self._phase = self._phase, name
        return outer

    def clock(self) -> dict[str, float]:
        """This rank's seconds in each phase up to now: those of PHASES first, then the others by name."""
        self._switch(self._phase)
        return {p: self.seconds[p] for p in (*PHASES, *sorted(set(self.seconds) - set(PHASES)))}

    def _spent(self, seconds: float) -> None:
        self.mpi_seconds[self._phase] = self.mpi_seconds.get(self._phase, 0.0) + seconds

    def _count(self, nbytes: int, dest: int | None = None) -> None:
        slot = self.size if dest is None else dest
        if slot == self.rank or nbytes == 0:
            return
        for table, amount in ((self._bytes, nbytes), (self._messages, 1)):
            row = table.setdefault(self._phase, np.zeros(self.size + 1, np.int64))
            row[slot] += amount

    def sent(self, phase: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Bytes and messages this rank sent in `phase`, by receiver; the last entry has no single one."""
        zero = np.zeros(self.size + 1, np.int64)
        return self._bytes.get(phase, zero).copy(), self._messages.get(phase, zero).copy()

    def totals(self) -> tuple[dict[str, dict[str, int]], dict[str, float]]:
        """Traffic summed over ranks, and each phase's seconds on its slowest rank. Not counted itself."""
        seconds = self.clock()
        names = list(seconds)
        mine = np.array([[self.sent(p)[0].sum(), self.sent(p)[1].sum()] for p in names], np.int64)
        with self.uncounted():
            mine, clock = self.allreduce(mine), self.allreduce(np.array(list(seconds.values())), "max")
        traffic = {
            p: {"bytes": int(b), "messages": int(m)}
            for p, (b, m) in zip(names, mine, strict=True)
            if p in PHASES or m  # the others are told where there is something to tell
        }
        return traffic, dict(zip(names, clock.tolist(), strict=True))

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """For what measuring itself sends: the block's traffic is left out of the counters."""
        saved = {p: v.copy() for p, v in self._bytes.items()}, {p: v.copy() for p, v in self._messages.items()}
        try:
            yield
        finally:
            self._bytes, self._messages = saved

    # -- collectives -----------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait for every rank."""
        if self._mpi is not None:
            patiently(self._mpi.Ibarrier().Test, self._spent)

    def bcast(self, array: NDArray[Any] | None, root: int = 0) -> NDArray[Any]:
        """The root's array, on every rank; the others pass anything."""
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

    def _bcast(self, array: NDArray[Any], root: int) -> None:
        for piece in self._pieces(array):
            self._timed.Bcast(piece, root=root)
            if self.rank == root:
                for dest in range(self.size):
                    self._count(piece.nbytes, dest)

    def allreduce(self, array: NDArray[Any], op: str = "sum") -> NDArray[Any]:
        """Element-wise "sum", "min" or "max" over ranks of arrays of one shape and dtype, on every rank."""
        if self._mpi is None:
            return np.array(array)
        from mpi4py import MPI

        out = np.array(array, order="C")
        for piece in self._pieces(out):
            self._timed.Allreduce(MPI.IN_PLACE, piece, op={"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}[op])
            self._count(piece.nbytes)
        return out

    def allgather(self, array: NDArray[Any], counts: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Every rank's rows, one after the other in rank order, on every rank.

        Where every rank knows how many come from each, all give these `counts`, and no lengths are sent.
        """
        return self.allgather_parts(array, counts)[0]

    def allgather_parts(
        self, array: NDArray[Any], counts: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """As :meth:`allgather`, and how many rows came from each rank."""
        array = np.ascontiguousarray(array)
        if counts is not None and (len(counts) != self.size or counts[self.rank] != len(array)):
            raise ValueError(f"counts {counts}, and rank {self.rank} of {self.size} has {len(array)} rows")
        if self._mpi is None:
            return array, np.array([len(array)], np.int64)
        if counts is None:
            counts = np.empty(self.size, np.int64)
            mine = np.array([len(array)], np.int64)
            self._timed.Allgather(mine, counts)
            self._count(mine.nbytes)
        out = np.empty((int(counts.sum()), *array.shape[1:]), array.dtype)
        places = np.cumsum(counts) - counts
        with self._row_type(array) as (row, step):
            for lo in range(0, int(counts.max()), step):
                now = np.clip(counts - lo, 0, step)
                send = array[lo : lo + step]
                self._timed.Allgatherv([send, len(send), row], [out, now, places + lo * (now > 0), row])
                self._count(send.nbytes)
        return out, counts

    def gather(self, array: NDArray[Any], root: int = 0) -> NDArray[Any] | None:
        """Every rank's rows in rank order on the root; None elsewhere."""
        if self._mpi is None:
            return array
        counts = np.zeros(self.size, np.int64)
        counts[root] = len(array)
        rows, _ = self.alltoall(array, counts)
        return rows if self.rank == root else None

    def scatter(self, array: NDArray[Any] | None, counts: NDArray[np.int64], root: int = 0) -> NDArray[Any]:
        """This rank's ``counts[rank]`` rows of the root's array; every rank knows `counts`."""
        if self._mpi is None:
            assert array is not None
            return array
        example = self.bcast(array[:0] if array is not None else None, root)
        send = array if self.rank == root and array is not None else example
        return self.alltoall(send, counts if self.rank == root else np.zeros(self.size, np.int64))[0]

    def alltoall(self, array: NDArray[Any], counts: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Hand out rows.

        Parameters
        ----------
        array : ndarray, shape (sum(counts), ...)
            Rows sorted by receiver.
        counts : ndarray of int64, shape (size,)
            How many rows go to each rank.

        Returns
        -------
        rows : ndarray
            What arrived, sorted by sender.
        arrived : ndarray of int64, shape (size,)
        """
        array = np.ascontiguousarray(array)
        if self._mpi is None:
            return array, np.array(counts, np.int64)
        sends = np.array(counts, np.int64)
        arrives = np.empty(self.size, np.int64)
        self._timed.Alltoall(sends, arrives)
        for dest in range(self.size):
            self._count(sends.itemsize, dest)
        out = np.empty((int(arrives.sum()), *array.shape[1:]), array.dtype)
        from_, to = np.cumsum(sends) - sends, np.cumsum(arrives) - arrives
        longest = int(self.allreduce(sends.max(keepdims=True), "max")[0])
        with self._row_type(array) as (row, step):
            for lo in range(0, longest, step):
                now, then = np.clip(sends - lo, 0, step), np.clip(arrives - lo, 0, step)
                self._timed.Alltoallv([array, now, from_ + lo * (now > 0), row], [out, then, to + lo * (then > 0), row])
                for dest, rows in enumerate(now):
                    self._count(int(rows) * (array.nbytes // max(1, len(array))), dest)
        return out, arrives

    def send(self, array: NDArray[Any], dest: int) -> None:
        """Point to point; the receiver calls :meth:`recv`."""
        array = np.ascontiguousarray(array)
        head = np.zeros(_HEADER, np.int64)
        head[:2] = _DTYPES.index(array.dtype), array.ndim
        head[2 : 2 + array.ndim] = array.shape
        for piece in (head, *self._pieces(array)):
            patiently(self._mpi.Isend(piece, dest=dest).Test, self._spent)
            self._count(piece.nbytes, dest)

    def recv(self, source: int) -> NDArray[Any]:
        """The array that `source` sends."""
        head = np.empty(_HEADER, np.int64)
        patiently(lambda: self._mpi.Iprobe(source=source), self._spent)
        self._timed.Recv(head, source=source)
        array = np.empty(tuple(head[2 : 2 + head[1]]), _DTYPES[head[0]])
        for piece in self._pieces(array):
            self._timed.Recv(piece, source=source)
        return array

    def offset(self, count: int) -> tuple[int, int]:
        """Number of the first of this rank's `count` rows, and the number of rows of all ranks."""
        counts = self.allgather(np.array([count], np.int64))
        return int(counts[: self.rank].sum()), int(counts.sum())

    def node(self) -> Communicator:
        """The ranks that share this machine."""
        if self._node is None:
            split = None
            if self._mpi is not None:
                from mpi4py import MPI

                split = self._timed.Split_type(MPI.COMM_TYPE_SHARED)
            self._node = Communicator(split, self._chunk)
        return self._node

    def _pieces(self, array: NDArray[Any]) -> Iterator[NDArray[Any]]:
        flat = array.reshape(-1)
        step = max(1, self._chunk // max(1, flat.itemsize))
        for lo in range(0, flat.size, step):
            yield flat[lo : lo + step]

    @contextmanager
    def _row_type(self, array: NDArray[Any]) -> Iterator[tuple[Any, int]]:
        """An MPI type of one row, and how many rows each pair of ranks may exchange in a round."""
        from mpi4py import MPI

        nbytes = int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize
        row = MPI.BYTE.Create_contiguous(nbytes).Commit()
        try:
            yield row, max(1, self._chunk // max(1, nbytes * self.size))
        finally:
            row.Free()

    # -- failure ---------------------------------------------------------------------------

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Checks that can fail on one rank only: all ranks raise the first rank's :class:`InputError`.

        The block itself must not communicate.
        """
        error: InputError | None = None
        try:
            yield
        except InputError as caught:
            error = caught
        failed = np.array([self.rank if error is not None else self.size], np.int64)
        first = int(self.allreduce(failed, "min")[0])
        if first == self.size:
            return
        text = np.frombuffer(str(error).encode(), np.uint8).copy() if self.rank == first else None
        message = self.bcast(text, first).tobytes().decode()
        agreed = error if self.rank == first and error is not None else InputError(message)
        agreed.agreed = True
        raise agreed

    def all(self, true: bool) -> bool:
        """Whether it is true on every rank; not counted."""
        with self.uncounted():
            return bool(self.allreduce(np.array([int(true)], np.int64), "min")[0])

    def require_equal(self, facts: dict[str, int]) -> None:
        """Raise on all ranks an :class:`InputError` that names the first of `facts` in which they differ."""
        mine = np.array(list(facts.values()), np.int64)
        least, most = np.split(self.allreduce(np.concatenate([mine, -mine]), "min"), 2)
        for name, low, high in zip(facts, least, -most, strict=True):
            if low != high:
                error = InputError(f"{name}: not the same on all ranks ({low} to {high}); give all the same")
                error.agreed = True
                raise error

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around everything collective: a failure of this rank alone ends the whole job with its message."""
        try:
            yield
        except BaseException as error:
            done = isinstance(error, SystemExit) and not error.code
            if self._mpi is None or done or getattr(error, "agreed", False):
                raise
            if isinstance(error, InputError):
                self.abort(str(error), 2)
            traceback.print_exc()
            self.abort(f"{type(error).__name__}: {error}", 1)

    def abort(self, message: str, status: int) -> NoReturn:
        """End every rank of the job now, with one line from this one."""
        print(f"rank {self.rank}: {message}", file=sys.stderr, flush=True)
        if self._mpi is not None:
            from mpi4py import MPI

            time.sleep(0.5)  # mpiexec drops what it has not passed on yet when the job ends
            MPI.COMM_WORLD.Abort(status)
        os._exit(status)


def as_communicator(comm: Any) -> Communicator:
    """`comm` itself, or a wrapped mpi4py communicator, or the stand-in for None."""
    return comm if isinstance(comm, Communicator) else Communicator(comm)


def world() -> Communicator:
    """All ranks of this job; one rank where no MPI library can be loaded."""
    return Communicator(all_ranks())
