"""Ridge models of a part, the coarse one, and all parts with routing, prediction, saving and loading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike, Communicator
from cacore.data.encoding import Columns
from cacore.data.labels import check_classes, read_classes, stored_classes
from cacore.data.rows import AnyRows, Rows, dense, in_memory, nbytes
from cacore.errors import InputError
from cacore.io import model_file
from cacore.io.model_file import Array, Layout, is_real, require
from cacore.kernels import Kernel
from cacore.near.expansion import Piece, expansion
from cacore.near.halo import near_ranks, visit_near
from cacore.probability.calibrator import CALIBRATOR, Calibrator
from cacore.probability.conformal import JACKKNIFE, Calibration
from cacore.svm.decision import Expansion
from cakrr.solver.coarse import CoarseModel, CoarseVariance
from cakrr.solver.variance import Noise, Variance
from partition.parts_model import SHARED, Answer, InParts, nearest, visit

_JOINED = 1 << 28  # bytes of pieces that are joined for predictions


@dataclass
class PartModel:
    """The model of one part: its rows and their coefficients.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
        Training rows; may be stored in a file and read when used.
    alpha : ndarray, shape (m,) or (m, t)
    weight : ndarray, shape (m,), or None
        Sample weights, if any.
    factor : ndarray, shape (m (m + 1) / 2,), or None
        Cholesky factor of the part's matrix, if stored.
    unit : ndarray, shape (1,) or (t,), or None
        Unit of the predictive variances, stored with the factor: see :mod:`cakrr.solver.variance`.
    errors : ndarray, shape (e,) or (e, t), or None
        Calibration errors |y - f(x)|, ascending: of those rows set aside for intervals that are nearest to the part's
        centre.
    left_out : ndarray, shape (m,) or (m, t), or None
        Leave-one-out errors y - f(x) of the part's rows, for jackknife+ intervals.
    """

    X: AnyRows
    alpha: NDArray[np.floating]
    weight: NDArray[np.float64] | None = None
    factor: NDArray[np.float64] | None = None
    unit: NDArray[np.float64] | None = None
    errors: NDArray[np.float64] | None = None
    left_out: NDArray[np.float64] | None = None

    def expansion(self, kernel: Kernel) -> Expansion:
        """The part's function, with one output per target."""
        weights = np.asarray(self.alpha, np.float64).reshape(len(self.alpha), -1)
        return Expansion(self.X, weights, np.zeros(weights.shape[1]), kernel)

    def predict(self, X: Rows, kernel: Kernel, all_pairs: bool = False) -> NDArray[np.floating]:
        """Predictions ``K(X, rows) alpha`` (eq. 3.7) in the precision of alpha.

        2 len(X) m (d + t) flops, in blocks; less where the kernel ends, unless `all_pairs` count: see
        :func:`cacore.near.expansion.expansion`.
        """
        return expansion(kernel, [self.piece], X.astype(self.alpha.dtype, copy=False), all_pairs)

    @property
    def piece(self) -> Piece:
        """The rows, in memory and in the precision of alpha, and alpha."""
        return in_memory(self.X).astype(self.alpha.dtype, copy=False), self.alpha


def joined(
    parts: Sequence[PartModel], kernel: Kernel, shape: tuple[int, ...], all_pairs: bool = False
) -> Callable[[Rows], NDArray[np.float64]]:
    """The function of rows X that sums up the predictions of parts of one model, (len(X), *shape).

    Pieces are joined, up to `_JOINED` bytes, so that a kernel that ends needs no distant pairs of all of them, unless
    `all_pairs` count.
    """
    ends = np.cumsum([nbytes(part.X) for part in parts]) // _JOINED

    def predict(X: Rows) -> NDArray[np.float64]:
        total = np.zeros((X.shape[0], *shape))
        for _, numbers in groupby(range(len(parts)), lambda number: int(ends[number])):
            pieces = [parts[number].piece for number in numbers]
            total += expansion(kernel, pieces, X.astype(pieces[0][1].dtype, copy=False), all_pairs)
        return total

    return predict


