"""What every partitioner shares: checks, the seed, and the fitted attributes."""

from __future__ import annotations

import numbers
from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_array, check_is_fitted

from cacore.comm import Communicator, as_communicator
from cacore.data.rows import Rows, check_alike
from cacore.data.validation import shared_seed
from cacore.errors import InputError
from partition.assign import PartRows
from partition.routing import nearest


class Partitioner(ClusterMixin, BaseEstimator):
    """Divide rows into parts.

    Parameters
    ----------
    n_parts : int
        Number of parts, P, at most the number of rows.
    random_state : int, RandomState or None
        With the same int, rows and ranks the labels are the same, bit for bit.

    Attributes
    ----------
    labels_ : ndarray of int32, shape (n_local,)
        Part of each of this rank's rows.
    centers_ : ndarray of float64, shape (P, d)
        The same on all ranks.
    sizes_ : ndarray of int64, shape (P,)
        Rows of each part, over all ranks.
    n_features_in_ : int
    """

    labels_: NDArray[np.int32]
    centers_: NDArray[np.float64]
    sizes_: NDArray[np.int64]

    def __init__(self, n_parts: int = 8, *, random_state: Any = None) -> None:
        self.n_parts = n_parts
        self.random_state = random_state

    @abstractmethod
    def _partition(self, rows: PartRows, y: NDArray[Any] | None) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Labels of this rank's rows, and the centres."""

    def fit(self, X: Any, y: ArrayLike | None = None, comm: Any = None) -> Partitioner:
        """Divide the rows of `X`, or of all ranks' `X`.

        Parameters
        ----------
        X : array-like or CSR, shape (n_local, d)
            This rank's rows; float32 stays float32. Not changed.
        y : array-like, shape (n_local,), optional
            Classes, for ``ratio=True``.
        comm : mpi4py communicator, Communicator or None
            With one, a collective call.

        Returns
        -------
        self

        Raises
        ------
        InputError
            More parts than rows, NaN or infinity, features that differ between ranks.
        """
        comm = as_communicator(comm)
        with comm.guard(), comm.phase("partition"):
            with comm.agreed():
                X = self._checked(X)
                target = None if y is None else np.asarray(y)
                if target is not None and target.shape != (X.shape[0],):
                    raise InputError(f"y has shape {target.shape} for {X.shape[0]} rows of X")
            check_alike(X, comm)
            _, n = comm.offset(X.shape[0])
            with comm.agreed():
                self._check_parts(n, X.shape[0], comm)
            rows = PartRows(X, comm, shared_seed(self.random_state, comm))
            self.labels_, self.centers_ = self._partition(rows, target)
            self.sizes_ = comm.allreduce(np.bincount(self.labels_, minlength=self.n_parts).astype(np.int64))
        self.n_features_in_ = X.shape[1]
        return self

    def fit_predict(self, X: Any, y: ArrayLike | None = None, comm: Any = None) -> NDArray[np.int32]:
        """Fit, and return ``labels_``."""
        return self.fit(X, y, comm).labels_

    def predict(self, X: Any) -> NDArray[np.int32]:
        """Part whose centre is nearest to each row: 2 n P d flops."""
        check_is_fitted(self)
        X = self._checked(X)
        if X.shape[1] != self.n_features_in_:
            raise InputError(f"X has {X.shape[1]} features, the partition was fitted on {self.n_features_in_}")
        return nearest(X, self.centers_)

    def _checked(self, X: Any) -> Rows:
        try:
            X = check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32], ensure_min_samples=0)
        except ValueError as error:
            raise InputError(str(error)) from error
        if not isinstance(self.n_parts, numbers.Integral) or self.n_parts < 1:
            raise InputError(f"n_parts = {self.n_parts!r}: it must be an integer of at least 1")
        return X

    def _check_parts(self, n: int, n_local: int, comm: Communicator) -> None:
        if self.n_parts > n:
            raise InputError(f"{self.n_parts:,} parts of {n:,} rows: every part needs a row; ask for {n:,} or fewer")
