"""When numba compiles: a clock that stands still, calls that tell of it, and signals that wait for the end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cacore.compiled.compiler import on_compilation, on_lock


class _Compiling:
    """Seconds that this process has spent compiling; compilations of several threads at a time count once."""

    def __init__(self) -> None:
        self._depth, self._since, self._total = 0, 0.0, 0.0
        self._lock = threading.RLock()  # which a signal's handler may take while the main thread has it
        self._in_main, self._waiting = 0, set[int]()

    def begin(self) -> None:
        """Note that a thread has taken numba's lock."""
        with self._lock:
            self._in_main += in_main_thread()  # first, and last to be taken back: a signal never leaves one of the two
            if not self._depth:
                self._since = time.perf_counter()
            self._depth += 1

    def end(self) -> None:
        """Note that a thread has returned numba's lock; raise the signals that waited for it."""
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._total += time.perf_counter() - self._since
            self._in_main -= in_main_thread()
        if not self._in_main and in_main_thread():
            while self._waiting:
                signal.raise_signal(self._waiting.pop())

    def postpone(self, number: int) -> bool:
        """True if the main thread compiles now, for a signal's handler; the signal is then raised again after that.

        An exception within a compilation may be lost in LLVM's callbacks, and with it the code that numba saves. Takes
        no lock, since a signal may come while the main thread has it.
        """
        if self._in_main:
            self._waiting.add(number)
        return self._in_main > 0

    def read(self) -> tuple[float, float]:
        """Seconds now, and those of them that all compilations so far took."""
        with self._lock:
            now = time.perf_counter()
            return now, self._total + (now - self._since if self._depth else 0.0)


def in_main_thread() -> bool:
    """True in the main thread, which alone has signals."""
    return threading.current_thread() is threading.main_thread()


_compiling = _Compiling()
on_lock(_compiling.begin, _compiling.end)


@contextmanager
def telling_of_compiling(tell: Callable[[bool], None]) -> Iterator[None]:
    """Call `tell` with True when numba begins to compile in the block, and with False when it ends.

    Not where compiled code is loaded from the cache, nor for a ``cfunc``, which takes a fraction of a second. The call
    is made by the thread that compiles.
    """
    depth = 0

    def begin() -> None:
        nonlocal depth
        depth += 1  # under numba's lock: one thread compiles at a time
        if depth == 1:
            tell(True)

    def end() -> None:
        nonlocal depth
        if depth:  # else it began before the block
            depth -= 1
            if not depth:
                tell(False)

    with on_compilation(begin, end):
        yield


def working_time() -> float:
    """Seconds on a clock that stands still while numba compiles in this process; only differences have a meaning.

    For time limits, and for the seconds of a report. While one thread compiles, it stands still for all.
    """
    now, compiling = _compiling.read()
    return now - compiling


def compiling_time() -> float:
    """Seconds that this process has spent compiling, or loading compiled code, so far."""
    return _compiling.read()[1]


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
        if armed and not _compiling.postpone(number):
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
