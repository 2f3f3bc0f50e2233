"""Support vector regression on all ranks: one problem of all rows (Dis-SMO), or one a part, which sends nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import check_alike, check_range, is_sparse, nbytes
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.machine import memory, threads
from cacore.svm.dual import Dual, Solution
from cacore.svm.options import DualOptions
from cacore.svm.problem import numeric_gamma
from casvm.methods.divide import deal
from casvm.methods.parts import gathered
from casvm.methods.problems import predicted_cost
from casvm.model.svr import PartSVR, SVRModel
from casvm.solver import distributed
from casvm.solver.smo import solve_part
from partition.base import Algorithm
from partition.divide import divide, hand_out
from partition.redistribute import Parts, assign_owners
from partition.routing import SOFT, gap

# What is told of each problem.
STATISTICS = ("iterations", "n_support", "objective", "gap", "converged", "seconds")


@dataclass
class Prepared:
    """What both methods begin with.

    Attributes
    ----------
    rows : Samples
        This rank's, standardised if that was asked for, with the columns target "y", bound "C" of |beta| and global
        number "row".
    n : int
        Rows of all ranks.
    kernel : Kernel
    standardizer : Standardizer or None
    options : DualOptions
    epsilon : float
    """

    rows: Samples
    n: int
    kernel: Kernel
    standardizer: Standardizer | None
    options: DualOptions
    epsilon: float

    def solved(self, some: Samples, cache_bytes: int) -> Solution:
        """The solution for some of this rank's rows alone."""
        dual = Dual.regression(some["y"], some["C"], self.epsilon)
        return solve_part(some.X, self.kernel, dual, self.options.limits, cache_bytes)

    def model(self, method: str, **more: Any) -> SVRModel:
        """A model of such rows; `more` says where its parts are, and what they are."""
        X = self.rows.X  # also where the rows are given away
        return SVRModel(
            method=method, svm_type="epsilon_svr", kernel=self.kernel, standardizer=self.standardizer,
            params={"C": float(self.options.C), "epsilon": self.epsilon}, dtype=str(X.dtype),
            source={"sparse": is_sparse(X)}, **more,
        )  # fmt: skip


def prepare(train: Dataset, options: DualOptions, epsilon: float, comm: Communicator) -> Prepared:
    """Check what is given, on all ranks alike, and take the rows; collective.

    Parameters
    ----------
    train : Dataset
        This rank's rows, maybe none, which are taken from it.
    options : DualOptions
        With a limit of memory.
    epsilon : float
    comm : Communicator

    Raises
    ------
    InputError
        On all ranks: rows that do not fit together or cannot be used, no row, memory that does not suffice.
    """
    check_alike(train.X, comm)
    comm.require_equal({"sample_weight given (1) or not (0)": int(train.weights is not None)})
    y, weights = train.target(), train.row_weights()
    first, _ = comm.offset(len(y))
    rows = Samples(train.give(), {"y": y, "C": options.C * weights, "row": np.arange(first, first + len(y))})
    if train.weights is not None:  # rows of weight 0 count as absent
        kept = np.flatnonzero(weights)
        rows, weights = rows.take(kept), weights[kept]
    n = comm.offset(len(rows))[1]
    with comm.agreed():
        if not n:
            raise InputError("sample_weight: every weight is zero; at least one row is needed to train on")
    standardizer = None
    if options.standardize:
        standardizer = Standardizer.fit(rows.X, comm, None if train.weights is None else weights)
        rows.X = standardizer.apply(rows.X)
    with comm.agreed():
        check_range(rows.X, "the training rows")
        needed = nbytes(rows.X) + min(options.cache_bytes, 8 * n * n)
        memory.require(needed, options.memory_limit, "a rank's rows and its kernel cache", "use a smaller cache_gib")
    kernel = options.kernel_with(numeric_gamma(rows.X, options.gamma, comm, options.kernel))
    return Prepared(rows, n, kernel, standardizer, options, epsilon)


