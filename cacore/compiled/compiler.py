"""numba's compiler: when it works, what it loads before its first compilation, and whether it is turned off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from numba import config
from numba.core import event
from numba.core.registry import cpu_target

from cacore.errors import InputError


def check_compiler() -> None:
    """Raise an InputError if numba may not compile: Python cannot run the vector loops that kernels are made of."""
    if config.DISABLE_JIT:
        raise InputError("NUMBA_DISABLE_JIT is set, and kernels only run as compiled code: unset it, or set it to 0")


def load_targets() -> None:
    """Load what numba knows of Python and numpy, which it otherwise does within the first call."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def on_lock(begin: Callable[[], None], end: Callable[[], None]) -> None:
    """Call `begin` when a thread takes numba's compiler lock and `end` when it returns it, from now on; calls nest.

    The lock is held while code is compiled, and while it is loaded from the cache or saved to it.
    """
    event.register("numba:compiler_lock", _Calls(begin, end))


def on_compilation(begin: Callable[[], None], end: Callable[[], None]) -> AbstractContextManager[object]:
    """Context in which `begin` and `end` are called around each compilation under ``njit``; calls nest.

    They are not called for code from the cache, nor for a ``cfunc``.
    """
    context: AbstractContextManager[object] = event.install_listener("numba:compile", _Calls(begin, end))
    return context


class _Calls(event.Listener):  # type: ignore[misc]
    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin, self._end = begin, end

    def on_start(self, event: event.Event) -> None:
        """See :class:`numba.core.event.Listener`."""
        self._begin()

    def on_end(self, event: event.Event) -> None:
        """See :class:`numba.core.event.Listener`."""
        self._end()
