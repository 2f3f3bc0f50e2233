"""Gradient boosted trees of other packages, with parameters and rounds that a held-out tenth of the rows chooses.

Without a time the candidates are a grid of leaves and rates. With one, they are a random search that begins with
scikit-learn's defaults and ends when the next candidate might not; the best one is trained on all rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import get_scorer, log_loss

LEAVES, RATES = (31, 63, 127), (0.05, 0.1)
ROUNDS, PATIENCE = 3000, 30
RESERVE = 0.75  # share of the time that the search may use before the last training
Settings = dict[str, Any]


@dataclass(frozen=True)
class Trees:
    """A package's trees.

    Attributes
    ----------
    early : callable
        Train on rows until others no longer gain: (X, y, X_held, y_held, settings) to the score of the held-out rows,
        more for better, and the number of rounds.
    whole : callable
        Train on all rows: (X, y, rounds, settings) to the model.
    """

    early: Callable[[Any, Any, Any, Any, Settings], tuple[float, int]]
    whole: Callable[[Any, Any, int, Settings], Any]


def hist_gradient_boosting(classes: bool, seed: int, scoring: str = "") -> Trees:
    """scikit-learn's trees, those of classes chosen by one of its scores."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    score = _scorer(scoring or "accuracy")

    def early(X: Any, y: Any, held: Any, truth: Any, settings: Settings) -> tuple[float, int]:
        model = kind(
            max_iter=ROUNDS, early_stopping=True, n_iter_no_change=PATIENCE, random_state=seed, **settings
        ).fit(X, y, X_val=held, y_val=truth)  # fmt: skip
        rounds = int(np.argmax(model.validation_score_[1:])) + 1
        return float(score(model, held, truth)) if classes else float(model.validation_score_[rounds]), rounds

    def whole(X: Any, y: Any, rounds: int, settings: Settings) -> Any:
        return kind(max_iter=rounds, early_stopping=False, random_state=seed, **settings).fit(X, y)

    return Trees(early, whole)


def lightgbm(classes: bool, seed: int, threads: int, scoring: str = "") -> Trees:
    """LightGBM's trees (4.7 or newer), chosen by one of scikit-learn's scores."""
    import lightgbm as lgb

    score = _scorer(scoring or ("accuracy" if classes else "r2"))

    kind = lgb.LGBMClassifier if classes else lgb.LGBMRegressor

    def made(rounds: int, settings: Settings) -> Any:
        return kind(
            n_estimators=rounds, num_leaves=settings["max_leaf_nodes"], learning_rate=settings["learning_rate"],
            reg_lambda=settings["l2_regularization"], colsample_bytree=settings["max_features"], n_jobs=threads,
            random_state=seed, verbosity=-1,
        )  # fmt: skip

    def early(X: Any, y: Any, held: Any, truth: Any, settings: Settings) -> tuple[float, int]:
        stop = lgb.early_stopping(PATIENCE, verbose=False)
        model = made(ROUNDS, settings).fit(X, y, eval_X=held, eval_y=truth, callbacks=[stop])
        return float(score(model, held, truth)), int(model.best_iteration_)

    def whole(X: Any, y: Any, rounds: int, settings: Settings) -> Any:
        return made(rounds, settings).fit(X, y)

    return Trees(early, whole)


def _scorer(name: str) -> Callable[[Any, Any, Any], float]:
    """scikit-learn's scorer of this name; its log loss fails if held-out rows lack a class."""
    if name != "neg_log_loss":
        scorer: Callable[[Any, Any, Any], float] = get_scorer(name)
        return scorer
    return lambda model, X, y: -float(log_loss(y, model.predict_proba(X), labels=model.classes_))


def searched(trees: Trees, X: Any, y: Any, seed: int, within: float | None = None) -> tuple[Any, Settings]:
    """The best candidate, trained on all rows, and its settings with the numbers of rounds and of candidates.

    Parameters
    ----------
    trees : Trees
    X, y : ndarray or DataFrame (n, d), and ndarray (n,)
    seed : int
        Determines the held-out rows and the candidates.
    within : float, optional
        Seconds for everything.
    """
    begun, tried, longest = time.perf_counter(), [], 0.0
    mine, held = held_out(len(X), seed)
    at = X.iloc if hasattr(X, "iloc") else X  # a DataFrame's rows
    for settings in _grid() if within is None else _drawn(seed):
        start = time.perf_counter()
        tried.append((*trees.early(at[mine], y[mine], at[held], y[held], settings), settings))
        longest = max(longest, time.perf_counter() - start)
        if within is not None and time.perf_counter() - begun + longest > RESERVE * within:
            break
    _, rounds, best = max(tried, key=lambda one: one[0])
    return trees.whole(X, y, rounds, best), {**best, "rounds": rounds, "candidates": len(tried)}


def held_out(n: int, seed: int, share: float = 0.1) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of training rows and of validation rows."""
    place = np.random.default_rng(seed + 1000).permutation(n)
    return place[round(share * n) :], place[: round(share * n)]


_DEFAULTS = {"max_leaf_nodes": 31, "learning_rate": 0.1, "l2_regularization": 0.0, "max_features": 1.0}


def _grid() -> Iterator[Settings]:
    for leaves, rate in product(LEAVES, RATES):
        yield {**_DEFAULTS, "max_leaf_nodes": leaves, "learning_rate": rate}


def _drawn(seed: int) -> Iterator[Settings]:
    """scikit-learn's defaults first, then draws around them."""
    rng = np.random.default_rng(seed)
    yield _DEFAULTS
    while True:
        yield {
            "max_leaf_nodes": int(rng.choice([15, 31, 63, 127, 255])),
            "learning_rate": float(np.exp(rng.uniform(np.log(0.02), np.log(0.3)))),
            "l2_regularization": float(rng.choice([0.0, 1e-3, 0.1, 1.0, 10.0])),
            "max_features": float(rng.choice([0.3, 0.5, 1.0])),
        }
