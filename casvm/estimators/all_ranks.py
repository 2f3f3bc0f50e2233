"""The base of the estimators on all ranks: each rank passes its own rows and receives its own predictions."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.comm import CommLike, Communicator, collective
from cacore.data.asking import asking, same_fit
from cacore.data.dataset import Dataset
from cacore.data.rows import Rows, RowsLike
from cacore.data.validation import check_same_names
from cacore.learn.method import Method
from cacore.machine import threads
from casvm.fit import SVMFit, Trained
from casvm.options import SVMOptions
from casvm.value_options import ValueOptions


class AllRanks(Generic[Trained]):
    """Training and prediction on the ranks of `comm`, or in one process without it."""

    comm: CommLike
    model_: Trained

    def _trained(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None
    ) -> tuple[SVMFit[Trained], SVMOptions | ValueOptions]:
        """Train on this rank's rows and set the fitted attributes; return the fit and its options. Collective."""
        with collective(self.comm) as comm:
            same_fit(self, comm)
            threads.share_once(comm)
            with comm.agreed(own_rows=True):
                train = self._training_rows(X, y, sample_weight, int(comm.size == 1))
            check_same_names(self, comm)
            method, options = self._asked(train, comm)
            fitted: SVMFit[Trained] = method(train, options, comm)
            self._take(fitted, comm)
        self.model_.comm = self.comm
        return fitted, options

    @abstractmethod
    def _training_rows(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int) -> Dataset:
        """Checked training rows; there must be `least` of them, 1 in one process and 0 on many ranks."""

    @abstractmethod
    def _asked(self, train: Dataset, comm: Communicator) -> tuple[Method, SVMOptions | ValueOptions]:
        """The method and the options that the parameters select; collective."""

    @abstractmethod
    def _take(self, fitted: SVMFit[Trained], comm: Communicator) -> None:
        """Set the fitted attributes; collective."""

    @abstractmethod
    def _rows(self, X: RowsLike, least: int = 1) -> Rows:
        """Checked rows to predict; there must be `least` of them."""

    def _answer(self, question: str, X: RowsLike) -> NDArray[Any]:
        """Result of the model's method `question` for `X`; collective."""
        with asking(self, question) as comm:
            with comm.agreed(own_rows=True):
                X = self._rows(X, int(comm.size == 1))
            return np.asarray(getattr(self.model_, question)(X, comm))
