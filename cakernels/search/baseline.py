"""The prediction of a model that knows no features: the mean, or the most frequent class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cakernels.search.data import REGRESSION, Data


@dataclass(frozen=True)
class Baseline:
    """One prediction for every row.

    Attributes
    ----------
    value : ndarray, shape () or (t,)
        The mean target, or the most frequent label.
    name : str
        Text for tables and messages.
    """

    value: NDArray[Any]
    name: str

    @classmethod
    def of(cls, data: Data, comm: Communicator) -> Baseline:
        """The weighted mean target, or the most frequent class, the first of equally frequent ones; collective."""
        y, w = data.targets(np.ones(len(data.y), np.bool_))
        if data.task == REGRESSION:
            with comm.uncounted(), np.errstate(over="ignore", invalid="ignore"):
                total = comm.allreduce(np.append(w @ np.asarray(y, np.float64).reshape(len(y), -1), w.sum()))
                mean = np.asarray(total[:-1] / total[-1])
            return cls(mean.reshape(data.y.shape[1:]), "the mean")
        with comm.uncounted():
            weights = comm.allreduce(np.bincount(np.searchsorted(data.classes, y), w, len(data.classes)))
        label = data.classes[int(np.argmax(weights))]
        return cls(np.asarray(label), f"the most frequent class, {label.item()!r}")

    def predicted(self, rows: int) -> NDArray[Any]:
        """The predictions for so many rows."""
        return np.broadcast_to(self.value, (rows, *self.value.shape)).copy()
