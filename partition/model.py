"""What every model in parts shares: the ranks that hold its parts, and rows as it takes them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator, collective
from cacore.data.rows import Rows, check_alike
from cacore.data.standardize import Standardizer
from cacore.data.validation import rows_to_predict
from cacore.errors import InputError


class InParts:
    """A model of P parts, of which this rank holds some: the base of the families' models."""

    centers: NDArray[np.float64]
    owners: NDArray[np.int64]
    standardizer: Standardizer | None
    dtype: str
    parts: dict[int, Any]
    comm: Any

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "comm": None}

    @property
    def n_features(self) -> int:
        """Of a row."""
        return int(self.centers.shape[1])

    def _ranks(self, comm: Any) -> AbstractContextManager[Communicator]:
        """The ranks that are given, or those that trained or loaded the model."""
        return collective(self.comm if comm is None else comm)

    def _check_ranks(self, comm: Communicator) -> None:
        if comm.size <= int(self.owners.max()) or len(self.parts) != np.count_nonzero(self.owners == comm.rank):
            raise InputError("the model lies on other ranks than these: save it, and load it on the ranks that use it")

    def _received(self, X: Any, comm: Communicator) -> Rows:
        """This rank's rows, checked on all ranks alike, and standardised."""
        with comm.agreed():
            X = rows_to_predict(X, self.dtype, self.centers.shape[1])
            self._check_ranks(comm)
        check_alike(X, comm)
        return X if self.standardizer is None else self.standardizer.apply(X)
