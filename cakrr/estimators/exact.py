"""The exact method as a scikit-learn regressor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.validation import checked_weights
from cacore.errors import InputError
from cacore.kernels.given import Precomputed, numbered, of_new_rows
from cacore.learn.options import from_estimator
from cakrr.dkrr import dkrr
from cakrr.estimators.base import Regressor
from cakrr.fit import RidgeFit
from cakrr.options import RidgeOptions


@dataclass(eq=False, repr=False, kw_only=True)
class Iterated:
    """Parameters of the exact method, and what it tells of its iterations."""

    solver: str = "cholesky"
    tol: float = 1e-6
    preconditioner: str = "pivoted"
    rank: int | None = None
    early: float | None = None
    max_time: float | None = None
    scratch: Any = None

    def _expose(self, fitted: RidgeFit) -> None:
        for name in ("n_iter_", "residual_"):
            if hasattr(self, name):
                delattr(self, name)
        if fitted.residual.size:
            self.residual_ = float(fitted.residual.max())
        if fitted.iteration:
            self.n_iter_ = max(fitted.iteration["iterations"])


@dataclass(eq=False, repr=False, kw_only=True)
class DKRR(Iterated, Regressor):
    """Exact kernel ridge regression, one system of all rows over all ranks (Algorithm 6).

    Parameters
    ----------
    sigma, lam, degree, coef0, validation_fraction, metric, metric_rounds
        See :class:`BKRR2`.
    scaling, standardize, dtype, calibrate, random_state, comm
        See :class:`BKRR2`, also for the attributes.
    kernel : as for :class:`BKRR2`, or "precomputed"
        With "precomputed" `X` is K, shape (n, n), in `fit`, and kernel values of new rows with all training rows, shape
        (n_new, n), in `predict`; in one process. There are no features then: `standardize` is ignored, and `sigma` has
        to be left out. The model is not written to a file.
    solver : {"cholesky", "cg", "auto"}
        Factor the matrix; or conjugate gradients with a preconditioner, which need n numbers a vector and no matrix; or
        whichever is predicted to cost less and fits. "cholesky" refuses the parameters below, and "auto" takes "cg" if
        one is given.
    tol : float
        "cg": residual over the norm of the centred targets, at most; computed from scratch at the end.
    preconditioner : {"pivoted", "nystrom", "local", "two-level"}
        A factor of K of low rank, whose pivots are drawn where K is not explained yet, or evenly; blocks of rows that
        lie together; blocks of what the factor leaves.
    rank : int or None
        Rank of the factor; None adds pivots until more would cost more than they save.
    early : float or None
        With a choice: stop where the validation error has moved by less than this share of it over three iterations;
        the final solution goes as far as the chosen pair did.
    max_time : float or None
        Seconds after which the solution is taken as it is, with a warning that has its residual; an error if there is
        none yet.
    scratch : str, Path or None
        A directory for kernel values that do not fit into memory, and for a factor of the given rank.

    Attributes
    ----------
    n_iter_ : int
        "cg": iterations of the solution; of many targets the most.
    residual_ : float
        "cg", or float32: its relative residual.

    Notes
    -----
    n^2 d + n^3/3 flops and 8 n^2 bytes, shared by the ranks. More than one rank needs ScaLAPACK:
    pip install 'cakernels[scalapack]'. A round of a metric costs the choice of sigma and lambda, one more n^3/3, and
    an Allreduce of the gradients at 2,000 rows at most. "cg": n^2/2 kernel values an iteration for all lambdas and
    targets together, and n k^2 flops for a factor of rank k; any number of ranks, without ScaLAPACK.
    """

    _method = dkrr

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, or (n, n) with a precomputed kernel, and `y`, (n_local,)."""
        super().fit(X, y, sample_weight)
        if self._has_matrix():  # which is not needed any longer: new rows bring their kernel values
            self.model_.like = of_new_rows()
            self.centers_ = self.model_.centers = np.zeros((0, self.n_features_in_))
        return self

    def _has_matrix(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    def _problem(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, comm: Communicator
    ) -> tuple[Dataset, RidgeOptions]:
        if not self._has_matrix():
            return super()._problem(X, y, sample_weight, comm)
        with comm.agreed():
            return self._of_matrix(X, y, sample_weight, comm)

    def _of_matrix(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, comm: Communicator
    ) -> tuple[Dataset, RidgeOptions]:
        if comm.size > 1:
            raise InputError(
                f"a precomputed kernel is for one process, and these are {comm.size} ranks: use a callable"
            )
        if self.metric != "none":
            raise InputError("metric: a precomputed kernel has no features to weigh; leave it out")
        if self.sigma is not None:
            raise InputError("sigma: a precomputed kernel has no width; leave it out")
        train = self._checked(X, y, None, 1, copy=False)
        if issparse(train.X):
            raise InputError("a precomputed kernel has to be dense")
        if train.X.shape[0] != train.X.shape[1]:
            raise InputError(f"a precomputed kernel must be square; this one has shape {train.X.shape}")
        K, rows = train.X, Dataset(numbered(len(train.X), train.X.dtype), train.target())
        if sample_weight is not None:
            weights = checked_weights(sample_weight, len(K))
            kept = weights > 0
            rows = Dataset(rows.X[kept], rows.target()[kept], weights=weights[kept])
        return rows, from_estimator(RidgeOptions, self, kernel=Precomputed(K), standardize=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._has_matrix()
        tags.input_tags.sparse = not tags.input_tags.pairwise
        return tags
