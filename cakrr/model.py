"""A trained model in parts: routing, prediction, saving and loading."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.errors import InputError
from cacore.io import model_file
from cacore.io.layout import Array, Layout
from cacore.io.model_file import is_real, require
from cacore.kernels import Kernel
from cakrr.solver.coarse import CoarseModel
from partition.model import SHARED, InParts, visit
from partition.routing import nearest


@dataclass
class PartModel:
    """The model of one part: its rows and their coefficients."""

    X: Rows
    alpha: NDArray[Any]

    def predict(self, X: Rows, kernel: Kernel) -> NDArray[Any]:
        """``K(X, rows) alpha`` (eq. 3.7): 2 len(X) m d flops in blocks, in the precision of alpha."""
        rows = kernel.points(self.X.astype(self.alpha.dtype, copy=False))
        return kernel.apply(kernel.points(X.astype(self.alpha.dtype, copy=False), like=rows), rows, self.alpha)


# Arrays of a model's file, and of each part: parts of m rows, a coarse model of M centres.
ARRAYS: Layout = {
    **SHARED,
    "coarse_centers": Array("float64", ("M", "d"), "of a coarse model of all rows", csr=True, optional=True),
    "coarse_beta": Array("float64", ("M",), "coefficients of the coarse centres", optional=True),
}
PART: Layout = {
    "X": Array("real", ("m", "d"), "the part's training rows, standardised", csr=True),
    "alpha": Array("real", ("m",), "their coefficients"),
}


@dataclass(kw_only=True)
class KRRModel(InParts):
    """Kernel ridge regression models of P parts, of which this rank holds some.

    Attributes
    ----------
    sigma, lam : float
    offset : float
        Mean of the training targets, added to every prediction.
    coarse : CoarseModel or None
        Of all rows; the parts' models are of what it leaves over. On every rank.
    like : Kernel
        The kernel, of any width.
    """

    family = "krr"
    shared_arrays = ARRAYS
    part_arrays = PART

    sigma: float
    lam: float
    offset: float
    coarse: CoarseModel | None = None
    like: Kernel = field(default_factory=Kernel)
    parts: dict[int, PartModel] = field(default_factory=dict)

    @property
    def kernel(self) -> Kernel:
        """The kernel of width sigma."""
        return self.like.with_sigma(self.sigma)

    def described(self) -> dict[str, Any]:
        """What a report says about the model."""
        return {"method": self.method, "sigma": self.sigma, "lambda": self.lam}

    def predict(self, X: Rows, comm: Any = None) -> NDArray[Any]:
        """Predictions for this rank's rows; a collective call.

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
        ``nearest``, ``soft``: each row travels to the ranks of its models, their predictions back.
        ``all``, ``sum``: every row visits every rank, and one reduction of n_test numbers adds up.
        """
        return self.predict_routes(X, comm)[self.route]

    def predict_routes(self, X: Rows, comm: Any = None) -> dict[str, NDArray[Any]]:
        """As :meth:`predict`, by route: the model's own, and for "soft" the nearest model's alone as well."""
        with self._ranks(comm) as ranks, ranks.phase("predict"):
            with ranks.agreed():
                if self.route == "oracle":
                    raise InputError(f"{self.method} is an oracle: it needs the true answers, and does not predict")
            Z = self._received(X, ranks)
            if self.route in ("nearest", "soft"):
                answers = self._routed(Z, ranks)
            else:
                share = len(self.sizes) if self.route == "all" else 1
                answers = {self.route: self._gathered(Z, ranks) / share}
            base = self.offset + (self.coarse.predict(Z) if self.coarse is not None else 0.0)
        return {route: answer + base for route, answer in answers.items()}

    def oracle(self, X: Rows, y: NDArray[np.float64], comm: Any = None) -> NDArray[np.float64]:
        """The least error |f(x) - y| of the P models for each of this rank's rows: it looks at the answers `y`."""
        with self._ranks(comm) as ranks, ranks.phase("predict"):
            return self._gathered(self._received(X, ranks), ranks, y - self.offset)

    def _routed(self, Z: Rows, comm: Communicator) -> dict[str, NDArray[Any]]:
        if self.soft is None:
            return {"nearest": self._asked(Z, nearest(Z, self.centers), comm)}
        values, weights = self._weighted(Z, comm)
        return {"soft": np.einsum("ij,ij->i", values, weights), "nearest": values[:, 0]}

    def _answer(self, part: int, rows: Rows) -> NDArray[Any]:
        return self.parts[part].predict(rows, self.kernel)

    def _gathered(self, Z: Rows, comm: Communicator, y: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """The sum of all models' predictions; or, given the answers `y`, the least distance of one from them."""

        def together(rows: Rows, target: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
            total = np.full(rows.shape[0], 0.0 if target is None else np.inf)
            for model in self.parts.values():
                values = model.predict(rows, self.kernel)
                total = total + values if target is None else np.minimum(total, np.abs(values - target))
            return total

        return visit(Z, together, comm, op="sum" if y is None else "min", column=y)

    def save(self, path: str | Path, comm: Any = None) -> None:
        """As every model in parts; an oracle has none."""
        with self._ranks(comm) as ranks, ranks.agreed():
            if self.route == "oracle":
                raise InputError(f"{self.method} is an oracle, a bound that looks at the answers: it saves no model")
        super().save(path, comm)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Rows]]:
        attributes: dict[str, Any] = {"sigma": self.sigma, "lambda": self.lam, "offset": self.offset, "coarse": None}
        if self.like.kind != "gaussian":
            attributes["kernel"] = self.like.stored()
        if self.coarse is None:
            return attributes, {}
        attributes["coarse"] = {"sigma": self.coarse.sigma, "lambda": self.coarse.lam}
        return attributes, {"coarse_centers": self.coarse.centers, "coarse_beta": self.coarse.beta}

    @classmethod
    def _part_sizes(cls, attributes: dict[str, Any], shared: dict[str, Any], number: int) -> dict[str, int]:
        return {"m": int(shared["sizes"][number])}

    @classmethod
    def _made(cls, attributes: dict[str, Any], shared: dict[str, Any], parts: model_file.Parts) -> KRRModel:
        coarse, like = attributes.pop("coarse", None), Kernel(**attributes.pop("kernel", {}))
        if coarse is not None:
            coarse = CoarseModel(
                shared["coarse_centers"], shared["coarse_beta"], coarse["sigma"], coarse["lambda"], like
            )
        attributes |= {"lam": attributes.pop("lambda"), "soft": attributes.get("soft"), "coarse": coarse, "like": like}
        parts.held = {part: PartModel(**fields) for part, fields in parts.held.items()}
        return super()._made(attributes, shared, parts)

    def _check(self) -> None:
        super()._check()
        require(is_real(self.sigma) and self.sigma > 0, f"sigma {self.sigma!r}")
        self.like.with_sigma(self.sigma)
        require(is_real(self.lam) and self.lam >= 0, f"lambda {self.lam!r}")
        require(is_real(self.offset), f"offset {self.offset!r}")
        if self.coarse is not None:
            self.coarse.kernel.with_sigma(self.coarse.sigma)
