"""``--early``: stop right-hand sides whose validation error no longer changes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.kernels import Kernel
from cacore.linalg import cg
from cakrr.methods.factored import Judging

SETTLED = 3  # number of iterations over which an error must not change


class SettledErrors:
    """Stopping criterion: the validation error of a right-hand side changed by less than a share of itself.

    Parameters
    ----------
    judging : Judging
    X : ndarray or CSR, shape (m, d)
        This rank's rows of the system.
    kernel : Kernel
    share : float
    lams, targets : int
        Numbers of lambdas and targets; right-hand sides are ordered by lambda, then by target.
    scale : ndarray, shape (targets,)
        Units of the targets.
    comm : Communicator

    Attributes
    ----------
    history, sent
        See :class:`cakrr.iterative.solver.EarlyStop`.
    """

    def __init__(
        self, judging: Judging, X: Rows, kernel: Kernel, share: float, lams: int, scale: NDArray[np.float64],
        comm: Communicator,
    ) -> None:  # fmt: skip
        self.judging, self.kernel, self.share, self.scale, self.comm = judging, kernel, share, scale, comm
        self.targets = len(scale)
        self.points = kernel.points(X)
        self.rows = kernel.points(judging.X, like=self.points)
        self.history = np.full((lams * self.targets, SETTLED + 1), np.nan)
        self.sent = 0

    def __call__(self, x: cg.Vectors, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask of the right-hand sides `ids` that may stop, given coefficients `x`, shape (a, m).

        One Allreduce of predictions. Rank 0 decides, since long sums may differ in the last bit between ranks.
        """
        comm, rows = self.comm, len(self.judging.y)
        settled = self._settled(x, ids).astype(np.uint8)
        if comm.size > 1:
            self.sent += 8 * comm.size * rows * len(ids) + (comm.size - 1) * (64 + settled.nbytes)
        return comm.bcast(settled).astype(np.bool_)

    def _settled(self, x: cg.Vectors, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        comm, judging = self.comm, self.judging
        predicted = comm.allreduce(self.kernel.apply(self.rows, self.points, np.ascontiguousarray(x.T)))
        targets = ids % self.targets
        y = judging.y.reshape(len(judging.y), -1)[:, targets]
        gap = np.square((predicted - y) / self.scale[targets])
        errors = judging.weights @ gap
        recent = np.column_stack([self.history[ids, 1:], errors])
        self.history[ids] = recent
        moved = recent.max(axis=1) - recent.min(axis=1)
        return np.asarray(moved <= self.share * errors)  # False for NaN
