"""Pictures of results: scaling curves, rivals beside their peers, time lines of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.results import Record, Results
from cacore.errors import InputError
from cacore.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from benchmarks.cluster.timeline import Timeline

COLORS = {"partition": "tab:orange", "train": "tab:blue", "predict": "tab:green"}


def draw(results: Results, out: Path) -> None:
    """Draw what these records show.

    Raises
    ------
    InputError
        There is no picture of them.
    """
    records = results.records
    if records and all({"ranks", "seconds", "method"} <= record.keys() for record in records):
        figure = scaling(results)
    elif records and all({"race", "rival", "seconds"} <= record.keys() for record in records):
        figure = races(records)
    else:
        raise InputError(f"{results.name}: its records are of no kind that can be drawn")
    save(figure, out)


def save(figure: Figure, out: Path) -> None:
    """Write a picture, in the format that its name ends with."""
    with replacing(out) as temporary:
        figure.savefig(temporary, format=out.suffix[1:] or "png", dpi=120)


def scaling(results: Results) -> Figure:
    """Seconds and efficiency against ranks, a curve a method; what was not computed is dashed."""
    figure, (left, right) = _figure(1, 2, 11.0, 4.5)
    weak = results.name == "weak-scaling"
    for number, method in enumerate(dict.fromkeys(record["method"] for record in results.records)):
        mine = [record for record in results.records if record["method"] == method]
        real = [record for record in mine if record["how"] == "computed"]
        rest = [record for record in mine if record["how"] != "computed"]
        for axes, name in ((left, "seconds"), (right, "efficiency")):
            shown = {"color": f"C{number}", "marker": "o", "markersize": 4}
            if real:
                axes.plot(*_points(real, name), label=method, **shown)
            if rest:
                label = None if real else f"{method} (formula)"
                axes.plot(*_points(real[-1:] + rest, name), "--", label=label, markerfacecolor="white", **shown)
    left.set_ylabel("seconds: partition, training, prediction")
    left.set_yscale("log")
    right.set_ylabel(f"{'weak' if weak else 'strong'}-scaling efficiency")
    right.set_ylim(bottom=0.0)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("ranks (virtual; dashed: extrapolated, or by formula)")
        axes.grid(alpha=0.3)
    left.legend(fontsize=8)
    figure.suptitle(results.about.get("network", ""), fontsize=9)
    return figure


def _points(records: list[Record], name: str) -> tuple[list[int], list[float]]:
    return [record["ranks"] for record in records], [record[name] for record in records]


def races(records: list[Record]) -> Figure:
    """Each rival's seconds over its peer's, a bar a rival."""
    titles = list(dict.fromkeys(record["race"] for record in records))
    bars = []
    for title in titles:
        mine = {record["rival"]: record for record in records if record["race"] == title}
        peer = next(iter(mine.values()))["peer"]
        bars += [
            (title, name, record["seconds"] / mine[peer]["seconds"], name == peer) for name, record in mine.items()
        ]
    figure, axes = _figure(1, 1, 9.0, 0.8 + 0.32 * len(bars))
    places = range(len(bars))
    axes.barh(
        places, [ratio for _, _, ratio, _ in bars], color=["lightgrey" if peer else "tab:blue" for *_, peer in bars]
    )
    axes.set_yticks(places, [f"{title}: {name}" for title, name, _, _ in bars], fontsize=7)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("seconds over the peer's (grey: the peer; below 1 is faster)")
    return figure


def timeline(line: Timeline, title: str) -> Figure:
    """When each rank computed, a row a rank, a colour a phase; white is waiting."""
    figure, axes = _figure(1, 1, 10.0, 1.5 + 0.16 * len(line.spans))
    for rank, spans in enumerate(line.spans):
        for phase, color in COLORS.items():
            mine = [(begin, end - begin) for begin, end, of, computing in spans if computing and of == phase]
            axes.broken_barh(mine, (rank - 0.4, 0.8), color=color, label=phase if rank == 0 else None)
    axes.set_xlabel("seconds")
    axes.set_ylabel("rank")
    axes.set_title(title)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return figure


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("a plot needs matplotlib: pip install 'cakernels[plot]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns)
