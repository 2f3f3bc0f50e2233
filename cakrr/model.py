"""A trained model in parts: routing, prediction, saving and loading."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator, collective
from cacore.data.rows import Rows
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.io import model_file
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
        rows = kernel.points(self.X.astype(self.alpha.dtype, copy=False))
        return kernel.apply(kernel.points(X.astype(self.alpha.dtype, copy=False), like=rows), rows, self.alpha)


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
    like : Kernel
        The kernel, of any width.
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
    like: Kernel = field(default_factory=Kernel)
    parts: dict[int, PartModel] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    comm: Any = field(default=None, repr=False, compare=False)

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
        attributes = {
            "method": self.method, "route": self.route, "sigma": self.sigma, "lambda": self.lam,
            "offset": self.offset, "dtype": self.dtype, "source": self.source,
            "soft": None if self.soft is None else asdict(self.soft),
            "coarse": None if self.coarse is None else {"sigma": self.coarse.sigma, "lambda": self.coarse.lam},
        }  # fmt: skip
        if self.like.kind != "gaussian":
            attributes["kernel"] = asdict(self.like)
        shared: dict[str, Rows] = {"centers": self.centers, "sizes": self.sizes}
        if self.coarse is not None:
            shared |= {"coarse_centers": self.coarse.centers, "coarse_beta": self.coarse.beta}
        if self.standardizer is not None:
            shared.update(asdict(self.standardizer))
        parts = {part: {"X": model.X, "alpha": model.alpha} for part, model in self.parts.items()}
        with self._ranks(comm) as ranks:
            with ranks.agreed():
                self._check_ranks(ranks)
                if self.route == "oracle":
                    raise InputError(
                        f"{self.method} is an oracle, a bound that looks at the answers: it saves no model"
                    )
            model_file.save(path, "krr", attributes, shared, parts, self.owners, ranks)

    @classmethod
    def load(cls, path: str | Path, comm: Any = None) -> KRRModel:
        """Read a model on any number of ranks; collective."""
        with collective(comm) as ranks:
            attributes, shared, parts, owners = model_file.load(path, "krr", ranks)
            with ranks.agreed():
                try:
                    model = cls._made(attributes, shared, parts, owners)
                except (KeyError, TypeError) as error:
                    raise InputError(f"{path}: a damaged model file, without {error}") from error
        model.comm = comm
        return model

    @classmethod
    def _made(
        cls, attributes: dict[str, Any], shared: dict[str, Rows], parts: dict[int, Any], owners: NDArray[np.int64]
    ) -> KRRModel:
        """The model of what its file holds."""
        soft, coarse = attributes.get("soft"), attributes.get("coarse")
        like = Kernel(**attributes.get("kernel", {}))
        model = cls(
            attributes["method"], attributes["route"], attributes["sigma"], attributes["lambda"],
            attributes["offset"], shared["centers"], shared["sizes"], owners,
            Standardizer(shared["mean"], shared["scale"]) if "mean" in shared else None, attributes["dtype"],
            None if soft is None else Soft(**soft), like=like, source=attributes["source"],
            parts={part: PartModel(fields["X"], np.asarray(fields["alpha"])) for part, fields in parts.items()},
        )  # fmt: skip
        if coarse is not None:
            beta = shared["coarse_beta"]
            model.coarse = CoarseModel(shared["coarse_centers"], beta, coarse["sigma"], coarse["lambda"], like)
        return model
