"""Weights of the best candidates of a search, and how sure they are together, from the rows that judged them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cacore.probability.calibrator import Calibrator
from cacore.probability.conformal import SEARCHED, Calibration
from cakernels.search import blending
from cakernels.search.data import REGRESSION
from cakernels.search.race import Race
from cakernels.search.trial import Trial


@dataclass(eq=False)
class Mixture:
    """Candidates that predict together.

    Attributes
    ----------
    trials : list of Trial
    weights : ndarray of float64, shape (k,)
        They add up to 1.
    calibrators : list of Calibrator
        One per trial of a classification; none for a single trial without probabilities.
    calibration : Calibration or None
        Errors of the mixture on the rows that judged; None if no intervals are wanted.
    """

    trials: list[Trial]
    weights: NDArray[np.float64]
    calibrators: list[Calibrator] = field(default_factory=list)
    calibration: Calibration | None = None


def alone(race: Race, best: Trial) -> Mixture:
    """The best candidate alone; collective."""
    calibrators = [best.calibrator] if race.probability is not None and best.calibrator is not None else []
    return _sure(race, Mixture([best], np.ones(1), calibrators))


def combined(race: Race, best: Trial) -> Mixture:
    """The best candidates with their weights; the best one alone where a blend does not pay. Collective."""
    there = [one for one in race.leading() if one.fitted is not None]
    if len(there) < 2:
        return alone(race, best)
    return (_of_numbers if race.data.task == REGRESSION else _of_classes)(race, there)


def _of_numbers(race: Race, there: list[Trial]) -> Mixture:
    y, w, group = _judged(race)
    found = blending.weights([np.asarray(one.held, np.float64) for one in there], y, w, group, race.comm)
    kept = np.flatnonzero(found)
    return _sure(race, Mixture([there[i] for i in kept], found[kept]))


def _of_classes(race: Race, there: list[Trial]) -> Mixture:
    """Weights of probabilities, kept where their labels are clearly better than those of the best candidate."""
    labels, w, group = _judged(race)
    classes = race.data.classes
    calibrators = [one.calibrator for one in there if one.calibrator is not None]  # all have one
    held = [one.of_classes(np.asarray(trial.held)) for one, trial in zip(calibrators, there, strict=True)]
    target = (labels[:, None] == classes).astype(np.float64)

    def better(P: NDArray[np.float64]) -> bool:
        new, old = classes[P.argmax(axis=1)], np.asarray(there[0].predicted)
        return race.score.clearly_better(race.data, race.judged, new, old, race.comm)

    found = blending.weights(held, target, w, group, race.comm, better)
    kept = np.flatnonzero(found)
    if len(kept) == 1:
        return alone(race, there[kept[0]])
    return Mixture([there[i] for i in kept], found[kept], [calibrators[i] for i in kept])


def _judged(race: Race) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Targets and weights of this rank's rows that judged, and their groups."""
    judged = race.judged
    y, w = race.data.targets(judged)
    return y, w, race.split.order[judged] % blending.GROUPS


def _sure(race: Race, mixed: Mixture) -> Mixture:
    """The mixture of a regression with its errors on the rows that judged, if intervals are wanted; collective."""
    if race.calibrate:
        y, _, _ = _judged(race)
        told = sum(weight * np.asarray(one.held) for weight, one in zip(mixed.weights, mixed.trials, strict=True))
        with race.comm.uncounted():
            mixed.calibration = Calibration.of(SEARCHED, np.asarray(y - told), None, race.comm)
    return mixed
