"""Predictive standard deviations, by the model's route, on all ranks, and their noise factors.

Each part's model has its own predictive variance (:mod:`cakrr.solver.variance`) with its own unit, so noise that
differs between parts is captured. If several models predict a row, with weights w of sum 1, their precisions are
averaged: 1 / variance = sum of w / variance of each model (a generalised product of experts; Cao and Fleet, 2014).
Uncertain models then count less, and the variance is never below the smallest one, since the errors of the parts are
not independent. Predictions do not depend on the variances.

In a two-level model, the coarse model's variance (:mod:`cakrr.solver.coarse`) is added to the variance of the
parts' models of its residual. It is small near training rows and large far from them. A refined coarse model has no
normal equations, and its variance is ignored.

Noise factors of the standard deviations in adaptive intervals come from leave-one-out errors. Leave-one-out errors and
their standard deviations have closed forms. The regression of :mod:`cakrr.solver.variance` over all of them needs one
Allreduce of a few thousand numbers. Its factors make intervals narrow where there is little noise. The factors need not
be correct: intervals are calibrated on rows set aside, and keep their coverage with any factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, Rows, concatenate, csr, gather_rows, in_memory, is_sparse
from cacore.errors import InputError
from cacore.kernels.given import is_of_new_rows
from cacore.linalg import tsqr
from cacore.machine import memory
from cakrr.ridge_predictor import PartModel, RidgePredictor
from cakrr.solver.coarse import CoarseSums, CoarseVariance, factor_of
from cakrr.solver.nystrom import PointVariance
from cakrr.solver.variance import MOST, LeftOutRows, Noise, NoiseRows, Variance, factored, fit, unpacked

WHOLE = -1  # part number of an exact model, whose rows are in pieces
_REMEDY = "use more parts, more ranks or a larger memory limit"


def predict(
    model: RidgePredictor, X: AnyRows, comm: Communicator, limit: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predictions and predictive standard deviations for this rank's rows; a collective call.

    Parameters
    ----------
    model : RidgePredictor
        A regression model.
    X : array-like or CSR, shape (n_local, d)
    comm : Communicator
    limit : int, optional
        Memory limit of this rank in bytes; by default its share of the free memory.

    Returns
    -------
    mean, std : ndarray, shape (n_local,) or (n_local, t)

    Raises
    ------
    InputError
        On all ranks: the model has no variances, or a matrix does not fit.

    Notes
    -----
    A row costs m^2 flops per model of m rows that predicts it. A factor that the model does not store costs 2/3 m^3
    flops and 8 m^2 bytes per part. If the factors of all parts on a rank fit in memory, they are kept for the next
    call; otherwise they are computed one at a time in every call. Rows are sent as for a prediction, and two numbers
    per row are sent back. The exact model needs all rows and the factor of their matrix on every rank. A coarse model
    with M centres costs 2 M^2 flops per row, and once n_local M^2 + 2 M^3 flops and an Allreduce of M^2 numbers, since
    model files do not hold its factors.
    """
    with comm.agreed():
        check(model)
    Z = model.standardized(X, comm)
    if model.on_points:
        with comm.agreed():
            variance = _of_points(model, comm, limit)(Z)
        return np.asarray(model.base(Z)), np.sqrt(variance)
    if model.route == "sum":
        mean = predicted_together(model, Z, comm)
        variance = whole(model, comm, limit)(Z)
    else:
        values, weights = model.consult(Z, Held(model, comm, limit).answer, comm, (*model.target_shape, 2))
        mean = np.einsum("ij...,ij->i...", values[..., 0], weights)
        precisions = np.ascontiguousarray(values[..., 1])  # the order of einsum's sums depends on strides
        variance = 1.0 / np.einsum("ij...,ij->i...", precisions, weights)
    if model.coarse is not None and not model.coarse.refined:
        variance += _of_coarse(model, comm, limit)(Z)
    return mean + model.base(Z), np.sqrt(variance)


def predicted_together(model: RidgePredictor, Z: AnyRows, comm: Communicator) -> NDArray[np.float64]:
    """Predictions of an exact model in pieces for standardised rows, without the offset; collective."""
    return model.consult(Z, model.answer, comm, model.target_shape)[0][:, 0]


def check(model: RidgePredictor) -> None:
    """Raise an InputError if the model has no standard deviations."""
    if model.route == "oracle":
        raise InputError(f"{model.method} is an oracle: it needs the true targets and cannot predict")
    if model.classes is not None:
        raise InputError("standard deviations: the model is a classifier, whose predictions are classes")
    if is_of_new_rows(model.like):
        raise InputError(
            "standard deviations: a precomputed kernel lacks the values of new rows with themselves; give a callable "
            "kernel"
        )


