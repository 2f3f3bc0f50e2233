"""What a family of methods says to the commands that all families share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cacore.comm import Communicator
from cacore.io.table import LABELS, Targets
from cacore.progress import bar
from cacore.run.job import Predicting, Training

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cacore.data.dataset import Dataset
    from cacore.io.predictions import Column
    from cacore.tuning.results import GridColumns


class Family(ABC):
    """A family of methods, as its commands see it.

    Attributes
    ----------
    also : str
        What else ``--plot`` can draw, at the end of a line that refuses it.
    """

    also: ClassVar[str] = ""

    def check(self, method: Any, job: Training, options: Any, comm: Communicator) -> dict[str, Path]:
        """Refuse what does not go together; the files, by their flags, that will be written beside model and report."""
        return {}

    @abstractmethod
    def warm_up(self, dtype: str, options: Any) -> None:
        """Compile what these options use, or load what was compiled, before anything is timed."""

    def kernels(self, options: Any) -> tuple[str, ...]:
        """Names of the kernels that training will use."""
        return (options.kernel,)

    @abstractmethod
    def warm_up_prediction(self, dtype: str) -> None:
        """The same for prediction alone, whatever the options were."""

    def read(
        self, method: Any, job: Training, options: Any, comm: Communicator, limit: int
    ) -> tuple[Dataset, Dataset | None]:
        """Training rows, and test rows if there are any."""
        from cacore.run import reading

        return reading.read(job, comm, limit)

    def options(self, method: Any, options: Any, train: Dataset) -> Any:
        """The options, where they depend on the training rows."""
        return options

    @contextmanager
    def progress(self, shown: bool) -> Iterator[dict[str, Any]]:
        """The options by which training tells how far it is."""
        with bar(shown) as progress:
            yield {"progress": progress}

    def load(self, path: Path, comm: Communicator) -> Any:
        """A saved model; collective."""
        raise NotImplementedError

    def of(self, model: Any) -> Family:
        """The family of a model that :meth:`load` has read, where one predicting command serves several."""
        return self

    def targets(self, model: Any) -> tuple[Targets, tuple[int, ...]]:
        """Targets that the model's answers can be compared with, and the shape of a row's."""
        return LABELS, ()

    @abstractmethod
    def tested(self, model: Any, test: Dataset, comm: Communicator) -> dict[str, NDArray[Any]]:
        """The model's answers for this rank's test rows, by routes or under one name; collective."""

    @abstractmethod
    def metrics(
        self, model: Any, test: Dataset, answers: dict[str, NDArray[Any]], comm: Communicator
    ) -> dict[str, Any]:
        """Of what :meth:`tested` returns, or of some rows of it; collective."""

    @abstractmethod
    def report(self, method: Any, fitted: Any, options: Any, job: Training) -> dict[str, Any]:
        """The family's fields of the report; see :func:`cacore.run.report.build`."""

    def draws(self, method: Any, options: Any) -> str:
        """What ``--plot`` draws: "metric", "reliability", "grid", or "" if there is nothing to draw."""
        return "metric" if options.metric != "none" else ""

    def columns(self, made: dict[str, Any]) -> GridColumns:
        """What the columns of the report's `grid` are."""
        raise NotImplementedError

    def save(self, fitted: Any, job: Training) -> None:  # noqa: B027 - most families have nothing to write
        """Write what is written beside model and report."""

    def lines(self, made: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Lines of the table that only this family has, from the report."""
        yield from ()

    @abstractmethod
    def notes(self, method: Any, fitted: Any, options: Any) -> list[str]:
        """Lines under the table."""

    @abstractmethod
    def details(self, made: dict[str, Any]) -> Iterator[str]:
        """Lines of ``--verbose``, from the report."""

    def check_prediction(self, model: Any, job: Predicting) -> None:  # noqa: B027 - most models have all that is asked
        """Refuse what this model cannot tell, before rows are read."""

    @abstractmethod
    def answers(self, model: Any, rows: Dataset, job: Predicting, comm: Communicator) -> Any:
        """The model's answers for this rank's rows; collective."""

    def intervals(self, rows: Dataset, answers: Any, comm: Communicator) -> dict[str, Any]:
        """What the report says of intervals; collective."""
        return {}

    def probability(
        self, model: Any, rows: Dataset | None, answers: Any, metrics: dict[str, Any], comm: Communicator
    ) -> dict[str, Any]:
        """What the report says of probabilities of classes, with their scores out of these metrics; collective.

        Without `rows`, of the model alone.
        """
        return {}

    @abstractmethod
    def judged(self, model: Any, rows: Dataset, answers: Any, comm: Communicator) -> dict[str, Any]:
        """Metrics of these answers, where the rows have targets; collective."""

    @abstractmethod
    def predictions(self, model: Any, answers: Any, decisions: bool) -> dict[str, Column]:
        """The columns of the file of predictions, of this rank's rows; decisions if they are asked for."""


def described_metric(form: str, fitted: Any) -> dict[str, Any]:
    """What the report says of the metric; nothing if none was learned."""
    if form == "none":
        return {}
    from cacore.data.metric import described

    model = fitted.model
    return described(form, fitted.errors, model.standardizer and model.standardizer.root, model.n_features)
