"""Base class of the partitioners: name, parameters, checks, seed, and the call that divides rows."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.checks import Convert, whole
from cacore.comm import Communicator, as_communicator
from cacore.data.containers import unmasked
from cacore.data.rows import AnyRows, RowsLike, check_alike, check_range
from cacore.data.validation import check_whole_columns, checked_rows, shared_seed
from cacore.errors import InputError
from partition.assign import PartRows

REGISTERED: dict[str, type[Algorithm]] = {}


@dataclass(frozen=True)
class Division:
    """Rows divided into P parts: the fitted attributes of :class:`partition.estimators.Partitioner`.

    `n_iter` is the number of K-means rounds, 0 for partitioners without K-means.
    """

    labels: NDArray[np.int32]
    centers: NDArray[np.float64]
    sizes: NDArray[np.int64]
    n_iter: int


@dataclass(eq=False, repr=False)
class Algorithm:
    """A partitioning algorithm, independent of scikit-learn: one abstract method, :meth:`_partition`.

    ``class Halves(Algorithm, name="halves")`` registers it under a name. For the parameters see
    :class:`partition.estimators.Partitioner`.

    Attributes
    ----------
    balances_classes : bool
        True if the algorithm can balance every class as well as the parts' sizes: `ratio` is then a parameter.
    clusters : bool
        True if the rows of a part lie close to its centre, so that its model suits new rows near this centre; False for
        random parts.
    checks : dict of str to callable
        The check of each parameter's value, by the parameter's name; see :mod:`cacore.checks`.
    """

    balances_classes: ClassVar[bool] = False
    clusters: ClassVar[bool] = True
    checks: ClassVar[dict[str, Convert[object]]] = {"n_parts": whole(1)}
    ratio = False

    n_parts: int = 8
    random_state: int | np.random.RandomState | None = field(default=None, kw_only=True)

    def __init_subclass__(cls, name: str = "", **options: object) -> None:
        super().__init_subclass__(**options)
        if name:
            registered = REGISTERED.get(name, cls)
            if (
                registered.__qualname__ != cls.__qualname__
            ):  # running a notebook cell again defines the same class again
                raise ValueError(f"partitioner {name!r}: {registered.__qualname__} has this name already")
            REGISTERED[name] = cls

    @abstractmethod
    def _partition(
        self, rows: PartRows, y: NDArray[np.generic] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the labels of this rank's rows, and the centres of all parts, the same on all ranks."""

    def divide(self, X: RowsLike, y: ArrayLike | None = None, comm: Communicator | None = None) -> Division:
        """Divide the rows of `X`, together with those of the other ranks; collective.

        Arguments and exceptions are those of :meth:`partition.estimators.Partitioner.fit`.
        """
        comm = as_communicator(comm)
        with comm.phase("partition"):
            with comm.agreed(own_rows=True):
                check_whole_columns(X, "X")
                X = self._checked(X)
                target = None if y is None else np.asarray(unmasked(y, "y"))
                if target is not None and target.shape != (X.shape[0],):
                    raise InputError(f"y has shape {target.shape} for {X.shape[0]} rows of X")
            check_alike(X, comm)
            _, n = comm.offset(X.shape[0])
            with comm.agreed():
                self._check_parts(n, X.shape[0], comm)
            rows = PartRows(X, comm, shared_seed(self.random_state, comm))
            labels, centers = self._partition(rows, target)
            sizes = comm.allreduce(np.bincount(labels, minlength=self.n_parts).astype(np.int64))
        return Division(labels, centers, sizes, getattr(self, "n_iter_", 0))

    def _checked(self, X: RowsLike) -> AnyRows:
        rows = checked_rows(X, ("float64", "float32"))
        check_range(rows)
        for name, check in self.checks.items():
            check(getattr(self, name), f"{name} =")
        return rows

    def _check_parts(self, n: int, n_local: int, comm: Communicator) -> None:
        if self.n_parts > n:
            raise InputError(f"{self.n_parts:,} parts of {n:,} rows: every part needs a row; ask for {n:,} or fewer")
