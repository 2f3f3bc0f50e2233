"""Training with intervals: rows that are set aside before it, and what is kept for them after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError
from cacore.machine import memory
from cakrr.fit import RidgeFit
from cakrr.method import RidgeMethod
from cakrr.methods.prepare import default_parts
from cakrr.model import KRRModel
from cakrr.options import RidgeOptions
from cakrr.rules import JACKKNIFE, LEFT_OUT
from cakrr.solver.variance import LeftOutRows
from cakrr.uncertainty import conformal, deviation
from cakrr.uncertainty.answer import has_parts, scales, to_parts
from cakrr.uncertainty.classes import calibrator
from cakrr.uncertainty.conformal import Calibration
from cakrr.uncertainty.noise import of_rows_left_out

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

    Rows that are set aside take no part in the mean and the deviation of the features, the partitioning, the choice of
    sigma and lambda, or the final model, and are not learned from afterwards. So their errors are those of new rows.

    Raises
    ------
    InputError
        On all ranks: options that do not go together, too few rows, factors that cannot fit.

    Notes
    -----
    2/3 m^3 flops per part of m rows for factors, and for left-out rows, as for probabilities; for adaptive intervals
    what :func:`cakrr.uncertainty.noise.of_rows_left_out` costs; for rows set aside a prediction, and 8 Allreduces of up
    to 256 counts for each error that is kept.
    """
    with comm.agreed():
        options.checked(method)
    share, aside = options.calibrate, None
    if isinstance(share, float):
        train, aside = _set_aside(train, share, options.seed, comm)
    if options.keep_factors:
        _check_room(method, train, options, comm)
    fitted = fit(method, train, options, comm, test)
    model = fitted.model
    found = _kept(fitted, options, comm) if options.keep_factors else None
    with comm.phase("train"):
        if options.probability is not None:
            model.calibrator = calibrator(model, options.probability, comm, options.memory_limit)
        if found is None and share in (LEFT_OUT, JACKKNIFE):
            found = deviation.left_out(model, comm, options.memory_limit)
        own = None
        if found is not None and (aside is not None or share == LEFT_OUT):
            model.noise, own = of_rows_left_out(model, found, comm)
    if aside is not None:
        _from_rows_set_aside(fitted, aside, options, comm)
    elif found is not None and share is not None:
        _from_rows_left_out(fitted, found, own, comm)
    return fitted


def _kept(fitted: RidgeFit, options: RidgeOptions, comm: Communicator) -> dict[int, LeftOutRows]:
    """Put the factors into the model; return the rows of this rank's parts, left out; collective."""
    with comm.phase("train"):
        found = deviation.keep(fitted.model, comm, options.memory_limit)
    held = deviation.matrices_bytes(fitted.sizes)
    fitted.reasons.append(
        f"factors for standard deviations: {held / memory.GIB:.3g} GiB in memory, over all ranks, when they are "
        f"used, and {held / 2 / memory.GIB:.3g} GiB in the model's file"
    )
    return found


def _from_rows_set_aside(fitted: RidgeFit, aside: Dataset, options: RidgeOptions, comm: Communicator) -> None:
    """Calibrate intervals by rows that were set aside; collective."""
    model = fitted.model
    errors, deviations = _missed(model, aside, options, comm)
    with comm.phase("train"):
        model.calibration = Calibration.of(conformal.HELD_OUT, errors, deviations, comm)
        if has_parts(model):
            to_parts(model, aside.X, errors, comm)
    fitted.reasons.append(f"{aside.n:,} rows were set aside for intervals, and not learned from")


def _from_rows_left_out(
    fitted: RidgeFit, found: dict[int, LeftOutRows], factors: list[NDArray[np.float64]] | None, comm: Communicator
) -> None:
    """Calibrate intervals by left-out rows; without `factors` of the noise, for jackknife+; collective."""
    model, parts = fitted.model, sorted(found)
    errors = deviation.joined(model, [found[part].errors for part in parts])
    with comm.phase("train"):
        if factors is not None:
            deviations = deviation.joined(model, [found[part].deviations for part in parts]) * deviation.joined(
                model, factors
            )
            model.calibration = Calibration.of(conformal.LEFT_OUT, errors, deviations, comm)
            fitted.reasons.append(
                "intervals from rows that are left out one at a time: their coverage is about right and not "
                "guaranteed; --calibrate 0.1 sets rows aside for one that is"
            )
            return
        for part in parts:
            model.parts[part] = replace(model.parts[part], left_out=found[part].errors)
        model.calibration = Calibration.of(conformal.JACKKNIFE, errors, None, comm)
    fitted.reasons.append(
        "jackknife+ intervals from rows that are left out one at a time: about the coverage that is asked for, and "
        "1 - 2 (1 - coverage) for certain if they have not chosen sigma and lambda"
    )


def _set_aside(train: Dataset, share: float, seed: int, comm: Communicator) -> tuple[Dataset, Dataset]:
    """The rows to learn from, and a random share of all ranks' rows, the same on any number of ranks; collective."""
    with comm.agreed():
        train.target()
    rows = train.X.shape[0]
    first, n = comm.offset(rows)
    count = round(share * n)
    with comm.agreed():
        if not 0 < count < n:
            raise InputError(f"calibrate = {share:g}: of {n:,} rows that is {count:,}, and both sides need some")
    aside = Shuffle(n, seed).position(np.arange(first, first + rows)) < count
    parted = [_some(train, ~aside, n - count), _some(train, aside, count)]
    train.give()
    return parted[0], parted[1]


def _some(rows: Dataset, which: NDArray[np.bool_], n: int) -> Dataset:
    weights = None if rows.weights is None else rows.weights[which]
    return replace(rows, X=rows.X[which], y=rows.target()[which], weights=weights, n=n)


def _check_room(method: RidgeMethod, train: Dataset, options: RidgeOptions, comm: Communicator) -> None:
    """Refuse, before training, factors that do not fit into a rank's memory, of parts that are even; collective."""
    n = comm.offset(train.X.shape[0])[1]
    with comm.agreed():
        P = options.partitions or default_parts(n, train.X.dtype.itemsize, options.memory_limit, comm.size)
        m, here = -(-n // P), -(-P // comm.size) * options.divisions
        need = deviation.matrices_bytes([m] * here) * 3 // 2  # each also packed, for the file
        what = f"keep_factors: the factors of {here} parts of {m:,} rows"
        memory.require(need, options.memory_limit, what, "use more parts, more ranks, or leave it out")


def _missed(
    model: KRRModel, rows: Dataset, options: RidgeOptions, comm: Communicator
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Errors of these rows, and the scales of their adaptive intervals if the factors are there."""
    y = rows.target().astype(np.float64)
    if options.keep_factors:
        mean, deviations = model.predict_std(rows.X, comm, options.memory_limit)
        return y - mean, scales(model, rows.X, mean, deviations, comm)
    return y - model.predict(rows.X, comm), None
