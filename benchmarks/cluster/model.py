"""What a call of MPI costs: LogGP (Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995), and collectives made of it.

The algorithms are those that MPICH chooses (Thakur, Rabenseifner and Gropp, Int. J. High Performance Computing
Applications 19(1), 2005): by the number of bytes, for any number of ranks as for the next power of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import numpy as np

from cacore.comm.failure import LONGEST, SPIN

# Bytes above which MPICH takes the algorithm for long messages.
LONG_BCAST, LONG_ALLREDUCE, LONG_ALLGATHER, LONG_ALLTOALL = 12288, 2048, 81920, 256
EAGER = 65536  # above it a sender waits for its receiver
SLACK = 6e-5  # seconds by which a pause is longer than asked for: Linux' timers have 50 us, then the thread is woken


@dataclass(frozen=True)
class Link:
    """A way between two ranks.

    Attributes
    ----------
    latency : float
        L, seconds that a message is on its way.
    overhead : float
        o, seconds that a rank is busy with a message that it sends, or receives.
    gap : float
        g, seconds between two messages of a rank.
    per_byte : float
        G, seconds a byte.
    """

    latency: float
    overhead: float
    gap: float
    per_byte: float

    @property
    def step(self) -> float:
        """Seconds until a message without bytes has been received."""
        return self.latency + 2.0 * self.overhead


@dataclass(frozen=True)
class Network:
    """Nodes of equal ranks.

    Attributes
    ----------
    name, source : str
        What it is, and where its figures are from.
    between, inside : Link
        Of ranks on different nodes, and on the same one. The ranks of a node share its link to the others.
    ranks_per_node : int
    cores_per_node : int
        Fewer than ranks share their time.
    memory_per_node : float
        GiB.
    reduce : float
        Seconds a byte of adding up.
    pauses : bool
        Whether a rank that waits looks now and then, as :func:`cacore.comm.failure.wait` does, or notices at once.
    """

    name: str
    source: str
    between: Link
    inside: Link
    ranks_per_node: int = 1
    cores_per_node: int = 1
    memory_per_node: float = 64.0
    reduce: float = 1e-10
    pauses: bool = False

    def noticed(self, waited: float) -> float:
        """Seconds until a rank sees that what it waits for is there, which it is after `waited`."""
        if not self.pauses or waited <= SPIN:
            return waited
        looked = SPIN
        while looked < waited and 0.1 * looked < LONGEST:
            looked += 0.1 * looked + SLACK
        return looked + max(0, ceil((waited - looked) / (LONGEST + SLACK))) * (LONGEST + SLACK)

    def stages(self, R: int) -> list[tuple[Link, float]]:
        """The link of each stage of a tree or butterfly over R ranks, and how many ranks of a node share it."""
        near = min(R, self.ranks_per_node)
        inner = [(self.inside, 1.0)] * ceil(log2(near)) if near > 1 else []
        nodes = ceil(R / near)
        return inner + [(self.between, float(near))] * ceil(log2(nodes)) if nodes > 1 else inner

    def bulk(self, R: int) -> float:
        """Seconds a byte that every rank sends while all others do."""
        near = min(R, self.ranks_per_node)
        return self.inside.per_byte if near >= R else near * self.between.per_byte

    def far(self, R: int) -> Link:
        """The link that the slowest message takes."""
        return self.inside if self.ranks_per_node >= R else self.between

    def collective(self, call: str, R: int, most: float, total: float) -> float:
        """Seconds of a collective call after the last rank has come.

        Parameters
        ----------
        call : str
        R : int
        most : float
            Bytes that a rank brings at most; of an alltoall for one receiver.
        total : float
            Bytes of all ranks; of an alltoall those that the busiest rank sends or receives. See :func:`summary`.
        """
        costs = {"barrier": self._barrier, "bcast": self._bcast, "allreduce": self._allreduce}
        return costs[call](R, most) if call in costs else getattr(self, f"_{call}")(R, most, total)

    def _barrier(self, R: int, most: float = 0.0) -> float:
        return sum(link.step for link, _ in self.stages(R))  # dissemination

    def _bcast(self, R: int, most: float) -> float:
        if most <= LONG_BCAST or R < 8:
            return sum(link.step + most * link.per_byte for link, _ in self.stages(R))  # binomial tree
        # Scattered down a tree, then gathered around a ring.
        return self._barrier(R) + self._ring(R, 2.0 * most)

    def _ring(self, R: int, total: float) -> float:
        return (R - 1) * self.far(R).step + total * (R - 1) / R * self.far(R).per_byte

    def _allreduce(self, R: int, most: float) -> float:
        stages = self.stages(R)
        if most <= LONG_ALLREDUCE:  # recursive doubling
            return sum(link.step + most * (share * link.per_byte + self.reduce) for link, share in stages)
        # Rabenseifner's: halves are added up, then gathered; the bytes halve from stage to stage.
        seconds, left = 0.0, most / 2.0
        for link, share in reversed(stages):
            seconds += 2.0 * (link.step + left * share * link.per_byte) + left * self.reduce
            left /= 2.0
        return seconds

    def _allgather(self, R: int, most: float, total: float) -> float:
        if total < LONG_ALLGATHER:  # recursive doubling
            return self._barrier(R) + total * (R - 1) / R * self.far(R).per_byte
        return self._ring(R, total)

    def _alltoall(self, R: int, most: float, total: float) -> float:
        if most <= LONG_ALLTOALL:  # Bruck's: half of everything, log2 R times
            return sum(link.step + total / 2.0 * share * link.per_byte for link, share in self.stages(R))
        link = self.far(R)
        # Pairwise: messages follow each other at the gap, or as fast as bytes go.
        return link.step + (R - 1) * max(link.gap, 2.0 * link.overhead) + total * self.bulk(R)

    def message(self, nbytes: int, source: int, dest: int) -> tuple[float, Link]:
        """Seconds from a send to the end of its receipt, and the link."""
        same = source // self.ranks_per_node == dest // self.ranks_per_node
        link = self.inside if same else self.between
        return link.step + nbytes * link.per_byte, link


def summary(call: str, sizes: list[Any]) -> tuple[float, float]:
    """`most` and `total` of :meth:`Network.collective` from what each rank brings."""
    if call != "alltoall":
        return float(max(sizes)), float(sum(sizes))
    table = np.array(sizes, np.float64)
    np.fill_diagonal(table, 0.0)
    return float(table.max()), float(max(table.sum(axis=0).max(), table.sum(axis=1).max()))


def _network(name: str, source: str, microseconds: float, gigabytes: float, **nodes: float) -> Network:
    """A network by its one-way latency between two programs, and the rate of a node's link."""
    between = Link(0.6e-6 * microseconds, 0.2e-6 * microseconds, 0.2e-6 * microseconds, 1e-9 / gigabytes)
    inside = Link(0.2e-6, 0.15e-6, 0.1e-6, 1e-10)  # through shared memory: 0.5 us, 10 GB/s
    return Network(name, source, between, inside, **nodes)  # type: ignore[arg-type]


# Latency is of a small message between two programs; of it a fifth is each side's overhead.
PRESETS = {
    one.name: one
    for one in (
        _network("gemini", "Cray XE6 (Hopper): Alverson, Roweth and Kaplan, The Gemini System Interconnect, Hot"
                 " Interconnects 2010: about 1.5 us, 6 GB/s a node", 1.5, 6.0, cores_per_node=24, memory_per_node=32.0),
        _network("aries", "Cray XC30 (Edison): Alverson, Froese, Kaplan and Roweth, Cray XC Series Network, 2012:"
                 " about 1.3 us, 10 GB/s a node", 1.3, 10.0, cores_per_node=24, memory_per_node=64.0),
        _network("hdr", "InfiniBand HDR, 200 Gbit/s, its nominal rate; about 1 us", 1.0, 25.0, cores_per_node=64,
                 memory_per_node=256.0),
        _network("ethernet", "10 Gbit/s Ethernet with TCP, its nominal rate; about 25 us, an assumption", 25.0, 1.25,
                 cores_per_node=16, memory_per_node=64.0),
    )
}  # fmt: skip
