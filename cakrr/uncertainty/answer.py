"""Intervals of a model's predictions, on all ranks: of one width, of each part's, or in standard deviations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.errors import InputError
from cacore.run.job import ADAPTIVE
from cakrr.model import KRRModel
from cakrr.uncertainty import deviation
from cakrr.uncertainty.conformal import Calibration, check_coverage, rank_of
from partition.routing import nearest


@dataclass(frozen=True)
class Asked:
    """What is to be told beside predictions.

    Attributes
    ----------
    std : bool
        Standard deviations of new targets.
    coverage : float or None
        Of intervals; None is without.
    adaptive : {"std", "parts"} or None
        Intervals in standard deviations, for which True stands too, or from each part's own errors.
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
        """Whether standard deviations are needed, told or not."""
        return self.std or (self.coverage is not None and self.adaptive == "std")

    def check(self, model: KRRModel) -> None:
        """Refuse what the model cannot tell."""
        if self.needs_std:
            deviation.check(model)
        if self.coverage is not None:
            calibration_of(model).half_width(self.coverage, self.adaptive == "std")
            if self.adaptive == "parts" and not has_parts(model):
                raise InputError(
                    "adaptive parts: intervals of each part need a model whose parts have centers, other than the mean "
                    "of all, and rows that were set aside: train it with calibrate, --calibrate 0.1"
                )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | str)


def has_parts(model: KRRModel) -> bool:
    """Whether parts have errors of their own: a row is near to one of them, and rows were set aside."""
    held = model.calibration is not None and model.calibration.rows == "held out"
    return held and model.route in ("nearest", "soft")


def calibration_of(model: KRRModel) -> Calibration:
    """What the model keeps for intervals."""
    if model.calibration is None:
        raise InputError(
            "intervals: the model was trained without calibrate, --calibrate, which sets rows aside for them"
        )
    return model.calibration


def answered(
    model: KRRModel, X: Rows, asked: Asked, comm: Communicator, limit: int | None = None
) -> tuple[NDArray[Any], NDArray[np.float64] | None, Any]:
    """Predictions, standard deviations, and half widths of intervals, for this rank's rows; a collective call.

    Parameters
    ----------
    model : KRRModel
    X : array-like or CSR, shape (n_local, d)
    asked : Asked
    comm : Communicator
    limit : int, optional
        Bytes that this rank may use.

    Returns
    -------
    mean : ndarray, shape (n_local,) or (n_local, t)
    std : ndarray of the same shape, or None if they were not needed
    half : ndarray or float, or None without intervals

    Raises
    ------
    InputError
        On all ranks: what the model cannot tell.

    Notes
    -----
    As :func:`cakrr.uncertainty.deviation.predict` where standard deviations are needed; one Allreduce of P t numbers
    for the errors of parts; otherwise what a prediction costs.
    """
    with comm.agreed():
        asked.check(model)
    std = None
    if asked.needs_std:
        mean, std = model.predict_std(X, comm, limit)
    else:
        mean = model.predict(X, comm)
    if asked.coverage is None:
        return mean, std, None
    half = calibration_of(model).half_width(asked.coverage, asked.adaptive == "std")
    if asked.adaptive == "std":
        half = half * std
    elif asked.adaptive == "parts":
        half = _of_parts(model, asked.coverage, half, comm)[nearest_part(model, model._received(X, comm))]
    return mean, std, half


def _of_parts(model: KRRModel, coverage: float, every: Any, comm: Communicator) -> NDArray[np.float64]:
    """The half width of each part, shape (P,) or (P, t): that of all rows, `every`, where a part has too few."""
    widths = np.zeros((len(model.sizes), *model._shape))
    for part, one in model.parts.items():
        n = 0 if one.errors is None else len(one.errors)
        rank = rank_of(coverage, n)
        widths[part] = every if one.errors is None or rank > n else one.errors[rank - 1]
    return comm.allreduce(widths)


def nearest_part(model: KRRModel, Z: Rows) -> NDArray[np.int32]:
    """The part of each row, of standardised features: that of the nearest centre of the first division."""
    return nearest(Z, model.centers[: len(model.centers) // model.divisions])


def to_parts(model: KRRModel, X: Rows, errors: NDArray[np.float64], comm: Communicator) -> None:
    """Give the parts the absolute errors of the rows that are nearest to their centres; collective.

    Parameters
    ----------
    X : array-like or CSR, shape (n_local, d)
        That were not learned from.
    errors : ndarray, shape (n_local,) or (n_local, t)
    comm : Communicator
        An error travels to the rank of its part, with the part's number; rows stay.
    """
    labels = nearest_part(model, model._received(X, comm))
    toward = model.owners[labels]
    send = np.lexsort((labels, toward))
    counts = np.bincount(toward, minlength=comm.size).astype(np.int64)
    parts, _ = comm.alltoall(labels[send], counts)
    sizes, _ = comm.alltoall(np.abs(errors)[send], counts)
    for part, one in model.parts.items():
        near = parts == part
        one.errors = np.sort(sizes[near], axis=0) if near.any() else None
