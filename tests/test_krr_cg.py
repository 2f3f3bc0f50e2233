"""The exact system by conjugate gradients on one process: the pieces, and the whole against the factorisation."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from helpers.checks import close
from helpers.commands import run
from helpers.data import as_csr, smooth, write_hdf5
from helpers.references import matrix
from helpers.running import Clock

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import Dataset
from cacore.kernels import Kernel
from cacore.linalg import cg
from cacore.linalg.pivoted import pivoted_cholesky
from cacore.linalg.thin import multiply_both
from cacore.machine.scratch import Scratch
from cakrr import DKRR, DKRRClassifier
from cakrr.dkrr import dkrr
from cakrr.iterative import plan, solver
from cakrr.iterative import products as kernel_products
from cakrr.iterative.keep import Keep
from cakrr.iterative.preconditioner import Factor, Preconditioner, residual_blocks
from cakrr.iterative.products import KernelProducts
from cakrr.iterative.spread import SpreadRows
from cakrr.methods.iterative import Iterative
from cakrr.options import Options

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
    got, sums = made.apply(R, which, np.array([4.0]))
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
    """What lay behind is gone from the disk, and the next values take its place."""
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
def test_values_that_stay_are_the_same(limit, disk, tmp_path, monkeypatch):
    """Kept in memory, on disk, or computed anew: the same bits, and each is computed once where there is room."""
    monkeypatch.setattr(kernel_products, "_ROWS", 50)
    monkeypatch.setattr(kernel_products, "_COLUMNS", 64)
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
def test_a_solution_that_is_resumed_has_the_same_bits(final, monkeypatch):
    """Also where the first right sides have left the pass in which it was stopped."""
    monkeypatch.setattr(solver, "SAVE_EVERY", 0.0)
    B = np.random.default_rng(1).normal(size=(3, 300))
    ridges = np.array([1.0, 10.0, 300.0])

    def solved(**told):
        made = Preconditioner(None, None, ridges, Communicator())
        rules = solver.Rules(1e-5, final=final)
        return solver.solve(KernelProducts(spread(), KERNEL, Keep(0)), made, B, rules, **told)

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

WORK = plan.Work(n=36_000, d=8, sides=1, mu=0.036, tol=1e-6)


def test_rank_grows_while_it_pays():
    """Eigenvalues that fall fast are worth their pivots, a flat spectrum is not."""
    ranks = np.arange(0, 4000, 128)

    def stops(traces):
        ends = [k for k in range(4, len(ranks)) if plan.enough(WORK, np.c_[ranks, traces][: k + 1])]
        return ranks[ends[0]] if ends else 4000

    falling = 36_000 / (1 + ranks / 10.0) ** 2
    assert 512 < stops(falling) < 4000
    assert stops(36_000 * np.exp(-ranks / 40.0)) < stops(falling)
    assert stops(36_000 - 0.01 * ranks) < 1000


def test_the_smallest_ridge_decides_the_rank():
    """All lambdas of a sigma have the factor that the smallest of them has alone."""
    X, y = smooth()
    ranks = [fitted(X, y, lam=lams).iteration["solutions"][0]["rank"] for lams in ((1e-4, 1e-3), (1e-4, 1e-2, 1.0))]
    assert plan.sides(np.array([4.0, 16.0, 4.0])) == 2
    assert ranks[0] == ranks[1] > 0


def test_the_largest_rank_fits():
    for room, n in ((10_000_000, 1000), (5_000_000_000, 36_000)):
        k = plan.largest_rank(room, n, 3)
        need = [4 * n * one + 8 * 5 * one**2 + 16 * 2048 * one for one in (k, k + 1)]
        assert need[0] <= room < need[1]


# -- the whole ---------------------------------------------------------------------------------


def fitted(X, y, **told):
    return dkrr(Dataset(X.copy(), y.copy()), Options(**{"sigma": (1.5,), "lam": (1e-4,), "solver": "cg", **told}))


@pytest.mark.parametrize(
    "told",
    [
        {"kernel": "laplacian"}, {"kernel": "matern32"}, {"kernel": "l1"}, {"kernel": "rational"},
        {"kernel": "polynomial", "coef0": 1.0}, {"kernel": "linear", "sigma": None}, {"metric": "diagonal"},
        {"kernel": lambda A, B: np.exp(-0.3 * np.abs(A[:, None] - B[None]).sum(axis=2)), "sigma": None},
    ],
    ids=lambda told: str(next(iter(told.values())))[:10],
)  # fmt: skip
def test_kernels(told):
    (X, y), (T, _) = smooth(), smooth(41, seed=1)
    got, want = fitted(X, y, **told, tol=1e-10), fitted(X, y, **told, solver="cholesky")
    close(got.model.predict(T), want.model.predict(T), 1e-6)


@pytest.mark.parametrize("csr", [False, True])
def test_float32_rows(csr):
    X, y = smooth()
    X = as_csr(X, csr, 0.7).astype(np.float32)
    got, want = fitted(X, y, tol=1e-9), fitted(X, y, solver="cholesky")
    close(got.model.predict(X), want.model.predict(X), 1e-5)


def test_estimator():
    """Attributes, a precomputed kernel, a classifier; a second fit by the other solver has no trace of the first."""
    (X, y), (T, _) = smooth(csr=False), smooth(41, seed=1)
    model = DKRR(sigma=1.5, lam=1e-4, solver="cg").fit(X, y)
    assert model.residual_ <= 1e-6
    assert 1 <= model.n_iter_ < 100
    model.set_params(solver="cholesky").fit(X, y)
    assert not hasattr(model, "n_iter_")
    Z, W = (X - X.mean(axis=0)) / X.std(axis=0), (T - X.mean(axis=0)) / X.std(axis=0)
    given = DKRR(kernel="precomputed", lam=1e-4, solver="cg", tol=1e-9).fit(matrix(KERNEL, Z), y)
    close(given.predict(matrix(KERNEL, W, Z)), model.predict(T), 1e-6)
    sides = [
        DKRRClassifier(sigma=1.5, lam=1e-4, solver=one).fit(X, np.digitize(y, [9.5, 10.5])) for one in ("cg", "auto")
    ]
    np.testing.assert_array_equal(sides[0].predict(T), sides[1].predict(T))
    assert sides[0].n_iter_ >= 1
    assert sides[0].residual_ <= 1e-6


def test_auto_says_which_and_why():
    X, y = smooth()
    (note,) = fitted(X, y, solver="auto").reasons
    assert note.startswith("solver cholesky: ")
    need = 8 * 157**2
    (note,) = fitted(X, y, solver="auto", rank=20, tol=1e-7).reasons
    assert note == "solver cg: rank and tol would mean nothing to a factorisation"
    result = fitted(X, y, solver="auto", memory_limit=need + 10_000)
    assert result.reasons[0].startswith("solver cg: a factorisation needs")
    assert result.iteration["iterations"][0] > 0
    assert plan.Work(36_000, 8, 1, 0.01, 1e-6).cholesky(1) > 5 * plan.Work(
        36_000, 8, 1, 0.01, 1e-6
    ).conjugate_gradients(1)


def test_a_rank_on_disk(tmp_path, monkeypatch):
    """A factor that does not fit into memory lies in the directory of --scratch, and gives the same answer."""
    X, y = smooth(800)
    told = {"rank": 200, "tol": 1e-9}
    with pytest.raises(InputError, match=r"rank 200.*--scratch DIR"):
        fitted(X, y, **told, memory_limit=3_000_000)
    with pytest.raises(InputError, match="the 200 x 200 cores of a factor"):
        fitted(X, y, **told, memory_limit=1_000_000, scratch=tmp_path)
    on_disk = fitted(X, y, **told, memory_limit=3_000_000, scratch=tmp_path)
    close(on_disk.model.predict(X), fitted(X, y, **told).model.predict(X), 1e-6)
    assert on_disk.iteration["solutions"][-1]["scratch_gbps"] > 0
    with monkeypatch.context() as patch:
        freed = []
        patch.setattr(Scratch, "free", lambda self, end: freed.append((self.end > 0, end)))
        fitted(X, y, **told, memory_limit=3_000_000, scratch=tmp_path)
    assert freed == [(True, 0)]
    with pytest.raises(InputError, match="cannot make a file there"):
        fitted(X, y, scratch=tmp_path / "none")


@pytest.mark.parametrize("sigma", [1.5, 1e4])
def test_what_cannot_be_solved_says_so(sigma):
    X, y = smooth(120)
    X, y = np.tile(X, (2, 1)), np.concatenate([y, -y])
    with pytest.raises(InputError, match=r"relative residual of .* use a larger lambda"):
        fitted(X, y, sigma=(sigma,), lam=(1e-18,))


def test_pairs_that_cannot_be_solved_are_left_out():
    X, y = smooth(60)
    X, y = np.tile(X, (2, 1)), np.concatenate([y, -y])
    result = fitted(X, y, lam=(1e-20, 1e-2))
    assert [row["validation_mse"] is None for row in result.grid] == [True, False]
    assert "conjugate gradients have no solution: sigma 1.5 lambda 1e-20 (" in result.notes[0]
    with pytest.raises(InputError, match=r"no pair .* conjugate gradients ended by .* larger --rank"):
        fitted(X, y, lam=(1e-20, 2e-20))


def test_command(tmp_path):
    """The report has iterations, residuals, why it stopped, and what each solution took."""
    X, y = smooth(200)
    data = write_hdf5(tmp_path / "rows.h5", train=(X[:160], y[:160]), test=(X[160:], y[160:]))
    words = ["--sigma", "1,2", "--lambda", "1e-5,1e-3", "--solver", "cg", "--tol", "1e-8", "--rank", "40", "--quiet"]
    run("cakrr.dkrr", [data, *words, "--report", tmp_path / "cg.json", "--model", tmp_path / "m.h5"])
    run("cakrr.dkrr", [data, *words[:4], "--quiet", "--report", tmp_path / "direct.json"])
    made, direct = (json.loads((tmp_path / name).read_text()) for name in ("cg.json", "direct.json"))
    assert [made["params"][name] for name in ("sigma", "lambda")] == [direct["params"][n] for n in ("sigma", "lambda")]
    np.testing.assert_allclose(made["metrics"]["mse"], direct["metrics"]["mse"], rtol=1e-4)
    solver = made["solver"]
    assert solver["residual"][0] <= 1e-8
    assert solver["stopped"] == ["residual"]
    assert [one["what"] for one in solver["solutions"]] == ["width-0000", "width-0001", "solution"]
    assert [len(one["iterations"]) for one in solver["solutions"]] == [2, 2, 1]
    assert "solutions" not in direct["solver"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--solver", "lu"], "--solver"), (["--solver", "cg", "--tol", "0"], "--tol 0"),
        (["--solver", "cg", "--lambda", "0"], "--lambda"), (["--rank", "5"], "rank: a factorisation has none"),
        (["--max-time", "5"], "max-time: a factorisation has none"),
        (["--tol", "1e-8"], "tol: a factorisation has none"),
        (["--preconditioner", "local"], "preconditioner: a factorisation has none"),
        (["--solver", "cg", "--rank", "0"], "--rank 0"), (["--solver", "cg", "--scratch", "absent/x"], "--scratch"),
    ],
)  # fmt: skip
def test_refusals(words, message, refuses, tmp_path):
    write_hdf5(tmp_path / "rows.h5", train=smooth(40))
    refuses("cakrr.dkrr", ["rows.h5", *words], message, tmp_path)


def test_time_is_up(monkeypatch):
    """What is there is taken if it is better than none, and refused if nothing was begun."""
    X, y = smooth(300)
    told = {"max_time": 100.0, "rank": 20}
    monkeypatch.setattr(solver, "time", Clock(12.0))
    result = fitted(X, y, **told)
    assert "relative residual" in result.notes[-1]
    assert result.iteration["stopped"] == ["time"]
    assert 1e-6 < result.residual[0] < 1
    monkeypatch.setattr(solver, "time", Clock(1e9))
    with pytest.raises(InputError, match="--max-time 100 was over before the solution was better than none"):
        fitted(X, y, **told)
    with pytest.raises(InputError, match=r"no pair .* --max-time 100 was over: allow more"):
        fitted(X, y, **told, lam=(1e-5, 1e-2))


def test_time_is_up_in_the_grid(monkeypatch):
    """Widths that were not started are not chosen, and a line names them."""
    X, y = smooth(300)
    left = iter([9.0] * 2 + [0.0] * 2 + [9.0] * 9)
    monkeypatch.setattr(Iterative, "_left", lambda self: next(left))
    result = fitted(X, y, max_time=100.0, sigma=(0.01, 1.5, 2.0), rank=20)
    assert [row["validation_mse"] is None for row in result.grid] == [False, True, True]
    assert result.model.sigma == 0.01
    assert "conjugate gradients have no solution: sigma 1.5 lambda 0.0001 (time)" in result.notes[0]


def test_options_are_of_the_exact_method_alone(refuses, tmp_path):
    write_hdf5(tmp_path / "rows.h5", train=smooth(40))
    refuses("cakrr.bkrr2", ["rows.h5", "--solver", "cg"], "--solver", tmp_path)
    assert replace(Options(), solver="cg").solver == "cg"
