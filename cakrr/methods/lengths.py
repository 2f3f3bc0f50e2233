"""Length scales of the features, from gradients of the leave-one-out error over the parts of all ranks."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cacore.data.lengths import LeftOut, best_scales
from cacore.data.metric import SAMPLE
from cacore.data.rows import dense
from cakrr.methods.settings import Chosen
from cakrr.methods.task import RidgeTask

ROWS = 2500  # rows of all parts together whose errors are minimised: enough for d + 1 parameters
EVALUATIONS = 10  # per round; then the rows are divided again with the new lengths


def scales(task: RidgeTask, chosen: Chosen) -> NDArray[np.float64]:
    """Factors of the features, shape (d,), that minimise the leave-one-out errors inside the parts; collective.

    L-BFGS on the logarithms of the factors and of lambda starts at the chosen pair, with the same steps on all ranks.
    It uses the training rows of some parts: about `ROWS` rows in all, at most `SAMPLE` per part.

    Notes
    -----
    2 m^3 flops per part and evaluation, and one Allreduce of d + 3 numbers.
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
            mine.append(LeftOut(dense(parts.X[learn]).astype(np.float64), chosen.targets[learn, 0], ridge, w))
    return best_scales(kernel, mine, d, EVALUATIONS, comm)[:d]
