"""Learned metric: a linear map of the standardised rows, learned in rounds from the gradients of trained models.

M is the mean over the rows of grad f(x) grad f(x)^T, scaled to trace d, with f the model responsible for x. Rows are
multiplied by the symmetric root of M, so that kernels measure distances in the metric M (Radhakrishnan, Beaglehole,
Pandit and Belkin, Science, 2024). The diagonal of M gives the importance of the features.

The loop over rounds, which trains, validates and updates the metric, is :func:`best_round`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.standardize import Root, Standardizer
from cacore.errors import InputError
from cacore.machine import memory

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


# Reasoned, not measured.
FLOOR = 1e-6  # smallest eigenvalue of M relative to the largest, so that later rounds can recover every direction
MOST = 4096  # features of a full metric at most: its eigenvalues take 10 d^3 flops per round on every rank
SAMPLE = 2000  # rows, of a part or of all ranks, whose gradients make the metric
_NUMBERS = 1 << 23  # numbers of one model's gradients at most, if every rank stores them

PATIENCE = 3  # consecutive rounds without improvement that end a sequence of rounds
TRIAL, BEHIND = 2, 1.1  # after TRIAL rounds, a sequence ends if its error is BEHIND times that of the best one
AnyRound = TypeVar("AnyRound", bound="Round")


def next_root(root: Root | None, moments: NDArray[np.float64]) -> Root:
    """Symmetric root of the metric given by the gradients' moments.

    Parameters
    ----------
    root : ndarray, shape (d, d) or (d,), or None
        Root by which the rows were mapped when the gradients were taken; None is the identity.
    moments : ndarray, shape (d, d) or (d,)
        Sum of grad grad^T, or of the squared derivatives, with respect to the mapped features.

    Returns
    -------
    ndarray of the shape of `moments`

    Raises
    ------
    InputError
        If the squared gradients are all 0 or not finite.

    Notes
    -----
    A model f(x) = g(R x) has the gradient R grad g. 10 d^3 flops for a full metric.
    """
    d = len(moments)
    with np.errstate(over="ignore", invalid="ignore"):
        if moments.ndim == 1:
            M = moments if root is None else moments * root**2
            total = M.sum()
        else:
            M = moments if root is None else root @ moments @ root
            total = np.trace(M)
    if not 0.0 < total < np.inf:
        raise InputError("metric: the model's gradients vanish, or overflow, in double precision; scale the features")
    M = M * (d / total)
    if moments.ndim == 1:
        return np.asarray(np.sqrt(np.maximum(M, FLOOR * M.max())))
    values, V = scipy.linalg.eigh((M + M.T) / 2.0)
    return np.asarray((V * np.sqrt(np.maximum(values, FLOOR * values[-1]))) @ V.T)


class Round(Protocol):
    """One round of training: models in one metric, their validation error, and the gradients for the next metric."""

    root: Root | None
    error: float

    def choose(self, comm: Communicator) -> object:
        """Train and choose the parameters in this round's metric, and set :attr:`error`; collective."""

    def moments(self, comm: Communicator) -> NDArray[np.float64]:
        """Moments of the gradients for :func:`next_root`, the same on all ranks; collective."""

    def again(self, root: Root, comm: Communicator) -> Self:
        """Run the next round of training, in this metric; collective."""


def best_round(
    alternatives: Sequence[Sequence[AnyRound]], rounds: int, comm: Communicator
) -> tuple[AnyRound, list[float], list[str]]:
    """Train in rounds, each in the metric learned in the round before, while the validation error improves; collective.

    Parameters
    ----------
    alternatives : sequence of sequence of Round
        Kernels, say, that each get their own sequence of rounds. Each alternative is one or more first rounds, without
        a learned metric, such as one per scaling; its sequence continues from the best of them.
    rounds : int
        Largest number of further rounds; `PATIENCE` consecutive rounds without improvement end a sequence.
    comm : Communicator

    Returns
    -------
    best : Round
        The round with the smallest error, the first among equals.
    errors : list of float
        Error of every round in the sequence of `best`.
    notes : list of str
        Reasons why an alternative was left out, or why a later round could not be trained. Earlier rounds remain valid.

    Raises
    ------
    InputError
        On all ranks, if no alternative could be trained without a metric.

    Notes
    -----
    Different models lead to different metrics, and the first round does not show which alternative will be best in its
    own metric. So each runs its own sequence, the best one first. Another sequence ends early if its error is above
    `BEHIND` times that of the best after `TRIAL` rounds. This race is no use of :func:`cacore.tuning.choose`: the next
    setting, a metric, comes from the model before, and how many are tried depends on the errors.
    """
    begun, notes = _first_rounds(alternatives, comm)
    best, errors, run_notes = _rounds_from(*begun[0], rounds, comm, [])
    for start, error in begun[1:]:
        run, others, other_notes = _rounds_from(start, error, rounds, comm, errors)
        if min(others) < min(errors):
            best, errors, run_notes = run, others, other_notes
    return best, errors, notes + run_notes


def _first_rounds(
    alternatives: Sequence[Sequence[AnyRound]], comm: Communicator
) -> tuple[list[tuple[AnyRound, float]], list[str]]:
    """The best first round of each alternative with its error, the best first; and notes on those that failed."""
    begun: list[tuple[AnyRound, float]] = []
    failed: list[InputError] = []
    for starts in alternatives:
        try:
            for start in starts:
                start.choose(comm)
        except InputError as error:  # raised by all ranks
            failed.append(error)
            continue
        errors = [_agreed(start, comm) for start in starts]
        begun.append((starts[int(np.argmin(errors))], min(errors)))
    if not begun:
        raise failed[0]
    return sorted(begun, key=lambda start_and_error: start_and_error[1]), [f"left out: {error}" for error in failed]


