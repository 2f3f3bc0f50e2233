"""Prediction intervals on all ranks, and calibrated probabilities of classifiers.

Intervals have a constant width, one per part, one scaled by standard deviations (:func:`answered`), or one per row
(:func:`predict`, jackknife+).

Probabilities are calibrated by leave-one-out predictions for the training rows (:func:`calibrator`). Least squares
needs no folds: the model without row i predicts y_i - alpha_i / (G^-1)_ii, where G is the part's matrix
(:mod:`cakrr.solver.variance`).

Jackknife+ intervals come from leave-one-out models in closed form (Barber, Candes, Ramdas and Tibshirani, 2021). A
part's model predicts f(x) = w^T y at x, with weights w = G^-1 K(rows, x) and G = K + lambda m I. The leave-one-out
error of row i is r_i = alpha_i / (G^-1)_ii. The model without row i, with the same ridge lambda m, has the coefficients
alpha - G^-1 e_i r_i, which are 0 at i, and predicts f(x) - w_i r_i. An interval with coverage c extends from the
floor((m + 1) (1 - c))-th smallest value of f(x) - w_i r_i - |r_i|, over the part's m rows, to the ceil((m + 1) c)-th
smallest value of f(x) - w_i r_i + |r_i|.

If the training rows and a new row are exchangeable, the interval contains the new target with probability at least
1 - 2 (1 - c) for any noise, and usually about c. The plain jackknife has no such guarantee: its intervals may miss most
targets if single rows change the model. The guarantee assumes that sigma, lambda, mean, scaling and centres were not
chosen from these rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, Rows
from cacore.errors import InputError
from cacore.kernels.given import is_of_new_rows
from cacore.learn.options import ADAPTIVE
from cacore.machine import threads
from cacore.probability.calibrator import Calibrator
from cacore.probability.conformal import (
    HELD_OUT,
    JACKKNIFE,
    Calibration,
    check_coverage,
    rank_of,
    rows_for,
    selected,
    shared_classes,
)
from cakrr.ridge_predictor import RidgePredictor
from cakrr.solver.variance import Variance
from cakrr.uncertainty import deviation
from cakrr.uncertainty.deviation import joined, left_out, left_out_parts
from partition.parts_model import nearest

Ends = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class IntervalRequest:
    """A request for standard deviations or intervals, in addition to predictions.

    Attributes
    ----------
    std : bool
        True to report predictive standard deviations.
    coverage : float or None
        Coverage of intervals; None for no intervals.
    adaptive : {"std", "parts"} or None
        Widths in proportion to standard deviations ("std" or True), or from each part's own errors ("parts").
    """

    std: bool = False
    coverage: float | None = None
    adaptive: Any = None

    def __post_init__(self) -> None:
        if self.coverage is not None:
            check_coverage(self.coverage)
        form = {True: "std", False: None}.get(self.adaptive, self.adaptive) if _is_plain(self.adaptive) else ""
        if form is not None and form not in ADAPTIVE:
            raise InputError(f"adaptive = {self.adaptive!r}: it must be one of True, False, {', '.join(ADAPTIVE)}")
        object.__setattr__(self, "adaptive", form)

    @property
    def needs_std(self) -> bool:
        """True if standard deviations must be computed, whether reported or not."""
        return self.std or (self.coverage is not None and self.adaptive == "std")

    def check(self, model: RidgePredictor) -> None:
        """Raise an InputError if the model cannot satisfy the request."""
        if self.needs_std:
            deviation.check(model)
        if self.coverage is None:
            return
        if calibration_of(model).rows == JACKKNIFE:
            self._check_jackknife(model, self.coverage)
        else:
            calibration_of(model).half_width(self.coverage, self.adaptive == "std")
            if self.adaptive == "std" and model.noise is None and model.coarse is not None:
                raise InputError(
                    "adaptive intervals: this two-level model was saved by an earlier version with a different scale "
                    "of its errors; train it again"
                )
            if self.adaptive == "parts" and not has_parts(model):
                raise InputError(
                    "adaptive parts: the model has no calibration errors per part; train with calibrate (--calibrate "
                    "0.1), in parts, and with a route other than all"
                )

    def _check_jackknife(self, model: RidgePredictor, coverage: float) -> None:
        if self.adaptive is not None:
            raise InputError("adaptive: jackknife+ intervals already have a width for each row; leave it out")
        if is_of_new_rows(model.like):
            raise InputError("jackknife+ intervals: models do not store a precomputed kernel; give a callable kernel")
        m = int(model.sizes.sum() if model.route == "sum" else model.sizes[model.sizes > 0].min())
        if rank_of(coverage, m) > m:
            raise InputError(
                f"coverage {coverage:g} needs {rows_for(coverage):,} rows in each part, and one has {m:,}: use fewer "
                "parts, or set rows aside (--calibrate 0.1)"
            )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | str)


def has_parts(model: RidgePredictor) -> bool:
    """True if parts have their own calibration errors: each row has a nearest part, and rows were set aside."""
    held = model.calibration is not None and model.calibration.rows == HELD_OUT
    return held and model.route in ("nearest", "soft")


def calibration_of(model: RidgePredictor) -> Calibration:
    """The model's calibration errors; raises an InputError if it has none."""
    if model.calibration is None:
        raise InputError(
            "intervals: the model was trained without calibrate; train it again with --calibrate 0.1, "
            "or by cakernels fit with --calibrate alone"
        )
    return model.calibration


