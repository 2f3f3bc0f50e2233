"""Training with uncertainty: rows set aside before training, and factors and errors stored after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.machine import memory
from cacore.probability import conformal
from cacore.probability.conformal import Calibration, set_aside
from cakrr.methods.prepare import default_parts
from cakrr.options import JACKKNIFE, LEFT_OUT, RidgeMethod, RidgeOptions, StorageOptions
from cakrr.ridge_model import KRRModel, RidgeFit
from cakrr.solver.variance import LeftOutRows
from cakrr.uncertainty import deviation
from cakrr.uncertainty.answer import calibrator, has_parts, scales, to_parts
from cakrr.uncertainty.deviation import of_rows_left_out

Trainer = Callable[[RidgeMethod, Dataset, RidgeOptions, Communicator, Dataset | None], RidgeFit]


def calibrated(
    fit: Trainer,
    method: RidgeMethod,
    train: Dataset,
    options: RidgeOptions,
    comm: Communicator,
    test: Dataset | None = None,
) -> RidgeFit:
    """Train with `fit`, and add the factors and errors that standard deviations and intervals need; collective.

    Rows set aside are used neither for the mean and deviation of the features, nor for partitioning, the choice of
    sigma and lambda, or the final model. So their errors are those of new rows.

    Raises
    ------
    InputError
        On all ranks: incompatible options, too few rows, or factors that do not fit.

    Notes
    -----
    Factors, leave-one-out errors and probabilities each take 2/3 m^3 flops per part of m rows. Adaptive intervals add
    the cost of :func:`cakrr.uncertainty.deviation.of_rows_left_out`. Rows set aside cost a prediction, and 8
    Allreduces of up to 256 counts per stored error.
    """
    with comm.agreed():
        options.checked(method)
    share, aside = options.calibrate, None
    if isinstance(share, float):
        train, aside = set_aside(train, share, options.seed, comm)
    if options.keep_factors:
        _check_room(method, train, options, comm)
    fitted = fit(method, train, options, comm, test)
    model = fitted.model
    errors = _factors_stored(fitted, options, comm) if options.keep_factors else None
    with comm.phase("train"):
        if options.probability is not None:
            model.calibrator = calibrator(model, options.probability, comm, options.memory_limit)
        if errors is None and share in (LEFT_OUT, JACKKNIFE):
            errors = deviation.left_out(model, comm, options.memory_limit)
        factors = None
        if errors is not None and (aside is not None or share == LEFT_OUT):
            model.noise, factors = of_rows_left_out(model, errors, comm)
    if aside is not None:
        _from_rows_set_aside(fitted, aside, options, comm)
    elif errors is not None and share is not None:
        _from_rows_left_out(fitted, errors, factors, comm)
    return fitted


def _factors_stored(fitted: RidgeFit, options: StorageOptions, comm: Communicator) -> dict[int, LeftOutRows]:
    """Store the factors in the model; return the leave-one-out errors of this rank's parts. Collective."""
    with comm.phase("train"):
        errors = deviation.keep(fitted.model, comm, options.memory_limit)
    held = deviation.matrices_bytes(fitted.sizes)
    fitted.reasons.append(
        f"factors for standard deviations take {held / memory.GIB:.3g} GiB of memory on all ranks together when used, "
        f"and {held / 2 / memory.GIB:.3g} GiB in the model file"
    )
    return errors


def _from_rows_set_aside(fitted: RidgeFit, aside: Dataset, options: RidgeOptions, comm: Communicator) -> None:
    """Calibrate intervals on rows set aside; collective."""
    model = fitted.model
    errors, deviations = _missed(model, aside, options, comm)
    with comm.phase("train"):
        model.calibration = Calibration.of(conformal.HELD_OUT, errors, deviations, comm)
        if has_parts(model):
            to_parts(model, aside.X, errors, comm)
    fitted.reasons.append(f"{aside.n:,} rows were set aside for intervals and not used in training")


def _from_rows_left_out(
    fitted: RidgeFit, left_out: dict[int, LeftOutRows], factors: list[NDArray[np.float64]] | None, comm: Communicator
) -> None:
    """Calibrate intervals by leave-one-out errors, for jackknife+ if `factors` of the noise is None; collective."""
    model, parts = fitted.model, sorted(left_out)
    errors = deviation.joined(model, [left_out[part].errors for part in parts])
    with comm.phase("train"):
        if factors is not None:
            deviations = deviation.joined(model, [left_out[part].deviations for part in parts]) * deviation.joined(
                model, factors
            )
            model.calibration = Calibration.of(conformal.LEFT_OUT, errors, deviations, comm)
            fitted.reasons.append(
                "intervals from leave-one-out errors: their coverage is approximate; --calibrate 0.1 sets rows aside "
                "for guaranteed coverage"
            )
            return
        for part in parts:
            model.parts[part] = replace(model.parts[part], left_out=left_out[part].errors)
        model.calibration = Calibration.of(conformal.JACKKNIFE, errors, None, comm)
    fitted.reasons.append(
        "jackknife+ intervals: approximately the requested coverage; 1 - 2 (1 - coverage) is guaranteed if sigma and "
        "lambda were not chosen on these rows"
    )


def _check_room(method: RidgeMethod, train: Dataset, options: RidgeOptions, comm: Communicator) -> None:
    """Before training, refuse factors that do not fit into a rank's memory, assuming even parts; collective."""
    n = comm.offset(train.X.shape[0])[1]
    with comm.agreed():
        P = options.partitions or default_parts(n, train.X.dtype.itemsize, options.memory_limit, comm.size)
        m, here = -(-n // P), -(-P // comm.size) * options.divisions
        need = deviation.matrices_bytes([m] * here) * 3 // 2  # each is also packed for the file
        what = f"keep_factors: storing the factors of {here} parts of {m:,} rows"
        memory.require(need, options.memory_limit, what, "use more parts, more ranks, or leave it out")


def _missed(
    model: KRRModel, rows: Dataset, options: RidgeOptions, comm: Communicator
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Errors of these rows, and the scales of their adaptive intervals if the model has factors."""
    y = rows.target().astype(np.float64)
    if options.keep_factors:
        mean, deviations = model.predict_std(rows.X, comm, options.memory_limit)
        return y - mean, scales(model, rows.X, mean, deviations, comm)
    return y - model.predict(rows.X, comm), None
