"""The exact system on near rows: what is left out and its bound, islands, and solutions beside the factorisation."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close
from helpers.commands import run
from helpers.data import write_hdf5
from helpers.dkrr import fitted, times_computed
from helpers.references import matrix
from helpers.running import Clock

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import Kernel
from cakrr import DKRR
from cakrr.iterative import islands, systems
from cakrr.iterative.islands import Tiles
from cakrr.iterative.preconditioner import SpreadRows
from cakrr.iterative.products import Keep, KernelProducts

NARROW = {"sigma": (0.08,), "lam": (1e-3,), "standardize": False, "near": True, "tol": 1e-9}
DECREASING = [
    Kernel("gaussian", 80.0), Kernel("laplacian", 30.0), Kernel("matern32", 60.0), Kernel("wendland2", 4.0, degree=12),
    Kernel("rational", 300.0, degree=9), Kernel("wendland2_product", 4.0),
]  # fmt: skip


@pytest.fixture(autouse=True)
def small(tuned):
    """Several boxes and islands of a small problem."""
    tuned(island_box=16, island_rows=60)


def classes(n=431, seed=0):
    """Rows of two features and a class of five, which is one-hot; two targets."""
    rng = np.random.default_rng(seed)
    X = np.c_[rng.random((n, 2)), np.eye(5)[rng.choice(5, n, p=[0.5, 0.25, 0.15, 0.07, 0.03])]]
    return X, np.c_[np.sin(7 * X[:, 0]) + X[:, 2] + 0.1 * rng.normal(size=n), np.cos(5 * X[:, 1])]


@pytest.mark.parametrize("kernel", DECREASING, ids=lambda kernel: kernel.kind)
def test_islands_cut_no_more_than_the_bound(kernel):
    """Islands hold every row once; pairs that are left out are beyond the radius, and their norm within the bound."""
    X = classes()[0]
    K, left = matrix(kernel, X), np.ones((len(X), len(X)), np.bool_)
    for allowed in (1e-9, 1e-3):
        found, cut = islands.islands(X, kernel, allowed, Communicator())
        assert cut.bound <= allowed
        np.testing.assert_array_equal(np.sort(np.concatenate([one.rows for one in found])), np.arange(len(X)))
        left[:] = True
        for one in found:
            for box, ranges in enumerate(one.tiles.near(0, 0)):
                mine = one.rows[one.tiles.ends[0][box] : one.tiles.ends[0][box + 1]]
                for a, b in ranges:
                    left[np.ix_(mine, one.rows[a:b])] = False
            rest = np.delete(X[one.rows], one.features, axis=1)
            assert not np.ptp(rest, axis=0).any()
        np.testing.assert_array_equal(left, left.T)
        assert np.linalg.norm(K * left, 2) <= cut.bound
        np.testing.assert_allclose(cut.share, 1 - left.mean(), rtol=1e-12)
        if np.isfinite(cut.squared):
            D = np.square(X[:, None] - X)
            D = D.max(axis=2) if kernel.separable else D.sum(axis=2)
            assert D[left].min(initial=np.inf) >= cut.squared * 0.9999
    if kernel.kind == "gaussian":
        assert len(found) > 2
        assert cut.share < 0.35


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("single", [True, False])
def test_products(single, weighted):
    """Near rows alone give the products of all pairs, but for what is left out and rounding, kept or computed again."""
    X, kernel = np.ascontiguousarray(classes()[0][:, :2]), Kernel("gaussian", 400.0)
    weights = np.random.default_rng(1).uniform(0.5, 2, len(X)) if weighted else None
    (one,), cut = islands.islands(X, kernel, 1e-10, Communicator())
    assert cut.share < 0.7
    rows = one.rows
    spread = SpreadRows(X[rows], rows, kernel, Communicator(), None if weights is None else weights[rows])
    V = np.random.default_rng(2).normal(size=(3, len(X)))
    s = np.ones(len(X)) if weights is None else np.sqrt(weights / weights.mean())
    want = (V * s @ matrix(kernel, X) * s)[:, rows]
    for room in (0, 1 << 20):
        near = KernelProducts(spread, kernel, Keep(room), tiles=one.tiles)
        for _ in range(2):
            got = near(np.ascontiguousarray(V[:, rows]), single)
        np.testing.assert_allclose(got, want, atol=1e-4 if single else 3e-10)
    assert near.keep.share == 1.0
    computed = sum(strip.size for some in near.steps for strip in some)
    assert computed < 0.4 * len(X) ** 2


def test_strips_hold_each_near_pair_once():
    """On any number of ranks, whose boxes are not the same."""
    rng = np.random.default_rng(3)
    for counts in ([700], [400, 310], [300, 0, 410], [200, 170, 300, 250]):
        rows = [rng.random((m, 2)) for m in counts]
        ordered = [islands._ordered(X, Kernel("gaussian", 100.0)) for X in rows]
        rows, ends = [X[order] for X, (order, _) in zip(rows, ordered, strict=True)], [one[1] for one in ordered]
        boxes = [islands.Boxes.of_rows(X, end) for X, end in zip(rows, ends, strict=True)]
        seen = times_computed(np.array(counts), Tiles(ends, boxes, 0.002))
        every = np.concatenate(rows)
        D = np.square(every[:, None] - every).sum(axis=2)
        assert seen.max() == 1
        assert (seen[D <= 0.002] == 1).all()
        assert seen.mean() < 0.9


@pytest.mark.parametrize(
    "told",
    [
        {}, {"preconditioner": "two-level"}, {"preconditioner": "local"}, {"rank": 9}, {"kernel": "laplacian"},
        {"kernel": "wendland2", "degree": 7, "sigma": (0.3,)}, {"kernel": "wendland2_product", "sigma": (0.3,)},
        {"sigma": (3.0,), "lam": (1e-6,)},
    ],
    ids=lambda told: " ".join(map(str, told.values())) or "pivoted",
)  # fmt: skip
def test_solutions(told, tuned):
    tuned(preconditioner_block=50)
    X, y = classes()
    T = classes(50, 1)[0]
    told = NARROW | told
    direct = {name: told[name] for name in told if name in ("kernel", "degree", "sigma", "lam", "standardize")}
    got, want = fitted(X, y, **told), fitted(X, y, **direct, solver="cholesky")
    close(got.model.predict(T), want.model.predict(T), 1e-6)
    found = got.iteration["solutions"][-1]
    assert got.residual[0] <= 1e-9
    assert sum(found["near"]["rows"]) == len(X)
    assert (found["near"]["radius"] is None) == (told["sigma"] == (3.0,))
    if told.get("kernel", "gaussian") == "gaussian" and told["sigma"] != (3.0,):
        assert found["near"]["islands"] > 2
        assert min(found["near"]["features"]) == 2


@pytest.mark.parametrize("form", [np.float32, sp.csr_matrix])
def test_forms_of_rows_with_weights(form):
    X, y = classes()
    X = X.astype(form) if form is np.float32 else form(X)
    weights = np.random.default_rng(0).choice([0.0, 0.5, 3.0], X.shape[0])
    told = {"sigma": 0.08, "lam": 1e-3, "standardize": False}
    got = DKRR(**told, solver="cg", near=True, tol=1e-9).fit(X, y, weights)
    want = DKRR(**told).fit(X, y, weights)
    close(got.predict(X), want.predict(X), 1e-5 if form is np.float32 else 1e-7)
    assert got.residual_ <= 1e-9
    assert got.near_["bound"] <= got.near_["allowed"]
    assert not hasattr(got.set_params(solver="cholesky", near=False, tol=1e-6).fit(X, y), "near_")


def test_the_residual_is_that_of_the_whole_matrix():
    """The report's residual, with the bound in it, is at least the one of K without a cut, and at most `tol`."""
    X, y = classes()
    got = fitted(X, y[:, 0], **NARROW | {"tol": 1e-4})
    alpha, b = got.model.parts[0].alpha, y[:, 0] - y[:, 0].mean()
    left = b - matrix(Kernel.gaussian(0.08), X) @ alpha - 1e-3 * len(X) * alpha
    assert np.linalg.norm(left) / np.linalg.norm(b) <= got.residual[0] <= 1e-4
    assert got.iteration["solutions"][-1]["near"]["bound"] > 0