class Held:
    """Variances of this rank's parts: kept in memory, or computed on demand if they do not all fit; collective."""

    def __init__(self, model: RidgePredictor, comm: Communicator, limit: int | None = None) -> None:
        self.model = model
        self.left_out: dict[int, LeftOutRows] = {}  # leave-one-out errors of parts whose factors were computed here
        limit = memory.limit_per_rank(comm) if limit is None else limit
        missing = [model.sizes[part] for part in model.parts if part not in model.variances]
        self.stay = matrices_bytes(missing) <= limit
        with comm.agreed():
            largest = max(missing, default=0)
            what = f"the factor of a part of {largest:,} rows, for standard deviations,"
            memory.require(matrices_bytes([largest]), limit, what, _REMEDY)
            for part in sorted(model.parts) if self.stay else ():
                self.of(part)

    def of(self, part: int) -> Variance:
        """Variance of a part's model."""
        variance = self.model.variances.get(part)
        if variance is None:
            variance, left_out = _variance_of_part(self.model, part)
            if left_out is not None:
                self.left_out[part] = left_out
            if self.stay:
                self.model.variances[part] = variance
        return variance

    def answer(self, part: int, rows: Rows) -> NDArray[np.float64]:
        """Mean and precision (1 / variance), side by side, shape (len(rows), ..., 2)."""
        variance = np.maximum(self.of(part)(rows), np.finfo(np.float64).tiny)  # it is 0 for a constant target
        return np.stack([self.model.answer(part, rows), 1.0 / variance], axis=-1)


def _of_points(model: RidgePredictor, comm: Communicator, limit: int | None) -> PointVariance:
    """Variance of a model on M points, from its stored triangle; M^3/3 flops on every rank."""
    coarse = model.coarse
    assert coarse is not None
    assert coarse.factor is not None
    assert coarse.unit is not None
    M, limit = coarse.centers.shape[0], (1 << 62) if limit is None else limit
    what = f"the factors of {M:,} centers, for standard deviations,"
    memory.require(4 * matrices_bytes([M]), limit, what, "use fewer centers, or a larger memory limit")
    kernel, weight = coarse.kernel.with_sigma(coarse.sigma), coarse.weight
    L = np.tril(factor_of(coarse.centers, kernel))
    unit = coarse.unit if model.target_shape else float(coarse.unit[0])
    points = kernel.points(coarse.centers)
    return PointVariance(
        points, kernel, L, tsqr.unpacked(coarse.factor, M), coarse.lam * weight, coarse.rows / weight, unit
    )


def _of_coarse(model: RidgePredictor, comm: Communicator, limit: int | None) -> CoarseVariance:
    """Variance of the coarse model, on every rank; computed on first use. Collective."""
    if comm.all(model.coarse_variance is not None) and model.coarse_variance is not None:
        return model.coarse_variance
    coarse = model.coarse
    assert coarse is not None
    with comm.agreed():
        M = coarse.centers.shape[0]
        limit = memory.limit_per_rank(comm) if limit is None else limit
        what = f"the factors of {M:,} centers, for standard deviations,"
        memory.require(5 * matrices_bytes([M]), limit, what, "use fewer centers, or a larger memory limit")
        sums, first = CoarseSums(coarse, model.target_shape), len(model.sizes) // model.divisions
        for part in sorted(model.parts):
            if part < first:  # further divisions have the same rows
                part_model = model.parts[part]
                sums.add(part_model.X, learned(model, part), row_weights(part_model))
    total = comm.allreduce(sums.packed())
    with comm.agreed():
        variance = sums.variance(total)
        if variance is None:
            raise InputError("standard deviations: the coarse model's equations have no factor; use a larger lambda")
    model.coarse_variance = variance
    return variance


def learned(model: RidgePredictor, part: int) -> NDArray[np.float64]:
    """Targets of a part's model, minus the offset and the coarse model's predictions; m^2 d flops."""
    part_model = model.parts[part]
    weights = row_weights(part_model)
    noise = model.lam_of(part) * len(weights) * weights.mean() / weights
    return np.asarray(
        scaled(part_model.alpha, noise) + part_model.predict(in_memory(part_model.X), model.kernel_of(part))
    )


