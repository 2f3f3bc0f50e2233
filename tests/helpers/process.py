"""State of the whole process that a test, and the code under test, must leave as they found it."""

from __future__ import annotations

import gc
import locale
import os
import signal
import sys
import threading
import time
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401 - its BLAS is to be among the libraries
from threadpoolctl import ThreadpoolController

from cacore.machine import threads

_SIGNALS = sorted(signal.valid_signals())
_POOL = "cakernels"  # threads of these names wait for the next block of work
_PATIENCE = 10  # seconds that running tasks of a call that has failed may take to end


@cache
def _libraries() -> Any:
    return ThreadpoolController().lib_controllers


def _mask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def _threads() -> set[str]:
    found = (one for one in threading.enumerate() if not one.daemon and not one.name.startswith(_POOL))
    return {f"{one.name} ({one.ident})" for one in found}


def state() -> dict[str, Any]:
    """Settings of the process, by name; takes about 0.1 ms."""
    return {
        "garbage collection": gc.isenabled(),
        "limit on threads": threads._limit,
        "threads of BLAS and OpenMP": {one.filepath: one.num_threads for one in _libraries()},
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "signal handlers": {number: signal.getsignal(number) for number in _SIGNALS},
        "threads": _threads(),
        "floating-point errors": np.geterr(),
        "working directory": os.getcwd(),
        "umask": _mask(),
        "locale": locale.setlocale(locale.LC_ALL),
        "recursion limit": sys.getrecursionlimit(),
        "sys.excepthook": sys.excepthook,
    }


def changes(before: dict[str, Any]) -> list[str]:
    """One line for each thing that differs from `before`, once all running tasks have ended."""
    end = time.monotonic() + _PATIENCE
    while (now := state()) != before and _settling(before, now) and time.monotonic() < end:
        time.sleep(0.01)
    return [f"{name}: {_difference(before[name], now[name])}" for name in before if before[name] != now[name]]


def free_threads(before: dict[str, Any]) -> None:
    """Undo the limit on threads that a command set in this process: its own process would have ended."""
    if threads._limit != before["limit on threads"]:
        threads._limit = before["limit on threads"]
        for one in _libraries():
            if one.num_threads != (count := before["threads of BLAS and OpenMP"][one.filepath]):
                one.set_num_threads(count)


def _settling(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """True if tasks that are still running on threads may explain the difference."""
    passing = {"garbage collection", "threads of BLAS and OpenMP", "threads"}
    return all(name in passing for name in before if before[name] != now[name])


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, dict):
        keys = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
        return ", ".join(f"{key} {before.get(key)!r} -> {now.get(key)!r}" for key in keys)
    return f"{before!r} -> {now!r}"
