"""Dis-SMO: one problem of all rows, distributed over the ranks (Algorithm 1 on all ranks)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.rows import Rows, nbytes
from cacore.data.stored import in_memory
from cacore.io.checkpoint import Kept, Unfinished, remembered
from cacore.machine import memory
from cacore.machine.clock import working_time
from cacore.progress import Advance
from cacore.svm.dual import Dual, Solution
from casvm.fit import SVMFit
from casvm.methods.problems import STATISTICS, check_memory, told
from casvm.methods.settle import settle_values
from casvm.model.model import SVMModel
from casvm.model.part import PartSVM, piece
from casvm.model.svr import SVRModel
from casvm.options import SVMMethod, SVMOptions
from casvm.solver import distributed
from casvm.solver.quantiles import centered
from casvm.tasks.classes import ClassesTask
from casvm.tasks.values import ValuesTask, kept_of, merged
from casvm.value_options import ValueMethod, ValueOptions
from partition.in_parts import solve_all


def fit(method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator) -> SVMFit[SVMModel]:
    """Solve the problem of all rows, for one pair of classes after the other; a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        As raised by :meth:`casvm.tasks.task.SVMTask.prepared`.

    Notes
    -----
    For the cost, see :func:`casvm.solver.distributed.solve`. A rank holds all rows only if most kernel values vanish
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
            made, numbers = alone.part, alone.numbers
        else:
            made, numbers = _pair_by_pair(task, comm)
    seconds = working_time() - begun
    numbers[STATISTICS.index("seconds")] = seconds
    with comm.uncounted():
        every = comm.allgather(np.array([seconds]))
    model = task.model_in_pieces(made, len(made.rows), comm)
    numbers[STATISTICS.index("n_support")] = model.sizes.sum()
    return task.fit(model, numbers[None], every, sizes)


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
    The cost is that of :func:`casvm.solver.distributed.solve`, or of :func:`casvm.solver.smo.solve` on one rank without
    a working set. Memory holds this rank's rows and its kernel cache; the model stays in pieces.
    """
    task = kind.prepared(method, train, options, comm)
    if task.searches:
        settle_values(task, comm)
    rows, options, problem = task.rows, task.options, task.problem
    with comm.agreed():
        cache_bytes = min(options.cache_bytes, 8 * task.n**2 + 2 * nbytes(rows.X))
        remedy = "use a smaller cache (--cache-gib), more ranks or --dtype float32"
        need = nbytes(rows.X) + cache_bytes
        memory.require(need, options.memory_limit, "storing a rank's rows and its kernel cache", remedy)
    sizes = comm.allgather(np.array([len(rows)]))
    begun, advance = working_time(), options.progress("training", 1)

    def alone(unfinished: Unfinished | None) -> Kept:
        solutions = problem.solve(rows, task.kernel, options.limits, cache_bytes, options.solver)
        return merged([kept_of(one, begun) for one in solutions])

    def work(dual: Dual, unfinished: Unfinished | None) -> Kept:
        share = _together(task, in_memory(rows.X), dual, cache_bytes, advance, unfinished, comm)
        if problem.levels:
            share = centered(share, dual, partial(comm.allreduce, op="max"))
        kept = kept_of(share, begun)
        for name in ("kernel_rows", "kernel_values"):
            place = STATISTICS.index(name)
            kept["statistics"][place] = comm.allreduce(kept["statistics"][place : place + 1])[0]
        return kept

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
        every = comm.allgather(np.array([seconds]))
        return task.fit(model, comm.bcast(numbers)[None], every, sizes)


def _together(
    task: ClassesTask | ValuesTask, X: Rows, dual: Dual, cache_bytes: int, advance: Advance,
    unfinished: Unfinished | None, comm: Communicator,
) -> Solution:  # fmt: skip
    """This rank's share of the solution of a dual whose rows are distributed over the ranks; collective."""
    options = task.options
    return distributed.solve(
        X, dual, task.kernel, options.limits, cache_bytes, comm, options.working_set, told(advance, "training"),
        unfinished,
    )  # fmt: skip


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
    advance = task.progress("training", len(b))
    for number, (i, j) in enumerate(combinations(range(k), 2)):
        chosen = np.flatnonzero((C > 0) & ((codes == i) | (codes == j)))
        first = codes[chosen] == i

        def work(
            unfinished: Unfinished | None, chosen: NDArray[np.intp] = chosen, first: NDArray[np.bool_] = first
        ) -> Kept:
            X = rows.X if len(chosen) == len(codes) else rows.X[chosen]
            y = np.where(first, 1.0, -1.0)
            dual = Dual.classification(y, C[chosen])
            share = _together(task, in_memory(X), dual, task.options.cache_bytes, advance, unfinished, comm)
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
    made = piece(
        rows.X[support], codes[support], rows["row"][support], coef[:, support],
        b if comm.rank == 0 else np.zeros_like(b),
    )  # fmt: skip
    return made, numbers