def of_all_rows(
    prepared: Prepared, working_set: int | None, comm: Communicator
) -> tuple[SVRModel, NDArray[np.float64]]:  # fmt: skip
    """Solve the one problem of all rows; collective.

    Returns
    -------
    model : SVRModel
        In pieces: every rank has its support vectors.
    numbers : ndarray, shape (1, 6)
        :data:`STATISTICS`.

    Notes
    -----
    See :func:`casvm.solver.distributed.solve`; on one rank without a working set :func:`casvm.solver.smo.solve`.
    """
    rows, options, begun = prepared.rows, prepared.options, time.perf_counter()
    cache_bytes = min(options.cache_bytes, 8 * prepared.n**2 + 2 * nbytes(rows.X))
    with comm.phase("train"):
        if comm.size == 1 and working_set is None:
            solution = prepared.solved(rows, cache_bytes)
        else:
            dual = Dual.regression(rows["y"], rows["C"], prepared.epsilon)
            solution = distributed.solve(
                rows.X, dual, prepared.kernel, options.limits, cache_bytes, comm, working_set
            )  # fmt: skip
    part = _of_support(rows, solution)
    if comm.rank:
        part.b = np.zeros(1)  # once in all pieces together
    with comm.phase("predict"):
        sizes = comm.allgather(np.array([len(part.rows)]))
    model = prepared.model(
        "dissmo", route="sum", centers=np.zeros((0, rows.X.shape[1])), sizes=sizes, owners=np.arange(comm.size),
        parts={comm.rank: part},
    )  # fmt: skip
    with comm.uncounted():
        numbers = comm.bcast(_statistics(solution, int(sizes.sum()), time.perf_counter() - begun))
    return model, numbers[None]


def in_parts(
    prepared: Prepared, partitioner: str | Algorithm, P: int, route: str, seed: int, comm: Communicator
) -> tuple[SVRModel, NDArray[np.float64]]:  # fmt: skip
    """Train one regression a part (Algorithm 5 and its clustered relatives); collective.

    Parameters
    ----------
    prepared : Prepared
        Its rows are taken.
    partitioner : str or Algorithm
        "random" leaves rows where they are; others divide them, and send them to the owners of their parts.
    P : int
        Parts.
    route : {"nearest", "soft", "all"}
    seed : int
    comm : Communicator

    Returns
    -------
    model : SVRModel
    numbers : ndarray, shape (P, 6)
        :data:`STATISTICS`.

    Raises
    ------
    InputError
        On all ranks: more parts than rows, or fewer than ranks.

    Notes
    -----
    A part costs what :func:`casvm.solver.smo.solve` does; this rank's rows, and the kernel caches. Training sends
    nothing; partitioning sends nothing for "random".
    """
    with comm.agreed():
        if not comm.size <= P <= prepared.n:
            raise InputError(f"n_parts = {P}: there may be {comm.size:,}, one a rank, to {prepared.n:,}, one a row")
    with comm.phase("partition"):
        parts = _divided(prepared.rows.give(), partitioner, P, seed, comm)
    with comm.phase("train"):
        solved = _solved(prepared, parts)
    comm.wait()
    with comm.phase("predict"):
        centers, sizes, owners = gathered(parts, comm)
        soft = SOFT.scaled(gap(parts.X, centers, comm), P) if route == "soft" and P > 1 else None
    model = prepared.model(
        "casvr", route="nearest" if P == 1 else route, centers=centers, sizes=sizes, owners=owners, soft=soft,
        parts={number: part for number, (part, _) in solved.items()},
    )  # fmt: skip
    numbers = np.zeros((P, len(STATISTICS)))
    for number, (_, line) in solved.items():
        numbers[number] = line
    with comm.uncounted():
        return model, comm.allreduce(numbers)


def _divided(rows: Samples, partitioner: str | Algorithm, P: int, seed: int, comm: Communicator) -> Parts:
    if partitioner == "random":
        return deal(rows, P, seed, comm)
    division = divide(partitioner, P, rows.X, comm, seed)
    return hand_out(rows, division, assign_owners(division.sizes, comm.size, predicted_cost), seed, comm)


def _solved(prepared: Prepared, parts: Parts) -> dict[int, tuple[PartSVR, NDArray[np.float64]]]:
    """This rank's parts, the largest first and as many side by side as there are threads."""
    held = dict(parts)
    todo = sorted(held, key=lambda number: held[number].start - held[number].stop)
    cache_bytes = prepared.options.cache_bytes // max(1, min(threads.current(), len(todo)))

    def solve(number: int) -> tuple[PartSVR, NDArray[np.float64]]:
        begun, some = time.perf_counter(), parts.take(held[number])
        solution = prepared.solved(some, cache_bytes)
        part = _of_support(some, solution)
        return part, _statistics(solution, len(part.rows), time.perf_counter() - begun)

    return dict(zip(todo, threads.in_order(solve, [(number,) for number in todo]), strict=True))


def _of_support(rows: Samples, solution: Solution) -> PartSVR:
    """The part of these rows, with its support vectors in the order of all rows."""
    support = np.flatnonzero(solution.beta)
    support = support[np.argsort(rows["row"][support])]
    return PartSVR(rows.X[support], rows["row"][support], solution.beta[support], np.array([solution.b]))


def _statistics(solution: Solution, support: int, seconds: float) -> NDArray[np.float64]:
    return np.array([
        solution.iterations, support, solution.objective, solution.gap, solution.converged, seconds
    ], np.float64)  # fmt: skip
