"""Other models on the rows that judge the candidates: a linear model, and scikit-learn's boosted trees.

Both have their default settings. They are trained on the rows of the candidates, by rank 0, before the search begins.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from threadpoolctl import threadpool_info, threadpool_limits

from cacore.data.rows import Rows, gather_rows
from cacore.machine import threads
from cakernels.search.data import REGRESSION
from cakernels.search.trial import Rival

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from cakernels.search.race import Race

Answers: TypeAlias = NDArray[np.generic] | None

LINEAR, TREES = "linear", "trees"
NAMES = {LINEAR: "a linear model", TREES: "boosted trees"}
# Reasoned, not measured: what a user would spend to know whether another model is better.
_SHARE = 0.1  # most of the time for each of them
_SHORTEST = 20.0  # seconds of a search from which on there is time for them: loading them takes one or two
_LARGEST = 1 << 28  # bytes of the rows of several ranks that each of them then holds
_MOST_FLOPS = 1e12  # of the linear model: some 10 to 60 s
# Numbers of the rows up to which trees have one thread. 100 trees of 1,000 x 9 take .12 s on one; on two, beside other
# processes on two cores, 15 s, and a search of 30 s took 90. 30 trees of 250,000 x 20: 1.7 s on one, then 40 s on two.
_ONE_THREAD = 1 << 23
_FEW_TREES, _SAMPLE = 5, 50_000  # trees and rows whose seconds say how long all of them take


@dataclass(frozen=True)
class _Rows:
    """The rows of all ranks, their targets or codes of classes, and the fold that holds each of them out, or -1.

    `classes` is the number of classes where probabilities of them are wanted, otherwise 0.
    """

    X: Rows
    y: NDArray[Any]
    weights: NDArray[np.float64] | None
    fold: NDArray[np.int64]
    regression: bool
    classes: int
    seconds: float


def rivals_of(race: Race) -> list[Rival]:
    """The other models for which there is time; collective."""
    comm, data = race.comm, race.data
    with comm.uncounted():
        remaining = race.budget.remaining()
        seconds = math.inf if remaining is None else float(comm.bcast(np.array([remaining]))[0])
        if seconds < _SHORTEST or (comm.size > 1 and 8 * data.n * data.d > _LARGEST):
            return []
        regression = data.task == REGRESSION
        y = data.y if regression else np.searchsorted(data.classes, data.y)
        weights = None if data.weights is None else comm.allgather(data.weights)
        rows = _Rows(
            gather_rows(data.X, comm), comm.allgather(np.asarray(y)), weights, comm.allgather(race.split.fold),
            regression, len(data.classes) if race.score.of_probabilities else 0, _SHARE * seconds,
        )  # fmt: skip
        first = comm.offset(data.X.shape[0])[0]
        own_rows = slice(first, first + data.X.shape[0])
        there = []
        for name, predictions in ((LINEAR, _linear), (TREES, _trees)):
            begun = time.perf_counter()
            predicted = _tried(predictions, rows) if comm.rank == 0 else None
            spent = time.perf_counter() - begun
            if comm.bcast(np.array([predicted is not None]))[0]:
                answers = comm.bcast(predicted)[own_rows]
                spent = float(comm.bcast(np.array([spent]))[0])
                there.append(Rival(name, answers if regression or rows.classes else data.classes[answers], spent))
        return there


def _tried(predictions: Callable[[_Rows], Answers], rows: _Rows) -> Answers:
    """The predictions; None if scikit-learn fails, such as for a fold with a single class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that of a penalty that is small for these rows
        try:
            return predictions(rows)
        except Exception:  # whatever another package raises: the other ranks wait, and the search goes on without it
            return None


def _linear(rows: _Rows) -> Answers:
    """Predictions of ridge regression or of a ridge classifier, with unit penalty, on standardised features.

    Where probabilities are wanted, they are those of logistic regression.
    """
    from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if rows.X.shape[0] * rows.X.shape[1] ** 2 > _MOST_FLOPS:
        return None
    linear = Ridge() if rows.regression else LogisticRegression() if rows.classes else RidgeClassifier()
    pipeline = make_pipeline(StandardScaler(with_mean=isinstance(rows.X, np.ndarray)), linear)
    return _held_out(pipeline, rows, f"{type(linear).__name__.lower()}__sample_weight")


def _trees(rows: _Rows) -> Answers:
    """Predictions of boosted trees; None if they would take too long, for several targets, and for sparse rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    if rows.y.ndim > 1 or not isinstance(rows.X, np.ndarray):
        return None
    trees = (HistGradientBoostingRegressor if rows.regression else HistGradientBoostingClassifier)(random_state=0)
    with _threads_for(rows.X.size):
        if _seconds_of_trees(trees, rows) > rows.seconds:
            return None
        return _held_out(trees, rows, "sample_weight")


def _threads_for(numbers: int) -> threadpool_limits:
    """At most this rank's threads for trees of so many numbers, and one for few: OpenMP's threads wait in loops."""
    openmp = [int(library["num_threads"]) for library in threadpool_info() if library["user_api"] == "openmp"]
    count = 1 if numbers <= _ONE_THREAD else min([threads.current(), *openmp])
    return threadpool_limits(count, user_api="openmp")


def _seconds_of_trees(trees: BaseEstimator, rows: _Rows) -> float:
    """Expected seconds of all folds, from those of few trees on a sample; 0 without a limit."""
    if math.isinf(rows.seconds):
        return 0.0
    step = -(-len(rows.y) // _SAMPLE)  # of a file that is sorted by class, too
    X, y = rows.X[::step], rows.y[::step]

    def seconds(count: int) -> float:
        begun = time.perf_counter()
        clone(trees).set_params(max_iter=count).fit(X, y)
        return time.perf_counter() - begun

    seconds(1)  # the first fit of a process starts threads
    alone = seconds(1)  # with the bins of the features
    all_trees = alone + max(seconds(1 + _FEW_TREES) - alone, 0.0) / _FEW_TREES * trees.max_iter
    return float(all_trees * len(rows.y) / len(y) * len(np.unique(rows.fold[rows.fold >= 0])))


def _held_out(model: BaseEstimator, rows: _Rows, weight: str) -> NDArray[np.generic]:
    """Predictions for the rows of each fold by the model of the others; 0 for rows that are never held out."""
    shape = (len(rows.y), rows.classes) if rows.classes else rows.y.shape
    predicted: NDArray[np.generic] = np.zeros(shape, np.float64 if rows.regression or rows.classes else np.int64)
    for fold in np.unique(rows.fold[rows.fold >= 0]):
        held = rows.fold == fold
        options = {} if rows.weights is None else {weight: rows.weights[~held]}
        fitted = model.fit(rows.X[~held], rows.y[~held], **options)
        if rows.classes:  # a fold may lack some
            predicted[np.ix_(held, fitted.classes_)] = fitted.predict_proba(rows.X[held])
        else:
            predicted[held] = fitted.predict(rows.X[held])
    return predicted
