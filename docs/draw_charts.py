"""Charts of the benchmarks' page, drawn from the recorded figures beside them.

python docs/draw_charts.py

Each chart of docs/charts is an SVG file that this program writes from the JSON file of the same name. Nothing is
measured here; a test compares the files.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "charts"
WIDTH, LEFT, RIGHT, ROW = 570, 222, 500, 34  # pixels: of the picture, the ends of its axis, and the height of a row
OURS, THEIRS, OTHER = "#2166ac", "#d95f02", "#777777"

Record = dict[str, Any]


def text(x: float, y: float, words: str, anchor: str = "start", **style: str) -> str:
    """One line of text."""
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def line(x0: float, y0: float, x1: float, y1: float, colour: str, **style: str) -> str:
    """A straight line."""
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<path d="M{x0:.1f} {y0:.1f} L{x1:.1f} {y1:.1f}" stroke="{colour}" fill="none"{more}/>'


def mark(x: float, y: float, shape: int, colour: str, size: float = 6) -> str:
    """A circle, a square or a diamond."""
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}"/>'
    turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if shape == 2 else ""
    side = 2 * size - 2
    return f'<rect x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side}" height="{side}" fill="{colour}"{turn}/>'


def picture(title: str, height: float, body: list[str]) -> str:
    """The whole file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-size="15" '
        f'font-family="Helvetica, Arial, sans-serif" fill="#222" role="img" aria-label="{escape(title)}">'
    )
    background = f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
    return "\n".join([head, background, text(10, 24, title, font_weight="bold"), *body, "</svg>", ""])


def ratios(row: Record) -> list[float]:
    """Our error over the rival's on each split that both have."""
    return [a / b for a, b in zip(row["ours"], row["theirs"], strict=True) if a is not None and b is not None]


def error(record: Record) -> str:
    """Bars of the median ratio with a dot per split; below 1 we are ahead."""
    end = 1.2
    place = lambda ratio: LEFT + (RIGHT - LEFT) * ratio / end  # noqa: E731
    bottom = 46 + ROW * len(record["rows"])
    body = []
    for number, row in enumerate(record["rows"]):
        y = 46 + ROW * number + ROW / 2
        middle = statistics.median(ratios(row))
        colour = OTHER if round(middle, 3) == 1 else OURS if middle < 1 else THEIRS
        body.append(text(LEFT - 10, y + 5, row["name"], "end"))
        body.append(
            f'<rect x="{LEFT}" y="{y - 9:.1f}" width="{place(middle) - LEFT:.1f}" height="18" fill="{colour}"/>'
        )
        body += [mark(place(ratio), y, 0, "#111111", 3) for ratio in ratios(row)]
        body.append(text(WIDTH - 6, y + 5, f"{middle:.3f}", "end", font_weight="bold", fill=colour))
    for tick in (0, 0.25, 0.5, 0.75, 1):
        body.append(line(place(tick), bottom, place(tick), bottom + 5, "#222"))
        body.append(text(place(tick), bottom + 21, f"{tick:g}", "middle", font_size="13"))
    body.append(line(place(1), 40, place(1), bottom, "#222", stroke_dasharray="4 3"))
    body.append(text(10, bottom + 42, "below 1: cakernels fit is better (blue)", fill=OURS, font_size="13"))
    body.append(
        text(10, bottom + 60, "above 1: LightGBM is better (orange); dots: splits", fill=THEIRS, font_size="13")
    )
    return picture(record["title"], bottom + 72, body)


def svc(record: Record) -> str:
    """Marks of each rival's seconds on a logarithmic axis; the fastest one is named."""
    low, high = math.log10(0.25), math.log10(60)
    right = 445
    place = lambda seconds: LEFT + (right - LEFT) * (math.log10(seconds) - low) / (high - low)  # noqa: E731
    colours = (OURS, THEIRS, OTHER)
    bottom = 66 + ROW * len(record["rows"])
    body, x = [], 10.0
    for shape, (name, colour) in enumerate(zip(record["rivals"], colours, strict=True)):
        body += [mark(x + 6, 45, shape, colour), text(x + 18, 50, name, fill=colour)]
        x += 40 + 8 * len(name)
    body.append(text(WIDTH - 6, 50, "fastest", "end", font_size="13"))
    for number, row in enumerate(record["rows"]):
        y = 66 + ROW * number + ROW / 2
        places = [place(seconds) for seconds in row["seconds"]]
        fastest = row["seconds"].index(min(row["seconds"]))
        body.append(text(LEFT - 10, y + 5, row["name"], "end"))
        body.append(line(min(places), y, max(places), y, "#cccccc", stroke_width="3"))
        body += [mark(x, y, shape, colours[shape]) for shape, x in reversed(list(enumerate(places)))]
        name = f"{record['rivals'][fastest].split()[0]} {row['seconds'][fastest]:.2f}"
        body.append(text(WIDTH - 6, y + 5, name, "end", font_weight="bold", fill=colours[fastest]))
    for tick in (0.3, 1, 3, 10, 30):
        body.append(line(place(tick), bottom, place(tick), bottom + 5, "#222"))
        body.append(text(place(tick), bottom + 21, f"{tick:g}", "middle", font_size="13"))
    body.append(text((LEFT + right) / 2, bottom + 42, "processor seconds, logarithmic", "middle", font_size="13"))
    return picture(record["title"], bottom + 54, body)


def weak(record: Record) -> str:
    """A curve per method: efficiency against the number of ranks."""
    left, right, top, bottom = 50, 450, 50, 290
    place = lambda ranks: left + (right - left) * math.log2(ranks) / math.log2(record["ranks"][-1])  # noqa: E731
    height = lambda value: bottom - (bottom - top) * value / 1.1  # noqa: E731
    body = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        body.append(line(left, height(tick), right, height(tick), "#dddddd"))
        body.append(text(left - 8, height(tick) + 5, f"{tick:g}", "end", font_size="13"))
    for ranks in record["ranks"]:
        body.append(text(place(ranks), bottom + 20, f"{ranks}", "middle", font_size="13"))
    body.append(text((left + right) / 2, bottom + 42, "virtual ranks, and parts", "middle", font_size="13"))
    for shape, (row, colour, down) in enumerate(zip(record["rows"], (OURS, THEIRS), (-4, 14), strict=True)):
        points = [
            (place(ranks), height(value)) for ranks, value in zip(record["ranks"], row["efficiency"], strict=True)
        ]
        for start, stop in pairwise(points):
            body.append(line(*start, *stop, colour, stroke_width="2"))
        body += [mark(x, y, shape, colour, 5) for x, y in points]
        words = f"{row['name']} {row['efficiency'][-1]:.2f}"
        body.append(text(right + 12, points[-1][1] + down, words, font_weight="bold", fill=colour))
    return picture(record["title"], bottom + 54, body)


KINDS: dict[str, Callable[[Record], str]] = {"error": error, "svc": svc, "weak": weak}


def record(name: str) -> Record:
    """The recorded figures of a chart."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def main() -> None:
    """Write all charts."""
    for name, draw in KINDS.items():
        (FOLDER / f"{name}.svg").write_text(draw(record(name)))


if __name__ == "__main__":
    main()
