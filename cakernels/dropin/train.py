"""LIBSVM's problems trained by the exact solver, and predictions of its models by kernel expansions.

Imported when the first problem is taken over.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit

from cacore.comm import Communicator
from cacore.data.rows import LARGEST_TARGET, Rows, check_range, check_squares, check_targets, first_nonfinite, is_sparse
from cacore.limits import Limits
from cacore.machine import memory
from cacore.probability import platt
from cacore.probability.calibrator import LEAST
from cacore.probability.left_out import LeftOutDecisions
from cacore.svm.decision import counted, expansion, votes
from cacore.svm.dual import Dual, Solution
from cakernels.dropin.calls import UnsuitedError
from cakernels.dropin.libsvm_problem import TYPES, LibsvmModel, LibsvmProblem, Trained, Vector
from casvm.model.part_svm import PartSVM
from casvm.solver.problems import solve_one_class, solve_regression
from casvm.solver.smo import PartTraining, fit_part

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
        trained = train(replace(problem, C=_ENDLESS))
        if len(trained.support) and not np.abs(trained.coef).max() < _ENDLESS / 2:
            raise UnsuitedError("C is infinite, and so is a coefficient")
        return trained
    original, problem = problem, _filled(problem)
    trained = _classifier(problem) if problem.classifies else _values(problem)
    return trained if original is problem else replace(trained, vectors=_vectors(original, trained.support))


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
    nu = problem.nu if problem.svm_type == 1 else None
    return fit_part(X, codes, bounds, np.arange(len(codes)), _training(problem), nu=nu)


def _training(problem: LibsvmProblem) -> PartTraining:
    limits = Limits(problem.tol, problem.max_iter, shrinking=bool(problem.shrinking))
    return PartTraining(problem.evaluated(), limits, cache_bytes(problem))


def _sigmoids(problem: LibsvmProblem, codes: NDArray[np.int64], bounds: Vector, k: int) -> tuple[Vector, Vector]:
    """A and B of each pair's sigmoid, from decisions on held-out rows, as in LIBSVM: five random folds per pair."""
    rng = np.random.RandomState(problem.random_seed)
    decisions_of_pairs = []
    for pair, (i, j) in enumerate(combinations(range(k), 2)):
        rows = np.flatnonzero((bounds > 0) & ((codes == i) | (codes == j)))
        first, held = codes[rows] == i, np.array_split(rng.permutation(len(rows)), _FOLDS)
        decisions = np.zeros(len(rows))
        for out in held:
            remaining = np.setdiff1d(np.arange(len(rows)), out)
            decisions[out] = _left_out(problem, rows[remaining], rows[out], first[remaining], bounds)
        decisions_of_pairs.append(LeftOutDecisions(decisions, first, np.full(len(rows), pair)))
    return platt.fit(LeftOutDecisions.stacked(decisions_of_pairs), k * (k - 1) // 2, Communicator())


def _left_out(
    problem: LibsvmProblem,
    remaining: NDArray[np.int64],
    out: NDArray[np.int64],
    first: NDArray[np.bool_],
    bounds: Vector,
) -> Vector:
    """Decisions on the rows `out` of the model of `remaining` rows; 1, -1 or 0 if these are of one class or none."""
    if not first.any() or first.all():
        return np.full(len(out), 0.0 if not len(remaining) else 1.0 if first.all() else -1.0)
    precomputed = problem.kernel == "precomputed"
    X, rows = problem.X, problem.X[out]
    if precomputed:
        X, rows = np.asarray(X)[np.ix_(remaining, remaining)], np.asarray(rows)[:, remaining]
    part, solutions = _part(problem, X if precomputed else X[remaining], np.where(first, 0, 1), bounds[remaining])
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
    training = _training(problem)
    match TYPES[problem.svm_type]:
        case "one_class":
            return solve_one_class(X, weights, problem.nu, training)
        case "epsilon_svr":
            check_targets(y, "y", LARGEST_TARGET, Communicator())
            return training.solve(X, Dual.regression(y, problem.C * weights, problem.epsilon))
        case _:
            check_targets(y, "y", LARGEST_TARGET, Communicator())
            return solve_regression(X, Dual.nu_regression(y, problem.C * weights, problem.nu), training)


def _vectors(problem: LibsvmProblem, rows: NDArray[np.integer]) -> Any:
    """Support vectors: rows of X, none with a precomputed kernel, sparse in the form that scikit-learn is set to."""
    if problem.kernel == "precomputed":
        return np.zeros((0, 0))
    vectors = problem.X[rows]
    if not sp.issparse(vectors):
        return np.ascontiguousarray(vectors)
    try:
        from sklearn.utils._sparse import _align_api_if_sparse
    except ImportError:  # before 1.9
        return sp.csr_matrix(vectors)
    return _align_api_if_sparse(vectors)


def _check_ends(problem: LibsvmProblem, solutions: list[Solution]) -> None:
    """Leave a problem to LIBSVM if its tolerance is out of reach here; a limit of iterations may end it early."""
    if problem.max_iter < 0 and not all(solution.converged for solution in solutions):
        raise UnsuitedError(f"the tolerance {problem.tol:g} was not reached")
    if not all(np.isfinite(solution.b) and np.isfinite(solution.beta).all() for solution in solutions):
        raise UnsuitedError("coefficients that are not finite")


def _status(solutions: list[Solution]) -> int:
    return int(not all(solution.converged for solution in solutions))


def _iterations(solutions: list[Solution]) -> NDArray[np.int32]:
    return np.array([min(solution.iterations, 2**31 - 1) for solution in solutions], np.int32)


_FLOOR = 1e-149  # values of kernels of a distance end here instead of at 0


def decisions(machine: LibsvmModel, X: Rows) -> Vector:
    """Decisions of all pairs of classes, or the outputs of a regression or one-class model, shape (n, pairs or 1).

    2 n nnz flops for support vectors of nnz nonzeros, on all threads; 2 n s with kernel values `X`.
    """
    kernel = machine.evaluated()
    if not len(machine.support):
        raise UnsuitedError("a model without support vectors")
    if kernel is not None:
        check_range(X)
    if machine.classifies:
        outputs = _part_of(machine).pairs(X, kernel)
    else:
        weights = np.ascontiguousarray(machine.coef.T)
        if kernel is None:
            outputs = np.asarray(X)[:, machine.support] @ weights
        else:
            outputs = expansion(kernel, machine.vectors, weights, X)
        outputs = outputs + machine.intercept
    # Far from all support vectors a decision may be exactly 0 in LIBSVM, and a tie between two classes.
    outputs[np.abs(outputs) < _FLOOR * np.abs(machine.coef).sum()] = 0.0
    return outputs


def _part_of(machine: LibsvmModel) -> PartSVM:
    k = len(machine.n_support)
    return PartSVM(
        np.arange(k), machine.vectors, machine.support.astype(np.int64), machine.coef, machine.intercept,
        machine.n_support.astype(np.int64),
    )  # fmt: skip


def answers(machine: LibsvmModel, X: Rows) -> Vector:
    """Classes, numbered from 0; 1 and -1 of a one-class model; values of a regression."""
    outputs = decisions(machine, X)
    if machine.classifies:
        return votes(counted(outputs, len(machine.n_support))).astype(np.float64)
    if TYPES[machine.svm_type] == "one_class":
        return np.where(outputs[:, 0] > 0, 1.0, -1.0)
    return outputs[:, 0]


def probabilities(machine: LibsvmModel, X: Rows) -> Vector:
    """Probabilities of the classes, shape (n, k)."""
    if not len(machine.slopes) or not machine.classifies:
        raise UnsuitedError("a model without probabilities")
    pairs = expit(-(decisions(machine, X) * machine.slopes + machine.shifts))
    return coupled_as_there(pairs, len(machine.n_support))


def coupled_as_there(pairs: Vector, k: int) -> Vector:
    """Probabilities of k classes from those of their pairs, by LIBSVM's iteration, step by step.

    It ends early, up to about 0.005 / k from the probabilities of :func:`cacore.probability.calibrator.coupled`. The
    same steps are taken here, so that large batches get the answers of small ones, which scikit-learn computes.

    Parameters
    ----------
    pairs : ndarray, shape (n, k (k - 1) / 2)
        Probability of the first class of each pair.
    k : int
    """
    n = len(pairs)
    Q = np.zeros((n, k, k))
    r = np.clip(pairs, LEAST, 1.0 - LEAST)
    for pair, (i, j) in enumerate(combinations(range(k), 2)):
        p_first, p_second = r[:, pair], 1.0 - r[:, pair]
        Q[:, i, j] = Q[:, j, i] = -p_first * p_second
        Q[:, i, i] += p_second * p_second
        Q[:, j, j] += p_first * p_first
    p, moving = np.full((n, k), 1.0 / k), np.arange(n)
    for _ in range(max(100, k)):
        moving = moving[_step(Q, p, moving, k)]
        if not len(moving):
            break
    return p


def _step(Q: Vector, p: Vector, rows: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
    """Take one step for the rows `rows` of p that are not at rest; return a mask of those among them."""
    Qp = np.einsum("nij,nj->ni", Q[rows], p[rows])
    pQp = np.einsum("ni,ni->n", p[rows], Qp)
    moving: NDArray[np.bool_] = np.abs(Qp - pQp[:, None]).max(axis=1) >= 0.005 / k
    q, p_moving, Qp, pQp = Q[rows[moving]], p[rows[moving]], Qp[moving], pQp[moving]
    for t in range(k):
        change = (pQp - Qp[:, t]) / q[:, t, t]
        p_moving[:, t] += change
        pQp = (pQp + change * (change * q[:, t, t] + 2 * Qp[:, t])) / (1 + change) ** 2
        Qp = (Qp + change[:, None] * q[:, t]) / (1 + change)[:, None]
        p_moving /= (1 + change)[:, None]
    p[rows[moving]] = p_moving
    return moving
