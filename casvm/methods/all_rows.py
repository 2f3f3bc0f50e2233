"""Dis-SMO: one problem of all rows, distributed over the ranks (Algorithm 1 on all ranks).

:func:`fit` and :func:`of_values` train with given settings. :func:`train_after_search` and :func:`choose_in_parts`
choose the settings first, in parts that are made for the search alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import Rows, in_memory, nbytes
from cacore.io.checkpoint import Checkpoint, Kept, Unfinished, remembered
from cacore.machine import memory, threads
from cacore.machine.clock import working_time
from cacore.machine.threads import cpu_name
from cacore.svm.dual import Dual, Solution
from casvm.model.part_svm import PartSVM, piece
from casvm.model.svm_model import SVMModel
from casvm.model.svr_model import SVRModel
from casvm.options import SVMMethod, SVMOptions, ValueMethod, ValueOptions
from casvm.search import classes, regression
from casvm.search.classes import ROWS, WHOLE
from casvm.solver.distributed import AllRows, Distributed, OnRanks
from casvm.solver.near_shares import in_shares
from casvm.solver.smo import PartTraining
from casvm.solver.units import Unit
from casvm.svm_fit import STATISTICS, SVMFit, check_memory, solver_progress
from casvm.tasks import ClassesTask, ValuesTask, kept_of, merged
from partition.algorithms import divide
from partition.in_parts import solve_all
from partition.redistribute import Parts, assign_owners, hand_out


def fit(method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator) -> SVMFit[SVMModel]:
    """Solve the problem of all rows, for one pair of classes after the other; a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        As raised by :meth:`casvm.tasks.SVMTask.prepared`.

    Notes
    -----
    For the cost, see :func:`solve`. A rank holds all rows only if most kernel values vanish
    and half of its cache has room for them. The model stays in pieces.
    """
    task = ClassesTask.prepared(method, train, options, comm)
    rows = task.rows
    with comm.agreed():
        check_memory(nbytes(rows.X), options)
    sizes = comm.allgather(np.array([len(rows)]))
    begun = working_time()
    with comm.phase("train"):
        if comm.size == 1 and options.working_set is None:
            alone = solve_all(task, {0: len(rows)}, lambda _: ("alone", rows), "training")[0]
            part, numbers = alone.part, alone.numbers
        else:
            part, numbers = _pair_by_pair(task, comm)
    seconds = working_time() - begun
    numbers[STATISTICS.index("seconds")] = seconds
    with comm.uncounted():
        all_seconds = comm.allgather(np.array([seconds]))
    model = task.model_in_pieces(part, len(part.rows), comm)
    numbers[STATISTICS.index("n_support")] = model.sizes.sum()
    return task.fit(model, numbers[None], all_seconds, sizes)


def of_values(
    kind: type[ValuesTask], method: ValueMethod, train: Dataset, options: ValueOptions, comm: Communicator
) -> SVMFit[SVRModel]:
    """Solve the regression, quantile or one-class problem of all rows; a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`, and `kind` the class of the task.

    Raises
    ------
    InputError
        On all ranks: invalid options or rows, insufficient memory, or a checkpoint of another run.

    Notes
    -----
    The cost is that of :func:`solve`, or of :func:`casvm.solver.smo.solve` on one rank without
    a working set. Memory holds this rank's rows and its kernel cache; the model stays in pieces.
    """
    task = kind.prepared(method, train, options, comm)
    if task.searches:
        choose_in_parts(task, comm)
    rows, options, problem = task.rows, task.options, task.problem
    with comm.agreed():
        cache_bytes = min(options.cache_bytes, 8 * task.n**2 + 2 * nbytes(rows.X))
        remedy = "use a smaller cache (--cache-gib), more ranks or --dtype float32"
        need = nbytes(rows.X) + cache_bytes
        memory.require(need, options.memory_limit, "storing a rank's rows and its kernel cache", remedy)
    sizes = comm.allgather(np.array([len(rows)]))
    begun, advance = working_time(), options.progress("training", 1)

    training = PartTraining(task.kernel, options.limits, cache_bytes, options.solver)

    def alone(unfinished: Unfinished | None) -> Kept:
        solutions = problem.solve(rows, training)
        return merged([kept_of(solution, begun) for solution in solutions])

    def work(dual: Dual, unfinished: Unfinished | None) -> Kept:
        watched = replace(training, watch=solver_progress(advance, "training"))
        share = solve(in_memory(rows.X), dual, watched, comm, options.working_set, unfinished)
        arrays = kept_of(problem.finished(share, dual, comm), begun)
        for name in ("kernel_rows", "kernel_values"):
            place = STATISTICS.index(name)
            arrays["statistics"][place] = comm.allreduce(arrays["statistics"][place : place + 1])[0]
        return arrays

    with comm.phase("train"):
        if comm.size == 1 and options.working_set is None:
            done = _resumed(task, "solution", alone, comm)
        else:
            duals = enumerate(problem.duals(rows, comm))
            names = ((f"solution-{number}" if number else "solution", dual) for number, dual in duals)
            done = merged([_resumed(task, name, partial(work, dual), comm) for name, dual in names])
        advance()
    seconds = working_time() - begun
    part = task.part(rows, done)
    if comm.rank:
        part.b = np.zeros_like(part.b)  # only one piece has the intercept
    model, numbers = task.model_in_pieces(part, len(part.rows), comm), done["statistics"]
    numbers[STATISTICS.index("n_support")], numbers[STATISTICS.index("seconds")] = model.sizes.sum(), seconds
    with comm.uncounted():
        all_seconds = comm.allgather(np.array([seconds]))
        return task.fit(model, comm.bcast(numbers)[None], all_seconds, sizes)


def _resumed(
    task: ClassesTask | ValuesTask, name: str, work: Callable[[Unfinished | None], Kept], comm: Communicator
) -> Kept:
    """Arrays that `work` returns, read from the checkpoint if it holds them, or resumed from its state; collective."""
    unfinished = None if task.checkpoint is None else Unfinished(task.checkpoint, name, comm)
    done = remembered(task.checkpoint, name, lambda: work(unfinished), comm)
    if unfinished is not None:
        unfinished.remove()
    return done


def _pair_by_pair(task: ClassesTask, comm: Communicator) -> tuple[PartSVM, NDArray[np.float64]]:
    """This rank's piece of the model, and statistics summed over all ranks."""
    rows, codes, C, k = task.rows, task.rows["code"], task.rows["C"], len(task.classes)
    coef, b, collected = np.zeros((k - 1, len(codes))), np.zeros(k * (k - 1) // 2), []
    advance, options = task.progress("training", len(b)), task.options
    watch = solver_progress(advance, "training")
    training = PartTraining(task.kernel, options.limits, options.cache_bytes, watch=watch)
    for number, (i, j) in enumerate(combinations(range(k), 2)):
        chosen = np.flatnonzero((C > 0) & ((codes == i) | (codes == j)))
        first = codes[chosen] == i

        def work(
            unfinished: Unfinished | None, chosen: NDArray[np.intp] = chosen, first: NDArray[np.bool_] = first
        ) -> Kept:
            X = rows.X if len(chosen) == len(codes) else rows.X[chosen]
            y = np.where(first, 1.0, -1.0)
            dual = Dual.classification(y, C[chosen])
            share = solve(in_memory(X), dual, training, comm, options.working_set, unfinished)
            counts = comm.allreduce(np.array([share.kernel_rows, share.kernel_values]))
            facts = [share.iterations, share.objective, share.gap, *counts, share.converged]
            return {"beta": share.alpha * y, "b": np.array(share.b), "facts": np.array(facts, np.float64)}

        done = _resumed(task, f"pair-{number:06d}", work, comm)
        coef[j - 1, chosen[first]] = done["beta"][first]
        coef[i, chosen[~first]] = done["beta"][~first]
        b[number] = float(done["b"])
        collected.append(done["facts"])
        advance()
    facts = np.array(collected)
    numbers = np.array([
        facts[:, 0].sum(), 0.0, facts[:, 1].sum(), facts[:, 2].max(), 0.0, facts[:, 3].sum(), facts[:, 4].sum(),
        facts[:, 5].all(),
    ])  # fmt: skip
    support = np.flatnonzero(coef.any(axis=0))
    part = piece(
        rows.X[support], codes[support], rows["row"][support], coef[:, support],
        b if comm.rank == 0 else np.zeros_like(b),
    )  # fmt: skip
    return part, numbers


def solve(
    X: Rows, dual: Dual, training: PartTraining, comm: Communicator, working_set: int | None = None,
    unfinished: Unfinished | None = None,
) -> Solution:  # fmt: skip
    """Solve the dual of all ranks' rows; a collective call.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d)
        This rank's rows, possibly none. Not changed.
    dual : Dual
        The dual of this rank's rows, with the total of all ranks. The start, if all ranks have one, is feasible.
    training : PartTraining
        With a kernel. The cache is this rank's memory for kernel values, packed rows and copies of other ranks' rows;
        `watch` is called after each round.
    comm : Communicator
    working_set : int, optional
        Rows per round, q; at most an eighth of all rows, or half of them if most kernel values vanish.
    unfinished : Unfinished, optional
        Checkpoint from which a killed run resumes; beta is stored from time to time.

    Returns
    -------
    Solution
        The solution for this rank's rows.

    Raises
    ------
    InputError
        On all ranks: kernel values that overflow, a start that is not feasible, sums by sign.

    Notes
    -----
    A round costs q^2 kernel values on every rank, or 3/8 of them where they are expensive, and m per row that moved.
    If every rank has room for all rows and most kernel values vanish, each rank optimises a share of the rows
    (:mod:`casvm.solver.near_shares`). Otherwise a round sends 32 bytes per proposed row (40 if rows have two nonzero
    bounds); there are about as many proposals as new rows in the working set.
    A chosen row is sent too, unless the ranks still have it. A rank holds its own rows and copies of at most three
    quarters of the other ranks' rows, or of 2 q rows if that is more.
    """
    with comm.uncounted():
        sizes = np.array([np.abs(dual.linear).max(initial=0.0), dual.largest_bound])
        unit = Unit.of(*comm.allreduce(sizes, "max").tolist())
    state = unfinished.get() if unfinished is not None else None
    scaled, tol = unit.dual(dual), training.limits.tol
    training = replace(training, limits=unit.limits(training.limits), watch=unit.watch(training.watch))
    if state is not None:
        scaled = replace(scaled, start=state["beta"])
    rows = AllRows.of(X, scaled, training, comm, f"{cpu_name()} {threads.current()}")
    solver: OnRanks
    if working_set is None and rows.in_shares:
        solver = in_shares(rows, X, scaled, training, comm)
    else:
        solver = Distributed(rows, X, scaled, training, comm, working_set)
    solver.unfinished = unfinished
    if state is not None:
        solver.go_on(state)
    return unit.solution(solver.run(rows.n), tol)


PARTITIONER = "kbalance"  # makes the parts for the search
_COPIES = "storing a rank's rows and two copies for the search"

Trainer = Callable[[SVMMethod, Dataset, SVMOptions, Communicator], SVMFit[SVMModel]]


def train_after_search(
    train: Trainer, method: SVMMethod, rows: Dataset, options: SVMOptions, comm: Communicator
) -> SVMFit[SVMModel]:  # fmt: skip
    """Search for C and gamma in parts of about 2,000 rows, or on all rows if they are few, then train; collective.

    Used by methods whose training ends in one model of all rows, and by methods that learn a metric. Arguments and
    result are those of the trainer.

    Raises
    ------
    InputError
        On all ranks: errors of the trainer or the search, or insufficient memory for two copies of a rank's rows.

    Notes
    -----
    A copy of each row is sent once, to parts made by K-balance: neighbours stay together, so that the parts suggest the
    same gamma as all rows. The search costs what :func:`casvm.search.classes.search_classes` does.
    """
    row_bytes = nbytes(rows.X)
    with comm.agreed():
        remedy = "use more ranks, or give one value of C and of gamma"
        memory.require(3 * row_bytes, options.memory_limit, _COPIES, remedy)
    copy = Dataset(in_memory(rows.X).copy(), rows.target(), rows.n, weights=rows.weights)
    looking = replace(
        options, metric="none", ratio=False, checkpoint=_within(options, "search"), partitions=None,
        memory_limit=options.memory_limit - row_bytes,
    )  # fmt: skip
    task = ClassesTask.prepared(replace(method, whole=False, partitioner=PARTITIONER), copy, looking, comm)
    _, n = comm.offset(len(task.rows))
    parts, P = _parts(task.rows.give(), n, options.seed, comm)
    results = classes.search_classes(parts, task.classes, P, looking, comm)
    del parts
    fitted = train(method, rows, replace(options.with_setting(results), checkpoint=_within(options, "trained")), comm)
    fitted.search = results
    return fitted


def choose_in_parts(task: ValuesTask, comm: Communicator) -> None:
    """Choose C, epsilon and gamma for a regression of all rows, in parts made from a copy of them; collective."""
    rows, options = task.rows, task.options
    with comm.agreed():
        remedy = "use more ranks, or give one value of C, epsilon and gamma"
        memory.require(3 * nbytes(rows.X), options.memory_limit, _COPIES, remedy)
    parts, P = _parts(Samples(in_memory(rows.X).copy(), dict(rows.columns)), task.n, options.seed, comm)
    results = regression.search_values(parts, task.n, P, task.unit, options, comm)
    del parts
    task.use_setting(results, rows.X, comm)


def _parts(rows: Samples, n: int, seed: int, comm: Communicator) -> tuple[Parts, int]:
    """Divide the n rows of all ranks into parts of about 2,000, or one part if n is small; and P. Collective."""
    with comm.phase("partition"):
        P = -(-n // ROWS) if n > WHOLE else 1
        division = divide(PARTITIONER, P, rows.X, comm, seed)
        owners = assign_owners(division.sizes, comm.size, lambda m: m**2)
        return hand_out(rows, division, owners, seed, comm), P


def _within(options: SVMOptions, name: str) -> Checkpoint | None:
    """A checkpoint in a subfolder of this name: search and training have one each."""
    return None if options.checkpoint is None else options.checkpoint.within(name)
