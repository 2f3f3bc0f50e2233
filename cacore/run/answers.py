"""Answers of models to the commands: classes with their probabilities, and predicted numbers with their intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore import metrics as errors
from cacore.comm import CommLike, Communicator
from cacore.data import labels
from cacore.data.dataset import Dataset
from cacore.data.rows import AnyRows
from cacore.errors import InputError
from cacore.io.predictions import Column, Labels
from cacore.io.table import LABELS, Targets
from cacore.metrics import gaussian_scores, interval_metrics, probability_scores
from cacore.probability.calibrator import Calibrator, require_calibrator
from cacore.run.family import Answering, Family, FitT, MethodT, ModelT, OptionsT, TrainedModel
from cacore.run.launch import Predicting
from cacore.svm.options import DualOptions

if TYPE_CHECKING:
    from cacore.kernels import Kernel


Answers = dict[str, NDArray[np.float64]]  # "scores", and "probabilities" where there are some


class LabelModel(TrainedModel, Protocol):
    """A model with classes, scores, labels and, if it has a calibrator, probabilities."""

    classes: NDArray[Any]

    @property
    def calibrator(self) -> Calibrator | None:
        """Turns scores into probabilities."""

    def scores(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """One score per class; a single column for two classes."""

    def labels(self, scores: NDArray[np.float64]) -> NDArray[Any]:
        """Labels of rows with these scores."""

    def probabilities(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """One probability per class."""


class ClassModel(LabelModel, Protocol):
    """Such a model that is a kernel machine."""

    C: float

    @property
    def kernel(self) -> Kernel | None:
        """The kernel; None if rows are kernel values."""


LabelModelT = TypeVar("LabelModelT", bound=LabelModel)
ClassModelT = TypeVar("ClassModelT", bound=ClassModel)


class ClassAnswering(Answering[LabelModelT, Answers], Generic[LabelModelT]):
    """Models with classes, scores, labels and, on request, probabilities, as the predicting command sees them."""

    def targets(self, model: LabelModelT) -> tuple[Targets, tuple[int, ...]]:
        """Labels to read: words for a model of words, numbers for one of numbers."""
        return replace(LABELS.like(model.classes), remedy="the model's labels are numbers"), ()

    def check_prediction(self, model: LabelModelT, job: Predicting) -> None:
        """Refuse probabilities of a model that was not trained for them."""
        if job.probability:
            require_calibrator(model.calibrator)
        if job.interval is not None:
            raise InputError("--interval: the model has classes, and intervals are of numbers; leave it out")

    def answers(self, model: LabelModelT, rows: Dataset, job: Predicting, comm: Communicator) -> Answers:
        """Scores of this rank's rows, and probabilities if they are asked for; collective."""
        return self._answers(model, rows, comm, job.probability)

    def _answers(self, model: LabelModelT, rows: Dataset, comm: Communicator, sure: bool) -> Answers:
        with comm.phase("predict"):
            answers = {"scores": np.asarray(model.scores(rows.X, comm))}
            return answers | ({"probabilities": model.probabilities(rows.X, comm)} if sure else {})

    def evaluate(self, model: LabelModelT, rows: Dataset, answers: Answers, comm: Communicator) -> dict[str, object]:
        """Metrics of these answers; collective."""
        metrics = labels.tested(model.classes, rows, model.labels(answers["scores"]), comm)
        if "probabilities" in answers:
            metrics |= labels.tested_probabilities(model.classes, rows, answers["probabilities"], comm)
        return metrics

    def probability(
        self, model: LabelModelT, rows: Dataset | None, answers: Answers, metrics: dict[str, Any], comm: Communicator
    ) -> dict[str, object]:
        """Form of the calibration, and scores of the probabilities if the rows have labels; collective."""
        if model.calibrator is None or (rows is not None and "probabilities" not in answers):
            return {}
        entry = {"form": model.calibrator.form, "left_out": model.calibrator.rows}
        if rows is None or rows.y is None:
            return entry
        lines = labels.tested_reliability(model.classes, rows, answers["probabilities"], comm)
        return {**entry, **probability_scores(metrics), "reliability": lines}

    def predictions(self, model: LabelModelT, answers: Answers, decisions: bool) -> dict[str, Column]:
        """Column ``prediction``; on request columns of decision values, and one of probabilities per class."""
        scores = answers["scores"]
        names = [str(label) for label in model.classes]
        codes = np.searchsorted(model.classes, model.labels(scores)).astype(np.int64)
        columns: dict[str, Column] = {"prediction": Labels(model.classes, codes)}
        if decisions:
            heads = ["decision"] if scores.shape[1] == 1 else [f"decision {name}" for name in names]
            columns |= dict(zip(heads, scores.T, strict=True))
        if "probabilities" in answers:
            columns |= {f"probability {name}": p for name, p in zip(names, answers["probabilities"].T, strict=True)}
        return columns


