"""Prediction intervals on all ranks: of one width, one per part, in standard deviations, or one per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.errors import InputError
from cacore.kernels.given import is_of_new_rows
from cacore.learn.shared import ADAPTIVE
from cakrr.uncertainty import deviation, jackknife
from cakrr.uncertainty.conformal import HELD_OUT, JACKKNIFE, Calibration, check_coverage, rank_of, rows_for
from partition.routing import nearest

if TYPE_CHECKING:
    from cakrr.model import KRRModel

Ends = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class IntervalRequest:
    """A request for more than predictions: standard deviations, and intervals of a coverage.

    Attributes
    ----------
    std : bool
        Standard deviations of new targets.
    coverage : float or None
        Coverage of intervals; None for no intervals.
    adaptive : {"std", "parts"} or None
        Intervals in standard deviations (also True), or from each part's own errors.
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
        """True if standard deviations are needed, reported or not."""
        return self.std or (self.coverage is not None and self.adaptive == "std")

    def check(self, model: KRRModel) -> None:
        """Refuse what the model cannot answer."""
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
                    "adaptive intervals: the model of two levels was made by an earlier version, and its errors are in "
                    "other standard deviations; train it again"
                )
            if self.adaptive == "parts" and not has_parts(model):
                raise InputError(
                    "adaptive parts: intervals of each part need a model whose parts have centers, other than the mean "
                    "of all, and rows that were set aside: train it with calibrate, --calibrate 0.1"
                )

    def _check_jackknife(self, model: KRRModel, coverage: float) -> None:
        if self.adaptive is not None:
            raise InputError("adaptive: jackknife+ intervals have a width for each row in any case; leave it out")
        if is_of_new_rows(model.like):
            raise InputError("jackknife+ intervals: a precomputed kernel is not kept; give a callable kernel")
        m = int(model.sizes.sum() if model.route == "sum" else model.sizes[model.sizes > 0].min())
        if rank_of(coverage, m) > m:
            raise InputError(
                f"coverage {coverage:g} needs {rows_for(coverage):,} rows in each part, and one has {m:,}: train fewer "
                "parts, or set rows aside, --calibrate 0.1"
            )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | str)


def has_parts(model: KRRModel) -> bool:
    """True if parts have errors of their own: rows have a nearest part, and some were set aside."""
    held = model.calibration is not None and model.calibration.rows == HELD_OUT
    return held and model.route in ("nearest", "soft")


def calibration_of(model: KRRModel) -> Calibration:
    """The errors that the model keeps for intervals."""
    if model.calibration is None:
        raise InputError(
            "intervals: the model was trained without calibrate, --calibrate, which sets rows aside for them"
        )
    return model.calibration


def answered(
    model: KRRModel, X: Rows, request: IntervalRequest, comm: Communicator, limit: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None, Ends | None]:
    """Predictions, standard deviations, and intervals, for this rank's rows; a collective call.

    Parameters
    ----------
    model : KRRModel
    X : array-like or CSR, shape (n_local, d)
    request : IntervalRequest
    comm : Communicator
    limit : int, optional
        Bytes that this rank may use.

    Returns
    -------
    mean : ndarray, shape (n_local,) or (n_local, t)
    std : ndarray of the same shape, or None if they were not needed
    ends : tuple of two ndarrays of the same shape, lower and upper, or None without intervals

    Raises
    ------
    InputError
        On all ranks: a request that the model cannot answer.

    Notes
    -----
    As :func:`cakrr.uncertainty.deviation.predict` where standard deviations are needed, and as
    :func:`cakrr.uncertainty.jackknife.predict` for a model that keeps left-out rows; one Allreduce of P t numbers
    for the errors of parts; otherwise what a prediction costs.
    """
    with comm.agreed():
        request.check(model)
    std = None
    if request.coverage is not None and calibration_of(model).rows == JACKKNIFE:
        if request.needs_std:
            _, std = model.predict_std(X, comm, limit)
        mean, lower, upper = jackknife.predict(model, X, request.coverage, comm, limit)
        return mean, std, (lower, upper)
    if request.needs_std:
        mean, std = model.predict_std(X, comm, limit)
    else:
        mean = model.predict(X, comm)
    if request.coverage is None:
        return mean, std, None
    half = calibration_of(model).half_width(request.coverage, request.adaptive == "std")
    if request.adaptive == "std" and std is not None:
        half = half * scales(model, X, mean, std, comm)
    elif request.adaptive == "parts":
        half = _of_parts(model, request.coverage, half, comm)[nearest_part(model, model.standardized(X, comm))]
    return mean, std, (mean - half, mean + half)


def scales(
    model: KRRModel, X: Rows, mean: NDArray[np.float64], std: NDArray[np.float64], comm: Communicator
) -> NDArray[np.float64]:
    """Scales of adaptive intervals: the deviations of these rows times the factors of the noise; collective.

    A model without these factors, made by an earlier version, has its deviations as scales.
    """
    if model.noise is None:
        return std
    return std * model.noise(model.standardized(X, comm), mean - model.offset, std)


def _of_parts(model: KRRModel, coverage: float, every: Any, comm: Communicator) -> NDArray[np.float64]:
    """Half width of each part, shape (P,) or (P, t); `every`, that of all rows, for parts with too few rows."""
    widths = np.zeros((len(model.sizes), *model.target_shape))
    for part, one in model.parts.items():
        n = 0 if one.errors is None else len(one.errors)
        rank = rank_of(coverage, n)
        widths[part] = every if one.errors is None or rank > n else one.errors[rank - 1]
    return comm.allreduce(widths)


def nearest_part(model: KRRModel, Z: Rows) -> NDArray[np.int32]:
    """The part of each standardised row: that of the nearest centre of the first division."""
    return nearest(Z, model.centers[: len(model.centers) // model.divisions])


def to_parts(model: KRRModel, X: Rows, errors: NDArray[np.float64], comm: Communicator) -> None:
    """Give the parts the absolute errors of the rows that are nearest to their centres; collective.

    Parameters
    ----------
    X : array-like or CSR, shape (n_local, d)
        Rows that were not learned from.
    errors : ndarray, shape (n_local,) or (n_local, t)
    comm : Communicator
        An error travels to the rank of its part, with the part's number; rows stay.
    """
    labels = nearest_part(model, model.standardized(X, comm))
    toward = model.owners[labels]
    send = np.lexsort((labels, toward))
    counts = np.bincount(toward, minlength=comm.size).astype(np.int64)
    parts, _ = comm.alltoall(labels[send], counts)
    sizes, _ = comm.alltoall(np.abs(errors)[send], counts)
    for part, one in model.parts.items():
        near = parts == part
        one.errors = np.sort(sizes[near], axis=0) if near.any() else None
