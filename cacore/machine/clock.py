"""A clock for time limits that stands still while numba compiles, which the first solution in a process waits for."""

from __future__ import annotations

import threading
import time

from numba.core import event


class _Compiling(event.Listener):  # type: ignore[misc]
    """Seconds that this process has spent compiling; compilations of several threads at a time count once."""

    def __init__(self) -> None:
        self._lock, self._depth, self._since, self._total = threading.Lock(), 0, 0.0, 0.0

    def on_start(self, event: event.Event) -> None:
        """See :class:`numba.core.event.Listener`."""
        with self._lock:
            if not self._depth:
                self._since = time.perf_counter()
            self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """See :class:`numba.core.event.Listener`."""
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._total += time.perf_counter() - self._since

    def read(self) -> float:
        """Seconds now, less those of all compilations so far."""
        with self._lock:
            now = time.perf_counter()
            return now - self._total - (now - self._since if self._depth else 0.0)


_compiling = _Compiling()
event.register("numba:compiler_lock", _compiling)  # held while code is compiled, and loaded from or saved to the cache


def working_time() -> float:
    """Seconds on a clock that stands still while numba compiles in this process; only differences have a meaning."""
    return _compiling.read()
