"""Standard deviations of kernel ridge regression against scikit-learn and brute force, and the commands."""

from __future__ import annotations

import pickle
from dataclasses import replace

import h5py
import numpy as np
import pytest
from helpers.checks import near
from helpers.commands import reported, run
from helpers.data import as_csr, forms, noisy_waves, write_hdf5
from helpers.references import matrix
from scipy.integrate import trapezoid
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.linalg import lapack
from cacore.metrics import gaussian_scores
from cakrr import BKRR2, DCKRR, DKRR, BKRR2Classifier, KRRModel, TwoLevelKRR
from cakrr.solver.variance import factored

SIGMA, LAM = 1.3, 1e-3
FIXED = {"sigma": SIGMA, "lam": LAM, "standardize": False, "random_state": 0}
COARSE = {"centers": 12, "coarse_sigma": 0.8, "coarse_lam": 1e-3}


def unit(K, y, noise):
    """s^2: left-out errors by leaving out, in units of a Gaussian process' variances."""
    total = 0.0
    for i in range(len(y)):
        rest = np.delete(np.arange(len(y)), i)
        k, G = K[i, rest], K[np.ix_(rest, rest)] + np.diag(noise[rest])
        error = y[i] - k @ np.linalg.solve(G, y[rest])
        total += error**2 / (K[i, i] + noise[i] - k @ np.linalg.solve(G, k))
    return total / len(y)


def gaussian_process(kernel, X, y, T, lam=LAM):
    """Mean and standard deviation of a new target, of scikit-learn's Gaussian process in the unit above."""
    noise = lam * len(X)
    process = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(X, y - y.mean())
    mean, std = process.predict(T, return_std=True)
    s2 = unit(kernel(X), y - y.mean(), np.full(len(X), noise))
    return mean + y.mean(), np.sqrt(s2 * (std**2 + noise))


# -- standard deviations -----------------------------------------------------------------------

