"""Everything that is printed: control characters are escaped here, and what the stream's encoding does not have."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
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
    from rich.console import Console
    from rich.table import Table

    table = Table(title=escaped(title) or None, show_header=bool(header), title_justify="left")
    for number, name in enumerate(header):
        table.add_column(escaped(name), justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(escaped, row))
    console = Console(highlight=False, markup=False, emoji=False)  # a file's name may be "[/a].csv"
    with console.capture() as captured:
        console.print(table)
    put(captured.get(), sys.stdout)  # not printed by rich, which would end the process if a pipe is closed


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
