"""Pieces of the exact system by conjugate gradients: products, preconditioners, kept values, and the plan."""

from __future__ import annotations

import os

import numpy as np
import pytest
from helpers.data import smooth
from helpers.dkrr import fitted
from helpers.references import matrix

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.linalg import cg
from cacore.linalg.pivoted import pivoted_cholesky
from cacore.linalg.thin import multiply_both
from cacore.machine.memory import Scratch
from cakrr.iterative import cost, solver
from cakrr.iterative.preconditioner import Factor, Preconditioner, SpreadRows, residual_blocks
from cakrr.iterative.products import Keep, KernelProducts

KERNEL = Kernel.gaussian(1.5)


def spread(n=300, weights=None, kernel=KERNEL, d=3):
    X = np.random.default_rng(n).normal(size=(n, d))
    return SpreadRows(X, np.arange(n), kernel, Communicator(), weights)


# -- the pieces --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "c", "t"), [(1, 1, 1), (6, 37, 2), (64, 90, 5), (7, 16, 9), (7, 16, 30)])
def test_products_with_both_sides(m, c, t, dtype):
    rng = np.random.default_rng(0)
    T, V, U = (rng.normal(size=shape).astype(dtype) for shape in ((m, c), (t, c), (t, m)))
    right, left = np.ones((t, m)), np.ones((t, c))
    multiply_both(T, V, U, right, left)
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(right, 1 + V.astype(float) @ T.T, atol=tolerance * 10)
    np.testing.assert_allclose(left, 1 + U.astype(float) @ T, atol=tolerance * 10)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("uniform", [False, True], ids=["pivoted", "uniform"])
def test_the_factor_is_that_of_its_pivots(uniform, weighted):
    """F F^T is the Nystroem approximation of its pivots, and the trace is what it leaves."""
    weights = np.random.default_rng(3).uniform(0.5, 2, 300) if weighted else None
    rows = spread(weights=weights)
    found = pivoted_cholesky(rows, KERNEL, 40, 5, lambda traces: False, np.float64, uniform)
    s = np.ones(300) if weights is None else rows.scale
    K, p = matrix(KERNEL, rows.X) * s[:, None] * s, found.pivots
    assert (found.rank, len(set(p.tolist()))) == (40, 40)
    np.testing.assert_array_equal(found.centers, rows.X[p])
    FF = found.rows.T @ found.rows
    np.testing.assert_allclose(FF, K[:, p] @ np.linalg.solve(K[np.ix_(p, p)], K[p]), atol=1e-9)
    np.testing.assert_allclose(found.traces[-1], [40, np.trace(K - FF)], rtol=1e-7)


def test_pivots_leave_less_than_random_rows():
    rng = np.random.default_rng(0)
    X = np.concatenate([0.01 * rng.normal(size=(280, 3)), 3 * rng.normal(size=(20, 3))])
    rows = SpreadRows(X, np.arange(300), KERNEL, Communicator())
    left = [pivoted_cholesky(rows, KERNEL, 20, 1, lambda _: False, uniform=u).traces[-1, 1] for u in (False, True)]
    assert left[0] < 0.5 * left[1]


def test_single_precision_leaves_a_factor_that_can_be_used():
    """Down to where what is left is rounding: K - F F^T has no eigenvalue far below 0."""
    rows, wide = spread(), Kernel.gaussian(6.0)
    found = pivoted_cholesky(rows, wide, 300, 5, lambda traces: False)
    F = found.rows.astype(np.float64)
    least = np.linalg.eigvalsh(matrix(wide, rows.X) - F.T @ F)[0]
    assert least > -1e-3
    assert found.rank < 300


