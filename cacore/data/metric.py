"""A metric learned from models: a linear map of standardised rows, after which kernels measure distances in it.

M is the mean over rows of grad f(x) grad f(x)^T, f the model that answers for x, scaled to trace d; rows are mapped by
its symmetric root (Radhakrishnan, Beaglehole, Pandit and Belkin, Science, 2024). Its diagonal weighs the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, is_sparse
from cacore.errors import InputError
from cacore.machine import memory
from cacore.machine.threads import blocks

FLOOR = 1e-6  # of the largest eigenvalue, below which none of M's is: no direction is lost for good
MOST = 4096  # features of a full metric: its eigenvalues take 10 d^3 flops a round, on every rank
SAMPLE = 2000  # rows, of a part or of all ranks, whose gradients make the metric
_NUMBERS = 1 << 23  # of the gradients of one model's sample, where every rank holds them

PATIENCE = 3  # rounds in a row that do not improve
TRIAL, BEHIND = 2, 1.1  # rounds of a way of its own, after which an error this many times the best way's ends it
Root = NDArray[np.float64]  # (d, d) symmetric, or (d,)
AnyRound = TypeVar("AnyRound", bound="Round")


def mapped(X: Rows, root: Root | None) -> Rows:
    """Rows times the root; dense where the root is full. In the dtype of `X`, and `X` itself where there is no root."""
    if root is None:
        return X
    if root.ndim == 1:
        return X.multiply(root).tocsr().astype(X.dtype, copy=False) if is_sparse(X) else X * root.astype(X.dtype)
    out, R = np.empty(X.shape, X.dtype), root.astype(X.dtype)
    for lo, hi in blocks(X.shape[0], 4096):
        out[lo:hi] = X[lo:hi] @ R
    return out


def next_root(root: Root | None, moments: NDArray[np.float64]) -> Root:
    """The root of the metric that the gradients ask for.

    Parameters
    ----------
    root : ndarray, shape (d, d) or (d,), or None
        By which rows were mapped when the gradients were taken; None is the identity.
    moments : ndarray, shape (d, d) or (d,)
        Sum of grad grad^T, or of the squares of each derivative, in mapped features.

    Returns
    -------
    ndarray of the shape of `moments`

    Raises
    ------
    InputError
        Their squares are all 0, or not finite.

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
    """A round of training: models, their error on validation rows, and the gradients that make the next metric."""

    root: Root | None
    error: float

    def choose(self) -> None:
        """Choose the parameters in this round's metric, and find :attr:`error`; collective."""

    def moments(self) -> NDArray[np.float64]:
        """See :func:`next_root`; the same on all ranks; collective."""

    def again(self, root: Root) -> Self:
        """The next round, in this metric; collective."""


def best_round(
    ways: Sequence[Sequence[AnyRound]], rounds: int, comm: Communicator
) -> tuple[AnyRound, list[float], list[str]]:
    """Train in rounds while validation improves; collective.

    Parameters
    ----------
    ways : sequence of sequence of Round
        Of each way (a kernel, say) one start, or several that are compared, in the metric of the rows as they are: its
        rounds begin with the best. Models that differ ask for metrics that differ, and which way is the best one in its
        own metric the first round does not tell: so each goes on by itself, the best one first. Another way ends where
        it has been far behind for `TRIAL` rounds.
    rounds : int
        At most so many more; `PATIENCE` in a row without an improvement end a way.
    comm : Communicator

    Returns
    -------
    best : Round
        With the least error, the first one of equals.
    errors : list of float
        Of every round of its way.
    notes : list of str
        Why a later round could not be trained, if one could not: the earlier ones are not lost.

    Raises
    ------
    InputError
        On all ranks, as training without a metric: where no way could begin.
    """
    begun, notes = _begun(ways, comm)
    best, errors, told = _way(*begun[0], rounds, comm, [])
    for start, error in begun[1:]:
        run, others, said = _way(start, error, rounds, comm, errors)
        if min(others) < min(errors):
            best, errors, told = run, others, said
    return best, errors, notes + told


def _begun(ways: Sequence[Sequence[AnyRound]], comm: Communicator) -> tuple[list[tuple[AnyRound, float]], list[str]]:
    """The best start of each way, and its error, the best way first; and why other ways could not begin."""
    begun: list[tuple[AnyRound, float]] = []
    failed: list[InputError] = []
    for starts in ways:
        try:
            for start in starts:
                start.choose()
        except InputError as error:  # which all ranks raise alike
            failed.append(error)
            continue
        found = [_agreed(start, comm) for start in starts]
        begun.append((starts[int(np.argmin(found))], min(found)))
    if not begun:
        raise failed[0]
    return sorted(begun, key=lambda one: one[1]), [f"left out: {error}" for error in failed]


