"""Charts as SVG, without matplotlib: they follow the page's colours and need no script.

All are 360 units wide, so that their text is readable on a telephone. A mark's exact values are its title, which
browsers show under the pointer and read aloud.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from cacore.io.words import short
from cacore.run.markup import Markup, element, joined

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