@pytest.mark.parametrize("kind", ["none", "factor", "blocks", "both"])
def test_preconditioners_are_what_they_say(kind):
    """Against the inverse of F F^T + B, made by numpy."""
    rows, mu = spread(), np.array([0.5, 0.5, 2.0])
    K = matrix(KERNEL, rows.X)
    factor, blocks, M = None, None, np.zeros((300, 300))
    if kind in ("factor", "both"):
        factor = Factor(pivoted_cholesky(rows, KERNEL, 30, 5, lambda _: False, np.float64).rows)
        M += factor.rows.T @ factor.rows
    if kind in ("blocks", "both"):
        parts = [np.arange(0, 300, 3), np.arange(1, 300, 3), np.arange(2, 300, 3)]
        blocks = residual_blocks(rows, KERNEL, factor, parts)
        for part in parts:
            M[np.ix_(part, part)] += (K - M)[np.ix_(part, part)]
    made, R = Preconditioner(factor, blocks, mu, Communicator()), np.random.default_rng(1).normal(size=(2, 300))
    which = np.array([0, 2])
    got, sums = made.apply(R, which, np.array([4.0]), Communicator())
    want = [np.linalg.solve(M + mu[j] * np.eye(300), r) for j, r in zip(which, R, strict=True)]
    np.testing.assert_allclose(got, want, atol=1e-9)
    assert sums.tolist() == [4.0]


def test_a_factor_that_is_not_finite_is_refused():
    rows = np.ones((3, 40), np.float32)
    rows[1, 7] = np.nan
    with pytest.raises(InputError, match="core is not finite"):
        Preconditioner(Factor(rows), None, np.array([1e-3]), Communicator())


@pytest.mark.parametrize(("lam", "name"), [(1e-7, "float32"), (1e-9, "float64")])
def test_a_small_ridge_has_a_factor_in_double_precision(lam, name):
    rows = spread()
    assert rows.factor_dtype(KERNEL, lam * rows.n) == name


def test_a_file_is_given_back(tmp_path):
    """The space behind the given length is freed on disk, and reused for the next values."""
    scratch = Scratch(tmp_path)
    first = scratch.write(np.ones(100))
    for _ in range(2):
        scratch.write(np.zeros(10_000))
        scratch.free(800)
        assert os.fstat(scratch._file).st_size == scratch.end == 800
    out = np.empty(100)
    scratch.fetch(first, out)
    assert (out == 1).all()


