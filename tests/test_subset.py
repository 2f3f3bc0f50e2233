"""Least squares on M points against the formula, left-out rows against leaving them out, and the command."""

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.commands import flat, reported, run
from helpers.data import write_hdf5

from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.learn.options import declared
from cakernels import SubsetKRR
from cakrr import KRRModel
from cakrr.options import OPTIONS, RidgeOptions, SubsetOptions
from cakrr.solver.nystrom import PointSystem
from cakrr.subset import METHOD

SIGMA = 1.5
KERNEL = Kernel.gaussian(SIGMA)


def problem(n=300, t=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    Y = np.sin(X) + 0.1 * rng.normal(size=X.shape) + 5.0
    return X, Y.sum(axis=1) if t is None else Y[:, :t], rng.integers(1, 4, size=n).astype(float)


def gram(A, B):
    return np.exp(-((A[:, None] - B) ** 2).sum(axis=2) / (2 * SIGMA**2))


def by_formula(X, y, w, Z, lam):
    """Coefficients and the matrix of the normal equations, of targets less their mean, and this mean."""
    K, mean = gram(X, Z), w @ y / w.sum()
    H = K.T * w @ K + lam * w.sum() * gram(Z, Z)
    return np.linalg.solve(H, K.T * w @ (y - mean)), H, mean


def fitted(X, y, w=None, lam=1e-3, **more):
    given = {"sigma": SIGMA, "lam": lam, "standardize": False, "random_state": 0, **more}
    return SubsetKRR(**given).fit(X, y, w)


@pytest.mark.parametrize("t", [None, 2])
@pytest.mark.parametrize("form", ["dense", "csr", "float32"])
def test_coefficients_and_deviations(form, t):
    X, y, w = problem(t=t)
    Z, T = X[:40], problem(50, seed=1)[0]
    rows, dtype = (sp.csr_matrix(X), "float64") if form == "csr" else (X, form if form == "float32" else "float64")
    model = fitted(rows, y, w, centers=rows[:40] if form == "csr" else Z, dtype=dtype)
    c, H, mean = by_formula(X, y, w, Z, 1e-3)
    close = {"rtol": 1e-7, "atol": 1e-7} if dtype == "float64" else {"rtol": 1e-3, "atol": 1e-3}
    k = gram(T, Z)
    answers, std = model.predict(T if form != "csr" else sp.csr_matrix(T), return_std=True)
    np.testing.assert_allclose(answers, k @ c + mean, **close)
    np.testing.assert_array_equal(model.predict(T), answers) if form == "dense" else None
    # v (n / w + k' H^-1 k + (k(x,x) - k' K^-1 k) / (lambda w))
    K, n, total = gram(X, Z), len(X), w.sum()
    free = np.trace(np.linalg.solve(H, K.T * w @ K))
    v = w @ (y - mean - K @ c) ** 2 / (n - free)
    outside = 1 - np.einsum("ij,ij->i", k, np.linalg.solve(gram(Z, Z), k.T).T)
    variance = n / total + np.einsum("ij,ij->i", k, np.linalg.solve(H, k.T).T) + outside / (1e-3 * total)
    np.testing.assert_allclose(std, np.sqrt(np.multiply.outer(variance, v)), rtol=1e-5 if dtype == "float64" else 1e-2)
    assert model.coef_.shape == (40, *y.shape[1:])


@pytest.mark.parametrize("select", ["loo", "gcv"])
@pytest.mark.parametrize("t", [None, 2])
def test_errors_that_choose(select, t):
    """Errors of leaving out each row, with the mean, the points and the ridge of all rows; or GCV's formula."""
    X, y, w = problem(60, t=t)
    lams, Ms = (1e-4, 1e-2), (10, 25)
    model = fitted(X, y, w, lams, centers=Ms, select=select)
    Z = model.model_.coarse.centers
    unit = np.sqrt(w @ (y - w @ y / w.sum()) ** 2 / w.sum() * t) if t else 1.0  # targets count alike
    assert len(model.grid_) == 4
    for row in model.grid_:
        lam, points = row["lambda"], fitted(X, y, w, 1e-3, centers=25).centers_[: row["centers"]]
        c, H, mean = by_formula(X, y, w, points, lam)
        K = gram(X, points)
        gap = (y - mean - K @ c) / unit
        hat = w * np.einsum("ij,ij->i", K, np.linalg.solve(H, K.T).T)
        share = 1 - hat if select == "loo" else np.full(len(X), 1 - hat.sum() / len(X))
        expected = np.sum(w * (gap.T / share) ** 2) / w.sum()
        if select == "gcv":  # Lukas's robust form
            G = np.linalg.solve(H, K.T * w @ K)
            expected *= 1 + 0.7 / 0.3 * np.trace(G @ G) / len(X)
        assert row[f"{select}_mse"] == pytest.approx(expected, rel=1e-7)
    if select == "loo" and t is None:  # the formula itself, by leaving out a row
        one = np.arange(len(X)) != 7
        K = gram(X, points)
        left = np.linalg.solve(H - w[7] * np.outer(K[7], K[7]), K[one].T * w[one] @ (y - mean)[one])
        assert (y[7] - mean - K[7] @ left) == pytest.approx((gap.T / share)[7], rel=1e-8)
    best = min(model.grid_, key=lambda row: row[f"{select}_mse"])
    assert (model.lam_, model.params_["centers"], len(Z)) == (best["lambda"], best["centers"], best["centers"])


def test_gcv_where_leverages_differ():
    """Rows dense here and sparse there: plain GCV takes lambda 1e-11, and R^2 is -359."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((1200, 1)) < 0.6, 0.3, 4.0) * rng.normal(size=(1200, 3))
    y = np.sin(2 * X).sum(axis=1) + 0.5 * rng.normal(size=len(X))
    models = [fitted(X[:600], y[:600], lam=np.logspace(-11, 0, 12), centers=300, select=one) for one in ("gcv", "loo")]
    scores = [model.score(X[600:], y[600:]) for model in models]
    assert scores[0] > scores[1] - 0.05 > 0.15


def test_small_lambdas_keep_their_digits():
    """Where normal equations have no factor, the errors on the rows are those of LAPACK's gelsd."""
    X, y, _ = problem(500)
    Z, lam = X[:200], 1e-16
    K, ridge = gram(X, Z), lam * len(X)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(K.T @ K + ridge * gram(Z, Z))
    model = fitted(X, y, lam=lam, centers=Z)
    L = np.linalg.cholesky(gram(Z, Z) + 1e-14 * len(Z) * np.eye(len(Z)))
    whole = np.vstack([K, np.sqrt(ridge) * L.T])
    c = np.linalg.lstsq(whole, np.append(y - y.mean(), np.zeros(len(Z))), rcond=1e-17)[0]
    np.testing.assert_allclose(model.predict(X), K @ c + y.mean(), atol=1e-5)
    assert model.params_["condition"] == pytest.approx(np.linalg.cond(K), rel=50)


def test_lambda_path_equals_separate_fits():
    X, y, w = problem(200)
    R = np.linalg.qr(np.sqrt(w)[:, None] * np.hstack([gram(X, X[:30]), y[:, None]]))[1]
    system = PointSystem(
        R[:30, :30], R[:30, 30:], np.square(R[30, 30:]), np.linalg.cholesky(gram(X[:30], X[:30])), w.sum(), 200
    )
    lams = (1e-12, 1e-8, 1e-3, 10.0)
    path = system.path(lams)
    for ell, lam in enumerate(lams):
        c, C = system.solve(lam)
        P = np.linalg.solve(C.T, system.R.T)
        assert path.freedom[ell] == pytest.approx(np.square(P).sum(), rel=1e-8)
        assert path.residuals()[ell, 0] == pytest.approx(w @ (y - gram(X, X[:30]) @ c[:, 0]) ** 2, rel=1e-8)


@pytest.mark.parametrize("pick", ["random", "pivots", "kmeans"])
def test_points(pick):
    X, y, _ = problem(250)
    X[100:], y[100:] = X[:150], y[:150]  # repeated rows are no further points
    model = fitted(X, y, centers=50, pick=pick, lam=1e-6)
    assert len(np.unique(model.centers_, axis=0)) == len(model.centers_) <= 50
    assert (model.centers_[:, None] == X).all(axis=2).any(axis=1).all() == (pick != "kmeans")
    assert model.score(X, y) > 0.95
    with pytest.warns(UserWarning, match="centers = 160: only 150"):
        fitted(X, y, centers=160, lam=1e-6)


def test_defaults_and_pickles(tmp_path):
    X, y, _ = problem(120)
    model = SubsetKRR(random_state=0).fit(X, y)
    assert model.params_["centers"] == 120
    assert len(model.grid_) == 5 * 8
    model.save(tmp_path / "m.h5")
    loaded = KRRModel.load(tmp_path / "m.h5")
    for mine, other in zip(model.predict(X, return_std=True), loaded.predict_std(X), strict=True):
        np.testing.assert_array_equal(mine, other)
    with pytest.raises(InputError, match="trained without calibrate"):
        model.predict_interval(X)


COINCIDE = np.arange(12.0).reshape(4, 3)[[0, 1, 2, 1]]
BAD = {
    "more than rows": ({"centers": 61}, "centers = 61: there are 60 rows"),
    "coincide": ({"centers": COINCIDE}, "centers: rows 1 and 3 coincide"),
    "features": ({"centers": np.ones((2, 2))}, r"centers: their shape is \(2, 2\), and the rows have 3 features"),
    "nan": ({"centers": np.array([[0, 1, np.nan]])}, "centers: row 0, column 2 is nan"),
    "text": ({"centers": np.array([["a", "b", "c"]])}, "centers: an array of shape"),
    "pick": ({"pick": "best"}, "pick = 'best': it must be one of random, pivots, kmeans"),
    "select": ({"select": "validation"}, "select = 'validation'"),
    "width": ({"kernel": "linear"}, "linear kernel has no width"),
    "shape": ({"rows": 3}, "rows: give the centers|rows = 3"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_parameters(name):
    X, y, _ = problem(60)
    given, message = BAD[name]
    rows = () if "rows" in given else (X, y)
    estimator = SubsetKRR(**{"sigma": SIGMA, "lam": 1e-3, "centers": X[:5], **given})
    with pytest.raises(InputError, match=message):
        estimator.fit(*rows)


def test_parameters_are_options_of_the_command():
    """All but the way in which a call is made; and each refuses by its own name."""
    known = {what.estimator for one, what in declared(SubsetOptions) if what.estimator and METHOD.has(one.name)}
    parameters = set(SubsetKRR().get_params())
    assert parameters - {"comm", "random_state", "dtype", "rows", "shares", "checkpoint", "columns"} == known
    X, y, _ = problem(30)
    for name, value in (
        ("degree", 1.5),
        ("coef0", np.nan),
        ("sigma", -1),
        ("lam", []),
        ("kernel", "cosine"),
        ("centers", 0),
    ):
        with pytest.raises(InputError, match=f"^{name}"):
            SubsetKRR(**{name: value}).fit(X, y)


def test_command(tmp_path, python, capsys):
    X, y, _ = problem(200)
    data, model, kept = write_hdf5(tmp_path / "d.h5", train=(X[:150], y[:150]), test=(X[150:], y[150:])), "m.h5", "kept"
    words = [data, "--centers", "20,40", "--sigma", "1,2", "--model", tmp_path / model, "--checkpoint", tmp_path / kept]
    made = reported("cakrr.subset", words, tmp_path)
    assert len(made["grid"]) == 2 * 2 * 8
    assert made["metrics"]["r2"] > 0.9
    assert made["params"]["centers"] in (20, 40)
    assert made["partition_sizes"] == [150]
    run("cakrr.subset", [*words, "--verbose"])
    told = capsys.readouterr().out
    assert "resumed: 4 other pieces" in told
    assert "mean squared error on rows left out one by one, 32 settings" in flat(told)
    assert reported("cakrr.subset", words, tmp_path)["metrics"] == made["metrics"]
    run("cakrr.predict", [tmp_path / model, data, "--std", "-o", tmp_path / "o.csv", "--quiet"])
    table = np.loadtxt(tmp_path / "o.csv", delimiter=",", skiprows=1)
    loaded = KRRModel.load(tmp_path / model)
    np.testing.assert_allclose(table.T, loaded.predict_std(X[150:]), rtol=1e-14)
    assert loaded.explain(X[150:155]).values.shape == (5, 3)
    refused = python("-m", "cakrr.subset", data, "--centers", "151", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "cakrr.subset: centers = 151: there are 150 rows; use at most as many centers\n"


@pytest.mark.parametrize(
    "other", [{"near": True}, {"partitions": 4}, {"solver": "cg"}, {"route": "soft"}, {"divisions": 3}, {"refine": 2}]
)
def test_options_of_other_methods_are_refused(other):
    (name,) = other
    with pytest.raises(InputError, match=f"^{name}: subset has no such option"):
        SubsetOptions(**other).checked(METHOD)


def test_inherited_ridge_options_are_those_listed():
    """A new option of the other methods must not appear here by itself."""
    inherited = {one.name for one, _ in declared(RidgeOptions)} - SubsetOptions.__annotations__.keys()
    assert {name for name in inherited if METHOD.has(name)} == set(OPTIONS)


def test_empty_blocks_of_rows_change_nothing():
    rng = np.random.default_rng(0)
    A, y, centers = rng.normal(size=(90, 5)), rng.normal(size=90), rng.normal(size=(5, 2))

    def fitted(*ends):
        blocks = [(A[lo:hi], y[lo:hi]) for lo, hi in ends]
        model = SubsetKRR(sigma=1.0, lam=[1e-3, 1e-1], select="loo", centers=centers, rows=blocks).fit()
        return model.predict(centers)

    np.testing.assert_allclose(fitted((0, 40), (40, 40), (40, 90)), fitted((0, 90)), rtol=1e-9)


@pytest.mark.parametrize("kernel", ["linear", "polynomial"])
def test_pivots_of_constant_columns_predict_the_mean(kernel):
    y = np.arange(30.0)
    model = SubsetKRR(kernel=kernel, lam=[1e-3, 1e-2], pick="pivots", random_state=0).fit(np.ones((30, 3)), y)
    np.testing.assert_allclose(model.predict(np.ones((2, 3))), y.mean())
