"""Everything that is printed: control characters are escaped here, and what the stream's encoding does not have."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TextIO


class CellLines(str):
    """Text of several lines for a cell of a table; each line is escaped, and only the breaks between them remain."""

    __slots__ = ()

    def __new__(cls, lines: Iterable[object]) -> CellLines:
        """Join the lines."""
        return super().__new__(cls, "\n".join(map(escaped, lines)))


def escaped(text: object) -> str:
    r"""Text without control characters: they are shown as ``repr`` shows them, such as ``\x1b`` and ``\u202e``.

    Names in a file, and the name of the file itself, may hold sequences that move the cursor, set the terminal's title
    or reverse the direction of writing. :class:`CellLines` are returned as they are.
    """
    word = text if isinstance(text, str) else str(text)
    if isinstance(word, CellLines) or word.isprintable():
        return word
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in word)


def say(*lines: object, error: bool = False) -> None:
    """Print each of `lines` on a line of its own, on standard output, or on standard error where `error` is True."""
    put("".join(f"{escaped(line)}\n" for line in lines), sys.stderr if error else sys.stdout)


def put(text: str, stream: TextIO | None) -> None:
    """Print finished text and flush the stream; characters that its encoding does not have are escaped.

    A stream that was closed before the process began is None, and prints nothing.
    """
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def show_table(rows: Iterable[Sequence[str]], title: str = "", header: Sequence[str] = ()) -> None:
    """Print a table, whose columns after the first are aligned to the right if they have a `header`."""
    cells = [[escaped(cell).split("\n") for cell in row] for row in ([header] if header else []) + list(rows)]
    lines = [escaped(title)] if title else []
    width = terminal_width()
    widths = _widths(cells, width)
    for row in cells:
        cells_of_row = zip(row, widths, strict=True)
        wrapped = [[part for line in cell for part in wrapped_lines(line, wide)] for cell, wide in cells_of_row]
        for first, *others in zip_longest(*wrapped, fillvalue=""):
            aligned = map(str.rjust if header else str.ljust, others, widths[1:])
            lines.append("  ".join([first.ljust(widths[0]), *aligned]).rstrip())
    put("".join(f"{line}\n" for line in lines), sys.stdout)


def say_wrapped(*lines: object) -> None:
    """Print lines on standard output, wrapped between words at the width of the terminal, and indented from there."""
    parts = (part for line in lines for part in wrapped_lines(escaped(line), terminal_width(), "  "))
    put("".join(f"{part}\n" for part in parts), sys.stdout)


def terminal_width() -> int:
    """Columns of the terminal: the variable COLUMNS, or else what the terminal says; 80 if there is none."""
    return shutil.get_terminal_size().columns


def wrapped_lines(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width` columns, later ones indented; a word that is longer, such as a path, stays whole."""
    units = text.replace(" %", "\u00a0%")  # a number stays with its unit
    lines = textwrap.wrap(
        units, max(width, 1), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )  # fmt: skip
    return [line.replace("\u00a0%", " %") for line in lines] or [""]


def _widths(cells: Sequence[Sequence[Sequence[str]]], width: int) -> list[int]:
    """Width of each column: as wide as its longest line, but the widest ones shrink where the table is too wide.

    No column is narrower than its longest word.
    """
    columns = [[line for cell in column for line in cell] for column in zip(*cells, strict=True)]
    widths = [max(map(len, lines)) for lines in columns]
    least = [max((len(word) for line in lines for word in line.split()), default=0) for lines in columns]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        wide = max(range(len(widths)), key=lambda k: widths[k] if widths[k] > least[k] else -1)
        if widths[wide] <= least[wide]:
            break
        widths[wide] -= 1
    return widths


def open_closed_streams() -> None:
    """Open the standard streams that were closed before the process began, such as by ``>&-``, on the null device.

    Otherwise the next file that is opened would take the number of the closed stream, and whatever a library prints
    there would be written to that file.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - it stays open
