"""Exceptions on signals, which wait while numba compiles."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from cacore.machine.clock import in_main_thread, postponed


@contextmanager
def raising(number: int, error: type[BaseException]) -> Iterator[None]:
    """Raise `error` in the block on a signal, at once or, while the main thread compiles, after that.

    Outside the main thread, which alone has signals, nothing is raised. Afterwards the signal is handled as before.
    """
    if not in_main_thread():
        yield
        return
    armed = True

    def handle(*_: object) -> None:
        if armed and not postponed(number):
            raise error

    before = signal.signal(number, handle)
    try:
        yield
    finally:
        armed = False
        signal.signal(number, before)


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Let Ctrl-C wait for the end of what the main thread compiles in the block, unless a program handles it itself."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    with raising(signal.SIGINT, KeyboardInterrupt):
        yield
