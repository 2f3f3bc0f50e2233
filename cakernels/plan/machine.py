"""The machine of a plan: cores, memory, speed and network of a node, and the cost of MPI calls there.

Calls cost what LogGP says (Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995). The algorithms of collectives are
those that MPICH chooses by the number of bytes (Thakur, Rabenseifner and Gropp, Int. J. High Performance Computing
Applications 19(1), 2005). Any number of ranks costs as much as the next power of two. A plan takes every call to be an
Allreduce; `benchmarks/cluster/costs.py` has the other calls, for virtual ranks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import ceil, log2
from pathlib import Path
from typing import Any

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.machine.memory import USABLE

GIB = 1 << 30
_WITHIN = 0.5e-6, 10.0  # seconds and GB/s between two ranks of a node, if they were not measured


@dataclass(frozen=True)
class Machine:
    """A cluster of equal nodes.

    Attributes
    ----------
    name : str
    cores : int
        Cores per node.
    memory : float
        Bytes per node.
    network : Network
    slower : float
        Factor by which a thread computes more slowly than one of this machine.
    here : bool
        True if this is the machine on which the plan is made, alone.
    """

    name: str
    cores: int
    memory: float
    network: Network
    slower: float = 1.0
    here: bool = False

    @property
    def room(self) -> float:
        """Bytes per node that ranks may use."""
        return USABLE * self.memory

    @classmethod
    def this(cls) -> Machine:
        """The machine on which this runs."""
        from cacore.info.installation import node_memory
        from cacore.machine.threads import cores, cpu_name

        count = len(cores())
        return cls(cpu_name(), count, node_memory(), _network_of("one node", *_WITHIN, count, node_memory()), here=True)

    @classmethod
    def of_report(cls, path: Path, limit: int) -> Machine:
        """The machine that ``python -m cacore.info --report`` has described in this file.

        Its speed is compared with this machine's, which is measured for half a second.

        Raises
        ------
        InputError
            The file is not such a report.
        """
        document = _read(path)
        try:
            first = document["ranks"][0]
            threads, speed = int(first["threads"]), float(first["product_gflop_s"])
            cores, memory = int(first["node_cores"]), float(document["memory"]["node"])
            sent, name = dict(document["messages"]), str(document["cpu"])
            latency, rate = sent.get("latency_us", 1e6 * _WITHIN[0]) * 1e-6, sent.get("bandwidth_gb_s", _WITHIN[1])
            good = min(threads, speed, cores, memory, latency, rate) > 0
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            good = False
        if not good:
            raise InputError(f"--machine {path}: not a report of python -m cacore.info --report {path.name}")
        network = _network_of(path.name, latency, rate, cores, memory)
        return cls(name, cores, memory, network, slower=1e-9 * product_rate(limit) / (speed / threads))

    def on(self, preset: str) -> Machine:
        """Nodes of a known network and its cores and memory, whose threads compute as fast as this machine's."""
        network = PRESETS[preset]
        memory = network.memory_per_node * GIB
        return replace(self, name=preset, cores=network.cores_per_node, memory=memory, network=network, here=False)


def product_rate(limit: int) -> float:
    """Flops per second of a thread of this process in matrix products, while all its threads work; half a second."""
    from cacore.info import installation
    from cacore.machine import threads

    return 1e9 * float(installation.rates(Communicator(), limit)["product_gflop_s"][0]) / threads.current()


def _network_of(name: str, latency: float, gigabytes: float, cores: int, memory: float) -> Network:
    """A network with this latency in seconds and this rate, of which each side's overhead is a fifth of the latency."""
    link = Link(0.6 * latency, 0.2 * latency, 0.2 * latency, 1e-9 / gigabytes)
    return Network(name, "measured", link, link, cores_per_node=cores, memory_per_node=memory / GIB)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"--machine {path}: {error.strerror or error}") from None
    except ValueError:
        raise InputError(f"--machine {path}: not JSON, which python -m cacore.info --report FILE writes") from None


LONG_ALLREDUCE = 2048  # bytes above which MPICH uses its algorithm for long messages


