"""A trained regression or one-class SVM: one real number per row; saving and loading."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike
from cacore.data.rows import Rows, concatenate
from cacore.io import model_file
from cacore.io.layout import Array, Layout
from cacore.io.model_file import is_real, require
from cacore.kernels import Kernel
from cacore.svm.decision import expansion
from partition.model import InParts, one_piece_a_rank

TYPES = ("epsilon_svr", "nu_svr", "one_class")  # LIBSVM's names
PARAMETERS = ("C", "epsilon", "nu")

# A part's arrays in a model's file: s support vectors of e features, which is d, or 0 where the kernel is precomputed.
PART: Layout = {
    "X": Array("real", ("s", "e"), "support vectors, in standardised features", csr=True),
    "rows": Array("int64", ("s",), "their numbers among all training rows"),
    "beta": Array("float64", ("s",), "coefficients, alpha - alpha* of a regression"),
    "b": Array("float64", ("1",), "what is added to the sum over the support vectors"),
}


@dataclass
class PartSVR:
    """Support vectors and coefficients of one part.

    Attributes
    ----------
    X : ndarray or CSR, shape (s, d)
        Support vectors, in the order of the rows. With a precomputed kernel, no columns.
    rows : ndarray of int64, shape (s,)
        Their global row numbers.
    beta : ndarray of float64, shape (s,)
    b : ndarray of float64, shape (1,)
    """

    X: Rows
    rows: NDArray[np.int64]
    beta: NDArray[np.float64]
    b: NDArray[np.float64]

    def predict(self, X: Rows, kernel: Kernel | None) -> NDArray[np.float64]:
        """``K(X, support vectors) beta + b``, shape (len(X),): 2 len(X) nnz flops, nnz the support vectors' nonzeros.

        `X` has the support vectors' features; or, where `kernel` is None, kernel values with all training rows.
        """
        if not len(self.rows):
            return np.full(X.shape[0], self.b[0])
        if kernel is None:
            return np.asarray(np.asarray(X)[:, self.rows] @ self.beta + self.b)
        return expansion(kernel, self.X, self.beta[:, None], X)[:, 0] + self.b


def join(pieces: list[PartSVR]) -> PartSVR:
    """The pieces as one, whose rows ascend."""
    rows = np.concatenate([one.rows for one in pieces])
    order = np.argsort(rows)
    beta, b = np.concatenate([one.beta for one in pieces]), np.sum([one.b for one in pieces], axis=0)
    return PartSVR(concatenate([one.X for one in pieces])[order], rows[order], beta[order], b)


@dataclass(kw_only=True)
class SVRModel(InParts):
    """Regression, or one-class, SVMs of P parts, of which this rank holds some.

    Attributes
    ----------
    svm_type : {"epsilon_svr", "nu_svr", "one_class"}
    kernel : Kernel or None
        None: rows are kernel values with the training rows.
    params : dict of str to float
        Those of C, epsilon and nu that are known.
    """

    family = "svr"
    part_arrays = PART

    svm_type: str
    kernel: Kernel | None
    params: dict[str, float]
    parts: dict[int, PartSVR] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """The report's fields of the model."""
        return {"method": self.method, "svm_type": self.svm_type, **self.params, "route": self.route}

    def decision_function(self, X: Rows, comm: CommLike = None) -> NDArray[np.float64]:
        """Values of this rank's rows; a collective call.

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
        2 nnz flops a row, with nnz the nonzeros of all support vectors that are asked. ``nearest``, ``soft``: each row
        travels to the ranks of its models, their values back. ``all``, ``sum``: every row visits every rank, and one
        reduction of n_test numbers adds up.
        """
        with self._ranks(comm, "decision_function") as ranks, ranks.phase("predict"):
            Z = self._received(X, ranks)
            return self._answered(Z, ranks)

    def predict(self, X: Rows, comm: CommLike = None) -> NDArray[Any]:
        """The values of a regression; of one class, 1 for rows that are of it and -1 for others. Collective."""
        return self.answers(self.decision_function(X, comm))

    def answers(self, values: NDArray[np.float64]) -> NDArray[Any]:
        """Predictions for rows with these values."""
        return np.where(values >= 0, 1, -1) if self.svm_type == "one_class" else values

    def _answer(self, part: int, rows: Rows) -> NDArray[np.float64]:
        return self.parts[part].predict(rows, self.kernel)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Rows]]:
        kernel = None if self.kernel is None else self.kernel.stored()
        return {"svm_type": self.svm_type, "kernel": kernel, "params": self.params}, {}

    @classmethod
    def _part_sizes(cls, attributes: dict[str, Any], shared: dict[str, Any], number: int) -> dict[str, int]:
        return {"e": 0 if attributes["kernel"] is None else shared["centers"].shape[1]}

    @classmethod
    def _made(cls, attributes: dict[str, Any], shared: dict[str, Any], parts: model_file.StoredParts) -> SVRModel:
        kernel, d = attributes.pop("kernel"), shared["centers"].shape[1]
        attributes["kernel"] = None if kernel is None else Kernel(**kernel)
        parts.held = {number: PartSVR(**fields) for number, fields in parts.held.items()}
        for number, part in parts.held.items():
            rows = part.rows
            fits = not len(rows) or (rows.min() >= 0 and (kernel is not None or rows.max() < d))
            require(fits, f"what part {number} holds does not fit together")
        if attributes["route"] == "sum":  # one piece a rank instead of several
            one_piece_a_rank(shared, parts, join)
        return super()._made(attributes, shared, parts)

    def _check(self) -> None:
        super()._check()
        require(self.svm_type in TYPES, f"svm_type {self.svm_type!r}")
        require(self.route in ("nearest", "soft", "all", "sum"), f"route {self.route!r}")
        known = isinstance(self.params, dict) and set(self.params) <= set(PARAMETERS)
        require(known and all(is_real(value) and value >= 0 for value in self.params.values()), "its parameters")
