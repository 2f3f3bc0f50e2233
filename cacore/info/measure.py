"""Quick measurement of the speed of messages, of a matrix product and of copying memory."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.machine import memory, threads

MIB = 1 << 20
SMALL, LARGE = 8, 8 * MIB  # bytes per message
FEWEST, MOST = 3, 100  # repetitions
COPIED = 32 * MIB  # more than the caches of one core
SECONDS = 0.5  # length of each measurement, unless FEWEST repetitions take longer
NEEDED = 256 * MIB  # bytes per rank that all measurements need


def messages(comm: Communicator) -> dict[str, float]:
    """Measure round trips between rank 0 and the last rank, and sums over all ranks; collective.

    Returns
    -------
    dict
        ``latency_us``: median half of a round trip of 8 bytes. ``bandwidth_gb_s``: best bandwidth with 8 MiB.
        ``allreduce_us``: mean time of an Allreduce of 8 bytes on the slowest rank. Empty if there is one rank.
    """
    if comm.size == 1:
        return {}
    with comm.uncounted():
        small, large = (_repeated(comm, _round_trip(comm, nbytes)) for nbytes in (SMALL, LARGE))
        sums = _repeated(comm, lambda: comm.allreduce(np.ones(1)))
        mean = comm.allreduce(np.array([np.mean(sums)]), "max")[0]
        seconds = comm.bcast(np.array([np.median(small), min(large)]) if comm.rank == 0 else None)
    return {
        "latency_us": float(seconds[0] / 2 * 1e6),
        "bandwidth_gb_s": float(2 * LARGE / seconds[1] / 1e9),
        "allreduce_us": float(mean * 1e6),
    }


def _round_trip(comm: Communicator, nbytes: int) -> Callable[[], object]:
    """Function that sends a message of `nbytes` from rank 0 to the last rank and back."""
    array, last = np.zeros(nbytes, np.uint8), comm.size - 1

    def trip() -> None:
        if comm.rank == 0:
            comm.send(array, last)
            comm.recv(last)
        elif comm.rank == last:
            comm.send(comm.recv(0), 0)

    return trip


def _repeated(comm: Communicator, work: Callable[[], object]) -> list[float]:
    """Seconds of each of several calls of `work`, equally many on every rank; collective."""
    work()  # opens the connections
    comm.barrier()
    first = [_timed(work) for _ in range(FEWEST)]
    wanted = min(MOST, int(SECONDS / max(sum(first) / FEWEST, 1e-9)))
    more = int(comm.bcast(np.array([max(0, wanted - FEWEST)]))[0])  # rank 0 decides
    seconds = [*first, *(_timed(work) for _ in range(more))]
    comm.barrier()
    return seconds


def _timed(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def rates(comm: Communicator, limit: int) -> dict[str, NDArray[np.float64]]:
    """Rates of every rank while all of them work: ``product_gflop_s`` and ``copy_gb_s`` (bytes read plus written).

    Parameters
    ----------
    comm : Communicator
        The call is collective.
    limit : int
        Bytes that a rank may use, the same on all ranks.
    """
    with comm.agreed():
        memory.require(NEEDED, limit, "measuring", "give the job more memory, or fewer ranks per node")
    found = {}
    for name, (work, amount) in {"product_gflop_s": _product(), "copy_gb_s": _copy()}.items():
        work()  # one-time work, such as starting threads
        with comm.uncounted():
            comm.barrier()
            found[name] = comm.allgather(np.array([amount / _seconds(work) / 1e9]))
    return found


def _seconds(work: Callable[[], object]) -> float:
    """Mean seconds per call."""
    start, count = perf_counter(), 0
    while (now := perf_counter()) - start < SECONDS or not count:
        work()
        count += 1
    return (now - start) / count


def _product() -> tuple[Callable[[], object], float]:
    """Function that multiplies square matrices on this rank's threads, and its number of flops."""
    n = 512 if threads.current() <= 2 else 2048 if threads.current() > 16 else 1024
    A, out = np.full((n, n), 0.5), np.empty((n, n))
    return lambda: np.matmul(A, A, out=out), 2.0 * n**3


def _copy() -> tuple[Callable[[], object], float]:
    """Function that copies an array on this rank's threads, and the number of bytes it reads and writes."""
    source, target = np.ones(COPIED // 8), np.zeros(COPIED // 8)
    pieces = threads.blocks(len(source), -(-len(source) // threads.current()))
    tasks = [(target[lo:hi], source[lo:hi]) for lo, hi in pieces]
    return lambda: threads.for_blocks(np.copyto, tasks), 2.0 * COPIED
