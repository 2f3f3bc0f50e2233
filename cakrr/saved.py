"""The family of all saved models of ``cakrr.predict``: those of ridge regression, and those of kriging."""

from __future__ import annotations

from pathlib import Path

from cacore.comm import Communicator
from cacore.io.model_file import family_of
from cacore.run.family import AnyAnswering, TrainedModel
from cakrr.family import Ridge
from cakrr.kriging.family import Kriged
from cakrr.kriging.model import FAMILY, KrigingModel
from cakrr.model import KRRModel


class SavedModels(Ridge):
    """Ridge regression, which hands models of kriging to their own family.

    A class of its own, so that training commands of ridge regression do not load kriging.
    """

    def load(self, path: Path, comm: Communicator) -> TrainedModel:
        """Load a saved model, of kriging too; collective."""
        return KrigingModel.load(path, comm) if family_of(path, comm) == FAMILY else KRRModel.load(path, comm)

    def of(self, model: TrainedModel) -> AnyAnswering:
        """The family that predicts with `model`."""
        return Kriged() if isinstance(model, KrigingModel) else self
