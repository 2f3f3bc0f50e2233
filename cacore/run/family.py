"""The interface between a family of methods and the commands that all families share.

An :class:`Answer` is what a model predicts for rows; it knows how it is judged and written. An :class:`Answering` is
a family as the predicting command sees it, and a :class:`Family` as the training command does, in a :class:`Run`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar

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
from cacore.kernels.evaluate import warm_up
from cacore.metrics import gaussian_scores, interval_metrics, probability_scores
from cacore.probability.calibrator import Calibrator, require_calibrator
from cacore.progress import bar
from cacore.run import reading
from cacore.run.reading import TrainedModel
from cacore.svm.options import DualOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cacore.kernels import Kernel
    from cacore.run.launch import Predicting, Training
    from cacore.run.report import Report
    from cacore.tuning import GridColumns


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


# -- answers -----------------------------------------------------------------------------------


@dataclass
class Answer(ABC):
    """A model's predictions for this rank's rows.

    Attributes
    ----------
    model : TrainedModel
    arrays : dict of str to ndarray, shape (n_local,) or (n_local, t)
        Predictions by name, such as "mean" or "scores"; "lower" and "upper" are ends of intervals, and "probabilities"
        those of the classes.
    facts : dict
        Entries of the report about the intervals.
    notes : tuple of str
        What the user should know of the answers.
    """

    model: Any
    arrays: dict[str, NDArray[np.float64]]
    facts: Report = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """The predictions for some of the rows."""
        return replace(self, arrays={name: values[rows] for name, values in self.arrays.items()})

    def joined(self, others: Sequence[Self]) -> Self:
        """These predictions, followed by those for further rows."""
        blocks = {name: [values, *(other.arrays[name] for other in others)] for name, values in self.arrays.items()}
        return replace(self, arrays={name: np.concatenate(arrays) for name, arrays in blocks.items()})

    @abstractmethod
    def metrics(self, rows: Dataset, comm: Communicator) -> Report:
        """Metrics of the predictions for rows with targets; collective."""

    @abstractmethod
    def columns(self, decisions: bool) -> dict[str, Column]:
        """Columns of the file of predictions, with decision values on request."""

    def intervals(self, rows: Dataset, comm: Communicator) -> Report:
        """Mean width and coverage of the intervals, if there are any, for the report; collective."""
        if "lower" not in self.arrays:
            return {}
        with comm.phase("predict"):
            return self.facts | interval_metrics(rows.y, self.arrays["lower"], self.arrays["upper"], comm)

    def probability(self, rows: Dataset, metrics: Report, comm: Communicator) -> Report:
        """Origin of the class probabilities, if there are any, and their scores, for the report; collective.

        The scores are taken from `metrics`. Without targets there are none.
        """
        if "probabilities" not in self.arrays:
            return {}
        origin = origin_of_probabilities(self.model) or {"form": "clipped", "left_out": 0}
        if rows.y is None:
            return origin
        lines = labels.tested_reliability(self.model.classes, rows, self.arrays["probabilities"], comm)
        return {**origin, **probability_scores(metrics), "reliability": lines}


def origin_of_probabilities(model: TrainedModel) -> Report:
    """Form of a model's calibrated probabilities, and the rows that calibrate them; empty without a calibrator."""
    calibrator = getattr(model, "calibrator", None)
    return {} if calibrator is None else {"form": calibrator.form, "left_out": calibrator.rows}


class ClassAnswer(Answer):
    """Classes of rows: "scores", and "probabilities" if they are known."""

    def metrics(self, rows: Dataset, comm: Communicator) -> Report:
        """Accuracy, balanced accuracy and the confusion matrix; of probabilities log loss and Brier score."""
        classes = self.model.classes
        metrics = labels.tested(classes, rows, self.model.labels(self.arrays["scores"]), comm)
        if "probabilities" in self.arrays:
            metrics |= labels.tested_probabilities(classes, rows, self.arrays["probabilities"], comm)
        return metrics

    def columns(self, decisions: bool) -> dict[str, Column]:
        """Column ``prediction``; on request columns of decision values, and one of probabilities per class."""
        classes, scores = self.model.classes, self.arrays["scores"]
        codes = np.searchsorted(classes, self.model.labels(scores)).astype(np.int64)
        columns: dict[str, Column] = {"prediction": Labels(classes, codes)}
        if decisions:
            heads = ["decision"] if scores.shape[1] == 1 else [f"decision {label}" for label in classes]
            columns |= zip(heads, scores.T, strict=True)
        if "probabilities" in self.arrays:
            heads = [f"probability {label}" for label in classes]
            columns |= zip(heads, self.arrays["probabilities"].T, strict=True)
        return columns


