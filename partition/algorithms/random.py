"""Random parts: shuffled rows dealt out in turn (lines 1 to 5 of Algorithm 8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.checks import yes_or_no
from cacore.comm import Communicator
from cacore.errors import InputError
from partition.base import Algorithm, PartRows


@dataclass(eq=False, repr=False, kw_only=True)
class RandomPartition(Algorithm, name="random"):
    """Random parts: shuffled rows are dealt out in turn; a part's centre is the mean of its rows.

    Parameters
    ----------
    n_parts : int
    in_place : bool
        Each rank's own rows are one part (casvm2), so that no row moves. There must be as many parts as ranks.
    random_state : int, RandomState or None

    Notes
    -----
    Sizes differ by at most 1. The labels take O(n_local) operations and no communication; the centres take one
    Allreduce of P x (d+1) numbers.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from partition import RandomPartition
    >>> X, y = make_blobs([50, 100, 150, 100], random_state=0)
    >>> parts = RandomPartition(n_parts=4, random_state=0).fit(X)
    >>> parts.sizes_.tolist()
    [100, 100, 100, 100]
    """

    clusters = False
    checks = Algorithm.checks | {"in_place": yes_or_no}

    in_place: bool = False

    def _check_parts(self, n: int, n_local: int, comm: Communicator) -> None:
        super()._check_parts(n, n_local, comm)
        if self.in_place and self.n_parts != comm.size:
            raise InputError(f"in_place: {self.n_parts} parts on {comm.size} ranks; there must be one per rank")
        if self.in_place and n_local == 0:
            raise InputError(f"in_place: rank {comm.rank} has no rows, and a part needs one")

    def _partition(
        self, rows: PartRows, y: NDArray[np.generic] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        if self.in_place:
            labels = np.full(len(rows), rows.comm.rank, np.int32)
        else:
            labels = (rows.order % self.n_parts).astype(np.int32)
        return labels, rows.means(labels, self.n_parts)[0]
