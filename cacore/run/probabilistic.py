"""How good probabilistic predictions were: coverage and width of intervals, scores of normal distributions."""

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
