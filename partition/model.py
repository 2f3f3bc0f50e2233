"""What every model in parts shares: the ranks that hold its parts, rows as it takes them, its file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator, collective
from cacore.data.rows import Rows, check_alike
from cacore.data.standardize import Standardizer
from cacore.data.validation import rows_to_predict
from cacore.errors import InputError
from cacore.io import model_file
from partition.routing import Soft, closest


@dataclass(kw_only=True)
class InParts:
    """A model of P parts, of which this rank holds some: the base of the families' models.

    Attributes
    ----------
    method : str
    route : {"nearest", "soft", "all", "sum", "oracle"}
        The model of the nearest centre answers; the weighted mean of those of the nearest centres; or the mean of all
        P models, which is right for random parts, whose centres say little. "sum": the parts are pieces of one model.
        "oracle": the best model, chosen with the true answer.
    centers : ndarray, shape (P, d)
        In standardised features; (0, d) for pieces.
    sizes : ndarray of int64, shape (P,)
    owners : ndarray of int64, shape (P,)
        Rank of each part.
    standardizer : Standardizer or None
    dtype : str
        Of the rows.
    soft : Soft or None
        Of the route "soft".
    parts : dict of int to the family's model of a part
        This rank's.
    source : dict
        How the training file was read: its target column, the number of its first feature.
    comm : Communicator or None
        The ranks that hold the parts; not part of a copy or a pickle.
    """

    family: ClassVar[str]  # in the file

    method: str
    route: str
    centers: NDArray[np.float64]
    sizes: NDArray[np.int64]
    owners: NDArray[np.int64]
    standardizer: Standardizer | None
    dtype: str
    soft: Soft | None = None
    parts: dict[int, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    comm: Any = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "comm": None}

    @property
    def n_features(self) -> int:
        """Of a row."""
        return int(self.centers.shape[1])

    def save(self, path: str | Path, comm: Any = None) -> None:
        """Write the model to one HDF5 file; collective, by default on the ranks that trained or loaded it."""
        attributes = {name: getattr(self, name) for name in ("method", "route", "dtype", "source")}
        attributes["soft"] = None if self.soft is None else asdict(self.soft)
        more, arrays = self._stored()
        shared: dict[str, Rows] = {"centers": self.centers, "sizes": self.sizes, **arrays}
        if self.standardizer is not None:
            shared.update(asdict(self.standardizer))
        parts = {number: vars(part) for number, part in self.parts.items()}
        with self._ranks(comm) as ranks:
            with ranks.agreed():
                self._check_ranks(ranks)
            model_file.save(path, self.family, attributes | more, shared, parts, self.owners, ranks)

    @classmethod
    def load(cls, path: str | Path, comm: Any = None) -> Self:
        """Read a model on any number of ranks; collective.

        Raises
        ------
        InputError
            The file is missing, damaged, not a model, or one of another family.
        """
        with collective(comm) as ranks:
            model = model_file.load(path, cls.family, ranks, cls._made)
        model.comm = comm
        return model

    def _stored(self) -> tuple[dict[str, Any], dict[str, Rows]]:
        """What the file holds for the family: attributes, arrays that all ranks have."""
        raise NotImplementedError

    @classmethod
    def _made(cls, attributes: dict[str, Any], shared: dict[str, Any], parts: model_file.Parts) -> Self:
        """The model of what its file holds; takes out of `attributes` and `shared` what is the family's own."""
        soft = attributes.pop("soft")
        return cls(
            **attributes, centers=shared["centers"], sizes=shared["sizes"], owners=parts.owners, parts=parts.held,
            standardizer=Standardizer.stored(shared), soft=None if soft is None else Soft(**soft),
        )  # fmt: skip

    def _weighted(
        self, Z: Rows, answers: Callable[[Rows, NDArray[np.int32]], NDArray[Any]]
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """What the models of the nearest centres say of each row, nearest first, and their weights.

        Shapes (n, k, ...) and (n, k); ``answers(rows, labels)`` asks the model of part ``labels[i]`` about row i.
        """
        assert self.soft is not None
        labels, squares = closest(Z, self.centers, min(self.soft.k, len(self.centers)))
        n, k = labels.shape
        values = answers(Z[np.arange(n).repeat(k)], labels.ravel())
        return values.reshape(n, k, *values.shape[1:]), self.soft.weights(squares)

    def _ranks(self, comm: Any) -> AbstractContextManager[Communicator]:
        """The ranks that are given, or those that trained or loaded the model."""
        return collective(self.comm if comm is None else comm)

    def _check_ranks(self, comm: Communicator) -> None:
        if comm.size <= int(self.owners.max()) or len(self.parts) != np.count_nonzero(self.owners == comm.rank):
            raise InputError("the model lies on other ranks than these: save it, and load it on the ranks that use it")

    def _received(self, X: Any, comm: Communicator) -> Rows:
        """This rank's rows, checked on all ranks alike, and standardised."""
        with comm.agreed():
            X = rows_to_predict(X, self.dtype, self.centers.shape[1])
            self._check_ranks(comm)
        check_alike(X, comm)
        return X if self.standardizer is None else self.standardizer.apply(X)
