"""What is wrong with an installation or with the way that a job was started: a line each, with the remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from cacore.comm import Communicator
from cacore.info.facts import Rank


@dataclass
class Sharers:
    """Ranks of one machine of which each shares cores with another, and no rank beside them does."""

    ranks: list[Rank] = field(default_factory=list)
    cores: set[int] = field(default_factory=set)

    def add(self, other: Sharers) -> None:
        """Take those of another group in."""
        self.ranks += other.ranks
        self.cores |= other.cores


def sharers(ranks: list[Rank]) -> list[Sharers]:
    """The ranks, grouped by the cores that they share, in the order of their lowest."""
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
    """All of them, the same on all ranks."""
    found = [*_of_slurm(comm), *(line for group in sharers(ranks) for line in _of_cores(group))]
    found += [f"{one.host}: {one.cache_fault}" for one in ranks if one.cache_fault]
    return list(dict.fromkeys(found))


def _of_cores(group: Sharers) -> Iterator[str]:
    """Ranks that were put on one core by mistake, or more threads than cores."""
    one, count, cores = group.ranks[0], len(group.ranks), len(group.cores)
    used = sum(rank.threads for rank in group.ranks)
    if used <= cores:
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
    yield f"{one.host}: {used} threads of {_counted(count, 'rank')} share {_counted(cores, 'core')}: {remedy}"


def _of_slurm(comm: Communicator) -> Iterator[str]:
    """One process in an allocation for several, which `cacore.comm` takes for what the user wants."""
    tasks = os.environ.get("SLURM_NTASKS", "")
    if comm.size == 1 and tasks.isascii() and tasks.isdigit() and int(tasks) > 1:
        yield f"Slurm gave this job {tasks} tasks, and this is one process alone: start it with srun or mpiexec"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
