"""A progress bar on rank 0's terminal, and nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """What a step is told by; a search whose work shrinks also says what is left, and what it has found."""

    def __call__(self, steps: int = 1, label: str | None = None, total: int | None = None) -> None:
        """`steps` more are done, of `total`, if that has changed; `label` replaces the bar's text."""


def silent(_: str, __: int) -> Advance:
    """A bar that nobody sees."""
    return _unseen


def _unseen(steps: int = 1, label: str | None = None, total: int | None = None) -> None:
    pass


@contextmanager
def bar(enabled: bool) -> Iterator[Callable[[str, int], Advance]]:
    """Yield ``begin(label, total)``, which returns the function to call after each step.

    `enabled` is False on all ranks but 0 and with ``--quiet``; a stderr that is no terminal gets no bar either.
    """
    if not (enabled and sys.stderr.isatty()):
        yield silent
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
