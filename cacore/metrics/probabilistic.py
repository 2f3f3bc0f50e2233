"""How good probabilistic predictions were: intervals, normal distributions, probabilities of classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator


def gaussian_scores(y: NDArray[Any], mean: NDArray[Any], std: NDArray[Any], comm: Communicator) -> dict[str, float]:
    """Mean negative log likelihood ("nll"), and mean continuous ranked probability score ("crps"), over all ranks.

    Of the normal distributions with these means and standard deviations, shape (n_local,) or (n_local, t). The score is
    std (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)) with z = (y - mean) / std (Gneiting and Raftery, 2007, eq. 5): the
    absolute error where std is 0, and in the unit of the targets. One Allreduce of three numbers.
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


BINS = 10  # of a reliability diagram


def class_scores(codes: NDArray[np.int64], P: NDArray[np.float64], comm: Communicator) -> dict[str, float]:
    """Log loss and Brier score over all ranks, as scikit-learn's ``log_loss`` and ``brier_score_loss``.

    Parameters
    ----------
    codes : ndarray of int64, shape (n_local,)
        The place of each row's class; -1 of one that the model does not know, whose probability is 0.
    P : ndarray, shape (n_local, k)
        Rows of sum 1.
    comm : Communicator
        One Allreduce of three numbers.

    Notes
    -----
    Brier's score of two classes is the mean of (p - y)^2 of the second; of more, the sum over the classes.
    """
    known, k = codes >= 0, P.shape[1]
    true = np.where(known, P[np.arange(len(P)), np.maximum(codes, 0)], 0.0)
    loss = -np.log(np.clip(true, np.finfo(np.float64).eps, 1.0))
    square = np.square(P).sum(axis=1) - 2.0 * true + 1.0
    total = comm.allreduce(np.array([loss.sum(), square.sum(), len(P)]))
    return {"log_loss": float(total[0] / total[2]), "brier": float(total[1] / total[2] / (2.0 if k == 2 else 1.0))}


def probability_scores(metrics: dict[str, Any]) -> dict[str, float]:
    """What :func:`class_scores` put among these metrics."""
    return {name: metrics[name] for name in ("log_loss", "brier") if name in metrics}


def reliability(codes: NDArray[np.int64], P: NDArray[np.float64], comm: Communicator) -> list[dict[str, float]]:
    """How often what was predicted with a probability came true, over all ranks; one Allreduce of 30 numbers.

    Of two classes, the second one; of more, each row's likeliest. A line for each tenth of the probabilities in which
    there are rows: "rows", "predicted", their mean probability, and "observed", the share that came true.
    """
    place = np.full(len(P), 1) if P.shape[1] == 2 else P.argmax(axis=1)
    said, right = P[np.arange(len(P)), place], codes == place
    bins = np.minimum((said * BINS).astype(np.int64), BINS - 1)
    sums = comm.allreduce(
        np.array([np.bincount(bins, some, BINS) for some in (np.ones(len(P)), said, right)], np.float64)
    )
    return [
        {"rows": int(rows), "predicted": float(total / rows), "observed": float(true / rows)}
        for rows, total, true in sums.T if rows
    ]  # fmt: skip


def interval_metrics(
    y: NDArray[Any] | None, lower: NDArray[Any], upper: NDArray[Any], comm: Communicator
) -> dict[str, float]:
    """The mean width of intervals over all ranks, and which share of the targets they hold, where these are known.

    Of shape (n_local,) or (n_local, t), all targets together; one Allreduce of three numbers.
    """
    held = 0 if y is None else np.count_nonzero((lower <= y) & (y <= upper))
    count, width, inside = comm.allreduce(np.array([lower.size, (upper - lower).sum(), held]))
    found = {"mean_width": float(width / count)}
    return found if y is None else {"coverage": float(inside / count), **found}
