"""A trained Asy-GCD SVM: decisions without a bias, saving and loading."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.arrays import usual_errors
from cacore.comm import CommLike, Communicator
from cacore.data.labels import check_classes, read_classes, stored_classes
from cacore.data.rows import AnyRows, Rows, RowsLike, in_memory
from cacore.data.standardize import Standardizer
from cacore.data.validation import rows_to_predict
from cacore.explain.explanation import Explanation, Groups, names_of_decisions
from cacore.io import model_file
from cacore.io.model_file import STANDARDIZER, Array, Layout, check_rows, is_real, require
from cacore.kernels import Kernel
from cacore.probability.calibrator import CALIBRATOR, LEAST, Calibrator, coupled, require_calibrator
from cacore.svm.decision import Expansion, counted, expansion, votes
from partition.explain import explained_alone

# Arrays of the model file, in its one part: s support vectors, m decisions.
PART: Layout = {
    "X": Array("real", ("s", "d"), "support vectors, standardised", csr=True),
    "rows": Array("int64", ("s",), "row numbers of the support vectors among the training rows"),
    "coef": Array("float64", ("s", "m"), "coefficients alpha y of each decision"),
}


@dataclass
class AsyGCDModel:
    """Support vectors and the coefficients of every decision.

    Attributes
    ----------
    classes : ndarray, shape (k,)
        Labels, ascending.
    multi_class : {"ovr", "ovo"}
        Decisions of each class against the rest, or of each pair of classes; the same with two classes.
    kernel : Kernel
    C : float
    X : ndarray or CSR, shape (s, d)
        Rows that support at least one decision, in the order of the training rows.
    rows : ndarray of int64, shape (s,)
        Indices of these rows in the training set.
    coef : ndarray of float64, shape (s, m)
        Coefficients alpha y; m is 1 for two classes, k for "ovr" and k (k - 1) / 2 for "ovo". A positive decision
        is for the second of two classes, for the class against the rest, and for the first of a pair.
    standardizer : Standardizer or None
    dtype : str
        Floating-point type of the rows.
    source : dict
        How the training file was read.
    calibrator : Calibrator or None
        Maps decisions to probabilities, if the model has them.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from asygcd import AsyGCDModel, AsyGCDSVC
    >>> X, y = make_moons(200, noise=0.2, random_state=0)
    >>> AsyGCDSVC(C=10, gamma=1.0).fit(X, y).save("asygcd.h5")
    >>> AsyGCDModel.load("asygcd.h5").decision_function(X[:3]).shape
    (3,)
    """

    classes: NDArray[np.generic]
    multi_class: str
    kernel: Kernel
    C: float
    X: Rows
    rows: NDArray[np.int64]
    coef: NDArray[np.float64]
    standardizer: Standardizer | None
    dtype: str
    source: dict[str, Any] = field(default_factory=dict)
    calibrator: Calibrator | None = None

    @property
    def n_features(self) -> int:
        """Number of features of a row."""
        return int(self.X.shape[1])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of support vectors of each part; there is one part."""
        return np.array([len(self.rows)])

    def described(self) -> dict[str, object]:
        """Entries of the report about the model."""
        return {"method": "asygcd", "C": self.C, "multi_class": self.multi_class}

    def decisions(self, X: AnyRows) -> NDArray[np.float64]:
        """Decisions for `X`, shape (n, d): shape (n, m). 2 n nnz flops, nnz the nonzeros of all support vectors."""
        with usual_errors():
            Z = rows_to_predict(X, self.dtype, self.n_features, self.standardizer, self.source)
            return expansion(self.kernel, self.X, self.coef, in_memory(Z), biased=False)

    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that :meth:`explain` explains."""
        if self.against_the_rest:
            return tuple(map(str, self.classes))
        return names_of_decisions(self.classes)

    def explain(
        self, X: RowsLike, background: RowsLike | str | None = None, groups: Groups | None = None,
        comm: CommLike = None, interactions: bool = False,
    ) -> Explanation:  # fmt: skip
        """Shapley values of each feature for :meth:`decisions`, see :meth:`partition.parts_model.InParts.explain`."""
        f = Expansion(self.X, self.coef, np.zeros(self.coef.shape[1]), self.kernel)
        return explained_alone(self, f, X, background, groups, comm, interactions)

    def scores(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Decisions as a single column for two classes, otherwise one score per class.

        With "ovo" a score is the number of votes plus a fraction that breaks ties. `comm` is ignored; models that lie
        on several ranks need it.
        """
        decisions, k = self.decisions(X), len(self.classes)
        return counted(decisions, k) if k > 2 and self.multi_class == "ovo" else decisions

    @property
    def against_the_rest(self) -> bool:
        """True if there are more than two classes, and a decision for each of them."""
        return len(self.classes) > 2 and self.multi_class == "ovr"

    def sided(self, decisions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Decisions with the sign flipped for two classes: positive for the first one, as for pairs of classes."""
        return -decisions if len(self.classes) == 2 else decisions

    def probabilities(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Probabilities of the classes, shape (n, k), with sum 1; `comm` is ignored, as in :meth:`scores`.

        With "ovo", the pairs' probabilities are coupled (:func:`cacore.probability.calibrator.coupled`); with "ovr",
        the classes' probabilities are divided by their sum.

        Raises
        ------
        InputError
            The model has no probabilities.
        """
        first = require_calibrator(self.calibrator).first(self.sided(self.decisions(X)))
        if not self.against_the_rest:
            return coupled(first, len(self.classes))
        first = np.maximum(first, LEAST)
        return np.asarray(first / first.sum(axis=1, keepdims=True))

    def labels(self, scores: NDArray[np.float64]) -> NDArray[np.generic]:
        """Labels of rows with these :meth:`scores`."""
        ties = scores.shape[1] > 1 and self.multi_class == "ovr"
        return np.asarray(self.classes[scores.argmax(axis=1) if ties else votes(scores)])

    def decision_function(self, X: AnyRows) -> NDArray[np.float64]:
        """Scores of :meth:`scores`, but of shape (n,) for two classes, positive for the second."""
        scores = self.scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: AnyRows) -> NDArray[np.generic]:
        """Labels for `X`, shape (n, d)."""
        return self.labels(self.scores(X))

    def save(self, path: str | Path, comm: CommLike = None) -> None:
        """Write the model to one HDF5 file, atomically; `comm` is ignored, as in :meth:`scores`."""
        attributes = {
            "multi_class": self.multi_class, "C": self.C, "dtype": self.dtype, "source": self.source,
            **stored_classes(self.classes), "kernel": asdict(self.kernel),
        }  # fmt: skip
        shared: dict[str, Rows] = {} if self.standardizer is None else dict(self.standardizer.arrays)
        if self.calibrator is not None:
            attributes["probability"] = self.calibrator.attributes
            shared |= self.calibrator.arrays
        part: dict[str, Rows] = {name: vars(self)[name] for name in PART}
        model_file.save(path, "asygcd", attributes, shared, {0: part}, np.zeros(1, np.int64), Communicator())

    @classmethod
    def load(cls, path: str | Path, comm: CommLike = None) -> AsyGCDModel:
        """Read the whole model on every rank.

        Raises
        ------
        InputError
            If the file is missing, damaged, not a model, or a model of another family.
        """
        return model_file.load(path, {"asygcd": cls._from_contents}, Communicator())

    @classmethod
    def _from_contents(
        cls, attributes: dict[str, Any], shared: dict[str, Any], parts: model_file.StoredParts
    ) -> AsyGCDModel:
        attributes |= {"classes": read_classes(attributes), "kernel": Kernel(**attributes["kernel"])}
        k = len(attributes["classes"])
        sizes = {"m": 1 if k == 2 else k if attributes["multi_class"] == "ovr" else k * (k - 1) // 2}
        model_file.check(PART, parts.held[0], sizes)
        model_file.check({**STANDARDIZER, **CALIBRATOR}, shared, {**sizes, "p": sizes["m"]})
        attributes["calibrator"] = Calibrator.stored(attributes, shared)
        model = cls(**attributes, **parts.held[0], standardizer=Standardizer.stored(shared))
        model._check()
        return model

    def _check(self) -> None:
        """Raise an InputError if the fields are inconsistent."""
        require(is_real(self.C) and self.C > 0, f"C {self.C!r}")
        check_classes(self.classes)
        require(self.multi_class in ("ovr", "ovo"), f"multi_class {self.multi_class!r}")
        check_rows(self.dtype, self.source, self.standardizer, self.n_features)
