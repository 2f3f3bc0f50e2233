"""Results of a search: rows of a report, a table, and the command that repeats its choice."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from cacore.comm import Communicator
from cacore.data.validation import shared_seed
from cacore.io.words import counted
from cacore.learn.options import declared
from cakernels.search.data import REGRESSION
from cakernels.search.scores import Score
from cakernels.search.trial import OUT_OF_TIME, Trial, ranked

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from cacore.learn.method import Method


_SHOWN = 8  # candidates in the table


class BoardRow(TypedDict):
    """A training on the leaderboard: the sample's rows, the score, if it has one, and the seconds that it took.

    It ended that many seconds after the start; `why` says why it has no score, or is not trained on more rows.
    """

    candidate: str
    rows: int
    score: float | None
    seconds: float
    ended: float
    why: str


def leaderboard(trials: Sequence[Trial], score: Score) -> list[BoardRow]:
    """One dict per trial, those on most rows first, and the best of them first."""
    judged = ranked(one for one in trials if math.isfinite(one.error))
    failed = (one for one in trials if not math.isfinite(one.error))
    return [
        {
            "candidate": one.candidate.name, "rows": one.rows,
            "score": score.value(one.error) if math.isfinite(one.error) else None,
            "seconds": one.seconds, "ended": one.ended, "why": one.why,
        }
        for one in [*sorted(judged, key=lambda one: -one.rows), *failed]
    ]  # fmt: skip


def lines(board: Sequence[BoardRow], score: Score) -> Iterator[str]:
    """Lines of the table: the best candidates, then how many others there are."""
    for known, row in [(one["score"], one) for one in board if one["score"] is not None][:_SHOWN]:
        error = known if score.task == REGRESSION else 1.0 - known
        yield f"{score.shown(error):>10}  {row['rows']:>8,} rows  {row['seconds']:7.1f} s  {row['candidate']}"
    late = sum(row["why"] == OUT_OF_TIME for row in board)
    failed = sum(row["score"] is None for row in board) - late
    ends = [f", {number} {what}" for number, what in ((failed, "failed"), (late, OUT_OF_TIME)) if number]
    yield counted(len(board), "training") + "".join(ends)


def command(estimator: BaseEstimator, data: str, parts: int) -> str:
    """The command that trains this estimator's model on all rows of the file `data`, in so many parts."""
    method, chosen = _method(estimator)
    words = [f"python -m {method.prog}", shlex.quote(data), *_model_words(estimator, method, chosen, parts)]
    return " ".join(words)


def _method(estimator: BaseEstimator) -> tuple[Method, dict[str, object]]:
    """The record of the estimator's method, and options that none of its parameters sets."""
    own = getattr(estimator, "_trained_by", None)
    return (estimator._method, {}) if own is None else own()


def _model_words(estimator: BaseEstimator, method: Method, chosen: dict[str, object], parts: int) -> Iterator[str]:
    """Flags that set what the estimator's parameters, or the values it has chosen, set."""
    options, given = method.options, estimator.get_params(deep=False)
    given |= {**({"n_parts": parts} if "n_parts" in given else {}), **getattr(estimator, "best_params_", {})}
    given["kernel"] = _kernel(estimator)
    if given.get("route") == "auto":
        given["route"] = estimator.model_.route
    # Searched anew where a metric is learned, in each of its rounds, or where few rows may have been compared in folds.
    in_folds = given.get("validation_fraction") == getattr(options, "validation_fraction", None)
    anew = given.get("metric", "none") != "none" or ("validation_fraction" in given and in_folds)
    for name in ("sigma", "lam"):
        if isinstance(given.get(name), str | list):
            found = getattr(estimator, f"{name}_")
            given[name] = None if anew or np.ndim(found) else found
    for one, known in declared(options):
        value = given.get(known.estimator) if known.estimator else chosen.get(one.name)
        usual = method.defaults.get(one.name, one.default)
        left_out = value is None or value == usual or (value is False and usual is None)
        if not known.flag or left_out or not method.has(one.name):
            continue
        if isinstance(value, bool):
            no = known.flag.replace("--", "--no-", 1)
            yield known.flag if value else no
        else:
            yield f"{known.flag} {value:.6g}" if isinstance(value, float) else f"{known.flag} {value}"
    if hasattr(estimator, "classes_") and any(one.name == "classify" for one, _ in declared(options)):
        yield "--classify"
    if getattr(estimator, "random_state", None) is not None:
        yield f"--seed {shared_seed(estimator.random_state, Communicator())}"  # as the estimator draws it


def _kernel(estimator: BaseEstimator) -> str:
    """Name of the model's kernel."""
    model = estimator.model_
    like = getattr(model, "like", None) or model.kernel
    return str(like.kind)
