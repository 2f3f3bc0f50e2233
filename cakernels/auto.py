"""scikit-learn estimators that choose method, kernel and parameters by themselves, within a time."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags

from cacore import checks
from cacore.checks import check_form
from cacore.comm import CommLike, Communicator, collective
from cacore.data.dataset import Dataset
from cacore.data.estimators import Labelled, Regressing, Saved, asking, same_fit
from cacore.data.rows import Rows, RowsLike, in_memory
from cacore.data.validation import check_same_names, shared_seed, validated, with_features
from cacore.errors import InputError
from cacore.explain.explanation import Explains
from cacore.machine import threads
from cacore.metrics import recalls
from cacore.svm.classifier import Probabilistic
from cakernels.families import labels, outputs, require_calibration
from cakernels.leaderboard import TrialLines, leaderboard, training
from cakernels.search.blending import Found, search_or_so_far, started
from cakernels.search.data import CLASSIFICATION, REGRESSION, Data
from cakernels.search.scores import DEFAULTS, SCORES, Score
from cakernels.search.trial import Budget

_ROWS: dict[str, Any] = {"accept_sparse": "csr", "dtype": "float64", "order": "C"}


@dataclass(eq=False, repr=False, kw_only=True)
class AutoKernel(Saved, Explains, BaseEstimator):
    """Base of the estimators that search: parameters, training and prediction."""

    max_time: float | None = field(default=600.0, kw_only=False)
    max_candidates: int | None = None
    scoring: str | None = None
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False
    comm: CommLike = None

    _task: ClassVar[str]

    def fit(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Search on `X`, shape (n_local, d), dense or CSR, and `y`, and train what was found; neither is changed.

        Ctrl-C ends the search, and the best model so far is taken; before there is one, and with `comm`, it raises
        KeyboardInterrupt. Invalid input raises an InputError, a ValueError. With `comm`, a collective call.
        """
        budget = Budget(self._limit())
        with collective(self.comm) as comm:
            same_fit(self, comm)
            threads.share_once(comm)
            X = with_features(self, X, y, sample_weight, comm)
            with comm.agreed(own_rows=True):
                train = self._checked(X, y, sample_weight, int(comm.size == 1)).weighted()
                score = SCORES[checks.one_of(*self._scores())(self.scoring or DEFAULTS[self._task], "scoring =")]
                max_candidates = (
                    None if self.max_candidates is None else checks.whole(1)(self.max_candidates, "max_candidates =")
                )
                form, intervals = self._probability_and_intervals()
                verbose = checks.yes_or_no(self.verbose, "verbose =")
                if max_candidates is None and budget.seconds is None:
                    raise InputError("max_time = None, max_candidates = None: one of them must end the search")
            check_same_names(self, comm)
            n = comm.offset(train.X.shape[0])[1]
            with comm.agreed():
                if train.weights is not None and not n:
                    raise InputError("Sample weights must contain at least one non-zero number.")
            seed = shared_seed(self.random_state, comm)
            data = Data.of(in_memory(train.X), train.target(), train.weights, self._task, comm, train.columns.kinds)
            race = started(data, score, budget, comm, self.comm, seed, max_candidates)
            race.fixed = self._shared()
            race.probability, race.calibrate = form, intervals
            lines = TrialLines(race, verbose)
            race.seen, race.last = lines.ended, lines.last_begins
            result = search_or_so_far(race)
        for estimator in result.estimators:
            train.columns.put(estimator.model_.source)
            estimator.model_.source["training"] = training(result, score, data.n) | {"features": data.d}
        self._take(result, score)
        for note in result.notes:
            warnings.warn(f"{type(self).__name__}: {note}", ConvergenceWarning, stacklevel=2)
        return self

    def _take(self, result: Found, score: Score) -> None:
        """Set the fitted attributes."""
        self.best_estimator_ = result.estimators[0]
        self.estimators_, self.weights_ = result.estimators, result.weights
        self.leaderboard_ = leaderboard(result.trials, score)
        self.best_score_, self.baseline_score_ = score.value(result.error), score.value(result.baseline)
        self.rival_scores_ = {name: score.value(error) for name, (error, _) in result.rivals.items()}
        self.n_rows_used_, self.at_grid_end_ = result.rows_used, result.at_grid_end
        self.scoring_ = score.name
        self.model_ = result.model(self.comm)
        self.model_.comm = self.comm

    def _limit(self) -> float | None:
        return None if self.max_time is None else float(checks.seconds(self.max_time, "max_time ="))

    def _scores(self) -> tuple[str, ...]:
        return tuple(name for name, score in SCORES.items() if score.task == self._task)

    def _checked(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int) -> Dataset:
        """Checked rows, targets and weights."""
        raise NotImplementedError

    def _shared(self) -> dict[str, object]:
        """Parameters that all candidates share."""
        return {}

    def _probability_and_intervals(self) -> tuple[str | None, bool]:
        """Form of the probabilities, and whether intervals are wanted."""
        return None, False

    def _rows_to_predict(self, X: RowsLike, least: int = 1) -> Rows:
        """Checked rows to predict."""
        rows: Rows = validated(self, X, reset=False, accept_sparse="csr", dtype="float64", ensure_min_samples=least)
        return rows

    def predict(self, X: RowsLike) -> NDArray[np.generic]:
        """Predictions for `X`, shape (n_local, d); with `comm`, a collective call."""
        with asking(self, "predict") as comm:
            with comm.agreed(own_rows=True):
                X = self._rows_to_predict(X, int(comm.size == 1))
            return self._predicted(X, comm)

    def _predicted(self, X: Rows, comm: Communicator) -> NDArray[np.generic]:
        """Predictions for checked rows; collective."""
        return np.asarray(self.model_.predict(X, comm))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.max_time is not None
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class AutoKernelRegressor(Regressing, AutoKernel):
    """Kernel regression that chooses method, kernel, metric, scaling and parameters within a time.

    Candidates start on a sample of the rows, and the best third of them are promoted to four times as many (successive
    halving). All are judged by the same rows, which none of them is trained on. The best are trained on all rows at the
    end; several are blended where that lowers the error by .5 % or more on rows that their weights do not know.

    Parameters
    ----------
    max_time : float or None
        Seconds for everything. None: only `max_candidates` ends the search.
    max_candidates : int or None
        Maximum number of candidates. With ``max_time=None``, the result depends on the data and `random_state` alone.
    scoring : {"rmse", "mae", "r2", "pinball"} or None
        Score that chooses, as scikit-learn defines it; "pinball" is that of the median. None means "rmse".
    random_state : int, RandomState or None
        Seed of the samples, the candidates and their training.
    verbose : bool
        Print a line on standard error for each training.
    calibrate : bool
        Keep the errors on the held-out rows for `predict_interval`; this costs no training.
    comm : mpi4py communicator or None
        With one, `fit` and `predict` take this rank's own rows and are collective calls. The same rows are held out on
        any number of ranks.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    best_estimator_ : estimator
        The fitted candidate with the largest weight.
    estimators_, weights_ : list of estimator, ndarray of float64
        All that predict, and their weights, which add up to 1.
    leaderboard_ : list of dict
        Every candidate that was tried: `candidate`, `rows`, `score` on held-out rows, `seconds`, `ended`, `why`.
    best_score_ : float
        Error of the best candidate on held-out rows, before it was trained on all rows; NaN if none could be held out.
    baseline_score_ : float
        Error of the mean target on the same rows.
    rival_scores_ : dict of str to float
        Errors on the same rows of a "linear" model and of scikit-learn's boosted "trees" with their default settings,
        of those for which a tenth of the time is enough; none in searches of less than 20 s.
    n_rows_used_ : int
        Number of rows that the model was trained on, of several models the largest. A warning names the numbers if one
        of them was not trained on all rows.
    at_grid_end_ : list of dict
        Of each of `estimators_`, chosen values that are an end of their grid of more than two, which may be too narrow.
    scoring_ : str
    model_ : KRRModel or Blend
    n_features_in_ : int

    Notes
    -----
    How many candidates are tried depends on the speed of the machine, and so may the answer. Memory: the rows twice,
    and what the candidates need; those that do not fit are left out.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from cakernels import AutoKernelRegressor
    >>> X, y = make_friedman1(200, random_state=0)
    >>> model = AutoKernelRegressor(max_time=60, max_candidates=1, random_state=0).fit(X, y)
    >>> len(model.leaderboard_), model.score(X, y) > 0.9
    (1, True)
    """

    calibrate: bool = False

    _task = REGRESSION

    def _probability_and_intervals(self) -> tuple[str | None, bool]:
        return None, bool(checks.yes_or_no(self.calibrate, "calibrate ="))

    def predict_interval(self, X: RowsLike, coverage: float = 0.9) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper ends of intervals for new targets at `X`, in the shape of a prediction; collective.

        The half width is the ceil((n + 1) coverage)-th smallest error on the n rows that judged the candidates. Needs
        `calibrate`; a coverage that takes more rows raises an InputError.
        """
        with asking(self, "predict_interval", coverage=coverage) as comm:
            with comm.agreed(own_rows=True):
                X = self._rows_to_predict(X, int(comm.size == 1))
                require_calibration(getattr(self.model_, "calibration", None))
            lower, upper = self.model_.predict_interval(X, coverage, comm=comm)
            return lower, upper

    def _checked(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int) -> Dataset:
        return self._with_targets(X, y, sample_weight, columns=True, **_ROWS, ensure_min_samples=least)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class AutoKernelClassifier(Probabilistic, Labelled, AutoKernel):
    """Kernel classifier that chooses method, kernel, metric and parameters within a time.

    The candidates are kernel SVMs and least-squares classifiers; see :class:`AutoKernelRegressor` for the search and
    the parameters.

    Parameters
    ----------
    max_time, max_candidates, random_state, verbose, comm
        See :class:`AutoKernelRegressor`.
    scoring : {"accuracy", "balanced_accuracy", "f1", "log_loss", "roc_auc", "average_precision"} or None
        Score that chooses, as scikit-learn defines it. Of two classes, the second one is the positive one; of more, the
        last two and "f1" are means over the classes. "log_loss" and the last two judge the probabilities of
        `predict_proba`. None means "accuracy".
    class_weight : dict, "balanced" or None
        Weights of the classes in the training of every candidate.
    probability : bool, {"sigmoid", "isotonic"}
        Calibrate probabilities for `predict_proba` on the held-out rows; this costs no training. True means "sigmoid".
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
    best_estimator_, estimators_, weights_, leaderboard_, best_score_, rival_scores_, n_rows_used_, at_grid_end_
    scoring_, n_features_in_
        See :class:`AutoKernelRegressor`.
    baseline_score_ : float
        Score of the most frequent class, or of the class frequencies, on the rows of `best_score_`. An accuracy near it
        says little.
    confusion_, recall_ : ndarray of int64, shape (k, k), and of float64, shape (k,)
        Held-out rows of each label by predicted label, and the share of each that was predicted right, by the best
        candidate before it was trained on all rows; 0 if no rows could be held out.
    model_ : SVMModel, KRRModel or ClassBlend
        A :class:`cakernels.families.ClassBlend` if there are several models or probabilities.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from cakernels import AutoKernelClassifier
    >>> X, y = make_moons(200, noise=0.2, random_state=0)
    >>> model = AutoKernelClassifier(max_time=60, max_candidates=1, random_state=0).fit(X, y)
    >>> len(model.leaderboard_), model.score(X, y) > 0.9
    (1, True)
    """

    probability: bool | str = True

    _task = CLASSIFICATION

    def _probability_and_intervals(self) -> tuple[str | None, bool]:
        form = check_form(self.probability, "probability =")
        if form is None and self.scoring in SCORES and SCORES[self.scoring].of_probabilities:
            raise InputError(f"probability = False: scoring = {self.scoring!r} judges probabilities")
        return form, False

    def decision_function(self, X: RowsLike) -> NDArray[np.float64]:
        """Outputs for `X`: shape (n,) for two classes, where those above 0 mean the second one, else (n, k).

        They are those of the only model, or a blend's mean probabilities (of two classes: their difference). `predict`
        returns the class with the largest one. With `comm`, a collective call.
        """
        with asking(self, "decision_function") as comm:
            with comm.agreed(own_rows=True):
                X = self._rows_to_predict(X, int(comm.size == 1))
            scores = outputs(self.model_, X, comm)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def _checked(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int) -> Dataset:
        return self._labelled(X, y, sample_weight, least, **_ROWS)

    def _shared(self) -> dict[str, object]:
        return {"class_weight": self.class_weight}

    def _predicted(self, X: Rows, comm: Communicator) -> NDArray[np.generic]:
        return labels(self.model_, outputs(self.model_, X, comm))

    def _probabilities(self, X: RowsLike) -> NDArray[np.float64]:
        with asking(self, "predict_proba") as comm:
            with comm.agreed(own_rows=True):
                X = self._rows_to_predict(X, int(comm.size == 1))
            return np.asarray(self.model_.probabilities(X, comm))

    def _take(self, result: Found, score: Score) -> None:
        super()._take(result, score)
        self.classes_ = self.model_.classes
        k = len(self.classes_)
        self.confusion_ = np.array(result.held_out.get("confusion", np.zeros((k, k))), np.int64)
        self.recall_ = np.array([np.nan if share is None else share for share in recalls(self.confusion_.tolist())])
