"""Kriging against brute force, sparse and dense; its command; what it refuses."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from helpers.commands import flat, predicted, read, run
from scipy.spatial.distance import cdist

from cacore.errors import InputError
from cacore.kernels import Kernel
from cakriging import Kriging, KrigingModel
from cakriging.command import main
from cakriging.kriging_method import METHOD
from cakriging.kriging_model import inverse_root
from cakriging.kriging_system import InverseFactor, NearSystem
from cakriging.maps import Grid
from cakriging.near_matrix import Correlation, Cubes, NearMatrix

RANGE, SILL, NUGGET, TAPER = 0.2, 2.0, 0.1, 0.35
KNOWN = {"range": RANGE, "sill": SILL, "nugget": NUGGET, "random_state": 0}


def covariance(A, B, taper=None):
    r = cdist(A, B)
    q = np.sqrt(3) * r / RANGE
    K = SILL * (1 + q) * np.exp(-q)
    return K if taper is None else K * np.maximum(0, 1 - r / taper) ** 4 * (1 + 4 * r / taper)


def field(n=400, q=40, taper=None):
    """Points, values with a linear drift, and places to predict."""
    rng = np.random.default_rng(0)
    X, Q = rng.random((n, 2)), rng.random((q, 2))
    K = covariance(X, X, taper) + NUGGET * np.eye(n)
    return X, np.linalg.cholesky(K) @ rng.normal(size=n) + 5 + 3 * X[:, 0], Q, K


def brute(X, y, Q, K, taper=None):
    """Universal kriging with a linear drift: means and standard deviations."""
    F, G, k = np.column_stack([np.ones(len(X)), X]), np.column_stack([np.ones(len(Q)), Q]), covariance(Q, X, taper)
    inverse = np.linalg.inv(K)
    S = F.T @ inverse @ F
    beta, gap = np.linalg.solve(S, F.T @ inverse @ y), G - k @ inverse @ F
    variance = SILL + NUGGET - np.einsum("ij,jk,ik->i", k, inverse, k)
    variance += np.einsum("ij,ij->i", gap, np.linalg.solve(S, gap.T).T)
    return G @ beta + k @ inverse @ (y - F @ beta), np.sqrt(variance)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_near_products_and_the_inverse_factor(d):
    rng = np.random.default_rng(0)
    X = rng.random((300, d))
    X[5] = X[9]
    correlation = Correlation(Kernel("matern32").with_sigma(0.2), taper=0.3)
    K, cubes, V = correlation.matrix(X, X), Cubes(X, correlation.reach), rng.normal(size=(2, 300))
    for limit in (1 << 30, 0):  # kept, and computed again
        matrix, out = NearMatrix(X[:131], cubes, correlation, limit, 57), np.empty((2, 131))
        for lo, hi in ((0, 57), (57, 90), (90, 131)):
            matrix.product(V, out, lo, hi)
        np.testing.assert_allclose(out, V @ K[:, :131], atol=1e-12)
        assert matrix.nnz == np.count_nonzero(cdist(X[:131], X) < 0.3)
    factor = InverseFactor(X, 300, np.full(300, 0.1), rng.permutation(300), cubes, correlation, 300, 57)
    G, A = np.empty((300, 300)), K + 0.1 * np.eye(300)
    total, first = np.zeros((300, 300)), np.zeros((300, 1))
    for lo, hi in ((57, 300), (0, 57)):
        factor.apply(np.eye(300), G.T, lo, hi)
        factor.add_transposed(np.eye(300), total, lo, hi)
        factor.add_transposed(np.ones((1, 300)), first, lo, hi)
    np.testing.assert_allclose(total, G.T, atol=1e-14)
    np.testing.assert_allclose(first[:, 0], G.sum(axis=0), atol=1e-13)
    values = np.linalg.eigvalsh(G @ A @ G.T)
    assert 0.7 < values[0] <= values[-1] < 1.4
    assert -2.0 * np.linalg.slogdet(G)[1] == pytest.approx(np.linalg.slogdet(A)[1], rel=2e-3)


@pytest.mark.parametrize("radius", [0.2, 0.1, 0.3])
def test_neighbours_on_a_lattice_whose_extent_is_a_multiple_of_the_radius(radius):
    """1.0 // 0.2 is 4.0, though 1.0 / 0.2 is 5.0: the last points have a cube of their own."""
    X = np.stack(np.meshgrid(0.02 * np.arange(-25, 26), 0.05 * np.arange(21)), axis=-1).reshape(-1, 2)
    correlation = Correlation(Kernel("wendland2").with_sigma(radius))
    matrix, V = NearMatrix(X, Cubes(X, radius), correlation, 1 << 30), np.eye(len(X))
    out = np.empty_like(V)
    matrix.product(V, out)
    np.testing.assert_allclose(out, correlation.matrix(X, X), atol=1e-12)


