"""Training of one part: one binary problem per pair of classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, power_of_two
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.machine import threads
from cacore.svm.dual import Dual, Progress, Solution
from cacore.svm.solvers import DEFAULT, part_solver
from casvm.model.part import PartSVM
from casvm.solver import smo  # noqa: F401 - registers the default solver, also where the package is not installed
from casvm.solver.class_pairs import solve_classes
from casvm.solver.class_rows import ClassRows
from casvm.solver.nu import with_margin
from casvm.solver.units import Origin


def fit_part(
    X: Rows, codes: NDArray[np.int64], C: NDArray[np.float64], rows: NDArray[np.int64], kernel: Kernel | None,
    limits: Limits, cache_bytes: int, solver: str = DEFAULT, start: NDArray[np.float64] | None = None,
    watch: Callable[[Progress], None] | None = None, nu: float | None = None,
) -> tuple[PartSVM, list[Solution]]:  # fmt: skip
    """Train one-vs-one classifiers.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d)
        Not changed.
    codes : ndarray of int64, shape (m,)
        Class of each row.
    C : ndarray of float64, shape (m,)
        Bound of each row's alpha; a row with 0 counts as absent.
    rows : ndarray of int64, shape (m,)
        Global row numbers.
    kernel, limits, cache_bytes, watch
        See :class:`cacore.svm.dual.PartSolver`, for each binary problem.
    solver : str
        A name of :mod:`cacore.svm.solvers`.
    start : ndarray, shape (n_classes - 1, m), optional
        Initial coefficients alpha y in the layout of :meth:`casvm.model.part.PartSVM.spread`; need not be feasible.
    nu : float, optional
        Solve nu-SVC, without a `start`; `C` bounds alpha before it is scaled to a margin of 1.

    Returns
    -------
    part : PartSVM
    solutions : list of Solution
        One per pair of classes.

    Raises
    ------
    InputError
        If no solver has this name, or the solver raises it.
    """
    solve = part_solver(solver)
    present = C > 0
    classes = np.flatnonzero(np.bincount(codes[present]))
    members = [np.flatnonzero(present & (codes == code)) for code in classes]
    k = len(classes)
    alphas = np.zeros((max(k - 1, 0), len(codes)))
    solutions: list[Solution] = []
    tasks = list(combinations(range(k), 2))

    # Many pairs are solved in parallel; a few are solved one after the other, each with all threads.
    together = len(tasks) >= 2 * threads.current()
    shared, origin = None, Origin(X, None)
    if k > 2 and solver == DEFAULT:
        largest_bound = 1.0 if nu is not None else float(C.max())
        side_by_side = threads.current() if together else 1
        origin = Origin.of(X, kernel)
        shared = ClassRows.of(origin.X, members, kernel, largest_bound, limits, cache_bytes, side_by_side)

    def pair(i: int, j: int) -> tuple[NDArray[np.int64], NDArray[np.float64], Solution]:
        chosen = np.concatenate([members[i], members[j]])
        if shared is None:
            chosen.sort()
        y = np.where(codes[chosen] == classes[i], 1.0, -1.0)
        alpha = None
        if start is not None:
            alpha = y * np.where(y > 0, start[classes[j] - 1, chosen], start[classes[i], chosen])
        if nu is not None:
            weights = C[chosen] / power_of_two(float(C[chosen].max()))  # the answer does not depend on their unit
            dual = Dual.nu_classification(y, weights, nu)
            largest = float(np.abs(np.diagonal(np.asarray(X)) if kernel is None else kernel.diagonal(X[chosen])).max())
            return chosen, y, with_margin(partial(solved_by, i, j, chosen), dual, limits, largest)
        return chosen, y, solved_by(i, j, chosen, Dual.classification(y, C[chosen], alpha), limits)

    def solved_by(i: int, j: int, chosen: NDArray[np.int64], dual: Dual, limits: Limits) -> Solution:
        if shared is not None:
            with shared.pair(i, j) as rows_of_k:
                return origin.solution(solve_classes(rows_of_k, dual, limits, watch), chosen)
        if kernel is None:
            given = np.asarray(X)
            whole = np.array_equal(np.arange(given.shape[1]), rows[chosen]) and len(chosen) == len(given)
            some: Rows = given if whole else given[np.ix_(chosen, rows[chosen])]
        else:
            some = X if len(chosen) == X.shape[0] else X[chosen]
        return solve(some, kernel, dual, limits, cache_bytes, watch)

    with threads.in_order(pair, tasks, parallel=together) as solved:
        for (i, j), (chosen, y, solution) in zip(tasks, solved, strict=True):
            first = y > 0
            alphas[j - 1, chosen[first]] = solution.alpha[first]
            alphas[i, chosen[~first]] = -solution.alpha[~first]
            solutions.append(solution)
    moved = np.asarray(alphas.any(axis=0))
    support = [places[moved[places]] for places in members] if k > 1 else []
    places = np.concatenate([np.zeros(0, np.int64), *support])
    part = PartSVM(
        classes, X[places] if kernel is not None else np.zeros((len(places), 0)), rows[places],
        np.ascontiguousarray(alphas[:, places]), np.array([one.b for one in solutions]),
        np.array([len(some) for some in support], np.int64) if k > 1 else np.zeros(k, np.int64),
    )  # fmt: skip
    return part, solutions
