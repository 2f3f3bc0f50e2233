"""The exact system by conjugate gradients on one process, against the factorisation."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close
from helpers.commands import run
from helpers.data import as_csr, smooth, write_hdf5
from helpers.dkrr import fitted
from helpers.references import matrix
from helpers.running import Clock

from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.machine.memory import Scratch
from cakrr import DKRR, DKRRClassifier
from cakrr.iterative import cost
from cakrr.methods.whole_system import Iterative
from cakrr.options import RidgeOptions

KERNEL = Kernel.gaussian(1.5)


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
    assert note == "solver cg: rank and tol would not apply to a factorisation"
    result = fitted(X, y, solver="auto", memory_limit=need + 10_000)
    assert result.reasons[0].startswith("solver cg: a factorisation needs")
    assert result.iteration["iterations"][0] > 0
    assert cost.Work(36_000, 8, 1, 0.01, 1e-6).cholesky(1) > 5 * cost.Work(
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
    with pytest.raises(InputError, match=r"no pair .* conjugate gradients stopped by .* larger --rank"):
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
        (["--solver", "cg", "--lambda", "0"], "--lambda"), (["--rank", "5"], "rank: it does not apply to a factor"),
        (["--max-time", "5"], "max-time: it does not apply to a factorisation"),
        (["--tol", "1e-8"], "tol: it does not apply to a factorisation"),
        (["--preconditioner", "local"], "preconditioner: it does not apply to a factorisation"),
        (["--solver", "cg", "--rank", "0"], "--rank 0"), (["--solver", "cg", "--scratch", "absent/x"], "--scratch"),
    ],
)  # fmt: skip
def test_refusals(words, message, refuses, tmp_path):
    write_hdf5(tmp_path / "rows.h5", train=smooth(40))
    refuses("cakrr.dkrr", ["rows.h5", *words], message, tmp_path)


def test_time_is_up(tuned):
    """A partial solution is used if it is better than none, and refused if nothing was begun."""
    X, y = smooth(300)
    told = {"max_time": 100.0, "rank": 20}
    tuned(cg_clock=Clock(12.0).perf_counter)
    result = fitted(X, y, **told)
    assert "relative residual" in result.notes[-1]
    assert result.iteration["stopped"] == ["time"]
    assert 1e-6 < result.residual[0] < 1
    tuned(cg_clock=Clock(1e9).perf_counter)
    with pytest.raises(InputError, match="--max-time 100 was exceeded before there was a useful solution"):
        fitted(X, y, **told)
    with pytest.raises(InputError, match=r"no pair .* --max-time 100 was exceeded: allow more"):
        fitted(X, y, **told, lam=(1e-5, 1e-2))


def test_time_is_up_in_the_grid(monkeypatch):
    """Widths that were not started are not chosen, and a line names them."""
    X, y = smooth(300)
    left = iter([9.0] * 2 + [0.0] * 2 + [9.0] * 9)
    monkeypatch.setattr(Iterative, "_remaining", lambda self: next(left))
    result = fitted(X, y, max_time=100.0, sigma=(0.01, 1.5, 2.0), rank=20)
    assert [row["validation_mse"] is None for row in result.grid] == [False, True, True]
    assert result.model.sigma == 0.01
    assert "conjugate gradients have no solution: sigma 1.5 lambda 0.0001 (time)" in result.notes[0]


def test_options_are_of_the_exact_method_alone(refuses, tmp_path):
    write_hdf5(tmp_path / "rows.h5", train=smooth(40))
    refuses("cakrr.bkrr2", ["rows.h5", "--solver", "cg"], "--solver", tmp_path)
    assert replace(RidgeOptions(), solver="cg").solver == "cg"


@pytest.mark.parametrize("form", ["groups", "sparse", "sparse and wide", "float32"])
def test_rows_far_apart_or_far_from_0_have_a_solution(form):
    """The factor and the products are in double precision where single has no digits for distances."""
    rng = np.random.default_rng(0)
    n = 500
    X, options = rng.normal(size=(n, 4)), {"sigma": 1.3, "lam": 1e-4, "standardize": False}
    y = np.sin(2 * X[:, 1]) + X[:, 2] * X[:, 3]
    if form == "groups":
        X[:, 0] = 6000 * rng.integers(-2, 3, n)
    elif form == "float32":
        X = (X + 300.0 * rng.integers(-2, 3, (n, 1))).astype(np.float32)
    else:
        d = 2 if form == "sparse" else 8
        X = np.column_stack([3e4 + X[:, 1], rng.random((n, d)) < 0.2, rng.random(n)])
    rows = X if form in ("groups", "float32") else sp.csr_matrix(X)
    exact, iterated = (DKRR(solver=solver, **options).fit(rows, y) for solver in ("cholesky", "cg"))
    np.testing.assert_allclose(iterated.predict(rows), exact.predict(rows), atol=3e-3)
