"""Results of a search: lines while it goes on, rows of a report, a table, and the command that repeats its choice."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np

from cacore.comm import Communicator
from cacore.data.validation import shared_seed
from cacore.io.words import counted, number
from cacore.learn.options import declared
from cacore.run.report import Report, scores_text, target_text
from cacore.terminal import say
from cakernels.search.candidates import ROUNDS
from cakernels.search.data import REGRESSION
from cakernels.search.rivals import NAMES
from cakernels.search.scores import Score
from cakernels.search.trial import OUT_OF_TIME, Trial, ranked

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from cacore.learn.method import Method
    from cakernels.search.blending import Found
    from cakernels.search.candidates import Candidate
    from cakernels.search.race import Race


def training(result: Found, score: Score, n: int) -> dict[str, object]:
    """The rows that trained the search's model, of `n`, and its error, for the model's file."""
    facts: dict[str, object] = {"rows": result.rows_used, "of": n}
    if math.isfinite(result.error):
        rows = f"{result.validation['rows']:,} validation rows"
        facts["error"] = {"score": f"{score.name} on {rows}", "value": score.value(result.error)}
    return facts


_SHOWN = 8  # candidates in the table


class LeaderboardRow(TypedDict):
    """A training on the leaderboard: the sample's rows, the score, if it has one, and the seconds that it took.

    It ended that many seconds after the start; `why` says why it has no score, or is not trained on more rows. Those of
    the model are `chosen`: other candidates may have the same name.
    """

    candidate: str
    rows: int
    score: float | None
    seconds: float
    ended: float
    why: str
    chosen: NotRequired[bool]


def leaderboard(trials: Sequence[Trial], score: Score, chosen: Sequence[Trial] = ()) -> list[LeaderboardRow]:
    """One dict per trial, those on most rows first, and the best of them first; the `chosen` ones are marked."""
    finished = ranked(trial for trial in trials if math.isfinite(trial.error))
    failed = (trial for trial in trials if not math.isfinite(trial.error))
    in_order = [*sorted(finished, key=lambda trial: -trial.rows), *failed]
    rows: list[LeaderboardRow] = [
        {
            "candidate": trial.candidate.name, "rows": trial.rows,
            "score": score.value(trial.error) if math.isfinite(trial.error) else None,
            "seconds": trial.seconds, "ended": trial.ended, "why": trial.why,
        }
        for trial in in_order
    ]  # fmt: skip
    for row, trial in zip(rows, in_order, strict=True):
        if any(trial is member for member in chosen):
            row["chosen"] = True
    return rows


def lines(trainings: Sequence[LeaderboardRow], score: Score) -> Iterator[str]:
    """Lines of the table: the best candidates, then how many others there are."""
    for value, row in [(line["score"], line) for line in trainings if line["score"] is not None][:_SHOWN]:
        yield f"{score.text(value):>10}  {row['rows']:>8,} rows  {row['seconds']:7.1f} s  {row['candidate']}"
    late = sum(row["why"] == OUT_OF_TIME for row in trainings)
    failed = sum(row["score"] is None for row in trainings) - late
    ends = [f", {number} {what}" for number, what in ((failed, "failed"), (late, OUT_OF_TIME)) if number]
    yield counted(len(trainings), "training") + "".join(ends)


def verdict(result: Found, score: Score, document: Report) -> Iterator[str]:
    """Lines of the terminal: the error, the models, the file and the next command, the time, and other models' errors.

    `document` is the report.
    """
    data, params, baselines = document["data"], document["params"], document["baselines"]
    spent = f"{number(document['seconds']['total'])} s used of {number(params['within'])} s given"
    target = ", ".join(data.get("columns", {}).get("target", ()))
    yield _error_line(result, score, baselines, target) or _unknown(result, spent)
    if document["metrics"]:
        yield scores_text(document["metrics"], f"{data['n_test']:,} test rows")
    if "target" in data:
        yield f"target: {target_text(data['target'])}"
    models = [f"{weight:.2f} {candidate.name}, {rows:,} rows" for weight, candidate, rows in
              zip(result.weights, result.candidates, result.rows, strict=True)]  # fmt: skip
    all_rows = f"{result.rows_used:,} of {data['n_train']:,} rows"
    if len(models) == 1:
        yield f"model: {result.candidates[0].name}, trained on {all_rows}"
    else:
        yield f"model: a blend of {len(models)}, trained on {all_rows}: {'; '.join(models)}"
    yield f"saved as {document['model']}; to predict: cakernels predict {shlex.quote(document['model'])} NEW_DATA"
    yield spent
    rivals = [f"{what} {score.text(baselines[rival][score.name])} in {number(baselines[rival]['seconds'])} s"
              for rival, what in NAMES.items() if rival in baselines]  # fmt: skip
    if rivals:
        yield f"other models on the same rows: {', '.join(rivals)}"


def _error_line(result: Found, score: Score, baselines: Report, target: str) -> str:
    """The error on held-out rows, with R^2 and that of the mean or the most frequent class; empty if unknown."""
    if not math.isfinite(result.error):
        return ""
    unit = f" of {target}" if target and score.task == REGRESSION and score.name != "r2" else ""
    text = f"{score.name.replace('_', ' ')}{unit} {score.formatted(result.error)}"
    text += f" on {result.validation['rows']:,} validation rows"
    if "r2" in result.validation and score.name != "r2":
        text += f"; R^2 {number(result.validation['r2'])}"
    return (
        f"{text}; {baselines['name']} alone: {score.text(baselines[score.name])}" if score.name in baselines else text
    )


def _unknown(result: Found, spent: str) -> str:
    """Why the error of the model is unknown, and what to do."""
    failed = sum(not math.isfinite(trial.error) for trial in result.trials)
    late = sum(trial.why == OUT_OF_TIME for trial in result.trials)
    count = f"{failed} of {counted(len(result.trials), 'training')} failed"
    if late:
        return f"error unknown: {count}, {late} {OUT_OF_TIME}; {spent}: give more time by --within"
    return f"error unknown: {count}; {spent}: {result.trials[0].why if result.trials else 'no training was tried'}"


class TrialLines:
    """Lines on standard error of rank 0: a line for each training of a race.

    Parameters
    ----------
    race : Race
    shown : bool
        False to print nothing.
    """

    def __init__(self, race: Race, shown: bool) -> None:
        self._race, self._shown = race, shown and race.comm.rank == 0

    def ended(self, trial: Trial) -> None:
        """Print the error of a training, or why it has none."""
        error = "-" if trial.why else self._race.score.formatted(trial.error)
        self._line(trial.ended, error, trial.rows, f"{trial.candidate.name}{': ' if trial.why else ''}{trial.why}")

    def last_begins(self, candidate: Candidate, rows: int) -> None:
        """Print that a last training, which may take much of the time, begins; collective."""
        self._line(self._race.budget.spent(self._race.comm), "last", rows, candidate.name)

    def _line(self, seconds: float, error: str, rows: int, name: str) -> None:
        if self._shown:
            say(f"{seconds:7.1f} s {error:>10}  {rows:>8,} rows  {name}", error=True)


def command(estimator: BaseEstimator, data: str, parts: int, columns: Sequence[str] = ()) -> str:
    """The command that trains this estimator's model on all rows of the file `data`, in so many parts.

    `columns` are the words of options about the file's columns.
    """
    method, chosen = _method(estimator)
    words = [shlex.quote(data), *map(shlex.quote, columns), *_model_words(estimator, method, chosen, parts)]
    return " ".join([f"python -m {method.prog}", *words])


def _method(estimator: BaseEstimator) -> tuple[Method, dict[str, object]]:
    """The record of the estimator's method, and options that none of its parameters sets."""
    trained_by = getattr(estimator, "_trained_by", None)
    return (estimator._method, {}) if trained_by is None else trained_by()