def test_dense_and_sparse_against_brute_force(tmp_path):
    X, y, Q, K = field()
    mean, std = brute(X, y, Q, K)
    got = Kriging(drift="linear", **KNOWN).fit(X, y).predict(Q, return_std=True)
    np.testing.assert_allclose(got, (mean, std), rtol=1e-9)
    X, y, Q, K = field(taper=TAPER)
    mean, std = brute(X, y, Q, K, TAPER)
    model = Kriging(drift="linear", solver="cg", taper=TAPER, tol=1e-9, **KNOWN).fit(X, y)
    np.testing.assert_allclose(model.predict(Q, return_std=True), (mean, std), rtol=1e-7)
    local = model.predict(Q, return_std=True, variance="local")[1]
    assert (local > std - 1e-9).all()
    np.testing.assert_allclose(local, std, rtol=1e-2)
    model.save(tmp_path / "model.h5")
    np.testing.assert_allclose(Kriging.load(tmp_path / "model.h5").predict(Q), mean, rtol=1e-7)


def test_a_decaying_kernel_is_cut_by_a_bound():
    X, y, Q, _ = field()
    known = {**KNOWN, "range": 0.05, "kernel": "gaussian"}
    dense, cut = (Kriging(solver=solver, **known).fit(X, y) for solver in ("cholesky", "cg"))
    facts = cut.solver_["cut"]
    assert facts["bound"] <= facts["allowed"] == pytest.approx(1e-6 * NUGGET / SILL)
    np.testing.assert_allclose(cut.predict(Q), dense.predict(Q), rtol=1e-5)


def test_likelihood(tuned):
    """Vecchia's is close to the exact one, and both are close to the truth."""
    X, y, _, _ = field(400)
    exact = Kriging(kernel="matern32", random_state=0, drift="linear").fit(X, y)
    tuned(likelihood_rows=10)
    near = Kriging(kernel="matern32", random_state=0, drift="linear").fit(X, y)
    assert near.loglikelihood_ == pytest.approx(exact.loglikelihood_, abs=2.0)
    assert (near.range_, near.sill_, near.nugget_) == pytest.approx(
        (exact.range_, exact.sill_, exact.nugget_), rel=0.05
    )
    assert exact.nugget_ == pytest.approx(NUGGET, rel=0.2)


def test_unbounded_range_is_reported(tmp_path, capsys):
    X = field(200)[0]
    y = 3 * X[:, 0] + 0.01 * np.random.default_rng(1).normal(size=200)
    estimate = Kriging(kernel="matern32", taper=0.5, random_state=0).fit(X, y)
    assert 5.0 < estimate.range_ <= 10.0
    np.savetxt(tmp_path / "rows.csv", np.column_stack([X, y]), delimiter=",", header="x,y,z", comments="")
    main(METHOD, [str(tmp_path / "rows.csv"), "--taper", "0.5", "--kernel", "matern32"])
    assert "the likelihood still grows there" in flat(capsys.readouterr().out)


def test_errors_means_and_space():
    X, y, Q, _ = field()
    twice, values = np.concatenate([X, X]), np.concatenate([y, y + 1.0])
    known = {**KNOWN, "nugget": 0.0}
    with pytest.raises(InputError, match="800 values share their place"):
        Kriging(**known).fit(twice, values)
    mean = Kriging(average=True, **known).fit(twice, values).predict(Q)
    np.testing.assert_allclose(mean, Kriging(**known).fit(X, y + 0.5).predict(Q), rtol=1e-6)
    noisy = Kriging(**known).fit(X, y, errors=np.full(len(y), np.sqrt(NUGGET))).predict(Q)
    np.testing.assert_allclose(noisy, Kriging(**KNOWN).fit(X, y).predict(Q), rtol=1e-9)
    stretched = Kriging(anisotropy=2.0, **KNOWN).fit(X * [1, 2], y).predict(Q * [1, 2])
    np.testing.assert_allclose(stretched, Kriging(**KNOWN).fit(X, y).predict(Q), rtol=1e-9)
    earth = Kriging(geographic=True, **{**KNOWN, "range": 20.0}).fit(X, y).predict(Q)
    assert np.corrcoef(earth, Kriging(**KNOWN).fit(X, y).predict(Q))[0, 1] > 0.95


