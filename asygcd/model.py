"""A trained Asy-GCD SVM: decisions without a bias, saving and loading."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.labels import check_classes, read_classes, stored_classes
from cacore.data.rows import Rows
from cacore.data.standardize import Standardizer
from cacore.data.validation import rows_to_predict
from cacore.io import layout, model_file
from cacore.io.layout import STANDARDIZER, Array, Layout
from cacore.io.model_file import check_rows, is_real, require
from cacore.kernels import Kernel
from cacore.probability.calibrator import CALIBRATOR, Calibrator, require_calibrator
from cacore.probability.coupling import LEAST, coupled
from cacore.svm.decision import counted, expansion, votes

# Arrays of a model's file, in its one part: s support vectors, m decisions.
PART: Layout = {
    "X": Array("real", ("s", "d"), "support vectors, standardised", csr=True),
    "rows": Array("int64", ("s",), "their numbers among the training rows"),
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
        Decisions: each class against the rest, or each pair; nothing to choose with two classes.
    kernel : Kernel
    C : float
    X : ndarray or CSR, shape (s, d)
        Rows that support at least one decision, in the order of the training rows.
    rows : ndarray of int64, shape (s,)
        Their numbers.
    coef : ndarray of float64, shape (s, m)
        Coefficients alpha y; m is 1 for two classes, k for "ovr" and k (k - 1) / 2 for "ovo". A positive decision
        is for the second of two classes, for the class against the rest, and for the first of a pair.
    standardizer : Standardizer or None
    dtype : str
        Of the rows.
    source : dict
        How the training file was read.
    calibrator : Calibrator or None
        Of the decisions, if the model has probabilities.
    """

    classes: NDArray[Any]
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
        """Of a row."""
        return int(self.X.shape[1])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Support vectors, of one model."""
        return np.array([len(self.rows)])

    def described(self) -> dict[str, Any]:
        """What a report says about the model."""
        return {"method": "asygcd", "C": self.C, "multi_class": self.multi_class}

    def decisions(self, X: Rows) -> NDArray[np.float64]:
        """Every decision for `X`, shape (n, d): shape (n, m); 2 n nnz flops, nnz the support vectors' nonzeros."""
        Z = rows_to_predict(X, self.dtype, self.n_features, self.standardizer)
        return expansion(self.kernel, self.X, self.coef, Z)

    def scores(self, X: Rows, comm: Any = None) -> NDArray[np.float64]:
        """A column of decisions with two classes, otherwise one a class: with "ovo", votes and how clear they were.

        `comm` is there for the sake of models that lie on several ranks.
        """
        decisions, k = self.decisions(X), len(self.classes)
        return counted(decisions, k) if k > 2 and self.multi_class == "ovo" else decisions

    @property
    def against_the_rest(self) -> bool:
        """Whether there is a decision for each of more than two classes."""
        return len(self.classes) > 2 and self.multi_class == "ovr"

    def sided(self, decisions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Decisions that are positive for the first of two classes, too, as of a pair."""
        return -decisions if len(self.classes) == 2 else decisions

    def probabilities(self, X: Rows, comm: Any = None) -> NDArray[np.float64]:
        """Of the classes, shape (n, k), in their order, rows of sum 1; `comm` is there as for :meth:`scores`.

        Pairs of classes are coupled (:func:`cacore.probability.coupling.coupled`); those of classes against the rest
        are divided by their sum.

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

    def labels(self, scores: NDArray[np.float64]) -> NDArray[Any]:
        """Labels of rows of these :meth:`scores`."""
        ties = scores.shape[1] > 1 and self.multi_class == "ovr"
        return np.asarray(self.classes[scores.argmax(axis=1) if ties else votes(scores)])

    def decision_function(self, X: Rows) -> NDArray[np.float64]:
        """As :meth:`scores`, but shape (n,) with two classes, positive for the second."""
        scores = self.scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Rows) -> NDArray[Any]:
        """Labels for `X`, shape (n, d)."""
        return self.labels(self.scores(X))

    def save(self, path: str | Path, comm: Any = None) -> None:
        """Write the model to one HDF5 file, whole or not at all; `comm` is there as for :meth:`scores`."""
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
    def load(cls, path: str | Path, comm: Any = None) -> AsyGCDModel:
        """Read a model, on every rank of `comm` the whole of it.

        Raises
        ------
        InputError
            The file is missing, damaged, not a model, or one of another family.
        """
        return model_file.load(path, {"asygcd": cls._made}, Communicator())

    @classmethod
    def _made(cls, attributes: dict[str, Any], shared: dict[str, Any], parts: model_file.StoredParts) -> AsyGCDModel:
        attributes |= {"classes": read_classes(attributes), "kernel": Kernel(**attributes["kernel"])}
        k = len(attributes["classes"])
        sizes = {"m": 1 if k == 2 else k if attributes["multi_class"] == "ovr" else k * (k - 1) // 2}
        layout.check(PART, parts.held[0], sizes)
        layout.check({**STANDARDIZER, **CALIBRATOR}, shared, {**sizes, "p": sizes["m"]})
        attributes["calibrator"] = Calibrator.stored(attributes, shared)
        model = cls(**attributes, **parts.held[0], standardizer=Standardizer.stored(shared))
        model._check()
        return model

    def _check(self) -> None:
        """Refuse what does not fit together."""
        require(is_real(self.C) and self.C > 0, f"C {self.C!r}")
        check_classes(self.classes)
        require(self.multi_class in ("ovr", "ovo"), f"multi_class {self.multi_class!r}")
        check_rows(self.dtype, self.source, self.standardizer)
