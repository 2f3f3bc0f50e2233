"""A trained regression or one-class SVM: one real number per row; saving and loading."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike
from cacore.data.encoding import Columns
from cacore.data.rows import AnyRows, Rows, concatenate
from cacore.io import model_file
from cacore.io.model_file import Array, Layout, is_real, require
from cacore.kernels import Kernel
from cacore.svm.decision import Expansion
from partition.parts_model import InParts, one_piece_a_rank

ONE_CLASS = "one_class"
TYPES = (ONE_CLASS, "epsilon_svr", "nu_svr")  # LIBSVM's names
PARAMETERS = ("C", "epsilon", "nu")

# A part's arrays in a model file: s support vectors, e features, where e is d, or 0 with a precomputed kernel.
PART: Layout = {
    "X": Array("real", ("s", "e"), "support vectors, in standardised features", csr=True),
    "rows": Array("int64", ("s",), "row numbers of the support vectors among all training rows"),
    "beta": Array("float64", ("s",), "coefficients; for regression, alpha - alpha*"),
    "b": Array("float64", ("1",), "intercept, added to the sum over the support vectors"),
}


@dataclass
class PartSVR:
    """Support vectors and coefficients of one part.

    Attributes
    ----------
    X : ndarray or CSR, shape (s, d)
        Support vectors, in row order. With a precomputed kernel, X has no columns.
    rows : ndarray of int64, shape (s,)
        Global row numbers of the support vectors.
    beta : ndarray of float64, shape (s,) or (s, t)
        One column per output, if there are several.
    b : ndarray of float64, shape (1,) or (t,)
    """

    X: AnyRows
    rows: NDArray[np.int64]
    beta: NDArray[np.float64]
    b: NDArray[np.float64]

    def predict(self, X: Rows, kernel: Kernel | None) -> NDArray[np.float64]:
        """``K(X, support vectors) beta + b``, shape (len(X),) or (len(X), t).

        If `kernel` is None, `X` holds kernel values with all training rows, and otherwise features. 2 len(X) nnz flops,
        with nnz the support vectors' nonzeros, and 2 len(X) s t.
        """
        if kernel is None:
            return np.asarray(np.asarray(X)[:, self.rows] @ self.beta + self.b)
        values = self.expansion(kernel).at(X)
        return values if self.beta.ndim > 1 else values[:, 0]

    def expansion(self, kernel: Kernel | None) -> Expansion:
        """The part as a function of rows."""
        return Expansion(self.X, self.columns, self.b, kernel)

    @property
    def columns(self) -> NDArray[np.float64]:
        """The coefficients with one column per output, shape (s, t)."""
        return self.beta[:, None] if self.beta.ndim == 1 else self.beta


def join(pieces: list[PartSVR]) -> PartSVR:
    """The pieces merged into one, with ascending row numbers."""
    rows = np.concatenate([piece.rows for piece in pieces])
    order = np.argsort(rows)
    beta, b = np.concatenate([piece.beta for piece in pieces]), np.sum([piece.b for piece in pieces], axis=0)
    return PartSVR(concatenate([piece.X for piece in pieces])[order], rows[order], beta[order], b)


@dataclass(kw_only=True)
class SVRModel(InParts):
    """Regression or one-class SVMs of P parts, of which this rank holds some.

    Attributes
    ----------
    svm_type : {"epsilon_svr", "nu_svr", "one_class"}
    kernel : Kernel or None
        None if the kernel is precomputed: rows are then kernel values with the training rows.
    params : dict of str to float
        The known ones among C, epsilon and nu.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from casvm import SMOSVR, SVRModel
    >>> X, y = make_friedman1(200, random_state=0)
    >>> SMOSVR(C=100, gamma=1.0).fit(X, y).save("friedman.h5")
    >>> SVRModel.load("friedman.h5").predict(X[:3]).shape
    (3,)
    """

    family = "svr"
    part_arrays = PART
    types: ClassVar[tuple[str, ...]] = TYPES

    svm_type: str
    kernel: Kernel | None
    params: dict[str, float]
    parts: dict[int, PartSVR] = field(default_factory=dict)

    def described(self) -> dict[str, object]:
        """Fields that describe the model in the report."""
        return {"method": self.method, "svm_type": self.svm_type, **self.params, "route": self.route}

    def expansion(self, part: int) -> Expansion:
        """The function of a part."""
        return self.parts[part].expansion(self.kernel)

    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that :meth:`explain` explains."""
        return ("decision",) if self.one_class else Columns.of_source(self.source).target or ("y",)

    @property
    def one_class(self) -> bool:
        """True if outputs are decisions of one class, not predicted targets."""
        return self.svm_type == ONE_CLASS

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of a row's outputs."""
        return ()

    def decision_function(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Real outputs for this rank's rows: predicted targets, or one-class decisions; a collective call.

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
        ``nearest`` and ``soft``, each row is sent to the ranks of its models, and outputs are sent back. With ``all``
        and ``sum``, every row is sent to every rank, and one reduction adds up n_test numbers.
        """
        with self._ranks(comm, "decision_function") as ranks, ranks.phase("predict"):
            Z = self.standardized(X, ranks)
            return self._answered(Z, ranks, self.output_shape)

    def predict(self, X: AnyRows, comm: CommLike = None) -> NDArray[Any]:
        """Predicted targets; for a one-class model, 1 for inliers and -1 for outliers. Collective."""
        return self.answers(self.decision_function(X, comm))

    def answers(self, values: NDArray[np.float64]) -> NDArray[Any]:
        """Predictions for rows with these outputs of :meth:`decision_function`."""
        return np.where(values >= 0, 1, -1) if self.one_class else values

    def _answer(self, part: int, rows: Rows) -> NDArray[np.float64]:
        return self.parts[part].predict(rows, self.kernel)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Rows]]:
        kernel = None if self.kernel is None else self.kernel.stored()
        return {"svm_type": self.svm_type, "kernel": kernel, "params": self.params}, {}

    @classmethod
    def _part_sizes(cls, attributes: dict[str, Any], shared: dict[str, Any], number: int) -> dict[str, int]:
        return {"e": 0 if attributes["kernel"] is None else shared["centers"].shape[1]}

    @classmethod
    def _from_contents(
        cls, attributes: dict[str, Any], shared: dict[str, Any], parts: model_file.StoredParts
    ) -> SVRModel:
        kernel, d = attributes.pop("kernel"), shared["centers"].shape[1]
        attributes["kernel"] = None if kernel is None else Kernel(**kernel)
        parts.held = {number: PartSVR(**fields) for number, fields in parts.held.items()}
        for number, part in parts.held.items():
            rows = part.rows
            fits = not len(rows) or (rows.min() >= 0 and (kernel is not None or rows.max() < d))
            require(fits, f"the arrays of part {number} do not fit together")
        if attributes["route"] == "sum":  # one piece per rank instead of several
            one_piece_a_rank(shared, parts, join)
        return super()._from_contents(attributes, shared, parts)

    def _check(self) -> None:
        super()._check()
        require(self.svm_type in self.types, f"svm_type {self.svm_type!r}")
        require(self.route in ("nearest", "soft", "all", "sum"), f"route {self.route!r}")
        valid = isinstance(self.params, dict) and set(self.params) <= set(PARAMETERS)
        require(valid and all(is_real(value) and value >= 0 for value in self.params.values()), "its parameters")
