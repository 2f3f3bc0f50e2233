"""Faults of an installation or of the way a job was started, and notes: one line each, with the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cacore.comm import Communicator, alone_by_mistake
from cacore.info.facts import Rank
from cacore.io.words import counted


@dataclass
class Sharers:
    """Group of ranks on one machine that share cores, directly or through each other, and with no rank outside."""

    ranks: list[Rank] = field(default_factory=list)
    cores: set[int] = field(default_factory=set)

    def add(self, other: Sharers) -> None:
        """Add the ranks and cores of another group."""
        self.ranks += other.ranks
        self.cores |= other.cores

    @property
    def threads(self) -> int:
        """Threads of all ranks."""
        return sum(rank.threads for rank in self.ranks)

    @property
    def fill_the_machine(self) -> bool:
        """True if only fewer ranks would help: each has one thread, and together they have all cores of the machine."""
        return all(rank.threads == 1 for rank in self.ranks) and len(self.cores) == self.ranks[0].node_cores


def sharers(ranks: list[Rank]) -> list[Sharers]:
    """Group the ranks by the cores they share; groups are ordered by their lowest rank."""
    groups: dict[int, list[Sharers]] = {}
    for rank in ranks:
        on_node, joined = groups.setdefault(rank.node, []), Sharers([rank], set(rank.cores))
        for group in [one for one in on_node if one.cores & joined.cores]:
            on_node.remove(group)
            joined.add(group)
        on_node.append(joined)
    found = [group for on_node in groups.values() for group in on_node]
    return sorted(found, key=lambda group: min(one.rank for one in group.ranks))


def of(ranks: list[Rank], comm: Communicator) -> list[str]:
    """All faults of this job, the same on all ranks."""
    alone = alone_by_mistake(comm.size)
    found = [*([alone] if alone else []), *(line for group in sharers(ranks) for line in _of_cores(group))]
    found += [f"{one.host}: {one.cache_fault}" for one in ranks if one.cache_fault]
    return list(dict.fromkeys(found))


def notes(ranks: list[Rank]) -> list[str]:
    """Lines about ranks that are slower than they could be, although nothing is wrong; the same on all ranks."""
    return [
        f"{_shared(group)}, all that the machine has: that is slower, not wrong; fastest with at most "
        f"{counted(len(group.cores), 'rank')}"
        for group in sharers(ranks)
        if group.threads > len(group.cores) and group.fill_the_machine
    ]


def _shared(group: Sharers) -> str:
    """Host, threads, ranks and cores of a group with more threads than cores."""
    ranks, cores = counted(len(group.ranks), "rank"), counted(len(group.cores), "core")
    return f"{group.ranks[0].host}: {counted(group.threads, 'thread')} of {ranks} share {cores}"


def _of_cores(group: Sharers) -> Iterator[str]:
    """Faults of a group: ranks bound to one core by mistake, or more threads than cores."""
    one, count, cores = group.ranks[0], len(group.ranks), len(group.cores)
    if group.threads <= cores or group.fill_the_machine:
        return
    if cores == 1 < min(count, one.node_cores):
        yield (
            f"{one.host}: {count} ranks are all bound to core {min(group.cores)}, of {one.node_cores} cores: "
            "start with mpiexec --bind-to none or srun --cpu-bind=cores, and without taskset"
        )
        return
    if one.threads == 1:
        remedy = f"start at most {cores} ranks there, or ask for more cores (srun --cpus-per-task)"
    else:
        remedy = f"leave --threads away, or give at most --threads {max(1, cores // count)}"
    yield f"{_shared(group)}: {remedy}"