@pytest.mark.parametrize(
    ("options", "X", "match"),
    [
        ({"drift": "linear"}, np.linspace(0, 1, 20)[:, None] * [1, 2], "depend on each other"),
        ({}, np.ones((20, 2)), "all points are at one place"),
        ({}, np.ones((1, 2)), "n_samples = 1: too few points"),
        ({"geographic": True}, np.full((20, 2), 91.0), "latitude of row 0 is 91"),
        ({"taper": 0.0}, np.ones((20, 2)), "taper"),
        ({"drift": [5]}, np.ones((20, 2)), "no column 5"),
        ({"kernel": "l1"}, np.ones((20, 2)), "kernel"),
        ({}, np.full((20, 2), np.nan), "NaN"),
        ({**KNOWN, "nugget": 0.0, "kernel": "gaussian", "solver": "cg"}, np.eye(20, 2), "only with a --nugget above 0"),
    ],
)
def test_bad_input_is_one_line(options, X, match):
    with pytest.raises(InputError, match=match) as caught:
        Kriging(**options).fit(X, np.arange(len(X), dtype=float))
    assert "\n" not in str(caught.value)


def moments(draws, mean, covariance):
    """Largest deviations of the mean and of the covariance of draws, in standard errors."""
    n, sizes = len(draws), np.sqrt(np.diagonal(covariance))
    z = (draws.mean(axis=0) - mean) / sizes * np.sqrt(n)
    scaled, want = np.cov(draws.T) / np.outer(sizes, sizes), covariance / np.outer(sizes, sizes)
    return np.abs(z).max(), (np.abs(scaled - want) * np.sqrt(n / (1 + want**2))).max()


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_draws_have_the_mean_and_the_covariance_of_the_field(solver):
    X, y, Q, K = field(150, 8, TAPER)
    Q[3] = X[7]
    F, G, k = np.column_stack([np.ones(150), X]), np.column_stack([np.ones(8), Q]), covariance(Q, X, TAPER)
    mean, _ = brute(X, y, Q, K, TAPER)
    inverse = np.linalg.inv(K)
    gap = G - k @ inverse @ F
    want = covariance(Q, Q, TAPER) - k @ inverse @ k.T + gap @ np.linalg.solve(F.T @ inverse @ F, gap.T)
    model = Kriging(drift="linear", solver=solver, taper=TAPER, tol=1e-9, **KNOWN).fit(X, y)
    draws = model.simulate(Q, 1500)
    assert draws.shape == (1500, 8)
    assert max(moments(draws, mean, want)) < 4.5
    np.testing.assert_allclose(model.simulate(Q, 2), draws[:2], atol=1e-6)


def test_inverse_root():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(60, 80))
    M, Z = A @ A.T / 80 + np.eye(60), rng.normal(size=(3, 60))
    values, vectors = np.linalg.eigh(M)
    Z[2] = vectors[:, 5]  # an eigenvector, whose Krylov space ends at once
    found, iterations, change = inverse_root(lambda V: V @ M, Z, lambda sums: sums, 1e-10)
    np.testing.assert_allclose(found, Z @ (vectors / np.sqrt(values)) @ vectors.T, atol=1e-9)
    assert change <= 1e-10
    assert iterations < 40


