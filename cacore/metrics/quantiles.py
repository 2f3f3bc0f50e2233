"""Metrics of predicted quantiles, from sums over the rows of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator


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
