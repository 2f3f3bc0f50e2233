"""A weighted mean of several models of a regression, in one file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike, collective
from cacore.data.rows import Rows
from cacore.errors import InputError
from cacore.files import described
from cacore.io import model_file
from cacore.io.model_file import StoredParts, is_real, require
from cakrr.model import KRRModel
from casvm.model.svr import SVRModel
from partition.model import InParts

KINDS: dict[str, type[InParts]] = {kind.family: kind for kind in (KRRModel, SVRModel)}


@dataclass(kw_only=True)
class Blend:
    """Models whose weighted predictions add up; a collective object where they are.

    Attributes
    ----------
    members : list of InParts
        Models of numbers, trained on the same features.
    weights : ndarray of float64, shape (k,)
        Positive, with sum 1.
    source : dict
        How the training file was read, see :class:`partition.model.InParts`.
    comm : mpi4py communicator, Communicator or None
        The ranks that hold the members.
    """

    family: ClassVar[str] = "blend"

    members: list[Any]
    weights: NDArray[np.float64]
    source: dict[str, Any] = field(default_factory=dict)
    comm: CommLike = field(default=None, repr=False, compare=False)
    identity: str = field(default="", repr=False, compare=False)

    @property
    def dtype(self) -> str:
        """Floating-point type of the rows: the members' widest."""
        return "float64" if any(one.dtype == "float64" for one in self.members) else "float32"

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of rows of each part of all members."""
        return np.concatenate([one.sizes for one in self.members])

    @property
    def n_features(self) -> int:
        """Number of features of a row."""
        return int(self.members[0].n_features)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one row's prediction: () or (t,)."""
        return tuple(getattr(self.members[0], "target_shape", ()))

    def described(self) -> dict[str, Any]:
        """Entries of the report about the model."""
        return {"method": "blend", "models": [one.described()["method"] for one in self.members],
                "weights": self.weights.tolist()}  # fmt: skip

    def predict(self, X: Rows, comm: CommLike = None) -> NDArray[np.float64]:
        """Predictions for this rank's rows, shape (n_local, *target_shape); a collective call."""
        ranks = self.comm if comm is None else comm
        terms = [weight * one.predict(X, ranks) for weight, one in zip(self.weights, self.members, strict=True)]
        return np.asarray(sum(terms))

    def save(self, path: str | Path, comm: CommLike = None) -> None:
        """Write all members to one HDF5 file; collective."""
        contents, first = [], 0
        shared: dict[str, Rows] = {}
        parts: dict[int, dict[str, Rows]] = {}
        for number, one in enumerate(self.members):
            attributes, arrays, held = one.stored()
            contents.append({"family": one.family, "parts": len(one.owners), **attributes, "source": {}})
            shared |= {f"{number} {name}": values for name, values in arrays.items()}
            parts |= {first + part: values for part, values in held.items()}
            first += len(one.owners)
        owners = np.concatenate([one.owners for one in self.members])
        attributes = {"members": contents, "weights": self.weights.tolist(), "source": self.source}
        with collective(self.comm if comm is None else comm) as ranks:
            model_file.save(path, self.family, attributes, shared, parts, owners, ranks)

    @classmethod
    def load(cls, path: str | Path, comm: CommLike = None) -> Self:
        """Read a blend on any number of ranks; collective.

        Raises
        ------
        InputError
            The file is missing, damaged, or of another family.
        """
        with collective(comm) as ranks:
            found = model_file.load(path, {cls.family: cls._of_file}, ranks)
            found.identity = described(path) if ranks.size > 1 else ""
        found.comm = comm
        for number, one in enumerate(found.members):
            one.comm, one.identity = comm, f"{found.identity} {number}" if found.identity else ""
        return found

    @classmethod
    def _of_file(cls, attributes: dict[str, Any], shared: dict[str, Any], parts: StoredParts) -> Self:
        members, weights, first = [], attributes["weights"], 0
        for number, told in enumerate(attributes["members"]):
            family, count = told.pop("family"), told.pop("parts")
            require(family in KINDS, f"member {number} of the family {family!r}")
            here = range(first, first + count)
            held = {part - first: values for part, values in parts.held.items() if part in here}
            arrays = {name.split(" ", 1)[1]: one for name, one in shared.items() if name.startswith(f"{number} ")}
            told["source"] = dict(attributes["source"])
            members.append(KINDS[family].of_file(told, arrays, StoredParts(held, parts.owners[first : first + count])))
            first += count
        found = cls(members=members, weights=np.array(weights, np.float64), source=attributes["source"])
        found._check(weights, len(parts.owners) == first)
        return found

    def _check(self, weights: list[Any], whole: bool) -> None:
        """Refuse inconsistent contents of a file."""
        require(self.members and whole, "members and parts do not match")
        require(len(weights) == len(self.members), "members and weights do not match")
        require(all(is_real(one) and one > 0 for one in weights), f"weights {weights!r}")
        alike = {(one.n_features, tuple(getattr(one, "target_shape", ()))) for one in self.members}
        require(len(alike) == 1, "members of different features or targets")


def blended(models: list[Any], weights: NDArray[np.float64], comm: CommLike) -> Any:
    """The only model, or the blend of several."""
    if len(models) == 1:
        return models[0]
    for one in models:
        if one.family not in KINDS:
            raise InputError(f"a model of the {one.family} family cannot be blended")
    return Blend(members=models, weights=weights, source=dict(models[0].source), comm=comm)
