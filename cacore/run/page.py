"""Page of one or several runs: one HTML file without scripts, with its charts, tables and sections.

HTML and SVG elements, in which every text is escaped.

Charts as SVG, without matplotlib: they follow the page's colours and need no script.

All are 360 units wide, so that their text is readable on a telephone. A mark's exact values are its title, which
browsers show under the pointer and read aloud.

Sections of the page of a run: each takes a report and returns charts and tables, or nothing.

Page of one or several runs: one HTML file without scripts, which opens without a network.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any

from cacore.files import replacing
from cacore.io.words import amount, counted, printable, short
from cacore.run import report
from cacore.run.report import as_text

_EMPTY = {"br", "circle", "line", "meta", "path", "polyline", "rect"}  # elements without an end tag


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
    if kind in _EMPTY:
        return Markup(f"{start}/>" if kind not in ("br", "meta") else f"{start}>")
    return Markup(f"{start}>{joined(content)}</{kind}>")


def joined(content: tuple[str, ...] | list[str]) -> Markup:
    """Texts, escaped, and markup, in their order."""
    return Markup("".join(one if isinstance(one, Markup) else escape(one) for one in content))


WIDTH = 360.0
_RAMP = ((253, 231, 37), (94, 201, 98), (33, 145, 140), (59, 82, 139), (68, 1, 84))  # viridis, from bright to dark
_CELL = 34.0  # smallest width of a cell that has room for its number

Value = float | None
Shown = Callable[[float], str]


def _drawing(height: float, what: str, *marks: str) -> Markup:
    return element(
        "svg", element("title", what), *marks, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", xmlns="http://www.w3.org/2000/svg"
    )  # fmt: skip


def _text(x: float, y: float, words: str, anchor: str = "start", cls: str | None = None) -> Markup:
    return element("text", words, x=x, y=y, text_anchor=anchor, cls=cls)


def bars(what: str, names: Sequence[str], values: Sequence[float], shown: Shown) -> Markup:
    """Horizontal bars, each with its name on the left and its value at the end."""
    left = min(150.0, 12.0 + 6.6 * max(len(name) for name in names))
    most, step = max(values) or 1.0, 22.0
    marks: list[str] = []
    for line, (name, value) in enumerate(zip(names, values, strict=True)):
        y, long = 4.0 + step * line, (WIDTH - left - 70) * max(value, 0.0) / most
        marks += [
            _text(left - 6, y + 13, short(name, 22), "end"),
            element("rect", x=left, y=y + 2, width=max(long, 0.5), height=step - 7, cls="mark"),
            _text(left + long + 4, y + 13, shown(value), cls="small"),
        ]
    return _drawing(8 + step * len(names), what, *marks)


def columns(what: str, values: Sequence[float], names: Sequence[str], shown: Shown) -> Markup:
    """Vertical bars over an axis that begins at 0; a bar's name and value are its title."""
    high, left = 110.0, 52.0
    most = max(values) or 1.0
    step = (WIDTH - left - 6) / len(values)
    marks = _axis(most, shown, left, high)
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        tall = high * value / most
        title = element("title", f"{name}: {shown(value)}")
        marks.append(
            element("g", title, element("rect", x=left + step * place, y=10 + high - tall, height=tall, cls="mark",
                                        width=max(step - min(2.0, step / 4), 0.5)))
        )  # fmt: skip
    marks += [_text(left, high + 26, names[0], cls="small"), _text(WIDTH - 6, high + 26, names[-1], "end", "small")]
    return _drawing(high + 32, what, *marks)


def _axis(most: float, shown: Shown, left: float, high: float) -> list[str]:
    """Lines at 0, half and all of the height, with their values."""
    marks: list[str] = []
    for share in (0.0, 0.5, 1.0):
        y = 10 + high * (1 - share)
        marks.append(element("line", x1=left, x2=WIDTH - 6, y1=y, y2=y, cls="grid"))
        marks.append(_text(left - 5, y + 4, shown(most * share), "end", "small"))
    return marks


