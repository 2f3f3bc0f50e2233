"""Page of one or several runs: one HTML file without scripts, which opens without a network."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any

from cacore.files import replacing
from cacore.io.words import amount, counted, printable
from cacore.run import drawings, report, sections
from cacore.run.markup import Markup, element, joined

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a browser loads and runs nothing
_SHOWN = ("accuracy", "balanced_accuracy", "rmse", "r2", "outliers")  # metrics that may head the page


def write(path: Path, reports: dict[str, dict[str, Any]]) -> None:
    """Write the page of these reports, by name, whole or not at all."""
    text = built({name: report.plain(one) for name, one in reports.items()})
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def built(reports: dict[str, dict[str, Any]]) -> str:
    """The page of reports, as JSON has them; several are shown side by side."""
    runs = list(reports.values())
    title = _title(runs[0]) if len(runs) == 1 else f"{counted(len(runs), 'run')}: {', '.join(reports)}"
    content = [element("h1", title)]
    content += [*_alone(runs[0])] if len(runs) == 1 else [*_beside(reports)]
    for name, section in sections.SECTIONS.items():
        found = {label: sections.drawn(section(one)) for label, one in reports.items()}
        if any(one is not None for one in found.values()):
            content += [element("h2", name), _runs(found)]
    head = joined([
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} - cakernels"),
        element("style", Markup(files("cacore.run").joinpath("page.css").read_text(encoding="utf-8"))),
    ])  # fmt: skip
    body = element("html", element("head", head), element("body", element("main", *content)), lang="en")
    return f"<!DOCTYPE html>\n{_encodable(body)}\n"


def _encodable(text: str) -> str:
    """The text, with a mark for what UTF-8 cannot write: a byte of a file's name that is no text."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _title(one: dict[str, Any]) -> str:
    return f"{one['method']} on {printable(PurePath(one['data']['path']).name)}"


def _runs(found: dict[str, Markup | None]) -> Markup:
    """A section of each run, side by side where there are several."""
    if len(found) == 1:
        return next(one for one in found.values() if one is not None)
    nothing = element("p", "nothing to show", cls="soft")
    return element(
        "div", *(element("article", element("h3", label), one or nothing) for label, one in found.items()), cls="runs"
    )


def _alone(one: dict[str, Any]) -> list[Markup]:
    """Head of the page of one run: its command, the most important figures, and the printed table."""
    cards = element("div", *(element("div", element("b", value), name) for name, value in _cards(one)), cls="cards")
    rows: list[tuple[object, ...]] = [(name, text) for name, text in report.rows(one) if name != "parameters"]
    chosen: list[tuple[object, ...]] = [(name, report.as_text(value)) for name, value in one["params"].items()]
    return [
        element("pre", _command(one)), cards, element("h2", "Summary"), sections.table(("what", "value"), rows),
        sections.folded("all parameters", sections.table(("parameter", "value"), chosen)),
    ]  # fmt: skip


def _cards(one: dict[str, Any]) -> list[tuple[str, str]]:
    """The most important figures: metrics of the test rows, seconds, bytes and memory."""
    found = [
        (name.replace("_", " "), report.as_text(one["metrics"][name]))
        for name in _SHOWN
        if one["metrics"].get(name) is not None
    ]
    if "intervals" in one and one["intervals"].get("coverage") is not None:
        found.append(
            (
                f"of {100 * one['intervals']['asked']:g} % asked inside intervals",
                f"{100 * one['intervals']['coverage']:.1f} %",
            )
        )
    return [
        *found, ("seconds in all", sections.seconds(one["seconds"]["total"])),
        (f"parts on {counted(one['ranks'], 'rank')}", f"{one['partitions']:,}"),
        ("sent in training", amount(one["comm"]["train"]["bytes"])),
        ("peak memory of a rank", f"{max(one['memory']['peak_rss_mib']):,.0f} MiB"),
    ]  # fmt: skip


def _command(one: dict[str, Any]) -> Markup:
    """The command as it was typed, as far as the report knows it; lines break between its words."""
    first, *words = one["command"]
    path = PurePath(first)
    if path.suffix == ".py":
        module = path.parent.name if path.stem == "__main__" else f"{path.parent.name}.{path.stem}"
        first = f"python -m {module}"
    else:
        first = path.name
    start = f"mpiexec -n {one['ranks']} " if one["ranks"] > 1 else ""
    typed = [*f"{start}{first}".split(), *map(shlex.quote, words)]
    return joined([one for word in typed for one in (element("span", printable(word), cls="word"), " ")][:-1])


def _beside(reports: dict[str, dict[str, Any]]) -> list[Markup]:
    """Head of the page of several runs: a table with a column per run, and the parameters that differ."""
    lines = {label: {"command": _command(one), **dict(report.rows(one))} for label, one in reports.items()}
    for line in lines.values():
        line.pop("parameters")
    chosen = {
        label: {name: report.as_text(value) for name, value in one["params"].items()} for label, one in reports.items()
    }
    phases = [phase for phase in sections.PHASES if any(one["seconds"].get(phase) for one in reports.values())]
    spent = {phase: [one["seconds"].get(phase) or 0.0 for one in reports.values()] for phase in phases}
    picture = drawings.figure(
        drawings.stacked("Seconds of the runs", list(reports), spent, sections.seconds, sections.PHASES),
        "Seconds of the slowest rank in each phase.",
    )
    return [
        element("h2", "Side by side"), element("div", picture, cls="figures"), _columns(lines, "what"),
        sections.folded("parameters; those that differ are bold", _columns(chosen, "parameter")),
    ]  # fmt: skip


def _columns(values: dict[str, dict[str, str]], name: str) -> Markup:
    """A table with a column per run, whose lines are bold where the runs differ."""
    keys = list(dict.fromkeys(key for one in values.values() for key in one))
    lines = [element("tr", *(element("th", one, scope="col") for one in (name, *values)))]
    for key in keys:
        texts = [one.get(key, "") for one in values.values()]
        cells = [element("td", text) for text in (key, *texts)]
        lines.append(element("tr", *cells, cls="differs" if name == "parameter" and len(set(texts)) > 1 else None))
    return element("div", element("table", *lines), cls="wide")
