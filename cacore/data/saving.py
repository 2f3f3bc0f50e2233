"""Files of fitted estimators: `save` writes the model alone, and `load` returns a model, which predicts as they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from sklearn.utils.validation import check_is_fitted

from cacore.comm import CommLike
from cacore.data.asking import asking


class Saved:
    """Base of the estimators whose fitted model can be written to a file."""

    def save(self, path: str | Path) -> None:
        """Write the fitted model, `model_`, to one HDF5 file without pickle; with `comm`, a collective call.

        Any number of ranks can read it, and so can ``python -m PACKAGE.predict``. The file has what predictions need,
        and not the estimator's parameters: to keep those, pickle the estimator.

        Raises
        ------
        InputError, OutputError
            No file can be written at `path`, or the kernel is a callable, which a file cannot hold.
        NotFittedError
        """
        if getattr(self, "comm", None) is None:
            check_is_fitted(self, "model_")
            vars(self)["model_"].save(path)
            return
        with asking(self, "save") as comm:
            vars(self)["model_"].save(path, comm)


class Loaded(Saved):
    """Base of those whose model has their `predict`, so that it can be loaded in their place."""

    _model: ClassVar[Any]  # the model's class

    @classmethod
    def load(cls, path: str | Path, comm: CommLike = None) -> Any:
        """Read a saved model: its `predict` is that of the estimator which saved it.

        What is returned is the model, `model_`, and not an estimator, whose parameters the file does not have. With
        `comm`, a collective call on any number of ranks, whatever number trained the model.

        Raises
        ------
        InputError
            The file is missing, damaged, not a model, or one of another family.
        """
        return cls._model.load(path, comm)
