"""The methods that end in one model as scikit-learn classifiers: the trees, and Dis-SMO."""

from __future__ import annotations

from typing import Any

from casvm import dissmo
from casvm.cascade import METHOD as CASCADE
from casvm.collective import CollectiveSVC
from casvm.dcfilter import METHOD as DCFILTER
from casvm.dcsvm import METHOD as DCSVM
from casvm.dissmo import METHOD as DISSMO
from casvm.methods import tree
from casvm.options import Fit, Method


class _OneModel(CollectiveSVC):
    """What all of them share."""

    _kind: Method

    def _method(self) -> tuple[Method, int | None]:
        return self._kind, getattr(self, "n_parts", None)

    def _take(self, result: Fit) -> None:
        super()._take(result)
        self.n_iter_ = self.n_iter_.sum(keepdims=True)  # a layer's start may leave nothing to do
        b = result.model.intercepts()
        self.intercept_ = -b if len(self.classes_) == 2 else b
        if "layers" in result.more:
            self.layers_ = result.more["layers"]


class CascadeSVC(_OneModel):
    """Cascade SVM: random parts, whose support vectors are merged two by two (Fig. 2.1).

    Parameters
    ----------
    n_parts : int or None
        Parts, P. None: one a rank.
    C, kernel, gamma, degree, coef0, tol, class_weight, max_iter, max_time
        As for :class:`SMOSVC`, of every problem of the tree.
    solver : {"smo", "asygcd"}
        Of every problem: exact; or asynchronous greedy coordinate descent, whose models have no bias.
    passes : int
        Most passes through the tree; the next one begins with the last support vectors in all parts, and is made
        while the objective changes. Many passes end at the exact solution, one may be far from it.
    standardize : bool
        Scale features by the training rows' mean and deviation. CSR rows are scaled, not shifted.
    cache_gib : float
        Memory of a rank for kernel values and packed rows.
    random_state : int, RandomState or None
    comm : mpi4py communicator or None
        With one, `fit` and `predict` take this rank's own rows and are collective calls.

    Attributes
    ----------
    model_ : SVMModel
        In pieces, one a rank, whose decisions add up.
    classes_ : ndarray, shape (k,)
    support_, support_vectors_, n_support_, dual_coef_
        Of this rank's piece, in scikit-learn's layout.
    intercept_ : ndarray, shape (k (k - 1) / 2,)
    sizes_ : ndarray of int64, shape (P,)
        Rows of the parts.
    solver_ : dict of str to ndarray
        An entry a layer, and a pass: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values.
    layers_ : list of dict
        The problems of each layer: rows, iterations, support vectors, seconds.
    n_iter_ : ndarray of int64, shape (1,)
        Pairs of rows optimised, of all problems together.
    n_features_in_ : int

    Notes
    -----
    Support vectors and their coefficients move, log2 P times at most.
    """

    _kind = CASCADE
    _trainer = staticmethod(tree.fit)

    def __init__(
        self,
        n_parts: int | None = None,
        *,
        C: float = 1.0,
        kernel: str = "gaussian",
        gamma: Any = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        tol: float = 1e-3,
        class_weight: Any = None,
        solver: str = "smo",
        passes: int = 2,
        standardize: bool = False,
        cache_gib: float = 1.0,
        max_iter: int = -1,
        max_time: float | None = None,
        random_state: Any = None,
        comm: Any = None,
    ) -> None:
        self.n_parts = n_parts
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.class_weight = class_weight
        self.solver = solver
        self.passes = passes
        self.standardize = standardize
        self.cache_gib = cache_gib
        self.max_iter = max_iter
        self.max_time = max_time
        self.random_state = random_state
        self.comm = comm

    def _own_options(self) -> dict[str, Any]:
        return {"solver": self.solver, "passes": self.passes}


class DCFilterSVC(CascadeSVC):
    """DC-Filter: parts by K-means, whose support vectors are merged two by two (section 2.3).

    Parameters, attributes and cost are those of :class:`CascadeSVC`, and the partitioning; one pass is
    usually enough here, so that `passes` is 1 unless told otherwise.
    """

    _kind = DCFILTER

    def __init__(
        self,
        n_parts: int | None = None,
        *,
        C: float = 1.0,
        kernel: str = "gaussian",
        gamma: Any = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        tol: float = 1e-3,
        class_weight: Any = None,
        solver: str = "smo",
        passes: int = 1,
        standardize: bool = False,
        cache_gib: float = 1.0,
        max_iter: int = -1,
        max_time: float | None = None,
        random_state: Any = None,
        comm: Any = None,
    ) -> None:
        self.n_parts = n_parts
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.class_weight = class_weight
        self.solver = solver
        self.passes = passes
        self.standardize = standardize
        self.cache_gib = cache_gib
        self.max_iter = max_iter
        self.max_time = max_time
        self.random_state = random_state
        self.comm = comm


