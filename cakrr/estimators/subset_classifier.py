"""scikit-learn classifier on M points."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from cacore.comm import CommLike
from cacore.data.labels import ClassWeight
from cacore.data.rows import Rows
from cacore.tuning.grid import GridLike
from cakrr.estimators.classifiers import RidgeClassifier
from cakrr.estimators.subset import OnPoints
from cakrr.subset import subset


class SubsetKRRClassifier(OnPoints, RidgeClassifier):
    """Classifier by :class:`cakrr.SubsetKRR`: least squares of the classes' columns on M points.

    Parameters
    ----------
    centers, sigma, lam, kernel, degree, coef0, pick, select
        See :class:`cakrr.SubsetKRR`.
    checkpoint, scaling, standardize, dtype, random_state, comm
        See :class:`cakrr.SubsetKRR`.
    class_weight : dict, "balanced" or None
        Weights of the rows by their labels; "balanced" is n / (classes x rows of the class), over all ranks.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
    model_ : KRRModel
        `save` writes it. ``KRRModel.load(path)`` reads it; its `predict` returns outputs, and `labels` their labels.
    sigma_, lam_, grid_, at_grid_end_, params_, centers_, coef_, n_features_in_
        See :class:`cakrr.SubsetKRR`; the errors in `grid_` are summed over the columns.

    Notes
    -----
    All classes share one triangle per sigma, which costs what it does in :class:`cakrr.SubsetKRR`.
    """

    _method = subset

    def __init__(
        self, *, centers: int | list[int] | Rows | None = None, sigma: GridLike | None = "auto",
        lam: GridLike = "auto", kernel: str | Callable[[Rows, Rows], np.ndarray] = "gaussian", degree: int = 3,
        coef0: float = 0.0, pick: str = "random", select: str = "loo", class_weight: ClassWeight = None,
        checkpoint: str | os.PathLike[str] | None = None, scaling: str = "deviation", standardize: bool = True,
        dtype: str = "float64", random_state: int | np.random.RandomState | None = None, comm: CommLike = None,
    ) -> None:  # fmt: skip
        self.centers, self.sigma, self.lam, self.kernel, self.degree = centers, sigma, lam, kernel, degree
        self.coef0, self.pick, self.select, self.class_weight = coef0, pick, select, class_weight
        self.checkpoint, self.scaling, self.standardize, self.dtype = checkpoint, scaling, standardize, dtype
        self.random_state, self.comm = random_state, comm
