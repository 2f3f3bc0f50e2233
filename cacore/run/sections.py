"""Sections of the page of a run: each takes a report and returns charts and tables, or nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from cacore.io.words import amount
from cacore.run.drawings import bars, columns, curve, figure, heat_map, stacked
from cacore.run.markup import Markup, element, joined
from cacore.run.report import as_text

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
