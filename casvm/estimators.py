"""The methods that train in parts as one scikit-learn classifier."""

from __future__ import annotations

from typing import Any

from cacore.errors import InputError
from casvm import bkmsvm, casvm, cpsvm, fcfssvm
from casvm.collective import CollectiveSVC
from casvm.options import Fit, Method
from partition import Partitioner
from partition.balanced import KBalance

_NAMED = {
    "random": casvm.METHOD, "fcfs": fcfssvm.METHOD, "bkm": bkmsvm.METHOD, "kmeans": cpsvm.METHOD,
    "kbalance": Method("kbalance", "parts by K-balance", KBalance),
}  # fmt: skip


class CASVC(CollectiveSVC):
    """Kernel SVM in parts: nothing is sent while the parts are trained (Algorithm 5).

    Parameters
    ----------
    n_parts : int or None
        Parts, P. None: one a rank.
    partitioner : {"random", "fcfs", "bkm", "kmeans", "kbalance"} or Partitioner
        "random" is CA-SVM, "fcfs" FCFS-SVM, "bkm" BKM-SVM and "kmeans" CP-SVM. Of a Partitioner its own
        parameters are used, but for `n_parts`, if that is given here, and `random_state`.
    C, kernel, gamma, degree, coef0, tol, class_weight, max_iter, max_time
        As for :class:`SMOSVC`, of every part. "balanced" counts the rows of all parts.
    solver : {"smo", "asygcd"}
        Of each part: exact; or asynchronous greedy coordinate descent, whose models have no bias.
    route : {"nearest", "soft", "all"}
        The nearest centre's model answers; the nearest four's decisions, weighted by distance; or the mean of
        all decisions, which suits "random".
    ratio : bool
        Balance every class as well as the parts' sizes: "fcfs" and "bkm".
    standardize : bool
        Scale features by the training rows' mean and deviation. CSR rows are scaled, not shifted.
    cache_gib : float
        Memory of a rank for kernel values and packed rows of the parts it works on.
    random_state : int, RandomState or None
    comm : mpi4py communicator or None
        With one, `fit` and `predict` take this rank's own rows and are collective calls.

    Attributes
    ----------
    model_ : SVMModel
    classes_ : ndarray, shape (k,)
    sizes_ : ndarray of int64, shape (P,)
    centers_ : ndarray, shape (P, d)
    support_ : ndarray, shape (s,)
        Global rows of the support vectors of this rank's parts, class by class.
    support_vectors_, n_support_, dual_coef_
        Theirs, in scikit-learn's layout; a part without a class has 0 for the pairs of that class.
    solver_ : dict of str to ndarray
        An entry a part: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values.
    n_iter_ : ndarray of int64, shape (P,)
    n_features_in_ : int

    Notes
    -----
    What :class:`SMOSVC` costs on a part's rows, for each part. Training moves no bytes between ranks.
    """

    def __init__(
        self,
        n_parts: int | None = None,
        *,
        partitioner: Any = "random",
        C: float = 1.0,
        kernel: str = "gaussian",
        gamma: Any = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        tol: float = 1e-3,
        class_weight: Any = None,
        solver: str = "smo",
        route: str = "nearest",
        ratio: bool = False,
        standardize: bool = False,
        cache_gib: float = 1.0,
        max_iter: int = -1,
        max_time: float | None = None,
        random_state: Any = None,
        comm: Any = None,
    ) -> None:
        self.n_parts = n_parts
        self.partitioner = partitioner
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.class_weight = class_weight
        self.solver = solver
        self.route = route
        self.ratio = ratio
        self.standardize = standardize
        self.cache_gib = cache_gib
        self.max_iter = max_iter
        self.max_time = max_time
        self.random_state = random_state
        self.comm = comm

    def _take(self, result: Fit) -> None:
        super()._take(result)
        self.centers_ = result.model.centers

    def _own_options(self) -> dict[str, Any]:
        return {"solver": self.solver, "route": self.route, "ratio": self.ratio}

    def _method(self) -> tuple[Method, int | None]:
        if isinstance(self.partitioner, str):
            if self.partitioner not in _NAMED:
                raise InputError(f"partitioner {self.partitioner!r}: choose one of {', '.join(_NAMED)}")
            return _NAMED[self.partitioner], self.n_parts
        if not isinstance(self.partitioner, Partitioner):
            raise InputError(f"partitioner {self.partitioner!r}: give a name or a Partitioner")
        own = self.partitioner
        parameters = {k: v for k, v in own.get_params().items() if k not in ("n_parts", "random_state")}

        class Chosen(type(own)):  # type: ignore[misc]
            def __init__(self, n_parts: int, *, random_state: Any = None, **more: Any) -> None:
                super().__init__(n_parts, random_state=random_state, **{**parameters, **more})

        name = type(own).__name__.lower()
        return Method(name, f"parts by {name}", Chosen), own.n_parts if self.n_parts is None else self.n_parts
