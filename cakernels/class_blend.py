"""Classifiers with probabilities that add up: one model with calibrated outputs, or a weighted mean of several."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike
from cacore.data.labels import check_classes, read_classes, stored_classes
from cacore.data.rows import AnyRows, Rows, RowsLike
from cacore.errors import InputError
from cacore.explain.explanation import Explanation, Groups
from cacore.io.model_file import require
from cacore.probability.calibrator import Calibrator
from cakernels.blend import Blend
from cakrr.model import KRRModel
from casvm.model.model import SVMModel
from partition.model import InParts


def outputs(model: Any, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
    """Outputs of a classifier for its classes, shape (n_local, k), or (n_local, 1) for two; a collective call.

    The largest output wins; of two classes, a positive output means the second.
    """
    found = model.predict(X, comm) if model.family == KRRModel.family else model.scores(X, comm)
    found = np.asarray(found, np.float64)
    return found[:, None] if found.ndim == 1 else found


def labels(model: Any, found: NDArray[np.float64]) -> NDArray[np.generic]:
    """Labels from :func:`outputs`, as the model itself chooses them."""
    alone = model.family == KRRModel.family and found.shape[1] == 1
    return np.asarray(model.labels(found[:, 0] if alone else found))


def for_classes(model: Any, found: NDArray[np.float64], classes: NDArray[np.generic]) -> NDArray[np.float64]:
    """:func:`outputs` for all `classes`; those that the model does not know are less likely than all that it knows."""
    if len(model.classes) == len(classes):
        return found
    own = np.concatenate([-found, found], axis=1) if found.shape[1] == 1 else found
    every = np.repeat(own.min(axis=1, keepdims=True) - 1.0, len(classes), axis=1)
    every[:, np.searchsorted(classes, model.classes)] = own
    return every


@dataclass(kw_only=True)
class ClassBlend(Blend):
    """Classifiers whose calibrated probabilities are averaged; a collective object where they are.

    A single member keeps its own labels; of several, the class with the largest mean probability wins.

    Attributes
    ----------
    members, weights, source, comm
        See :class:`cakernels.blend.Blend`.
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
            weight * calibrator.of_classes(outputs(one, X, self._on(comm)))
            for weight, calibrator, one in zip(self.weights, self.calibrators, self.members, strict=True)
        ]
        return np.asarray(sum(terms))

    def explain(
        self, X: RowsLike, background: RowsLike | str | None = None, groups: Groups | None = None,
        comm: CommLike = None, interactions: bool = False,
    ) -> Explanation:  # fmt: skip
        """Shapley values of the only member's outputs; see :meth:`partition.model.InParts.explain`.

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
            for number, one in enumerate(self.calibrators) for name, values in one.arrays.items()
        }  # fmt: skip
        about = [one.attributes for one in self.calibrators]
        return {**stored_classes(self.classes), "probability": about}, arrays

    @classmethod
    def _read(cls, attributes: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
        found = []
        for number, about in enumerate(attributes["probability"]):
            own = {name.split(" ", 1)[1]: one for name, one in arrays.items() if name.startswith(f"{number} ")}
            one = Calibrator.stored({"probability": about}, own)
            require(one is not None, f"member {number} without probabilities")
            found.append(one)
        return {"classes": read_classes(attributes), "calibrators": found}

    def _check_targets(self) -> None:
        check_classes(self.classes)
        require(len(self.calibrators) == len(self.members), "members and calibrators do not match")
        alike = all(np.array_equal(one.classes, self.classes) for one in self.members)
        require(alike, "members of different classes")
        problems = 1 if len(self.classes) == 2 else len(self.classes)
        require(all(one.problems == problems for one in self.calibrators), "calibrators of other classes")


def classified(models: list[Any], weights: NDArray[np.float64], calibrators: list[Calibrator], comm: CommLike) -> Any:
    """The only classifier if there are no calibrators, otherwise the blend."""
    if not calibrators:
        return models[0]
    source, classes = dict(models[0].source), models[0].classes
    return ClassBlend(
        members=models, weights=weights, source=source, classes=classes, calibrators=calibrators, comm=comm
    )  # fmt: skip
