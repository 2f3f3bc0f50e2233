"""Dis-SMO on rows of many ranks: the exact solution, whoever has which rows, and what is sent for it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from helpers.checks import equal_fields, near
from helpers.data import FORMS, dense, drawn_clouds, kinds
from helpers.dissmo_on_ranks import GAMMA, KERNEL, LIMITS, PLENTY, T_ROWS, C, N, serial, signs, train
from helpers.distributed import RANK, WORLD, R, by_one, even
from helpers.references import matrix
from mpi4py import MPI
from sklearn.svm import SVC

from cacore.comm import Communicator
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.dual import Dual
from casvm import SMOSVC, DisSMOSVC
from casvm.methods import all_rows
from casvm.model.part_svm import join
from casvm.solver import distributed, smo
from casvm.solver.active_set import ActiveSet, Shrinking
from casvm.solver.distributed import Pool
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.near_smo import NearColumns

pytestmark = pytest.mark.mpi(min_size=1)


def solve(X, y, my, working_set=None, limits=LIMITS, kernel=KERNEL, bound=C, comm=None, budget=PLENTY):
    """The solver's answer on this rank, and all ranks' alpha together."""
    dual = Dual.classification(y[my], np.full(len(y), bound)[my])
    share = all_rows.solve(
        X[my], dual, smo.PartTraining(kernel, limits, budget), comm or Communicator(WORLD), working_set
    )
    return share, np.concatenate(WORLD.allgather(share.alpha))


# -- the same solution on any number of ranks ----------------------------------------------------------


@pytest.mark.parametrize("working_set", [2, None])
def test_small_problems(working_set):
    """Few rows, which ranks have in any shares, sorted or not: a rank's rows may violate with others' alone.

    A rank whose rows are all at a bound, or all but one, has no pair that violates; all ranks together may.
    """
    for seed in range(6 * R, 6 * R + 6):
        rng = np.random.default_rng(seed)
        n, d = int(rng.integers(4, 20)), int(rng.integers(1, 5))
        y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
        y[:2] = 1, -1
        X = rng.normal(size=(n, d)) + rng.uniform(0, 1.5) * y[:, None]
        bound, kernel = 10 ** rng.uniform(-2, 1), Kernel("gaussian", gamma=10 ** rng.uniform(-1.5, 0.5))
        cuts = np.sort(np.r_[0, rng.integers(0, n + 1, R - 1), n])
        if rng.random() < 0.3:
            order = np.argsort(y)
            X, y = X[order], y[order]
        share, alpha = solve(X, y, slice(cuts[RANK], cuts[RANK + 1]), working_set, Limits(1e-5), kernel, bound)
        told = WORLD.allgather((share.b, share.objective, share.gap, share.iterations, share.rounds, share.converged))
        expected = serial(X, y, kernel, bound)
        assert share.converged, (seed, cuts)
        assert share.objective == pytest.approx(expected.objective, rel=1e-6), seed
        assert told == [told[0]] * R
        assert ((alpha >= 0) & (alpha <= bound)).all()
        assert abs(alpha @ y) <= 1e-9 * max(1.0, alpha.sum())


@pytest.mark.parametrize(("kind", "working_set"), [*zip(FORMS, (2, None, None, 25), strict=True)])
def test_as_one_process(kind, working_set, mine, everywhere):
    """The pieces together are the model that one process finds, also where a rank has no rows."""
    (csr, dtype), my = FORMS[kind], mine(N)
    k = 3 if csr else 2
    (X, y), (T, _) = drawn_clouds(csr=csr, dtype=dtype, k=k), drawn_clouds(T_ROWS, 1, k, csr, dtype)
    result = train(X, y, my, Communicator(WORLD), working_set=working_set)
    model = result.model
    (piece,) = model.parts.values()
    labels, decisions = everywhere(model.predict(T[mine(T_ROWS)])), everywhere(model.decision_function(T[mine(T_ROWS)]))
    whole, b = join(WORLD.allgather(piece)), model.intercepts()
    alone = by_one(train, X, y)
    (expected,) = alone.model.parts.values()
    assert result.solver["objective"][0] == pytest.approx(alone.solver["objective"][0], rel=1e-6)
    assert result.solver["gap"][0] < 1e-3
    assert result.sizes.tolist() == WORLD.allgather(my.stop - my.start)
    assert list(model.parts) == [RANK]
    assert model.sizes.tolist() == WORLD.allgather(len(piece.rows))
    assert result.solver["n_support"].tolist() == [len(whole.rows)]
    assert ((piece.rows >= my.start) & (piece.rows < my.stop)).all()  # support vectors stay where they are
    np.testing.assert_array_equal(dense(piece.X), dense(X[piece.rows]))
    assert abs(len(whole.rows) - len(expected.rows)) <= 3
    for i, j in combinations(range(k), 2):
        of_i, of_j = (whole.classes.repeat(whole.n_support) == c for c in (i, j))
        first, second = whole.coef[j - 1, of_i].sum(), whole.coef[i, of_j].sum()
        assert abs(first + second) <= 1e-10 * first  # sum alpha y = 0
    near(b, expected.b, 2e-3)
    np.testing.assert_array_equal(whole.b, b)
    # What SMOSVC says, wherever that is clear.
    exact = by_one(SMOSVC(gamma=GAMMA, C=C).fit, X, y)
    reference = exact.decision_function(T)
    near(decisions, reference, 5e-3)
    clear = np.abs(reference if k == 2 else np.diff(np.sort(reference, axis=1)[:, 1:], axis=1)[:, 0]) > 1e-2
    np.testing.assert_array_equal(labels[clear], exact.predict(T)[clear])


@pytest.mark.parametrize("working_set", [2, None])
def test_rows_sorted_by_label(working_set):
    """Ranks of one class only, which have nothing to say for one of the sides."""
    X, y = drawn_clouds()
    order = np.argsort(y, kind="stable")
    X, y = X[order], signs(y[order])
    share, alpha = solve(X, y, even(N), working_set)
    expected = serial(X, y)
    assert share.converged
    assert share.objective == pytest.approx(expected.objective, rel=1e-6)
    near(alpha, expected.alpha, 2e-2)
    assert share.b == pytest.approx(expected.b, abs=1e-3)


@pytest.mark.parametrize(
    ("kind", "csr"),
    [
        ("linear", True),
        ("polynomial", True),
        ("matern32", True),
        ("l1", True),
        ("l1", False),
        ("wendland2_product", False),
    ],
)
def test_other_kernels(kind, csr):
    X, y = drawn_clouds(csr=csr)
    kernel = Kernel(kind, gamma=0.2, degree=2, coef0=1.0)
    share, _ = solve(X, signs(y), even(N), kernel=kernel, bound=0.3)
    assert share.converged
    assert share.objective == pytest.approx(serial(X, signs(y), kernel, 0.3).objective, rel=1e-6)


@pytest.mark.parametrize("kind", ["laplacian", "matern52", "l1", "rational"])
def test_classifier_of_other_kernels(kind, everywhere):
    """Against scikit-learn's with the kernel precomputed, and with a callable the same."""
    (X, y), (T, _), kernel = drawn_clouds(), drawn_clouds(41, 1), Kernel(kind, gamma=0.3, degree=2)
    exact = SVC(kernel="precomputed", tol=1e-6).fit(matrix(kernel, X), y)
    for given in (kind, lambda A, B: matrix(kernel, A, B)):
        model = DisSMOSVC(kernel=given, gamma=0.3, degree=2, tol=1e-6, comm=WORLD).fit(X[even(N)], y[even(N)])
        near(everywhere(model.decision_function(T[even(41)])), exact.decision_function(matrix(kernel, T, X)), 1e-4)