KERNELS = {
    "gaussian": RBF(SIGMA),
    "matern52": Matern(SIGMA, nu=2.5),
    "linear": DotProduct(0, sigma_0_bounds="fixed"),
    "polynomial": ConstantKernel((1 / (2 * SIGMA**2)) ** 2) * DotProduct(np.sqrt(2 * SIGMA**2)) ** 2,
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("cls", [BKRR2, DKRR])
def test_is_a_gaussian_process(kernel, cls):
    (X, y), (T, _) = noisy_waves(), noisy_waves(40, 1)
    more = {"polynomial": {"degree": 2, "coef0": 1.0}, "linear": {"sigma": None}}.get(kernel, {})
    model = cls(**FIXED | {"kernel": kernel} | more).fit(X, y)
    mean, std = model.predict(T, return_std=True)
    expected = gaussian_process(KERNELS[kernel], X, y, T)
    near(mean, expected[0], 1e-8 * np.abs(y).max())
    near(std, expected[1], 1e-8 * std.max())
    np.testing.assert_array_equal(mean, model.predict(T))


@forms
def test_weights_and_forms(csr, dtype):
    """The noise of a row is that of its weight."""
    (X, y), (T, _) = noisy_waves(), noisy_waves(40, 1)
    w = np.random.default_rng(2).uniform(0.5, 3, len(y))
    given = as_csr(X, csr, 0.1).astype(dtype)
    model = BKRR2(**FIXED, dtype=np.dtype(dtype).name).fit(given, y, w)
    std = model.predict(as_csr(T, csr, 0.1).astype(dtype), return_std=True)[1]
    A, B = ((Z.toarray() if csr else Z).astype(np.float64) for Z in (given, as_csr(T, csr, 0.1).astype(dtype)))
    noise, centred = LAM * w.sum() / w, y - w @ y / w.sum()
    K, k = RBF(SIGMA)(A), RBF(SIGMA)(B, A)
    open_ = 1 + LAM * len(y) - np.einsum("ij,ji->i", k, np.linalg.solve(K + np.diag(noise), k.T))
    near(std, np.sqrt(unit(K, centred, noise) * open_), 1e-8 if dtype == np.float64 else 1e-5)


def test_many_targets():
    (X, y), (T, _) = noisy_waves(), noisy_waves(40, 1)
    Y = np.c_[y, 100 * np.cos(y)]
    mean, std = BKRR2(2, **FIXED).fit(X, Y).predict(T, return_std=True)
    for j, column in enumerate(Y.T):
        one = BKRR2(2, **FIXED).fit(X, column).predict(T, return_std=True)
        near(mean[:, j], one[0], 1e-10 * np.abs(column).max())
        near(std[:, j], one[1], 1e-10 * std.max())


def test_constant_targets_are_sure():
    mean, std = (
        BKRR2(2, **FIXED).fit(noisy_waves()[0], np.full(150, 3.0)).predict(noisy_waves(20, 1)[0], return_std=True)
    )
    near(mean, 3.0, 1e-12)
    near(std, 0.0, 1e-12)


def of_coarse(model, X, Y, T, w):
    """Variance of the coarse model's answers: that of the subset of regressors, by dense matrices."""
    coarse = model.coarse
    kernel, n, W = coarse.kernel.with_sigma(coarse.sigma), len(X), np.diag(w / w.mean())
    K, k, K_MM = matrix(kernel, X, coarse.centers), matrix(kernel, T, coarse.centers), matrix(kernel, coarse.centers)
    inverse = np.linalg.inv(K.T @ W @ K + coarse.lam * n * K_MM)
    left = Y - model.offset - coarse.predict(X)
    noise = np.diag(W) @ left**2 / (n - np.trace(W @ K @ inverse @ K.T))
    return np.multiply.outer(np.einsum("ij,jk,ik->i", k, inverse, k), noise)


def test_coarse_model(tmp_path):
    """The coarse model adds its variance to those of the parts, with weighted rows and for each of two targets."""
    (X, y), (T, _) = noisy_waves(), noisy_waves(40, 1)
    Y, w = np.c_[y, 100 * np.cos(y)], np.random.default_rng(0).uniform(0.5, 2, len(y))
    model = TwoLevelKRR(3, **FIXED, **COARSE).fit(X, Y, w).model_
    variance = model.predict_std(T)[1] ** 2
    expected = of_coarse(model, X, Y, T, w)
    near(model.coarse_variance(T), expected, 1e-8 * expected.max())
    local = replace(model, coarse=replace(model.coarse, refined=True))  # whose variance is left out
    near(variance - local.predict_std(T)[1] ** 2, expected, 1e-8 * variance.max())
    local.save(tmp_path / "m.h5")
    np.testing.assert_array_equal(KRRModel.load(tmp_path / "m.h5").predict_std(T)[1], local.predict_std(T)[1])
    assert (expected > 1e-3 * variance).any(axis=0).all()


@pytest.mark.parametrize("kind", ["nearest", "soft", "all", "divided", "two levels"])
def test_routes(kind):
    """The precisions of the models that answer, weighted as their means are; and the variance of a coarse model."""
    (X, y), (T, _) = noisy_waves(), noisy_waves(40, 1)
    cls, more = {
        "nearest": (BKRR2, {}), "soft": (BKRR2, {"route": "soft"}), "all": (DCKRR, {}),
        "divided": (BKRR2, {"n_divisions": 3}), "two levels": (TwoLevelKRR, COARSE),
    }[kind]  # fmt: skip
    model = cls(5, **FIXED | more).fit(X, y).model_
    mean, std = model.predict_std(T)
    near(mean, model.predict(T), 1e-12)
    variances = []
    for part, one in sorted(model.parts.items()):
        kernel = model.kernel_of(part)
        G = matrix(kernel, one.X) + LAM * len(one.alpha) * np.eye(len(one.alpha))
        k, inverse = matrix(kernel, T, one.X), np.linalg.inv(G)
        s2 = np.mean(one.alpha**2 / np.diag(inverse))
        variances.append(s2 * (1 + LAM * len(one.alpha) - np.einsum("ij,jk,ik->i", k, inverse, k)))
    distances = ((T[:, None] - model.centers) ** 2).sum(axis=2)
    weights = np.full_like(distances, 1 / len(variances))
    if kind != "all":
        for lo in range(0, len(variances), 5):
            ordered = np.sort(distances[:, lo : lo + 5], axis=1)
            hard = distances[:, lo : lo + 5] == ordered[:, :1]
            share = hard if model.soft is None else model.soft.of_all(T, model.centers)
            weights[:, lo : lo + 5] = share / model.divisions
    variance = 1 / (weights / np.array(variances).T).sum(axis=1)
    if model.coarse is not None:
        variance += of_coarse(model, X, y, T, np.ones(len(y)))
    near(std, np.sqrt(variance), 1e-9)


def test_kept_factors_give_the_same_deviations(tmp_path, forbidden):
    """They are what is made anew without them; the file holds the triangle; a pickle has them too."""
    (X, y), (T, _) = noisy_waves(), noisy_waves(40, 1)
    plain, kept = BKRR2(3, **FIXED).fit(X, y), BKRR2(3, **FIXED, keep_factors=True).fit(X, y)
    expected = plain.predict(T, return_std=True)[1]
    for name, model in (("plain.h5", plain), ("kept.h5", kept)):
        model.model_.save(tmp_path / name)
    more = (tmp_path / "kept.h5").stat().st_size - (tmp_path / "plain.h5").stat().st_size
    triangles = sum(m * (m + 1) // 2 * 8 for m in kept.sizes_)
    assert triangles < more < triangles + 8192
    loaded = {name: KRRModel.load(tmp_path / name) for name in ("plain.h5", "kept.h5")}
    near(loaded["plain.h5"].predict_std(T)[1], expected, 1e-12)
    with forbidden("cakrr.uncertainty.deviation.factored"):
        near(loaded["kept.h5"].predict_std(T)[1], expected, 1e-12)
        near(pickle.loads(pickle.dumps(kept)).predict(T, return_std=True)[1], expected, 1e-12)


def test_factors_beyond_memory_are_recomputed_or_refused():
    """All factors stay, or one after the other is made in each call, or the one does not fit."""
    (X, y), (T, _) = noisy_waves(), noisy_waves(40, 1)
    model = BKRR2(3, **FIXED).fit(X, y).model_
    one_by_one = model.predict_std(T, limit=8 * 50 * 50)
    assert not model.variances
    np.testing.assert_array_equal(model.predict_std(T, limit=3 * 8 * 50 * 50)[1], one_by_one[1])
    assert sorted(model.variances) == [0, 1, 2]
    assert pickle.loads(pickle.dumps(model)).variances == {}
    with pytest.raises(InputError, match=r"factor of a part of 50 rows, for standard deviations, needs .* GiB"):
        BKRR2(3, **FIXED).fit(X, y).model_.predict_std(T, limit=8 * 50 * 50 - 1)
    with pytest.raises(InputError, match="factor of all 150 rows, on every rank"):
        DKRR(**FIXED).fit(X, y).model_.predict_std(T, limit=8 * 150 * 150 - 1)


def test_refused():
    X, y = noisy_waves()
    K = RBF(SIGMA)(X)
    with pytest.raises(InputError, match="precomputed kernel lacks the values"):
        DKRR(kernel="precomputed").fit(K, y).predict(K, return_std=True)
    with pytest.raises(InputError, match="the model is a classifier, whose"):
        BKRR2Classifier(2, **FIXED).fit(X, y > np.median(y)).model_.predict_std(X)


def test_no_factor():
    """Two equal rows and a negligible lambda have no Cholesky factor."""
    twice = np.zeros((2, 1))
    assert factored(twice, np.ones(2), Kernel.gaussian(1.0), 1e-30) is None


def test_diagonal_of_an_inverse(tuned):
    tuned(lapack_inverse=7)
    A = np.random.default_rng(0).normal(size=(30, 30))
    L = np.linalg.cholesky(A @ A.T + np.eye(30))
    kept = L.copy()
    near(lapack.diagonal_of_inverse(L), np.diag(np.linalg.inv(A @ A.T + np.eye(30))), 1e-12)
    np.testing.assert_array_equal(L, kept)


# -- commands ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Rows with one target and with two, and models of them: with factors and rows set aside, and plain ones."""
    folder = tmp_path_factory.mktemp("saved")
    X, y = noisy_waves(300)
    write_hdf5(folder / "one.h5", train=(X, y))
    write_hdf5(folder / "two.h5", train=(X, np.c_[y, 100 * y]))
    fixed = ["--sigma", "2", "--lambda", "1e-3", "--partitions", "3", "--quiet", "--model"]
    for name in ("one", "two"):
        run("cakrr.bkrr2", [folder / f"{name}.h5", *fixed, folder / name, "--calibrate", ".2", "--keep-factors"])
    run("cakrr.bkrr2", [folder / "one.h5", *fixed, folder / "plain"])
    return folder


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--std"], "mean,std"),
        (["--interval", "0.8"], "mean,lower,upper"),
        (["--std", "--interval", "0.8", "--adaptive"], "mean,std,lower,upper"),
        (["--interval", "0.8", "--adaptive", "parts"], "mean,lower,upper"),
    ],
)
@pytest.mark.parametrize("name", ["one", "two"])
def test_columns_and_report(name, options, names, saved, tmp_path):
    """The columns are the model's answers, and the report's figures are those of the columns."""
    words = [saved / name, saved / f"{name}.h5", "-o", tmp_path / "o.csv", *options]
    report = reported("cakrr.predict", words, tmp_path)
    model = KRRModel.load(saved / name)
    adaptive = None if "--adaptive" not in options else "parts" if options[-1] == "parts" else "std"
    with h5py.File(saved / f"{name}.h5") as file:
        X, y = file["train/X"][:], file["train/y"][:]
    lines = (tmp_path / "o.csv").read_text().splitlines()
    assert lines[0] == (names if name == "one" else ",".join(f"{n} {j}" for n in names.split(",") for j in range(2)))
    values = np.loadtxt(lines[1:], delimiter=",").reshape(300, -1, *y.shape[1:])
    got = dict(zip(names.split(","), np.moveaxis(values, 1, 0), strict=True))
    mean, std = model.predict_std(X)
    near(got["mean"], mean, 1e-9)
    if "std" in got:
        near(got["std"], std, 1e-9)
        near(report["metrics"]["nll"], -np.mean(norm(mean, std).logpdf(y)), 1e-9)
        grid = np.linspace(-12, 12, 4001)  # the integral of the squared distance from the step at y
        steps = norm.cdf(grid)[:, None] - (grid[:, None] >= ((y - mean) / std).ravel())
        near(report["metrics"]["crps"], np.mean(trapezoid(steps**2, grid, axis=0) * std.ravel()), 1e-2 * std.mean())
    if "lower" in got:
        for end, other in zip(("lower", "upper"), model.predict_interval(X, 0.8, adaptive), strict=True):
            near(got[end], other, 1e-9)
        held = np.mean((got["lower"] <= y) & (y <= got["upper"]))
        width = np.mean(got["upper"] - got["lower"])
        assert report["intervals"] == {
            "asked": 0.8, "adaptive": adaptive, "rows": "held out", "calibration_rows": 60,
            "coverage": pytest.approx(held, abs=1e-3), "mean_width": pytest.approx(width),
        }  # fmt: skip


