"""A progress bar on rank 0's terminal, and nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def silent(_: str, __: int) -> Callable[[], None]:
    """A bar that nobody sees."""
    return lambda: None


@contextmanager
def bar(enabled: bool) -> Iterator[Callable[[str, int], Callable[[], None]]]:
    """Yield ``begin(label, total)``, which returns the function to call after each step.

    `enabled` is False on all ranks but 0 and with ``--quiet``; a stderr that is no terminal gets no bar either.
    """
    if not (enabled and sys.stderr.isatty()):
        yield silent
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:

        def begin(label: str, total: int) -> Callable[[], None]:
            task = progress.add_task(label, total=total)
            return lambda: progress.advance(task)

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
