"""The communicator: a wrapper of mpi4py, or a single rank without it, that sends arrays and counts bytes by phase."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm.failure import PATIENCE, agree, agreed, end_job, packed, unpacked
from cacore.comm.ledger import PHASES, Ledger
from cacore.comm.mpi import DATA, Exchange, Transport
from cacore.errors import InputError, OutputError

if TYPE_CHECKING:
    from mpi4py import MPI

Number = TypeVar("Number", bound=np.generic)
_DTYPES = tuple(np.dtype(code) for code in "bBhHiIqQfd?")
_LARGE = 1 << 16  # bytes; above this, every MPI library waits for the receiver before it sends
_HEADER = 8  # dtype, number of dimensions, up to six sizes


class Communicator(Ledger):
    """Wrapper of an mpi4py communicator, or a stand-in for one, that counts what this rank sends (see :class:`Ledger`).

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
    """

    def __init__(
        self, comm: MPI.Comm | None = None, chunk_bytes: int = 1 << 30, *, ends_job: bool = False, own: bool = False
    ) -> None:
        # A communicator of one rank needs no MPI library and sends nothing.
        self._mpi = comm if comm is not None and comm.Get_size() > 1 else None
        super().__init__(*((self._mpi.Get_rank(), self._mpi.Get_size()) if self._mpi is not None else (0, 1)))
        self._transport: Any = Transport(self._mpi, self._spent) if self._mpi is not None else None
        self._chunk, self._ends_job = int(chunk_bytes), ends_job
        self._node: Communicator | None = None
        self._made = [comm] if own and comm is not None else []
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
                self._made.append(self._mpi.Split_type(MPI.COMM_TYPE_SHARED))
            self._node = Communicator(self._made[-1] if self._made else None, self._chunk)
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
        for made in reversed(self._made):
            made.Free()
        self._node, self._made = None, []
