"""SVMs whose answer is a number a row, on all ranks: one problem of all rows (Dis-SMO), or one a part.

They are regression, epsilon-SVR and nu-SVR, and one class. Training parts sends nothing.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import is_sparse, nbytes
from cacore.io.checkpoint import Unfinished, remembered
from cacore.machine import memory, threads
from cacore.svm.dual import Solution
from cacore.tuning.results import Results
from casvm.methods.divide import deal
from casvm.methods.parts import gathered
from casvm.methods.prepare_values import Prepared, prepare
from casvm.methods.problems import STATISTICS, check_memory, named, not_met, predicted_cost, told
from casvm.model.svr import PartSVR, SVRModel
from casvm.search.pieces import ROWS, WHOLE
from casvm.search.regression import search
from casvm.solver import distributed
from casvm.value_options import PARTITIONERS, Fit, Method, Options
from partition.divide import divide, hand_out, order_of
from partition.overlap import overlapping
from partition.redistribute import Parts, assign_owners
from partition.routing import SOFT, gap

_CONVERGED = len(STATISTICS)  # the place behind them
_ADDED = "added"  # a column: rows of other parts, where parts overlap


def fit(method: Method, train: Dataset, options: Options, comm: Communicator, test: Dataset | None = None) -> Fit:
    """Train, in parts or exactly; a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        On all ranks: options that make no sense, rows that do not fit together or cannot be used, more parts than rows,
        memory that does not suffice, a checkpoint of another run.

    Notes
    -----
    Exactly: see :func:`casvm.solver.distributed.solve`, and on one rank without a working set
    :func:`casvm.solver.smo.solve`; the model stays in pieces. A part costs what the latter does; this rank's rows, and
    the kernel caches. Training parts sends nothing; partitioning sends nothing for "random".
    """
    prepared = prepare(method, train, options, comm)
    return (of_all_rows if options.exact else in_parts)(method, prepared, comm)


def of_all_rows(method: Method, prepared: Prepared, comm: Communicator) -> Fit:
    """Solve the one problem of all rows; collective. See :func:`fit`."""
    found = None
    if prepared.options.searches:
        found = search_apart(prepared, comm)
        prepared = prepared.settled(found, prepared.rows.X, comm)
    rows, options, problem = prepared.rows, prepared.options, prepared.problem
    with comm.agreed():
        cache_bytes = min(options.cache_bytes, 8 * prepared.n**2 + 2 * nbytes(rows.X))
        remedy = "use a smaller cache (--cache-gib), more ranks or --dtype float32"
        memory.require(nbytes(rows.X) + cache_bytes, options.memory_limit, "a rank's rows and its kernel cache", remedy)
    sizes = comm.allgather(np.array([len(rows)]))
    begun, advance = time.perf_counter(), options.progress("training", 1)
    unfinished = None if options.checkpoint is None else Unfinished(options.checkpoint, "solution", comm)

    def work() -> dict[str, NDArray[Any]]:
        if comm.size == 1 and options.working_set is None:
            return _kept(problem.solve(rows, prepared.kernel, options.limits, cache_bytes), begun)
        share = distributed.solve(
            rows.X, problem.dual(rows, comm), prepared.kernel, options.limits, cache_bytes, comm, options.working_set,
            told(advance, "training"), unfinished,
        )  # fmt: skip
        kept = _kept(share, begun)
        for name in ("kernel_rows", "kernel_values"):
            place = STATISTICS.index(name)
            kept["statistics"][place] = comm.allreduce(kept["statistics"][place : place + 1])[0]
        return kept

    with comm.phase("train"):
        done = remembered(options.checkpoint, "solution", work, comm)
        if unfinished is not None:
            unfinished.remove()
        advance()
    seconds = time.perf_counter() - begun
    part = _of_support(rows, done)
    if comm.rank:
        part.b = np.zeros(1)  # once in all pieces together
    with comm.phase("predict"):
        support = comm.allgather(np.array([len(part.rows)]))
    model = prepared.model(
        method, route="sum", centers=np.zeros((0, rows.X.shape[1])), sizes=support, owners=np.arange(comm.size),
        parts={comm.rank: part},
    )  # fmt: skip
    numbers = done["statistics"]
    numbers[STATISTICS.index("n_support")], numbers[STATISTICS.index("seconds")] = support.sum(), seconds
    with comm.uncounted():
        every = comm.allgather(np.array([seconds]))
        return _fitted(model, sizes, comm.bcast(numbers)[None], every, options, "", found)


def search_apart(prepared: Prepared, comm: Communicator) -> Results | None:
    """Compare settings in parts of about 2,000 rows, or in one of few rows, made of a copy of the rows; collective."""
    rows, options = prepared.rows, prepared.options
    with comm.agreed():
        remedy = "use more ranks, or give one value of C, epsilon and gamma"
        needed = 3 * nbytes(rows.X)
        memory.require(needed, options.memory_limit, "a rank's rows, and two copies of them in the search", remedy)
    with comm.phase("partition"):
        copy = Samples(rows.X.copy(), dict(rows.columns))
        P = -(-prepared.n // ROWS) if prepared.n > WHOLE else 1
        division = divide(PARTITIONERS[0], P, copy.X, comm, options.seed)
        owners = assign_owners(division.sizes, comm.size, lambda m: m**2)
        parts = hand_out(copy, division, owners, options.seed, comm)
    del copy
    return search(parts, prepared.n, P, prepared.unit, options, comm)


def in_parts(method: Method, prepared: Prepared, comm: Communicator) -> Fit:
    """Train one machine a part (Algorithm 5 and its clustered relatives); collective. See :func:`fit`."""
    divisions = prepared.options.divisions if prepared.P > 1 else 1
    with comm.phase("partition"):
        parts = _divided(prepared, 0, comm)
    with comm.agreed():
        largest = None if is_sparse(parts.X) else int(np.diff(parts.bounds).max(initial=0))
        check_memory(nbytes(parts.X) + nbytes(prepared.rows.X), prepared.options, largest)
    found = None
    if prepared.options.searches:
        found = search(parts, prepared.n, prepared.P, prepared.unit, prepared.options, comm)
        prepared = prepared.settled(found, parts.X, comm)
    options = prepared.options
    model, numbers, busy = _trained(method, prepared, parts, 0, comm)
    for number in range(1, divisions):
        del parts  # before the next ones
        with comm.phase("partition"):
            parts = _divided(prepared, number, comm)
        more, others, seconds = _trained(method, prepared, parts, number, comm)
        _add(model, more)
        numbers, busy = np.concatenate([numbers, others]), busy + seconds
    with comm.uncounted():
        return _fitted(model, model.sizes, numbers, comm.allgather(np.array([busy])), options, "parts", found)


def _trained(
    method: Method, prepared: Prepared, parts: Parts, division: int, comm: Communicator
) -> tuple[SVRModel, NDArray[np.float64], float]:  # fmt: skip
    """The model of these parts, its lines of statistics, and this rank's seconds; collective."""
    with comm.phase("train"):
        begun = time.perf_counter()
        solved = _solved(prepared, parts, division)
        busy = time.perf_counter() - begun
    comm.wait()
    with comm.phase("predict"):
        centers, sizes, owners = gathered(parts, comm)
        P, route = len(sizes), prepared.options.route
        soft = None
        if route == "soft" and P > 1:
            once = parts.X if _ADDED not in parts.columns else parts.X[~parts[_ADDED]]
            soft = SOFT.scaled(gap(once, centers, comm), P)
    model = prepared.model(
        method, route="nearest" if P == 1 else route, centers=centers, sizes=sizes, owners=owners, soft=soft,
        parts={number: part for number, (part, _) in solved.items()},
    )  # fmt: skip
    numbers = np.zeros((P, len(STATISTICS) + 1))
    for number, (_, line) in solved.items():
        numbers[number] = line
    with comm.uncounted():
        return model, comm.allreduce(numbers), busy


