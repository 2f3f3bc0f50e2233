"""Worker processes of joblib: estimators that are sent to them bring the drop-in along.

Only the pickles that joblib sends to its workers do so. Pickles in files, and those of other programs, are plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

Made = TypeVar("Made")

_REGISTRY = "joblib.externals.loky.backend.reduction"


def call_first(classes: tuple[type, ...], change: Callable[..., None], *arguments: object) -> None:
    """Let a worker call ``change(*arguments)`` when it gets an object of one of these classes."""

    def reduced(estimator: Any) -> tuple[object, ...]:
        make, given, *rest = estimator.__reduce_ex__(4)
        return (revived, (change, arguments, make, given), *rest)

    known = _table()
    for one in classes if known is not None else ():
        known[one] = reduced


def _table() -> Any:
    """How joblib's workers get objects, by class; None in a version of joblib that has no such table."""
    try:
        return getattr(import_module(_REGISTRY), "_dispatch_table", None)
    except ImportError:
        return None


def revived(
    change: Callable[..., None], arguments: tuple[object, ...], make: Callable[..., Made], given: tuple[object, ...]
) -> Made:
    """The estimator, without its attributes, in a process where the change has been made."""
    change(*arguments)
    return make(*given)
