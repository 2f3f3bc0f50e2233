"""How far rank 0 is: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

_SECONDS = 60.0  # between two lines


class Advance(Protocol):
    """What a step is told by; a search whose work shrinks also says what is left, and what it has found."""

    def __call__(self, steps: int = 1, label: str | None = None, total: int | None = None) -> None:
        """`steps` more are done, of `total`, if that has changed; `label` replaces the bar's text."""


def silent(_: str, __: int) -> Advance:
    """A bar that nobody sees."""
    return _unseen


def _unseen(steps: int = 1, label: str | None = None, total: int | None = None) -> None:
    pass


def _lines(_: str, __: int) -> Advance:
    """Lines of text, no more often than :data:`_SECONDS` says."""
    told = time.monotonic()

    def advance(steps: int = 1, label: str | None = None, total: int | None = None) -> None:
        nonlocal told
        if label is not None and time.monotonic() - told >= _SECONDS:
            told = time.monotonic()
            print(label, file=sys.stderr, flush=True)

    return advance


@contextmanager
def bar(enabled: bool) -> Iterator[Callable[[str, int], Advance]]:
    """Yield ``begin(label, total)``, which returns the function to call after each step.

    `enabled` is False on all ranks but 0 and with ``--quiet``; a stderr that is no terminal gets the newest label, if
    there is one, as a line a minute.
    """
    if not (enabled and sys.stderr.isatty()):
        yield _lines if enabled else silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column

    # On a narrow terminal the text is wrapped, and the time left stays.
    text = TextColumn("{task.description}", table_column=Column())
    columns = text, BarColumn(bar_width=20), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def begin(label: str, total: int) -> Advance:
            task = progress.add_task(label, total=total)

            def advance(steps: int = 1, label: str | None = None, total: int | None = None) -> None:
                progress.update(task, advance=steps, description=label, total=total)

            return advance

        yield begin


@contextmanager
def spinner(enabled: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line of text, where :func:`bar` would show a bar; for work without a known end."""
    if not (enabled and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("training") as status:
        yield status.update
