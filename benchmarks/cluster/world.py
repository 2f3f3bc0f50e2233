"""Virtual ranks: threads of one process that compute one at a time.

The program is the one that runs under mpiexec, unchanged; only the mpi4py calls of :class:`cacore.comm.Communicator`
are replaced here. A rank computes until it has to wait for another one, and then yields. So each computation is timed
alone, by the processor time of its thread, regardless of other load on the machine.

Collections of garbage are not timed. One looks at the objects of all virtual ranks, of which a rank under mpiexec has
its own only; and it strikes the same rank in every iteration that allocates the same objects. Nor is the reading of
the clock, about 1 us per call.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cluster.trace import Step, Trace
from cacore.comm import Communicator
from cacore.comm.communicator import DATA


class _StoppedError(Exception):
    """Another rank has failed."""


class RankClock:
    """Processor time of the calling thread without the collections of garbage that it has run, while entered.

    Attributes
    ----------
    reading : float
        Seconds between two readings in immediate succession.
    """

    def __init__(self) -> None:
        self._collecting: dict[int, float] = defaultdict(float)  # seconds of each thread
        self.reading = float(np.diff([self.now() for _ in range(1000)]).min())

    def __enter__(self) -> RankClock:
        gc.callbacks.append(self._collects)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._collects)

    def now(self) -> float:
        """Seconds since some moment, in this thread."""
        return time.thread_time() - self._collecting[threading.get_ident()]

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        self._collecting[threading.get_ident()] += (1.0 if phase == "stop" else -1.0) * time.thread_time()


class World:
    """Scheduler of the virtual ranks, which also exchanges their data.

    Parameters
    ----------
    size : int
    """

    def __init__(self, size: int) -> None:
        self.size, self.clock = size, RankClock()
        self.traces: list[Trace] = [[] for _ in range(size)]
        self._turns = [threading.Semaphore(0) for _ in range(size)]
        self._ready = deque(range(size))
        self._brought: dict[tuple[int, ...], dict[int, Any]] = defaultdict(dict)
        self._mail: dict[tuple[int, int], deque[NDArray[np.uint8]]] = defaultdict(deque)
        self._expects: dict[int, tuple[int, int]] = {}
        self._error: BaseException | None = None

    def run(self, work: Callable[[Communicator], object]) -> list[Trace]:
        """Run `work` on every rank and return the traces; raises the first error of a rank."""
        threads = [
            threading.Thread(target=self._rank, args=(rank, work), name=str(rank), daemon=True)
            for rank in range(self.size)
        ]
        with self.clock:
            for thread in threads:
                thread.start()
            self._hand_over()
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error
        return self.traces

    def _rank(self, rank: int, work: Callable[[Communicator], object]) -> None:
        self._turns[rank].acquire()
        try:
            if self._error is None:
                work(_VirtualRank(self, rank))
        except _StoppedError:
            pass  # the error that stopped it is raised by `run`
        except BaseException as error:
            self._fail(error)
        self._hand_over()

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            for rank in range(self.size):
                self._turns[rank].release()

    def _hand_over(self) -> None:
        if self._ready and self._error is None:
            self._turns[self._ready.popleft()].release()

    def pause(self, rank: int) -> None:
        """Let other ranks compute until this rank is ready again."""
        if not self._ready and self._error is None:
            self._fail(RuntimeError(f"all {self.size} ranks wait for one another"))
        self._hand_over()
        self._turns[rank].acquire()
        if self._error is not None:
            raise _StoppedError

    def meet(self, rank: int, brings: Any, finish: Callable[[list[Any]], None], team: tuple[int, ...] = ()) -> None:
        """Wait until every rank of the team, or all ranks, have called; the last one finishes the call for all."""
        ranks, brought = team or tuple(range(self.size)), self._brought[team]
        brought[rank] = brings
        if len(brought) < len(ranks):
            self.pause(rank)
            return
        del self._brought[team]
        finish([brought[r] for r in ranks])
        self._ready.extend(r for r in ranks if r != rank)

    def post(self, source: int, dest: int, data: NDArray[np.uint8]) -> None:
        """Post a message."""
        self._mail[source, dest].append(data)
        if self._expects.get(dest) == (source, dest):
            del self._expects[dest]
            self._ready.append(dest)

    def expect(self, source: int, dest: int) -> deque[NDArray[np.uint8]]:
        """Wait for a message from `source`; return the queue of its messages."""
        while not self._mail[source, dest]:
            self._expects[dest] = (source, dest)
            self.pause(dest)
        return self._mail[source, dest]


class _VirtualRank(Communicator):
    """Communicator of a virtual rank, which records where phases end."""

    def __init__(self, world: World, rank: int) -> None:
        self._calls = _Calls(world, rank)
        super().__init__(self._calls if world.size > 1 else None)
        self._calls.phase = self._phase

    def _switch(self, name: str) -> str:
        self._calls.note()
        outer = super()._switch(name)
        self._calls.phase = name
        return outer


class _Done:
    """A completed request: the waiting has already happened."""

    def Test(self) -> bool:  # noqa: N802 - mpi4py's name
        return True


class _Pending:
    """A message to receive: the rank waits for it when it first asks whether it is there."""

    def __init__(self, receive: Callable[[], None]) -> None:
        self._receive: Callable[[], None] | None = receive

    def Test(self) -> bool:  # noqa: N802 - mpi4py's name
        if self._receive is not None:
            self._receive()
            self._receive = None
        return True


class _Calls:
    """The methods of an mpi4py communicator that ours calls; names are mpi4py's."""

    def __init__(self, world: World, rank: int, whole: _Calls | None = None, team: tuple[int, ...] = ()) -> None:
        self._world, self._rank, self._whole, self._team = world, rank, whole, team
        self._phase, self._since = "other", world.clock.now()

    @property
    def phase(self) -> str:
        """The phase of the communicator of all ranks."""
        return self._phase if self._whole is None else self._whole.phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._phase = name

    def note(self, call: str = "", sizes: Any = None, peer: int = -1) -> None:
        """Record the end of a computation."""
        if self._whole is not None:
            self._whole._note(call, sizes, peer, self._team)
        else:
            self._note(call, sizes, peer, ())

    def _note(self, call: str, sizes: Any, peer: int, team: tuple[int, ...]) -> None:
        clock = self._world.clock
        seconds = max(0.0, clock.now() - self._since - clock.reading)
        self._world.traces[self._rank].append(Step(self._phase, seconds, call, sizes, peer, team))
        self.go_on()

    def go_on(self) -> None:
        """Begin a computation."""
        (self._whole or self)._since = self._world.clock.now()

    def _meet(self, call: str, brings: Any, finish: Callable[[list[Any]], None], sizes: Any, peer: int = -1) -> _Done:
        self.note(call, sizes, peer)
        self._world.meet(self._rank, brings, finish, self._team)
        self.go_on()
        return _Done()

    def Get_size(self) -> int:  # noqa: N802
        return len(self._team) or self._world.size

    def Get_rank(self) -> int:  # noqa: N802
        return self._team.index(self._rank) if self._team else self._rank

    def Split(self, color: int, key: int) -> _Calls:  # noqa: N802
        """Return the communicator of the ranks with this colour, in the order of the ranks."""
        colors: list[Any] = []
        self._meet("barrier", (color, colors), lambda brought: [one[1].extend(brought) for one in brought], 0)
        team = tuple(rank for rank, (other, _) in enumerate(colors) if other == color)
        return _Calls(self._world, self._rank, self, team)

    def Free(self) -> None:  # noqa: N802
        pass

    def Split_type(self, kind: int) -> _Alone:  # noqa: N802
        """Return a communicator of one rank: each rank is its own node."""
        return _Alone()

    def Ibarrier(self) -> _Done:  # noqa: N802
        return self._meet("barrier", None, lambda brought: None, 0)

    def Ibcast(self, array: NDArray[Any], root: int) -> _Done:  # noqa: N802
        def finish(brought: list[Any]) -> None:
            for rank, out in enumerate(brought):
                if rank != root:
                    out[...] = brought[root]

        return self._meet("bcast", array, finish, array.nbytes, root)

    def Iallreduce(self, _: Any, array: NDArray[Any], op: Any) -> _Done:  # noqa: N802
        from mpi4py import MPI

        combine = np.add if op == MPI.SUM else np.minimum if op == MPI.MIN else np.maximum

        def finish(brought: list[Any]) -> None:
            total = brought[0].copy()
            for one in brought[1:]:
                combine(total, one, out=total)
            for out in brought:
                out[...] = total

        return self._meet("allreduce", array, finish, array.nbytes)

    def Iallgather(self, mine: NDArray[Any], out: NDArray[Any]) -> _Done:  # noqa: N802
        def finish(brought: list[Any]) -> None:
            together = np.concatenate([each for each, _ in brought])
            for _, all_of_them in brought:
                all_of_them[...] = together

        return self._meet("allgather", (mine, out), finish, mine.nbytes)

    def Iallgatherv(self, send: list[Any], receive: list[Any]) -> _Done:  # noqa: N802
        def finish(brought: list[Any]) -> None:
            for _, (out, counts, places, row) in brought:
                width, into = row.Get_size(), _bytes(out)
                for (mine, count, _), place in zip((one for one, _ in brought), places, strict=True):
                    into[place * width : (place + count) * width] = _bytes(mine)[: count * width]
                assert counts.sum() == sum(one[1] for one, _ in brought)

        return self._meet("allgather", (send, receive), finish, send[1] * send[2].Get_size())

    def Ialltoall(self, sends: NDArray[Any], arrives: NDArray[Any]) -> _Done:  # noqa: N802
        def finish(brought: list[Any]) -> None:
            table = np.array([each for each, _ in brought])
            for rank, (_, out) in enumerate(brought):
                out[...] = table[:, rank]

        return self._meet("alltoall", (sends, arrives), finish, np.full(len(sends), sends.itemsize, np.int64))

    def Ialltoallv(self, send: list[Any], receive: list[Any]) -> _Done:  # noqa: N802
        def finish(brought: list[Any]) -> None:
            for source, ((rows, counts, places, row), _) in enumerate(brought):
                data, width = _bytes(rows), row.Get_size()
                for dest, (count, place) in enumerate(zip(counts, places, strict=True)):
                    if count:
                        out, _, to, _ = brought[dest][1]
                        into = _bytes(out)[to[source] * width : (to[source] + count) * width]
                        into[...] = data[place * width : (place + count) * width]

        return self._meet("alltoall", (send, receive), finish, np.asarray(send[1], np.int64) * send[3].Get_size())

    def Isend(self, array: NDArray[Any], dest: int, tag: int) -> _Done:  # noqa: N802
        dest = self._team[dest] if self._team else dest
        self.note("send", array.nbytes, dest)
        self._world.post(self._rank, dest, _bytes(array).copy())
        self.go_on()
        return _Done()

    Issend = Isend  # a copy is sent, so the sender does not wait

    def Iprobe(self, source: int, tag: int) -> bool:  # noqa: N802
        """Wait for a message, since a polling rank would block the others; failures are not announced here."""
        if tag == DATA:
            self.note()
            self._world.expect(self._team[source] if self._team else source, self._rank)
            self.go_on()
        return tag == DATA

    def Irecv(self, array: NDArray[Any], source: int, tag: int) -> _Pending:  # noqa: N802
        source = self._team[source] if self._team else source

        def receive() -> None:
            self.note("recv", array.nbytes, source)
            _bytes(array)[...] = self._world.expect(source, self._rank).popleft()
            self.go_on()

        return _Pending(receive)


class _Alone:
    """The communicator of a node with one rank."""

    def Get_size(self) -> int:  # noqa: N802
        return 1

    def Get_rank(self) -> int:  # noqa: N802
        return 0

    def Free(self) -> None:  # noqa: N802
        pass


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
