"""Dis-SMO: one problem of all rows, pair of classes by pair (Algorithm 1 on all ranks)."""

from __future__ import annotations

import time
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.rows import nbytes
from cacore.io.checkpoint import Unfinished, remembered
from cacore.svm.dual import Dual
from casvm.methods.prepare import Prepared, prepare
from casvm.methods.problems import STATISTICS, check_memory, named, not_met, solve_all, terms, told
from casvm.model.part import PartSVM, piece
from casvm.options import Fit, Method, Options
from casvm.solver import distributed


def fit(method: Method, train: Dataset, options: Options, comm: Communicator) -> Fit:
    """Solve the problem of all rows, pair of classes by pair; a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        As :func:`casvm.methods.prepare.prepare`.

    Notes
    -----
    See :func:`casvm.solver.distributed.solve`. No rank ever holds all rows, and the model stays in pieces.
    """
    prepared = prepare(method, train, options, comm)
    rows = prepared.rows
    with comm.agreed():
        check_memory(nbytes(rows.X), options)
    sizes = comm.allgather(np.array([len(rows)]))
    begun = time.perf_counter()
    with comm.phase("train"):
        if comm.size == 1 and options.working_set is None:
            alone = solve_all({0: len(rows)}, lambda _: ("alone", rows), prepared.kernel, options, "training")[0]
            made, numbers = alone.part, alone.numbers
        else:
            made, numbers = _together(prepared, options, comm)
    seconds = time.perf_counter() - begun
    numbers[STATISTICS.index("seconds")] = seconds
    with comm.uncounted():
        every = comm.allgather(np.array([seconds]))
    model = prepared.model_in_pieces(method, options, made, comm)
    numbers[STATISTICS.index("n_support")] = model.sizes.sum()
    solver = named(numbers[None])
    notes = not_met(numbers[None], options.limits.tol, "")
    return Fit(model, sizes, solver, every, terms(sizes, prepared.nonzeros, 0, solver), notes)


def _together(prepared: Prepared, options: Options, comm: Communicator) -> tuple[PartSVM, NDArray[np.float64]]:
    """This rank's piece of the model, and the statistics of all ranks together."""
    codes, C, k = prepared.rows["code"], prepared.rows["C"], len(prepared.classes)
    coef, b, collected = np.zeros((k - 1, len(codes))), np.zeros(k * (k - 1) // 2), []
    advance = options.progress("training", len(b))
    for number, (i, j) in enumerate(combinations(range(k), 2)):
        chosen = np.flatnonzero((C > 0) & ((codes == i) | (codes == j)))
        name = f"pair-{number:06d}"
        unfinished = None if options.checkpoint is None else Unfinished(options.checkpoint, name, comm)

        def work(
            i: int = i, chosen: NDArray[np.intp] = chosen, unfinished: Unfinished | None = unfinished
        ) -> dict[str, NDArray[Any]]:  # fmt: skip
            X = prepared.rows.X if len(chosen) == len(codes) else prepared.rows.X[chosen]
            y = np.where(codes[chosen] == i, 1.0, -1.0)
            dual = Dual.classification(y, C[chosen])
            share = distributed.solve(
                X, dual, prepared.kernel, options.limits, options.cache_bytes, comm, options.working_set,
                told(advance, "training"), unfinished,
            )  # fmt: skip
            counts = comm.allreduce(np.array([share.kernel_rows, share.kernel_values]))
            facts = [share.iterations, share.objective, share.gap, *counts, share.converged]
            return {"beta": share.alpha * y, "b": np.array(share.b), "facts": np.array(facts, np.float64)}

        done = remembered(options.checkpoint, name, work, comm)
        if unfinished is not None:
            unfinished.remove()
        first = codes[chosen] == i
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
        prepared.rows.X[support], codes[support], prepared.rows["row"][support], coef[:, support],
        b if comm.rank == 0 else np.zeros_like(b),
    )  # fmt: skip
    return made, numbers
