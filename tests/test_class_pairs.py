"""Small problems of many classes: their dual, the rows of K they share, and what their answer may not depend on."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import near
from helpers.data import dense, drawn_clouds, forms
from helpers.references import dual, libsvm, matrix
from sklearn.svm import NuSVC

from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.dual import Dual
from casvm import SMOSVC, SMONuSVC
from casvm.solver.class_pairs import MOST_WHOLE, ClassRows, WholeRows, solve_classes
from casvm.solver.smo import PartTraining, fit_part

K = 4
GAUSSIAN, PLENTY = Kernel("gaussian", 0.4), 1 << 26


def trained(X, y, C=5.0, kernel=GAUSSIAN, limits=None, cache=PLENTY, watch=None, **more):
    C = np.broadcast_to(np.asarray(C, float), y.shape).copy()
    training = PartTraining(kernel, limits or Limits(1e-7), cache, watch=watch)
    return fit_part(X, y, C, np.arange(len(y)), training, **more)


def shared(X, y, kernel=GAUSSIAN, cache=PLENTY, limits=None):
    """The rows of these classes, and the row numbers of each class."""
    members = [np.flatnonzero(y == code) for code in np.unique(y)]
    return ClassRows.of(X, members, kernel, 5.0, limits or Limits(1e-7), cache, 1), members


@forms
@pytest.mark.parametrize(
    "kernel",
    [GAUSSIAN, Kernel("polynomial", 0.3, 2, 1.0), Kernel("l1", 0.3), Kernel("wendland2_product", 0.2)],
    ids=lambda k: k.kind,
)
def test_objectives(kernel, csr, dtype):
    """Every pair's dual is LIBSVM's to 1e-6; weights count, and a row of weight 0 is left out."""
    X, y = drawn_clouds(331, k=K, csr=csr, dtype=dtype)
    C = np.where(np.arange(331) % 9, 5.0 + np.arange(331) % 3, 0.0)
    part, solutions = trained(X, y, C, kernel)
    decisions = part.pairs(X, kernel)
    for pair, (i, j) in enumerate(combinations(range(K), 2)):
        some = (C > 0) & ((y == i) | (y == j))
        G, sign = matrix(kernel, X[some]), np.where(y[some] == i, 1.0, -1.0)
        named = Kernel("linear") if kernel.kind in ("l1", "wendland2_product") else kernel
        rows = dense(X[some]).astype(np.float64) if named is kernel else np.linalg.cholesky(G + 1e-12 * np.eye(len(G)))
        beta, expected, _ = libsvm(named, rows, sign, 1.0, 1e-7, weights=C[some])
        assert solutions[pair].objective == pytest.approx(dual(G, beta), rel=1e-6)
        assert solutions[pair].converged
        near(decisions[some, pair], expected, 2e-4)
        near(solutions[pair].decision[np.argsort(np.argsort(y[some] != i, kind="stable"))], expected, 2e-4)


def test_other_solver(tuned):
    """In rounds, where a cache is too small or problems are too large, the answer is the same to the tolerance."""
    X, y = drawn_clouds(331, k=K)
    tuned(working_set=64)  # fewer rows have their whole kernel matrix at once
    part, solutions = trained(X, y)
    _, small = trained(X, y, cache=1 << 12)
    tuned(pairs_together=lambda *given: None)
    other, rounds = trained(X, y)
    assert all(one.rounds == 0 for one in solutions)
    assert all(one.rounds > 0 for one in [*rounds, *small])
    near([one.objective for one in solutions], [one.objective for one in rounds], 1e-6 * rounds[0].objective)
    near(part.pairs(X, GAUSSIAN), other.pairs(X, GAUSSIAN), 1e-4)


@pytest.mark.parametrize("C", [1.0, 1e4])
def test_threads_and_repetitions(tuned, C):
    """Problems side by side, one after the other and in reused memory give the same bits and counts."""
    X, y = drawn_clouds(400, k=K)
    seen = []
    for count in (1, 2, 2):
        tuned(threads=count)
        part, solutions = trained(X, y, C, limits=Limits(1e-3))
        seen.append((part.coef, part.b, [(one.iterations, one.kernel_rows, one.gap) for one in solutions]))
    for other in seen[1:]:
        np.testing.assert_array_equal(other[0], seen[0][0])
        np.testing.assert_array_equal(other[1], seen[0][1])
        assert other[2] == seen[0][2]


def test_memory_of_earlier_problems():
    """Whatever is left in the memory of a problem, its solution has the same bits."""
    X, y = drawn_clouds(300, k=3)
    rows, members = shared(X, y)
    sign = np.repeat([1.0, -1.0], [len(members[0]), len(members[1])])
    found = []
    for rest in (0.0, np.nan, np.inf, -1e30):
        with rows.pair(0, 1) as pair:
            pair.K.base[:] = rest
        with rows.pair(0, 1) as pair:
            found.append(solve_classes(pair, Dual.classification(sign, np.full(len(sign), 5.0)), Limits(1e-3)))
    for one in found[1:]:
        np.testing.assert_array_equal(one.beta, found[0].beta)
        assert one.iterations == found[0].iterations


def test_csr_rows_are_dense_rows():
    X, y = drawn_clouds(331, k=K, csr=True)
    (part, solutions), (other, dense_solutions) = trained(X, y), trained(X.toarray(), y)
    near(
        [one.objective for one in solutions], [one.objective for one in dense_solutions], 1e-6 * solutions[0].objective
    )
    near(part.pairs(X, GAUSSIAN), other.pairs(X.toarray(), GAUSSIAN), 1e-4)


def test_only_needed_rows():
    """Each row of K is computed at most once, those that never move are not, and a solved start takes no pair."""
    X, y = drawn_clouds(600, k=3)
    part, solutions = trained(X, y, 1.0, limits=Limits(1e-3))
    for one in solutions:
        assert np.count_nonzero(one.beta) <= one.kernel_rows < len(one.beta)
        assert one.kernel_values == one.kernel_rows * len(one.beta)
    start = np.zeros((2, 600))
    start[:, part.rows] = part.coef
    again, twice = trained(X, y, 1.0, limits=Limits(1e-3), start=start)
    assert [one.iterations for one in twice] == [0, 0, 0]
    assert [one.kernel_rows for one in twice] == [np.count_nonzero(one.beta) for one in solutions]
    np.testing.assert_array_equal(again.coef, part.coef)


def test_rows_of_k_are_kept():
    """A second problem of the same pair uses the rows of the first one."""
    X, y = drawn_clouds(300, k=3)
    rows, members = shared(X, y)
    sign = np.repeat([1.0, -1.0], [len(members[0]), len(members[2])])
    G = matrix(GAUSSIAN, X[np.concatenate([members[0], members[2]])])
    with rows.pair(0, 2) as pair:
        solve_classes(pair, Dual.classification(sign, np.full(len(sign), 5.0)), Limits(1e-7))
        before = pair.count
        held = np.arange(len(sign)) % 5 == 0
        found = solve_classes(pair, Dual.classification(sign, np.where(held, 0.0, 5.0)), Limits(1e-7))
        assert found.kernel_rows == pair.count - before < before
        near(found.decision, G @ found.beta + found.b, 1e-5)
        near(pair.K[pair.where[pair.where >= 0], : pair.n], G[pair.where >= 0], 1e-6)


def test_limits(tuned):
    """The limits of pairs and of time hold for each problem; progress is reported between two looks at the clock."""
    X, y = drawn_clouds(331, k=K)
    _, solutions = trained(X, y, limits=Limits(1e-7, max_iter=20))
    assert [(one.iterations, one.converged) for one in solutions] == [(20, False)] * 6
    tuned(pairs_pass=0)  # one pair, then a look
    _, late = trained(X, y, limits=Limits(1e-7, max_time=1e-9))
    assert [(one.iterations, one.converged) for one in late] == [(0, False)] * 6
    seen = []
    trained(X, y, limits=Limits(1e-7, max_iter=5), watch=seen.append)
    told = sorted(seen, key=lambda one: one.iterations)  # the problems' threads take turns as they like
    assert [one.iterations for one in told] == np.repeat([1, 2, 3, 4, 5], 6).tolist()
    objectives = np.reshape([one.objective for one in told], (5, 6)).sum(axis=1)
    assert (np.diff(objectives) > 0).all()


def test_overflow():
    X, y = drawn_clouds(90, k=3)
    with pytest.raises(InputError, match="overflow"):
        trained(1e30 * X, y, 1.0, Kernel("polynomial", 1.0, 9))


def test_nu():
    """nu-SVC starts with many rows at their bounds."""
    X, y = drawn_clouds(331, k=K)
    model = SMONuSVC(nu=0.3, gamma=0.4, tol=1e-6, decision_function_shape="ovo").fit(X, y)
    reference = NuSVC(nu=0.3, gamma=0.4, tol=1e-6, decision_function_shape="ovo").fit(X, y)
    near(model.decision_function(X), reference.decision_function(X), 1e-3)


def test_probabilities_of_any_threads(tuned):
    """The folds' decisions, and so probabilities, do not depend on the threads, or on the form of the rows."""
    X, y = drawn_clouds(400, k=K)
    found = []
    for count, rows in ((1, X), (2, X), (2, sp.csr_matrix(X))):
        tuned(threads=count)
        found.append(SMOSVC(probability=True).fit(rows, y).predict_proba(rows))
    np.testing.assert_array_equal(found[0], found[1])
    near(found[2], found[0], 1e-2)


