"""The partitioners' scikit-learn faces: parameters, checks and fitted attributes as its estimators have them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from cacore.comm import collective
from cacore.data.validation import check_same_names, validated
from partition import balanced, kmeans, random
from partition.base import Algorithm
from partition.routing import nearest


class Partitioner(ClusterMixin, BaseEstimator, Algorithm):
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
    feature_names_in_ : ndarray of str, shape (d,)
        Of the columns, where `X` is a DataFrame.

    Notes
    -----
    A subclass that writes :meth:`_partition` is a partitioner, and with ``name="..."`` in its class statement
    estimators know it by that name.
    """

    labels_: NDArray[np.int32]
    centers_: NDArray[np.float64]
    sizes_: NDArray[np.int64]

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
        with collective(comm) as ranks:
            division = self.divide(X, y, ranks)
            with ranks.agreed():
                validated(self, X, skip_check_array=True)  # the names of its columns
            check_same_names(self, ranks)
        self.labels_, self.centers_, self.sizes_ = division.labels, division.centers, division.sizes
        self.n_features_in_ = division.centers.shape[1]
        return self

    def fit_predict(self, X: Any, y: ArrayLike | None = None, comm: Any = None) -> NDArray[np.int32]:
        """Fit, and return ``labels_``."""
        return self.fit(X, y, comm).labels_

    def predict(self, X: Any) -> NDArray[np.int32]:
        """Part whose centre is nearest to each row: 2 n P d flops."""
        check_is_fitted(self)
        validated(self, X, reset=False, skip_check_array=True)
        return nearest(self._checked(X), self.centers_)


# The classes are described where their algorithms are.


class RandomPartition(random.RandomPartition, Partitioner):  # noqa: D101
    __doc__ = random.RandomPartition.__doc__


class FCFS(balanced.FCFS, Partitioner):  # noqa: D101
    __doc__ = balanced.FCFS.__doc__


class KMeans(kmeans.KMeans, Partitioner):  # noqa: D101
    __doc__ = kmeans.KMeans.__doc__


class BalancedKMeans(balanced.BalancedKMeans, Partitioner):  # noqa: D101
    __doc__ = balanced.BalancedKMeans.__doc__


class KBalance(balanced.KBalance, Partitioner):  # noqa: D101
    __doc__ = balanced.KBalance.__doc__


BY_NAME: dict[str, type[Partitioner]] = {
    "random": RandomPartition,
    "fcfs": FCFS,
    "kmeans": KMeans,
    "bkm": BalancedKMeans,
    "kbalance": KBalance,
}
