"""A trained model in parts: routing, prediction, saving and loading."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator, as_communicator
from cacore.data.rows import Rows
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.io import model_file as models
from cacore.kernels import Kernel
from cakrr.solver.coarse import CoarseModel
from partition.asking import ask, visit
from partition.model import InParts
from partition.routing import Soft, closest, nearest


@dataclass
class PartModel:
    """The model of one part: its rows and their coefficients."""

    X: Rows
    alpha: NDArray[Any]

    def predict(self, X: Rows, kernel: Kernel) -> NDArray[Any]:
        """``K(X, rows) alpha`` (eq. 3.7): 2 len(X) m d flops in blocks, in the precision of alpha."""
        mine = kernel.points(self.X.astype(self.alpha.dtype, copy=False))
        return kernel.apply(kernel.points(X.astype(self.alpha.dtype, copy=False), like=mine), mine, self.alpha)


@dataclass
class KRRModel(InParts):
    """Kernel ridge regression models of P parts, of which this rank holds some.

    Attributes
    ----------
    method : str
    route : {"nearest", "soft", "all", "sum", "oracle"}
        The model of the nearest centre answers, the weighted mean of those of the nearest centres, the
        mean of all P models, or, where the parts are pieces of one model, their sum. "oracle" models
        do not predict: see :meth:`oracle`.
    sigma, lam : float
    offset : float
        Mean of the training targets, added to every prediction.
    centers : ndarray, shape (P, d)
        In standardised features.
    sizes : ndarray of int64, shape (P,)
    owners : ndarray of int64, shape (P,)
        Rank of each part.
    standardizer : Standardizer or None
    dtype : str
        Of the rows.
    soft : Soft or None
        Of the route "soft".
    coarse : CoarseModel or None
        Of all rows; the parts' models are of what it leaves over. On every rank.
    parts : dict of int to PartModel
        This rank's.
    source : dict
        How the training file was read: its target column, the number of its first feature.
    comm : Communicator or None
        The ranks that hold the parts; not part of a copy or a pickle.
    """

    method: str
    route: str
    sigma: float
    lam: float
    offset: float
    centers: NDArray[np.float64]
    sizes: NDArray[np.int64]
    owners: NDArray[np.int64]
    standardizer: Standardizer | None
    dtype: str
    soft: Soft | None = None
    coarse: CoarseModel | None = None
    parts: dict[int, PartModel] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    comm: Any = field(default=None, repr=False, compare=False)

    @property
    def kernel(self) -> Kernel:
        """exp(-|x-z|^2 / (2 sigma^2))."""
        return Kernel.gaussian(self.sigma)

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
        comm = self._ranks(comm)
        with comm.guard(), comm.phase("predict"):
            with comm.agreed():
                if self.route == "oracle":
                    raise InputError(f"{self.method} is an oracle: it needs the true answers, and does not predict")
            Z = self._received(X, comm)
            if self.route in ("nearest", "soft"):
                answers = self._routed(Z, comm)
            else:
                share = len(self.sizes) if self.route == "all" else 1
                answers = {self.route: self._gathered(Z, comm) / share}
            base = self.offset + (self.coarse.predict(Z) if self.coarse is not None else 0.0)
        return {route: answer + base for route, answer in answers.items()}

    def oracle(self, X: Rows, y: NDArray[np.float64], comm: Any = None) -> NDArray[np.float64]:
        """The least error |f(x) - y| of the P models for each of this rank's rows: it looks at the answers `y`."""
        comm = self._ranks(comm)
        with comm.guard(), comm.phase("predict"):
            return self._gathered(self._received(X, comm), comm, y - self.offset)

    def _routed(self, Z: Rows, comm: Communicator) -> dict[str, NDArray[Any]]:
        if self.soft is None:
            return {"nearest": self._asked(Z, nearest(Z, self.centers), comm)}
        labels, squares = closest(Z, self.centers, min(self.soft.k, len(self.centers)))
        n, k = labels.shape
        values = self._asked(Z[np.arange(n).repeat(k)], labels.ravel(), comm).reshape(n, k)
        return {"soft": np.einsum("ij,ij->i", values, self.soft.weights(squares)), "nearest": values[:, 0]}

    def _asked(self, Z: Rows, labels: NDArray[np.int32], comm: Communicator) -> NDArray[Any]:
        """What the model of part ``labels[i]`` says of row i."""
        return ask(Z, labels, self.owners, self.parts, lambda p, rows: self.parts[p].predict(rows, self.kernel), comm)

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
        """Write the model to one HDF5 file; collective, by default on the ranks that trained or loaded it."""
        comm = self._ranks(comm)
        attributes = {
            "method": self.method, "route": self.route, "sigma": self.sigma, "lambda": self.lam,
            "offset": self.offset, "dtype": self.dtype, "source": self.source,
            "soft": None if self.soft is None else asdict(self.soft),
            "coarse": None if self.coarse is None else {"sigma": self.coarse.sigma, "lambda": self.coarse.lam},
        }  # fmt: skip
        shared: dict[str, Rows] = {"centers": self.centers, "sizes": self.sizes}
        if self.coarse is not None:
            shared |= {"coarse_centers": self.coarse.centers, "coarse_beta": self.coarse.beta}
        if self.standardizer is not None:
            shared.update(asdict(self.standardizer))
        parts = {part: {"X": model.X, "alpha": model.alpha} for part, model in self.parts.items()}
        with comm.guard():
            with comm.agreed():
                self._check_ranks(comm)
                if self.route == "oracle":
                    raise InputError(
                        f"{self.method} is an oracle, a bound that looks at the answers: it saves no model"
                    )
            models.save(path, "krr", attributes, shared, parts, self.owners, comm)

    @classmethod
    def load(cls, path: str | Path, comm: Any = None) -> KRRModel:
        """Read a model on any number of ranks; collective."""
        comm = as_communicator(comm)
        with comm.guard():
            attributes, shared, parts, owners = models.load(path, "krr", comm)
        try:
            soft, coarse = attributes.get("soft"), attributes.get("coarse")
            return cls(
                attributes["method"], attributes["route"], attributes["sigma"], attributes["lambda"],
                attributes["offset"], shared["centers"], shared["sizes"], owners,
                Standardizer(shared["mean"], shared["scale"]) if "mean" in shared else None, attributes["dtype"],
                None if soft is None else Soft(**soft),
                None if coarse is None else CoarseModel(
                    shared["coarse_centers"], shared["coarse_beta"], coarse["sigma"], coarse["lambda"]
                ),
                {part: PartModel(fields["X"], np.asarray(fields["alpha"])) for part, fields in parts.items()},
                attributes["source"], comm,
            )  # fmt: skip
        except (KeyError, TypeError) as error:
            failure = InputError(f"{path}: a damaged model file, without {error}")
            raise failure from error