def test_command(tmp_path, capsys):
    """A grid of lambdas, the line of the table, and the report."""
    X, y = classes()
    data = write_hdf5(tmp_path / "rows.h5", train=(X[:380], y[:380, 0]), test=(X[380:], y[380:, 0]))
    words = ["--sigma", "0.08", "--lambda", "1e-5,1e-3", "--no-standardize", "--solver", "cg"]
    run("cakrr.dkrr", [data, *words, "--near", "--report", tmp_path / "near.json"])
    assert "of all pairs, up to distance" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    run("cakrr.dkrr", [data, *words, "--quiet", "--report", tmp_path / "all.json"])
    made, every = (json.loads((tmp_path / name).read_text()) for name in ("near.json", "all.json"))
    assert made["params"]["lambda"] == every["params"]["lambda"]
    np.testing.assert_allclose(made["metrics"]["mse"], every["metrics"]["mse"], rtol=1e-5)
    first, last = made["solver"]["solutions"]
    assert [len(first["iterations"]), len(last["iterations"])] == [2, 1]
    assert last["near"]["islands"] == len(last["near"]["rows"]) == len(last["near"]["iterations"]) > 2
    assert last["near"]["bound"] <= last["near"]["allowed"]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"kernel": "l1"}, "near: the l1 kernel is not a function of Euclidean distance"),
        ({"kernel": "linear", "sigma": None}, "near: the linear kernel is not"),
        ({"kernel": lambda A, B: A @ B.T, "sigma": None}, "near: the callable kernel is not"),
        ({"early": 0.1}, "near: .* and early needs one"), ({"solver": "cholesky", "tol": 1e-6}, "near: it does not"),
    ],
)  # fmt: skip
def test_conflicting_options_are_refused(told, message):
    X, y = classes(60)
    with pytest.raises(InputError, match=message):
        fitted(X, y, **NARROW | told)


def test_a_time_limit_between_islands(monkeypatch, tuned):
    """Islands that are not reached have the solution 0, and the residual says so."""
    clock = Clock(0.0)
    tuned(islands_clock=lambda: clock.now, whole_clock=lambda: clock.now)
    X, y = classes()
    solve_one = systems.Systems.solve_one

    def slow(*arguments):
        solved = solve_one(*arguments)
        clock.now += 60.0
        return solved

    monkeypatch.setattr(systems.Systems, "solve_one", slow)
    result = fitted(X, y[:, 0], **NARROW | {"max_time": 100.0})
    alpha, found = result.model.parts[0].alpha, result.iteration["solutions"][-1]
    assert 0 < len(found["near"]["rows"]) < found["near"]["islands"]
    assert (alpha == 0).sum() == len(X) - sum(found["near"]["rows"])
    left = y[:, 0] - y[:, 0].mean() - matrix(Kernel.gaussian(0.08), X) @ alpha - 1e-3 * len(X) * alpha
    size = np.linalg.norm(y[:, 0] - y[:, 0].mean())
    np.testing.assert_allclose(result.residual[0], np.linalg.norm(left) / size, rtol=1e-6)
    assert "--max-time 100 was exceeded: the relative residual is" in result.notes[0]
