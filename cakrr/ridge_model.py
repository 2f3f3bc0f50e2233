"""Trained ridge models of all parts, with the uncertainty of their predictions, and the result of training one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike
from cacore.data.rows import AnyRows
from cacore.tuning import grid_ends
from cakrr.options import ALONE
from cakrr.ridge_predictor import RidgePredictor
from cakrr.uncertainty import deviation
from cakrr.uncertainty.answer import IntervalRequest, answered


class KRRModel(RidgePredictor):
    """Kernel ridge regression models of P parts, of which this rank holds some.

    Attributes
    ----------
    sigma, lam : float
        Setting of all parts; if parts chose their own, the setting with the smallest error over all parts.
    sigmas, lams : ndarray, shape (P,), or None
        Setting of each part, if parts chose their own.
    offset : float or ndarray, shape (t,)
        Mean of the training targets, added to every prediction.
    classes : ndarray, shape (k,), or None
        Labels of a classifier, ascending: its targets are -1 and 1 for two classes, or one column per class.
    coarse : CoarseModel or None
        Model of all rows, on every rank; the parts' models learn its residual.
    like : Kernel
        The kernel, of any width.
    calibration : Calibration or None
        Errors from which intervals are made.
    noise : Noise or None
        Factors of the standard deviations in adaptive intervals.
    calibrator : Calibrator or None
        Map from a classifier's outputs to probabilities, if these are calibrated.
    variances : dict of int to Variance
        Variances of this rank's parts, if they have been computed and fit in memory; not part of a copy or a pickle.
    coarse_variance : CoarseVariance or None
        Variance of the coarse model, on every rank; not part of a copy or a pickle.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from cakrr import BKRR2, KRRModel
    >>> X, y = make_friedman1(200, random_state=0)
    >>> BKRR2(n_parts=2, sigma=6.0, lam=1e-6).fit(X, y).save("ridge.h5")
    >>> KRRModel.load("ridge.h5").predict(X[:3]).shape
    (3,)
    """

    def predict_std(
        self, X: AnyRows, comm: CommLike = None, limit: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predictions for this rank's rows, and standard deviations of new targets there; a collective call.

        Shapes and predictions are those of :meth:`predict`. `limit` is in bytes per rank, by default its share of
        the free memory. See :func:`cakrr.uncertainty.deviation.predict`.
        """
        with self._ranks(comm, "predict_std") as ranks, ranks.phase("predict"):
            return deviation.predict(self, X, ranks, limit)

    def predict_interval(
        self, X: AnyRows, coverage: float = 0.9, adaptive: bool | str | None = None, comm: CommLike = None,
        limit: int | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
        """Lower and upper ends of intervals for new targets at this rank's rows; a collective call.

        Shapes are those of :meth:`predict`. See :mod:`cacore.probability.conformal`, and for a model with leave-one-out
        errors :mod:`cakrr.uncertainty.answer`. `adaptive` is "std" or True for widths in proportion to the standard
        deviations, at the cost of :meth:`predict_std`; "parts" for widths by each part's own errors; or None.

        Raises
        ------
        InputError
            On all ranks: the model was not trained for such intervals, or the coverage is outside (0, 1) or too high
            for the number of calibration rows.
        """
        with self._ranks(comm, "predict_interval") as ranks, ranks.phase("predict"):
            with ranks.agreed():
                request = IntervalRequest(coverage=coverage, adaptive=adaptive)
            _, _, ends = answered(self, X, request, ranks, limit)
            assert ends is not None
            return ends


@dataclass
class RidgeFit:
    """The result of training: the model, and what the report says about it.

    Attributes
    ----------
    model : KRRModel
    sizes : ndarray of int64, shape (P,)
        Number of rows of each part.
    grid : list of dict
        Error of every setting that was tried.
    params : dict
        Chosen parameters other than sigma and lambda.
    seconds : ndarray, shape (P,)
        Seconds of each part's share of the grid and of its final solution.
    busy : ndarray, shape (R,)
        Seconds that each rank worked on its parts.
    residual : ndarray, shape (P,)
        Relative residual of each part's system, if it was refined.
    errors : list of float
        Validation error of every round of a metric.
    lengths_seconds : float
        Seconds in which length scales were learned.
    iteration : dict
        Entries of the report about conjugate gradients, if they were the solver.
    library_bytes : int
        Bytes, by a formula, that a library sent from this rank without the communicator counting them.
    notes : list of str
        Warnings for the user, one sentence each.
    reasons : list of str
        Explanations of automatic choices, one sentence each.
    """

    model: KRRModel
    sizes: NDArray[np.int64]
    grid: list[dict[str, Any]] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    busy: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    residual: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    errors: list[float] = field(default_factory=list)
    lengths_seconds: float = 0.0
    iteration: dict[str, Any] = field(default_factory=dict)
    library_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def at_grid_end(self) -> dict[str, float]:
        """Chosen values that are an end of their grid; see :func:`cacore.tuning.grid_ends`.

        Empty if parts chose their own. Beside a coarse model, the lambda that leaves the parts out is no end: larger
        ones say the same.
        """
        model = self.model
        rows = [row for row in self.grid if row.get("kernel", model.like.kind) == model.like.kind]
        if model.sigmas is not None or not rows:
            return {}
        chosen = {"sigma": model.sigma, "lambda": model.lam}
        chosen |= {name: self.params[name] for name in ("coarse_sigma", "coarse_lambda") if name in self.params}
        if model.coarse is not None and not model.on_points and model.lam == ALONE:
            chosen.pop("lambda")
        return grid_ends({name: sorted({row[name] for row in rows if name in row}) for name in chosen}, chosen)