def summed(
    parts: Sequence[PartModel], kernel: Kernel, Z: AnyRows, comm: Communicator, shape: tuple[int, ...],
    all_pairs: bool = False,
) -> NDArray[np.float64]:  # fmt: skip
    """Sum of all ranks' parts of one model for this rank's rows, shape (n_local, *shape); collective.

    Where the kernel ends, rows visit only the ranks that have rows near them, if that saves much and not `all_pairs`
    count. A model trained with ``near`` has neighbouring rows on one rank.
    """
    answer = joined(parts, kernel, shape, all_pairs)
    near = None if all_pairs else near_ranks(kernel, [part.piece for part in parts], Z, comm)
    return visit(Z, answer, comm, shape) if near is None else visit_near(dense(Z), near, answer, comm, shape)


# Arrays of a model file, and of each part: parts of m rows, a coarse model with M centres.
ARRAYS: Layout = {
    **SHARED,
    "sigmas": Array("float64", ("P",), "sigma of each part, if parts chose their own", optional=True),
    "lams": Array("float64", ("P",), "lambda of each part, if parts chose their own", optional=True),
    "coarse_centers": Array("float64", ("M", "d"), "centres of the coarse model", csr=True, optional=True),
    "coarse_beta": Array("float64", ("M",), "coefficients of the coarse centres", optional=True, many="t"),
    "coarse_factor": Array(
        "float64", ("M (M + 1) / 2",), "triangle of the least squares on these centres, by columns", optional=True
    ),
    "coarse_unit": Array("float64", ("u",), "unit of the variances that it gives", optional=True),
    "error_ranks": Array("int64", ("q",), "ranks of the errors stored for intervals, among n", optional=True),
    "errors": Array("float64", ("q",), "absolute errors of these ranks", optional=True, many="t"),
    "scaled_errors": Array("float64", ("q",), "same, over the scales of adaptive intervals", optional=True, many="t"),
    "noise": Array("float64", ("f", "7"), "curves that describe how the noise varies", optional=True, many="t"),
    **CALIBRATOR,
}
PART: Layout = {
    "X": Array("real", ("m", "d"), "the part's training rows, standardised", csr=True),
    "alpha": Array("real", ("m",), "coefficients of these rows", many="t"),
    "weight": Array("float64", ("m",), "sample weights of these rows", optional=True),
    "factor": Array("float64", ("m (m + 1) / 2",), "Cholesky factor of the part's matrix, row by row", optional=True),
    "unit": Array("float64", ("u",), "unit of the part's predictive variances", optional=True),
    "errors": Array("float64", ("e",), "calibration errors near its centre, ascending", optional=True, many="t"),
    "left_out": Array("float64", ("m",), "leave-one-out errors of these rows", optional=True, many="t"),
}


def stored_coarse(coarse: CoarseModel, like: Kernel) -> tuple[dict[str, Any], dict[str, Rows]]:
    """Attributes and arrays of a coarse model for the file of a model whose kernel is `like`."""
    attributes: dict[str, Any] = {"sigma": coarse.sigma, "lambda": coarse.lam}
    if coarse.refined:
        attributes["refined"] = True
    if coarse.kernel != like:
        attributes["kernel"] = coarse.kernel.stored()
    arrays: dict[str, Rows] = {"coarse_centers": coarse.centers, "coarse_beta": coarse.beta}
    if coarse.factor is not None and coarse.unit is not None:
        attributes |= {"weight": coarse.weight, "rows": coarse.rows}
        arrays |= {"coarse_factor": coarse.factor, "coarse_unit": coarse.unit}
    return attributes, arrays