@pytest.mark.parametrize("working_set", [2, 16])
@pytest.mark.parametrize("kind", ["one-class", "two-sided"])
def test_other_duals(kind, working_set):
    """With a start, a linear term and bounds on both sides: what one process finds."""
    rng, (X, _) = np.random.default_rng(3), drawn_clouds()
    upper = np.ones(N)
    if kind == "one-class":
        linear, lower, start = np.zeros(N), np.zeros(N), np.clip(0.3 * N - np.arange(N), 0, 1)
    else:
        linear, lower, start = rng.normal(size=N), -rng.uniform(0.5, 1.0, N), rng.uniform(-0.5, 0.5, N)
        lower[: N // 2] = 0
        start = np.maximum(start, lower)
    whole = Dual(linear, lower, upper, start, start.sum())
    expected = by_one(lambda: smo.solve(KernelRows(X, KERNEL, "float64", PLENTY), whole, Limits(1e-6)))
    some = Dual(*(values[even(N)] for values in (linear, lower, upper, start)), start.sum())
    training = smo.PartTraining(KERNEL, Limits(1e-6), PLENTY)
    share = all_rows.solve(X[even(N)], some, training, Communicator(WORLD), working_set)
    beta = np.concatenate(WORLD.allgather(share.beta))
    decision = np.concatenate(WORLD.allgather(share.decision))
    assert share.converged
    assert share.objective == pytest.approx(expected.objective, rel=1e-7)
    assert ((beta >= lower) & (beta <= upper)).all()
    assert beta.sum() == pytest.approx(start.sum(), rel=1e-12)
    near(decision, expected.decision, 1e-4)


@pytest.mark.parametrize("shrinking", [True, False])
@pytest.mark.parametrize("csr", [False, True])
def test_shrunk_rows_are_reactivated(shrinking, csr, tuned, recorded):
    """And visit in several goes, of ranks of which some may have none left."""
    eagerly = Shrinking(patience=1, share=0.05, share_if_copied=0.05)
    tuned(look=1, dissmo_shrinking=eagerly, visitors=10 * R, touch=0.0)
    left = recorded(ActiveSet, "shrink", lambda _, active, *args: len(active.shrunk))
    X, y = drawn_clouds(csr=csr)
    share, _ = solve(X, signs(y), even(N), 16, Limits(1e-3, shrinking=shrinking))
    assert (max(left, default=0) > 0) == shrinking
    assert share.converged
    assert share.objective == pytest.approx(serial(X, signs(y)).objective, rel=1e-6)


def test_near_rows(tuned, recorded):
    """Where most kernel values vanish; of ranks of which one may have few rows, and with rows that leave."""
    tuned(near_columns=2.0, near_columns_fine=2.0, look=1)
    X, y = kinds(601)
    kernel = Kernel("gaussian", gamma=32.0)
    made = recorded(NearColumns, "__init__", lambda _, columns, X, *args: len(X))
    cuts = np.r_[0, np.arange(1, R) * 7, 601] if R > 1 else [0, 601]
    share, alpha = solve(X, y, slice(cuts[RANK], cuts[RANK + 1]), 100, Limits(1e-5), kernel)
    assert made == [cuts[RANK + 1] - cuts[RANK]]
    assert share.converged
    expected = serial(X, y, kernel)
    assert share.objective == pytest.approx(expected.objective, rel=1e-6)
    near(alpha, expected.alpha, 2e-2)


@pytest.mark.parametrize("csr", [False, True])
def test_small_pool(csr, tuned, recorded):
    """Rows travel again when they were given up."""
    gathered = recorded(distributed, "gather_rows", lambda rows, *args: rows.shape[0])
    X, y = drawn_clouds(csr=csr)
    enough = solve(X, signs(y), even(N), 8)[0], sum(gathered)
    gathered.clear()
    tuned(pool_capacity=lambda self, *_: self.q)
    few = solve(X, signs(y), even(N), 8)[0], sum(gathered)
    expected = serial(X, signs(y)).objective
    for share, _ in (enough, few):
        assert share.converged
        assert share.objective == pytest.approx(expected, rel=1e-6)
    assert few[1] > enough[1]


@pytest.mark.mpi(min_size=2)
def test_processors_that_differ(tuned):
    """Then one rank solves the working set's problem for all: the same bits here, for some more messages."""
    X, y = drawn_clouds()
    alike = Communicator(WORLD)
    expected, first = solve(X, signs(y), even(N), 8, comm=alike)
    tuned(processor=lambda: f"processor {RANK}")
    different = Communicator(WORLD)
    share, second = solve(X, signs(y), even(N), 8, comm=different)
    np.testing.assert_array_equal(second, first)
    assert (share.b, share.objective, share.iterations) == (expected.b, expected.objective, expected.iterations)
    more = different.sent("other")[1].sum() - alike.sent("other")[1].sum()
    assert more == (2 * (R - 1) * share.rounds if RANK == 0 else 0)


def test_the_same_bits_again():
    X, y = drawn_clouds(csr=True)
    runs = [solve(X, signs(y), even(N), 16) for _ in range(2)]
    np.testing.assert_array_equal(runs[0][1], runs[1][1])
    names = "b", "objective", "gap", "iterations", "rounds", "kernel_rows", "kernel_values"
    equal_fields(runs[0][0], runs[1][0], *names)


# -- what is sent, and held ------------------------------------------------------------------------------


@pytest.mark.mpi(min_size=2)
def test_block_sends_fewer_messages():
    """Than the textbook's pair a round, with the same objective; both less than the formula of Table 2.6."""
    X, y = drawn_clouds(331)
    found = {}
    for working_set in (2, None):
        comm = Communicator(WORLD)
        result = train(X, y, even(331), comm, working_set=working_set)
        found[working_set] = result.solver["objective"][0], comm.totals()[0]["train"]
        words = 26 * result.solver["iterations"][0] * R + 2 * R * 331 + 4 * 331 * 4
        assert 0 < found[working_set][1]["bytes"] < 4 * words
    (textbook, pairs), (block, rounds) = found.values()
    assert block == pytest.approx(textbook, rel=1e-6)
    assert 5 * rounds["messages"] < pairs["messages"]


def test_one_rank_sends_nothing():
    X, y = drawn_clouds()
    comm = Communicator(MPI.COMM_SELF)
    train(X, y, comm=comm, working_set=8)
    assert comm.totals()[0]["train"] == {"bytes": 0, "messages": 0}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("working_set", [2, None])
def test_no_rank_holds_all_rows(working_set, tuned, recorded):
    """Its own rows and its pool together have room for fewer than all, and those that visit come a few at a time."""
    pools = recorded(Pool, "__init__", lambda _, pool, like, room: (like.shape[0], room))
    gathered = recorded(distributed, "gather_rows", lambda rows, *args: rows.shape[0])
    tuned(sample=50, visitors=50)
    X, y = drawn_clouds(331)
    result = train(X, y, even(331), Communicator(WORLD), working_set=working_set)
    assert result.solver["gap"][0] < 1e-3
    ((own, room),) = pools
    assert own == even(331).stop - even(331).start
    assert own + room < 331
    assert max(gathered) < 331 // 4


# -- when to stop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 60])
def test_most_pairs(most):
    X, y = drawn_clouds()
    share, alpha = solve(X, signs(y), even(N), 8, Limits(1e-6, max_iter=most))
    assert (share.iterations, share.converged) == (most, False)
    assert share.gap > 1e-6
    assert abs(alpha @ signs(y)) <= 1e-9 * max(1.0, alpha.sum())


def test_time_of_one_rank_is_up():
    """All of them stop."""
    X, y = drawn_clouds()
    share, _ = solve(X, signs(y), even(N), 2, Limits(1e-6, max_time=1e-9 if RANK == R - 1 else 1e9))
    assert not share.converged
    assert len(set(WORLD.allgather(share.iterations))) == 1
