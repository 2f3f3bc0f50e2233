"""Tables of a plan on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cacore.io.words import counted
from cacore.terminal import say, show_table
from cakernels.plan.machine import GIB
from cakernels.plan.plan import UNCOUNTED, Plan
from cakernels.plan.runs import PHASES, STARTED


def show(name: str, plans: Sequence[Plan]) -> None:
    """Print one column per layout."""
    first = plans[0]
    say(f"{name}: {first.layout.n:,} rows x {first.layout.d:,} features on {first.machine.name}")
    columns = zip(*(list(_column(plan)) for plan in plans), strict=True)
    lines = [(label[0], label[1], *(text for _, text in texts)) for label, *texts in columns]
    show_table(lines, header=["ranks", *(f"{plan.layout.ranks:,}" for plan in plans)])
    for plan in plans:
        say(*notes(plan))
    if not all(plan.counted for plan in plans):
        say(UNCOUNTED)


def _column(plan: Plan) -> Iterator[tuple[str, str]]:
    """Labels and texts of one layout."""
    layout = plan.layout
    yield "nodes x ranks x threads", f"{layout.nodes:,} x {min(layout.ranks, layout.ranks_per_node)} x {layout.threads}"
    if layout.centers:
        yield "rows, points", f"{layout.n:,}, {', '.join(f'{M:,}' for M in layout.centers)}"
    elif layout.parts > 1:
        yield "parts x rows", f"{layout.parts:,} x {layout.part:,.0f}"
    else:
        yield "parts x rows", f"1 x {layout.n:,}"
    for phase in PHASES:
        yield f"{phase}, s", _short(plan.seconds[phase])
    yield "total, s", _short(plan.total)
    yield "memory per rank, GiB", f"{plan.peak / GIB:.2f}"
    yield "memory per node, GiB", f"{plan.per_node / GIB:.1f} of {plan.machine.memory / GIB:.0f}"
    yield "flops of training", f"{plan.flops:.2g}"
    yield "bytes sent", _sum(plan.bytes, plan)
    yield "messages", _sum(plan.messages, plan)


def _sum(by_phase: dict[str, float], plan: Plan) -> str:
    if not plan.counted:
        return "unknown"
    return f"{sum(by_phase.values()):.2g}" if by_phase else "0"


def _short(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def notes(plan: Plan) -> Iterator[str]:
    """Notes on the layouts that do not fit, and the number of nodes that would."""
    if plan.fits:
        return
    layout, ranks = plan.layout, counted(plan.layout.ranks, "rank")
    line = f"{ranks}: {plan.per_node / GIB:.1f} GiB per node do not fit into {plan.machine.room / GIB:.1f} GiB"
    if plan.nodes_needed is not None:
        beside = -(-layout.ranks // plan.nodes_needed)
        yield f"{line}; {counted(plan.nodes_needed, 'node')} with {counted(beside, 'rank')} each do"
    else:
        less = "fewer --centers" if layout.centers else "more --partitions"
        yield f"{line}, not even with one rank per node: {less}, more ranks or --dtype float32"


def compare(plan: Plan, document: dict[str, Any]) -> None:
    """Print what was planned beside what a run took."""
    from cacore.run.report import show_rows

    show_rows(f"planned and measured: {document['method']}", list(differences(plan, document)))


def differences(plan: Plan, document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Planned and measured figures, and their ratio."""
    taken = document["seconds"]
    measured = {phase: taken.get(phase, 0.0) for phase in PHASES}
    measured["start"] = sum(taken.get(phase, 0.0) for phase in STARTED)
    for phase in PHASES:
        yield f"{phase}, s", _beside(plan.seconds[phase], measured[phase])
    work = plan.total - plan.seconds["start"], sum(measured.values()) - measured["start"]
    yield "without the start, s", _beside(*work)
    yield "total, s", _beside(plan.total, sum(measured.values()))
    yield "memory per rank, MiB", _beside(plan.peak / (1 << 20), max(document["memory"]["peak_rss_mib"]))
    if plan.bytes:
        for what, sent in (("bytes", plan.bytes), ("messages", plan.messages)):
            yield what, _beside(sum(sent.values()), sum(counts[what] for counts in document["comm"].values()))


def _beside(planned: float, measured: float) -> str:
    ratio = f", ratio {planned / measured:.2f}" if measured else ""
    return f"planned {planned:,.4g}, measured {measured:,.4g}{ratio}"