@pytest.mark.parametrize(
    ("grid", "more", "match"),
    [
        ("0:1", [], "lo:hi:STEP"),
        ("0:1:0.1", [], "1 axes, and the rows have 2"),
        ("1:0:0.1,0:1:0.1", [], "lo <= hi"),
        ("0:1:1e-9,0:1:1e-9", [], "1,000,000,000 x 1,000,000,000 places"),
        ("0:1e9:0.1,0:1:1", [], "use larger steps"),
        ("-1:1:1,-100:90:10", ["--geographic"], "a latitude is -100"),
    ],
)
def test_grids_that_are_refused_before_training(grid, more, match, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savetxt("rows.csv", field(20)[0] @ [[1, 0, 1], [0, 1, 1]], delimiter=",", header="x,y,z", comments="")
    with pytest.raises(SystemExit) as end:
        main(METHOD, ["rows.csv", "--grid", grid, "--map", "map.h5", "--quiet", *more])
    assert end.value.code == 2
    assert match in capsys.readouterr().err
    assert not (tmp_path / "map.h5").exists()


@pytest.mark.parametrize("words", [["rows.csv", "--range", "1"], ["--help"], []])
def test_the_former_command_names_the_new_one(words, tmp_path, refuses):
    refuses("cakrr.kriging", words, "use python -m cakriging", tmp_path)


@pytest.mark.parametrize(("shape", "ranks"), [((5,), 1), ((700, 300), 1), ((3, 200_000), 2), ((40, 50, 60), 1)])
def test_boxes_cover_a_grid_once(shape, ranks):
    grid, seen = Grid(tuple(np.arange(float(count)) for count in shape)), np.zeros(shape, int)
    boxes = grid.boxes(ranks)
    for box in boxes:
        assert seen[box].size <= 65_536 * ranks
        seen[box] += 1
    assert (seen == 1).all()
    assert len(boxes) <= 2 * seen.size // (65_536 * ranks) + 2


def test_command(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    X, y, Q, K = field(taper=TAPER)
    monkeypatch.chdir(tmp_path)
    np.savetxt("rows.csv", np.column_stack([X, y]), delimiter=",", header="east,north,value", comments="")
    np.savetxt("new.csv", np.column_stack([Q, np.zeros(len(Q))]), delimiter=",", header="east,north,value", comments="")
    known = f"--range {RANGE} --sill {SILL} --nugget {NUGGET} --taper {TAPER} --solver cg --drift linear"
    more = "--grid -0.5:0.5:0.25,0:1:0.5 --map map.h5 --simulate 2 --plot v.png --model m.h5 --report r.json"
    words, more = known.split(), more.split()
    run("cakriging", ["rows.csv", *words, *more])
    made = read(tmp_path / "r.json")
    assert made["solver"]["solver"] == "cg"
    assert made["solver"]["residual"][0] <= 1e-6
    run("cakriging.predict", ["m.h5", "new.csv", "-o", "p.csv", "--std", "--quiet"])
    np.testing.assert_allclose(predicted(tmp_path / "p.csv"), brute(X, y, Q, K, TAPER)[0], rtol=1e-4)
    with h5py.File("map.h5") as file:
        places = np.stack(np.meshgrid(file["axis0"], file["axis1"], indexing="ij"), axis=-1)
        want = brute(X, y, places.reshape(-1, 2), K, TAPER)[0]
        np.testing.assert_allclose(np.asarray(file["mean"]).ravel(), want, rtol=1e-4)
        assert file["std"].shape == (5, 3)
        draws = KrigingModel.load(tmp_path / "m.h5").simulate(places.reshape(-1, 2), 2)
        np.testing.assert_allclose(np.asarray(file["simulations"]).reshape(2, -1), draws, atol=1e-6)


def test_a_killed_run_is_continued_to_the_same_bits(tmp_path, monkeypatch, tuned, forbidden):
    X, y, _, _ = field(taper=TAPER)
    data = np.column_stack([X, y])
    np.savetxt(tmp_path / "rows.csv", data, delimiter=",", header="x,y,z", comments="")
    tuned(kriging_save_every=-1.0)
    tuned(estimate_digits=0.1)  # one digit of the estimate will do
    words = [str(tmp_path / "rows.csv"), "--taper", str(TAPER), "--solver", "cg", "--nugget", "0.001", "--quiet"]

    def trained(name, *more):
        main(METHOD, [*words, "--model", str(tmp_path / name), *more])
        return KrigingModel.load(tmp_path / name)

    whole = trained("whole.h5")
    product, calls = NearSystem.product, []

    def killed(self, V, which=None):
        calls.append(self.field.n_owned == len(X))
        if sum(calls) == 3:
            raise KeyboardInterrupt
        return product(self, V, which)

    folder = ["--checkpoint", str(tmp_path / "kept")]
    with monkeypatch.context() as patch:
        patch.setattr(NearSystem, "product", killed)
        with pytest.raises(SystemExit):
            trained("killed.h5", *folder)
    assert not (tmp_path / "killed.h5").exists()
    calls.clear()
    with forbidden("cakriging.kriging_fit.estimate"):  # it is in the checkpoint
        again = trained("again.h5", *folder)
    np.testing.assert_array_equal(again.points.values, whole.points.values)
    np.testing.assert_array_equal(again.beta, whole.beta)
    with pytest.raises(SystemExit) as end:
        trained("other.h5", "--range", "0.3", *folder)
    assert end.value.code == 2


def test_the_old_name_of_the_estimator_says_the_new_one():
    import cakrr

    with pytest.warns(DeprecationWarning, match="cakrr.Kriging is cakriging.Kriging now"):
        assert cakrr.Kriging is Kriging
