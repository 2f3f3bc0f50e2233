"""The families of all models, as one: the file says which."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import cast

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.io.model_file import family_of
from cacore.io.table import Targets
from cacore.run.classifiers import ClassAnswering
from cacore.run.family import AnyAnswering, TrainedModel
from cacore.run.job import Predicting
from cacore.run.regressors import Predicted, RegressionAnswering
from cakernels.blend import Blend, require_calibration
from cakernels.class_blend import ClassBlend

_HOMES = {
    "krr": ("cakrr.family", "Ridge"),
    "kriging": ("cakriging.family", "Kriged"),
    "svm": ("casvm.family", "SupportVectors"),
    "svr": ("casvm.family", "SupportVectors"),
    "quantiles": ("casvm.family", "SupportVectors"),
    "asygcd": ("asygcd.family", "AsyGCDFamily"),
}


def family_named(name: str) -> AnyAnswering:
    """The family of this name in model files."""
    if name in _BLENDS:
        return _BLENDS[name]()
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
            if name not in (*_HOMES, *_BLENDS):
                raise InputError(f"{path}: a model of the family {name!r}, which this version does not know")
        self._own = family_named(name)
        return self._own.load(path, comm)

    def of(self, model: TrainedModel) -> AnyAnswering:
        """The family that predicts with `model`, which has been loaded here."""
        return self._own.of(model)


class _OfMembers:
    """Base of the families of blends: the family of a loaded blend knows the families of its members."""

    def __init__(self, members: Iterable[str] = ()) -> None:
        self._members = sorted(set(members))

    def of(self, model: TrainedModel) -> AnyAnswering:
        """The family for the members of `model`."""
        assert isinstance(model, Blend)
        return cast(AnyAnswering, type(self)(one.family for one in model.members))

    def warm_up_prediction(self, dtype: str) -> None:
        """Compile the code that the members use, and no other family's."""
        for name in self._members:
            family_named(name).warm_up_prediction(dtype)


class Blends(_OfMembers, RegressionAnswering[Blend]):
    """The family of weighted means of several models of a regression."""

    def load(self, path: Path, comm: Communicator) -> Blend:
        """A saved blend; collective."""
        return Blend.load(path, comm)

    def targets(self, model: Blend) -> tuple[Targets, tuple[int, ...]]:
        """Targets to read: as many numbers as the model predicts."""
        return Targets(many=True), model.target_shape

    def check_prediction(self, model: Blend, job: Predicting) -> None:
        """Refuse what only a single model has, and intervals of a model without them."""
        for flag in ("std", "probability", "decisions", "adaptive"):
            if getattr(job, flag):
                raise InputError(f"--{flag}: a blend of several models has none; train one of them by its own command")
        if job.interval is not None:
            require_calibration(model.calibration).half_width(job.interval)

    def answers(self, model: Blend, rows: Dataset, job: Predicting, comm: Communicator) -> Predicted:
        """Predictions for this rank's rows, and their intervals if they are asked for; collective."""
        with comm.phase("predict"):
            mean = model.predict(rows.X, comm)
        if job.interval is None or model.calibration is None:
            return Predicted(mean, None, None, {})
        half, kept = model.calibration.half_width(job.interval), model.calibration
        facts = {"asked": job.interval, "adaptive": None, "rows": kept.rows, "calibration_rows": kept.n}
        return Predicted(mean, None, (mean - half, mean + half), facts)


class ClassBlends(_OfMembers, ClassAnswering[ClassBlend]):
    """The family of classifiers with calibrated probabilities, of one model or of several."""

    def load(self, path: Path, comm: Communicator) -> ClassBlend:
        """A saved blend; collective."""
        return ClassBlend.load(path, comm)


_BLENDS: dict[str, type[AnyAnswering]] = {Blend.family: Blends, ClassBlend.family: ClassBlends}
