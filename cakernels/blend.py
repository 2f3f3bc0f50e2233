"""A weighted mean of several models of a regression, in one file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike, collective
from cacore.data.rows import AnyRows, Rows, RowsLike
from cacore.errors import InputError
from cacore.explain.explanation import Explanation, Groups
from cacore.files import described
from cacore.io import model_file
from cacore.io.model_file import StoredParts, is_real, require
from cacore.probability.conformal import Calibration
from cakrr.model import KRRModel
from casvm.model.svr import SVRModel
from partition.model import InParts


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
    calibration : Calibration or None
        Errors from which intervals are made, if the model has them.
    comm : mpi4py communicator, Communicator or None
        The ranks that hold the members.
    """

    family: ClassVar[str] = "blend"
    kinds: ClassVar[dict[str, type[InParts]]] = {kind.family: kind for kind in (KRRModel, SVRModel)}

    members: list[Any]
    weights: NDArray[np.float64]
    source: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
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

    def described(self) -> dict[str, object]:
        """Entries of the report about the model."""
        return {"method": "blend", "models": [one.described()["method"] for one in self.members],
                "weights": self.weights.tolist()}  # fmt: skip

    def predict(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Predictions for this rank's rows, shape (n_local, *target_shape); a collective call."""
        ranks = self.comm if comm is None else comm
        terms = [weight * one.predict(X, ranks) for weight, one in zip(self.weights, self.members, strict=True)]
        return np.asarray(sum(terms))

    def explain(
        self, X: RowsLike, background: RowsLike | str | None = None, groups: Groups | None = None,
        comm: CommLike = None, interactions: bool = False,
    ) -> Explanation:  # fmt: skip
        """Shapley values of each feature: the weighted mean of the members', see :meth:`InParts.explain`."""
        ranks = self.comm if comm is None else comm
        found = [one.explain(X, background, groups, ranks, interactions) for one in self.members]
        names = ("values", "base", "interactions") if found[0].interactions is not None else ("values", "base")
        sums = {
            name: sum(weight * getattr(one, name) for weight, one in zip(self.weights, found, strict=True))
            for name in names
        }
        total: Explanation = replace(found[0], **sums)
        return total

    def predict_interval(
        self, X: AnyRows, coverage: float = 0.9, comm: CommLike = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
        """Lower and upper ends of intervals for new targets at this rank's rows; a collective call.

        Raises
        ------
        InputError
            On all ranks: the model has no calibration, or one of too few rows for this coverage.
        """
        half = require_calibration(self.calibration).half_width(coverage)
        mean = self.predict(X, comm)
        return mean - half, mean + half

    def _stored(self) -> tuple[dict[str, Any], dict[str, Rows]]:
        """Attributes and arrays of the file besides those of the members."""
        if self.calibration is None:
            return {}, {}
        kept = self.calibration
        return {"calibration": {"n": kept.n, "rows": kept.rows}}, {"ranks": kept.ranks, "errors": kept.errors}

    @classmethod
    def _read(cls, attributes: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
        """Fields from what :meth:`_stored` has stored."""
        about = attributes.get("calibration")
        if about is None:
            return {}
        kept = Calibration(about["n"], about["rows"], arrays["ranks"], arrays["errors"])
        kept.check()
        return {"calibration": kept}

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
        more, own = self._stored()
        shared |= {f"blend {name}": values for name, values in own.items()}
        attributes = {"members": contents, "weights": self.weights.tolist(), "source": self.source, **more}
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
            require(family in cls.kinds, f"member {number} of the family {family!r}")
            here = range(first, first + count)
            held = {part - first: values for part, values in parts.held.items() if part in here}
            arrays = {name.split(" ", 1)[1]: one for name, one in shared.items() if name.startswith(f"{number} ")}
            told["source"] = dict(attributes["source"])
            own = StoredParts(held, parts.owners[first : first + count])
            members.append(cls.kinds[family].of_file(told, arrays, own))
            first += count
        more = {name.split(" ", 1)[1]: one for name, one in shared.items() if name.startswith("blend ")}
        known = {"weights": np.array(weights, np.float64), "source": attributes["source"]}
        found = cls(members=members, **known, **cls._read(attributes, more))
        found._check(weights, len(parts.owners) == first)
        return found

    def _check(self, weights: list[Any], whole: bool) -> None:
        """Refuse inconsistent contents of a file."""
        require(self.members and whole, "members and parts do not match")
        require(len(weights) == len(self.members), "members and weights do not match")
        require(all(is_real(one) and one > 0 for one in weights), f"weights {weights!r}")
        require(len({one.n_features for one in self.members}) == 1, "members of different features")
        self._check_targets()

    def _check_targets(self) -> None:
        """Refuse members that do not predict the same targets."""
        alike = {tuple(getattr(one, "target_shape", ())) for one in self.members}
        require(len(alike) == 1, "members of different targets")


def require_calibration(calibration: Calibration | None) -> Calibration:
    """The calibration; an InputError if the model has none."""
    if calibration is None:
        raise InputError("the model has no intervals: train it with calibrate (--calibrate)")
    return calibration


def blended(
    models: list[Any], weights: NDArray[np.float64], comm: CommLike, calibration: Calibration | None = None
) -> Any:  # fmt: skip
    """The only model of a regression, or the blend of several; with intervals if there is a calibration."""
    if len(models) == 1 and (calibration is None or models[0].family == KRRModel.family):
        if calibration is not None:
            models[0].calibration = calibration
        return models[0]
    for one in models:
        if one.family not in Blend.kinds:
            raise InputError(f"a model of the {one.family} family cannot be blended")
    return Blend(members=models, weights=weights, source=dict(models[0].source), calibration=calibration, comm=comm)
