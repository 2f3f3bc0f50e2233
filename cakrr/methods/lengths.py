"""Length scales of the features, from gradients of the leave-one-out error over the parts of all ranks."""

from __future__ import annotations

import math

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from cacore.data.metric import SAMPLE
from cacore.data.rows import dense
from cakrr.methods.settings import Chosen
from cakrr.methods.task import RidgeTask
from cakrr.solver.lengths import slope

ROWS = 2500  # rows of all parts together whose errors are minimised: enough for d + 1 parameters
EVALUATIONS = 10  # per round; then the rows are divided again with the new lengths
FARTHEST = 4.0  # largest change of a scale's logarithm per round


def scales(task: RidgeTask, chosen: Chosen) -> NDArray[np.float64]:
    """Factors of the features, shape (d,), that minimise the leave-one-out errors inside the parts; collective.

    L-BFGS on the logarithms of the factors and of lambda starts at the chosen pair, with the same steps on all ranks.
    It uses the training rows of some parts: about `ROWS` rows in all, at most `SAMPLE` per part.

    Notes
    -----
    3 m^3 flops per part and evaluation, and one Allreduce of d + 3 numbers.
    """
    comm, parts, lam = task.comm, task.parts, chosen.lam
    P, d = len(parts.sizes), parts.X.shape[1]
    count = max(1, math.ceil(ROWS / min(SAMPLE, parts.sizes.mean())))
    sampled = np.random.default_rng((task.options.seed, task.round)).permutation(P)[:count]
    kernel = chosen.width.kernel
    mine = []
    for part, rows in parts:
        first = rows.start + int(chosen.held[rows].sum())
        learn = slice(first, min(rows.stop, first + SAMPLE))
        if part in sampled and learn.stop > learn.start + 1:
            w = parts.row_weights()[learn]
            ridge = lam * w.sum() / w
            mine.append((dense(parts.X[learn]).astype(np.float64), chosen.targets[learn, 0], ridge, w))

    def error(logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Logarithm of the mean squared error, the same on all ranks, and its gradient."""
        total, factors = np.zeros(d + 3), np.exp(logs)
        for X, Y, ridge, w in mine:
            left, slopes = slope(kernel, X * factors[:d], Y, factors[d] * ridge, w)
            total += np.concatenate([[left, w.sum()], slopes])
        with comm.phase("train"):
            total = comm.allreduce(total)
        with comm.uncounted():  # the ranks' sums may differ in the last bit
            total = comm.bcast(total)
        if not 0.0 < total[0] < np.inf:
            return 1e3, np.zeros(d + 1)  # no solution: L-BFGS backtracks
        return math.log(total[0] / total[1]), total[2:] / total[0]

    found = scipy.optimize.minimize(
        error, np.zeros(d + 1), jac=True, method="L-BFGS-B", bounds=[(-FARTHEST, FARTHEST)] * (d + 1),
        options={"maxfun": EVALUATIONS},
    )  # fmt: skip
    factors = np.exp(found.x[:d])
    return np.asarray(np.where(found.jac[:d] == 0.0, factors.min(), factors))  # a constant feature has no effect
