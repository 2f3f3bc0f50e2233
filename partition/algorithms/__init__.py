"""The package's partitioners by name, and division of rows by one of them, for the methods of all families.

Every module of this folder is imported, and its classes register themselves by name.
"""

from __future__ import annotations

from copy import copy
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from numpy.typing import ArrayLike

from cacore.comm import Communicator
from cacore.data.rows import AnyRows
from cacore.errors import InputError
from partition.base import REGISTERED, Algorithm, Division

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def named(partitioner: str | Algorithm) -> Algorithm:
    """The partitioner of this name, with its defaults; a partitioner is returned as it is.

    Raises
    ------
    InputError
        There is no partitioner of this name.
    """
    if isinstance(partitioner, Algorithm):
        return partitioner
    if partitioner not in REGISTERED:
        raise InputError(f"partitioner {partitioner!r}: choose one of {', '.join(REGISTERED)}")
    return REGISTERED[partitioner]()


def divide(
    partitioner: str | Algorithm,
    n_parts: int,
    X: AnyRows,
    comm: Communicator,
    seed: Any,
    y: ArrayLike | None = None,
    ratio: bool = False,
) -> Division:
    """Divide all ranks' rows into `n_parts` parts, at the cost of the partitioner; collective.

    Parameters
    ----------
    partitioner : str or Algorithm
        A name, or a partitioner, whose other parameters are used; it is not changed.
    n_parts : int
    X : ndarray or CSR, shape (n_local, d)
        This rank's rows. Not changed.
    comm : Communicator
    seed : int, RandomState or None
    y : ndarray of numbers, shape (n_local,), optional
        Classes; used if `ratio` is set here or in the partitioner.
    ratio : bool
        Balance every class as well as the parts' sizes.

    Raises
    ------
    InputError
        On all ranks: more parts than rows, NaN or infinity, features that differ between ranks, or `ratio` for a
        partitioner that cannot balance classes.
    """
    chosen = copy(named(partitioner))
    chosen.n_parts, chosen.random_state = n_parts, seed
    if ratio and not chosen.balances_classes:
        raise InputError(f"ratio: {type(chosen).__name__} does not balance classes")
    if ratio:
        chosen.ratio = True
    return chosen.divide(X, y if chosen.balances_classes and chosen.ratio else None, comm)
