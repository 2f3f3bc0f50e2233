"""Page of one or several runs: one HTML file, which needs neither scripts nor a network.

Every text is escaped. Pictures are those of :mod:`cacore.run.figures`, as SVG in the page; in dark mode the page's
style sheet inverts their brightness, but for maps, whose colours mean numbers. A section takes a report and returns
pictures and tables, or nothing.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from cacore.files import replacing
from cacore.io.words import amount, counted, number, printable
from cacore.metrics import recalls
from cacore.run import figures, report
from cacore.run.report import Report, as_text, class_names
from cacore.traffic import TRAINING, spread
from cacore.tuning import GridColumns

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Markup(str):
    """Text that is HTML already; :func:`element` leaves it as it is."""

    __slots__ = ()


def element(kind: str, /, *content: str, **attributes: object) -> Markup:
    """An element with its content and attributes, all escaped but :class:`Markup`.

    Underscores in attributes' names become hyphens, ``cls`` becomes ``class``; an attribute that is None is left out.
    """
    words = [f"<{kind}"]
    for key, value in attributes.items():
        if value is not None:
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            words.append(f'{"class" if key == "cls" else key.replace("_", "-")}="{escape(text)}"')
    start = " ".join(words)
    if kind == "meta":  # has no end tag
        return Markup(f"{start}>")
    return Markup(f"{start}>{joined(content)}</{kind}>")


def joined(content: tuple[str, ...] | list[str]) -> Markup:
    """Texts, escaped, and markup, in their order."""
    return Markup("".join(text if isinstance(text, Markup) else escape(text) for text in content))


def figure(drawing: Figure, title: str, *caption: str) -> Markup:
    """A picture with its caption; `title` is read aloud, and shown under the pointer."""
    picture = figures.svg(drawing)
    kind = ' class="map"' if "<image" in picture else ""  # colours, which dark mode may not turn round
    image = Markup(picture.replace(">", f' role="img"{kind}>{element("title", title)}', 1))
    return element("figure", image, element("figcaption", joined(caption)))


PHASES = ("start", "compile", "read", "partition", "search", "train", "predict", "wait", "write", "other")
# What is legible on a page; tried, not measured.
_PARTS, _RANKS, _CLASSES, _LINES = 200, 32, 16, 400  # most that are shown one by one
_SCORES = ("validation_mse", "loo_mse", "test_mse")
_NO_SETTING = ("folds", "ended", "why", "seconds", "rows", "candidate", "score")  # columns of a grid


def seconds(value: float) -> str:
    """Text of a time."""
    return f"{number(value)} s"


def table(head: tuple[str, ...], lines: list[tuple[object, ...]]) -> Markup:
    """A table with a head, which scrolls where it is wider than the page."""
    top = element("tr", *(element("th", name, scope="col") for name in head))
    body = [
        element("tr", *(element("td", value if isinstance(value, str) else as_text(value)) for value in line))
        for line in lines
    ]
    return element("div", element("table", top, *body), cls="wide")


def folded(title: str, content: Markup) -> Markup:
    """Content behind a title that opens it."""
    return element("details", element("summary", title), content)


# -- results -----------------------------------------------------------------------------------


def results(report: Report) -> Iterator[Markup]:
    """Residuals, or the confusion matrix, recalls and calibration curve of a classifier."""
    shown = report.get("predictions") or {"of": "test rows", **report["metrics"]}
    matrix, rows = shown.get("confusion"), shown["of"]
    if shown.get("true"):
        sample = f"{len(shown['true']):,} of " if len(shown["true"]) < shown["rows"] else ""
        caption = f"Error of {sample}{shown['rows']:,} {rows} by prediction. A pattern is what the model has missed."
        yield figure(figures.residuals(shown["true"], shown["predicted"]), "Residuals", caption)
    if matrix:
        names = class_names(shown)
        if len(matrix) <= _CLASSES:
            caption = f"{rows.capitalize()} by true and predicted class. Colours: shares of the true class."
            yield figure(figures.confusion(np.array(matrix), names), "Confusion matrix", caption)
        lines: list[tuple[object, ...]] = [
            (name, sum(row), "-" if share is None else share)
            for name, row, share in zip(names, matrix, recalls(matrix), strict=True)
        ]
        yield table(("class", rows, "recall: share predicted as this class"), lines[:_LINES])
    probability = report.get("probability", {})
    if probability.get("reliability"):
        drawing = figures.reliability(probability["reliability"], probability, len(matrix or ()))
        caption = "Calibration on the test rows. On the dotted line, events are as frequent as predicted."
        yield figure(drawing, "Calibration of the probabilities", caption)


# -- settings ----------------------------------------------------------------------------------


def settings(report: Report) -> Iterator[Markup]:
    """Error against the settings that were compared, and the settings themselves."""
    grid = report["grid"]
    if len(grid) < 2:
        return
    if "candidate" in grid[0]:
        yield figure(
            figures.race(grid, report["params"]),
            "Error of the candidates",
            "Each mark is one training, with its error on held-out rows.",
        )
    else:
        yield from _compared(grid)
    names = [name for name in grid[0] if any(row.get(name) not in (None, "") for row in grid)]
    lines = [tuple("" if row.get(name) is None else row[name] for name in names) for row in grid[:_LINES]]
    beginning = f"the first {_LINES} of " if len(grid) > _LINES else ""
    yield folded(f"{beginning}{len(grid):,} settings", table(tuple(name.replace("_", " ") for name in names), lines))


def _compared(grid: list[dict[str, Any]]) -> Iterator[Markup]:
    """A heat map by two parameters, or a curve by one; of settings that differ in others, the best is shown."""
    scored = [name for name in _SCORES if any(row.get(name) is not None for row in grid)]
    score = (scored or [name for name in grid[0] if name.startswith("cv_")] or ["validation_mse"])[0]
    rows = [row for row in grid if row.get(score) is not None]
    varied = _varied(rows) if len(rows) > 1 else []
    if not varied:
        return
    smaller = score.endswith("_mse")
    best = min if smaller else max
    what = "mean squared error" if smaller else score[3:].replace("_", " ")
    top = best(float(row[score]) for row in rows)
    caption = f"{what[0].upper()}{what[1:]} of the settings on held-out rows; the best, {as_text(top)}, is marked."
    if len(varied) > 1 or len({row.get("kernel") for row in rows}) > 1:
        pairs = [pair for pair in (("sigma", "lambda"), ("gamma", "C")) if set(pair) <= set(varied)]
        x, y = pairs[0] if pairs else (*varied, "")[:2]
        yield figure(figures.heat_map(rows, GridColumns(x, y, score, what, smaller)), what, caption)
    else:
        (name,) = varied
        values = sorted({float(row[name]) for row in rows})
        errors = [best(float(row[score]) for row in rows if row[name] == value) for value in values]
        yield figure(figures.curve(values, errors, (name, what), errors.index(top), values[0] > 0), what, caption)


def _varied(rows: list[dict[str, Any]]) -> list[str]:
    """Parameters that have several values, all of them numbers."""
    names = [name for name in rows[0] if name not in (*_NO_SETTING, *_SCORES) and not name.startswith("cv_")]
    numbers = [name for name in names if all(isinstance(row.get(name), int | float) for row in rows)]
    return [name for name in numbers if len({row[name] for row in rows}) > 1]


# -- parts, time and bytes ---------------------------------------------------------------------


def parts(report: Report) -> Iterator[Markup]:
    """Rows and seconds of the parts; not those of a search on one rank."""
    sizes, solver = report["partition_sizes"], report["solver"]
    if len(sizes) < 2 or (report["method"] == "fit" and report["ranks"] == 1):
        return
    remark = f" The first {_PARTS} of {len(sizes):,} parts are shown." if len(sizes) > _PARTS else ""
    yield figure(figures.numbered(sizes[:_PARTS], "part", "rows"), "Rows of the parts", f"Rows of each part.{remark}")
    spent = solver.get("seconds") or []
    if len(spent) == len(sizes) and max(spent) > 0:
        drawing = figures.numbered(spent[:_PARTS], "part", "seconds")
        yield figure(drawing, "Seconds of the parts", f"Seconds to train each part.{remark}")
    columns = [
        name for name in ("seconds", "iterations", "n_support", "gap") if len(solver.get(name) or []) == len(sizes)
    ]
    lines = [(k + 1, sizes[k], *(solver[name][k] for name in columns)) for k in range(min(len(sizes), _LINES))]
    yield folded(
        "figures of the parts",
        table(("part", "rows", *(name.replace("n_", "").replace("_", " ") for name in columns)), lines),
    )


def time(report: Report) -> Iterator[Markup]:
    """Seconds of each rank by phase."""
    clock = report.get("seconds_by_rank") or {"ranks": [], **report["seconds"]}
    step = max(1, math.ceil(len(clock["ranks"]) / _RANKS))
    names = [f"rank {rank}" for rank in clock["ranks"][::step]] or ["slowest rank"]
    spent = {phase: clock[phase][::step] if clock["ranks"] else [clock[phase]] for phase in PHASES if phase in clock}
    spent = {phase: values for phase, values in spent.items() if any(values)}
    if spent:
        yield figure(figures.stacked(names, spent, seconds), "Seconds by phase",
                     "Seconds of each rank by phase, added up; the order of the phases in time may be another. "
                     "Phase wait is for slower ranks.")  # fmt: skip
    busy = report["solver"].get("busy_seconds") or []
    if report["ranks"] > 1 and len(busy) > 1:
        imbalance = f"the busiest: {number(report['solver']['imbalance'])} times the mean."
        drawing = figures.numbered(busy, "rank", "seconds")
        yield figure(drawing, "Seconds at work", f"Seconds of each rank at work; {imbalance}")


def traffic(report: Report) -> Iterator[Markup]:
    """Bytes by phase, and between ranks if they were recorded."""
    if report["ranks"] < 2:
        return
    sent = {
        phase: traffic_of_phase["bytes"]
        for phase, traffic_of_phase in report["comm"].items()
        if traffic_of_phase["bytes"]
    }
    if sent:
        drawing = figures.stacked(list(sent), {"bytes": list(sent.values())}, amount)
        yield figure(drawing, "Bytes sent by phase", "Bytes sent by all ranks, by phase.")
    recorded = report.get("traffic", {"bytes": {}})
    phases = [phase for phase in TRAINING if phase in recorded["bytes"]]
    matrices = np.array([recorded["bytes"][phase] for phase in phases], np.int64)
    if matrices.any():
        sums, names = spread(matrices.sum(axis=0)), " and ".join(phases)
        drawing = figures.patterns([report["method"]], [sums], names, recorded["ranks_per_group"])
        yield figure(drawing, "Bytes between ranks", "Bytes in partitioning and training, by sender and receiver.")


# -- features, parameters, environment ---------------------------------------------------------


def features(report: Report) -> Iterator[Markup]:
    """Importances and rounds of a learned metric."""
    if report.get("metric"):
        caption = "Importance of each feature in the learned metric, and the rounds in which it was learned."
        yield figure(figures.metric(report["metric"], None), "Importance of each feature", caption)


def environment(report: Report) -> Iterator[Markup]:
    """Versions, hardware and memory."""
    lines: list[tuple[object, ...]] = [*report["environment"].items()]
    peaks = report["memory"]["peak_rss_mib"]
    lines.append(("ranks and threads", f"{report['ranks']:,} x {report['threads_per_rank']}"))
    lines.append(
        (
            "peak memory per rank",
            f"{min(peaks):,.0f} to {max(peaks):,.0f} MiB" if len(peaks) > 1 else f"{peaks[0]:,.0f} MiB",
        )
    )
    yield table(("what", "value"), lines)


def notes(report: Report) -> Iterator[Markup]:
    """Warnings, each with its remedy."""
    if report.get("notes"):
        yield element("ul", *(element("li", note) for note in report["notes"]), cls="notes")


SECTIONS = {
    "Predictions": results,
    "Warnings and remedies": notes,
    "Settings compared": settings,
    "Parts": parts,
    "Time": time,
    "Bytes sent": traffic,
    "Features": features,
    "Environment": environment,
}


def drawn(section: Iterator[Markup]) -> Markup | None:
    """A section's pictures side by side, and its tables below; None if it has none."""
    elements = list(section)
    charts = [markup for markup in elements if markup.startswith("<figure")]
    tables = [markup for markup in elements if not markup.startswith("<figure")]
    if not elements:
        return None
    return joined([*([element("div", *charts, cls="figures")] if charts else []), *tables])


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # a browser loads and runs nothing
_SHOWN = ("accuracy", "balanced_accuracy", "rmse", "r2", "outliers")  # metrics that may head the page