def stacked(
    what: str, names: Sequence[str], parts: Mapping[str, Sequence[float]], shown: Shown, order: Sequence[str] = ()
) -> Markup:
    """Horizontal bars, one per name, each made of the `parts` in their order; with a legend below.

    Parts named in `order` have the colours of their places there, so that they are alike in all drawings of a page.
    """
    colours = {part: f"k{kind % 10}" for kind, part in enumerate(dict.fromkeys((*order, *parts)))}
    left = min(130.0, 12.0 + 6.6 * max(len(name) for name in names))
    totals = [sum(values) for values in zip(*parts.values(), strict=True)]
    most, step = max(totals) or 1.0, 22.0 if len(names) <= 16 else 12.0
    unit = (WIDTH - left - 60) / most
    marks: list[str] = []
    for line, (name, total) in enumerate(zip(names, totals, strict=True)):
        y, x = 4.0 + step * line, left
        marks.append(_text(left - 6, y + step / 2 + 4, short(name, 18), "end", "small"))
        for part, values in parts.items():
            if (long := unit * values[line]) > 0:
                title = element("title", f"{name}, {part}: {shown(values[line])}")
                bar = element("rect", x=x, y=y + 1, width=long, height=step - 3, cls=colours[part])
                marks.append(element("g", title, bar))
            x += long
        marks.append(_text(x + 4, y + step / 2 + 4, shown(total), cls="small"))
    low = 14 + step * len(names)
    legend, lines = _legend({part: colours[part] for part in parts}, low)
    return _drawing(low + 18 * lines + 4, what, *marks, *legend)


def _legend(colours: dict[str, str], y: float) -> tuple[list[str], int]:
    """Squares with names, and the number of their lines."""
    marks: list[str] = []
    x, line = 6.0, 0
    for name, colour in colours.items():
        long = 22 + 6.6 * len(name)
        if x + long > WIDTH:
            x, line = 6.0, line + 1
        marks += [
            element("rect", x=x, y=y + 18 * line, width=11, height=11, cls=colour),
            _text(x + 15, y + 18 * line + 10, name, cls="small"),
        ]
        x += long + 8
    return marks, line + 1


def heat_map(
    what: str, cells: Sequence[Sequence[Value]], rows: Sequence[str], names: Sequence[str], sides: tuple[str, str],
    shown: Shown, levels: Sequence[Sequence[Value]], framed: tuple[int, int] | None = None,
) -> Markup:  # fmt: skip
    """Coloured cells with their values where there is room; row 0 is at the bottom.

    Parameters
    ----------
    what : str
        Title.
    cells, levels : sequences of rows
        Values to write, and their colours from 0 (bright) to 1 (dark); None leaves a cell empty.
    rows, names : sequences of str
        Names of the rows and of the columns.
    sides : tuple of str
        What the columns are, and what the rows are.
    shown : callable
        Text of a value.
    framed : (row, column), optional
    """
    left, top = 22 + min(66.0, 6.4 * max(len(name) for name in rows)), 6.0
    wide = min(72.0, (WIDTH - left - 4) / len(names))
    tall = min(26.0, wide) if wide < _CELL else 26.0
    low = top + tall * len(rows)
    marks: list[str] = []
    for i, (line, colours) in enumerate(zip(cells, levels, strict=True)):
        for j, (value, level) in enumerate(zip(line, colours, strict=True)):
            x, y = left + wide * j, low - tall * (i + 1)
            marks.append(_cell(x, y, wide, tall, value, level, f"{sides[1]} {rows[i]}, {sides[0]} {names[j]}", shown))
    if framed is not None:
        x, y = left + wide * framed[1], low - tall * (framed[0] + 1)
        marks.append(element("rect", x=x, y=y, width=wide, height=tall, cls="frame"))
    every = max(1, math.ceil(len(rows) * 12 / (tall * len(rows))))
    marks += [_text(left - 4, low - tall * (i + 0.5) + 4, rows[i], "end", "small") for i in range(0, len(rows), every)]
    every = max(1, math.ceil(6.4 * max(len(name) for name in names) / wide))
    marks += [
        _text(left + wide * (j + 0.5), low + 14, names[j], "middle", "small") for j in range(0, len(names), every)
    ]
    marks.append(_text(left + wide * len(names) / 2, low + 30, sides[0], "middle"))
    middle = top + tall * len(rows) / 2
    marks.append(
        element("text", sides[1], x=11, y=middle, text_anchor="middle", transform=f"rotate(-90 11 {middle:g})")
    )
    return _drawing(low + 38, what, *marks)


