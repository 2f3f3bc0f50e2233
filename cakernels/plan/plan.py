"""The plan of a training: seconds by phase, memory, flops, bytes and messages, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from cakernels.plan import growth, needs
from cakernels.plan.layout import JobLayout, Kind
from cakernels.plan.machine import GIB, Machine, Network
from cakernels.plan.runs import Ran, of_job

if TYPE_CHECKING:
    from cacore.learn.method import Method

UNCOUNTED = (
    "no mpiexec in PATH or beside the interpreter: the short runs had one rank, and the plan does not have the bytes, "
    "messages and time of communication; pip install 'cakernels[mpi]', or load your MPI"
)
_SENT = ("read", "partition", "search", "train", "predict")
_THREADED = _SENT[1:]


@dataclass(frozen=True)
class Plan:
    """Seconds, memory, flops and messages of one layout.

    Attributes
    ----------
    layout : JobLayout
    machine : Machine
    seconds : dict of str to float
        By phase; without "read" to the end of "predict" in "start".
    peak : float
        Bytes per rank.
    flops : float
        Of training, over all ranks.
    bytes, messages : dict of str to float
        By phase, over all ranks; empty on one rank.
    counted : bool
        False if no short run had several ranks, so that bytes, messages and their time are unknown.
    """

    layout: JobLayout
    machine: Machine
    seconds: dict[str, float]
    peak: float
    flops: float
    bytes: dict[str, float]
    messages: dict[str, float]
    counted: bool = True

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    @property
    def per_node(self) -> float:
        """Bytes per node."""
        return self.peak * min(self.layout.ranks, self.layout.ranks_per_node)

    @property
    def fits(self) -> bool:
        """True if the ranks of a node fit into its memory."""
        return self.per_node <= self.machine.room

    @property
    def nodes_needed(self) -> int | None:
        """Smallest number of nodes on which so many ranks fit; None if a single rank does not fit."""
        beside = min(self.layout.ranks_per_node, int(self.machine.room // self.peak))
        return ceil(self.layout.ranks / beside) if beside else None

    def report(self) -> dict[str, object]:
        """Entries for a JSON file."""
        layout = self.layout
        return {
            "ranks": layout.ranks, "nodes": layout.nodes, "ranks_per_node": layout.ranks_per_node,
            "threads_per_rank": layout.threads, "partitions": layout.parts,
            **({"centers": list(layout.centers)} if layout.centers else {}),
            "data": {"n_train": layout.n, "n_features": layout.d}, "seconds": {**self.seconds, "total": self.total},
            "memory": {"peak_rss_mib": self.peak / (1 << 20), "node_gib": self.per_node / GIB, "fits": self.fits},
            "nodes_needed": self.nodes_needed, "flops": self.flops,
            "comm": {} if not self.counted else {
                phase: {"bytes": round(sent), "messages": round(self.messages.get(phase, 0.0))}
                for phase, sent in self.bytes.items()
            },
            **({} if self.counted else {"notes": [UNCOUNTED]}),
        }  # fmt: skip


def planned(
    runs: Sequence[Ran], job: JobLayout, kind: Kind, method: Method, options: Any, machine: Machine, itemsize: int,
    density: float, rate: float | None = None,
) -> Plan:  # fmt: skip
    """The plan of a job, from short runs of the method.

    Parameters
    ----------
    runs : sequence of Ran
    job : JobLayout
    kind : Kind
    method, options
        The method's record and its options.
    machine : Machine
    itemsize : int
        Bytes per number.
    density : float
        Share of the features that are stored.
    rate : float, optional
        Flops per second of a thread in matrix products, here. It bounds the time of a job that factors matrices, where
        the runs are too small to tell how it grows.
    """
    direct = (kind is Kind.SYSTEM and options.solver != "cg") or (kind is Kind.POINTS and options.pick != "random")
    sent, messages = (growth.sent(runs, kind, job, what) for what in ("bytes", "messages"))
    seconds, flops = growth.seconds(runs, kind, job, direct), needs.flops(runs, job, kind, options, method)
    if rate and (direct or kind in (Kind.RIDGE_PARTS, Kind.POINTS)) and not of_job(runs, job):
        products = flops / (job.ranks * runs[0].layout.threads * rate)
        seconds["train"] = growth.bounded(seconds["train"], runs, products)
    beside = min(job.ranks, job.ranks_per_node) * job.threads
    same = machine.here and job.ranks in {run.layout.ranks for run in runs}
    slower = machine.slower if same else machine.slower * max(1.0, beside / machine.cores)
    shared = runs[0].layout.threads / job.threads  # threads are taken to share a rank's work evenly
    seconds = {phase: taken * slower * (shared if phase in _THREADED else 1.0) for phase, taken in seconds.items()}
    if job.nodes > 1:
        for phase in _SENT:
            seconds[phase] += _travel(runs, job, machine.network, phase, sent, messages)
    peak = needs.peak(runs, job, kind, options, itemsize, density)
    counted = job.ranks == 1 or any(run.layout.ranks > 1 for run in runs)
    return Plan(job, machine, seconds, peak, flops, sent, messages, counted)


def _travel(
    runs: Sequence[Ran], job: JobLayout, network: Network, phase: str, sent: dict[str, float],
    messages: dict[str, float],
) -> float:  # fmt: skip
    """Seconds of a phase's messages between nodes.

    Two ranks send one message each per collective call, which gives the number of calls. Each is taken to be an
    Allreduce; what a rank sends beyond one message per call goes to single ranks, in exchanges.
    """
    pairs = [run for run in runs if run.layout.ranks > 1]
    if not pairs or not messages.get(phase):
        return 0.0
    few = min(pairs, key=lambda run: run.layout.ranks)
    calls = few.sent("messages").get(phase, 0.0) / few.layout.ranks
    if not calls:
        return 0.0
    per_rank = sent.get(phase, 0.0) / job.ranks
    further = max(0.0, messages[phase] / job.ranks - calls)
    return calls * network.collective("allreduce", job.ranks, per_rank / calls, 0.0) + further * network.between.gap