@dataclass(frozen=True)
class Link:
    """A link between two ranks.

    Attributes
    ----------
    latency : float
        L, transfer time of a message, in seconds.
    overhead : float
        o, seconds that a rank is busy sending or receiving a message.
    gap : float
        g, minimum seconds between two messages of a rank.
    per_byte : float
        G, seconds per byte.
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
    """A network of nodes with equal numbers of ranks.

    Attributes
    ----------
    name, source : str
        Name, and source of the figures.
    between, inside : Link
        Links between ranks on different nodes, and on the same node. The ranks of a node share its link to others.
    ranks_per_node : int
    cores_per_node : int
        If there are fewer cores than ranks, ranks share their time.
    memory_per_node : float
        Memory in GiB.
    reduce : float
        Seconds per byte of a reduction's arithmetic.
    pauses : bool
        True if a waiting rank polls, as :func:`cacore.comm.failure.wait` does, and False if it notices at once.
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

    def stages(self, R: int) -> list[tuple[Link, float]]:
        """Link of each stage of a tree or butterfly over R ranks, and number of ranks of a node that share it."""
        near = min(R, self.ranks_per_node)
        inner = [(self.inside, 1.0)] * ceil(log2(near)) if near > 1 else []
        nodes = ceil(R / near)
        return inner + [(self.between, float(near))] * ceil(log2(nodes)) if nodes > 1 else inner

    def far(self, R: int) -> Link:
        """Link of the slowest message."""
        return self.inside if self.ranks_per_node >= R else self.between

    def allreduce(self, R: int, largest: float) -> float:
        """Seconds of an Allreduce of so many bytes, after the last of R ranks has arrived."""
        stages = self.stages(R)
        if largest <= LONG_ALLREDUCE:  # recursive doubling
            return sum(link.step + largest * (share * link.per_byte + self.reduce) for link, share in stages)
        # Rabenseifner's algorithm: reduce-scatter, then gather; the bytes halve in each stage.
        seconds, message = 0.0, largest / 2.0
        for link, share in reversed(stages):
            seconds += 2.0 * (link.step + message * share * link.per_byte) + message * self.reduce
            message /= 2.0
        return seconds


def _network(name: str, source: str, microseconds: float, gigabytes: float, **nodes: float) -> Network:
    """A network with this one-way latency between two programs, and this rate of a node's link."""
    between = Link(0.6e-6 * microseconds, 0.2e-6 * microseconds, 0.2e-6 * microseconds, 1e-9 / gigabytes)
    inside = Link(0.2e-6, 0.15e-6, 0.1e-6, 1e-10)  # through shared memory: 0.5 us, 10 GB/s
    return Network(name, source, between, inside, **nodes)  # type: ignore[arg-type]


# Latencies are those of a small message between two programs; each side's overhead is a fifth of them.
PRESETS = {
    network.name: network
    for network in (
        _network("gemini", "Cray XE6 (Hopper): Alverson, Roweth and Kaplan, The Gemini System Interconnect, Hot"
                 " Interconnects 2010: about 1.5 us, 6 GB/s a node", 1.5, 6.0, cores_per_node=24, memory_per_node=32.0),
        _network("aries", "Cray XC30 (Edison): Alverson, Froese, Kaplan and Roweth, Cray XC Series Network, 2012:"
                 " about 1.3 us, 10 GB/s a node", 1.3, 10.0, cores_per_node=24, memory_per_node=64.0),
        _network("hdr", "InfiniBand HDR, 200 Gbit/s, its nominal rate; about 1 us", 1.0, 25.0, cores_per_node=64,
                 memory_per_node=256.0),
        _network("slingshot", "HPE Slingshot 11, 200 Gbit/s, its nominal rate, one card a node (nodes without GPUs of"
                 " Perlmutter and LUMI); about 2 us", 2.0, 25.0, cores_per_node=128, memory_per_node=512.0),
        _network("ndr", "InfiniBand NDR, 400 Gbit/s, its nominal rate; about 1 us", 1.0, 50.0, cores_per_node=96,
                 memory_per_node=512.0),
        _network("ethernet", "10 Gbit/s Ethernet with TCP, its nominal rate; about 25 us, an assumption", 25.0, 1.25,
                 cores_per_node=16, memory_per_node=64.0),
    )
}  # fmt: skip
