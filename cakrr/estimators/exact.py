"""The exact method as a scikit-learn regressor."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import Tags

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.rows import RowsLike, is_sparse
from cacore.data.stored import in_memory
from cacore.data.validation import checked_weights
from cacore.errors import InputError
from cacore.kernels.given import Precomputed, numbered, of_new_rows
from cakrr.dkrr import dkrr
from cakrr.estimators.base import Regressor, is_auto
from cakrr.fit import RidgeFit
from cakrr.options import RidgeOptions


@dataclass(eq=False, repr=False, kw_only=True)
class Iterated:
    """Parameters of the exact method, and attributes of its iterations."""

    solver: str = "cholesky"
    tol: float = 1e-6
    preconditioner: str = "pivoted"
    rank: int | None = None
    near: bool = False
    early: float | None = None
    max_time: float | None = None
    scratch: str | os.PathLike[str] | None = None

    def _expose(self, fitted: RidgeFit) -> None:
        for name in ("n_iter_", "residual_", "near_"):
            if hasattr(self, name):
                delattr(self, name)
        if fitted.residual.size:
            self.residual_ = float(fitted.residual.max())
        if fitted.iteration:
            self.n_iter_ = max(fitted.iteration["iterations"])
            solutions = fitted.iteration["solutions"]
            if solutions and "near" in solutions[-1]:
                self.near_ = solutions[-1]["near"]


@dataclass(eq=False, repr=False, kw_only=True)
class DKRR(Iterated, Regressor):
    """Exact kernel ridge regression: one system of all rows, distributed over the ranks (Algorithm 6).

    Parameters
    ----------
    sigma, lam, degree, coef0, validation_fraction, metric, metric_rounds
        See :class:`BKRR2`.
    scaling, standardize, dtype, calibrate, random_state, comm
        See :class:`BKRR2`, also for the attributes.
    kernel : as for :class:`BKRR2`, or "precomputed"
        With "precomputed", `X` is K, shape (n, n), in `fit`, and kernel values of new rows with all training rows,
        shape (n_new, n), in `predict`; only without `comm`. There are no features then: `standardize` is ignored, and
        `sigma` must be left out. Such a model cannot be saved.
    solver : {"cholesky", "cg", "auto"}
        Factor the matrix ("cholesky"); use preconditioned conjugate gradients, which need vectors of n numbers but no
        matrix ("cg"); or take the one with the lower predicted cost that fits in memory ("auto"). The parameters below
        are refused with "cholesky", and select "cg" with "auto".
    tol : float
        "cg": tolerance of the residual over the norm of the centred targets; the final residual is recomputed.
    preconditioner : {"pivoted", "nystrom", "local", "two-level"}
        "cg": a low-rank factor of K, with pivots sampled by the residual ("pivoted") or uniformly ("nystrom"); blocks
        of neighbouring rows ("local"); or a factor and blocks of its residual ("two-level").
    rank : int or None
        Rank of the factor. None adds pivots until further ones would cost more than they save.
    near : bool
        "cg": leave out kernel values of distant rows, by a bound that keeps the residual of the whole system within
        `tol`. Rows that fall apart into islands beyond reach of each other are solved as systems of their own. Only for
        kernels of Euclidean distance, and worthwhile for narrow ones.
    early : float or None
        "cg": when comparing several pairs, stop once the validation error changes by less than this share over three
        iterations. The final solution stops at the residual that the chosen pair reached.
    max_time : float or None
        "cg": time limit in seconds. The solution is then used as it is, with a warning that reports its residual; if
        there is no useful solution yet, an error is raised.
    scratch : str, Path or None
        "cg": directory for kernel values that do not fit into memory, and for a factor of the given rank.

    Attributes
    ----------
    n_iter_ : int
        "cg": iterations of the solution; the maximum over all targets.
    residual_ : float
        "cg" or float32: relative residual of the solution.
    near_ : dict
        `near`: "radius" beyond which kernel values are left out, "bound" on their norm and what was "allowed", "share"
        of the pairs that is computed, and "rows", "features", "ranks" and "iterations" of each island.

    Notes
    -----
    n^2 d + n^3/3 flops per pair of sigma and lambda, of which the default grid has 25, and 8 n^2 bytes, shared by the
    ranks. With "cholesky" and fewer than 4,000 rows, the default grid is compared on five folds. More than one rank
    needs ScaLAPACK: pip install 'cakernels[scalapack]'. A round of a metric costs the search for sigma and lambda,
    another n^3/3 flops, and an Allreduce of the gradients at 2,000 rows at most. "cg" costs n^2/2 kernel values per
    iteration for all lambdas and targets together, and n k^2 flops for a factor of rank k; it runs on any number of
    ranks without ScaLAPACK.
    """

    _method = dkrr

    def fit(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, or (n, n) with a precomputed kernel, and `y`, (n_local,)."""
        super().fit(X, y, sample_weight)
        if self._has_matrix():  # the matrix is no longer needed: new rows bring their own kernel values
            self.model_.like = of_new_rows()
            self.centers_ = self.model_.centers = np.zeros((0, self.n_features_in_))
        return self

    def _has_matrix(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    def _problem(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, comm: Communicator
    ) -> tuple[Dataset, RidgeOptions]:
        if not self._has_matrix():
            return super()._problem(X, y, sample_weight, comm)
        with comm.agreed():
            return self._of_matrix(X, y, sample_weight, comm)

    def _of_matrix(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, comm: Communicator
    ) -> tuple[Dataset, RidgeOptions]:
        if comm.size > 1:
            raise InputError(
                f"a precomputed kernel needs a single process, but there are {comm.size} ranks: use a callable"
            )
        if self.metric != "none":
            raise InputError("metric: a precomputed kernel has no features to weight; leave it out")
        if self.sigma is not None and not is_auto(self.sigma):
            raise InputError("sigma: a precomputed kernel has no width; leave it out")
        train = self._checked(X, y, None, 1, copy=False)
        K = in_memory(train.X)
        if is_sparse(K):
            raise InputError("a precomputed kernel must be dense")
        if K.shape[0] != K.shape[1]:
            raise InputError(f"a precomputed kernel must be square; this one has shape {K.shape}")
        rows = Dataset(numbered(len(K), K.dtype), train.target())
        if sample_weight is not None:
            weights = checked_weights(sample_weight, len(K))
            kept = weights > 0
            rows = Dataset(rows.X[kept], rows.target()[kept], weights=weights[kept])
        return rows, self._made(kernel=Precomputed(K), standardize=False)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._has_matrix()
        tags.input_tags.sparse = not tags.input_tags.pairwise
        return tags