class DCSVC(_OneModel):
    """DC-SVM: parts by K-means, all of whose rows are merged two by two (section 2.2): exact.

    Parameters
    ----------
    n_parts : int or None
        Parts, P. None: one a rank.
    C, kernel, gamma, degree, coef0, tol, class_weight, max_iter, max_time
        As for :class:`SMOSVC`, of every problem of the tree.
    solver : {"smo", "asygcd"}
        Of every problem: exact; or asynchronous greedy coordinate descent, whose models have no bias.
    standardize : bool
        Scale features by the training rows' mean and deviation. CSR rows are scaled, not shifted.
    cache_gib : float
        Memory of a rank for kernel values and packed rows.
    random_state : int, RandomState or None
    comm : mpi4py communicator or None
        With one, `fit` and `predict` take this rank's own rows and are collective calls.

    Attributes
    ----------
    model_ : SVMModel
        In pieces, one a rank, whose decisions add up.
    classes_ : ndarray, shape (k,)
    support_, support_vectors_, n_support_, dual_coef_
        Of this rank's piece, in scikit-learn's layout.
    intercept_ : ndarray, shape (k (k - 1) / 2,)
    sizes_ : ndarray of int64, shape (P,)
        Rows of the parts.
    solver_ : dict of str to ndarray
        An entry a layer, and a pass: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values.
    layers_ : list of dict
        The problems of each layer: rows, iterations, support vectors, seconds.
    n_iter_ : ndarray of int64, shape (1,)
        Pairs of rows optimised, of all problems together.
    n_features_in_ : int

    Notes
    -----
    Half of the rows move at most, log2 P times; the last problem holds all rows on one rank.
    """

    _kind = DCSVM
    _trainer = staticmethod(tree.fit)

    def __init__(
        self,
        n_parts: int | None = None,
        *,
        C: float = 1.0,
        kernel: str = "gaussian",
        gamma: Any = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        tol: float = 1e-3,
        class_weight: Any = None,
        solver: str = "smo",
        standardize: bool = False,
        cache_gib: float = 1.0,
        max_iter: int = -1,
        max_time: float | None = None,
        random_state: Any = None,
        comm: Any = None,
    ) -> None:
        self.n_parts = n_parts
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.class_weight = class_weight
        self.solver = solver
        self.standardize = standardize
        self.cache_gib = cache_gib
        self.max_iter = max_iter
        self.max_time = max_time
        self.random_state = random_state
        self.comm = comm

    def _own_options(self) -> dict[str, Any]:
        return {"solver": self.solver}


class DisSMOSVC(_OneModel):
    """Dis-SMO: exact, one problem of which every rank holds a share of the rows (sections 2.2 and 2.3).

    Parameters
    ----------
    C, kernel, gamma, degree, coef0, tol, class_weight, max_iter, max_time
        As for :class:`SMOSVC`.
    working_set : int or None
        Rows of a round; None leaves it to the solver, 2 is the textbook's pair.
    standardize : bool
        Scale features by the training rows' mean and deviation. CSR rows are scaled, not shifted.
    cache_gib : float
        Memory of a rank for kernel values and packed rows.
    comm : mpi4py communicator or None
        With one, `fit` and `predict` take this rank's own rows and are collective calls.

    Attributes
    ----------
    model_ : SVMModel
        In pieces, one a rank, whose decisions add up.
    classes_ : ndarray, shape (k,)
    support_, support_vectors_, n_support_, dual_coef_
        Of this rank's piece, in scikit-learn's layout.
    intercept_ : ndarray, shape (k (k - 1) / 2,)
    sizes_ : ndarray of int64, shape (P,)
        Rows of the parts that the ranks hold.
    solver_ : dict of str to ndarray
        One entry: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values.
    n_iter_ : ndarray of int64, shape (1,)
        Pairs of rows optimised, of all problems together.
    n_features_in_ : int

    Notes
    -----
    See :func:`casvm.solver.distributed.solve`; without `comm` it is :class:`SMOSVC`'s solver.
    """

    _kind = DISSMO
    _trainer = staticmethod(dissmo.fit)

    def __init__(
        self,
        *,
        C: float = 1.0,
        kernel: str = "gaussian",
        gamma: Any = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        tol: float = 1e-3,
        class_weight: Any = None,
        working_set: int | None = None,
        standardize: bool = False,
        cache_gib: float = 1.0,
        max_iter: int = -1,
        max_time: float | None = None,
        comm: Any = None,
    ) -> None:
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.class_weight = class_weight
        self.working_set = working_set
        self.standardize = standardize
        self.cache_gib = cache_gib
        self.max_iter = max_iter
        self.max_time = max_time
        self.comm = comm

    def _own_options(self) -> dict[str, Any]:
        return {"working_set": self.working_set}
