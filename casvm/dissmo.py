"""Dis-SMO (sections 2.2 and 2.3): the exact SVM of all rows, of which every rank holds a share.

The ranks agree on a working set a round, and each brings the gradient of its own rows up to date; see
:mod:`casvm.distributed`. More than two classes are one problem a pair. On one rank the local solver does it.
"""

from __future__ import annotations

import time
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator, as_communicator
from cacore.data.rows import is_sparse, nbytes
from cacore.io.checkpoint import remembered
from cacore.svm.dual import Dual
from casvm.methods.prepare import Labelled, Prepared, prepare
from casvm.methods.problems import STATISTICS, Problem, check_memory, named, not_met, solve_all, terms
from casvm.model.model import SVMModel
from casvm.model.pieces import piece
from casvm.options import Fit, Method, Options
from casvm.solver import distributed

METHOD = Method("dissmo", "exact, one problem of which every rank holds a share", whole=True)


def dissmo(train: Labelled, options: Options, comm: Any = None) -> Fit:
    """Train on all ranks' rows; see :func:`fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm))


def fit(method: Method, train: Labelled, options: Options, comm: Communicator) -> Fit:
    """Solve the problem of all rows, pair of classes by pair; a collective call.

    Parameters
    ----------
    method : Method
    train : Labelled
        This rank's rows; they are taken from it.
    options : Options
    comm : Communicator

    Returns
    -------
    Fit
        Its statistics have one entry.

    Raises
    ------
    InputError
        As :func:`casvm.methods.prepare.prepare`.

    Notes
    -----
    See :func:`casvm.solver.distributed.solve`. No rank ever holds all rows, and the model stays in pieces.
    """
    given = prepare(method, train, options, comm)
    with comm.agreed():
        check_memory(nbytes(given.X), options)
    sizes = comm.allgather(np.array([given.X.shape[0]]))
    begun = time.perf_counter()
    with comm.phase("train"):
        if comm.size == 1 and options.working_set is None:
            made, numbers = _alone(given, options)
        else:
            made, numbers = _together(given, options, comm)
    seconds = time.perf_counter() - begun
    numbers[STATISTICS.index("seconds")] = seconds
    with comm.uncounted():
        every = comm.allgather(np.array([seconds]))
    with comm.phase("predict"):
        support = comm.allgather(np.array([len(made.rows)]))
    numbers[STATISTICS.index("n_support")] = support.sum()
    model = SVMModel(
        method.name, "sum", given.classes, given.kernel, options.C, np.zeros((0, given.X.shape[1])), support,
        np.arange(comm.size), given.standardizer, str(given.X.dtype), None, {comm.rank: made},
        {"sparse": is_sparse(given.X)}, comm,
    )  # fmt: skip
    solver = named(numbers[None])
    notes = not_met(numbers[None], options.limits.tol, "")
    return Fit(model, sizes, solver, every, terms(sizes, given.nonzeros, 0, solver), notes)


def _alone(given: Prepared, options: Options) -> tuple[Any, NDArray[np.float64]]:
    """All rows on this rank."""
    columns = (given.columns[name] for name in ("code", "C", "row"))
    problem = Problem("alone", given.X, *columns)
    solved = solve_all([given.X.shape[0]], lambda _: problem, given.kernel, options, "training")[0]
    return solved.part, solved.numbers


def _together(given: Prepared, options: Options, comm: Communicator) -> tuple[Any, NDArray[np.float64]]:
    """This rank's piece of the model, and the statistics of all ranks together."""
    codes, C, k = given.columns["code"], given.columns["C"], len(given.classes)
    coef, b, told = np.zeros((k - 1, len(codes))), np.zeros(k * (k - 1) // 2), []
    advance = options.progress("training", len(b))
    for number, (i, j) in enumerate(combinations(range(k), 2)):
        chosen = np.flatnonzero((C > 0) & ((codes == i) | (codes == j)))

        def work(i: int = i, chosen: NDArray[np.intp] = chosen) -> dict[str, NDArray[Any]]:
            X = given.X if len(chosen) == len(codes) else given.X[chosen]
            y = np.where(codes[chosen] == i, 1.0, -1.0)
            dual = Dual.classification(y, C[chosen])
            share = distributed.solve(
                X, dual, given.kernel, options.limits, options.cache_bytes, comm, options.working_set
            )
            counts = comm.allreduce(np.array([share.kernel_rows, share.kernel_values]))
            facts = [share.iterations, share.objective, share.gap, *counts, share.converged]
            return {"beta": share.alpha * y, "b": np.array(share.b), "facts": np.array(facts, np.float64)}

        done = remembered(options.checkpoint, f"pair-{number:06d}", work, comm)
        first = codes[chosen] == i
        coef[j - 1, chosen[first]] = done["beta"][first]
        coef[i, chosen[~first]] = done["beta"][~first]
        b[number] = float(done["b"])
        told.append(done["facts"])
        advance()
    facts = np.array(told)
    numbers = np.array([
        facts[:, 0].sum(), 0.0, facts[:, 1].sum(), facts[:, 2].max(), 0.0, facts[:, 3].sum(), facts[:, 4].sum(),
        facts[:, 5].all(),
    ])  # fmt: skip
    support = np.flatnonzero(coef.any(axis=0))
    made = piece(
        given.X[support], codes[support], given.columns["row"][support], coef[:, support],
        b if comm.rank == 0 else np.zeros_like(b),
    )  # fmt: skip
    return made, numbers


if __name__ == "__main__":
    from casvm.cli import main

    main(METHOD, trainer=fit)
