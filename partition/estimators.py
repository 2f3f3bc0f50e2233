"""The partitioners as scikit-learn estimators: their base class, and one estimator per algorithm of the package."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from cacore.arrays import usual_errors
from cacore.comm import CommLike, collective
from cacore.data.estimators import same_fit
from cacore.data.rows import AnyRows, RowsLike
from cacore.data.validation import EncodedRows, check_same_names, validated, with_features
from partition import algorithms
from partition.base import REGISTERED, Algorithm
from partition.parts_model import distances, nearest


class Partitioner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator, Algorithm):
    """Base class of the partitioners: estimators that divide rows into parts.

    Parameters
    ----------
    n_parts : int
        Number of parts, P, at most the number of rows.
    random_state : int, RandomState or None
        Seed. The same int, rows and ranks give the same labels, bit for bit.

    Attributes
    ----------
    labels_ : ndarray of int32, shape (n_local,)
        Part of each of this rank's rows.
    centers_ : ndarray of float64, shape (P, d)
        Centres of all parts, the same on all ranks.
    sizes_ : ndarray of int64, shape (P,)
        Number of rows of each part on all ranks.
    n_features_in_ : int
    feature_names_in_ : ndarray of str, shape (d,)
        Names of the columns, if `X` is a DataFrame.

    Notes
    -----
    To add a partitioner, derive a class and implement :meth:`_partition`. With ``name="..."`` in the class statement,
    estimators accept that name.

    Examples
    --------
    >>> import numpy as np
    >>> from partition import Partitioner
    >>> class InTurn(Partitioner, name="in turn"):
    ...     def _partition(self, rows, y):
    ...         labels = ((rows.first + np.arange(len(rows))) % self.n_parts).astype(np.int32)
    ...         return labels, rows.means(labels, self.n_parts)[0]
    >>> InTurn(n_parts=2).fit(np.eye(4)).labels_.tolist()
    [0, 1, 0, 1]
    """

    labels_: NDArray[np.int32]
    centers_: NDArray[np.float64]
    sizes_: NDArray[np.int64]

    def fit(self, X: RowsLike, y: ArrayLike | None = None, comm: CommLike = None) -> Partitioner:
        """Divide the rows of `X`, or the rows of all ranks' `X`.

        Parameters
        ----------
        X : array-like or CSR, shape (n_local, d)
            This rank's rows; float32 stays float32. Not changed.
        y : array-like, shape (n_local,), optional
            Classes, for ``ratio=True``.
        comm : mpi4py communicator, Communicator or None
            If given, the call is collective.

        Returns
        -------
        self

        Raises
        ------
        InputError
            More parts than rows, NaN or infinity, features that differ between ranks.
        """
        with collective(comm) as ranks:
            same_fit(self, ranks)
            X = with_features(self, X, None, None, ranks)
            rows = X.features if isinstance(X, EncodedRows) else X
            division = self.divide(rows, y, ranks)
            with ranks.agreed():
                validated(self, X, skip_check_array=True)  # records the names of the columns
            check_same_names(self, ranks)
        self.labels_, self.centers_, self.sizes_ = division.labels, division.centers, division.sizes
        if rows is X:
            self.n_features_in_ = division.centers.shape[1]
        return self

    def fit_predict(self, X: RowsLike, y: ArrayLike | None = None, comm: CommLike = None) -> NDArray[np.int32]:
        """Fit, and return ``labels_``."""
        return self.fit(X, y, comm).labels_

    def predict(self, X: RowsLike) -> NDArray[np.int32]:
        """Return the part whose centre is nearest to each row: 2 n P d flops."""
        with usual_errors():
            return nearest(self._rows(X), self.centers_)

    def transform(self, X: RowsLike) -> NDArray[np.float64]:
        """Return the distance of each row to each centre, shape (n, P): 2 n P d flops."""
        with usual_errors():
            return distances(self._rows(X), self.centers_)

    def _rows(self, X: RowsLike) -> AnyRows:
        """Checked rows for the fitted centres."""
        check_is_fitted(self)
        return self._checked(validated(self, X, reset=False, skip_check_array=True))

    @property
    def _n_features_out(self) -> int:
        """Number of columns of :meth:`transform`, of which scikit-learn makes names."""
        return len(self.centers_)


def _estimator(algorithm: type[Algorithm]) -> type[Partitioner]:
    """The scikit-learn estimator of an algorithm of the package, with its name, parameters and docstring."""
    described = {"__doc__": algorithm.__doc__, "__module__": __name__}
    return type(algorithm.__name__, (algorithm, Partitioner), described)


BY_NAME: dict[str, type[Partitioner]] = {
    name: _estimator(algorithm)
    for name, algorithm in REGISTERED.items()
    if algorithm.__module__.startswith(f"{algorithms.__name__}.")  # not those of users
}
globals().update({estimator.__name__: estimator for estimator in BY_NAME.values()})

__all__ = ["BY_NAME", "Partitioner", *(estimator.__name__ for estimator in BY_NAME.values())]
