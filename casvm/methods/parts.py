"""Training in parts: divide the rows, solve every part on its own. The frame of the methods that send nothing."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import is_sparse, nbytes
from casvm.methods.divide import divide
from casvm.methods.prepare import Labelled, prepare
from casvm.methods.problems import STATISTICS, Problem, check_memory, named, not_met, solve_all, terms
from casvm.model.model import SVMModel
from casvm.model.part import PartSVM
from casvm.options import Fit, Method, Options
from partition.redistribute import OwnedRows, assign_owners
from partition.routing import Soft, gap

SOFT = Soft(4, 0.35)  # t in units of the mean gap d_2^2 - d_1^2 between the two nearest centres


def fit(method: Method, train: Labelled, options: Options, comm: Communicator) -> Fit:
    """Train one SVM a part (Algorithm 5 and its clustered relatives); a collective call.

    Parameters
    ----------
    method : Method
    train : Labelled
        This rank's rows; with standardisation or a partitioner they are taken from it.
    options : Options
    comm : Communicator

    Returns
    -------
    Fit

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
    given = prepare(method, train, options, comm)
    dtype, sparse = str(given.X.dtype), is_sparse(given.X)
    with comm.phase("partition"):
        divided = divide(method, given, options, comm, lambda sizes, ranks: assign_owners(sizes, ranks, predicted_cost))
    parts = divided.parts
    with comm.agreed():
        check_memory(nbytes(parts.X), options)
    trained, solver, busy = _train(parts, given.kernel, options, comm)
    comm.wait()
    with comm.phase("predict"):
        centers, sizes, owners = _gathered(divided.centers, parts, comm)
        soft = _soft(parts, centers, options, comm)
    route = "nearest" if len(sizes) == 1 else options.route
    model = SVMModel(
        method.name, route, given.classes, given.kernel, options.C, centers, sizes, owners, given.standardizer, dtype,
        soft, trained, {"sparse": sparse}, comm,
    )  # fmt: skip
    return _result(model, sizes, solver, busy, (given.nonzeros, divided.rounds), options, comm)


def predicted_cost(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """What training on so many rows costs, in any unit: a fitted power."""
    return rows**1.7


def _train(
    parts: OwnedRows, kernel: Any, options: Options, comm: Communicator
) -> tuple[dict[int, PartSVM], dict[int, NDArray[np.float64]], float]:
    """Solve every part of this rank; models, statistics and seconds."""
    mine = list(parts)

    def load(i: int) -> Problem:
        part, rows = mine[i]
        columns = (parts.columns[name][rows] for name in ("code", "C", "row"))
        return Problem(f"part-{part:06d}", parts.X[rows], *columns)

    with comm.phase("train"):
        begun = time.perf_counter()
        solved = solve_all([rows.stop - rows.start for _, rows in mine], load, kernel, options, "training")
        busy = time.perf_counter() - begun
    numbers = [part for part, _ in mine]
    return (
        dict(zip(numbers, (one.part for one in solved), strict=True)),
        dict(zip(numbers, (one.numbers for one in solved), strict=True)), busy,
    )  # fmt: skip


def _gathered(
    centers: NDArray[np.float64] | None, parts: OwnedRows, comm: Communicator
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """All parts' centres, sizes and owners, on every rank: what routing needs."""
    numbers = comm.allgather(parts.parts)
    order = np.argsort(numbers)
    sizes = comm.allgather(np.diff(parts.bounds).astype(np.int64))[order]
    owners = comm.allgather(np.full(len(parts.parts), comm.rank))[order]
    if centers is None:
        mine = [np.asarray(parts.X[rows].mean(axis=0, dtype=np.float64)).ravel() for _, rows in parts]
        centers = comm.allgather(np.array(mine).reshape(-1, parts.X.shape[1]))[order]
    return centers, sizes, owners


def _soft(parts: OwnedRows, centers: NDArray[np.float64], options: Options, comm: Communicator) -> Soft | None:
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
