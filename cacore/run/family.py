"""The interface between a family of methods and the commands that all families share.

Classifiers have scores, labels and probabilities; regressors have predictions, standard deviations and intervals.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from cacore.io.table import LABELS, Targets
from cacore.progress import bar

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from cacore.comm import Communicator
    from cacore.data.dataset import Dataset
    from cacore.io.predictions import Column
    from cacore.run.launch import Predicting, Training
    from cacore.tuning import GridColumns

MethodT = TypeVar("MethodT")
OptionsT = TypeVar("OptionsT")
FitT = TypeVar("FitT")
ModelT = TypeVar("ModelT")
AnswersT = TypeVar("AnswersT")
AnyFamily: TypeAlias = "Family[Any, Any, Any, Any, Any]"
AnyAnswering: TypeAlias = "Answering[Any, Any]"


class TrainedModel(Protocol):
    """A model of any family, as the predicting command sees it."""

    @property
    def dtype(self) -> str:
        """Floating-point type of the rows."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of rows, or of support vectors, of each part."""

    @property
    def source(self) -> dict[str, Any]:
        """How the training file was read."""

    @property
    def n_features(self) -> int:
        """Number of features of the rows that it predicts."""

    def described(self) -> dict[str, object]:
        """The model's own entries of the report's params."""


class Loader(Protocol):
    """Loader of a model for the predicting command, which knows the family that predicts with it."""

    def load(self, path: Path, comm: Communicator) -> TrainedModel:
        """A saved model; collective."""

    def of(self, model: TrainedModel) -> AnyAnswering:
        """The family of a loaded model."""


class Answering(ABC, Generic[ModelT, AnswersT]):
    """Models of a family, as the predicting command sees them: how they are loaded, answer and are judged."""

    @abstractmethod
    def warm_up_prediction(self, dtype: str) -> None:
        """Compile the code that prediction uses, whatever the options of training were."""

    def load(self, path: Path, comm: Communicator) -> TrainedModel:
        """A saved model; collective."""
        raise NotImplementedError

    def of(self, model: TrainedModel) -> AnyAnswering:
        """The family of a loaded model, if one predicting command serves several families."""
        return self

    def targets(self, model: ModelT) -> tuple[Targets, tuple[int, ...]]:
        """The kind of targets that the model's answers can be compared with, and the shape of one row's target."""
        return LABELS, ()

    def check_prediction(self, model: ModelT, job: Predicting) -> None:
        """Refuse requests that this model cannot answer, before rows are read."""

    @abstractmethod
    def answers(self, model: ModelT, rows: Dataset, job: Predicting, comm: Communicator) -> AnswersT:
        """Predict this rank's rows; collective."""

    def intervals(self, rows: Dataset, answers: AnswersT, comm: Communicator) -> dict[str, object]:
        """Width and coverage of the intervals, for the report; collective."""
        return {}

    def probability(
        self, model: ModelT, rows: Dataset | None, answers: AnswersT, metrics: dict[str, Any], comm: Communicator
    ) -> dict[str, object]:
        """Origin and scores of the class probabilities, for the report; collective.

        The scores are taken from `metrics`. Without `rows` there are none.
        """
        return {}

    @abstractmethod
    def evaluate(self, model: ModelT, rows: Dataset, answers: AnswersT, comm: Communicator) -> dict[str, object]:
        """Metrics of these answers, if the rows have targets; collective."""

    @abstractmethod
    def predictions(self, model: ModelT, answers: AnswersT, decisions: bool) -> dict[str, Column]:
        """Columns of the file of predictions for this rank's rows, with decision values on request."""


class Family(Answering[ModelT, AnswersT], Generic[MethodT, OptionsT, FitT, ModelT, AnswersT]):
    """A family of methods, as its commands see it.

    Its types are the record of a method, the options of a training run, the result of training, the model, and the
    answers to a predicting command.

    Attributes
    ----------
    also : str
        End of the message that refuses ``--plot``: names what else can be drawn.
    """

    also: ClassVar[str] = ""

    def check(self, method: MethodT, job: Training, options: OptionsT, comm: Communicator) -> dict[str, Path]:
        """Refuse options that exclude each other; the files, by flag, that are written besides model and report."""
        return {}

    def warm_up(self, dtype: str, method: MethodT, options: OptionsT) -> None:
        """Compile what the method uses with these options, or load it from the cache, before several ranks need it."""
        self.warm_up_prediction(dtype)

    def kernels(self, options: Any) -> tuple[str, ...]:
        """Names of the kernels that training will use."""
        return (options.kernel,)

    def read(
        self, method: MethodT, job: Training, options: OptionsT, comm: Communicator, limit: int
    ) -> tuple[Dataset, Dataset | None]:
        """Training rows, and test rows if there are any."""
        from cacore.run import reading

        return reading.read(job, comm, limit)

    def options(self, method: MethodT, options: OptionsT, train: Dataset) -> OptionsT:
        """Options that depend on the training rows."""
        return options

    @contextmanager
    def progress(self, shown: bool) -> Iterator[dict[str, object]]:
        """Options that let training report its progress."""
        with bar(shown) as progress:
            yield {"progress": progress}

    @abstractmethod
    def tested(self, model: ModelT, test: Dataset, comm: Communicator) -> dict[str, NDArray[np.float64]]:
        """Predict this rank's test rows, by route or under one name; collective."""

    @abstractmethod
    def metrics(
        self, model: ModelT, test: Dataset, answers: dict[str, NDArray[np.float64]], comm: Communicator
    ) -> dict[str, object]:
        """Metrics of the answers that :meth:`tested` returned, or of some of their rows; collective."""

    @abstractmethod
    def report(self, method: MethodT, fitted: FitT, options: OptionsT, job: Training) -> dict[str, Any]:
        """Fields of the report that only this family has; see :func:`cacore.run.report.build`."""

    def draws(self, method: MethodT, options: Any) -> str:
        """Name of the figure that ``--plot`` draws: "metric", "reliability", "grid", or "" for none."""
        return "metric" if options.metric != "none" else ""

    def figure(self, fitted: FitT) -> Figure | None:
        """The figure of ``--plot``, for a family that draws one of its own; None for those of :meth:`draws`."""
        return None

    def columns(self, made: dict[str, Any]) -> GridColumns:
        """Names and meaning of the columns of the report's `grid`."""
        raise NotImplementedError

    def save(self, fitted: FitT, job: Training) -> None:
        """Write the family's other files, besides model and report."""

    def lines(self, report: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Lines that this family adds to the printed table, from the report."""
        yield from ()

    @abstractmethod
    def notes(self, method: MethodT, fitted: FitT, options: OptionsT) -> list[str]:
        """Notes under the printed table."""

    @abstractmethod
    def details(self, report: dict[str, Any]) -> Iterator[str]:
        """Lines that ``--verbose`` prints, from the report."""


def described_metric(form: str, fitted: Any) -> dict[str, object]:
    """Description of the learned metric for the report; empty if none was learned."""
    if form == "none":
        return {}
    from cacore.data.metric import described

    model = fitted.model
    return described(form, fitted.errors, model.standardizer, model.n_features)
