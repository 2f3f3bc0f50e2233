"""scikit-learn classifiers: least squares with one indicator column per class; the largest output wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.estimators import Labelled
from cacore.data.labels import all_classes, require_classes
from cacore.data.rows import RowsLike
from cakrr.bkrr import bkrr
from cakrr.bkrr2 import bkrr2
from cakrr.dckrr import dckrr
from cakrr.dkrr import dkrr
from cakrr.estimators.regressors import Iterated, OnTwoLevels, RidgeInParts
from cakrr.estimators.ridge_base import KernelRidge
from cakrr.kkrr import kkrr
from cakrr.kkrr2 import kkrr2
from cakrr.options import RidgeOptions
from cakrr.twolevel import twolevel


@dataclass(eq=False, repr=False, kw_only=True)
class RidgeClassifier(Labelled, KernelRidge):
    """Base of the classifiers: labels, decisions, probabilities.

    Two classes have one target column of -1 and 1; more classes have one column each, 1 for the rows of the class and 0
    for others. A part without a class learns that its column is 0 there. Sigma and lambda are chosen by the squared
    error of the columns on the held-out rows, since the share of wrong labels is too coarse on a few hundred rows: on
    usps, a9a and 5,000 rows of mnist, in 4 or 6 parts, standardised or not, with three splits each, the squared error
    chose as well or better in 12 of 18 cases.
    """

    def fit(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, and labels `y`, shape (n_local,); neither is changed.

        Rows of weight 0 are ignored. Invalid input raises an InputError, a ValueError.
        """
        super().fit(X, y, sample_weight)
        self.classes_ = self.model_.classes
        return self

    def predict(self, X: RowsLike) -> NDArray[np.generic]:
        """Labels for `X`, shape (n_local, d); with `comm`, a collective call."""
        values = self._values(X)
        return self.model_.labels(values)

    def decision_function(self, X: RowsLike) -> NDArray[np.float64]:
        """Outputs for `X`: shape (n_local,) with two classes, else (n_local, k); with `comm`, a collective call.

        With two classes, positive outputs mean the second class.
        """
        values: NDArray[np.float64] = self._values(X, "decision_function")
        return values

    def predict_proba(self, X: RowsLike) -> NDArray[np.float64]:
        """Probabilities for `X`, shape (n_local, k); with `comm`, a collective call.

        Least squares on an indicator column estimates the probability of its class, but may leave [0, 1], so outputs
        are clipped at 0 and divided by their sum; see :meth:`cakrr.ridge_model.KRRModel.probabilities`. With
        `probability`, they are calibrated instead.
        """
        values = self._values(X, "predict_proba")
        return self.model_.probabilities(values)

    def _checked(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int, copy: bool = True
    ) -> Dataset:
        rows = {"accept_sparse": "csr", "dtype": self.dtype, "order": "C", "copy": copy}
        return self._labelled(X, y, sample_weight, least, **rows).weighted()

    def _options(self, train: Dataset, comm: Communicator) -> RidgeOptions:
        classes = all_classes(train.target(), comm)
        with comm.agreed():
            require_classes(classes, pairs=False)
            return self._checked_options(classify=True, class_weight=self._class_weight(classes))


