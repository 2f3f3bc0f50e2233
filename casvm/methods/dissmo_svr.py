"""Dis-SMO of a regression: one problem of all rows, every rank with a share of them (Algorithm 1 on all ranks)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.rows import check_alike, check_range, is_sparse, nbytes
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.machine import memory
from cacore.svm.dual import Dual, Solution
from cacore.svm.options import DualOptions
from cacore.svm.problem import numeric_gamma
from casvm.model.svr import PartSVR, SVRModel
from casvm.solver import distributed
from casvm.solver.smo import solve_part


def fit(
    train: Dataset, options: DualOptions, epsilon: float, working_set: int | None, comm: Communicator
) -> tuple[SVRModel, Solution]:
    """Solve epsilon-SVR of all rows; a collective call.

    Parameters
    ----------
    train : Dataset
        This rank's rows, maybe none, which are taken from it.
    options : DualOptions
        With a limit of memory.
    epsilon : float
    working_set : int or None
        Rows of a round.
    comm : Communicator

    Returns
    -------
    model : SVRModel
        In pieces: every rank has its support vectors.
    solution : Solution
        Of this rank's rows with weights above 0.

    Raises
    ------
    InputError
        On all ranks: rows that do not fit together or cannot be used, no row, memory that does not suffice.

    Notes
    -----
    See :func:`casvm.solver.distributed.solve`; on one rank without a working set :func:`casvm.solver.smo.solve`.
    """
    check_alike(train.X, comm)
    comm.require_equal({"sample_weight given (1) or not (0)": int(train.weights is not None)})
    y, weights = train.target(), train.row_weights()
    first, _ = comm.offset(len(y))
    X, kept = train.give(), np.flatnonzero(weights)
    if len(kept) < len(y):
        X, y, weights = X[kept], y[kept], weights[kept]
    total = comm.offset(len(y))[1]
    with comm.agreed():
        if not total:
            raise InputError("sample_weight: every weight is zero; at least one row is needed to train on")
    standardizer = None
    if options.standardize:
        standardizer = Standardizer.fit(X, comm, None if train.weights is None else weights)
        X = standardizer.apply(X)
    with comm.agreed():
        check_range(X, "the training rows")
        needed = nbytes(X) + min(options.cache_bytes, 8 * total * total)
        memory.require(needed, options.memory_limit, "a rank's rows and its kernel cache", "use a smaller cache_gib")
    kernel = options.kernel_with(numeric_gamma(X, options.gamma, comm, options.kernel))
    dual = Dual.regression(y, options.C * weights, epsilon)
    cache_bytes = min(options.cache_bytes, 8 * total * total + 2 * nbytes(X))
    with comm.phase("train"):
        if comm.size == 1 and working_set is None:
            solution = solve_part(X, kernel, dual, options.limits, cache_bytes)
        else:
            solution = distributed.solve(X, dual, kernel, options.limits, cache_bytes, comm, working_set)
    support = np.flatnonzero(solution.beta)
    b = np.array([solution.b if comm.rank == 0 else 0.0])  # once in all pieces together
    part = PartSVR(X[support], first + kept[support], solution.beta[support], b)
    with comm.phase("predict"):
        sizes: NDArray[np.int64] = comm.allgather(np.array([len(support)]))
    model = SVRModel(
        method="dissmo", route="sum", svm_type="epsilon_svr", kernel=kernel,
        params={"C": float(options.C), "epsilon": epsilon}, centers=np.zeros((0, X.shape[1])), sizes=sizes,
        owners=np.arange(comm.size), standardizer=standardizer, dtype=str(X.dtype), source={"sparse": is_sparse(X)},
        parts={comm.rank: part},
    )  # fmt: skip
    return model, replace(solution, objective=float(comm.bcast(np.array([solution.objective]))[0]))
