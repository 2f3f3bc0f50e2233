"""Waiting for other ranks, and how all of them come to raise the same error when one has failed."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any, NoReturn

import numpy as np

from cacore.errors import InputError, MemoryLimitError, OutputError, RankError

SPIN, LONGEST = 1e-3, 5e-3  # seconds of waiting in a loop, and of the longest pause afterwards
_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (InputError, MemoryLimitError, OutputError, RankError)
}
_TAG = 32767  # of a rank's last message; the largest that every MPI library has

# Requests that may never complete, because a rank has failed: MPI may still use the memory that they hold.
_ABANDONED: list[Any] = []


def abandon(*requests: Any) -> None:
    """Keep what these requests need for as long as the process lives."""
    _ABANDONED.extend(requests)


def wait(done: Callable[[], bool], meanwhile: Callable[[], None] | None = None, pauses: bool = True) -> None:
    """Wait without keeping a core busy for long, which ranks that share it may have work for.

    A pause is at most a tenth of the time waited so far: it delays nothing by more than that, where nothing but another
    rank is waited for. Messages that move only while MPI is called, a few KiB a call, need to be waited for without
    `pauses`. `meanwhile` is called before each.
    """
    start = heard = perf_counter()
    while not done():
        now = perf_counter()
        if now - heard > SPIN and meanwhile is not None:
            meanwhile()
            heard = now
        if now - start <= SPIN or not pauses:
            os.sched_yield()  # where ranks share a core, the one that is waited for needs it
        else:
            sleep(min(LONGEST, 0.1 * (now - start)))


def packed(error: BaseException, rank: int) -> bytes:
    """What all ranks raise when `rank` has failed with `error`, as bytes that :func:`unpacked` reads."""
    kind = type(error).__name__
    if kind in _KINDS:
        text = f"{kind} {error}"
    elif isinstance(error, InputError):
        text = f"InputError {error}"
    else:
        text = f"RankError rank {rank}: {kind}: {error}"
    return text.encode(errors="backslashreplace")  # names of files need not be text


def unpacked(word: bytes) -> Exception:
    """The error that a rank has packed."""
    kind, text = word.decode().split(" ", 1)
    return _KINDS[kind](text)


def agree(error: BaseException, ranks: object) -> BaseException:
    """`error`, marked as one that all ranks raise: those that the object `ranks` stands for, a plain ``object()``."""
    error.agreed, error.ranks = True, ranks  # type: ignore[attr-defined]
    return error


def agreed(error: BaseException, ranks: object) -> bool:
    """Whether all of these ranks raise this very error; one that fewer of them have agreed on is none."""
    return getattr(error, "ranks", None) is ranks


def end_job(error: BaseException, rank: int) -> NoReturn:
    """End every rank of the job now, with one line from this one: what a command does."""
    from mpi4py import MPI

    status = 2 if isinstance(error, InputError) else 130 if isinstance(error, KeyboardInterrupt) else 1
    if isinstance(error, InputError | OutputError):
        line = str(error)
    elif isinstance(error, KeyboardInterrupt):
        line = "interrupted"
    else:
        traceback.print_exception(error)
        line = f"{type(error).__name__}: {error}"
    print(f"rank {rank}: {line}", file=sys.stderr, flush=True)
    sleep(0.5)  # mpiexec drops what it has not passed on yet when the job ends
    MPI.COMM_WORLD.Abort(status)
    os._exit(status)


class Failures:
    """What the ranks of an mpi4py communicator say to each other when one of them fails.

    A rank that fails tells all others, and so does every rank that hears of it; then each waits until all others have
    told it. So no rank leaves before all know, all these messages are received, and all ranks raise the same error,
    also when several fail at once: that of the lowest of them. Each rank sends R - 1 messages.
    """

    def __init__(self, comm: Any) -> None:
        self._comm, self.ranks = comm, object()
        self.word = b""  # what all ranks raise, once one has failed; an exception would keep its frames' rows

    def check(self) -> None:
        """Raise what all ranks raise, if this rank knows that one has failed."""
        if self.word:
            raise agree(unpacked(self.word), self.ranks)

    def listen(self) -> None:
        """Raise what all ranks raise, if another rank has failed."""
        from mpi4py import MPI

        if self._comm.Iprobe(source=MPI.ANY_SOURCE, tag=_TAG):
            self._settle(b"")
            self.check()

    def report(self, error: BaseException) -> None:
        """Tell the others that this rank has failed; raise what all ranks raise, unless that is `error` itself."""
        word = packed(error, self._comm.Get_rank())
        if not self.word:
            self._settle(word)
        if not isinstance(error, Exception):
            return  # a user's interruption stays one on this rank
        if self.word == word and type(error).__name__ in _KINDS:
            agree(error, self.ranks)
            return
        raise agree(unpacked(self.word), self.ranks) from error

    def _settle(self, word: bytes) -> None:
        """Exchange words with all ranks, b"" from one that has only heard; that of the lowest rank counts."""
        self.word = word or b"RankError another rank has failed"  # for a rank that is interrupted while it waits
        words = self._exchanged(word)
        self.word = next(words[rank] for rank in sorted(words) if words[rank])

    def _exchanged(self, word: bytes) -> dict[int, bytes]:
        """Every rank's word, by rank."""
        from mpi4py import MPI

        comm, words = self._comm, {self._comm.Get_rank(): word}
        message = np.frombuffer(word, np.uint8)
        sends = [comm.Isend([message, MPI.BYTE], dest=r, tag=_TAG) for r in range(comm.Get_size()) if r not in words]

        def done() -> bool:
            status = MPI.Status()
            while comm.Iprobe(source=MPI.ANY_SOURCE, tag=_TAG, status=status):
                source, received = status.Get_source(), np.empty(status.Get_count(MPI.BYTE), np.uint8)
                comm.Recv([received, MPI.BYTE], source=source, tag=_TAG)
                words[source] = received.tobytes()
            return len(words) == comm.Get_size() and bool(MPI.Request.Testall(sends))

        try:
            wait(done)
        except BaseException:
            abandon(*sends)
            raise
        return words
