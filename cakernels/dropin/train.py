"""Training of LIBSVM's problems by the exact solver; imported when the first problem is taken over."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import LARGEST_TARGET, Rows, check_squares, check_targets, first_nonfinite, is_sparse
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.machine import memory
from cacore.probability import platt
from cacore.probability.left_out import LeftOutDecisions
from cacore.svm.dual import Dual, Solution
from cakernels.dropin.ledger import UnsuitedError
from cakernels.dropin.problem import TYPES, LibsvmProblem, Trained, Vector
from casvm.model.part import PartSVM
from casvm.solver.nu import solve_regression
from casvm.solver.part import fit_part
from casvm.solver.smo import solve_one_class, solve_part

DEFAULT_CACHE = 200.0  # scikit-learn's default for cache_size, in MB
_OURS = 1 << 30  # bytes of the kernel cache if the user has not chosen a size
_FOLDS = 5
_FILLED = 0.25  # share of nonzeros from which CSR rows are solved as dense ones, which is faster
_ENDLESS = 1e10  # stands for an infinite C, as long as no coefficient gets there


def train(problem: LibsvmProblem) -> Trained:
    """Solve the problem.

    Raises
    ------
    UnsuitedError, InputError
        For problems that LIBSVM has to judge: no row or class with a positive weight, a coefficient that grows without
        end, rows that are not finite or whose squares overflow, a tolerance that is not reached without a limit of
        iterations.
    """
    _check(problem)
    if not np.isfinite(problem.C):
        found = train(replace(problem, C=_ENDLESS))
        if len(found.support) and not np.abs(found.coef).max() < _ENDLESS / 2:
            raise UnsuitedError("C is infinite, and so is a coefficient")
        return found
    kept, problem = problem, _filled(problem)
    found = _classifier(problem) if problem.classifies else _values(problem)
    return found if kept is problem else replace(found, vectors=_vectors(kept, found.support))


def _filled(problem: LibsvmProblem) -> LibsvmProblem:
    """The problem with dense rows, if few of its numbers are zeros."""
    X = problem.X
    if is_sparse(X) and X.nnz >= _FILLED * X.shape[0] * X.shape[1]:
        return replace(problem, X=X.toarray())
    return problem


def _check(problem: LibsvmProblem) -> None:
    if not np.isfinite(problem.sample_weight).all():
        raise UnsuitedError("sample weights that are not finite")
    if problem.kernel != "precomputed":
        check_squares(problem.X, Communicator())
    elif first_nonfinite(problem.X) is not None:  # values of a callable kernel: scikit-learn has not checked them
        raise UnsuitedError("kernel values that are not finite")


def _limits(problem: LibsvmProblem) -> Limits:
    return Limits(problem.tol, problem.max_iter, shrinking=bool(problem.shrinking))


def cache_bytes(problem: LibsvmProblem) -> int:
    """Memory for kernel values: cache_size if the user has chosen one, and at most half of what is available."""
    chosen = _OURS if problem.cache_size == DEFAULT_CACHE else int(problem.cache_size * (1 << 20))
    n, d = (int(size) for size in problem.X.shape)
    needed = n * n * 8 + 2 * n * d * 8
    return min(chosen, needed, memory.limit_per_rank(Communicator()) // 2)


def _classifier(problem: LibsvmProblem) -> Trained:
    """One problem per pair of classes."""
    codes, weights = problem.y.astype(np.int64), problem.weights()
    factor = problem.class_weight
    k = len(factor)
    bounds = weights * problem.C * factor[codes] if problem.svm_type == 0 else weights
    if not np.bincount(codes[bounds > 0], minlength=k).all():
        raise UnsuitedError("a class without a row of positive weight")
    part, solutions = _part(problem, problem.X, codes, bounds)
    _check_ends(problem, solutions)
    A = B = np.zeros(0)
    if problem.probability:
        A, B = _sigmoids(problem, codes, bounds, k)
    return Trained(
        support=part.rows.astype(np.int32), vectors=_vectors(problem, part.rows),
        n_support=part.n_support.astype(np.int32), coef=part.coef, intercept=part.b, slopes=A, shifts=B,
        status=_status(solutions), iterations=_iterations(solutions),
    )  # fmt: skip


def _part(problem: LibsvmProblem, X: Rows, codes: NDArray[np.int64], bounds: Vector) -> tuple[PartSVM, list[Solution]]:
    return fit_part(
        X, codes, bounds, np.arange(len(codes)), problem.evaluated(), _limits(problem), cache_bytes(problem),
        nu=problem.nu if problem.svm_type == 1 else None,
    )  # fmt: skip


def _sigmoids(problem: LibsvmProblem, codes: NDArray[np.int64], bounds: Vector, k: int) -> tuple[Vector, Vector]:
    """A and B of each pair's sigmoid, from decisions on held-out rows, as in LIBSVM: five random folds per pair."""
    rng = np.random.RandomState(problem.random_seed)
    found = []
    for pair, (i, j) in enumerate(combinations(range(k), 2)):
        rows = np.flatnonzero((bounds > 0) & ((codes == i) | (codes == j)))
        first, held = codes[rows] == i, np.array_split(rng.permutation(len(rows)), _FOLDS)
        decisions = np.zeros(len(rows))
        for out in held:
            kept = np.setdiff1d(np.arange(len(rows)), out)
            decisions[out] = _left_out(problem, rows[kept], rows[out], first[kept], bounds)
        found.append(LeftOutDecisions(decisions, first, np.full(len(rows), pair)))
    return platt.fit(LeftOutDecisions.stacked(found), k * (k - 1) // 2, Communicator())


def _left_out(
    problem: LibsvmProblem, kept: NDArray[np.int64], out: NDArray[np.int64], first: NDArray[np.bool_], bounds: Vector
) -> Vector:
    """Decisions on the rows `out` of the model of the rows `kept`; 1, -1 or 0 if these are of one class or none."""
    if not first.any() or first.all():
        return np.full(len(out), 0.0 if not len(kept) else 1.0 if first.all() else -1.0)
    given = problem.kernel == "precomputed"
    X, rows = problem.X, problem.X[out]
    if given:
        X, rows = np.asarray(X)[np.ix_(kept, kept)], np.asarray(rows)[:, kept]
    part, solutions = _part(problem, X if given else X[kept], np.where(first, 0, 1), bounds[kept])
    _check_ends(problem, solutions)
    return part.pairs(rows, problem.evaluated())[:, 0]


def _values(problem: LibsvmProblem) -> Trained:
    """Regression and one class: one problem, one output."""
    weights = problem.weights()
    rows = np.flatnonzero(weights)
    if not len(rows):
        raise UnsuitedError("no row of positive weight")
    if problem.probability:
        raise UnsuitedError("probabilities of a regression")
    X = problem.X
    if len(rows) < X.shape[0]:
        X = np.asarray(X)[np.ix_(rows, rows)] if problem.kernel == "precomputed" else X[rows]
    solution = _solve(problem, X, problem.y[rows], weights[rows])
    _check_ends(problem, [solution])
    support = np.flatnonzero(solution.beta)
    count = np.full(2, len(support), np.int32)
    return Trained(
        support=rows[support].astype(np.int32), vectors=_vectors(problem, rows[support]), n_support=count,
        coef=solution.beta[support][None], intercept=np.array([solution.b]), slopes=np.zeros(0), shifts=np.zeros(0),
        status=_status([solution]), iterations=_iterations([solution]),
    )  # fmt: skip


def _solve(problem: LibsvmProblem, X: Rows, y: Vector, weights: Vector) -> Solution:
    """The solution for rows with these targets and positive weights."""
    kernel: Kernel | None = problem.evaluated()
    limits, cache = _limits(problem), cache_bytes(problem)
    match TYPES[problem.svm_type]:
        case "one_class":
            return solve_one_class(X, kernel, weights, problem.nu, limits, cache)
        case "epsilon_svr":
            check_targets(y, "y", LARGEST_TARGET, Communicator())
            return solve_part(X, kernel, Dual.regression(y, problem.C * weights, problem.epsilon), limits, cache)
        case _:
            check_targets(y, "y", LARGEST_TARGET, Communicator())
            return solve_regression(X, kernel, y, problem.C * weights, problem.nu, limits, cache)


def _vectors(problem: LibsvmProblem, rows: NDArray[np.integer]) -> Any:
    """Support vectors: rows of X, none with a precomputed kernel, sparse in the form that scikit-learn is set to."""
    if problem.kernel == "precomputed":
        return np.zeros((0, 0))
    found = problem.X[rows]
    if not sp.issparse(found):
        return np.ascontiguousarray(found)
    try:
        from sklearn.utils._sparse import _align_api_if_sparse
    except ImportError:  # before 1.9
        return sp.csr_matrix(found)
    return _align_api_if_sparse(found)


def _check_ends(problem: LibsvmProblem, solutions: list[Solution]) -> None:
    """Leave a problem to LIBSVM if its tolerance is out of reach here; a limit of iterations may end it early."""
    if problem.max_iter < 0 and not all(one.converged for one in solutions):
        raise UnsuitedError(f"the tolerance {problem.tol:g} was not reached")
    if not all(np.isfinite(one.b) and np.isfinite(one.beta).all() for one in solutions):
        raise UnsuitedError("coefficients that are not finite")


def _status(solutions: list[Solution]) -> int:
    return int(not all(one.converged for one in solutions))


def _iterations(solutions: list[Solution]) -> NDArray[np.int32]:
    return np.array([min(one.iterations, 2**31 - 1) for one in solutions], np.int32)
