"""Progress of rank 0: a bar on a terminal, an occasional line of text elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from cacore.terminal import say

_SECONDS = 60.0  # least time between two lines
COMPILING = "compiling: once for this installation; `cakernels warmup` does it ahead"


class Advance(Protocol):
    """Callback that a task calls after each step; a search may also change the total and the label."""

    def __call__(self, steps: int = 1, label: str | None = None, total: int | None = None) -> None:
        """Advance the bar by `steps`; `total` and `label`, if given, replace the number of steps and the text."""


def silent(_: str, __: int) -> Advance:
    """Begin a task without showing progress."""
    return lambda steps=1, label=None, total=None: None


def _lines(_: str, __: int) -> Advance:
    """Begin a task whose labels are printed as lines, at most one per :data:`_SECONDS`."""
    printed = time.monotonic()

    def advance(steps: int = 1, label: str | None = None, total: int | None = None) -> None:
        nonlocal printed
        if label is not None and time.monotonic() - printed >= _SECONDS:
            printed = time.monotonic()
            say(label, error=True)

    return advance


@contextmanager
def bar(enabled: bool) -> Iterator[Callable[[str, int], Advance]]:
    """Yield ``begin(label, total)``, which returns the function to call after each step.

    `enabled` is True only on rank 0 and without ``--quiet``. If stderr is not a terminal, the newest label is printed
    at most once per minute. While numba compiles, a terminal says so.
    """
    if not (enabled and sys.stderr.isatty()):
        yield _lines if enabled else silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column

    from cacore.machine.clock import telling_of_compiling

    # On a narrow terminal the text wraps, so the remaining time stays visible.
    text = TextColumn("{task.description}", table_column=Column())
    columns = text, BarColumn(bar_width=20), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def begin(label: str, total: int) -> Advance:
            task = progress.add_task(label, total=total)

            def advance(steps: int = 1, label: str | None = None, total: int | None = None) -> None:
                progress.update(task, advance=steps, description=label, total=total)

            return advance

        compiling = progress.add_task(COMPILING, total=None, visible=False)
        with telling_of_compiling(lambda now: progress.update(compiling, visible=now)):
            yield begin


@contextmanager
def spinner(enabled: bool, text: str = "training") -> Iterator[Callable[[str], None]]:
    """Show a status line where :func:`bar` would show a bar, for work of unknown length; yield what changes it."""
    if not (enabled and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console

    from cacore.machine.clock import telling_of_compiling

    compiling = False
    with Console(stderr=True).status(text) as status:

        def tell(now: bool) -> None:
            nonlocal compiling
            compiling = now
            status.update(COMPILING if now else text)

        def change(new: str) -> None:
            nonlocal text
            text = new
            if not compiling:
                status.update(text)

        with telling_of_compiling(tell):
            yield change


@contextmanager
def line_while_compiling(enabled: bool) -> Iterator[None]:
    """Show a status line while numba compiles, and none otherwise, where :func:`bar` would show a bar."""
    if not (enabled and sys.stderr.isatty()):
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    from cacore.machine.clock import telling_of_compiling

    live: Live | None = None
    ended, lock = False, threading.Lock()

    def tell(now: bool) -> None:
        nonlocal live
        with lock:  # a thread may still compile when the block ends
            if live is not None:
                live.stop()
                live = None
            if now and not ended:  # a new one each time: a second start would erase what was printed between
                spinner = Spinner("dots", COMPILING)
                live = Live(spinner, console=Console(stderr=True), transient=True, redirect_stdout=False)
                live.start(refresh=True)

    try:
        with telling_of_compiling(tell):
            yield
    finally:
        ended = True
        tell(False)
