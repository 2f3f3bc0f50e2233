"""Waiting for other ranks, and raising the same error on all of them when one has failed."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable
from functools import cache
from time import localtime, perf_counter, sleep, strftime, time
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from cacore.errors import InputError, MemoryLimitError, OutputError, RankError
from cacore.terminal import say

if TYPE_CHECKING:
    from mpi4py import MPI

SPIN, LONGEST = 1e-3, 5e-3  # seconds of busy waiting, and of the longest pause afterwards
_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (InputError, MemoryLimitError, OutputError, RankError)
}
PATIENCE = 2.0  # seconds that a command waits for ranks that compute, before it ends the job without them
_TAG = 32767  # tag of failure messages; the largest tag that every MPI library supports

# Requests that may never complete because a rank has failed; MPI may still use their memory.
_ABANDONED: list[MPI.Request] = []


def abandon(*requests: MPI.Request) -> None:
    """Keep the buffers of these requests alive until the process ends."""
    _ABANDONED.extend(requests)


@cache
def patience() -> float:
    """Seconds after which a rank says that it waits for others, and after which it repeats that: ``CAKERNELS_WAIT``."""
    try:
        seconds = float(os.environ.get("CAKERNELS_WAIT", "600"))
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InputError("CAKERNELS_WAIT: give a number of seconds above 0, or inf for no word about ranks that wait")
    return seconds


def wait(
    done: Callable[[], bool], meanwhile: Callable[[], None] | None = None, pauses: bool = True, what: str = ""
) -> None:
    """Wait until `done` returns True, without keeping busy a core that other ranks may share.

    A pause lasts at most a tenth of the time waited so far, so it delays a wait for another rank by at most that much.
    Messages that move only while MPI is called, a few KiB per call, must be waited for without `pauses`. `meanwhile` is
    called at most once per millisecond. After :func:`patience` seconds, and then again and again, a line says that this
    rank waits in `what`, and since when: the ranks without such a line are those that have not come.
    """
    start = heard = perf_counter()
    due = start + patience() if what else math.inf
    while not done():
        now = perf_counter()
        if now >= due:
            due = now + patience()
            since = strftime("%H:%M:%S", localtime(time() - (now - start)))
            say(f"{what} since {since}, {now - start:.0f} s: ranks without such a line have not come here", error=True)
        if now - heard > SPIN and meanwhile is not None:
            meanwhile()
            heard = now
        if now - start <= SPIN or not pauses:
            os.sched_yield()  # the rank waited for may share this core
        else:
            sleep(min(LONGEST, 0.1 * (now - start)))


def packed(error: BaseException, rank: int) -> bytes:
    """Encode the error that all ranks raise when `rank` has failed with `error`; :func:`unpacked` decodes it."""
    kind = type(error).__name__
    if kind in _KINDS:
        text = f"{kind} {error}"
    elif isinstance(error, InputError):
        text = f"InputError {error}"
    else:
        text = f"RankError rank {rank}: {kind}: {error}"
    return text.encode(errors="backslashreplace")  # file names need not be valid text


def unpacked(word: bytes) -> Exception:
    """Decode an error encoded by :func:`packed`."""
    kind, text = word.decode().split(" ", 1)
    return _KINDS[kind](text)


def agree(error: BaseException, ranks: object) -> BaseException:
    """Mark `error` as raised by all ranks of the group that the token `ranks`, a plain ``object()``, identifies."""
    error.agreed, error.ranks = True, ranks  # type: ignore[attr-defined]
    return error


def agreed(error: BaseException, ranks: object) -> bool:
    """True if all ranks of this group raise this same error; agreement of a smaller group does not count."""
    return getattr(error, "ranks", None) is ranks


def end_job(error: BaseException, rank: int) -> NoReturn:
    """Print the error of this rank in one line and end every rank of the job, as a command does."""
    from mpi4py import MPI

    status = 2 if isinstance(error, InputError) else 130 if isinstance(error, KeyboardInterrupt) else 1
    if isinstance(error, InputError | OutputError):
        line = str(error)
    elif isinstance(error, KeyboardInterrupt):
        line = "interrupted"
    else:
        traceback.print_exception(error)
        line = f"{type(error).__name__}: {error}"
    say(f"rank {rank}: {line}", error=True)
    sleep(0.5)  # mpiexec drops output that it has not forwarded when the job ends
    MPI.COMM_WORLD.Abort(status)
    os._exit(status)


class Failures:
    """Protocol by which the ranks of an mpi4py communicator learn that one of them has failed.

    A rank that fails sends its error to all others. Each rank that receives one sends a message to all others in turn,
    and waits for a message from each of them. So no rank leaves before all know, and no message stays unreceived. All
    ranks raise the same error; if several fail at once, the lowest rank's. Each rank sends R - 1 messages.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm, self.ranks = comm, object()
        self.word = b""  # the packed error, once a rank has failed; an exception would keep its frames' arrays alive

    def check(self) -> None:
        """Raise the common error, if this rank knows that a rank has failed."""
        if self.word:
            raise agree(unpacked(self.word), self.ranks)

    def listen(self) -> None:
        """Look for messages of failed ranks, and raise the common error if there is one."""
        from mpi4py import MPI

        if self._comm.Iprobe(source=MPI.ANY_SOURCE, tag=_TAG):
            self._agree_on_error(b"")
            self.check()

    def report(self, error: BaseException, patience: float = math.inf) -> None:
        """Send this rank's error to the others; raise the common error, unless it is `error` itself.

        If the others have not answered within `patience` seconds, the whole job ends.
        """
        word = packed(error, self._comm.Get_rank())
        if not self.word:
            try:
                self._agree_on_error(word, patience)
            except TimeoutError:
                end_job(error, self._comm.Get_rank())
        if not isinstance(error, Exception):
            return  # on this rank, a KeyboardInterrupt stays one
        if self.word == word and type(error).__name__ in _KINDS:
            agree(error, self.ranks)
            return
        raise agree(unpacked(self.word), self.ranks) from error

    def _agree_on_error(self, word: bytes, patience: float = math.inf) -> None:
        """Exchange packed errors with all ranks, b"" if a rank has not failed; the lowest rank's error counts."""
        self.word = word or b"RankError another rank has failed"  # used if this rank is interrupted while it waits
        words = self._exchanged(word, perf_counter() + patience)
        self.word = next(words[rank] for rank in sorted(words) if words[rank])

    def _exchanged(self, word: bytes, until: float) -> dict[int, bytes]:
        """Packed errors of all ranks, by rank; a TimeoutError if they have not arrived at this time."""
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
            if perf_counter() > until:
                raise TimeoutError
            return len(words) == comm.Get_size() and bool(MPI.Request.Testall(sends))

        try:
            wait(done)
        except BaseException:
            abandon(*sends)
            raise
        return words