def _add(model: SVRModel, other: SVRModel) -> None:
    """Take over the parts of another division of the same rows."""
    P = len(model.sizes)
    model.parts |= {P + part: one for part, one in other.parts.items()}
    for name in ("centers", "sizes", "owners"):
        setattr(model, name, np.concatenate([getattr(model, name), getattr(other, name)]))
    model.divisions += 1


def _divided(prepared: Prepared, number: int, comm: Communicator) -> Parts:
    """The parts of the n-th division; the rows stay only if there are several. Collective."""
    options, seed = prepared.options, (prepared.options.seed + number) % 2**32
    rows = prepared.rows.give()
    if options.divisions > 1:
        prepared.rows = Samples(rows.X, dict(rows.columns))
    partitioner = options.partitioner or PARTITIONERS[0]
    if partitioner == "random":
        return deal(rows, prepared.P, seed, comm)
    division = divide(partitioner, prepared.P, rows.X, comm, seed)
    if options.overlap:
        n = len(rows)
        places, division = overlapping(rows.X, division, options.overlap, comm)
        with comm.agreed():
            needed = int(nbytes(rows.X) * (1 + 2 * len(places) / max(1, n)))
            remedy = "use more ranks, or a smaller overlap"
            memory.require(needed, options.memory_limit, "a rank's rows and those that it adds to the parts", remedy)
        rows.columns["order"] = order_of(rows, options.seed, comm)
        rows = rows.take(places)
        rows.columns[_ADDED] = np.arange(len(places)) >= n
    return hand_out(rows, division, assign_owners(division.sizes, comm.size, predicted_cost), options.seed, comm)


