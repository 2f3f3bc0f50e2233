"""Metrics of predictions, from sums over the rows of all ranks.

Errors of regression and classification; scores of intervals, normal distributions and class probabilities; and losses
of predicted quantiles.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator

ERRORS = ("mse", "rmse", "mae", "pinball", "log_loss", "brier")  # metrics of which the smallest value is the best


def regression_metrics(
    y: NDArray[np.number], predicted: NDArray[np.floating], comm: Communicator,
    weights: NDArray[np.floating] | None = None,
) -> dict[str, float | None]:  # fmt: skip
    """Mean squared error, its root, and R^2, in the target's own units; one Allreduce of four numbers.

    For t targets, shape (n_local, t), each metric is averaged over the targets, as scikit-learn's "uniform_average".
    R^2 of a constant target is then 1 if all predictions are exact, else 0. One Allreduce of 3 t + 1 numbers.
    """
    y = np.asarray(y, np.float64)
    if y.ndim > 1:
        return _mean_metrics(y, predicted, comm, weights)
    # Without this shift, R^2 of targets far from 0 would lose digits.
    shift = comm.bcast(y[:1] if comm.rank == 0 and len(y) else np.zeros(1))[0]
    w = np.ones(len(y)) if weights is None else weights
    with np.errstate(over="ignore", invalid="ignore"):  # huge targets overflow: the reported error is infinite
        error, about = predicted - y, y - shift
        n, sse, total, square = comm.allreduce(np.array([w.sum(), w @ error**2, w @ about, w @ about**2]))
        spread = square - total * total / n
    mse = sse / n
    return {"mse": mse, "rmse": math.sqrt(mse), "r2": 1.0 - sse / spread if spread > 0 else None}


def _mean_metrics(
    y: NDArray[np.number], predicted: NDArray[np.floating], comm: Communicator, weights: NDArray[np.floating] | None
) -> dict[str, float | None]:
    shift = comm.bcast(y[:1] if comm.rank == 0 and len(y) else np.zeros((1, y.shape[1])))[0]
    w = np.ones(len(y)) if weights is None else weights
    sums = np.array([w @ np.square(predicted - y), w @ (y - shift), w @ np.square(y - shift)])
    *flat, n = comm.allreduce(np.append(sums.ravel(), w.sum()))
    sse, total, square = np.reshape(flat, sums.shape)
    spread = square - total * total / n
    varied = spread > 0
    r2 = np.where(varied, 1.0 - sse / np.where(varied, spread, 1.0), np.where(sse > 0, 0.0, 1.0))
    mse = sse / n
    return {"mse": float(mse.mean()), "rmse": float(np.sqrt(mse).mean()), "r2": float(r2.mean())}


def classification_metrics(
    y: NDArray[np.generic], predicted: NDArray[np.generic], classes: NDArray[np.generic], comm: Communicator
) -> dict[str, Any]:
    """Accuracy, balanced accuracy (mean recall of the classes), and confusion matrix; one Allreduce of k^2 numbers.

    Entry (i, j) of the matrix counts the rows of the i-th class that were predicted as the j-th.
    """
    k = len(classes)
    places = np.searchsorted(classes, y) * k + np.searchsorted(classes, predicted)
    confusion = comm.allreduce(np.bincount(places, minlength=k * k).astype(np.int64)).reshape(k, k)
    counts = confusion.sum(axis=1)
    right, there = np.diagonal(confusion), counts > 0
    return {
        "accuracy": float(right.sum() / max(1, counts.sum())),
        "balanced_accuracy": float((right[there] / counts[there]).mean()) if there.any() else 0.0,
        "confusion": confusion.tolist(),
    }


def recalls(confusion: list[list[int]]) -> list[float | None]:
    """Share of each class's rows that was predicted as that class; None for a class without rows."""
    return [row[k] / sum(row) if sum(row) else None for k, row in enumerate(confusion)]


def gaussian_scores(
    y: NDArray[np.floating], mean: NDArray[np.floating], std: NDArray[np.floating], comm: Communicator
) -> dict[str, float]:
    """Mean negative log likelihood ("nll") and mean continuous ranked probability score ("crps") over all ranks.

    The predictions are normal distributions with these means and standard deviations, of shape (n_local,) or
    (n_local, t). The CRPS, in units of the target, is std (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)) with
    z = (y - mean) / std (Gneiting and Raftery, 2007, eq. 5); where std is 0, it is the absolute error. One Allreduce of
    three numbers.
    """
    from scipy.special import erf

    error = np.asarray(y, np.float64) - mean
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = error / std
        nll = np.log(std) + 0.5 * z**2 + 0.5 * math.log(2 * math.pi)
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        crps = std * (z * erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))
    nll, crps = np.where(std > 0, nll, np.inf), np.where(std > 0, crps, np.abs(error))
    total = comm.allreduce(np.array([nll.sum(), crps.sum(), nll.size]))
    return {"nll": float(total[0] / total[2]), "crps": float(total[1] / total[2])}


BINS = 10  # bins of a reliability diagram


_PAIRS = 1_000  # rows of which a report holds target and prediction


