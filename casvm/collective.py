"""What the classifiers share that train on many ranks: collective fit, predict and score."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from cacore.comm import Communicator, as_communicator
from cacore.data.validation import shared_seed
from cacore.machine import memory, threads
from casvm.base import BaseSVC
from casvm.methods.parts import fit
from casvm.methods.prepare import all_classes
from casvm.options import Fit, Method


class CollectiveSVC(BaseSVC):
    """A classifier whose `fit` and `predict` take each rank's own rows, if it is given `comm`."""

    comm: Any
    standardize: Any
    random_state: Any = None
    _trainer: Callable[..., Fit] = staticmethod(fit)

    def _method(self) -> tuple[Method, int | None]:
        """The method, and the number of parts."""
        raise NotImplementedError

    def _own_options(self) -> dict[str, Any]:
        """Options of this classifier alone."""
        return {}

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, and labels `y`; neither is changed.

        Rows of weight 0 count as absent. Raises InputError, a ValueError, on what cannot be used; warns with
        ConvergenceWarning if a limit was reached.
        """
        comm = as_communicator(self.comm)
        with comm.guard():
            threads.share_once(comm)
            with comm.agreed():
                train = self._checked(X, y, sample_weight, int(comm.size == 1))
            classes = all_classes(train.y if train.weights is None else train.y[train.weights > 0], comm)
            seed = shared_seed(self.random_state, comm)
            with comm.agreed():
                method, partitions = self._method()
                options = self._options(
                    classes, memory.limit_per_rank(comm), self.kernel, partitions=partitions,
                    standardize=self.standardize, seed=seed, **self._own_options(),
                )  # fmt: skip
            result = self._trainer(method, train, options, comm)
        self._take(result)
        for note in result.notes:
            warnings.warn(note, ConvergenceWarning, stacklevel=2)
        return self

    def _take(self, result: Fit) -> None:
        self._expose(result.model)
        self.sizes_, self.solver_ = result.sizes, result.solver
        self.n_iter_ = result.solver["iterations"]

    def _input(self, X: Any) -> tuple[Any, Communicator]:
        comm = as_communicator(self.comm)
        with comm.agreed():
            X = self._rows(X, int(comm.size == 1))
        return X, comm

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Decisions for `X`, shape (n_local,) with two classes, else (n_local, k); with `comm`, collective."""
        check_is_fitted(self, "model_")
        with as_communicator(self.comm).guard():
            return self.model_.decision_function(*self._input(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels for `X`, shape (n_local, d); with `comm`, a collective call."""
        check_is_fitted(self, "model_")
        with as_communicator(self.comm).guard():
            return self.model_.predict(*self._input(X))

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy; with `comm`, over all ranks' rows, the same number on each: a collective call."""
        comm = as_communicator(self.comm)
        if comm.size == 1:
            return float(super().score(X, y, sample_weight))
        predicted = self.predict(X)
        with comm.guard():
            weights = np.ones(len(predicted)) if sample_weight is None else np.asarray(sample_weight, np.float64)
            right, every = comm.allreduce(np.array([weights @ (predicted == np.asarray(y)), weights.sum()]))
        return float(right / every)