def _rounds_from(
    start: AnyRound, error: float, rounds: int, comm: Communicator, ahead: list[float]
) -> tuple[AnyRound, list[float], list[str]]:
    """Run the rounds of one alternative; returns as :func:`best_round`. `ahead`: the errors of the best one so far."""
    best = run = start
    errors = [error]
    for number in range(1, rounds + 1):
        try:
            moments = run.moments(comm)
            if not moments.any():
                break  # the models are constant
            run = run.again(next_root(run.root, moments), comm)
            run.choose(comm)
        except InputError as error:  # raised by all ranks
            return best, errors, [f"the metric is that of the best of {number} rounds; round {number}: {error}"]
        errors.append(_agreed(run, comm))
        if errors[-1] < min(errors[:-1]):
            best = run
        elif number - int(np.argmin(errors)) >= PATIENCE:
            break
        if ahead and number >= TRIAL and min(errors) > BEHIND * min(ahead[: number + 1]):
            break
    return best, errors, []


def _agreed(run: Round, comm: Communicator) -> float:
    """Rank 0's error of the round, on every rank; the ranks' own may differ in the last bit."""
    with comm.uncounted():
        return float(comm.bcast(np.array([run.error]))[0])


def change(old: Root | None, new: Root) -> Root:
    """Map of rows from the old metric to the new one: the inverse of the old root times the new root."""
    if old is None:
        return new
    return new / old if new.ndim == 1 else np.asarray(scipy.linalg.solve(old, new, assume_a="pos"))


def matrix(root: Root) -> NDArray[np.float64]:
    """The metric M itself: (d, d), or the weights of squared differences, (d,)."""
    return np.asarray(root**2 if root.ndim == 1 else root @ root)


def root_of(M: NDArray[np.float64], form: str, d: int) -> Root:
    """Root of a metric that the user gives for d standardised features, in the shape that the form of learning needs.

    Parameters
    ----------
    M : ndarray of float64, shape (d, d) or (d,)
    form : {"diagonal", "full", "lengths"}
    d : int

    Raises
    ------
    InputError
        Another shape, a full matrix for a diagonal form, or a metric that is not positive semidefinite.
    """
    if M.shape not in ((d,), (d, d)):
        raise InputError(f"metric_init: shape {M.shape}, and {d} features need ({d},) or ({d}, {d}), as `metric_` has")
    if not np.isfinite(M).all():
        raise InputError("metric_init: it has entries that are nan or infinite")
    if M.ndim == 2 and form != "full":
        raise InputError(f"metric_init: metric {form} begins with a weight a feature; give a vector, or metric='full'")
    if M.ndim == 1 and form == "full":
        M = np.diag(M)
    values, V = (M, None) if M.ndim == 1 else scipy.linalg.eigh((M + M.T) / 2.0)
    if not (values.max() > 0.0 and values.min() >= -FLOOR * values.max()):
        raise InputError("metric_init: a metric has no negative eigenvalue, or weight, and not all are 0")
    root = np.sqrt(np.maximum(values, 0.0))
    return root if V is None else np.asarray((V * root) @ V.T)


def importances(root: Root) -> NDArray[np.float64]:
    """Importance of each standardised feature: the diagonal of M (mean squared derivatives), scaled to sum 1."""
    M = matrix(root)
    diagonal = M if M.ndim == 1 else np.diagonal(M)
    return np.asarray(diagonal / diagonal.sum())


def described(form: str, errors: list[float], standardizer: Standardizer | None, d: int) -> dict[str, object]:
    """The report's entry on the metric: validation error of every round, the best round, feature importances."""
    if standardizer is None or standardizer.root is None:
        shares = np.full(d, 1.0 / d)
    else:
        shares = standardizer.by_feature(importances(standardizer.root))
    return {"form": form, "errors": errors, "round": int(np.nanargmin(errors)), "importances": shares.tolist()}


def expose(estimator: BaseEstimator, fitted: Any) -> None:
    """Set `metric_`, `feature_importances_` and `metric_errors_` of an estimator; remove them if metric is "none"."""
    form, standardizer, d = estimator.metric, fitted.model.standardizer, fitted.model.n_features
    root = None if standardizer is None else standardizer.root
    for name in ("metric_", "feature_importances_", "metric_errors_"):
        vars(estimator).pop(name, None)
    if form != "none":
        columns = d if standardizer is None else len(standardizer.mean)
        same = np.eye(columns) if form == "full" else np.ones(columns)
        estimator.metric_ = same if root is None else matrix(root)
        estimator.feature_importances_ = np.array(described(form, fitted.errors, standardizer, d)["importances"])
        estimator.metric_errors_ = np.array(fitted.errors)


def sample_of(numbers: int) -> int:
    """Rows of a sample whose gradients, of this many numbers per row, every rank stores."""
    return max(1, min(SAMPLE, _NUMBERS // numbers))


def check_kernel(form: str, kernel: object) -> None:
    """Raise an InputError for a metric with a callable kernel, which has no derivative."""
    if form != "none" and callable(kernel):
        raise InputError("metric: it needs the derivative of the kernel, and a callable has none; name a kernel")


def check_features(form: str, d: int, limit: int) -> None:
    """Raise an InputError, with figures, if a full metric of `d` features is too large."""
    if form != "full":
        return
    remedy = "use --metric diagonal (metric='diagonal')"
    if d > MOST:
        raise InputError(
            f"metric full: {d:,} features require {d:,} x {d:,} numbers ({8 * d * d / 2**30:.1f} GiB) and "
            f"{10 * d**3:.0e} flops per round on every rank, and {MOST:,} is the most; {remedy}"
        )
    memory.require(6 * 8 * d * d, limit, f"a full metric of {d:,} features", remedy)