def _cell(x: float, y: float, wide: float, tall: float, value: Value, level: Value, where: str, shown: Shown) -> Markup:
    title = element("title", f"{where}: {'none' if value is None else shown(value)}")
    if value is None or level is None:
        return element("g", title, element("rect", x=x, y=y, width=wide - 1, height=tall - 1, cls="empty"))
    box = element("rect", x=x, y=y, width=wide - 1, height=tall - 1, fill=colour(level))
    if wide < _CELL:
        return element("g", title, box)
    words = element("text", shown(value), x=x + wide / 2, y=y + tall / 2 + 4, text_anchor="middle",
                    cls="light" if level > 0.45 else "dark")  # fmt: skip
    return element("g", title, box, words)


def colour(level: float) -> str:
    """Colour of a level from 0 to 1 on the ramp."""
    place = min(max(level, 0.0), 1.0) * (len(_RAMP) - 1)
    k = min(int(place), len(_RAMP) - 2)
    mixed = (round(a + (b - a) * (place - k)) for a, b in zip(_RAMP[k], _RAMP[k + 1], strict=True))
    return "#" + "".join(f"{one:02x}" for one in mixed)


def curve(
    what: str, x: Sequence[float], y: Sequence[float], sides: tuple[str, str], shown: Shown, *, log: bool = False,
    line: bool = True, marked: Sequence[int] = (), titles: Sequence[str] | None = None, diagonal: bool = False,
) -> Markup:  # fmt: skip
    """Points, joined by a line if asked, of which those in `marked` are circled.

    `log` spaces x by powers; `diagonal` draws the line y = x, on axes from 0 to 1. The y axis begins below the smallest
    value, and not at 0.
    """
    left, high, low = 56.0, 150.0, 20.0
    places = [math.log(one) for one in x] if log else list(x)
    (x0, x1), (y0, y1) = ((0.0, 1.0), (0.0, 1.0)) if diagonal else (_ends(places), _ends(y))

    def at(a: float, b: float) -> tuple[float, float]:
        return left + 8 + (WIDTH - left - 22) * (a - x0) / (x1 - x0), low + high - high * (b - y0) / (y1 - y0)

    marks: list[str] = [_text(4, 12, sides[1])]
    for value in (y0, (y0 + y1) / 2, y1):
        _, level = at(x0, value)
        marks += [
            element("line", x1=left, x2=WIDTH - 6, y1=level, y2=level, cls="grid"),
            _text(left - 5, level + 4, shown(value), "end", "small"),
        ]
    points = [at(a, b) for a, b in zip(places, y, strict=True)]
    if diagonal:
        (a, b), (c, d) = at(0, 0), at(1, 1)
        marks.append(element("line", x1=a, y1=b, x2=c, y2=d, cls="grid"))
    if line:
        marks.append(element("polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in points), cls="line"))
    for k, (a, b) in enumerate(points):
        title = element("title", titles[k] if titles else f"{sides[0]} {x[k]:.4g}: {shown(y[k])}")
        ring = [element("circle", cx=a, cy=b, r=8.0, cls="ring")] if k in marked else []
        marks.append(element("g", title, element("circle", cx=a, cy=b, r=3.5, cls="mark"), *ring))
    ends = (0.0, 1.0) if diagonal else (min(x), max(x))
    marks += [
        _text(left + 8, high + low + 18, f"{ends[0]:.4g}", cls="small"),
        _text(WIDTH - 6, high + low + 18, f"{ends[1]:.4g}", "end", "small"),
        _text((left + WIDTH) / 2, high + low + 18, sides[0], "middle"),
    ]
    return _drawing(high + low + 26, what, *marks)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Range of the values, which is never empty."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2)


def figure(drawing: Markup, *caption: str) -> Markup:
    """A chart with its caption."""
    return element("figure", drawing, element("figcaption", joined(caption)))


Report = dict[str, Any]

PHASES = ("start", "compile", "read", "partition", "search", "train", "predict", "wait", "write", "other")
_PARTS, _RANKS, _CLASSES, _LINES, _FEATURES = 60, 32, 16, 400, 20  # most that are shown one by one
_SCORES = ("validation_mse", "loo_mse", "test_mse")
_NO_SETTING = ("folds", "ended", "why", "seconds", "rows", "candidate", "score")  # columns of a grid


def seconds(value: float) -> str:
    """Text of a time."""
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


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
    """Confusion matrix and calibration curve of a classifier."""
    matrix = report["metrics"].get("confusion")
    if matrix and len(matrix) <= _CLASSES:
        yield _confusion(matrix)
    lines = report.get("probability", {}).get("reliability")
    if lines:
        predicted, observed = ([line[key] for line in lines] for key in ("predicted", "observed"))
        titles = [
            f"predicted {p:.3f}, true {o:.3f}, {line['rows']:,} rows"
            for p, o, line in zip(predicted, observed, lines, strict=True)
        ]
        drawn = curve("Calibration of the probabilities", predicted, observed,
                      ("predicted probability", "share that was true"), lambda value: f"{value:.2f}", titles=titles,
                      diagonal=True)  # fmt: skip
        yield figure(drawn, "Calibration on the test rows. On the grey line, events are as frequent as predicted.")


def _confusion(matrix: list[list[int]]) -> Markup:
    names = [str(k + 1) for k in range(len(matrix))]
    levels = [[count / sum(row) if sum(row) else None for count in row] for row in matrix]
    drawn = heat_map("Confusion matrix", matrix[::-1], names[::-1], names, ("predicted class", "true class"),
                     lambda value: f"{value:,.0f}", levels[::-1])  # fmt: skip
    return figure(
        drawn, "Test rows by true and predicted class, in the order of the labels. Dark: a large share of the class."
    )


# -- settings ----------------------------------------------------------------------------------


def settings(report: Report) -> Iterator[Markup]:
    """Error against the settings that were compared, and the settings themselves."""
    grid = report["grid"]
    if len(grid) < 2:
        return
    if "candidate" in grid[0]:
        yield from _race(report)
    else:
        score = score_of(grid)
        kinds = list(dict.fromkeys(row.get("kernel") for row in grid))
        for kind in kinds:
            rows = [row for row in grid if row.get("kernel") == kind and row.get(score) is not None]
            if len(rows) > 1:
                yield from _compared(rows, score, kind)
    names = [name for name in grid[0] if any(row.get(name) not in (None, "") for row in grid)]
    lines = [tuple("" if row.get(name) is None else row[name] for name in names) for row in grid[:_LINES]]
    more = f"the first {_LINES} of " if len(grid) > _LINES else ""
    yield folded(f"{more}{len(grid):,} settings", table(tuple(name.replace("_", " ") for name in names), lines))


def score_of(grid: list[dict[str, Any]]) -> str:
    """Column of the grid that has the score."""
    known = [name for name in _SCORES if any(row.get(name) is not None for row in grid)]
    return (known or [name for name in grid[0] if name.startswith("cv_")] or ["validation_mse"])[0]


def _compared(rows: list[dict[str, Any]], score: str, kind: str | None) -> Iterator[Markup]:
    """A heat map by two parameters, or a curve by one; of settings that differ in others, the best is shown."""
    smaller = score.endswith("_mse")
    best = min if smaller else max
    varied = _varied(rows)
    pair = next((two for two in (("sigma", "lambda"), ("C", "gamma")) if set(two) <= set(varied)), tuple(varied[:2]))
    what = f"{'mean squared error' if smaller else score[3:].replace('_', ' ')}{f', kernel {kind}' if kind else ''}"
    top = best(float(row[score]) for row in rows)
    caption = f"{what[0].upper()}{what[1:]} of the settings on held-out rows; framed: the best, {as_text(top)}."
    if len(pair) == 1:
        (name,) = pair
        values = sorted({float(row[name]) for row in rows})
        y = [best(float(row[score]) for row in rows if row[name] == value) for value in values]
        drawn = curve(what, values, y, (name, what), as_text, log=values[0] > 0, marked=[y.index(top)])
        yield figure(drawn, caption)
    elif len(pair) == 2:
        xs, ys = (sorted({row[name] for row in rows}) for name in pair)
        found: dict[tuple[float, float], float] = {}
        for row in rows:
            place = row[pair[1]], row[pair[0]]
            found[place] = best(found.get(place, row[score]), row[score])
        cells = [[found.get((y, x)) for x in xs] for y in ys]
        framed = next((i, j) for i, line in enumerate(cells) for j, value in enumerate(line) if value == top)
        drawn = heat_map(what, cells, [f"{y:.3g}" for y in ys], [f"{x:.3g}" for x in xs], (pair[0], pair[1]),
                         lambda value: f"{value:.3g}", _levels(cells, smaller), framed)  # fmt: skip
        yield figure(drawn, caption, " Dark: a small error, on a logarithmic scale.")


def _varied(rows: list[dict[str, Any]]) -> list[str]:
    """Parameters that have several values, all of them numbers."""
    names = [name for name in rows[0] if name not in (*_NO_SETTING, *_SCORES) and not name.startswith("cv_")]
    numbers = [name for name in names if all(isinstance(row[name], int | float) for row in rows)]
    return [name for name in numbers if len({row[name] for row in rows}) > 1]


def _levels(cells: list[list[float | None]], smaller: bool) -> list[list[float | None]]:
    """Colours from 0 for the largest to 1 for the smallest error, by its logarithm; scores count as 1 - score."""
    errors = [[None if one is None else max(one if smaller else 1 - one, 1e-12) for one in line] for line in cells]
    return _by_logarithm(errors, 1.0, 0.0)


def _race(report: Report) -> Iterator[Markup]:
    """Error of the candidates of ``cakernels fit`` against the seconds of the search."""
    rows = [row for row in report["grid"] if row["score"] is not None]
    if len(rows) < 2:
        return
    numbers = report["params"].get("task") == "regression"
    errors = [row["score"] if numbers else 1 - row["score"] for row in rows]
    top = sorted(errors)[len(errors) // 2] * 3
    kept = [k for k, error in enumerate(errors) if error <= top]
    chosen = report["params"].get("models", [])
    most = max(row["rows"] for row in rows)
    circled = [place for place, k in enumerate(kept) if rows[k]["candidate"] in chosen and rows[k]["rows"] == most]
    titles = [f"{rows[k]['candidate']}, {rows[k]['rows']:,} rows: {as_text(errors[k])}" for k in kept]
    name = str(report["params"].get("metric_name", "error")).replace("_", " ")
    what = name if numbers else f"1 - {name}"
    drawn = curve("Error of the candidates", [rows[k]["ended"] for k in kept], [errors[k] for k in kept],
                  ("seconds since the start", what), as_text, line=False, marked=circled, titles=titles)  # fmt: skip
    gone = (
        f" {len(errors) - len(kept)} trainings with more than three times the median error are not shown."
        if len(kept) < len(errors)
        else ""
    )
    yield figure(
        drawn, f"Each dot is one training, with its error on held-out rows. Circled: in the final model.{gone}"
    )


# -- parts, time and bytes ---------------------------------------------------------------------


def parts(report: Report) -> Iterator[Markup]:
    """Rows and seconds of the parts."""
    sizes, solver = report["partition_sizes"], report["solver"]
    if len(sizes) < 2:
        return
    some = (
        [round(k * (len(sizes) - 1) / (_PARTS - 1)) for k in range(_PARTS)]
        if len(sizes) > _PARTS
        else range(len(sizes))
    )
    names = [f"part {k + 1}" for k in some]
    every = f" {_PARTS} of {len(sizes):,} parts are shown." if len(sizes) > _PARTS else ""
    rows = [sizes[k] for k in some]
    yield figure(columns("Rows of the parts", rows, names, lambda value: f"{value:,.0f}"), f"Rows of each part.{every}")
    spent = solver.get("seconds") or []
    if len(spent) == len(sizes) and max(spent) > 0:
        yield figure(
            columns("Seconds of the parts", [spent[k] for k in some], names, seconds),
            f"Seconds to train each part.{every}",
        )
    known = [
        name for name in ("seconds", "iterations", "n_support", "gap") if len(solver.get(name) or []) == len(sizes)
    ]
    lines = [(k + 1, sizes[k], *(solver[name][k] for name in known)) for k in range(min(len(sizes), _LINES))]
    yield folded(
        "figures of the parts",
        table(("part", "rows", *(name.replace("n_", "").replace("_", " ") for name in known)), lines),
    )


def time(report: Report) -> Iterator[Markup]:
    """Seconds of each rank by phase."""
    clock = report.get("seconds_by_rank") or {"ranks": [], **report["seconds"]}
    names = [f"rank {rank}" for rank in clock["ranks"]][:: max(1, math.ceil(len(clock["ranks"]) / _RANKS))] or [
        "slowest rank"
    ]
    step = max(1, math.ceil(len(clock["ranks"]) / _RANKS))
    spent = {phase: clock[phase][::step] if clock["ranks"] else [clock[phase]] for phase in PHASES if phase in clock}
    spent = {phase: values for phase, values in spent.items() if any(values)}
    if spent:
        yield figure(stacked("Seconds by phase", names, spent, seconds, PHASES),
                     "Seconds of each rank by phase, added up; the order of the phases in time may be another. "
                     "Phase wait is for slower ranks.")  # fmt: skip
    busy = report["solver"].get("busy_seconds") or []
    if report["ranks"] > 1 and len(busy) > 1:
        drawn = columns("Seconds at work", busy, [f"rank {k}" for k in range(len(busy))], seconds)
        yield figure(
            drawn, f"Seconds of each rank at work; the busiest: {report['solver']['imbalance']:.3g} times the mean."
        )


def traffic(report: Report) -> Iterator[Markup]:
    """Bytes by phase, and between ranks if they were recorded."""
    if report["ranks"] < 2:
        return
    sent = {phase: one["bytes"] for phase, one in report["comm"].items() if one["bytes"]}
    if sent:
        yield figure(
            bars("Bytes sent by phase", list(sent), list(sent.values()), amount), "Bytes sent by all ranks, by phase."
        )
    recorded = report.get("traffic")
    if not recorded:
        return
    matrices = [recorded["bytes"][phase] for phase in ("partition", "train") if phase in recorded["bytes"]]
    if not matrices:
        return
    count, group = len(matrices[0]), recorded["ranks_per_group"]
    total = [
        [sum(matrix[i][j] for matrix in matrices) for i in range(count)] for j in range(count + 1)
    ]  # receiver, sender
    if not any(any(line) for line in total):
        return
    names = [str(k * group) for k in range(count)]
    cells = [[value or None for value in line] for line in total]
    drawn = heat_map("Bytes between ranks", cells, [*names, "all"], names, ("sending rank", "receiving rank"),
                     lambda value: amount(value).replace(" ", ""), _by_logarithm(cells, 0.1, 1.0))  # fmt: skip
    groups = f" Each line and column is {group} ranks." if group > 1 else ""
    yield figure(drawn, "Bytes in partitioning and training, on a logarithmic scale. Line all: reductions and gathers, "
                 f"which have no single receiver.{groups}")  # fmt: skip


def _by_logarithm(
    cells: Sequence[Sequence[float | None]], first: float, last: float
) -> list[list[float | None]]:  # fmt: skip
    """Colours from `first` for the smallest number to `last` for the largest, by their logarithms."""
    logs = [[None if value is None else math.log(value) for value in line] for line in cells]
    known = [value for line in logs for value in line if value is not None]
    low, high = min(known), max(known)
    wide = (high - low) or 1.0
    return [[None if one is None else first + (last - first) * (one - low) / wide for one in line] for line in logs]


# -- features, parameters, environment ---------------------------------------------------------


def features(report: Report) -> Iterator[Markup]:
    """Importances and rounds of a learned metric."""
    metric = report.get("metric")
    if not metric:
        return
    shares = metric["importances"]
    order = sorted(range(len(shares)), key=lambda k: -shares[k])[:_FEATURES]
    names = metric.get("names") or [f"feature {k}" for k in range(len(shares))]
    more = f" {_FEATURES} of {len(shares):,} are shown." if len(shares) > _FEATURES else ""
    drawn = bars(
        "Importance of each feature",
        [str(names[k]) for k in order],
        [shares[k] for k in order],
        lambda value: f"{value:.3f}",
    )
    yield figure(drawn, f"Importance of each feature in the learned metric.{more}")
    if len(metric["errors"]) > 1:
        rounds = list(range(len(metric["errors"])))
        drawn = curve("Error of the rounds", rounds, metric["errors"], ("round", "validation error"), as_text,
                      marked=[metric["round"]])  # fmt: skip
        yield figure(drawn, "Validation error of the rounds in which the metric was learned; circled: the one kept.")


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
    "Warnings and remedies": notes,
    "Predictions on the test rows": results,
    "Settings compared": settings,
    "Parts": parts,
    "Time": time,
    "Bytes sent": traffic,
    "Features": features,
    "Environment": environment,
}


def drawn(section: Iterator[Markup]) -> Markup | None:
    """A section's charts side by side, and its tables below; None if it has none."""
    made = list(section)
    charts = [one for one in made if one.startswith("<figure")]
    rest = [one for one in made if not one.startswith("<figure")]
    if not made:
        return None
    return joined([*([element("div", *charts, cls="figures")] if charts else []), *rest])


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
    for name, section in SECTIONS.items():
        found = {label: drawn(section(one)) for label, one in reports.items()}
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
        element("pre", _command(one)), cards, element("h2", "Summary"), table(("what", "value"), rows),
        folded("all parameters", table(("parameter", "value"), chosen)),
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
        *found, ("seconds in all", seconds(one["seconds"]["total"])),
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
    phases = [phase for phase in PHASES if any(one["seconds"].get(phase) for one in reports.values())]
    spent = {phase: [one["seconds"].get(phase) or 0.0 for one in reports.values()] for phase in phases}
    picture = figure(
        stacked("Seconds of the runs", list(reports), spent, seconds, PHASES),
        "Seconds of the slowest rank in each phase.",
    )
    return [
        element("h2", "Side by side"), element("div", picture, cls="figures"), _columns(lines, "what"),
        folded("parameters; those that differ are bold", _columns(chosen, "parameter")),
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