def predicted_and_true(
    y: NDArray[np.generic], predicted: NDArray[np.generic], comm: Communicator
) -> dict[str, object]:  # fmt: skip
    """Number of rows on all ranks, and "true" and "predicted" numbers of at most 1,000 of them; one Allgather of each.

    The arrays have shape (n_local,). The rows are at equal distances, the same ones on any number of ranks.
    """
    y, predicted = comm.allgather(np.asarray(y, np.float64)), comm.allgather(np.asarray(predicted, np.float64))
    step = -(-len(y) // _PAIRS) or 1
    return {"rows": len(y), "true": y[::step].tolist(), "predicted": predicted[::step].tolist()}


def class_scores(codes: NDArray[np.int64], P: NDArray[np.float64], comm: Communicator) -> dict[str, float]:
    """Log loss and Brier score over all ranks, as scikit-learn's ``log_loss`` and ``brier_score_loss``.

    Parameters
    ----------
    codes : ndarray of int64, shape (n_local,)
        Column in `P` of each row's class; -1 for a class unknown to the model, which has probability 0.
    P : ndarray, shape (n_local, k)
        Class probabilities; each row sums to 1.
    comm : Communicator
        One Allreduce of three numbers.

    Notes
    -----
    The Brier score of two classes is the mean of (p - y)^2 for the second class; of more classes, the mean of the sum
    over the classes.
    """
    labelled, k = codes >= 0, P.shape[1]
    true = np.where(labelled, P[np.arange(len(P)), np.maximum(codes, 0)], 0.0)
    loss = -np.log(np.clip(true, np.finfo(np.float64).eps, 1.0))
    square = np.square(P).sum(axis=1) - 2.0 * true + 1.0
    total = comm.allreduce(np.array([loss.sum(), square.sum(), len(P)]))
    return {"log_loss": float(total[0] / total[2]), "brier": float(total[1] / total[2] / (2.0 if k == 2 else 1.0))}


def probability_scores(metrics: dict[str, Any]) -> dict[str, float]:
    """Entries of `metrics` that come from :func:`class_scores`."""
    return {name: metrics[name] for name in ("log_loss", "brier") if name in metrics}


def reliability(codes: NDArray[np.int64], P: NDArray[np.float64], comm: Communicator) -> list[dict[str, float]]:
    """Reliability diagram over all ranks: predicted probability and observed frequency; one Allreduce of 30 numbers.

    With two classes, the probability is that of the second class; with more, that of each row's most likely class. The
    result has one line per nonempty bin: "rows", "predicted", their mean probability, and "observed", the share of them
    that belong to that class.
    """
    place = np.full(len(P), 1) if P.shape[1] == 2 else P.argmax(axis=1)
    predicted, right = P[np.arange(len(P)), place], codes == place
    bins = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    sums = comm.allreduce(
        np.array([np.bincount(bins, weights, BINS) for weights in (np.ones(len(P)), predicted, right)], np.float64)
    )
    return [
        {"rows": int(rows), "predicted": float(total / rows), "observed": float(true / rows)}
        for rows, total, true in sums.T if rows
    ]  # fmt: skip


def interval_metrics(
    y: NDArray[np.floating] | None, lower: NDArray[np.floating], upper: NDArray[np.floating], comm: Communicator
) -> dict[str, float]:
    """Mean width of prediction intervals over all ranks and, if the targets are known, their coverage.

    The arrays have shape (n_local,) or (n_local, t); all targets count together. One Allreduce of three numbers.
    """
    held = 0 if y is None else np.count_nonzero((lower <= y) & (y <= upper))
    count, width, inside = comm.allreduce(np.array([lower.size, (upper - lower).sum(), held]))
    metrics = {"mean_width": float(width / count)}
    return metrics if y is None else {"coverage": float(inside / count), **metrics}


def pinball(error: NDArray[np.float64], tau: float) -> NDArray[np.float64]:
    """Pinball loss of each error y - q of a predicted tau-quantile q: tau error above 0, (tau - 1) error below."""
    return np.maximum(tau * error, (tau - 1.0) * error)


def quantile_metrics(
    y: NDArray[np.number], predicted: NDArray[np.float64], quantiles: tuple[float, ...], comm: Communicator
) -> dict[str, Any]:
    """Mean pinball loss and share of targets at or below each quantile; one Allreduce of 2 t + 1 numbers.

    Parameters
    ----------
    y : ndarray, shape (n_local,)
    predicted : ndarray of float64, shape (n_local, t)
    quantiles : tuple of float
        The t levels.
    comm : Communicator

    Returns
    -------
    dict
        ``pinball``, the mean over rows and quantiles, in units of the target; ``pinball_by_quantile``, and
        ``share_below``, which is near the level itself for a calibrated quantile: lists of t numbers.
    """
    y = np.asarray(y, np.float64)
    t = len(quantiles)
    loss = [pinball(y - column, tau).sum() for column, tau in zip(predicted.T, quantiles, strict=True)]
    below = np.count_nonzero(y[:, None] <= predicted, axis=0)
    sums = comm.allreduce(np.array([*loss, *below, len(y)], np.float64))
    means = sums[:-1] / sums[-1]
    return {
        "pinball": float(means[:t].mean()), "pinball_by_quantile": means[:t].tolist(),
        "share_below": means[t:].tolist(),
    }  # fmt: skip