class NumberAnswer(Answer):
    """Predicted numbers: "mean"; on request "std", standard deviations of new targets, "lower" and "upper"."""

    def metrics(self, rows: Dataset, comm: Communicator) -> Report:
        """Errors; with standard deviations also scores of the predictive normal distributions."""
        mean, std = self.arrays["mean"], self.arrays.get("std")
        with comm.phase("predict"):
            y = rows.target()
            scores: Report = errors.regression_metrics(y, mean, comm)
            return scores if std is None else scores | gaussian_scores(y, mean, std, comm)

    def columns(self, decisions: bool) -> dict[str, Column]:
        """Column ``prediction``, or ``mean`` and the requested ones; one column per target if there are several."""
        mean = self.arrays["mean"]
        columns = self.arrays if len(self.arrays) > 1 else {"prediction": mean}
        if mean.ndim == 1:
            return dict(columns)
        return {f"{name} {j}": values[:, j] for name, values in columns.items() for j in range(mean.shape[1])}


# -- families ----------------------------------------------------------------------------------

MethodT = TypeVar("MethodT")
OptionsT = TypeVar("OptionsT")
FitT = TypeVar("FitT")
ModelT = TypeVar("ModelT")
LabelModelT = TypeVar("LabelModelT", bound=LabelModel)
ClassModelT = TypeVar("ClassModelT", bound=ClassModel)
AnyFamily: TypeAlias = "Family[Any, Any, Any, Any]"
AnyAnswering: TypeAlias = "Answering[Any]"
AnyRun: TypeAlias = "Run[Any, Any]"


class Answering(ABC, Generic[ModelT]):
    """Models of a family, as the predicting command sees them.

    Attributes
    ----------
    kind : type
        Class of the models.
    """

    kind: ClassVar[Any]

    def load(self, path: Path, comm: Communicator) -> tuple[Any, AnyAnswering]:
        """A saved model, and the family that predicts with it; collective."""
        return self.kind.load(path, comm), self

    @abstractmethod
    def warm_up_prediction(self, dtype: str) -> None:
        """Compile the code that prediction uses, whatever the options of training were."""

    @abstractmethod
    def targets(self, model: ModelT) -> tuple[Targets, tuple[int, ...]]:
        """The kind of targets that the model's answers can be compared with, and the shape of one row's target."""

    @abstractmethod
    def check_prediction(self, model: ModelT, job: Predicting) -> None:
        """Refuse requests that this model cannot answer, before rows are read."""

    @abstractmethod
    def answer(self, model: ModelT, rows: Dataset, job: Predicting, comm: Communicator) -> Answer:
        """Predict this rank's rows, with what the command requests; collective."""


class ClassAnswering(Answering[LabelModelT], Generic[LabelModelT]):
    """Models with classes, scores, labels and, on request, probabilities, as the predicting command sees them."""

    def targets(self, model: LabelModelT) -> tuple[Targets, tuple[int, ...]]:
        """Labels to read: words for a model of words, numbers for one of numbers."""
        return replace(LABELS.like(model.classes), remedy="the model's labels are numbers"), ()

    def check_prediction(self, model: LabelModelT, job: Predicting) -> None:
        """Refuse probabilities of a model that was not trained for them, and intervals."""
        if job.probability:
            require_calibrator(model.calibrator)
        if job.interval is not None:
            raise InputError("--interval: the model has classes, and intervals are of numbers; leave it out")

    def answer(self, model: LabelModelT, rows: Dataset, job: Predicting, comm: Communicator) -> Answer:
        """Scores of this rank's rows, and probabilities on request; collective."""
        return self._answer(model, rows, comm, job.probability)

    def _answer(self, model: LabelModelT, rows: Dataset, comm: Communicator, probability: bool) -> Answer:
        with comm.phase("predict"):
            arrays = {"scores": np.asarray(model.scores(rows.X, comm))}
            return ClassAnswer(
                model, arrays | ({"probabilities": model.probabilities(rows.X, comm)} if probability else {})
            )


@dataclass(frozen=True)
class Run(Generic[MethodT, OptionsT]):
    """A training run: the record of the method, the command's options and the method's, and the ranks.

    `limit` is the number of bytes that a rank may use.
    """

    method: MethodT
    job: Training
    options: OptionsT
    comm: Communicator
    limit: int


