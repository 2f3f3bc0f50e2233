"""A trained SVM in parts: routing, decisions, saving and loading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike, Communicator
from cacore.data.labels import check_classes, read_classes, stored_classes
from cacore.data.rows import AnyRows, Rows
from cacore.explain.explanation import names_of_decisions
from cacore.io import model_file
from cacore.io.model_file import Array, Layout, is_real, require
from cacore.kernels import Kernel
from cacore.probability.calibrator import CALIBRATOR, Calibrator, coupled, require_calibrator
from cacore.probability.left_out import pairs_of
from cacore.svm.decision import Expansion, counted, votes
from casvm.model.part_svm import PART, PartSVM, join
from partition.parts_model import SHARED, InParts, one_piece_a_rank

OWN: Layout = {
    "Cs": Array("float64", ("P",), "C of each part, if every part chose its own", optional=True),
    "gammas": Array("float64", ("P",), "likewise", optional=True),
}


def own_settings(chosen: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """Fields of a model for settings that each part chose for itself; empty if all parts share one setting."""
    return {f"{name}s": values for name, values in chosen.items() if np.ndim(values)}


@dataclass(kw_only=True)
class SVMModel(InParts):
    """Kernel SVMs of P parts, of which this rank holds some.

    Attributes
    ----------
    classes : ndarray, shape (k,)
        Labels, ascending.
    kernel : Kernel or None
        None if the kernel is precomputed: rows are then kernel values with the training rows.
    C : float
    Cs, gammas : ndarray of float64, shape (P,), or None
        Values of each part, if every part has its own; `C` and `kernel` are then those of the part with the median C.
    calibrator : Calibrator or None
        Turns decisions of the pairs of classes into probabilities, if the model has them.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from casvm import CASVC, SVMModel
    >>> X, y = make_moons(200, noise=0.2, random_state=0)
    >>> CASVC(n_parts=2, C=10, gamma=1.0).fit(X, y).save("moons.h5")
    >>> SVMModel.load("moons.h5").predict(X[:3]).shape
    (3,)
    """

    family = "svm"
    shared_arrays: ClassVar[Layout] = {**SHARED, **OWN, **CALIBRATOR}
    part_arrays = PART

    classes: NDArray[np.generic]
    kernel: Kernel | None
    C: float
    Cs: NDArray[np.float64] | None = None
    gammas: NDArray[np.float64] | None = None
    calibrator: Calibrator | None = None
    parts: dict[int, PartSVM] = field(default_factory=dict)

    def described(self) -> dict[str, object]:
        """Fields that describe the model in the report."""
        C = self.C if self.Cs is None else self.Cs
        return {"method": self.method, "C": C, "route": self.route}

    def kernel_of(self, part: int) -> Kernel | None:
        """The kernel of a part."""
        if self.gammas is None or self.kernel is None:
            return self.kernel
        return replace(self.kernel, gamma=float(self.gammas[part]))

    def predict(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.generic]:
        """Labels of this rank's rows; a collective call.

        Parameters
        ----------
        X : array-like or CSR, shape (n_local, d)
            Not changed.
        comm : mpi4py communicator, Communicator or None
            As many ranks as hold the model's parts; by default those that trained or loaded it.

        Returns
        -------
        ndarray, shape (n_local,)

        Notes
        -----
        2 nnz flops per row, with nnz the nonzeros of the support vectors of all models that predict it. With
        ``nearest`` and ``soft``, each row is sent to the ranks of its models, and decisions are sent back. With
        ``all``, every row is sent to every rank, and one reduction adds up n_test numbers, or n_test k numbers for
        k > 2 classes.
        """
        return self.labels(self.scores(X, comm))

    def labels(self, scores: NDArray[np.float64]) -> NDArray[np.generic]:
        """Labels of rows with these :meth:`scores`."""
        codes = votes(scores) if self._single_model or scores.shape[1] == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes[codes])

    def decision_function(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Decisions, shape (n_local,) for two classes, positive for the second; else (n_local, k).

        With more than two classes: the pairs' votes for each class, plus at most a third of a vote for the size of the
        decisions. With ``soft`` and ``all``: the weighted mean of the parts' shares for each class, from 0 to 1
        (:func:`cacore.svm.decision.shares`). Collective, as :meth:`predict`.
        """
        scores = self.scores(X, comm)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def pair_decisions(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Decisions of all pairs of classes by a model in pieces, shape (n_local, k (k - 1) / 2); collective.

        A decision is positive for the first class of its pair.
        """
        with self._ranks(comm, "pair_decisions") as ranks, ranks.phase("predict"):
            return self._decided(self.standardized(X, ranks), ranks)

    def _decided(self, Z: AnyRows, comm: Communicator) -> NDArray[np.float64]:
        k = len(self.classes)
        return self._answered(Z, comm, (k * (k - 1) // 2,), self._piece)

    def _piece(self, number: int, rows: Rows) -> NDArray[np.float64]:
        """Contribution of a piece to the decisions of all pairs."""
        part = self.parts[number]
        return part.pairs(rows, self.kernel) if len(part.rows) else part.b

    def probabilities(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Probabilities of the classes, shape (n_local, k), in their order; collective, as :meth:`predict`.

        Pairs of classes are coupled (:func:`cacore.probability.calibrator.coupled`). If several parts predict a row,
        their probabilities, raised to the power of the parts' weights, are multiplied and normalised. A part of m rows
        gives 1 / (m + k) to each class that it lacks.

        Raises
        ------
        InputError
            On all ranks: the model has no probabilities.
        """
        k = len(self.classes)
        with self._ranks(comm, "probabilities") as ranks, ranks.phase("predict"):
            with ranks.agreed():
                calibrator = require_calibrator(self.calibrator)
            Z = self.standardized(X, ranks)
            if self.route == "sum":
                return coupled(calibrator.first(self._decided(Z, ranks)), k)
            logarithms = self._answered(Z, ranks, (k,), self._logarithms)
        shares = np.exp(logarithms - logarithms.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def _logarithms(self, part: int, rows: Rows) -> NDArray[np.float64]:
        """Logarithms of the probabilities by one part on this rank, shape (n, k)."""
        part_svm, k = self.parts[part], len(self.classes)
        unseen = 1.0 / (int(self.sizes[part]) + k)
        out = np.full((rows.shape[0], k), unseen)
        p = np.ones((rows.shape[0], 1))
        if len(part_svm.classes) > 1:
            decisions = part_svm.pairs(rows, self.kernel_of(part))
            p = coupled(self._first(part, decisions), len(part_svm.classes))
        out[:, part_svm.classes] = p * (1.0 - unseen * (k - len(part_svm.classes)))
        return np.asarray(np.log(out))

    def _first(self, part: int, decisions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities of the first class in each pair of a part's classes, by its own sigmoids or the shared ones."""
        part_svm = self.parts[part]
        assert self.calibrator is not None
        if part_svm.slopes is not None and part_svm.shifts is not None:
            return replace(self.calibrator, A=part_svm.slopes, B=part_svm.shifts).first(decisions)
        return self.calibrator.first(decisions, pairs_of(part_svm.classes, len(self.classes)))

    def asked(self, X: AnyRows, labels: NDArray[np.int32], comm: CommLike = None) -> NDArray[np.float64]:
        """Scores of each row by the model of the part given in `labels`; collective."""
        with self._ranks(comm, "asked") as ranks, ranks.phase("predict"):
            return self._asked(self.standardized(X, ranks), labels, ranks, (self._width,))

    def expansion(self, part: int) -> Expansion:
        """Decisions of a part: for the second of two classes, otherwise for the first of each pair of classes."""
        part_svm, k = self.parts[part], len(self.classes)
        weights, b = np.zeros((len(part_svm.rows), k * (k - 1) // 2)), np.zeros(k * (k - 1) // 2)
        if self.route == "sum" or len(part_svm.classes) > 1:
            at = slice(None) if self.route == "sum" else pairs_of(part_svm.classes, k)
            weights[:, at], b[at] = part_svm.weights(), part_svm.b
        elif k == 2:
            b[0] = 1.0 - 2.0 * part_svm.classes[0]
        sign = -1.0 if k == 2 else 1.0
        return Expansion(part_svm.X, sign * weights, sign * b, self.kernel_of(part))

    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that :meth:`explain` explains."""
        return names_of_decisions(self.classes)

    def intercepts(self) -> NDArray[np.float64]:
        """Intercept b of each pair of classes of a model in pieces; collective on the ranks that hold the pieces."""
        k = len(self.classes)
        b = np.sum([part.b for part in self.parts.values()], axis=0) if self.parts else np.zeros(k * (k - 1) // 2)
        with self._ranks(None, "intercepts") as ranks:
            return ranks.allreduce(b)

    @property
    def _single_model(self) -> bool:
        """True if a single model predicts each row."""
        return self.route in ("nearest", "sum")

    @property
    def _width(self) -> int:
        return 1 if len(self.classes) == 2 else len(self.classes)

    def scores(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Decisions as in :meth:`decision_function`, but with shape (n_local, 1) for two classes; collective."""
        k = len(self.classes)
        with self._ranks(comm, "scores") as ranks, ranks.phase("predict"):
            Z = self.standardized(X, ranks)
            if self.route == "sum":
                decisions = self._decided(Z, ranks)
                return -decisions if k == 2 else counted(decisions, k)
            return self._answered(Z, ranks, (self._width,))

    def _answer(self, part: int, rows: Rows) -> NDArray[np.float64]:
        part_svm = self.parts[part]
        # LIBSVM's votes if one part predicts alone; summed scores must not grow with the number of a part's classes.
        return (part_svm.scores if self._single_model else part_svm.shares)(
            rows, self.kernel_of(part), len(self.classes)
        )

    def _stored(self) -> tuple[dict[str, Any], dict[str, Rows]]:
        kernel = None if self.kernel is None else self.kernel.stored()
        settings: dict[str, Any] = {"Cs": self.Cs, "gammas": self.gammas}
        arrays: dict[str, Rows] = {name: values for name, values in settings.items() if values is not None}
        attributes: dict[str, Any] = {"C": self.C, **stored_classes(self.classes), "kernel": kernel}
        if self.calibrator is None:
            return attributes, arrays
        return attributes | {"probability": self.calibrator.attributes}, arrays | self.calibrator.arrays

    @classmethod
    def _shared_sizes(cls, attributes: dict[str, Any]) -> dict[str, int]:
        k = len(attributes["classes"])
        return {"p": k * (k - 1) // 2}

    @classmethod
    def _part_sizes(cls, attributes: dict[str, Any], shared: dict[str, Any], number: int) -> dict[str, int]:
        return {"e": 0 if attributes["kernel"] is None else shared["centers"].shape[1]}

    @classmethod
    def _from_contents(
        cls, attributes: dict[str, Any], shared: dict[str, Any], parts: model_file.StoredParts
    ) -> SVMModel:
        kernel = attributes.pop("kernel")
        attributes |= {"classes": read_classes(attributes), "kernel": None if kernel is None else Kernel(**kernel)}
        parts.held = {number: PartSVM(**fields) for number, fields in parts.held.items()}
        for number, part in parts.held.items():
            d = shared["centers"].shape[1] if attributes["kernel"] is None else None
            require(part.fits(len(attributes["classes"]), d), f"the arrays of part {number} do not fit together")
        if attributes["route"] == "sum":  # one piece per rank instead of several
            one_piece_a_rank(shared, parts, join)
        attributes |= {name: shared.get(name) for name in OWN}
        attributes["calibrator"] = Calibrator.stored(attributes, shared)
        return super()._from_contents(attributes, shared, parts)

    def _check(self) -> None:
        super()._check()
        require(is_real(self.C) and self.C > 0, f"C {self.C!r}")
        for part in self.parts.values():
            sigmoids = [values for values in (part.slopes, part.shifts) if values is not None]
            require(len(sigmoids) != 1, "a part's slopes or shifts without the other")
            has_sigmoids = self.calibrator is not None and self.calibrator.form == "sigmoid"
            require(has_sigmoids or not sigmoids, "sigmoids of parts of a model without probabilities")
        for name in OWN:
            values = getattr(self, name)
            require(values is None or bool((np.isfinite(values) & (values > 0)).all()), name)
        check_classes(self.classes)