def read_coarse(attributes: dict[str, Any] | None, arrays: dict[str, Any], like: Kernel) -> CoarseModel | None:
    """The coarse model that :func:`stored_coarse` has stored; None without attributes."""
    if attributes is None:
        return None
    kernel = Kernel(**attributes["kernel"]) if "kernel" in attributes else like
    return CoarseModel(
        arrays["coarse_centers"], arrays["coarse_beta"], attributes["sigma"], attributes["lambda"], kernel,
        bool(attributes.get("refined", False)), arrays.get("coarse_factor"), arrays.get("coarse_unit"),
        attributes.get("weight", 0.0), attributes.get("rows", 0),
    )  # fmt: skip


def check_coarse(coarse: CoarseModel) -> None:
    """Refuse a coarse model whose numbers cannot be those of a trained one."""
    coarse.kernel.with_sigma(coarse.sigma)
    factored = coarse.factor is not None
    require(factored == (coarse.unit is not None), "a triangle of the centres without its unit, or the reverse")
    require(not factored or (is_real(coarse.weight) and coarse.weight > 0), "weight of the triangle's rows")


Offset = float | NDArray[np.float64]  # mean of the targets: a number, or one per target, shape (t,)
Variances = dict[int, Variance]
_BALANCED = 1e-6  # size of an offset that decides the class of distant rows, whatever these add below the rounding