def _solved(prepared: Prepared, parts: Parts, division: int) -> dict[int, tuple[PartSVR, NDArray[np.float64]]]:
    """This rank's parts, the largest first and as many side by side as there are threads."""
    options, problem, held = prepared.options, prepared.problem, dict(parts)
    todo = sorted(held, key=lambda number: held[number].start - held[number].stop)
    cache_bytes = options.cache_bytes // max(1, min(threads.current(), len(todo)))
    advance, lock = options.progress("training", len(todo)), threading.Lock()
    even = prepared.n / prepared.P

    def solve(number: int) -> tuple[PartSVR, NDArray[np.float64]]:
        rows = parts.take(held[number])

        def work() -> dict[str, NDArray[Any]]:
            begun = time.perf_counter()
            solution = problem.solve(rows, prepared.kernel, options.limits, cache_bytes)
            # Coefficients of one class add up to nu m: of parts that are not of one size, densities are compared.
            scale = even / len(rows) if problem.svm_type == "one_class" else 1.0
            return _kept(solution, begun, scale)

        name = f"division-{division}-" if division else ""
        done = remembered(options.checkpoint, f"{name}part-{number:06d}", work)
        with lock:
            advance()
        return _of_support(rows, done), done["statistics"]

    return dict(zip(todo, threads.in_order(solve, [(number,) for number in todo]), strict=True))


def _kept(solution: Solution, begun: float, scale: float = 1.0) -> dict[str, NDArray[Any]]:
    """What a checkpoint keeps of a solution, whose coefficients are multiplied by `scale`."""
    counts = solution.kernel_rows, solution.kernel_values, solution.converged
    support = np.flatnonzero(solution.beta)
    numbers = [solution.iterations, len(support), solution.objective, solution.gap, time.perf_counter() - begun]
    return {
        "places": support, "beta": scale * solution.beta[support], "b": np.array([scale * solution.b]),
        "statistics": np.array([*numbers, *counts], np.float64),
    }  # fmt: skip


def _of_support(rows: Samples, done: dict[str, NDArray[Any]]) -> PartSVR:
    """The part of these rows, with its support vectors in the order of all rows."""
    numbers = rows["row"][done["places"]]
    order = np.argsort(numbers)
    return PartSVR(rows.X[done["places"][order]], numbers[order], done["beta"][order], done["b"].copy())


def _fitted(
    model: SVRModel, sizes: NDArray[np.int64], numbers: NDArray[np.float64], busy: NDArray[np.float64],
    options: Options, what: str, found: Results | None,
) -> Fit:  # fmt: skip
    solver = {**named(numbers), "converged": numbers[:, _CONVERGED] > 0}
    return Fit(model, sizes, solver, busy, float(options.tol), not_met(numbers, options.limits.tol, what), found)
