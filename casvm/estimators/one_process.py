"""The base of the exact estimators in one process: parameters, kernel, and convergence warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from cacore.checks import yes_or_no
from cacore.comm import Communicator
from cacore.data.columns import Columns
from cacore.data.dataset import Samples
from cacore.data.resolution import check_resolved
from cacore.data.rows import Rows, RowsLike, check_range, check_squares
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.given import Precomputed, numbered
from cacore.limits import Limits
from cacore.machine import memory
from cacore.svm.classifier import KernelMachine, printer
from cacore.svm.dual import Progress, Solution
from cacore.svm.options import DualOptions
from cacore.svm.problem import numeric_gamma
from cacore.tuning.results import Results
from casvm.model.part import PartSVM
from casvm.model.svr import PartSVR
from partition.redistribute import Parts

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

Options = TypeVar("Options", bound=DualOptions)

_SURE = 1 << 26  # bytes that any machine has: to look up how many are free would take a quarter of a tiny fit


@dataclass(frozen=True)
class Setting:
    """Arguments of a solver besides the rows and their dual; see :class:`cacore.svm.dual.PartSolver`."""

    kernel: Kernel | None
    limits: Limits
    cache_bytes: int
    watch: Callable[[Progress], None] | None


@dataclass(eq=False, repr=False, kw_only=True)
class OneProcess(KernelMachine):
    """Parameters of the solver, and the steps of training that all problems share."""

    shrinking: bool = True
    verbose: bool = False

    @property
    def _precomputed(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    def _known(self) -> dict[str, object]:
        """Options that replace this estimator's parameters, since a precomputed kernel is not evaluated."""
        return {"kernel": "linear"} if self._precomputed else {}

    def _check_rows(self, X: Rows) -> None:
        """Refuse training rows that do not suit the kernel."""
        if not self._precomputed:
            comm = Communicator()
            check_resolved(X, X.dtype, comm)
            check_squares(X, comm)
            return
        if X.shape[0] != X.shape[1]:
            raise InputError(f"a precomputed kernel must be square; this one has shape {tuple(X.shape)}")
        if sp.issparse(X):
            raise InputError("a precomputed kernel must be dense")

    def _switches(self) -> tuple[bool, bool]:
        """The checked values of `shrinking` and `verbose`."""
        shrinking, verbose = (yes_or_no(getattr(self, name), f"{name} =") for name in ("shrinking", "verbose"))
        return shrinking, verbose

    def _setting(self, X: Rows, options: DualOptions, comm: Communicator) -> Setting:
        """Arguments of the solver besides the rows of positive weight, `X`, and their dual."""
        shrinking, verbose = self._switches()
        kernel = None
        if not self._precomputed:
            kernel = options.kernel_with(numeric_gamma(X, options.gamma, comm, options.kernel)).suited(X.shape[1])
        n, d = X.shape
        budget = min(options.cache_bytes, n * n * 8 + 2 * n * d * 8)
        if budget > _SURE:
            memory.require(budget, memory.limit_per_rank(comm), "the kernel cache", "use a smaller cache_gib")
        return Setting(
            kernel, replace(options.limits, shrinking=shrinking), budget, printer(_line) if verbose else None
        )

    def _warn(self, solutions: list[Solution], tol: float, depth: int, what: str = "pairs of classes") -> None:
        """Store whether all problems met the tolerance, and warn if one did not; `fit` is `depth` calls above."""
        late = [one for one in solutions if not one.converged]
        self.fit_status_ = int(bool(late))
        if late:
            worst = max(late, key=lambda one: one.gap)
            of = "" if len(solutions) == 1 else f" ({len(late)} of {len(solutions)} {what})"
            warnings.warn(
                f"{type(self).__name__} stopped after {worst.iterations:,} iterations at a violation of "
                f"{worst.gap:.3g}, above tol = {tol:g}{of}: raise tol, max_iter or max_time, or "
                "scale the features",
                ConvergenceWarning,
                stacklevel=depth + 2,
            )

    def _one_part(self, X: Rows, part: PartSVM | PartSVR) -> dict[str, Any]:
        """Fields of a model with a single part trained on all rows."""
        n, d = X.shape
        return {
            "route": "nearest", "centers": np.zeros((1, d)), "sizes": np.array([n]), "owners": np.zeros(1, np.int64),
            "standardizer": None, "dtype": X.dtype.name, "parts": {0: part},
        }  # fmt: skip

    def _keep_names(self, columns: Columns) -> None:
        """Store the names of a DataFrame's columns in the model, whose file then has them."""
        if not self._precomputed:
            columns.put(self.model_.source)

    @property
    def coef_(self) -> NDArray[np.float64] | sp.csr_matrix:
        """Weights of the features, one row per problem; only for the linear kernel."""
        check_is_fitted(self)
        if self.kernel != "linear":
            raise AttributeError("coef_ is only available for the linear kernel")
        part = self.model_.parts[0]
        coef = self._linear(part)
        return sp.csr_matrix(coef) if sp.issparse(part.X) else np.ascontiguousarray(coef)

    def _linear(self, part: Any) -> NDArray[np.float64]:
        """Compute `coef_` from the part's model."""
        raise NotImplementedError

    def _rows(self, X: RowsLike, least: int = 1) -> Rows:
        X = super()._rows(X, least)
        if self.model_.kernel is not None:
            check_range(X)
        return X

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._precomputed
        tags.input_tags.sparse = not self._precomputed
        return tags


def one_part(
    rows: Samples, present: NDArray[np.bool_], options: Options, precomputed: bool, comm: Communicator
) -> tuple[Parts, Options]:  # fmt: skip
    """The rows that are `present` as the single part of a search, and the options of the search.

    Those have the memory limit of this machine; if `precomputed`, the rows of K, shape (n, n), become the kernel.
    """
    if precomputed:
        options = replace(options, kernel=Precomputed(np.asarray(rows.X)))
        rows = Samples(numbered(len(rows), np.float64), rows.columns)
    rows = rows.take(np.flatnonzero(present))
    options = replace(options, memory_limit=memory.limit_per_rank(comm))
    return Parts(rows.X, rows.columns, np.zeros(1, np.int64), np.array([0, len(rows)])), options


def expose_search(estimator: BaseEstimator, found: Results | None) -> None:
    """Set the attributes that :class:`sklearn.model_selection.GridSearchCV` has, and `at_grid_end_`, after a search."""
    for name in ("cv_results_", "best_index_", "best_params_", "best_score_", "at_grid_end_"):
        vars(estimator).pop(name, None)
    if found is None:
        return
    estimator.cv_results_ = found.cv_results()
    estimator.best_params_, estimator.best_score_ = dict(found.chosen), found.chosen_score
    estimator.at_grid_end_ = found.at_grid_end
    if not any(np.ndim(value) for value in found.chosen.values()):
        estimator.best_index_ = found.settings.index(found.chosen)


def _line(progress: Progress) -> str:
    return (
        f"{progress.iterations:>12,} iterations, violation {progress.gap:.3g}, "
        f"objective {progress.objective:.8g}, {progress.active:,} active rows"
    )
