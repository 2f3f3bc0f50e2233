"""Timelines of traces on a network: when each rank computed, and when it waited."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.cluster import costs
from benchmarks.cluster.trace import Trace
from cakernels.plan.machine import Network


@dataclass
class Timeline:
    """Result of a replay.

    Attributes
    ----------
    end : float
        Seconds until the last rank finished.
    phases : dict of str to float
        Seconds of each phase on its slowest rank, including waiting for others, as in a report.
    spans : list of list of (begin, end, phase, computing)
        Intervals of each rank.
    """

    end: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    spans: list[list[tuple[float, float, str, bool]]] = field(default_factory=list)


class _Node:
    """Cores of a node, shared evenly by the computing ranks; a virtual clock runs at the speed of each of them."""

    def __init__(self, cores: int) -> None:
        self.cores, self.now, self.attained = cores, 0.0, 0.0
        self.running: list[tuple[float, int]] = []  # (clock at the end of its computation, rank)

    def _rate(self) -> float:
        return min(1.0, self.cores / max(1, len(self.running)))

    def advance(self, now: float) -> None:
        if now > self.now:
            self.attained += (now - self.now) * self._rate()
            self.now = now

    def start(self, rank: int, seconds: float) -> None:
        heapq.heappush(self.running, (self.attained + seconds, rank))

    def next_end(self) -> float:
        return self.now + (self.running[0][0] - self.attained) / self._rate() if self.running else np.inf


def replay(traces: list[Trace], network: Network) -> Timeline:
    """Replay computations and calls of the traces on a network.

    A collective call ends for all ranks :meth:`Network.collective` seconds after the last one has arrived; the root of
    a broadcast continues as soon as it has sent.
    """
    return _Replay(traces, network).run()


class _Replay:
    def __init__(self, traces: list[Trace], network: Network) -> None:
        R = len(traces)
        self.traces, self.network, self.place = traces, network, [0] * R
        shared = network.ranks_per_node > network.cores_per_node
        self.nodes = [_Node(network.cores_per_node) for _ in range(-(-R // network.ranks_per_node) if shared else 0)]
        self.begun: list[float] = [0.0] * R
        self.waiting: dict[int, float] = {}
        self.met: dict[tuple[int, ...], int] = defaultdict(int)  # ranks that wait in a collective call of a team
        self.mail: dict[tuple[int, int], deque[float]] = defaultdict(deque)  # arrival times of messages
        self.events: list[tuple[float, int, bool]] = []  # (time, rank, True if it finished computing)
        self.line = Timeline(spans=[[] for _ in range(R)])
        self.totals: list[dict[str, float]] = [defaultdict(float) for _ in range(R)]

    def run(self) -> Timeline:
        for rank in range(len(self.traces)):
            heapq.heappush(self.events, (0.0, rank, False))
        while self.events or any(node.running for node in self.nodes):
            node = min(self.nodes, key=_Node.next_end, default=None)
            end = np.inf if node is None else node.next_end()
            if node is None or (self.events and self.events[0][0] <= end):
                now, rank, computed = heapq.heappop(self.events)
                (self._called if computed else self._compute)(now, rank)
            else:
                node.advance(end)
                _, rank = heapq.heappop(node.running)
                self._called(end, rank)
        if any(place < len(trace) for place, trace in zip(self.place, self.traces, strict=True)):
            raise ValueError("the traces do not match: ranks wait for one another")
        phases = dict.fromkeys(phase for total in self.totals for phase in total)
        self.line.phases = {phase: max(total.get(phase, 0.0) for total in self.totals) for phase in phases}
        self.line.end = max(spans[-1][1] for spans in self.line.spans if spans)
        return self.line

    def _compute(self, now: float, rank: int) -> None:
        """Start the next step of a rank."""
        if self.place[rank] == len(self.traces[rank]):
            return
        self.begun[rank], seconds = now, self.traces[rank][self.place[rank]].seconds
        if self.nodes:
            node = self.nodes[rank // self.network.ranks_per_node]
            node.advance(now)
            node.start(rank, seconds)
        else:
            heapq.heappush(self.events, (now + seconds, rank, True))

    def _called(self, now: float, rank: int) -> None:
        """Handle the call of a rank that finished computing."""
        step = self.traces[rank][self.place[rank]]
        self._span(rank, self.begun[rank], now, step.phase, True)
        if step.call in ("", "send", "recv"):
            {"": self._go_on, "send": self._send, "recv": self._receive}[step.call](now, rank)
            return
        self.waiting[rank] = now
        team = step.team or range(len(self.traces))
        self.met[step.team] += 1
        if self.met[step.team] == len(team):
            del self.met[step.team]
            self._collective(team)

    def _go_on(self, now: float, rank: int, called: float | None = None) -> None:
        step = self.traces[rank][self.place[rank]]
        if called is not None:
            self._span(rank, called, now, step.phase, False)
        self.place[rank] += 1
        heapq.heappush(self.events, (now, rank, False))

    def _collective(self, team: Sequence[int]) -> None:
        steps = [self.traces[rank][self.place[rank]] for rank in team]
        calls = {step.call for step in steps}
        if len(calls) > 1:
            raise ValueError(f"the traces do not match: ranks call {', '.join(sorted(calls))} at once")
        most, total = costs.summary(steps[0].call, [step.sizes for step in steps])
        seconds = costs.collective(self.network, steps[0].call, len(steps), most, total)
        waiting = {rank: self.waiting.pop(rank) for rank in team}
        root = team[steps[0].peer] if steps[0].peer >= 0 else -1
        last = max(waiting.values())
        for rank, came in waiting.items():
            end = last + seconds
            if root >= 0:  # a broadcast: the root does not wait for late ranks
                sent = waiting[root] + seconds
                end = max(came + self.network.far(len(steps)).overhead, sent) if rank != root else sent
            if steps[0].call != "alltoall":  # its bytes only move during MPI calls, so ranks wait without pauses
                end = came + costs.noticed(self.network, end - came)
            self._go_on(end, rank, came)

    def _send(self, now: float, rank: int) -> None:
        step = self.traces[rank][self.place[rank]]
        seconds, link = costs.message(self.network, step.nbytes, rank, step.peer)
        receiver = self.waiting.get(step.peer)
        self.mail[rank, step.peer].append(now + seconds)
        free = now + link.overhead + (step.nbytes * link.per_byte if step.nbytes > costs.EAGER else 0.0)
        self._go_on(free, rank, now)
        if receiver is not None and self.traces[step.peer][self.place[step.peer]].peer == rank:
            called = self.waiting.pop(step.peer)
            self._received(max(called, now), step.peer, called)

    def _receive(self, now: float, rank: int) -> None:
        if self.mail[self.traces[rank][self.place[rank]].peer, rank]:
            self._received(now, rank, now)
        else:
            self.waiting[rank] = now

    def _received(self, now: float, rank: int, called: float) -> None:
        there = self.mail[self.traces[rank][self.place[rank]].peer, rank].popleft()
        self._go_on(called + costs.noticed(self.network, max(now, there) - called), rank, called)

    def _span(self, rank: int, begin: float, end: float, phase: str, computing: bool) -> None:
        self.totals[rank][phase] += end - begin
        self.line.spans[rank].append((begin, end, phase, computing))
