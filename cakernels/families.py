"""The families of all models, told apart by their files, and blends: weighted means of several models in one file.

A blend of a regression is a weighted mean of predictions; one of classifiers, of probabilities that add up to 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike, Communicator, collective
from cacore.data.dataset import Dataset
from cacore.data.labels import check_classes, read_classes, stored_classes
from cacore.data.rows import AnyRows, Rows, RowsLike
from cacore.errors import InputError
from cacore.explain.explanation import Explanation, Groups
from cacore.files import described
from cacore.io import model_file
from cacore.io.model_file import StoredParts, family_of, is_real, require
from cacore.io.table import Targets
from cacore.probability.calibrator import Calibrator
from cacore.probability.conformal import Calibration
from cacore.run.family import Answer, Answering, AnyAnswering, ClassAnswering, NumberAnswer
from cacore.run.launch import Predicting
from cakrr.ridge_model import KRRModel
from casvm.model.svm_model import SVMModel
from casvm.model.svr_model import SVRModel
from partition.parts_model import InParts


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
        How the training file was read, see :class:`partition.parts_model.InParts`.
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
        return "float64" if any(member.dtype == "float64" for member in self.members) else "float32"

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of rows of each part of all members."""
        return np.concatenate([member.sizes for member in self.members])

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
        return {"method": "blend", "models": [member.described()["method"] for member in self.members],
                "weights": self.weights.tolist()}  # fmt: skip

    def predict(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Predictions for this rank's rows, shape (n_local, *target_shape); a collective call."""
        ranks = self.comm if comm is None else comm
        terms = [weight * member.predict(X, ranks) for weight, member in zip(self.weights, self.members, strict=True)]
        return np.asarray(sum(terms))

    def explain(
        self, X: RowsLike, background: RowsLike | str | None = None, groups: Groups | None = None,
        comm: CommLike = None, interactions: bool = False,
    ) -> Explanation:  # fmt: skip
        """Shapley values of each feature: the weighted mean of the members', see :meth:`InParts.explain`."""
        ranks = self.comm if comm is None else comm
        explanations = [member.explain(X, background, groups, ranks, interactions) for member in self.members]
        names = ("values", "base", "interactions") if explanations[0].interactions is not None else ("values", "base")
        sums = {
            name: sum(
                weight * getattr(explanation, name)
                for weight, explanation in zip(self.weights, explanations, strict=True)
            )
            for name in names
        }
        total: Explanation = replace(explanations[0], **sums)
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
        calibration = self.calibration
        attributes = {"calibration": {"n": calibration.n, "rows": calibration.rows}}
        return attributes, {"ranks": calibration.ranks, "errors": calibration.errors}

    @classmethod
    def _read(cls, attributes: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
        """Fields from what :meth:`_stored` has stored."""
        about = attributes.get("calibration")
        if about is None:
            return {}
        calibration = Calibration(about["n"], about["rows"], arrays["ranks"], arrays["errors"])
        calibration.check()
        return {"calibration": calibration}

    def save(self, path: str | Path, comm: CommLike = None) -> None:
        """Write all members to one HDF5 file; collective."""
        contents, first = [], 0
        shared: dict[str, Rows] = {}
        parts: dict[int, dict[str, Rows]] = {}
        for number, member in enumerate(self.members):
            attributes, arrays, held = member.stored()
            contents.append({"family": member.family, "parts": len(member.owners), **attributes, "source": {}})
            shared |= {f"{number} {name}": values for name, values in arrays.items()}
            parts |= {first + part: values for part, values in held.items()}
            first += len(member.owners)
        owners = np.concatenate([member.owners for member in self.members])
        extra, extra_arrays = self._stored()
        shared |= {f"blend {name}": values for name, values in extra_arrays.items()}
        attributes = {"members": contents, "weights": self.weights.tolist(), "source": self.source, **extra}
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
            blend = model_file.load(path, {cls.family: cls._of_file}, ranks)
            blend.identity = described(path) if ranks.size > 1 else ""
        blend.comm = comm
        for number, member in enumerate(blend.members):
            member.comm, member.identity = comm, f"{blend.identity} {number}" if blend.identity else ""
        return blend

    @classmethod
    def _of_file(cls, attributes: dict[str, Any], shared: dict[str, Any], parts: StoredParts) -> Self:
        members, weights, first = [], attributes["weights"], 0
        for number, member_attributes in enumerate(attributes["members"]):
            family, count = member_attributes.pop("family"), member_attributes.pop("parts")
            require(family in cls.kinds, f"member {number} of the family {family!r}")
            here = range(first, first + count)
            held = {part - first: values for part, values in parts.held.items() if part in here}
            arrays = {name.split(" ", 1)[1]: array for name, array in shared.items() if name.startswith(f"{number} ")}
            member_attributes["source"] = dict(attributes["source"])
            member_parts = StoredParts(held, parts.owners[first : first + count])
            members.append(cls.kinds[family].of_file(member_attributes, arrays, member_parts))
            first += count
        blend_arrays = {name.split(" ", 1)[1]: array for name, array in shared.items() if name.startswith("blend ")}
        blend_fields = {"weights": np.array(weights, np.float64), "source": attributes["source"]}
        blend = cls(members=members, **blend_fields, **cls._read(attributes, blend_arrays))
        blend._check(weights, len(parts.owners) == first)
        return blend

    def _check(self, weights: list[Any], whole: bool) -> None:
        """Refuse inconsistent contents of a file."""
        require(self.members and whole, "members and parts do not match")
        require(len(weights) == len(self.members), "members and weights do not match")
        require(all(is_real(weight) and weight > 0 for weight in weights), f"weights {weights!r}")
        require(len({member.n_features for member in self.members}) == 1, "members of different features")
        self._check_targets()

    def _check_targets(self) -> None:
        """Refuse members that do not predict the same targets."""
        alike = {tuple(getattr(member, "target_shape", ())) for member in self.members}
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
    for candidate in models:
        if candidate.family not in Blend.kinds:
            raise InputError(f"a model of the {candidate.family} family cannot be blended")
    return Blend(members=models, weights=weights, source=dict(models[0].source), calibration=calibration, comm=comm)


def outputs(model: Any, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
    """Outputs of a classifier for its classes, shape (n_local, k), or (n_local, 1) for two; a collective call.

    The largest output wins; of two classes, a positive output means the second.
    """
    scores = model.predict(X, comm) if model.family == KRRModel.family else model.scores(X, comm)
    scores = np.asarray(scores, np.float64)
    return scores[:, None] if scores.ndim == 1 else scores


def labels(model: Any, scores: NDArray[np.float64]) -> NDArray[np.generic]:
    """Labels from :func:`outputs`, as the model itself chooses them."""
    alone = model.family == KRRModel.family and scores.shape[1] == 1
    return np.asarray(model.labels(scores[:, 0] if alone else scores))


def for_classes(model: Any, scores: NDArray[np.float64], classes: NDArray[np.generic]) -> NDArray[np.float64]:
    """:func:`outputs` for all `classes`; those that the model does not know are less likely than all that it knows."""
    if len(model.classes) == len(classes):
        return scores
    both = np.concatenate([-scores, scores], axis=1) if scores.shape[1] == 1 else scores
    all_scores = np.repeat(both.min(axis=1, keepdims=True) - 1.0, len(classes), axis=1)
    all_scores[:, np.searchsorted(classes, model.classes)] = both
    return all_scores


@dataclass(kw_only=True)
class ClassBlend(Blend):
    """Classifiers whose calibrated probabilities are averaged; a collective object where they are.

    A single member keeps its own labels; of several, the class with the largest mean probability wins.

    Attributes
    ----------
    members, weights, source, comm
        See :class:`Blend`.
    classes : ndarray, shape (k,)
        Labels, ascending, the same for all members.
    calibrators : list of Calibrator
        One per member, which turns its outputs into probabilities.
    """

    family: ClassVar[str] = "class blend"
    kinds: ClassVar[dict[str, type[InParts]]] = {kind.family: kind for kind in (KRRModel, SVMModel)}

    classes: NDArray[np.generic]
    calibrators: list[Calibrator] = field(default_factory=list)

    @property
    def calibrator(self) -> Calibrator:
        """The calibrator of the member with the largest weight, for what the report says of probabilities."""
        return self.calibrators[0]

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one row's label."""
        return ()

    def scores(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Outputs for this rank's rows, shape (n_local, k), or (n_local, 1) for two classes; a collective call.

        Those of the only member, or else mean probabilities; of two classes, the second one's less the first one's.
        """
        if len(self.members) == 1:
            return outputs(self.members[0], X, self._on(comm))
        P = self.probabilities(X, comm)
        return np.diff(P, axis=1) if len(self.classes) == 2 else P

    def labels(self, scores: NDArray[np.float64]) -> NDArray[np.generic]:
        """Labels of rows with these :meth:`scores`."""
        if len(self.members) == 1:
            return labels(self.members[0], scores)
        codes = (scores[:, 0] > 0).astype(np.int64) if scores.shape[1] == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes[codes])

    def predict(self, X: AnyRows, comm: CommLike = None) -> NDArray[Any]:
        """Labels of this rank's rows, shape (n_local,); a collective call."""
        return self.labels(self.scores(X, comm))

    def probabilities(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Probabilities of the classes for this rank's rows, shape (n_local, k); a collective call."""
        terms = [
            weight * calibrator.of_classes(outputs(member, X, self._on(comm)))
            for weight, calibrator, member in zip(self.weights, self.calibrators, self.members, strict=True)
        ]
        return np.asarray(sum(terms))

    def explain(
        self, X: RowsLike, background: RowsLike | str | None = None, groups: Groups | None = None,
        comm: CommLike = None, interactions: bool = False,
    ) -> Explanation:  # fmt: skip
        """Shapley values of the only member's outputs; see :meth:`partition.parts_model.InParts.explain`.

        Raises
        ------
        InputError
            There are several members: averaged probabilities do not add up over features.
        """
        if len(self.members) == 1:
            return super().explain(X, background, groups, comm, interactions)
        raise InputError("a blend of classifiers averages probabilities, which do not add up: explain its members")

    def _on(self, comm: CommLike) -> CommLike:
        return self.comm if comm is None else comm

    def _stored(self) -> tuple[dict[str, Any], dict[str, Rows]]:
        arrays = {
            f"{number} {name}": values
            for number, calibrator in enumerate(self.calibrators) for name, values in calibrator.arrays.items()
        }  # fmt: skip
        about = [calibrator.attributes for calibrator in self.calibrators]
        return {**stored_classes(self.classes), "probability": about}, arrays

    @classmethod
    def _read(cls, attributes: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
        calibrators = []
        for number, about in enumerate(attributes["probability"]):
            prefix = f"{number} "
            member_arrays = {
                name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)
            }
            calibrator = Calibrator.stored({"probability": about}, member_arrays)
            require(calibrator is not None, f"member {number} without probabilities")
            calibrators.append(calibrator)
        return {"classes": read_classes(attributes), "calibrators": calibrators}

    def _check_targets(self) -> None:
        check_classes(self.classes)
        require(len(self.calibrators) == len(self.members), "members and calibrators do not match")
        alike = all(np.array_equal(member.classes, self.classes) for member in self.members)
        require(alike, "members of different classes")
        problems = 1 if len(self.classes) == 2 else len(self.classes)
        require(all(calibrator.problems == problems for calibrator in self.calibrators), "calibrators of other classes")


def classified(models: list[Any], weights: NDArray[np.float64], calibrators: list[Calibrator], comm: CommLike) -> Any:
    """The only classifier if there are no calibrators, otherwise the blend."""
    if not calibrators:
        return models[0]
    source, classes = dict(models[0].source), models[0].classes
    return ClassBlend(
        members=models, weights=weights, source=source, classes=classes, calibrators=calibrators, comm=comm
    )  # fmt: skip


# -- the families of all models ------------------------------------------------------------------------

_HOMES = {
    "krr": "cakrr.ridge_family:Ridge",
    "kriging": "cakriging.kriging_family:Kriged",
    "svm": "casvm.svm_family:SupportVectors",
    "svr": "casvm.svm_family:SupportVectors",
    "quantiles": "casvm.svm_family:SupportVectors",
    "asygcd": "asygcd.asygcd_family:AsyGCDFamily",
}


def load(path: str | Path, comm: CommLike = None) -> Any:
    """A saved model of any family, with its `predict`; with `comm`, a collective call on any number of ranks.

    Parameters
    ----------
    path : path
        File of a training command's ``--model``, or of an estimator's `save`.
    comm : mpi4py communicator or None

    Returns
    -------
    model
        That of the estimator or command that saved it: a DataFrame with the columns of the training table, or rows of
        its features, are its input.

    Raises
    ------
    InputError
        The file is missing, damaged, not a model, or of a family that this version does not know.

    Examples
    --------
    >>> import numpy as np
    >>> from cakernels import DKRR, load
    >>> X = np.linspace(0, 1, 50)[:, None]
    >>> DKRR(sigma=0.1, lam=1e-6).fit(X, X[:, 0] ** 2).save("squares.h5")
    >>> model = load("squares.h5")
    >>> model.predict([[0.5]]).round(3).tolist()
    [0.25]
    """
    with collective(comm) as ranks:
        model, _ = load_with_family(Path(path), ranks)
    model.comm = comm
    return model


def load_with_family(path: Path, comm: Communicator) -> tuple[Any, AnyAnswering]:
    """A saved model of any family, and the family that predicts with it; collective."""
    name = family_of(path, comm)
    with comm.agreed():
        if name not in (*_HOMES, *_BLENDS):
            raise InputError(f"{path}: a model of the family {name!r}, which this version does not know")
    return family_named(name).load(path, comm)


def family_named(name: str) -> AnyAnswering:
    """The family of this name in model files."""
    if name in _BLENDS:
        return _BLENDS[name]()
    family: AnyAnswering = resolve_name(_HOMES[name])()
    return family


class _OfMembers(Answering[Any]):
    """Base of the families of blends, which know the families of the members once a blend is loaded."""

    _members: Iterable[str] = ()

    def load(self, path: Path, comm: Communicator) -> tuple[Any, AnyAnswering]:
        """A saved blend; collective."""
        blend, _ = super().load(path, comm)
        self._members = sorted({member.family for member in blend.members})
        return blend, self

    def warm_up_prediction(self, dtype: str) -> None:
        """Compile the code that the members use, and no other family's."""
        for name in self._members:
            family_named(name).warm_up_prediction(dtype)


class Blends(_OfMembers):
    """The family of weighted means of several models of a regression."""

    kind = Blend

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

    def answer(self, model: Blend, rows: Dataset, job: Predicting, comm: Communicator) -> Answer:
        """Predictions for this rank's rows, and their intervals on request; collective."""
        with comm.phase("predict"):
            mean = model.predict(rows.X, comm)
        answer = NumberAnswer(model, {"mean": mean})
        if job.interval is not None and model.calibration is not None:
            half = model.calibration.half_width(job.interval)
            answer.arrays |= {"lower": mean - half, "upper": mean + half}
            answer.facts = model.calibration.described(job.interval)
        return answer


class ClassBlends(_OfMembers, ClassAnswering[ClassBlend]):
    """The family of classifiers with calibrated probabilities, of one model or of several."""

    kind = ClassBlend


_BLENDS: dict[str, type[AnyAnswering]] = {Blend.family: Blends, ClassBlend.family: ClassBlends}