def test_conjugate_gradients_end_after_as_many_steps_as_there_are_eigenvalues():
    """Each right side has a matrix of its own; three eigenvalues are three steps."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    matrices = [(Q * np.repeat([1.0, 2.0, scale], 10)) @ Q.T for scale in (3.0, 100.0)]
    B = rng.normal(size=(2, 30))

    class Dense:
        def product(self, V, which):
            return np.stack([matrices[j] @ v for j, v in zip(which, V, strict=True)])

        def precondition(self, R, which, sums):
            return R.copy(), sums

        def add_up(self, sums):
            return sums

    state = cg.State.first(B)
    cg.iterate(Dense(), state, lambda state, size, late: state.residual[state.which] < 1e-9)
    assert state.iterations.tolist() == [3, 3]
    np.testing.assert_allclose(state.x, [np.linalg.solve(A, b) for A, b in zip(matrices, B, strict=True)], rtol=1e-8)


def test_a_matrix_that_is_not_definite_ends():
    class Negative:
        def product(self, V, which):
            return -V

        def precondition(self, R, which, sums):
            return R.copy(), sums

        def add_up(self, sums):
            return sums

    state = cg.State.first(np.ones((1, 5)))
    cg.iterate(Negative(), state, lambda state, size, late: np.zeros(len(state.which), np.bool_))
    assert (len(state.which), state.iterations.tolist(), np.abs(state.x).max()) == (0, [0], 0.0)


@pytest.mark.parametrize("limit", [0, 60_000, 1 << 30], ids=["none", "some", "all"])
@pytest.mark.parametrize("disk", [False, True])
def test_values_that_stay_are_the_same(limit, disk, tmp_path, tuned):
    """Kept in memory, on disk, or computed anew: the same bits, and each is computed once where there is room."""
    tuned(tile_rows=50, tile_columns=64)
    V = np.random.default_rng(0).normal(size=(2, 300))
    plain = KernelProducts(spread(), KERNEL, Keep(0))(V, True)
    scratch = Scratch(tmp_path) if disk else None
    made = KernelProducts(spread(), KERNEL, Keep(limit, scratch))
    first, second = made(V, True), made(V, True)
    np.testing.assert_array_equal(first, plain)
    np.testing.assert_array_equal(second, plain)
    assert not list(tmp_path.iterdir())  # the file has no name
    if scratch is not None:
        assert (scratch.read > 0) == (limit < 1 << 30)
        assert scratch.read == scratch.written
        assert (scratch.rate > 0) == (scratch.read > 0)


def stopping(after):
    """A progress that ends the run in this call."""
    seen = iter(range(10**6))

    def advance():
        if next(seen) == after:
            raise KeyboardInterrupt

    return advance


class Kept(dict):
    """A checkpoint in memory: a disk would be asked to sync in every iteration."""

    def put(self, name, **arrays):
        self[name] = {key: np.array(value) for key, value in arrays.items()}


@pytest.mark.parametrize("final", [False, True])
def test_a_solution_that_is_resumed_has_the_same_bits(final, tuned):
    """Also where the first right sides have left the pass in which it was stopped."""
    tuned(save_every=0.0)
    B = np.random.default_rng(1).normal(size=(3, 300))
    ridges = np.array([1.0, 10.0, 300.0])

    def solved(**told):
        made = Preconditioner(None, None, ridges, Communicator())
        criteria = solver.StoppingCriteria(1e-5, final=final)
        return solver.solve(KernelProducts(spread(), KERNEL, Keep(0)), made, B, criteria, **told)

    whole = solved()
    assert whole.iterations[2] + 2 < whole.iterations[1] < whole.iterations[0] - 2
    for after in (2, int(whole.iterations[2]) + 2, int(whole.iterations[1]) + 2):
        told = {"checkpoint": Kept()}
        with pytest.raises(KeyboardInterrupt):
            solved(**told, advance=stopping(after))
        again = solved(**told)
        np.testing.assert_array_equal(again.x, whole.x)
        assert (again.stopped, again.iterations.tolist()) == (whole.stopped, whole.iterations.tolist())


# -- what is planned ---------------------------------------------------------------------------

WORK = cost.Work(n=36_000, d=8, sides=1, mu=0.036, tol=1e-6)


def test_rank_grows_while_it_pays():
    """Eigenvalues that fall fast are worth their pivots, a flat spectrum is not."""
    ranks = np.arange(0, 4000, 128)

    def stops(traces):
        ends = [k for k in range(4, len(ranks)) if cost.enough(WORK, np.c_[ranks, traces][: k + 1])]
        return ranks[ends[0]] if ends else 4000

    falling = 36_000 / (1 + ranks / 10.0) ** 2
    assert 512 < stops(falling) < 4000
    assert stops(36_000 * np.exp(-ranks / 40.0)) < stops(falling)
    assert stops(36_000 - 0.01 * ranks) < 1000


def test_the_smallest_ridge_decides_the_rank():
    """All lambdas of a sigma have the factor that the smallest of them has alone."""
    X, y = smooth()
    ranks = [fitted(X, y, lam=lams).iteration["solutions"][0]["rank"] for lams in ((1e-4, 1e-3), (1e-4, 1e-2, 1.0))]
    assert cost.sides(np.array([4.0, 16.0, 4.0])) == 2
    assert ranks[0] == ranks[1] > 0


def test_the_largest_rank_fits():
    for room, n in ((10_000_000, 1000), (5_000_000_000, 36_000)):
        k = cost.largest_rank(room, n, 3)
        need = [4 * n * one + 8 * 5 * one**2 + 16 * 2048 * one for one in (k, k + 1)]
        assert need[0] <= room < need[1]
