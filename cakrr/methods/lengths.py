"""Length scales of the features by the slope of the leave-one-out error, over the parts of all ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from cacore.data.metric import SAMPLE
from cacore.data.rows import dense
from cakrr.solver.lengths import slope

if TYPE_CHECKING:
    from cakrr.methods.parts import _Run

ROWS = 2500  # of all parts together, whose errors are lessened: there are but d + 1 numbers to find
EVALUATIONS = 10  # of a round: then the rows are divided anew, by the new lengths
FARTHEST = 4.0  # by how much the logarithm of a scale changes at most in a round


def scales(run: _Run, sigma: float, lam: float) -> NDArray[np.float64]:
    """Factors of the features, shape (d,), which lessen the leave-one-out errors inside the parts; collective.

    Those of the learning rows of some parts, `ROWS` rows or so, at most `SAMPLE` of each, at this sigma and lambda to
    begin with; L-BFGS on the logarithms of the factors and of lambda, on all ranks alike.

    Notes
    -----
    3 m^3 flops a part and evaluation, and one Allreduce of d + 3 numbers.
    """
    comm, parts = run.comm, run.parts
    P, d = len(parts.sizes), parts.X.shape[1]
    count = max(1, math.ceil(ROWS / min(SAMPLE, parts.sizes.mean())))
    chosen = np.random.default_rng((run.options.seed, run.number)).permutation(P)[:count]
    kernel = run.model.like.with_sigma(sigma)
    mine = []
    for part, rows in parts:
        first = rows.start + int(run.held[rows].sum())
        learn = slice(first, min(rows.stop, first + SAMPLE))
        if part in chosen and learn.stop > learn.start + 1:
            w = parts.row_weights()[learn]
            ridge = lam * w.sum() / w
            mine.append((dense(parts.X[learn]).astype(np.float64), run.targets[learn, 0], ridge, w))

    def error(logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """The logarithm of the mean squared error, the same on all ranks, and its slope."""
        total, factors = np.zeros(d + 3), np.exp(logs)
        for X, Y, ridge, w in mine:
            left, slopes = slope(kernel, X * factors[:d], Y, factors[d] * ridge, w)
            total += np.concatenate([[left, w.sum()], slopes])
        with comm.phase("train"):
            total = comm.allreduce(total)
        with comm.uncounted():  # the ranks' sums may differ in the last bit
            total = comm.bcast(total)
        if not 0.0 < total[0] < np.inf:
            return 1e3, np.zeros(d + 1)  # no solution: L-BFGS goes back
        return math.log(total[0] / total[1]), total[2:] / total[0]

    found = scipy.optimize.minimize(
        error, np.zeros(d + 1), jac=True, method="L-BFGS-B", bounds=[(-FARTHEST, FARTHEST)] * (d + 1),
        options={"maxfun": EVALUATIONS},
    )  # fmt: skip
    factors = np.exp(found.x[:d])
    return np.asarray(np.where(found.jac[:d] == 0.0, factors.min(), factors))  # a constant feature counts for nothing