@forms
@pytest.mark.parametrize(
    "kernel", [GAUSSIAN, Kernel("linear"), Kernel("polynomial", 0.3, 2, 1.0)], ids=lambda k: k.kind
)
@pytest.mark.parametrize("more", [0, 96], ids=["", "wide"])
def test_whole_rows(kernel, more, csr, dtype):
    """A small problem has its whole kernel matrix: LIBSVM's objective and decisions, also with many features."""
    X, y = drawn_clouds(120, csr=csr, dtype=dtype)
    added = 0.3 * np.random.default_rng(0).normal(size=(120, more)).astype(dtype)
    X = sp.hstack([X, added]).tocsr() if csr else np.c_[X, added]
    sign = np.where(y == 0, 1.0, -1.0)
    solution = WholeRows.of(X, kernel, 5.0, 1e-7, PLENTY).solve(
        Dual.classification(sign, np.full(120, 5.0)), Limits(1e-7)
    )
    beta, expected, _ = libsvm(kernel, dense(X).astype(np.float64), sign, 5.0, 1e-7)
    assert solution.objective == pytest.approx(dual(matrix(kernel, X), beta), rel=1e-6)
    assert solution.converged
    assert solution.rounds == 0
    near(solution.decision, expected, 2e-4)


def test_no_whole_rows():
    """Products of rows far from 0, which lose the digits, and many rows are left to the solver in rounds."""
    X, _ = drawn_clouds(120)
    assert WholeRows.of(X + 1e7, Kernel("linear"), 5.0, 1e-7, PLENTY) is None
    assert WholeRows.of(np.zeros((MOST_WHOLE + 1, 2)), GAUSSIAN, 5.0, 1e-7, PLENTY) is None


def test_one_problem(tuned):
    """A single problem of moderate size is solved like two classes: the same objective as in rounds."""
    X, y = drawn_clouds(2100)
    C = np.ones(2100)
    _, (pairs,) = trained(X, y, C, limits=Limits(1e-3))
    tuned(pairs_together=lambda *given: None)
    _, (rounds,) = trained(X, y, C, limits=Limits(1e-3))
    assert pairs.rounds == 0 < rounds.rounds
    assert pairs.objective == pytest.approx(rounds.objective, rel=1e-6)
    near(pairs.decision, rounds.decision, 5e-3)