@dataclass(eq=False, repr=False, kw_only=True)
class CalibratedClassifier(RidgeClassifier):
    """A classifier whose probabilities can be calibrated."""

    probability: bool | str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class BKRR2Classifier(RidgeInParts, CalibratedClassifier):
    """Classifier by :class:`cakrr.BKRR2`: balanced parts; predictions by the nearest centre's model (Algorithm 10).

    Parameters
    ----------
    n_parts, sigma, lam, kernel, degree, coef0, n_divisions, select, validation_fraction, cv, per_part
        See :class:`cakrr.BKRR2`.
    route, metric, metric_rounds, metric_init
        See :class:`cakrr.BKRR2`.
    scaling, standardize, dtype, random_state, comm
        See :class:`cakrr.BKRR2`.
    class_weight : dict, "balanced" or None
        Weights of the rows by their labels; "balanced" is n / (classes x rows of the class), over all ranks.
    probability : bool, {"sigmoid", "isotonic"} or None
        Calibrate probabilities by leave-one-out predictions in closed form, which cost one more factorisation per part.
        True means "sigmoid". Not available if several models predict a row.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
    model_ : KRRModel
        `save` writes it. ``KRRModel.load(path)`` reads it; its `predict` returns outputs, and `labels` their labels.
    sigma_, lam_, n_parts_, params_, grid_, at_grid_end_, sizes_, centers_, n_features_in_
    metric_, feature_importances_, metric_errors_, lengths_seconds_
        See :class:`cakrr.BKRR2`; the errors in `grid_` are summed over the columns.

    Notes
    -----
    All classes share one factorisation per part, which costs what it does in :class:`cakrr.BKRR2`; each class adds
    2 m^2 flops per part of m rows.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from cakrr import BKRR2Classifier
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = BKRR2Classifier(n_parts=2, sigma=0.5, lam=1e-3, probability=True).fit(X[:300], y[:300])
    >>> model.predict_proba(X[300:]).shape
    (100, 2)
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    _method = bkrr2


class KKRR2Classifier(BKRR2Classifier):
    """Classifier by :class:`cakrr.KKRR2`; parameters, attributes and cost are those of :class:`BKRR2Classifier`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from cakrr import KKRR2Classifier
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = KKRR2Classifier(n_parts=2, sigma=0.5, lam=1e-3, random_state=0).fit(X[:300], y[:300])
    >>> model.classes_.tolist()
    [0, 1]
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    _method = kkrr2


class DCKRRClassifier(BKRR2Classifier):
    """Classifier by :class:`cakrr.DCKRR`; parameters, attributes and cost are those of :class:`BKRR2Classifier`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from cakrr import DCKRRClassifier
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = DCKRRClassifier(n_parts=2, sigma=0.5, lam=1e-3, random_state=0).fit(X[:300], y[:300])
    >>> model.classes_.tolist()
    [0, 1]
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    _method = dckrr


class BKRRClassifier(BKRR2Classifier):
    """Classifier by :class:`cakrr.BKRR`; parameters, attributes and cost are those of :class:`BKRR2Classifier`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from cakrr import BKRRClassifier
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = BKRRClassifier(n_parts=2, sigma=0.5, lam=1e-3, random_state=0).fit(X[:300], y[:300])
    >>> model.classes_.tolist()
    [0, 1]
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    _method = bkrr


class KKRRClassifier(BKRR2Classifier):
    """Classifier by :class:`cakrr.KKRR`; parameters, attributes and cost are those of :class:`BKRR2Classifier`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from cakrr import KKRRClassifier
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = KKRRClassifier(n_parts=2, sigma=0.5, lam=1e-3, random_state=0).fit(X[:300], y[:300])
    >>> model.classes_.tolist()
    [0, 1]
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    _method = kkrr


@dataclass(eq=False, repr=False, kw_only=True)
class TwoLevelKRRClassifier(OnTwoLevels, CalibratedClassifier):
    """Classifier by :class:`cakrr.TwoLevelKRR`.

    Parameters are those of :class:`cakrr.TwoLevelKRR`, plus `class_weight` and `probability`; attributes are those of
    :class:`BKRR2Classifier`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from cakrr import TwoLevelKRRClassifier
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = TwoLevelKRRClassifier(n_parts=2, centers=50, sigma=0.5, lam=1e-3).fit(X[:300], y[:300])
    >>> model.decision_function(X[300:]).shape
    (100,)
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    _method = twolevel


@dataclass(eq=False, repr=False, kw_only=True)
class DKRRClassifier(Iterated, CalibratedClassifier):
    """Classifier by the exact :class:`cakrr.DKRR`.

    Parameters are those of :class:`cakrr.DKRR`, plus `class_weight` and `probability`; attributes are those of
    :class:`BKRR2Classifier` without `n_parts_`, plus `n_iter_` and `residual_` as in :class:`cakrr.DKRR`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from cakrr import DKRRClassifier
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = DKRRClassifier(sigma=0.5, lam=1e-3).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    _method = dkrr
