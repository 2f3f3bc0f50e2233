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
from cakrr.fit import Fit
from cakrr.method import Method
from cakrr.methods.prepare import default_parts
from cakrr.model import KRRModel
from cakrr.options import JACKKNIFE, LEFT_OUT, Options
from cakrr.uncertainty import conformal, deviation
from cakrr.uncertainty.answer import has_parts, to_parts
from cakrr.uncertainty.classes import calibrator
from cakrr.uncertainty.conformal import Calibration

Trainer = Callable[[Method, Dataset, Options, Communicator, Dataset | None], Fit]


def calibrated(
    fit: Trainer, method: Method, train: Dataset, options: Options, comm: Communicator, test: Dataset | None = None
) -> Fit:
    """What `fit` trains, with the factors and the errors that standard deviations and intervals need; collective.

    A share of the rows that is set aside takes no part in anything before: neither in the mean and the deviation of
    the features, nor in the partitioning, nor in the choice of sigma and lambda, nor in the final model, and it is not
    learned from afterwards. That is what makes its errors those of new rows.

    Raises
    ------
    InputError
        On all ranks: options that do not go together, too few rows, factors that cannot fit.

    Notes
    -----
    2/3 m^3 flops a part of m rows for factors, or for rows left out, as for probabilities; for rows set aside a
    prediction, and 8 Allreduces of up to 256 counts for each error that is kept.
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
    if options.keep_factors:
        with comm.phase("train"):
            deviation.keep(model, comm, options.memory_limit)
        held = deviation.matrices_bytes(fitted.sizes)
        fitted.reasons.append(
            f"factors for standard deviations: {held / memory.GIB:.3g} GiB in memory, over all ranks, when they are "
            f"used, and {held / 2 / memory.GIB:.3g} GiB in the model's file"
        )
    if options.probability is not None:
        with comm.phase("train"):
            model.calibrator = calibrator(model, options.probability, comm, options.memory_limit)
    if aside is not None:
        errors, deviations = _missed(model, aside, options, comm)
        with comm.phase("train"):
            model.calibration = Calibration.of(conformal.HELD_OUT, errors, deviations, comm)
            if has_parts(model):
                to_parts(model, aside.X, errors, comm)
        fitted.reasons.append(f"{aside.n:,} rows were set aside for intervals, and not learned from")
    elif share == LEFT_OUT:
        with comm.phase("train"):
            errors, deviations = _left_out(model, options, comm)
            model.calibration = Calibration.of(conformal.LEFT_OUT, errors, deviations, comm)
        fitted.reasons.append(
            "intervals from rows that are left out one at a time: their coverage is about right and not guaranteed; "
            "--calibrate 0.1 sets rows aside for one that is"
        )
    elif share == JACKKNIFE:
        with comm.phase("train"):
            errors, _ = _left_out(model, options, comm)
            model.calibration = Calibration.of(conformal.JACKKNIFE, errors, None, comm)
            _keep_errors(model, errors)
        fitted.reasons.append(
            "jackknife+ intervals from rows that are left out one at a time: about the coverage that is asked for, and "
            "1 - 2 (1 - coverage) for certain if they have not chosen sigma and lambda"
        )
    return fitted


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


def _check_room(method: Method, train: Dataset, options: Options, comm: Communicator) -> None:
    """Refuse, before training, factors that do not fit into a rank's memory, of parts that are even; collective."""
    n = comm.offset(train.X.shape[0])[1]
    with comm.agreed():
        P = options.partitions or default_parts(n, train.X.dtype.itemsize, options.memory_limit, comm.size)
        m, here = -(-n // P), -(-P // comm.size) * options.divisions
        need = deviation.matrices_bytes([m] * here) * 3 // 2  # each also packed, for the file
        what = f"keep_factors: the factors of {here} parts of {m:,} rows"
        memory.require(need, options.memory_limit, what, "use more parts, more ranks, or leave it out")


def _missed(
    model: KRRModel, rows: Dataset, options: Options, comm: Communicator
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Errors of these rows, and their standard deviations if the factors are there."""
    y = rows.target().astype(np.float64)
    if options.keep_factors:
        mean, deviations = model.predict_std(rows.X, comm, options.memory_limit)
        return y - mean, deviations
    return y - model.predict(rows.X, comm), None


def _left_out(model: KRRModel, options: Options, comm: Communicator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Errors and standard deviations of this rank's rows, each left out of its own part's model; collective."""
    if model.route == "sum":
        _, found = deviation.pooled(model, comm, options.memory_limit)
        rows = sum(len(one.alpha) for one in model.parts.values())
        first, _ = comm.offset(rows)
        own = slice(first, first + rows)
        return found.errors[own], found.deviations[own]
    with comm.agreed():
        every = [deviation.factored_part(model, part)[1] for part in sorted(model.parts)]
    none = np.zeros((0, *model._shape))
    return (
        np.concatenate([none, *(one.errors for one in every)]),
        np.concatenate([none, *(one.deviations for one in every)]),
    )


def _keep_errors(model: KRRModel, errors: NDArray[np.float64]) -> None:
    """Give this rank's parts, or pieces, the errors of their rows, which follow one another."""
    first = 0
    for part, one in sorted(model.parts.items()):
        m = len(one.alpha)
        model.parts[part] = replace(one, left_out=errors[first : first + m].copy())
        first += m