class Classifiers(
    ClassAnswering[ClassModelT], Family[MethodT, OptionsT, FitT, ClassModelT, Answers],
    Generic[MethodT, OptionsT, FitT, ClassModelT],
):  # fmt: skip
    """Base of the families whose models have classes, scores, labels and, on request, probabilities."""

    def tested(self, model: ClassModelT, test: Dataset, comm: Communicator) -> Answers:
        """Scores of this rank's test rows, and probabilities if the model has them; collective."""
        return self._answers(model, test, comm, model.calibrator is not None)

    def metrics(self, model: ClassModelT, test: Dataset, answers: Answers, comm: Communicator) -> dict[str, object]:
        """Accuracy, balanced accuracy and the confusion matrix, log loss and Brier score; collective."""
        return self.evaluate(model, test, answers, comm)

    def params(self, model: ClassModelT, options: DualOptions) -> dict[str, Any]:
        """C, the kernel and its parameters, for the report."""
        kernel = model.kernel
        assert kernel is not None
        described: dict[str, Any] = {"C": model.C, "kernel": kernel.kind}
        described |= {name: getattr(kernel, name) for name in kernel.declared.parameters}
        return {**described, "balanced": options.class_weight == "balanced", "dtype": model.dtype}


@dataclass
class Predicted:
    """Predictions for this rank's rows and their uncertainty, all of shape (n_local,) or (n_local, t).

    Attributes
    ----------
    mean : ndarray
    std : ndarray or None
        Standard deviations of new targets.
    ends : tuple of two ndarrays, or None
        Lower and upper ends of intervals.
    facts : dict
        Entries of the report about the intervals.
    probabilities : ndarray, shape (n_local, k), or None
        Probabilities of a classifier's classes.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64] | None
    ends: tuple[NDArray[np.float64], NDArray[np.float64]] | None
    facts: dict[str, Any]
    probabilities: NDArray[np.float64] | None = None

    @property
    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Columns of the file, by name."""
        if self.std is None and self.ends is None:
            return {"prediction": self.mean}
        columns = {"mean": self.mean}
        if self.std is not None:
            columns["std"] = self.std
        if self.ends is not None:
            columns["lower"], columns["upper"] = self.ends
        return columns

    def by_target(self) -> dict[str, NDArray[np.float64]]:
        """Columns of the file, by name; one per target if there are several."""
        if self.mean.ndim == 1:
            return self.columns
        return {f"{name} {j}": values[:, j] for name, values in self.columns.items() for j in range(values.shape[1])}

    def metrics(self, y: NDArray[np.floating], comm: Communicator) -> dict[str, object]:
        """Errors; with standard deviations also scores of the predictive normal distributions; collective."""
        scores: dict[str, Any] = errors.regression_metrics(y, self.mean, comm)
        return scores if self.std is None else scores | gaussian_scores(y, self.mean, self.std, comm)

    def intervals(self, y: NDArray[np.floating] | None, comm: Communicator) -> dict[str, object]:
        """Entries of the report about the intervals, if there are any; collective."""
        return {} if self.ends is None else self.facts | interval_metrics(y, *self.ends, comm)


class RegressionAnswering(Answering[ModelT, Predicted], Generic[ModelT]):
    """Models that predict numbers with their uncertainty, as the predicting command sees them."""

    def evaluate(self, model: ModelT, rows: Dataset, answers: Predicted, comm: Communicator) -> dict[str, object]:
        """Errors of the predictions; collective."""
        with comm.phase("predict"):
            return answers.metrics(rows.target(), comm)

    def intervals(self, rows: Dataset, answers: Predicted, comm: Communicator) -> dict[str, object]:
        """Mean width and coverage of the intervals; collective."""
        with comm.phase("predict"):
            return answers.intervals(rows.y, comm)

    def predictions(self, model: ModelT, answers: Predicted, decisions: bool) -> dict[str, Column]:
        """Column ``prediction``, or ``mean`` and the requested ones; one column per target if there are several."""
        return dict(answers.by_target())
