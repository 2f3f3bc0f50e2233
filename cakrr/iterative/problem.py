"""The systems of one kernel: rows, targets and lambdas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.kernels import Kernel
from cakrr.iterative.islands import Tiles


@dataclass
class Within:
    """Facts that an island takes from the system that it belongs to.

    Attributes
    ----------
    n : int
        Number of rows of the whole system, which its ridge lambda n is for.
    weight : float
        Their mean weight.
    tiles : Tiles
    share : float
        Share of the island's pairs of rows that are computed.
    """

    n: int
    weight: float
    tiles: Tiles
    share: float


@dataclass
class RidgeProblem:
    """The systems (K + lambda n I) alpha = y of one kernel, for every lambda and target.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
        This rank's rows.
    number : ndarray of int64, shape (m,)
        Places of these rows among the n rows of all ranks.
    y : ndarray, shape (m, t)
    weights : ndarray, shape (m,), or None
    kernel : Kernel
    lams : tuple of float
    name : str
        Name in the report.
    piece : str
        Name in the checkpoint.
    within : Within or None
        Facts of the system that an island belongs to.
    """

    X: Rows
    number: NDArray[np.int64]
    y: NDArray[np.float64]
    weights: NDArray[np.float64] | None
    kernel: Kernel
    lams: tuple[float, ...]
    name: str
    piece: str
    within: Within | None = None