def write(path: Path, reports: dict[str, Report]) -> None:
    """Write the page of these reports, by name, whole or not at all."""
    save(path, built({name: report.plain(content) for name, content in reports.items()}))


def save(path: Path, text: str) -> None:
    """Write a page that :func:`built` returned, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def built(reports: dict[str, Report]) -> str:
    """The page of reports, as JSON has them; several are shown side by side."""
    runs = list(reports.values())
    title = _title(runs[0]) if len(runs) == 1 else f"{counted(len(runs), 'run')}: {', '.join(reports)}"
    content = [element("h1", title)]
    content += [*_head_of_run(runs[0])] if len(runs) == 1 else [*_head_of_runs(reports)]
    for name, section in SECTIONS.items():
        drawn_sections = {label: drawn(section(run)) for label, run in reports.items()}
        if any(section_drawn is not None for section_drawn in drawn_sections.values()):
            content += [element("h2", name), _runs(drawn_sections)]
    head = joined([
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} - cakernels"),
        element("style", Markup(files("cacore.run").joinpath("page.css").read_text(encoding="utf-8"))),
    ])  # fmt: skip
    body = element("html", element("head", head), element("body", element("main", *content)), lang="en")
    # With a mark for what UTF-8 cannot write: a byte of a file's name that is no text.
    return f"<!DOCTYPE html>\n{body.encode('utf-8', 'replace').decode('utf-8')}\n"


def _title(run: Report) -> str:
    return f"{run['method']} on {printable(PurePath(run['data']['path']).name)}"


def _runs(sections: dict[str, Markup | None]) -> Markup:
    """A section of each run, side by side where there are several."""
    if len(sections) == 1:
        return next(section for section in sections.values() if section is not None)
    nothing = element("p", "nothing to show", cls="soft")
    return element(
        "div",
        *(element("article", element("h3", label), section or nothing) for label, section in sections.items()),
        cls="runs",
    )


def _head_of_run(run: Report) -> list[Markup]:
    """Head of the page of one run: the most important figures, of a search its model and scores, and the table."""
    cards = element("div", *(element("div", element("b", value), name) for name, value in _cards(run)), cls="cards")
    rows: list[tuple[object, ...]] = [(name, text) for name, text in report.rows(run) if name != "parameters"]
    chosen: list[tuple[object, ...]] = [(name, report.as_text(value)) for name, value in run["params"].items()]
    command, summary = element("pre", _command(run)), table(("what", "value"), rows)
    parameters = folded("all parameters", table(("parameter", "value"), chosen))
    if "baselines" in run:
        return [cards, *_scores(run), folded("command and summary", joined([command, summary])), parameters]
    return [command, cards, element("h2", "Summary"), summary, parameters]


def _scores(run: Report) -> list[Markup]:
    """The model that a search has chosen, its score beside those of others, and the command that uses it."""
    params, baselines, tested = run["params"], run["baselines"], bool(run["metrics"])
    name, test = params["metric_name"], baselines.get("test", {})
    scores = [("this model", run.get("held_out_score"), run["metrics"].get(name), run["seconds"]["total"]),
              (baselines["name"], baselines.get(name), test.get(name), None)]  # fmt: skip
    for rival, text in (("linear", "a linear model"), ("trees", "boosted trees")):
        if rival in baselines:
            scores.append((text, baselines[rival][name], None, baselines[rival]["seconds"]))
    lines: list[tuple[object, ...]] = [
        tuple("" if cell is None else cell for cell in (text, held_out, *([of_test] if tested else []), spent))
        for text, held_out, of_test, spent in scores
    ]
    weights = [f"{100 * weight:.0f} % " for weight in params["weights"]] if len(params["models"]) > 1 else [""]
    model = "; ".join(f"{weight}{text}" for weight, text in zip(weights, params["models"], strict=True))
    head = (name.replace("_", " "), "held-out rows", *(["test rows"] if tested else []), "seconds")
    following = f"cakernels predict {shlex.quote(run['model'])} NEW_DATA" if "model" in run else ""
    return [
        element("h2", "Model"), element("p", model), table(head, lines),
        *([element("p", "To predict new rows:"), element("pre", following)] if following else []),
    ]  # fmt: skip


def _cards(run: Report) -> list[tuple[str, str]]:
    """The most important figures: the score, rows, seconds, memory and, on several ranks, parts and bytes."""
    cards = [
        (name.replace("_", " "), report.as_text(run["metrics"][name]))
        for name in dict.fromkeys([run["params"].get("metric_name"), *_SHOWN])
        if run["metrics"].get(name) is not None
    ]
    if run.get("held_out_score") is not None and not run["metrics"]:
        name = run["params"]["metric_name"].replace("_", " ")
        cards.append((f"{name} on held-out rows", as_text(run["held_out_score"])))
    if "intervals" in run and run["intervals"].get("coverage") is not None:
        cards.append(
            (
                f"of {100 * run['intervals']['asked']:g} % asked inside intervals",
                f"{100 * run['intervals']['coverage']:.1f} %",
            )
        )
    if "rows_used" in run["data"]:
        cards.append((f"rows used of {run['data']['n_train']:,}", f"{run['data']['rows_used']:,}"))
    cards.append(("seconds in all", seconds(run["seconds"]["total"])))
    if run["ranks"] > 1:
        cards.append((f"parts on {counted(run['ranks'], 'rank')}", f"{run['partitions']:,}"))
        cards.append(("sent in training", amount(run["comm"]["train"]["bytes"])))
    return [*cards, ("peak memory of a rank", f"{max(run['memory']['peak_rss_mib']):,.0f} MiB")]


def _command(run: Report) -> Markup:
    """The command as it was typed, as far as the report knows it; lines break between its words."""
    first, *words = run["command"]
    path = PurePath(first)
    if path.suffix == ".py":
        module = path.parent.name if path.stem == "__main__" else f"{path.parent.name}.{path.stem}"
        first = f"python -m {module}"
    else:
        first = path.name
    start = f"mpiexec -n {run['ranks']} " if run["ranks"] > 1 else ""
    typed = [*f"{start}{first}".split(), *map(shlex.quote, words)]
    return joined([part for word in typed for part in (element("span", printable(word), cls="word"), " ")][:-1])


def _head_of_runs(reports: dict[str, Report]) -> list[Markup]:
    """Head of the page of several runs: a table with a column per run, and the parameters that differ."""
    lines = {label: {"command": _command(run), **dict(report.rows(run))} for label, run in reports.items()}
    for line in lines.values():
        line.pop("parameters")
    chosen = {
        label: {name: report.as_text(value) for name, value in run["params"].items()} for label, run in reports.items()
    }
    phases = [phase for phase in PHASES if any(run["seconds"].get(phase) for run in reports.values())]
    spent = {phase: [run["seconds"].get(phase) or 0.0 for run in reports.values()] for phase in phases}
    drawing = figures.stacked(list(reports), spent, seconds)
    picture = figure(drawing, "Seconds of the runs", "Seconds of the slowest rank in each phase.")
    return [
        element("h2", "Side by side"), element("div", picture, cls="figures"), _columns(lines, "what"),
        folded("parameters; those that differ are bold", _columns(chosen, "parameter")),
    ]  # fmt: skip


def _columns(values: dict[str, dict[str, str]], name: str) -> Markup:
    """A table with a column per run, whose lines are bold where the runs differ."""
    keys = list(dict.fromkeys(key for texts_of_run in values.values() for key in texts_of_run))
    lines = [element("tr", *(element("th", head, scope="col") for head in (name, *values)))]
    for key in keys:
        texts = [texts_of_run.get(key, "") for texts_of_run in values.values()]
        cells = [element("td", text) for text in (key, *texts)]
        lines.append(element("tr", *cells, cls="differs" if name == "parameter" and len(set(texts)) > 1 else None))
    return element("div", element("table", *lines), cls="wide")
