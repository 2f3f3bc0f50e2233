"""scikit-learn regressors of quantiles: exact in one process, and in parts on many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore import checks
from cacore.comm import CommLike, Communicator, collective
from cacore.data.estimators import asking
from cacore.data.rows import Rows, RowsLike
from cacore.data.validation import checked_weights, shared_seed
from cacore.errors import InputError
from cacore.probability.conformal import check_held_out, rows_aside
from cacore.svm.dual import Solution
from casvm.estimators.collective import PartsSVR
from casvm.estimators.exact_values import SearchedRegressor, Vector
from casvm.model.quantile_model import Ends, QuantileModel
from casvm.model.svr_model import SVRModel
from casvm.options import ValueMethod
from casvm.solver.problems import QuantileRegression


@dataclass(eq=False, repr=False, kw_only=True)
class PredictsQuantiles:
    """Intervals and score of the regressors of quantiles."""

    quantile: float | Sequence[float] = 0.5
    calibrate: float | None = None
    random_state: int | np.random.RandomState | None = None

    _model = QuantileModel

    def predict_interval(self: Any, X: RowsLike, coverage: float = 0.9, method: str = "quantile") -> Ends:
        """Lower and upper ends of intervals for new targets at `X`, each of shape (n_local,); with `comm`, collective.

        Conformalised quantile regression, see :meth:`casvm.model.quantile_model.QuantileModel.predict_interval`: an
        interval
        contains a new target with at least this probability, if `calibrate` held rows out, and if these and the new
        rows are exchangeable. Its two quantiles are those whose levels differ by about `coverage`. The only method is
        "quantile". An InputError is raised for a coverage that the model does not support.
        """
        if getattr(self, "comm", None) is None:
            X = self._rows(X)
            return _model(self).predict_interval(X, coverage, method)
        with asking(self, "predict_interval", coverage=coverage, method=method) as comm:
            with comm.agreed(own_rows=True):
                X = self._rows(X, int(comm.size == 1))
            return _model(self).predict_interval(X, coverage, method, comm)

    def score(self: Any, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Share of the pinball loss that the model explains: 1 - loss / that of the best constants, at most 1.

        The mean of :func:`sklearn.metrics.d2_pinball_score` over the quantiles. With `comm`, a collective call over all
        ranks' rows, which gathers t + 2 numbers per row on every rank.
        """
        # Not at the top: loading these draws from Python's global random numbers, which no fit should.
        from sklearn.metrics import d2_pinball_score

        predicted = self.predict(X)
        with collective(getattr(self, "comm", None)) as comm:
            with comm.agreed():
                columns = np.reshape(predicted, (len(predicted), -1))
                weights = (
                    np.ones(len(columns)) if sample_weight is None else checked_weights(sample_weight, len(columns))
                )
                targets = np.asarray(y, np.float64)
                if targets.shape != weights.shape:
                    raise InputError(f"y has shape {targets.shape}; {len(weights)} numbers are needed, one per row")
            table = comm.allgather(np.column_stack([targets, weights, columns]))
        scores = [
            d2_pinball_score(table[:, 0], column, sample_weight=table[:, 1], alpha=level)
            for column, level in zip(table[:, 2:].T, _model(self).levels, strict=True)
        ]
        return float(np.mean(scores))


