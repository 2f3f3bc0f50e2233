"""Training in parts: divide the rows, solve every part on its own. The frame of the methods that send nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import is_sparse, nbytes
from cacore.data.stored import is_stored
from cacore.io.checkpoint import remembered
from cacore.kernels import Kernel
from cacore.machine import threads
from cacore.probability.calibrator import Calibrator
from cacore.probability.left_out import LeftOutDecisions, folds_to_leave_out, pairs_of
from casvm.methods.divide import into_parts
from casvm.methods.left_out import Training, left_out
from casvm.methods.prepare import prepare
from casvm.methods.problems import (
    STATISTICS,
    Solved,
    check_memory,
    check_parts_at_a_time,
    named,
    not_met,
    predicted_cost,
    solve_all,
    terms,
)
from casvm.model.model import own_settings
from casvm.options import Fit, Method, Options
from casvm.search.settle import settle
from partition.redistribute import Parts, assign_owners
from partition.routing import SOFT, Soft, double_variance, gap


def fit(method: Method, train: Dataset, options: Options, comm: Communicator) -> Fit:
    """Train one SVM a part (Algorithm 5 and its clustered relatives); a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        On all ranks: options that make no sense, one class only, more parts than rows, memory that does not
        suffice, a checkpoint of another run.

    Notes
    -----
    Several values of C or gamma cost what :func:`casvm.search.choose.search` does, first. Then a
    part costs what :func:`casvm.solver.smo.solve` does; this rank's rows, and the kernel caches. Training
    sends nothing; partitioning sends nothing without a partitioner. Probabilities cost what
    :func:`casvm.methods.left_out.left_out` does, and about ten Allreduces of 6 numbers a pair of classes.
    """
    prepared = prepare(method, train, options, comm)
    # Algorithm 5, line 1: each rank has its rows; CP-SVM, BKM-SVM and FCFS-SVM divide them first.
    with comm.phase("partition"):
        parts = into_parts(method, prepared, options, comm, partial(assign_owners, cost=predicted_cost))
    with comm.agreed():
        if is_stored(parts.X):
            check_parts_at_a_time(parts, options)
        else:
            largest = None if is_sparse(parts.X) else int(np.diff(parts.bounds).max(initial=0))
            check_memory(nbytes(parts.X), options, largest, comm.size)
    kernel: Kernel | dict[int, Kernel] = prepared.kernel
    found = None
    if options.searches:
        options, kernel, found = settle(parts, prepared, options, comm)
    # Line 2: each part is trained on its own.
    held = dict(parts)
    counts = {number: rows.stop - rows.start for number, rows in held.items()}

    def load(number: int) -> tuple[str, Samples]:
        return f"part-{number:06d}", parts.some(held[number])

    with comm.phase("train"):
        begun = time.perf_counter()
        solved = solve_all(counts, load, kernel, options, "training")
        sure = None
        if options.probability is not None:
            sure, judged = _calibrated(parts, len(prepared.classes), kernel, options, comm)
            if len(parts.sizes) > 1 and options.route != "all":
                solved = _sure(solved, sure, judged, len(prepared.classes))
        busy = time.perf_counter() - begun
    comm.wait()
    # Line 3: the centres, which all ranks need for routing.
    with comm.phase("predict"):
        centers, sizes, owners = gathered(parts, comm)
        soft, P = None, len(sizes)
        if options.route == "soft" and P > 1:
            soft = SOFT.scaled(gap(parts.X, centers, comm), P)
        elif options.route == "all" and P > 1 and len(prepared.classes) > 2:
            # Two classes keep the plain mean. Of more, a part far away may be as sure of its classes as a near one.
            soft = Soft(P, double_variance(parts.X, centers, comm))
    model = prepared.model(
        method, options, route="nearest" if P == 1 else options.route, centers=centers, sizes=sizes,
        owners=owners, soft=soft, parts={number: one.part for number, one in solved.items()},
        calibrator=sure, **({} if found is None else own_settings(found.chosen)),
    )  # fmt: skip
    numbers = np.zeros((len(sizes), len(STATISTICS) + 1))
    for number, one in solved.items():
        numbers[number] = one.numbers
    with comm.uncounted():
        numbers = comm.allreduce(numbers)
        every = comm.allgather(np.array([busy]))
    solver, notes = named(numbers), not_met(numbers, options.limits.tol, "parts")
    own = terms(sizes, prepared.nonzeros, parts.n_iter, solver)
    return Fit(model, sizes, solver, every, own, notes, search=found)


def _calibrated(
    parts: Parts, k: int, kernel: Kernel | dict[int, Kernel], options: Options, comm: Communicator
) -> tuple[Calibrator, dict[int, LeftOutDecisions]]:  # fmt: skip
    """What probabilities need, and what was found of left-out rows of each part; collective, and no row is sent."""
    counts = comm.allreduce(np.bincount(parts["code"], minlength=k).astype(np.int64))
    folds, side_by_side = folds_to_leave_out(counts), max(1, min(threads.current(), len(parts.parts)))
    advance = options.progress("probabilities", len(parts.parts))

    def of_part(number: int, rows: slice) -> LeftOutDecisions:
        own = kernel[number] if isinstance(kernel, dict) else kernel
        training = Training(own, options.limits, options.cache_bytes // side_by_side, options.solver)

        def work() -> dict[str, NDArray[Any]]:
            return vars(left_out(parts.take(rows), k, folds, training))

        return LeftOutDecisions(**remembered(options.checkpoint, f"left-out-{number:06d}", work))

    tasks, found = list(parts), {}
    every = threads.in_order(of_part, tasks, parallel=len(tasks) >= 2 * threads.current())
    for (number, _), one in zip(tasks, every, strict=True):
        found[number] = one
        advance()
    comm.wait()
    assert options.probability is not None
    together = LeftOutDecisions.stacked(list(found.values()))
    return Calibrator.fit(options.probability, together, k * (k - 1) // 2, comm), found


def _sure(
    solved: dict[int, Solved], calibrator: Calibrator, judged: dict[int, LeftOutDecisions], k: int
) -> dict[int, Solved]:  # fmt: skip
    """The parts with sigmoids of their own, of the decisions on their rows and of what all parts' say.

    A decision of 1 is as sure as a part's rows are hard to tell apart, and they differ from part to part.
    """
    made = dict(solved)
    for number, one in solved.items():
        own = calibrator.of_part(judged[number])
        if own is not None:
            A, B = (values[pairs_of(one.part.classes, k)] for values in own)
            made[number] = replace(one, part=replace(one.part, slopes=A, shifts=B))
    return made


def gathered(parts: Parts, comm: Communicator) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
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
