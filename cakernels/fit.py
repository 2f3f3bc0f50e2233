"""``cakernels fit DATA``: choose method, kernel, metric and parameters within a time, train, save and report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cacore import checks
from cacore.comm import Communicator
from cacore.data.rows import in_memory
from cacore.errors import InputError
from cacore.files import printing
from cacore.io.words import printable
from cacore.learn.method import flags, same_command
from cacore.learn.options import FILES, SEARCH, UNCERTAINTY, add_options, from_arguments, option, seed
from cacore.run.command import Unwritten, check_files, check_pictures, named, save_model
from cacore.run.launch import Parser, Training, compiled_ahead, may_compile, parsed, run, start
from cacore.terminal import CellLines, say, say_wrapped
from cacore.tuning import end_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cacore.data.dataset import Dataset
    from cacore.io.table import Targets
    from cacore.run.report import Report
    from cakernels.search.blending import Found
    from cakernels.search.data import Data
    from cakernels.search.race import Race
    from cakernels.search.scores import Score
    from cakernels.search.trial import Budget, Trial

PROG = "cakernels fit"
# Those of cakernels.search.scores, which --help does not load; the first of each task is its default.
METRICS = (
    "rmse", "mae", "r2", "pinball",
    "accuracy", "balanced_accuracy", "f1", "log_loss", "roc_auc", "average_precision",
)  # fmt: skip
_WITHOUT = ("libsvm", "comm_matrix", "dtype", "dry_run")  # options of a training command that this one lacks


@dataclass(frozen=True)
class Fitting(Training):
    """Options of the command."""

    within: float = option(
        600.0, "seconds for everything, or a time such as 90s, 10m or 1.5h", checks.duration, metavar="TIME"
    )
    task: str | None = option(
        None, "kind of the target (default: classification for words and for at most 20 different whole numbers)",
        checks.one_of("regression", "classification"), choices=("regression", "classification"),
    )  # fmt: skip
    metric_name: str | None = option(
        None, f"score that chooses; of numbers: {', '.join(METRICS[:4])}; of classes: {', '.join(METRICS[4:])} "
        f"(default: {METRICS[0]}, {METRICS[4]}; with --probability log_loss)", checks.one_of(*METRICS), group=SEARCH,
        choices=METRICS, metavar="METRIC",
    )  # fmt: skip
    max_candidates: int | None = option(
        None, "maximum number of candidates (default: as many as there is time for)", checks.whole(1), group=SEARCH,
        metavar="N",
    )  # fmt: skip
    probability: str | None = option(
        None, "judge candidates by their class probabilities, in this form, which held-out rows calibrate (default: "
        "sigmoid, of candidates judged by their labels)",
        checks.one_of(*checks.FORMS, "none"), group=UNCERTAINTY, choices=(*checks.FORMS, "none"), nargs="?",
        const=checks.FORMS[0],
    )  # fmt: skip
    calibrate: bool = option(
        False, "also calibrate prediction intervals, by the errors on the rows held out by the search",
        checks.yes_or_no, group=UNCERTAINTY, action="store_true",
    )  # fmt: skip
    seed: int = option(0, "seed of the samples, the candidates and their training", seed, group=SEARCH, metavar="S")
    model: Path | None = option(
        None, "save the model (default: the data file's name with the end .model.h5, in this folder)", checks.path,
        metavar="OUT.h5",
    )  # fmt: skip
    plot: Path | None = option(
        None, "plot the candidates: error against seconds", checks.path, group=FILES, metavar="FILE.png"
    )  # fmt: skip

    @property
    def of_columns(self) -> list[str]:
        """The options about the rows: arrays, and the columns of a table, as they are written."""
        return [
            *map(str, self.more),
            *self.arrays.words,
            *([] if self.target is None else ["--target", self.target]),
            *self.overrides.words,
        ]

    @property
    def saved(self) -> Path:
        """File of the model."""
        stem = self.data.name.split(".")[0] or "data"
        return self.model or Path(f"{stem}.model.h5")


def main(argv: list[str] | None = None) -> None:
    """Run the command, and end the process."""
    run(lambda comm: _fit(comm, argv), PROG, argv=argv)


def _fit(comm: Communicator, argv: list[str] | None) -> None:
    """Read, search, train, test, save and report; collective."""
    begun = time.perf_counter() - comm.seconds.get("start", 0.0)
    parser = Parser(
        prog=PROG, description="Choose a model for DATA by itself, within a time, and train it.", rank=comm.rank,
        epilog="example: cakernels fit DATA.csv --within 5m; on 4 ranks: mpiexec -n 4 python -m cakernels fit DATA.h5",
    )  # fmt: skip
    add_options(parser, (Fitting,), lambda name: name not in _WITHOUT)
    args = parsed(parser, argv, comm)
    with comm.agreed():
        job = from_arguments(Fitting, args)
    same_command(PROG, flags(job), comm, {"DATA": job.data, "--test": job.test})
    limit = start(job, comm)
    _check(job, comm)
    from cacore.data import labels
    from cacore.data.resolution import check_whole_numbers
    from cacore.io import training_rows
    from cacore.run import reading
    from cakernels.search import data, scores
    from cakernels.search.trial import Budget

    wanted = _targets(job.task)
    with may_compile(comm, not job.quiet):
        train, test = reading.read(job, comm, limit, wanted)
    notes = reading.notes(train, test, job.test or job.data)
    task = job.task or data.guessed(train.target(), comm)
    if task == data.CLASSIFICATION:
        train.y = labels.from_file(train, comm)
    else:
        with comm.agreed():
            check_whole_numbers(train.target(), f"{train.where}: the target")
        train.y = train.target().astype(np.float64, copy=False)
    with comm.agreed():
        if job.probability is not None and task != data.CLASSIFICATION:
            raise InputError("--probability: it is for classes, and the task is regression: --task, or --calibrate")
        score = scores.SCORES[job.metric_name or scores.default(task, job.probability)]
        if score.task != task:
            fitting = ", ".join(name for name, other in scores.SCORES.items() if other.task == task)
            wrong = f"it is for {score.task}, and the task is {task}"
            raise InputError(f"--metric-name {score.name}: {wrong}: choose {fitting}, or another --task")
        if job.calibrate and task != data.REGRESSION:
            raise InputError("--calibrate: it is for numbers, and the task is classification: --task, or --probability")
        if job.probability == "none" and score.of_probabilities:
            raise InputError(
                f"--probability none: --metric-name {score.name} judges probabilities; leave one of them out"
            )
    compiled_ahead(lambda: _warm_up(task), comm, not job.quiet)
    with may_compile(comm, not job.quiet):
        facts = training_rows.of(train, comm)
        rows = data.Data.of(in_memory(train.X), train.target(), train.weights, task, comm, train.columns.kinds)
        name = ", ".join(train.columns.target) or str(train.chosen.get("column", "y"))
        of_target = data.target_notes(rows, "" if job.task else name, score.name == "accuracy", comm)
        for note in of_target if comm.rank == 0 and not job.quiet else ():
            say(note, error=True)  # before the time is spent
        _Run(job, comm, train, test, [*notes, *of_target], rows, score, Budget(job.within, begun), facts).go()


def _check(job: Fitting, comm: Communicator) -> None:
    """Refuse, before anything is read, outputs that cannot be written or that would replace another file."""
    with comm.agreed():
        outputs = {"--model": job.saved, "--report": job.report, "--plot": job.plot, "--html": job.html}
        check_files(outputs, {"DATA": job.data, "--test": job.test}, comm, job.more)
        check_pictures(job.plot, job.html, comm)


def _targets(task: str | None) -> Targets:
    """Kinds of targets to read."""
    from cacore.io.table import LABELS, Targets

    remedy = "leave out --task, or choose classification"
    if task == "classification":
        return LABELS
    return Targets(many=True, labels="guess" if task is None else "", remedy=remedy)


def _warm_up(task: str) -> None:
    """Compile what the first candidates use, on several ranks; all else is compiled when it is needed."""
    from cakernels.families import family_named

    family_named("svm" if task == "classification" else "krr").warm_up_prediction("float64")


@dataclass
class _Run:
    """One run of the command, which leaves its best model so far after every improvement."""

    job: Fitting
    comm: Communicator
    train: Dataset
    test: Dataset | None
    notes: list[str]
    rows: Data
    score: Score
    budget: Budget
    training_rows: dict[str, object]
    _saved: Trial | None = None

    def go(self) -> None:
        """Search, and write the end of it; collective."""
        from cakernels.leaderboard import TrialLines
        from cakernels.search.blending import search_or_so_far, started
        from cakernels.search.trial import ended_by_sigterm

        job = self.job
        race = started(self.rows, self.score, self.budget, self.comm, self.comm.mpi, job.seed, job.max_candidates)
        race.calibrate = job.calibrate
        if self.rows.task == "classification" and job.probability != "none":
            race.probability = job.probability or checks.FORMS[0]
        race.remedy = "give more, by --within"
        race.asked = 0 if self.test is None else self.test.n
        lines = TrialLines(race, not job.quiet)

        def seen(trial: Trial) -> None:
            lines.ended(trial)
            self._save(race)

        race.seen, race.last = seen, lines.last_begins
        with ended_by_sigterm(), self.comm.phase("train"):
            result = search_or_so_far(race)
        self._write(result, last=True)

    def _save(self, race: Race) -> None:
        """Save the model if it is the best so far."""
        from cakernels.search.blending import so_far

        if race.best is not self._saved:
            self._saved = race.best
            best_so_far = so_far(race)
            if best_so_far is not None:
                self._write(best_so_far, last=False)

    def _write(self, result: Found, last: bool) -> None:
        """Write model and report; at the end also judge the test rows and show the table. Collective."""
        from cacore.run import figures, page, report

        job, model, unwritten = self.job, self._model(result), Unwritten()
        with unwritten:
            save_model(model, job.saved, self.comm)
        if not last and job.report is None and job.html is None:
            unwritten.tell()
            return
        document = self._report(result, model, last)
        document["notes"] = self._notes(result, document)

        def on_rank_0(path: Path | None, write: Callable[[Path], None]) -> None:
            with unwritten, self.comm.agreed():
                if self.comm.rank == 0 and path is not None:
                    write(path)

        on_rank_0(job.report, lambda path: report.write(path, document))
        on_rank_0(job.html, lambda path: page.write(path, {"fit": document}))
        if last:
            on_rank_0(job.plot, lambda path: figures.save(figures.race(document["grid"], document["params"]), path))
            with unwritten, self.comm.agreed():
                if self.comm.rank == 0 and not job.quiet:
                    with printing():
                        self._show(result, document)
        unwritten.tell()

    def _show(self, result: Found, document: Report) -> None:
        """Print the verdict and the notes; with ``--verbose`` also the table of candidates, parts and seconds."""
        from cacore.run import report
        from cakernels import leaderboard

        say_wrapped(*leaderboard.verdict(result, self.score, document))
        say_wrapped(*(f"note: {note}" for note in document["notes"]))
        if self.job.verbose:
            title = f"fit on {printable(document['data']['path'])}"
            report.show_rows(title, report.rows(document, self._lines(result, document)))
        else:
            say_wrapped("--verbose shows all trainings, the commands that repeat the models, and seconds by phase")

    def _model(self, result: Found) -> Any:
        """The model, which knows the columns of the training file."""
        from cakernels.leaderboard import training

        source: dict[str, object] = {"target": self.job.target, "base": self.train.base, "sparse": self.rows.sparse}
        source |= {"training": training(result, self.score, self.rows.n) | {"features": self.rows.d}}
        source |= self.training_rows | self.job.arrays.remembered
        self.train.columns.put(source)
        for estimator in result.estimators:
            estimator.model_.source |= source
        return result.model(self.comm)

    def _report(self, result: Found, model: Any, last: bool) -> Report:
        """The report; the test rows are judged at the end only. Collective."""
        from cacore.run import report
        from cakernels import leaderboard

        test = self.test if last else None
        with self.comm.phase("predict"):
            predictions = {"of": "held-out rows", **result.held_out} if result.held_out else {}
            metrics: Report = {}
            overlap: Report = {}
            if test is not None:
                metrics, overlap, predictions = self._tested(result, model, test)
            baselines = self._baselines(result, test)
        data = {
            "path": str(self.job.data), "n_train": self.rows.n, "rows_used": result.rows_used,
            "n_test": 0 if test is None else test.n, "n_features": self.rows.d,
            **named(self.train.columns, self.train.chosen), **overlap,
        }  # fmt: skip
        commands = [
            leaderboard.command(estimator, str(self.job.data), candidate.parts(self.rows.n), self.job.of_columns)
            for estimator, candidate in zip(result.estimators, result.candidates, strict=True)
        ]
        params = {
            "task": self.rows.task, "metric_name": self.score.name, "within": self.job.within, "seed": self.job.seed,
            "models": [candidate.name for candidate in result.candidates], "weights": result.weights.tolist(),
            "rows": result.rows, "commands": commands,
        }  # fmt: skip
        fields = {
            "params": params, "metrics": metrics,
            "grid": leaderboard.leaderboard(result.trials, self.score, result.chosen),
            "baselines": baselines, "at_grid_end": result.at_grid_end if any(result.at_grid_end) else None,
            "model": str(self.job.saved), "predictions": predictions,
            "held_out_score": self.score.value(result.error),
        }  # fmt: skip
        return report.build("fit", self.comm, data, model.sizes, fields)

    def _baselines(self, result: Found, test: Dataset | None) -> Report:
        """Scores of the mean target or the most frequent class, and of other models on the same rows; collective."""
        from cacore.data import labels
        from cacore.metrics import regression_metrics
        from cakernels.search.scores import Baseline

        baseline = Baseline.of(self.rows, self.comm, self.score.of_probabilities)
        scores: dict[str, Any] = {"prediction": baseline.value, "name": baseline.name}
        if result.baseline < float("inf"):
            scores[self.score.name] = self.score.value(result.baseline)
        scores |= {
            name: {self.score.name: self.score.value(error), "seconds": seconds}
            for name, (error, seconds) in result.rivals.items()
        }
        if test is not None:
            predicted = baseline.predicted(test.X.shape[0])
            if self.rows.task == "regression":
                scores["test"] = dict(regression_metrics(test.target(), predicted, self.comm))
            elif not self.score.of_probabilities:
                scores["test"] = labels.tested(self.rows.classes, test, predicted, self.comm)
            scores["test"] = self._test_score(test, predicted) | scores.get("test", {})
        return scores

    def _test_score(self, test: Dataset, predicted: NDArray[Any]) -> dict[str, float]:
        """The score that chose, of predictions for the test rows; collective.

        Nothing where it is undefined, or if their labels are words and the model's are numbers, or the other way round.
        """
        from cacore.data import labels
        from cakernels.search.data import Data

        y = test.target()
        if self.rows.task == "classification":
            y = labels.from_file(test, self.comm)
            if (self.rows.classes.dtype.kind in "biuf") != (y.dtype.kind in "biuf"):
                return {}
        rows = Data(np.zeros((len(y), 0)), y, None, self.rows.task, test.n, self.rows.classes)
        error = self.score.error(rows, np.ones(len(y), np.bool_), predicted, self.comm)
        if math.isfinite(error):
            return {self.score.name: self.score.value(error)}
        labels_there = labels.all_classes(y, self.comm) if len(self.rows.classes) else self.rows.classes
        why = f": all test rows are {labels_there[0].item()!r}" if len(labels_there) == 1 else " for the test rows"
        if (note := f"{self.score.name} is undefined{why}") not in self.notes:
            self.notes.append(note)
        return {}

    def _tested(self, result: Found, model: Any, test: Dataset) -> tuple[Report, Report, Report]:
        """Metrics of the test rows, how many of them are training rows, and predictions to show; collective."""
        from cacore.data import labels
        from cacore.metrics import predicted_and_true, regression_metrics
        from cakernels import families

        if self.rows.task == "classification":
            predicted = families.labels(model, families.outputs(model, test.X, self.comm))
            metrics = labels.tested(self.rows.classes, test, predicted, self.comm)
            if result.calibrators:
                P = model.probabilities(test.X, self.comm)
                metrics |= labels.tested_probabilities(self.rows.classes, test, P, self.comm)
                predicted = P if self.score.of_probabilities else predicted
        else:
            predicted = model.predict(test.X, self.comm)
            metrics = dict(regression_metrics(test.target(), predicted, self.comm))
        if "confusion" in metrics:
            shown = {name: metrics[name] for name in ("confusion", "classes")}
        elif self.rows.task == "regression" and predicted.ndim == 1:
            shown = predicted_and_true(test.target(), predicted, self.comm)
        else:
            shown = {}
        shown = {"of": "test rows", **shown} if shown else {}
        if predicted.ndim > 1 or not self.score.of_probabilities:
            metrics = self._test_score(test, predicted) | metrics
        if test.overlap is None:
            return metrics, {}, shown
        with self.comm.uncounted():
            count = int(self.comm.allreduce(np.array([np.count_nonzero(test.overlap)]))[0])
        return metrics, {"overlap": count}, shown

    def _lines(self, result: Found, document: Report) -> list[tuple[str, str]]:
        """Lines of the table: candidates, and the commands that train the models without a search."""
        from cacore.run.report import confusion_rows
        from cakernels import leaderboard

        commands = document["params"].pop("commands")
        for name in ("models", "weights", "rows"):
            document["params"].pop(name)
        predictions = document.get("predictions", {})
        held_out = confusion_rows(predictions) if "confusion" in predictions and not document["metrics"] else ()
        return [
            *((f"{name}, held-out rows", text) for name, text in held_out),
            ("candidates", CellLines(leaderboard.lines(document["grid"], self.score))),
            ("trained by", CellLines(commands)),
        ]

    def _notes(self, result: Found, document: Report) -> list[str]:
        """Notes under the table."""
        notes = [*self.notes, *result.notes]
        if result.trees_ahead:
            notes.insert(0, result.trees_ahead)
        for candidate, ends in zip(result.candidates, result.at_grid_end, strict=False):
            prefix = f"{candidate.name}: " if len(result.candidates) > 1 else ""
            notes += [f"{prefix}{line}" for line in end_lines(ends)]
        if not document["data"]["n_test"]:
            notes.append("no test rows: give --test, or convert the data with --split")
        return notes
