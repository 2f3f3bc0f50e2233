"""Partitioners: who owns which row, where the centres are, and how new rows are routed to them.

A partitioner is a class that needs no scikit-learn (:class:`partition.base.Algorithm`, in the modules ``random``,
``kmeans`` and ``balanced``) and that registers itself by name; the methods divide rows with
:func:`partition.divide.divide`. Its scikit-learn face, in ``partition.estimators``, is loaded on first use. A
partitioner of a user's is one subclass of `Partitioner`, which is both::

    class Halves(Partitioner, name="halves"):
        def _partition(self, rows, y):
            return (rows.X[:, 0] > 0).astype(np.int32), centers  # this rank's labels, and all parts' centres
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partition.estimators import BY_NAME, FCFS, BalancedKMeans, KBalance, KMeans, Partitioner, RandomPartition

__all__ = ["BY_NAME", "FCFS", "BalancedKMeans", "KBalance", "KMeans", "Partitioner", "RandomPartition"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("partition.estimators"), name)
    raise AttributeError(f"module 'partition' has no attribute {name!r}")
