"""Plots of results: the kinds of plots, and which of them fit the records of a file."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.results import Record, Results
from cacore.errors import InputError
from cacore.run import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from benchmarks.cluster.timeline import Timeline

COLORS = {"partition": "tab:orange", "train": "tab:blue", "predict": "tab:green"}
MARKERS = "os^Dv<>P*X"


def draw(results: Results, out: Path, kind: str | None = None) -> None:
    """Plot the records: as `kind`, or as the first of `KINDS` that fits.

    Raises
    ------
    InputError
        No plot, or not this one, fits the records.
    """
    there = [name for name, (needed, _) in KINDS.items() if any(needed <= record.keys() for record in results.records)]
    if not there or kind not in (None, *there):
        asked = f"no plot of {kind}" if there else "no plot fits its records"
        raise InputError(f"{results.name}: {asked}" + (f", but of {', '.join(there)}" if there else ""))
    needed, drawer = KINDS[kind or there[0]]
    figure = drawer(Results(results.name, [r for r in results.records if needed <= r.keys()], results.about))
    figures.save(figure, out)


def scaling(results: Results) -> Figure:
    """Seconds and efficiency against ranks, with a curve per method; extrapolated parts are dashed."""
    figure, (left, right) = _panels(1, 2, 11.5, 4.8)
    weak = results.name == "weak-scaling"
    for number, method in enumerate(_each(results.records, "method")):
        mine = [record for record in results.records if record["method"] == method]
        real = [record for record in mine if record["how"] == "computed"]
        rest = [record for record in mine if record["how"] != "computed"]
        for axes, name in ((left, "seconds"), (right, "iteration_efficiency")):
            shown = {"color": f"C{number}", "marker": MARKERS[number % len(MARKERS)], "markersize": 5}
            if real:
                axes.plot(*_points(real, name), label=method, **shown)
            if rest:
                label = None if real else f"{method} (formula)"
                shown |= {"markerfacecolor": "white", "markevery": slice(1 if real else 0, None)}
                axes.plot(*_points(real[-1:] + rest, name), "--", label=label, **shown)
    left.set_ylabel("seconds: partition, training, prediction")
    left.set_yscale("log")
    right.set_ylabel(f"{'weak' if weak else 'strong'}-scaling efficiency of an iteration")
    right.set_ylim(bottom=0.0)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("ranks (virtual; dashed: extrapolated, or by formula)")
        axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.suptitle(_whole(results), fontsize=9)
    return figure


def validation(results: Results) -> Figure:
    """Seconds of the model, of SimGrid, and measured, with a group of bars per run."""
    records = results.records
    figure, axes = _panels(1, 1, max(6.5, 0.62 * len(records) + 1.5), 4.5)
    series = {"measured": "measured_seconds", "model": "seconds", "SimGrid": "simgrid_seconds"}
    series = {label: name for label, name in series.items() if any(name in record for record in records)}
    places = np.arange(len(records))
    for number, (label, name) in enumerate(series.items()):
        values = [record.get(name, math.nan) for record in records]
        offset = (number - (len(series) - 1) / 2) * 0.8 / len(series)
        axes.bar(places + offset, values, 0.8 / len(series), label=label, color=("grey", "C0", "C1")[number])
    axes.set_xticks(places, [f"{r['method']}\n{r['ranks']} rank{'s' * (r['ranks'] > 1)}" for r in records], fontsize=7)
    axes.set_ylabel("seconds: partition, training, prediction")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title(_whole(results), fontsize=9)
    return figure


def races(results: Results) -> Figure:
    """Seconds of each rival over those of its peer, with a bar per rival."""
    bars = []
    for title in _each(results.records, "race"):
        mine = {record["rival"]: record for record in results.records if record["race"] == title}
        peer = next(iter(mine.values()))["peer"]
        bars += [
            (title, name, record["seconds"] / mine[peer]["seconds"], name == peer) for name, record in mine.items()
        ]
    figure, axes = _panels(1, 1, 10.0, 1.2 + 0.3 * len(bars))
    places, ratios = range(len(bars)), [ratio for _, _, ratio, _ in bars]
    axes.barh(places, ratios, color=["lightgrey" if peer else "tab:blue" for *_, peer in bars])
    for place, ratio in zip(places, ratios, strict=True):
        axes.text(ratio, place, f" {ratio:.3g}", va="center", fontsize=7)
    axes.set_yticks(places, [f"{title}: {name}" for title, name, _, _ in bars], fontsize=7)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.margins(x=0.08, y=0.3 / len(bars))
    if max(ratios) > 20 * min(ratios):
        _logarithmic(axes)
    axes.set_xlabel("seconds over the peer's (grey: the peer; below 1 is faster)")
    axes.set_title(_whole(results), fontsize=9)
    return figure


def errors(results: Results) -> Figure:
    """Test error against seconds, with a panel per data set, a curve per method, and a point per grid."""
    names = _each(results.records, "data")
    figure, panels = _panels(1, len(names), 6.8 * len(names), 4.8)
    for axes, name in zip(np.atleast_1d(panels), names, strict=True):
        mine = [record for record in results.records if record["data"] == name]
        for number, method in enumerate(_each(mine, "method")):
            points = sorted((r["seconds"], r["mse"]) for r in mine if r["method"] == method)
            best = method.endswith("3")
            label = f"{method} (bound: the best model of each row)" if best else method
            style = {"marker": MARKERS[number % len(MARKERS)], "markersize": 5, "color": f"C{number}"}
            axes.plot(*zip(*points, strict=True), "--" if best else "-", label=label, **style)
        axes.set(xlabel="seconds: partition, training, prediction", ylabel="mean squared test error")
        _logarithmic(axes)
        pairs = ", ".join(str(count) for count in sorted({record["pairs"] for record in mine}))
        axes.set_title(f"{name}; points: {pairs} pairs of sigma and lambda", fontsize=9)
        axes.grid(alpha=0.3, which="both")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def parts(results: Results) -> Figure:
    """Rows of each part, and busy seconds of each rank in training, with a row of panels per method."""
    records = [record for record in results.records if len(record["partition_sizes"]) > 1] or results.records
    figure, panels = _panels(len(records), 2, 9.5, 1.5 * len(records) + 1.0, squeeze=False)
    for (left, right), record in zip(panels, records, strict=True):
        title = ", ".join(str(record[name]) for name in ("data", "method", "rival") if name in record)
        for axes, values, color, form in (
            (left, record["partition_sizes"], "tab:orange", ",.0f"),
            (right, record.get("busy_seconds", []), "tab:blue", ".3g"),
        ):
            axes.bar(range(len(values)), values, color=color)
            if len(values):
                axes.axhline(float(np.mean(values)), color="black", linewidth=0.8, linestyle=":")
                axes.set_title(f"{title}: {min(values):{form}} to {max(values):{form}}", fontsize=8)
            axes.tick_params(labelsize=7)
            axes.set_xticks(range(0, len(values), -(-max(1, len(values)) // 16)))
        left.set_ylabel("rows", fontsize=8)
        right.set_ylabel("seconds", fontsize=8)
        if not record.get("busy_seconds"):
            right.set_axis_off()
    panels[-1, 0].set_xlabel("part")
    panels[-1, 1].set_xlabel("rank: busy seconds in training")
    figure.suptitle(f"dotted: the mean; {_whole(results)}".rstrip("; "), fontsize=8)
    return figure


def matrices(results: Results) -> Figure:
    """Bytes from every rank to every rank, with a panel per run on several ranks."""
    records = [record for record in results.records if len(record["sent"]) > 1]
    if not records:
        raise InputError(f"{results.name}: all runs have one rank, which sends nothing")
    several = len({record["data"] for record in records}) > 1
    titles = [f"{record['method']}{', ' + record['data'] if several else ''}" for record in records]
    return figures.patterns(titles, [np.array(record["sent"]) for record in records], "partition and training")


def lines(results: Results) -> Figure:
    """Timelines of the ranks, with a panel per method."""
    records = results.records
    height = sum(1.3 + 0.12 * len(record["spans"]) for record in records)
    figure, panels = _panels(len(records), 1, 10.0, height, squeeze=False)
    for axes, record in zip(panels[:, 0], records, strict=True):
        title = f"{record['method']}, {record['data']}, {len(record['spans'])} virtual ranks"
        _bars(axes, record["spans"], title)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.suptitle(_whole(results), fontsize=8)
    return figure


def timeline(line: Timeline, title: str) -> Figure:
    """Timeline of the ranks, with a row per rank and a colour per phase; white is waiting."""
    figure, axes = _panels(1, 1, 10.0, 1.5 + 0.16 * len(line.spans))
    spans = [[(begin, end, phase) for begin, end, phase, computing in of_rank if computing] for of_rank in line.spans]
    _bars(axes, spans, title)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return figure


def _bars(axes: Any, spans: list[Any], title: str) -> None:
    for phase, color in COLORS.items():
        axes.barh([0], [0], color=color, label=phase)  # a legend entry even if the first rank lacks the phase
        for rank, of_rank in enumerate(spans):
            mine = [(begin, end - begin) for begin, end, of in of_rank if of == phase]
            axes.broken_barh(mine, (rank - 0.4, 0.8), color=color)
    axes.set_ylim(-0.6, len(spans) - 0.4)
    axes.set_yticks(range(0, len(spans), -(-len(spans) // 16)))
    axes.set_xlim(left=0.0)
    axes.set_xlabel("seconds (white: waiting, or sending)", fontsize=8)
    axes.set_ylabel("rank", fontsize=8)
    axes.set_title(title, fontsize=9)


def exact(results: Results) -> Figure:
    """Test error of each run against its seconds, with a panel per data set."""
    names, runs = _each(results.records, "data"), _each(results.records, "run")
    figure, panels = _panels(1, len(names), 5.0 * len(names), 4.2, squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        mine = [record for record in results.records if record["data"] == name]
        for record in mine:
            number = runs.index(record["run"])
            shown = {"color": f"C{number % 10}", "marker": "osD^v<>P*X"[number % 10]}
            axes.plot(record["seconds"], record["mse"], linestyle="", label=record["run"], **shown)
        _logarithmic(axes)
        axes.set_xlabel("seconds to fit")
        axes.set_ylabel("mean squared error of the test rows")
        axes.set_title(f"{name}, {max(record['rows'] for record in mine):,} rows", fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    return figure


def intervals(results: Results) -> Figure:
    """Coverage and width of intervals for each requested coverage, with a line per data set."""
    names, asked = _each(results.records, "data"), _each(results.records, "asked")
    methods = _each(results.records, "method")
    figure, panels = _panels(1, len(asked) + 1, 4.2 * (len(asked) + 1), 1.6 + 0.27 * len(names))
    for axes, what in zip(panels, [*asked, None], strict=True):
        for number, method in enumerate(methods):
            mine = [r for r in results.records if r["method"] == method and r["asked"] == (what or asked[0])]
            places = [names.index(r["data"]) + 0.6 * (number / max(1, len(methods) - 1) - 0.5) for r in mine]
            values = [r["held" if what else "of_plain"] * 100 for r in mine]
            errors = [100 * r["deviation"] / math.sqrt(max(1, r["splits"] - 1)) if what else 0.0 for r in mine]
            style = {"marker": MARKERS[number % len(MARKERS)], "markersize": 4, "color": f"C{number % 10}"}
            axes.errorbar(values, places, xerr=errors, linestyle="", label=method, **style)
        axes.axvline(float(what.rstrip("%")) if what else 100.0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(names)), names if axes is panels[0] else [], fontsize=7)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel(
            f"% of the targets held, {what} asked" if what else f"width, % of the first's, {asked[0]} asked"
        )
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def anytime(results: Results) -> Figure:
    """Best error so far against seconds: the median over seeds and, shaded, their range; a panel per data set."""
    from benchmarks.anytime import best_at

    names, searches = _each(results.records, "data"), _each(results.records, "search")
    figure, panels = _panels(1, len(names), 6.4 * len(names), 4.4, squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        for number, search in enumerate(searches):
            mine = [r for r in results.records if (r["data"], r["search"]) == (name, search)]
            seconds = np.unique(np.concatenate([record["ended"] for record in mine]))
            best = np.array([best_at(record, seconds) for record in mine])
            there = np.isfinite(best).all(axis=0)
            seconds, best = seconds[there], best[:, there]
            shown = {"color": f"C{number}", "step": "post"}
            axes.fill_between(seconds, best.min(axis=0), best.max(axis=0), alpha=0.2, linewidth=0, **shown)
            tested = np.median([record["test_rmse"] for record in mine])
            text = f"{search}: rmse of test rows {tested:.4g}"
            axes.step(seconds, np.median(best, axis=0), where="post", color=f"C{number}", lw=2, label=text)
        _logarithmic(axes)
        axes.set(xlabel="seconds since the start", ylabel="smallest rmse so far, on held-out rows")
        title = f"{name}; median and range over the seeds"
        axes.legend(title=title, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
        axes.grid(alpha=0.3)
    return figure


# Kinds of plots: fields that records need, and the function that draws them.
KINDS: dict[str, tuple[set[str], Callable[[Results], Figure]]] = {
    "validation": ({"method", "ranks", "seconds", "measured_seconds"}, validation),
    "scaling": ({"method", "ranks", "seconds", "how", "iteration_efficiency"}, scaling),
    "error": ({"data", "method", "pairs", "seconds", "mse"}, errors),
    "exact": ({"data", "run", "rows", "seconds", "mse"}, exact),
    "intervals": ({"data", "method", "asked", "held", "deviation", "splits", "of_plain"}, intervals),
    "race": ({"race", "rival", "peer", "seconds"}, races),
    "parts": ({"partition_sizes"}, parts),
    "matrix": ({"data", "method", "sent"}, matrices),
    "anytime": ({"data", "search", "seed", "ended", "errors", "test_rmse"}, anytime),
    "timeline": ({"data", "method", "spans"}, lines),
}


def _each(records: list[Record], name: str) -> list[str]:
    return list(dict.fromkeys(record[name] for record in records))


def _points(records: list[Record], name: str) -> tuple[list[int], list[float]]:
    return [record["ranks"] for record in records], [record[name] for record in records]


def _whole(results: Results) -> str:
    """Text on what all records share."""
    said = [str(results.about[name]) for name in ("data", "network") if name in results.about]
    return ", ".join(said) if said else results.name


def _logarithmic(axes: Any) -> None:
    """Make the x axis logarithmic, with plain numbers at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")


def _panels(rows: int, columns: int, width: float, height: float, squeeze: bool = True) -> tuple[Figure, Any]:
    figure = figures.blank(width, height)
    return figure, figure.subplots(rows, columns, squeeze=squeeze)
