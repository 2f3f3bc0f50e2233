"""Partitioners: they decide which part each row belongs to, compute the parts' centres and route new rows.

Methods divide rows with :func:`partition.algorithms.divide`. Each partitioner of the package is one class in a module
of `partition.algorithms`, which registers itself by name and needs no scikit-learn
(:class:`partition.base.Algorithm`). `partition.estimators` derives a scikit-learn estimator of the same name from each
of them, on first use. A partitioner of your own is one subclass of `Partitioner`, and both at once::

    class Halves(Partitioner, name="halves"):
        def _partition(self, rows, y):
            return (rows.X[:, 0] > 0).astype(np.int32), centers  # labels of this rank's rows, centres of all parts
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cacore.learn.method import declarations

if TYPE_CHECKING:
    from partition.estimators import BY_NAME as BY_NAME
    from partition.estimators import Partitioner as Partitioner


def algorithm_names() -> list[str]:
    """Names of the package's partitioners, from their class statements: none of their modules is loaded."""
    return [name for _, name in declarations(f"{__name__}.algorithms", r'^class \w+\(Algorithm, name="(\w+)"\)')]


def __getattr__(name: str) -> object:
    # Estimators are capitalised and modules are not: importing a module must not load scikit-learn.
    if name == "__all__" or name[:1].isupper():
        estimators = import_module("partition.estimators")
        if name in ("__all__", *estimators.__all__):
            return getattr(estimators, name)
    raise AttributeError(f"module 'partition' has no attribute {name!r}")
