"""Training in parts: divide the rows, solve every part on its own. The frame of the methods that send nothing."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import is_sparse, nbytes
from casvm.methods.divide import into_parts
from casvm.methods.prepare import prepare
from casvm.methods.problems import STATISTICS, check_memory, named, not_met, solve_all, terms
from casvm.model.model import SVMModel
from casvm.model.part import PartSVM
from casvm.options import Fit, Method, Options
from partition.redistribute import Parts, assign_owners
from partition.routing import Soft, gap

SOFT = Soft(4, 0.35)  # t in units of the mean gap d_2^2 - d_1^2 between the two nearest centres


def fit(method: Method, train: Dataset, options: Options, comm: Communicator) -> Fit:
    """Train one SVM a part (Algorithm 5 and its clustered relatives); a collective call.

    Arguments and result are those of :meth:`cacore.run.method.Method.__call__`.

    Raises
    ------
    InputError
        On all ranks: options that make no sense, one class only, more parts than rows, memory that does not
        suffice, a checkpoint of another run.

    Notes
    -----
    A part costs what :func:`casvm.solver.smo.solve` does; this rank's rows, and the kernel caches. Training
    sends nothing; partitioning sends nothing without a partitioner.
    """
    prepared = prepare(method, train, options, comm)
    dtype, sparse = str(prepared.rows.X.dtype), is_sparse(prepared.rows.X)
    # Algorithm 5, line 1: each rank has its rows; CP-SVM, BKM-SVM and FCFS-SVM divide them first.
    with comm.phase("partition"):
        parts = into_parts(
            method, prepared, options, comm, lambda sizes, ranks: assign_owners(sizes, ranks, predicted_cost)
        )
    with comm.agreed():
        check_memory(nbytes(parts.X), options)
    # Line 2: each part is trained on its own.
    trained, solver, busy = _train(parts, prepared.kernel, options, comm)
    comm.wait()
    # Line 3: the centres, which all ranks need for routing.
    with comm.phase("predict"):
        centers, sizes, owners = _gathered(parts, comm)
        soft = _soft(parts, centers, options, comm)
    route = "nearest" if len(sizes) == 1 else options.route
    model = SVMModel(
        method=method.name, route=route, classes=prepared.classes, kernel=prepared.kernel, C=options.C,
        centers=centers, sizes=sizes, owners=owners, standardizer=prepared.standardizer, dtype=dtype, soft=soft,
        parts=trained, source={"sparse": sparse},
    )  # fmt: skip
    return _result(model, sizes, solver, busy, (prepared.nonzeros, parts.n_iter), options, comm)


def predicted_cost(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """What training on so many rows costs, in any unit: a fitted power."""
    return rows**1.7


def _train(
    parts: Parts, kernel: Any, options: Options, comm: Communicator
) -> tuple[dict[int, PartSVM], dict[int, NDArray[np.float64]], float]:
    """Solve every part of this rank; models, statistics and seconds."""
    held = list(parts)

    def load(i: int) -> tuple[str, Samples]:
        part, rows = held[i]
        return f"part-{part:06d}", parts.take(rows)

    with comm.phase("train"):
        begun = time.perf_counter()
        solved = solve_all([rows.stop - rows.start for _, rows in held], load, kernel, options, "training")
        busy = time.perf_counter() - begun
    numbers = [part for part, _ in held]
    return (
        dict(zip(numbers, (one.part for one in solved), strict=True)),
        dict(zip(numbers, (one.numbers for one in solved), strict=True)), busy,
    )  # fmt: skip


def _gathered(parts: Parts, comm: Communicator) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """All parts' centres, sizes and owners, on every rank: what routing needs."""
    numbers = comm.allgather(parts.parts)
    order = np.argsort(numbers)
    sizes = comm.allgather(np.diff(parts.bounds).astype(np.int64))[order]
    owners = comm.allgather(np.full(len(parts.parts), comm.rank))[order]
    centers = parts.centers
    if not len(centers):
        means = [np.asarray(parts.X[rows].mean(axis=0, dtype=np.float64)).ravel() for _, rows in parts]
        centers = comm.allgather(np.array(means).reshape(-1, parts.X.shape[1]))[order]
    return centers, sizes, owners


def _soft(parts: Parts, centers: NDArray[np.float64], options: Options, comm: Communicator) -> Soft | None:
    if options.route != "soft" or len(centers) == 1:
        return None
    return Soft(min(SOFT.k, len(centers)), SOFT.t * gap(parts.X, centers, comm))


def _result(
    model: SVMModel, sizes: NDArray[np.int64], statistics: dict[int, NDArray[np.float64]], busy: float,
    measured: tuple[float, int],
    options: Options, comm: Communicator,
) -> Fit:  # fmt: skip
    """Every part's figures, on every rank."""
    rows = np.zeros((len(sizes), len(STATISTICS) + 1))
    for part, numbers in statistics.items():
        rows[part] = numbers
    with comm.uncounted():
        rows = comm.allreduce(rows)
        every = comm.allgather(np.array([busy]))
    solver = named(rows)
    return Fit(model, sizes, solver, every, terms(sizes, *measured, solver), not_met(rows, options.limits.tol, "parts"))