class Family(Answering[ModelT], Generic[MethodT, OptionsT, FitT, ModelT]):
    """A family of methods, as its training commands see it.

    Its types are the record of a method, the options of a training run, the result of training, and the model.

    Attributes
    ----------
    also : str
        End of the message that refuses ``--plot``: names what else can be drawn.
    """

    also: ClassVar[str] = ""

    @classmethod
    def of(cls, method: MethodT, options: OptionsT) -> AnyFamily:
        """The family that trains this method with these options; without either, ``cls()`` loads models."""
        return cls()

    def check(self, run: Run[MethodT, OptionsT]) -> dict[str, Path]:
        """Refuse options that exclude each other; the files, by flag, that are written besides model and report."""
        return {}

    def warm_up(self, run: Run[MethodT, Any]) -> None:
        """Compile what the run uses, or load it from the cache, before several ranks need it."""
        self.warm_up_prediction(run.job.dtype)
        warm_up((run.options.kernel,))

    def read(self, run: Run[MethodT, OptionsT]) -> tuple[Dataset, Dataset | None]:
        """Training rows, and test rows if there are any."""
        return reading.read(run.job, run.comm, run.limit)

    @contextmanager
    def progress(self, shown: bool) -> Iterator[dict[str, object]]:
        """Options that the command adds, such as those that let training report its progress."""
        with bar(shown) as progress:
            yield {"progress": progress}

    @abstractmethod
    def tested(self, model: ModelT, test: Dataset, comm: Communicator) -> Answer:
        """Predict this rank's test rows; collective."""

    @abstractmethod
    def report(self, run: Run[MethodT, OptionsT], fitted: FitT) -> Report:
        """Fields of the report that only this family has; see :func:`cacore.run.report.build`."""

    def draws(self, run: Run[MethodT, Any]) -> str:
        """Name of the figure that ``--plot`` draws: "metric", "reliability", "grid", or "" for none."""
        return "metric" if run.options.metric != "none" else ""

    def figure(self, run: Run[MethodT, OptionsT], fitted: Any, report: Report) -> Figure | str:
        """The figure that :meth:`draws` names, or the reason why there is none."""
        from cacore.run import figures

        name = self.draws(run)
        if name == "metric":
            return figures.metric(report["metric"], fitted.model.standardizer)
        if name == "reliability":
            if lines := report["probability"].get("reliability"):
                return figures.reliability(lines, report["probability"], len(fitted.model.classes))
            return "--plot: there are no test rows, so there is no calibration curve to draw"
        if report["grid"]:
            return figures.heat_map(report["grid"], self.columns(report))
        return "--plot: no settings were compared, so there is nothing to draw"

    def columns(self, report: Report) -> GridColumns:
        """Names and meaning of the columns of the report's `grid`."""
        raise NotImplementedError

    def save(self, run: Run[MethodT, OptionsT], fitted: FitT) -> None:
        """Write the family's other files, besides model and report."""

    def lines(self, report: Report) -> Iterator[tuple[str, str]]:
        """Lines that this family adds to the printed table, from the report."""
        yield from ()

    @abstractmethod
    def notes(self, run: Run[MethodT, OptionsT], fitted: FitT) -> list[str]:
        """Notes under the printed table."""

    @abstractmethod
    def details(self, report: Report) -> Iterator[str]:
        """Lines that ``--verbose`` prints, from the report."""


class Classifiers(
    ClassAnswering[ClassModelT], Family[MethodT, OptionsT, FitT, ClassModelT],
    Generic[MethodT, OptionsT, FitT, ClassModelT],
):  # fmt: skip
    """Base of the families whose models have classes, scores, labels and, on request, probabilities."""

    def read(self, run: Run[MethodT, OptionsT]) -> tuple[Dataset, Dataset | None]:
        """Training rows with their labels, and test rows if there are any."""
        train, test = super().read(run)
        train.y = labels.from_file(train, run.comm)
        return train, test

    def tested(self, model: ClassModelT, test: Dataset, comm: Communicator) -> Answer:
        """Scores of this rank's test rows, and probabilities if the model has them; collective."""
        return self._answer(model, test, comm, model.calibrator is not None)

    def params(self, model: ClassModelT, options: DualOptions) -> Report:
        """C, the kernel and its parameters, for the report."""
        kernel = model.kernel
        assert kernel is not None
        described: Report = {"C": model.C, "kernel": kernel.kind}
        described |= {name: getattr(kernel, name) for name in kernel.declared.parameters}
        return {**described, "balanced": options.class_weight == "balanced", "dtype": model.dtype}


def described_metric(form: str, fitted: Any) -> dict[str, object]:
    """Description of the learned metric for the report; empty if none was learned."""
    if form == "none":
        return {}
    from cacore.data.metric import described

    model = fitted.model
    return described(form, fitted.errors, model.standardizer, model.n_features)