@dataclass(kw_only=True)
class RidgePredictor(InParts):
    """Ridge models of P parts, of which this rank holds some: their file, and predictions by route.

    :class:`cakrr.ridge_model.KRRModel` describes the attributes, and adds the uncertainty of predictions.
    """

    family = "krr"
    shared_arrays = ARRAYS
    part_arrays = PART

    sigma: float
    lam: float
    offset: Offset
    classes: NDArray[np.generic] | None = None
    coarse: CoarseModel | None = None
    sigmas: NDArray[np.float64] | None = None
    lams: NDArray[np.float64] | None = None
    like: Kernel = field(default_factory=Kernel)
    calibration: Calibration | None = None
    noise: Noise | None = None
    calibrator: Calibrator | None = None
    variances: Variances = field(default_factory=dict, repr=False, compare=False)
    coarse_variance: CoarseVariance | None = field(default=None, repr=False, compare=False)
    parts: dict[int, PartModel] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "variances": {}, "coarse_variance": None}

    @property
    def kernel(self) -> Kernel:
        """The kernel of width sigma."""
        return self.like.with_sigma(self.sigma)

    def sigma_of(self, part: int) -> float:
        """The width of a part's kernel."""
        return self.sigma if self.sigmas is None else float(self.sigmas[part])

    def lam_of(self, part: int) -> float:
        """The ridge of a part."""
        return self.lam if self.lams is None else float(self.lams[part])

    def kernel_of(self, part: int) -> Kernel:
        """The kernel of a part."""
        return self.like.with_sigma(self.sigma_of(part))

    @property
    def on_points(self) -> bool:
        """True for least squares on M points: all of the model is the coarse one, and no part learns its residual."""
        return self.coarse is not None and self.coarse.factor is not None

    @property
    def all_pairs(self) -> bool:
        """True if predictions include distant rows: of two classes of equal weight, the sign of any sum counts."""
        return self.classes is not None and len(self.classes) == 2 and bool(np.abs(self.offset) < _BALANCED)

    def expansion(self, part: int) -> Expansion:
        """The function of a part, before the offset and the coarse model are added."""
        return self.parts[part].expansion(self.kernel_of(part))

    def everywhere(self) -> list[Expansion]:
        """The offset and the coarse model."""
        offset = np.atleast_1d(np.asarray(self.offset, np.float64))
        if self.coarse is not None:
            return [self.coarse.expansion(offset)]
        return [Expansion(np.zeros((0, self.n_columns)), np.zeros((0, len(offset))), offset, self.kernel)]

    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that :meth:`explain` explains."""
        if self.classes is not None:
            return tuple(map(str, self.classes[1:] if len(self.classes) == 2 else self.classes))
        names, t = Columns.of_source(self.source).target, np.size(self.offset)
        return names if len(names) == t else tuple(f"y{i}" for i in range(t)) if self.target_shape else ("y",)

    def single_output(self) -> bool:
        """True if a target is a single number."""
        return not self.target_shape

    def described(self) -> dict[str, object]:
        """Entries of a report about the model."""
        return {"method": self.method, "sigma": self.sigma, "lambda": self.lam}

    def predict(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Predictions for this rank's rows; a collective call.

        Parameters
        ----------
        X : array-like or CSR, shape (n_local, d)
            Not changed.
        comm : mpi4py communicator, Communicator or None
            As many ranks as hold the model's parts; by default those that trained or loaded it.

        Returns
        -------
        ndarray, shape (n_local,) or (n_local, t)
            For a classifier, outputs for its indicator columns; :meth:`labels` turns them into labels.

        Notes
        -----
        With ``nearest`` and ``soft``, each row is sent to the ranks of its models, and predictions are sent back. With
        ``all`` and ``sum``, every row visits every rank, or those of :func:`cacore.near.halo.near_ranks`.
        """
        return self.predict_routes(X, comm)[self.route]

    def predict_routes(self, X: AnyRows, comm: CommLike = None) -> dict[str, NDArray[np.float64]]:
        """Predictions by route, as :meth:`predict`: the model's own route, and for "soft" also "nearest"."""
        with self._ranks(comm, "predict_routes") as ranks, ranks.phase("predict"):
            with ranks.agreed():
                if self.route == "oracle":
                    raise InputError(f"{self.method} is an oracle: it needs the true targets and cannot predict")
            Z = self.standardized(X, ranks)
            if self.on_points:
                return {self.route: np.asarray(self.base(Z))}
            if self.route == "sum" and self.coarse is None:
                parts = list(self.parts.values())
                answer = summed(parts, self.kernel, Z, ranks, self.target_shape, self.all_pairs)
                return {self.route: answer + self.base(Z)}
            values, weights = self.consult(Z, self.answer, ranks, self.target_shape)
            if self.soft is None:
                answers = {self.route: values.mean(axis=1)}
            else:
                nearest_ones = values[:, :: values.shape[1] // self.divisions]
                answers = {"soft": np.einsum("ij...,ij->i...", values, weights), "nearest": nearest_ones.mean(axis=1)}
            base = self.base(Z)
        return {route: answer + base for route, answer in answers.items()}

    def base(self, Z: AnyRows) -> Offset:
        """The offset and the coarse model's predictions for standardised rows, which finish those of the parts."""
        return self.offset if self.coarse is None else self.offset + self.coarse.predict(Z)

    def consult(
        self, Z: AnyRows, answer: Answer, comm: Communicator, shape: tuple[int, ...] = ()
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Answers of the models that the route selects for each row, and their weights; a collective call.

        Parameters
        ----------
        Z : ndarray or CSR, shape (n_local, d)
            This rank's rows, standardised.
        answer : callable
            ``answer(part, rows)`` returns the answer of one of this rank's parts, shape (len(rows), *shape).
        comm : Communicator
        shape : tuple of int

        Returns
        -------
        values : ndarray, shape (n_local, k, *shape)
            "nearest" and "soft": answers of the nearest models of each division. "all" and "sum": k = 1, the mean or
            the sum of all answers.
        weights : ndarray, shape (n_local, k)
            Weights of each row, with sum 1.

        Notes
        -----
        The communication is that of :meth:`predict`.
        """
        alone = np.ones((Z.shape[0], 1))
        if self.route in ("nearest", "soft"):
            if self.soft is None and self.divisions == 1:
                return self._asked(Z, nearest(Z, self.centers), comm, shape, answer)[:, None], alone
            return self._weighted(Z, comm, shape, answer)

        def together(rows: Rows) -> NDArray[np.float64]:
            total = np.zeros((rows.shape[0], *shape))
            for part in self.parts:
                total += answer(part, rows)
            return total

        share = len(self.sizes) if self.route == "all" else 1
        return (visit(Z, together, comm, shape) / share)[:, None], alone

    def answer(self, part: int, rows: Rows) -> NDArray[np.floating]:
        """Predictions of one of this rank's parts, before the offset and the coarse model are added."""
        return self.parts[part].predict(rows, self.kernel_of(part), self.all_pairs)

    _answer = answer  # the hook of InParts

    def oracle(self, X: AnyRows, y: NDArray[np.float64], comm: CommLike = None) -> NDArray[np.float64]:
        """Smallest error |f(x) - y| of the P models for each of this rank's rows, given targets `y`; collective."""

        def least(rows: Rows, target: NDArray[np.float64]) -> NDArray[np.float64]:
            gap = np.full((rows.shape[0], *self.target_shape), np.inf)
            for part in self.parts:
                gap = np.minimum(gap, np.abs(self.answer(part, rows) - target))
            return gap

        with self._ranks(comm, "oracle") as ranks, ranks.phase("predict"):
            Z = self.standardized(X, ranks)
            return visit(Z, least, ranks, self.target_shape, op="min", column=y - self.offset)

    def labels(self, values: NDArray[np.float64]) -> NDArray[np.generic]:
        """Labels from a classifier's outputs: the class with the largest output, the first in case of ties."""
        assert self.classes is not None
        codes = (values > 0).astype(np.int64) if values.ndim == 1 else values.argmax(axis=1)
        return np.asarray(self.classes[codes])

    def probabilities(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities of the classes, shape (n, k), from a classifier's outputs, which may leave [0, 1].

        Outputs are clipped at 0 and divided by their sum. If none is above 0, the smallest output is subtracted first,
        which preserves the order; equal outputs give equal probabilities. With two classes, the second probability is
        (1 + output) / 2. A calibrator replaces all this by its own probabilities, which are divided by their sum with
        more than two classes.
        """
        if self.calibrator is not None:
            return self.calibrator.of_classes(values[:, None] if values.ndim == 1 else values)
        if values.ndim == 1:
            second = np.clip((1.0 + values) / 2.0, 0.0, 1.0)
            return np.stack([1.0 - second, second], axis=1)
        least = values.min(axis=1, keepdims=True)
        share = np.where(values.max(axis=1, keepdims=True) > 0, np.maximum(values, 0.0), values - least)
        share[~share.any(axis=1)] = 1.0
        return np.asarray(share / share.sum(axis=1, keepdims=True))

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one row's prediction: () or (t,)."""
        return np.shape(self.offset)

    def save(self, path: str | Path, comm: CommLike = None) -> None:
        """Write the model to one HDF5 file, see :meth:`partition.parts_model.InParts.save`; refuses an oracle."""
        with self._ranks(comm, "save") as ranks, ranks.agreed():
            if self.route == "oracle":
                raise InputError(f"{self.method} is an oracle, which needs the true targets: its model cannot be saved")
        super().save(path, comm)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Rows]]:
        offset = np.asarray(self.offset).tolist()
        attributes: dict[str, Any] = {"sigma": self.sigma, "lambda": self.lam, "offset": offset, "coarse": None}
        if self.classes is not None:
            attributes |= stored_classes(self.classes)
        if self.like.kind != "gaussian":
            attributes["kernel"] = self.like.stored()
        stored: dict[str, Rows] = {}
        if self.sigmas is not None and self.lams is not None:
            stored |= {"sigmas": self.sigmas, "lams": self.lams}
        if self.calibration is not None:
            calibration = self.calibration
            attributes["calibration"] = {"n": calibration.n, "rows": calibration.rows}
            stored |= {"error_ranks": calibration.ranks, "errors": calibration.errors}
            stored |= {} if calibration.scaled is None else {"scaled_errors": calibration.scaled}
        if self.noise is not None:
            stored["noise"] = self.noise.table
        if self.calibrator is not None:
            attributes["probability"] = self.calibrator.attributes
            stored |= self.calibrator.arrays
        if self.coarse is not None:
            attributes["coarse"], arrays = stored_coarse(self.coarse, self.like)
            stored |= arrays
        return attributes, stored

    @classmethod
    def _part_sizes(cls, attributes: dict[str, Any], shared: dict[str, Any], number: int) -> dict[str, int]:
        targets = _targets(attributes)
        return {"m": int(shared["sizes"][number]), **targets, "u": max(1, targets["t"])}

    @classmethod
    def _shared_sizes(cls, attributes: dict[str, Any]) -> dict[str, int]:
        targets = _targets(attributes)
        return {**targets, "p": max(1, targets["t"]), "u": max(1, targets["t"])}

    @classmethod
    def _from_contents(cls, attributes: dict[str, Any], shared: dict[str, Any], parts: model_file.StoredParts) -> Self:
        like = Kernel(**attributes.pop("kernel", {}))
        coarse = read_coarse(attributes.pop("coarse", None), shared, like)
        if (calibration := attributes.pop("calibration", None)) is not None:
            errors = (shared["error_ranks"], shared["errors"], shared.get("scaled_errors"))
            attributes["calibration"] = Calibration(calibration["n"], calibration["rows"], *errors)
        attributes["noise"] = Noise(shared["noise"]) if "noise" in shared else None
        attributes["calibrator"] = Calibrator.stored(attributes, shared)
        attributes |= {name: shared.get(name) for name in ("sigmas", "lams")}
        attributes |= {"lam": attributes.pop("lambda"), "soft": attributes.get("soft"), "coarse": coarse, "like": like}
        if isinstance(attributes["offset"], list):
            attributes["offset"] = np.array(attributes["offset"], np.float64)
        if "classes" in attributes:
            attributes["classes"] = read_classes(attributes)
        parts.held = {part: PartModel(**fields) for part, fields in parts.held.items()}
        return super()._from_contents(attributes, shared, parts)

    def _check(self) -> None:
        super()._check()
        require(self.soft is None or self.route == "soft", f"weights of models, and route {self.route!r}")
        require(is_real(self.sigma) and self.sigma > 0, f"sigma {self.sigma!r}")
        self.like.with_sigma(self.sigma)
        require(is_real(self.lam) and self.lam >= 0, f"lambda {self.lam!r}")
        real = np.isfinite(self.offset).all() and np.size(self.offset) if self.target_shape else is_real(self.offset)
        require(bool(real), f"offset {self.offset!r}")
        for part in self.parts.values():
            require((part.factor is None) == (part.unit is None), "a factor without its unit, or a unit without factor")
            require(part.errors is None or (np.diff(part.errors, axis=0) >= 0).all(), "errors do not ascend")
            jackknife = self.calibration is not None and self.calibration.rows == JACKKNIFE
            require((part.left_out is not None) == jackknife, "leave-one-out errors do not match the kind of intervals")
            require(part.weight is None or min(part.weight) > 0, "a sample weight is not above 0")
        require((self.sigmas is None) == (self.lams is None), "sigmas or lams without the other")
        if self.sigmas is not None and self.lams is not None:
            require(min(self.sigmas) > 0 and min(self.lams) >= 0, "a sigma is not above 0, or a lambda is negative")
        if self.calibration is not None:
            self.calibration.check()
        if self.noise is not None:
            self.noise.check(self.n_columns)
        require(self.calibrator is None or self.classes is not None, "probabilities without classes")
        if self.classes is not None:
            check_classes(self.classes)
            columns = () if len(self.classes) == 2 else (len(self.classes),)
            require(self.target_shape == columns, f"{len(self.classes)} classes, values of shape {self.target_shape}")
        if self.coarse is not None:
            check_coarse(self.coarse)


def _targets(attributes: dict[str, Any]) -> dict[str, int]:
    """The size t of the model file's arrays; 0 if a target is a single number."""
    return {"t": len(attributes["offset"]) if isinstance(attributes["offset"], list) else 0}