def _parameters(estimator: BaseEstimator, options: type, parts: int) -> dict[str, object]:
    """The estimator's parameters, with what it has chosen in place of a search for it."""
    parameters: dict[str, object] = estimator.get_params(deep=False)
    parameters |= {**({"n_parts": parts} if "n_parts" in parameters else {}), **getattr(estimator, "best_params_", {})}
    parameters["kernel"] = _kernel(estimator)
    if parameters.get("metric_init") is not None:  # it is in no file: the command learns the metric anew
        parameters |= {**dict.fromkeys(("metric_init", "sigma", "lam")), "metric_rounds": ROUNDS[estimator.metric]}
    if parameters.get("route") == "auto":
        parameters["route"] = estimator.model_.route
    # Searched anew where a metric is learned, in each of its rounds, or where few rows may have been compared in folds.
    in_folds = parameters.get("validation_fraction") == getattr(options, "validation_fraction", None)
    anew = parameters.get("metric", "none") != "none" or ("validation_fraction" in parameters and in_folds)
    for name in ("sigma", "lam"):
        if isinstance(parameters.get(name), str | list):
            chosen_value = getattr(estimator, f"{name}_")
            parameters[name] = None if anew or np.ndim(chosen_value) else chosen_value
    return parameters


def _model_words(estimator: BaseEstimator, method: Method, chosen: dict[str, object], parts: int) -> Iterator[str]:
    """Flags that set what the estimator's parameters, or the values it has chosen, set."""
    options = method.options
    parameters = _parameters(estimator, options, parts)
    for option, declaration in declared(options):
        value = parameters.get(declaration.estimator) if declaration.estimator else chosen.get(option.name)
        usual = method.defaults.get(option.name, option.default)
        left_out = value is None or value == usual or (value is False and usual is None)
        if not declaration.flag or left_out or not method.has(option.name):
            continue
        if isinstance(value, bool):
            no = declaration.flag.replace("--", "--no-", 1)
            yield declaration.flag if value else no
        else:
            yield f"{declaration.flag} {value:.6g}" if isinstance(value, float) else f"{declaration.flag} {value}"
    if hasattr(estimator, "classes_") and any(option.name == "classify" for option, _ in declared(options)):
        yield "--classify"
    if getattr(estimator, "random_state", None) is not None:
        yield f"--seed {shared_seed(estimator.random_state, Communicator())}"  # as the estimator draws it


def _kernel(estimator: BaseEstimator) -> str:
    """Name of the model's kernel."""
    model = estimator.model_
    like = getattr(model, "like", None) or model.kernel
    return str(like.kind)