@dataclass(eq=False, repr=False, kw_only=True)
class SMOQuantileSVR(PredictsQuantiles, SearchedRegressor):
    """Support vector quantile regression by the exact solver, in one process with all its threads.

    Parameters
    ----------
    quantile : float or sequence of float
        Level of the quantile, between 0 and 1, or several in ascending order, which are sorted in each row of a
        prediction, so that they do not cross.
    C : float, list of float or {"scale", "grid"}
        Price of an error, multiplied by the weight of the row. "scale" means the targets' standard deviation. With
        several values, or "grid" for default values, cross-validation chooses those of C and gamma with the smallest
        pinball loss, the mean over all quantiles.
    calibrate : float or None
        Share of the rows that is held out to calibrate :meth:`predict_interval`, and to shift each quantile so that the
        right share of new targets is below it. Level tau needs tau / (1 - tau) of these rows.
    random_state : int, RandomState or None
        Chooses the rows that are held out.
    tol : float, "scale" or None
        As for :class:`SMOSVR`; None means "scale".
    max_iter, max_time, kernel, gamma, degree, coef0, shrinking, cache_gib, verbose, cv
        As for :class:`SMOSVR`. The limits apply to each quantile.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    support_ : ndarray, shape (s,)
        Row indices of the support vectors of all t quantiles.
    dual_coef_ : ndarray, shape (t, s)
    intercept_ : ndarray, shape (t,)
    coef_ : ndarray or CSR, shape (t, d)
        Weights of the features; only for the linear kernel.
    objective_, gap_, n_iter_ : ndarray, shape (t,)
        Maximum of the dual objective, remaining violation, and number of pairs of rows optimised, of each quantile.
    model_ : QuantileModel
        `save` writes it, `load` reads it.
    cv_results_, best_params_, best_score_, best_index_, at_grid_end_
    support_vectors_, n_support_, fit_status_, shape_fit_, n_features_in_
        As for :class:`SMOSVR`; scores are minus the pinball loss.

    Notes
    -----
    The dual of each quantile tau is that of :class:`SMOSVR` without epsilon, and with bounds -C (1 - tau) and C tau
    (Takeuchi et al., 2006). All rows have a coefficient, unless their weight is 0. Levels are solved in ascending order
    and share kernel values; see :func:`casvm.solver.problems.solve_quantiles`.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from casvm import SMOQuantileSVR
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = SMOQuantileSVR(quantile=[0.1, 0.9], C=100, gamma=1.0).fit(X[:300], y[:300])
    >>> low, high = model.predict(X[300:]).T
    >>> bool((low <= high).all())
    True
    """

    _problem = QuantileRegression

    def predict(self, X: RowsLike) -> NDArray[np.float64]:
        """Quantiles for `X`, shape (n, d): shape (n,) for a single level, and (n, t) for a sequence of t levels.

        With a precomputed kernel, `X` has kernel values with all training rows, shape (n, n_train).
        """
        values = self._values(X)
        return _model(self).answers(values)

    def _fit(self, X: Rows, y: Vector, sample_weight: ArrayLike | None) -> Self:
        if self.calibrate is None:
            return super()._fit(X, y, sample_weight)
        share = float(checks.share(self.calibrate, "calibrate ="))
        comm, n = Communicator(), X.shape[0]
        weights = np.ones(n) if sample_weight is None else checked_weights(sample_weight, n)
        aside, _, _ = rows_aside(n, share, shared_seed(self.random_state, comm), comm)
        held = np.flatnonzero(aside & (weights > 0))
        check_held_out(self._levels, len(held))
        super()._fit(X, y, np.where(aside, 0.0, weights))
        model = _model(self)
        model.calibrate(model.parts[0].predict(X[held], model.kernel), y[held], comm)
        return self

    @property
    def _levels(self) -> tuple[float, ...]:
        levels = checks.levels(self.quantile, "quantile =")
        return levels if isinstance(levels, tuple) else (levels,)

    def _columns(self, beta: Vector) -> Vector:
        return beta

    def _modeled(self, **fields: Any) -> SVRModel:
        quantile = checks.levels(self.quantile, "quantile =")
        return QuantileModel(quantile=quantile, **fields)

    def _statistics(self, solutions: list[Solution]) -> tuple[Any, Any, Any, Any]:
        steps, objectives, gaps = (
            np.array([getattr(solution, name) for solution in solutions]) for name in ("iterations", "objective", "gap")
        )  # fmt: skip
        return steps, objectives, gaps, solutions


@dataclass(eq=False, repr=False, kw_only=True)
class CAQuantileSVR(PredictsQuantiles, PartsSVR):
    """Support vector quantile regression in parts, whose training sends nothing (as in Algorithm 5).

    Parameters
    ----------
    n_parts, partitioner, n_divisions, overlap, route, solver, metric, standardize, cache_gib, comm
        As for :class:`CASVR`.
    calibrate, quantile, C
        As for :class:`SMOQuantileSVR`; rows are held out before the parts are made.
    cv, gamma, kernel, degree, coef0, max_iter, max_time
        As for :class:`CASVR`; the search compares pinball losses.
    tol : float, "scale" or None
        As for :class:`CASVR`; None means "scale".
    random_state : int, RandomState or None
        Makes the parts, and chooses the rows that are held out.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    model_ : QuantileModel
    dual_coef_ : ndarray, shape (t, s)
        Coefficients of the support vectors of this rank's parts, for each of t quantiles.
    solver_, n_iter_, support_, sizes_, centers_, cv_results_, best_params_, best_score_, best_index_
    at_grid_end_, fit_status_, metric_, feature_importances_, metric_errors_
        As for :class:`CASVR`; iterations and objectives are sums over the quantiles.
    n_features_in_ : int

    Notes
    -----
    Each part costs what :class:`SMOQuantileSVR` does on its rows. Training sends nothing between ranks.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from casvm import CAQuantileSVR
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = CAQuantileSVR(n_parts=2, quantile=[0.1, 0.9], C=100, gamma=1.0).fit(X[:300], y[:300])
    >>> model.predict(X[300:]).shape
    (100, 2)
    """

    comm: CommLike = None

    def _trained_by(self) -> tuple[ValueMethod, dict[str, object]]:
        checks.levels(self.quantile, "quantile =")  # without one, the options would mean a regression of the mean
        return super()._trained_by()

    def predict(self, X: RowsLike) -> NDArray[np.float64]:
        """Quantiles for `X`, shape (n_local, d): shape (n_local,) for a single level, and (n_local, t) for a sequence.

        With `comm`, a collective call.
        """
        return self._answer("predict", X)


def _model(estimator: PredictsQuantiles) -> QuantileModel:
    """The fitted model."""
    model: QuantileModel = vars(estimator)["model_"]
    return model
