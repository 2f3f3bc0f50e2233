"""Error metrics of regression and classification over the rows of all ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator


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
