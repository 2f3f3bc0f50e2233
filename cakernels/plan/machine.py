"""The machine of a plan: cores, memory, speed and network of a node."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cacore.comm import Communicator
from cacore.errors import InputError
from cakernels.plan.network import PRESETS, Link, Network

GIB = 1 << 30
_USABLE = 0.9  # share of a node's memory that ranks may use, as in cacore.machine.memory
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
        return _USABLE * self.memory

    @classmethod
    def this(cls) -> Machine:
        """The machine on which this runs."""
        from cacore.info.facts import node_memory
        from cacore.machine.cpu import cpu_name
        from cacore.machine.threads import cores

        count = len(cores())
        return cls(cpu_name(), count, node_memory(), _network("one node", *_WITHIN, count, node_memory()), here=True)

    @classmethod
    def of_report(cls, path: Path, limit: int) -> Machine:
        """The machine that ``python -m cacore.info --report`` has described in this file.

        Its speed is compared with this machine's, which is measured for half a second.

        Raises
        ------
        InputError
            The file is not such a report.
        """
        from cacore.info import measure

        found = _read(path)
        try:
            first = found["ranks"][0]
            threads, speed = int(first["threads"]), float(first["product_gflop_s"])
            cores, memory = int(first["node_cores"]), float(found["memory"]["node"])
            sent, name = dict(found["messages"]), str(found["cpu"])
            latency, rate = sent.get("latency_us", 1e6 * _WITHIN[0]) * 1e-6, sent.get("bandwidth_gb_s", _WITHIN[1])
            good = min(threads, speed, cores, memory, latency, rate) > 0
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            good = False
        if not good:
            raise InputError(f"--machine {path}: not a report of python -m cacore.info --report {path.name}")
        own = measure.rates(Communicator(), limit)["product_gflop_s"][0] / _threads()
        network = _network(path.name, latency, rate, cores, memory)
        return cls(name, cores, memory, network, slower=own / (speed / threads))

    def on(self, preset: str) -> Machine:
        """Nodes of a known network and its cores and memory, whose threads compute as fast as this machine's."""
        network = PRESETS[preset]
        memory = network.memory_per_node * GIB
        return replace(self, name=preset, cores=network.cores_per_node, memory=memory, network=network, here=False)


def _threads() -> int:
    from cacore.machine import threads

    return threads.current()


def _network(name: str, latency: float, gigabytes: float, cores: int, memory: float) -> Network:
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
