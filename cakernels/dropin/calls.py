"""Counts of the calls that the drop-in takes over, and of those that it leaves to scikit-learn, with reasons."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple, TypeVar
from weakref import WeakSet

from cacore.errors import InputError
from cacore.terminal import say

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)

_LOG = logging.getLogger("cakernels.dropin")

_NUMBA = "numba"  # most of what is loaded with the first problem
_LOADING = 0.8  # processor seconds of scikit-learn's code that are worth loading ours, which takes as many


def _load() -> None:
    with suppress(ImportError):  # the call that needs it says so
        import_module("cakernels.dropin.train")


class UnsuitedError(Exception):
    """A call that scikit-learn's own code answers better or alone; ``str(error)`` is the reason."""


class Cost(NamedTuple):
    """Estimated processor seconds of a call: in scikit-learn, and here."""

    theirs: float
    ours: float


_loading: WeakSet[CallCounts] = WeakSet()  # those with a thread that loads


def _wait_for_all() -> None:
    for calls in [*_loading]:
        calls.wait()


os.register_at_fork(before=_wait_for_all)  # a child would wait for ever for what another thread imports


class CallCounts:
    """Decides between this package and scikit-learn call by call, and counts both.

    Parameters
    ----------
    verbose : bool
        Print a line to stderr the first time that a kind of call is taken over, or handed back for a reason.
    everything : bool
        True if calls are taken over, too, that scikit-learn answers better.

    Attributes
    ----------
    taken : Counter of str
        Number of calls taken over, by kind, such as "SVC.fit".
    handed_back : Counter of (str, str)
        Number of calls left to scikit-learn, by kind and reason.
    errors : Counter of (str, str)
        Calls handed back because of an unexpected error of this package, by kind and message.
    """

    def __init__(self, verbose: bool = False, everything: bool = False) -> None:
        self.verbose, self.everything = verbose, everything
        self.taken: Counter[str] = Counter()
        self.handed_back: Counter[tuple[str, str]] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self._guard = threading.Lock()
        self._seconds, self._preloaded = 0.0, False
        self._loader: threading.Thread | None = None

    def call(self, kind: str, ours: Callable[[], T], theirs: Callable[[], T]) -> T:
        """Result of `ours`, or of `theirs` if ours is unsuited, refuses the input or fails."""
        failure = ""
        try:
            result = ours()
        except (UnsuitedError, InputError) as error:
            reason = str(error)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            reason = f"an error of cakernels ({failure})"
        else:
            self._say(self._is_first(self.taken, kind), f"{kind}: taken over")
            return result
        self._say(self._is_first(self.handed_back, (kind, reason)), f"{kind}: left to scikit-learn ({reason})")
        if failure and self._is_first(self.errors, (kind, failure)):
            _LOG.warning("%s failed in cakernels, and scikit-learn's own code goes on: %s", kind, failure)
        return theirs()

    def small(self, size: int, least: int, what: str) -> None:
        """Raise UnsuitedError if `size` is below `least`, where this package is not faster."""
        self.better_there(size < least, f"too small to gain: fewer than {least:,} {what}")

    def better_there(self, condition: bool, reason: str) -> None:
        """Raise UnsuitedError for a call that this package could take over, but should not."""
        if condition and not self.everything:
            raise UnsuitedError(reason)

    def worth(self, cost: Cost) -> None:
        """Raise UnsuitedError if scikit-learn is as fast, or what is gained so far is not worth loading the solvers."""
        self.better_there(cost.ours >= cost.theirs, "too small to gain")
        self.worth_loading(cost.theirs - cost.ours)

    def worth_loading(self, seconds: float) -> None:
        """Raise UnsuitedError while the solvers are not loaded and the calls so far are worth less than loading them.

        They are loaded in a thread from half of that on, while scikit-learn's code goes on, and waited for when they
        are worth it, so that timing decides about no answer.

        Parameters
        ----------
        seconds : float
            Estimate of the processor seconds that this call can gain. It depends on sizes alone, so that a program that
            is run again gets the same numbers.
        """
        if self.everything or (self._loader is None and _NUMBA in sys.modules):
            return
        with self._guard:
            self._seconds += seconds
        if self._seconds >= _LOADING / 2:
            self.preload()
        if self._seconds < _LOADING and not self._preloaded:
            raise UnsuitedError("too little so far to be worth loading cakernels")
        self.wait()

    def preload(self, asked: bool = False) -> None:
        """Begin to load the solvers in a thread; if `asked` for, later calls need not be worth it."""
        with self._guard:
            self._preloaded |= asked
            if self._loader is not None or _NUMBA in sys.modules:
                return
            import_module("h5py")  # whose hooks at a fork must be there before a fork waits for this thread
            self._loader = threading.Thread(target=_load, name="cakernels-loading")
            self._loader.start()
            _loading.add(self)

    def wait(self) -> None:
        """Wait until the solvers are loaded, if a thread loads them."""
        if self._loader is not None and self._loader is not threading.current_thread():
            self._loader.join()

    def _is_first(self, counter: Counter[Key], key: Key) -> bool:
        """Count the key; True the first time."""
        with self._guard:
            counter[key] += 1
            return counter[key] == 1

    def _say(self, first: bool, line: str) -> None:
        if self.verbose and first:
            say(f"cakernels: {line}", error=True)

    def lines(self) -> list[str]:
        """The counts, one line per kind of call and reason."""
        taken = [f"{kind}: {count:,} taken over" for kind, count in sorted(self.taken.items())]
        back = [f"{kind}: {n:,} left to scikit-learn ({why})" for (kind, why), n in sorted(self.handed_back.items())]
        return taken + back