def answered(
    model: RidgePredictor, X: AnyRows, request: IntervalRequest, comm: Communicator, limit: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None, Ends | None]:
    """Predictions, standard deviations and intervals for this rank's rows; a collective call.

    Parameters
    ----------
    model : RidgePredictor
    X : array-like or CSR, shape (n_local, d)
    request : IntervalRequest
    comm : Communicator
    limit : int, optional
        Bytes that this rank may use.

    Returns
    -------
    mean : ndarray, shape (n_local,) or (n_local, t)
    std : ndarray of the same shape, or None if not needed
    ends : tuple of two ndarrays of the same shape, lower and upper, or None without intervals

    Raises
    ------
    InputError
        On all ranks: the model cannot satisfy the request.

    Notes
    -----
    The cost is that of :func:`cakrr.uncertainty.deviation.predict` if standard deviations are needed, of
    :func:`predict` for jackknife+ intervals, and otherwise that of a prediction. Intervals
    per part add two Allreduces, of P and P t numbers, and 8 per target for the width of a class of several parts.
    """
    with comm.agreed():
        request.check(model)
    std = None
    if request.coverage is not None and calibration_of(model).rows == JACKKNIFE:
        if request.needs_std:
            _, std = deviation.predict(model, X, comm, limit)
        mean, lower, upper = predict(model, X, request.coverage, comm, limit)
        return mean, std, (lower, upper)
    if request.needs_std:
        mean, std = deviation.predict(model, X, comm, limit)
    else:
        mean = model.predict(X, comm)
    if request.coverage is None:
        return mean, std, None
    half = calibration_of(model).half_width(request.coverage, request.adaptive == "std")
    if request.adaptive == "std" and std is not None:
        half = half * scales(model, X, mean, std, comm)
    elif request.adaptive == "parts":
        half = _of_parts(model, request.coverage, comm)[nearest_part(model, model.standardized(X, comm))]
    return mean, std, (mean - half, mean + half)


def scales(
    model: RidgePredictor, X: AnyRows, mean: NDArray[np.float64], std: NDArray[np.float64], comm: Communicator
) -> NDArray[np.float64]:
    """Scales of adaptive intervals: standard deviations of these rows times noise factors; collective.

    A model of an earlier version has no noise factors; its standard deviations are the scales.
    """
    if model.noise is None:
        return std
    return std * model.noise(model.standardized(X, comm), mean - model.offset, std)