def test_without_targets(saved, tmp_path):
    """Intervals have a width, and hold what is not known."""
    write_hdf5(tmp_path / "x.h5", test=(noisy_waves(20)[0], None))
    report = reported("cakrr.predict", [saved / "one", tmp_path / "x.h5", "--interval", "0.5", "--std"], tmp_path)
    assert report["metrics"] == {}
    assert "coverage" not in report["intervals"]
    assert report["intervals"]["mean_width"] > 0


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("one", ["--interval", "1"], "--interval 1: it must be a number between 0 and 1"),
        ("one", ["--interval", "0.99"], "coverage 0.99 needs 99 rows to calibrate on, and the model has 60"),
        ("one", ["--adaptive"], "--adaptive: needs --interval"),
        ("plain", ["--interval", "0.9"], "the model was trained without calibrate; train it"),
    ],
)
def test_predictions_that_are_refused(model, options, says, saved, capsys):
    with pytest.raises(SystemExit) as ended:
        run("cakrr.predict", [saved / model, saved / "one.h5", *options])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_a_score_of_no_deviation():
    """The error itself; its likelihood is none."""
    y, mean, std = np.array([1.0, 2.0]), np.zeros(2), np.zeros(2)
    assert gaussian_scores(y, mean, std, Communicator()) == {"nll": np.inf, "crps": 1.5}