def learned_by_part(model: RidgePredictor, comm: Communicator) -> dict[int, NDArray[np.float64]]:
    """:func:`learned` for this rank's parts, or its pieces of an exact model, which take n^2 d flops; collective."""
    parts = sorted(model.parts.items())
    if model.route != "sum":
        with comm.agreed():
            return {part: learned(model, part) for part, _ in parts}
    weights = [row_weights(part_model) for _, part_model in parts]
    (total,) = comm.allreduce(np.array([sum(part_model.sum() for part_model in weights)], np.float64))
    Z = concatenate([part_model.X for _, part_model in parts]) if parts else np.zeros((0, model.n_columns), model.dtype)
    predicted, first, targets = predicted_together(model, Z, comm), 0, {}
    for (part, part_model), weight in zip(parts, weights, strict=True):
        rows = slice(first, first := first + len(weight))
        targets[part] = scaled(part_model.alpha, model.lam * total / weight) + predicted[rows]
    return targets


def scaled(alpha: NDArray[np.floating], by: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each row of `alpha` times one number of `by`."""
    return np.asarray((alpha.T * by).T, np.float64)


def matrices_bytes(sizes: Any) -> int:
    """Bytes of square matrices of these sizes, in double precision."""
    return 8 * sum(int(m) ** 2 for m in sizes)


def factored_part(model: RidgePredictor, part: int) -> tuple[Variance, LeftOutRows]:
    """Variance of one of this rank's parts, computed from its rows, and their leave-one-out errors."""
    part_model = model.parts[part]
    solved = factored(
        in_memory(part_model.X), part_model.alpha, model.kernel_of(part), model.lam_of(part), part_model.weight
    )
    return _solved(solved, f"part {part}")


def _solved(solved: tuple[Variance, LeftOutRows] | None, where: str) -> tuple[Variance, LeftOutRows]:
    if solved is None:
        raise InputError(
            f"standard deviations: {where} has no factor, its matrix is not positive definite; use a larger lambda"
        )
    return solved


def _variance_of_part(model: RidgePredictor, part: int) -> tuple[Variance, LeftOutRows | None]:
    """A part's variance from its stored factor, or else from its rows, with their leave-one-out errors."""
    part_model = model.parts[part]
    if part_model.factor is None or part_model.unit is None:
        return factored_part(model, part)
    kernel, lam = model.kernel_of(part), model.lam_of(part)
    return unpacked(
        in_memory(part_model.X), kernel, lam, part_model.factor, part_model.unit, bool(model.target_shape)
    ), None


def keep(model: RidgePredictor, comm: Communicator, limit: int) -> dict[int, LeftOutRows]:
    """Store the factors of this rank's parts in the model, so that they are saved with it; collective.

    Returns the leave-one-out errors of each part. 2/3 m^3 flops per part; 8 m^2 bytes in memory, half of that in the
    file.
    """
    held = Held(model, comm, limit)
    with comm.agreed():
        for part, part_model in model.parts.items():
            variance = held.of(part)
            model.parts[part] = replace(part_model, factor=variance.packed(), unit=np.atleast_1d(variance.unit))
    return held.left_out


def left_out(model: RidgePredictor, comm: Communicator, limit: int) -> dict[int, LeftOutRows]:
    """Leave-one-out errors of the rows in this rank's parts, or of the exact model; collective."""
    if model.route != "sum":
        with comm.agreed():
            return {part: factored_part(model, part)[1] for part in sorted(model.parts)}
    _, all_rows = pooled(model, comm, limit)
    first, _ = comm.offset(sum(len(part_model.alpha) for part_model in model.parts.values()))
    by_part = {}
    for part, part_model in sorted(model.parts.items()):
        rows = slice(first, first := first + len(part_model.alpha))
        by_part[part] = LeftOutRows(all_rows.errors[rows], all_rows.deviations[rows])
    return by_part


@dataclass(frozen=True, eq=False)
class LeftOutPart:
    """The rows of a part with their leave-one-out errors.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
    learned : ndarray, shape (m,) or (m, t)
        Targets of the part's model: minus the offset and `coarse`.
    coarse : ndarray, shape (m,) or (m, t), or 0
        Predictions of the coarse model.
    errors, deviations : ndarray, shape (m,) or (m, t)
        See :class:`cakrr.solver.variance.LeftOutRows`.
    """

    X: AnyRows
    learned: NDArray[np.float64]
    coarse: NDArray[np.float64] | float
    errors: NDArray[np.float64]
    deviations: NDArray[np.float64]


def left_out_parts(
    model: RidgePredictor, left_out_rows: Mapping[int, LeftOutRows], comm: Communicator
) -> Iterator[tuple[int, LeftOutPart]]:
    """Yield the rows and leave-one-out errors of each part, given the result of :func:`left_out`; collective.

    The predictions of a coarse model are computed part by part, m M d flops each.
    """
    targets = learned_by_part(model, comm)

    def left_out_of_part(part: int) -> tuple[int, LeftOutPart]:
        X, rows = model.parts[part].X, left_out_rows[part]
        coarse = 0.0 if model.coarse is None else model.coarse.predict(X)
        return part, LeftOutPart(X, targets[part], coarse, rows.errors, rows.deviations)

    return (left_out_of_part(part) for part in sorted(left_out_rows))


def joined(model: RidgePredictor, values: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Values of this rank's parts, one part after the other; an empty array if it has no parts."""
    return np.concatenate([np.zeros((0, *model.target_shape)), *values])


def pooled(model: RidgePredictor, comm: Communicator, limit: int) -> tuple[Variance, LeftOutRows]:
    """Variance and leave-one-out errors of an exact model stored in pieces, on every rank for all rows; collective."""
    n = int(model.sizes.sum())
    with comm.agreed():
        what = f"the factor of all {n:,} rows, on every rank, for standard deviations,"
        memory.require(matrices_bytes([n]), limit, what, "use a method in parts, or a larger memory limit")
    pieces = [model.parts[part] for part in sorted(model.parts)]
    X = _rows(pieces, model, comm)
    alpha = comm.allgather(joined(model, (piece.alpha.astype(np.float64) for piece in pieces)))
    weighted = not comm.all(all(piece.weight is None for piece in pieces))
    weights = None
    if weighted:
        weights = comm.allgather(np.concatenate([np.zeros(0), *(row_weights(piece) for piece in pieces)]))
    with comm.agreed():
        return _solved(factored(X, alpha, model.kernel, model.lam, weights), "the model of all rows")


def row_weights(part_model: PartModel) -> NDArray[np.float64]:
    """Sample weights of a part's rows; 1 if there are none."""
    return np.ones(part_model.X.shape[0]) if part_model.weight is None else part_model.weight


def _rows(pieces: list[PartModel], model: RidgePredictor, comm: Communicator) -> Rows:
    """Rows of all pieces, on every rank."""
    sparse = not comm.all(not pieces or not is_sparse(pieces[0].X))
    if pieces:
        return gather_rows(concatenate([piece.X for piece in pieces]), comm)
    none = np.zeros((0, model.n_columns), model.dtype)  # a rank without rows cannot tell if they are sparse
    if sparse:
        return gather_rows(csr(none[:, 0], np.zeros(0, np.int64), np.zeros(1, np.int64), none.shape), comm)
    return gather_rows(none, comm)


def whole(model: RidgePredictor, comm: Communicator, limit: int | None = None) -> Variance:
    """Variance of an exact model of all rows, on every rank; computed on first use. Collective."""
    stored = comm.all(WHOLE in model.variances)
    if not stored:
        variance, _ = pooled(model, comm, memory.limit_per_rank(comm) if limit is None else limit)
        model.variances[WHOLE] = variance
    return model.variances[WHOLE]


Found = tuple[Noise, list[NDArray[np.float64]]]


def of_rows_left_out(model: RidgePredictor, left_out: Mapping[int, LeftOutRows], comm: Communicator) -> Found:
    """Fit the noise factors to the leave-one-out errors of all rows; a collective call.

    Returns the curves, and for each row the factor by curves fitted without this row. Each row is left out of its own
    part, or of the exact model. Only the first division is used, since further divisions have the same rows. Standard
    deviations do not include the variance of a coarse model.

    Notes
    -----
    m^2 d flops per part of m rows, and the cost of :func:`cakrr.solver.variance.fit`.
    """
    first = len(model.sizes) // model.divisions
    noise_rows = [
        NoiseRows(
            left_out_part.X,
            left_out_part.learned - left_out_part.errors + left_out_part.coarse,
            left_out_part.errors,
            left_out_part.deviations,
        )
        for part, left_out_part in left_out_parts(model, left_out, comm)
        if part < first
    ]
    curves = comm.all(not any(is_sparse(left_out_part.X) for left_out_part in noise_rows)) and model.n_columns <= MOST
    return fit(noise_rows, model.n_columns if curves else 0, model.target_shape, comm)