def _of_parts(model: RidgePredictor, coverage: float, comm: Communicator) -> NDArray[np.float64]:
    """Half width of each part, shape (P,) or (P, t), from the calibration rows of its class; collective."""
    counts = calibration_counts(model, comm)
    shared = shared_classes(counts, coverage)
    widths = np.zeros((len(counts), *model.target_shape))
    for part, part_model in model.parts.items():
        if part_model.errors is not None and part not in shared:
            widths[part] = part_model.errors[rank_of(coverage, len(part_model.errors)) - 1]
    widths = comm.allreduce(widths)
    for members in dict.fromkeys(tuple(members) for members in shared.values()):
        errors = [model.parts[part].errors for part in members if part in model.parts]
        local = np.concatenate(
            [np.zeros((0, *model.target_shape)), *(values for values in errors if values is not None)]
        )
        width = selected(local, [rank_of(coverage, int(counts[list(members)].sum()))], comm)[0]
        widths[[part for part, parts in shared.items() if tuple(parts) == members]] = width
    return widths


def parts_sharing(model: RidgePredictor, coverage: float, comm: Communicator) -> int:
    """Number of parts with too few calibration rows for a width of their own; collective."""
    return len(shared_classes(calibration_counts(model, comm), coverage))


def calibration_counts(model: RidgePredictor, comm: Communicator) -> NDArray[np.int64]:
    """Calibration rows nearest to each part's centre; collective."""
    counts = np.zeros(len(model.centers) // model.divisions, np.int64)
    for part, part_model in model.parts.items():
        if part_model.errors is not None:
            counts[part] = len(part_model.errors)
    return comm.allreduce(counts)


def nearest_part(model: RidgePredictor, Z: AnyRows) -> NDArray[np.int32]:
    """Part of each standardised row: the part with the nearest centre in the first division."""
    return nearest(Z, model.centers[: len(model.centers) // model.divisions])


def to_parts(model: RidgePredictor, X: AnyRows, errors: NDArray[np.float64], comm: Communicator) -> None:
    """Store in each part the absolute errors of the calibration rows nearest to its centre; collective.

    Parameters
    ----------
    X : array-like or CSR, shape (n_local, d)
        Rows that were not trained on.
    errors : ndarray, shape (n_local,) or (n_local, t)
    comm : Communicator
        Each error is sent to the rank of its part, with the part's number; rows are not sent.
    """
    labels = nearest_part(model, model.standardized(X, comm))
    toward = model.owners[labels]
    send = np.lexsort((labels, toward))
    counts = np.bincount(toward, minlength=comm.size).astype(np.int64)
    parts, _ = comm.alltoall(labels[send], counts)
    sizes, _ = comm.alltoall(np.abs(errors)[send], counts)
    for part, part_model in model.parts.items():
        near = parts == part
        part_model.errors = np.sort(sizes[near], axis=0) if near.any() else None


def calibrator(model: RidgePredictor, form: str, comm: Communicator, limit: int) -> Calibrator:
    """Fit sigmoids or isotonic curves to a classifier's leave-one-out outputs; collective.

    Parameters
    ----------
    model : RidgePredictor
        A classifier in which a single part predicts each row, or the exact one.
    form : {"sigmoid", "isotonic"}
    comm : Communicator
    limit : int
        Memory limit of this rank, in bytes.

    Raises
    ------
    InputError
        On all ranks: a matrix does not fit, or has no Cholesky factor.

    Notes
    -----
    2/3 m^3 flops and memory for m^2 numbers per part of m rows; sends what
    :class:`cacore.probability.calibrator.Calibrator` does.
    """
    assert model.classes is not None
    two = len(model.classes) == 2
    errors, y = _errors_and_targets(model, comm, limit)
    codes, values = (y > 0).astype(np.int64) if two else y.argmax(axis=1), y - errors
    return Calibrator.of_outputs(form, values[:, None] if two else values, codes, comm)


def _errors_and_targets(
    model: RidgePredictor, comm: Communicator, limit: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Leave-one-out errors of this rank's rows, and their targets; collective."""
    rows = left_out_parts(model, left_out(model, comm, limit), comm)
    with comm.agreed():
        parts = [left_out_part for _, left_out_part in rows]
        targets = [left_out_part.learned + left_out_part.coarse for left_out_part in parts]
    return joined(model, (left_out_part.errors for left_out_part in parts)), joined(model, targets) + model.offset


def predict(
    model: RidgePredictor, X: AnyRows, coverage: float, comm: Communicator, limit: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Predictions and both ends of intervals for this rank's rows; a collective call.

    Parameters
    ----------
    model : RidgePredictor
        A model that stores leave-one-out errors.
    X : array-like or CSR, shape (n_local, d)
    coverage : float
        Coverage; each part must have enough rows for it.
    comm : Communicator
    limit : int, optional
        Memory limit of this rank in bytes; by default its share of the free memory.

    Returns
    -------
    mean, lower, upper : ndarray, shape (n_local,) or (n_local, t)

    Raises
    ------
    InputError
        On all ranks: a matrix does not fit, or has no Cholesky factor.

    Notes
    -----
    A row costs 2 m^2 flops per model of m rows that predicts it, and one selection among m values per end and target.
    Factors cost what they do in :func:`cakrr.uncertainty.deviation.predict`. Rows are sent as for a prediction, and
    three numbers per row are sent back. If several models predict a row, the ends of their intervals are averaged with
    the weights of the predictions.
    """
    Z = model.standardized(X, comm)
    if model.route == "sum":
        mean = deviation.predicted_together(model, Z, comm)
        errors = comm.allgather(deviation.joined(model, (_errors(model, part) for part in sorted(model.parts))))
        values = mean[..., None] + ends(deviation.whole(model, comm, limit), errors, Z, coverage)
    else:
        held = deviation.Held(model, comm, limit)

        def answer(part: int, rows: Rows) -> NDArray[np.float64]:
            answers = model.answer(part, rows)
            return answers[..., None] + ends(held.of(part), _errors(model, part), rows, coverage)

        consulted, weights = model.consult(Z, answer, comm, (*model.target_shape, 3))
        values = np.einsum("ij...,ij->i...", consulted, weights)
    mean, lower, upper = np.moveaxis(values + np.asarray(model.base(Z))[..., None], -1, 0)
    return mean, lower, upper


def ends(variance: Variance, errors: NDArray[np.float64], X: AnyRows, coverage: float) -> NDArray[np.float64]:
    """Offsets from a part's predictions at the rows of `X`: 0, the lower end, and the upper end.

    Parameters
    ----------
    variance : Variance
        Variance of the part's model.
    errors : ndarray, shape (m,) or (m, t)
        Leave-one-out errors of the part's rows.
    X : ndarray or CSR, shape (n, d)
    coverage : float

    Returns
    -------
    ndarray, shape (n, 3) or (n, t, 3)
    """
    m = len(errors)
    upper = rank_of(coverage, m) - 1
    out = np.zeros((X.shape[0], *errors.shape[1:], 3))
    columns, places = errors.reshape(m, -1).T, out.reshape(X.shape[0], -1, 3)
    for rows, W in variance.weights(X):
        # Each selection runs on one thread.
        shares = np.array_split(np.arange(rows.start, rows.stop), max(1, threads.current()))

        def of_rows(share: NDArray[np.int64], W: NDArray[np.float64] = W, first: int = rows.start) -> None:
            for j, r in enumerate(columns):
                moved = W[share - first] * -r
                places[share, j, 1] = _selected(moved - np.abs(r), m - 1 - upper)
                places[share, j, 2] = _selected(moved + np.abs(r), upper)

        threads.for_blocks(of_rows, [(share,) for share in shares])
    return out


def _selected(values: NDArray[np.float64], place: int) -> NDArray[np.float64]:
    """In each row, the value with exactly `place` smaller ones; overwrites `values`."""
    values.partition(place, axis=1)
    return values[:, place]


def _errors(model: RidgePredictor, part: int) -> NDArray[np.float64]:
    errors = model.parts[part].left_out
    assert errors is not None
    return errors