def _way(
    start: AnyRound, error: float, rounds: int, comm: Communicator, ahead: list[float]
) -> tuple[AnyRound, list[float], list[str]]:
    """The rounds of one way, as :func:`best_round` returns them; `ahead` has the errors of the best way so far."""
    best = run = start
    errors = [error]
    for number in range(1, rounds + 1):
        try:
            found = run.moments()
            if not found.any():
                break  # the model does not change with the features
            run = run.again(next_root(run.root, found))
            run.choose()
        except InputError as error:  # which all ranks raise alike
            return best, errors, [f"the metric is of the best of {number} rounds; round {number}: {error}"]
        errors.append(_agreed(run, comm))
        if errors[-1] < min(errors[:-1]):
            best = run
        elif number - int(np.argmin(errors)) >= PATIENCE:
            break
        if ahead and number >= TRIAL and min(errors) > BEHIND * min(ahead[: number + 1]):
            break
    return best, errors, []


def _agreed(run: Round, comm: Communicator) -> float:
    """Its error; the ranks' own may differ in the last bit."""
    with comm.uncounted():
        return float(comm.bcast(np.array([run.error]))[0])


def change(old: Root | None, new: Root) -> Root:
    """What maps rows in the old metric to the new one: the inverse of the old root times the new one."""
    if old is None:
        return new
    return new / old if new.ndim == 1 else np.asarray(scipy.linalg.solve(old, new, assume_a="pos"))


def matrix(root: Root) -> NDArray[np.float64]:
    """The metric M itself: (d, d), or the weights of squared differences, (d,)."""
    return np.asarray(root**2 if root.ndim == 1 else root @ root)


def importances(root: Root) -> NDArray[np.float64]:
    """The diagonal of M as shares: how fast the model changes with each standardised feature, squared; sum 1."""
    M = matrix(root)
    diagonal = M if M.ndim == 1 else np.diagonal(M)
    return np.asarray(diagonal / diagonal.sum())


def described(form: str, errors: list[float], root: Root | None, d: int) -> dict[str, Any]:
    """What a report says of a metric: the error of every round on validation rows, the best round, importances."""
    shares = np.full(d, 1.0 / d) if root is None else importances(root)
    return {"form": form, "errors": errors, "round": int(np.nanargmin(errors)), "importances": shares.tolist()}


def expose(estimator: Any, fitted: Any) -> None:
    """Give an estimator `metric_`, `feature_importances_` and `metric_errors_`, or none where there is no metric."""
    form, standardizer, d = estimator.metric, fitted.model.standardizer, fitted.model.n_features
    root = None if standardizer is None else standardizer.root
    for name in ("metric_", "feature_importances_", "metric_errors_"):
        vars(estimator).pop(name, None)
    if form != "none":
        same = np.eye(d) if form == "full" else np.ones(d)
        estimator.metric_ = same if root is None else matrix(root)
        estimator.feature_importances_ = np.array(described(form, fitted.errors, root, d)["importances"])
        estimator.metric_errors_ = np.array(fitted.errors)


def sample_of(numbers: int) -> int:
    """Rows of a sample whose gradients, so many numbers a row, every rank holds."""
    return max(1, min(SAMPLE, _NUMBERS // numbers))


def check_kernel(form: str, kernel: Any) -> None:
    """Refuse a kernel that has no derivative."""
    if form != "none" and callable(kernel):
        raise InputError("metric: it needs the derivative of the kernel, and this one is a function; name a kernel")


def check_features(form: str, d: int, limit: int) -> None:
    """Refuse, with figures, a full metric of so many features."""
    if form != "full":
        return
    remedy = "use --metric diagonal (metric='diagonal')"
    if d > MOST:
        raise InputError(
            f"metric full: {d:,} features ask for {d:,} x {d:,} numbers ({8 * d * d / 2**30:.1f} GiB) and "
            f"{10 * d**3:.0e} flops a round on every rank, and {MOST:,} is the most; {remedy}"
        )
    memory.require(6 * 8 * d * d, limit, f"a full metric of {d:,} features", remedy)
