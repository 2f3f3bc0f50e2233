"""The families of all models, as one: the file says which."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.io.model_file import family_of
from cacore.io.predictions import Column
from cacore.io.table import Targets
from cacore.metrics.errors import regression_metrics
from cacore.run.family import Answering, AnyAnswering, TrainedModel
from cacore.run.job import Predicting
from cakernels.blend import Blend

_HOMES = {
    "krr": ("cakrr.family", "Ridge"),
    "svm": ("casvm.family", "SupportVectors"),
    "svr": ("casvm.family", "SupportVectors"),
    "asygcd": ("asygcd.family", "AsyGCDFamily"),
}


def family_named(name: str) -> AnyAnswering:
    """The family of this name in model files."""
    if name == Blend.family:
        return Blends()
    module, kind = _HOMES[name]
    found: AnyAnswering = getattr(import_module(module), kind)()
    return found


class AllModels:
    """The family of whatever model a file holds: :meth:`of` gives its own family once it is loaded."""

    _own: AnyAnswering

    def load(self, path: Path, comm: Communicator) -> TrainedModel:
        """A saved model of any family; collective."""
        name = family_of(path, comm)
        with comm.agreed():
            if name not in (*_HOMES, Blend.family):
                raise InputError(f"{path}: a model of the family {name!r}, which this version does not know")
        self._own = family_named(name)
        return self._own.load(path, comm)

    def of(self, model: TrainedModel) -> AnyAnswering:
        """The family that predicts with `model`, which has been loaded here."""
        return self._own.of(model)


class Blends(Answering[Blend, NDArray[np.float64]]):
    """The family of weighted means of several models of a regression."""

    def load(self, path: Path, comm: Communicator) -> Blend:
        """A saved blend; collective."""
        return Blend.load(path, comm)

    def warm_up_prediction(self, dtype: str) -> None:
        """Compile the code that its members may need."""
        for name in ("krr", "svr"):
            family_named(name).warm_up_prediction(dtype)

    def targets(self, model: Blend) -> tuple[Targets, tuple[int, ...]]:
        """Targets to read: as many numbers as the model predicts."""
        return Targets(many=True), model.target_shape

    def check_prediction(self, model: Blend, job: Predicting) -> None:
        """Refuse what only a single model has."""
        for flag in ("std", "interval", "probability", "decisions"):
            if getattr(job, flag):
                raise InputError(f"--{flag}: a blend of several models has none; train one of them by its own command")

    def answers(self, model: Blend, rows: Dataset, job: Predicting, comm: Communicator) -> NDArray[np.float64]:
        """Predictions for this rank's rows; collective."""
        with comm.phase("predict"):
            return model.predict(rows.X, comm)

    def judged(
        self, model: Blend, rows: Dataset, answers: NDArray[np.float64], comm: Communicator
    ) -> dict[str, Any]:  # fmt: skip
        """Errors of the predictions; collective."""
        with comm.phase("predict"):
            return dict(regression_metrics(rows.target(), answers, comm))

    def predictions(self, model: Blend, answers: NDArray[np.float64], decisions: bool) -> dict[str, Column]:
        """Column ``prediction``, or one per target."""
        if answers.ndim == 1:
            return {"prediction": answers}
        return {f"prediction {j}": answers[:, j] for j in range(answers.shape[1])}
