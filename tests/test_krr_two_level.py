"""The coarse model against its normal equations, and two-level KRR put together by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close
from helpers.data import as_csr, dense, formats
from helpers.data import saddle as rows
from helpers.references import matrix, ridge
from scipy.spatial.distance import cdist
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import StandardScaler

from cacore.comm import Communicator
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError, MemoryLimitError
from cacore.io import Dataset
from cacore.kernels import Kernel
from cacore.run.family import Run
from cakrr import BKRR2, KRRModel, TwoLevelKRR, twolevel
from cakrr.methods import choose as training
from cakrr.options import ALONE, LAMS, RidgeOptions
from cakrr.ridge_family import Ridge
from cakrr.ridge_model import RidgeFit
from cakrr.solver.coarse import candidates
from partition.redistribute import Parts

GAUSSIAN = Kernel(gamma=0.5)


def settings(centers, sigma, lam, kernel=GAUSSIAN):
    names = {"kernel": kernel.kind, "degree": kernel.degree, "coef0": kernel.coef0}
    return RidgeOptions(centers=centers, coarse_sigma=sigma, coarse_lam=lam, **names)


def told(settings):
    """With the number sigma in the place of a kernel of that width."""
    return [tuple(getattr(value, "sigma", value) for value in one) for one in settings]


FEW = settings((7, 20), (0.7, 1.5), (1e-4, 1e-2))


def learn(X, y, options=FEW, held=12, order=None, limit=1 << 40, **columns):
    """All candidates, of rows in one part in shuffled order; the first rows are held out."""
    n, d = X.shape
    columns |= {"y": y, "order": np.arange(n) if order is None else order}
    parts = Parts(X, columns, np.array([0]), np.array([0, n]), sizes=np.array([n]))
    held = np.arange(n) < held
    return candidates(parts, held, options.coarse_grid(n, d), limit, None, Communicator())


def by_hand(X, y, Z, sigma, lam, w=None):
    """The coefficients from (K'WK + lam sum(w) Kmm) beta = K'W y."""
    X, Z = dense(X), dense(Z)
    w, gamma = np.ones(len(y)) if w is None else w, 1 / (2 * sigma**2)
    K = rbf_kernel(X, Z, gamma=gamma)
    return np.linalg.solve(K.T @ (w[:, None] * K) + lam * w.sum() * rbf_kernel(Z, gamma=gamma), K.T @ (w * y))


def answers(T, Z, sigma, beta):
    return rbf_kernel(T, Z, gamma=1 / (2 * sigma**2)) @ beta


# -- the coarse model --------------------------------------------------------------------------


@formats
@pytest.mark.parametrize("way", ["normal equations", "triangle"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
def test_candidates_solve_the_normal_equations(csr, weighted, way, tuned):
    """`learned` from the rows that are not held out, `whole` from all; centres are the last rows, and nested."""
    if way == "triangle":
        tuned(worst_condition=0.0)
    (X, y), (T, _) = rows(zeros=0.4 if csr else 0), rows(40, 1)
    w = np.random.default_rng(2).uniform(0.3, 3, 120)
    given = {"weight": w} if weighted else {}
    tried = learn(as_csr(X, csr), y, **given)
    w = w if weighted else np.ones(120)
    assert told(tried.settings) == [(M, s, lam) for s in (0.7, 1.5) for M in (7, 20) for lam in (1e-4, 1e-2)]
    centers = dense(tried.centers)
    np.testing.assert_array_equal(centers, X[::-1][:20])
    predicted = tried.predictions(T)
    assert predicted.shape == (40, 8)
    assert bool(tried.reasons) == (way == "triangle")
    for c, (M, sigma, lam) in enumerate(told(tried.settings)):
        learned = answers(T, centers[:M], sigma, by_hand(X[12:], y[12:], centers[:M], sigma, lam, w[12:]))
        close(predicted[:, c], learned, 1e-6)
        model = tried.chosen(c)
        assert (model.centers.shape, model.beta.shape, model.sigma, model.lam) == ((M, 3), (M,), sigma, lam)
        whole = answers(T, centers[:M], sigma, by_hand(X, y, centers[:M], sigma, lam, w))
        close(model.predict(T), whole, 1e-6)
        assert np.abs(learned - whole).max() > 1e-4 * np.abs(whole).max()  # the rows held out matter


def test_tiny_lambdas_are_fitted_by_a_triangle():
    """Only then; many targets, too. Normal equations would be far off, or have no factor."""
    X, y = rows(400)
    Y, lam = np.stack([y, y**2], axis=1), 1e-15
    tried = learn(X, Y, settings((150,), (1.5,), (lam,)), held=0)
    assert "triangle" in tried.reasons[0]
    Z, gamma = tried.centers, 1 / (2 * 1.5**2)
    K, L = rbf_kernel(X, Z, gamma=gamma), np.linalg.cholesky(rbf_kernel(Z, gamma=gamma) + 1.5e-12 * np.eye(150))
    whole = np.vstack([K, np.sqrt(lam * 400) * L.T])
    beta = np.linalg.lstsq(whole, np.vstack([Y, np.zeros((150, 2))]), rcond=1e-17)[0]
    close(tried.chosen(0).predict(X), K @ beta, 1e-5)
    assert not learn(X, y, settings((150,), (1.5,), (1e-7,))).reasons
    fitted = train(X, y, settings((20,), (1.5,), (lam,)))
    assert "the coarse model was fitted by a triangle" in " ".join(fitted.reasons)


def test_nothing_held_out_learns_from_all():
    tried = learn(*rows(), held=0)
    np.testing.assert_array_equal(tried.learned, tried.whole)


def test_whole_does_not_depend_on_what_is_held_out():
    X, y = rows()
    few, many = learn(X, y, held=3), learn(X, y, held=90)
    close(few.whole, many.whole, 1e-7)
    hidden = y.copy()
    hidden[:90] = 1e6
    np.testing.assert_array_equal(learn(X, hidden, held=90).learned, many.learned)


@formats
def test_csr_is_dense(csr):
    """Rows in either form, and test rows in either form; single precision is widened."""
    (X, y), (T, _) = rows(zeros=0.4), rows(40, 1, zeros=0.4)
    X, T = X.astype(np.float32), T.astype(np.float32)
    expected = learn(X.astype(np.float64), y).predictions(T)
    got = learn(sp.csr_matrix(X), y).predictions(as_csr(T, csr))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(learn(X, y).predictions(T), expected)


def test_a_row_of_weight_two_is_the_row_twice():
    X, y = rows()
    counts = np.ones(120, np.int64)
    counts[:90] = np.random.default_rng(0).integers(1, 4, 90)  # the centres, the last 20, stay once
    weighted = learn(X, y, held=12, weight=counts.astype(float))
    twice = learn(np.repeat(X, counts, axis=0), np.repeat(y, counts), held=int(counts[:12].sum()))
    for c in range(8):
        close(weighted.predictions(X)[:, c], twice.predictions(X)[:, c], 1e-8)
        close(weighted.chosen(c).predict(X), twice.chosen(c).predict(X), 1e-8)


def test_equal_rows_as_centers():
    """K_MM is singular: still a model, and that of the rows that differ."""
    X, y = rows()
    X[100:110] = X[110:]
    y[100:110] = y[110:]
    tried = learn(X, y, settings((20,), (1.5,), (1e-3,)))
    assert np.isfinite(tried.whole).all()
    expected = answers(X, X[110:], 1.5, by_hand(X, y, X[110:], 1.5, 1e-3))
    close(tried.chosen(0).predict(X), expected, 1e-6)
    one = learn(np.ones((30, 3)), np.ones(30), settings((8,), (1.0,), (1e-6,)), held=3)
    np.testing.assert_allclose(one.predictions(np.ones((2, 3))), 1.0, rtol=1e-4)


@pytest.mark.parametrize(
    "kernel", [GAUSSIAN, Kernel("linear"), Kernel("polynomial", 0.5, 2, 1.0)], ids=lambda kernel: kernel.kind
)
def test_more_centers_than_rows_is_kernel_ridge(kernel):
    """All rows are centres: the subset of regressors is then exact; numbers that come to the same are tried once."""
    (X, y), (T, _) = rows(50), rows(40, 1)
    tried = learn(X, y, settings((60, 50, 999), (1.0,), (1e-3,), kernel), held=0)
    assert told(tried.settings) == [(50, 1.0, 1e-3)]
    reference = KernelRidge(kernel="precomputed", alpha=1e-3 * 50).fit(matrix(kernel, X), y)
    close(tried.predictions(T)[:, 0], reference.predict(matrix(kernel, T, X)), 1e-6)


def test_kernel_scale_does_not_change_the_coarse_model():
    """A linear kernel of few features has no factor without a number on its diagonal, as small as its values ask."""
    X, y = rows()
    once, small = (
        learn(scale * X, y, settings((20,), (1.0,), (1e-4 * scale**2,), Kernel("linear"))).predictions(scale * X)
        for scale in (1.0, 1e-10)
    )
    close(small, once)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize("scale", [1e150, 1e200])
def test_values_that_are_not_finite(scale):
    X, y = rows()
    with pytest.raises(InputError, match="no coarse model could be solved"):
        learn(scale * X, y, settings((20,), (1.0,), (1e-4,), Kernel("polynomial")))


def test_defaults():
    """Fewer centres with the wide kernel; given numbers of them with both."""
    assert told(RidgeOptions().coarse_grid(10_000, 4)) == [(1.0, [500, 1000, 1500], LAMS), (4.0, [500, 1000], LAMS)]
    assert told(RidgeOptions(centers=(30,)).coarse_grid(1000, 4)) == [(1.0, [30], LAMS), (4.0, [30], LAMS)]
    assert told(settings(None, (2.0,), (1.0,)).coarse_grid(600, 4)) == [(2.0, [500, 600], (1.0,))]
    assert told(RidgeOptions(kernel="linear").coarse_grid(10_000, 4)) == [(1.0, [500, 1000, 1500], LAMS)]


def test_centers_are_drawn_from_the_end_of_the_shuffled_order():
    """Whatever the parts do to the order of the rows."""
    X, y = rows()
    order = np.random.default_rng(3).permutation(120)
    tried = learn(X, y, order=order, held=0)
    np.testing.assert_array_equal(tried.centers, X[np.argsort(-order)][:20])


def test_memory():
    """Refused before any work, with both figures and a remedy."""
    X, y = rows()
    given = settings((100,), (1.0,), (1e-3,))
    need = 8 * (2 * 100**2 + 3 * 100**2 + 2 * 100 * 2048)
    with pytest.raises(MemoryLimitError, match=r"a coarse model of 100 centers needs .*GiB.*fewer --centers"):
        learn(X, y, given, 0, limit=need - 1)
    learn(X, y, given, 0, limit=need)


# -- two levels --------------------------------------------------------------------------------


def train(X, y, options, weights=None):
    return twolevel.METHOD(Dataset(X.copy(), y, weights=weights), options)


ONE = replace(settings((20,), (1.5,), (1e-4,)), partitions=4, sigma=(0.5,), lam=(1e-3,), route="nearest")


@formats
@pytest.mark.parametrize("route", ["nearest", "soft", "all"])
def test_prediction_is_coarse_plus_local(route, csr):
    """Every piece by hand: scaling, coarse model, residuals, the parts' models, and what routes them."""
    (X, y), (T, _) = rows(160, zeros=0.4 if csr else 0), rows(40, 1)
    X, T, y = X * [1, 20, 0.1], T * [1, 20, 0.1], y + 30
    result = train(as_csr(X, csr), y, replace(ONE, route=route))
    model = result.model
    scaler = StandardScaler(with_mean=not csr).fit(X)
    Z, S = scaler.transform(X), scaler.transform(T)
    centers = dense(model.coarse.centers)
    assert (cdist(centers, Z).min(axis=1) < 1e-12).all()
    beta = by_hand(Z, y - y.mean(), centers, 1.5, 1e-4)
    residual = y - y.mean() - answers(Z, centers, 1.5, beta)
    local = []
    for part in range(4):
        own = cdist(dense(model.parts[part].X), Z).argmin(axis=1)
        local.append(ridge(0.5, 1e-3 * len(own)).fit(Z[own], residual[own]).predict(S))
    local, squares = np.array(local).T, cdist(S, model.centers, "sqeuclidean")
    if route == "soft":
        assert result.params["soft_k"] == model.soft.k
        order = np.argsort(squares, axis=1)[:, : model.soft.k]
        near = np.take_along_axis(squares, order, axis=1)
        share = np.exp(-(near - near[:, :1]) / model.soft.t)
        parts = (share / share.sum(axis=1, keepdims=True) * np.take_along_axis(local, order, axis=1)).sum(axis=1)
    else:
        parts = local.mean(axis=1) if route == "all" else local[np.arange(40), squares.argmin(axis=1)]
    expected = y.mean() + answers(S, centers, 1.5, beta) + parts
    # Both solve normal equations with lambda = 1e-4, whose rounding is the processor's: 1.3e-6 was seen.
    np.testing.assert_allclose(model.predict(as_csr(T, csr)), expected, rtol=1e-5)


def test_centers_are_no_validation_rows():
    """Few centres, of the end of the shuffled order, and validation rows of the start: none is both."""
    for seed in range(5):
        X, y = rows(200, seed)
        seen = {}
        original = training.candidates

        def spy(parts, held, *rest, seen=seen, original=original):
            seen["held"], seen["tried"] = parts.X[held].copy(), original(parts, held, *rest)
            return seen["tried"]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "candidates", spy)
            train(X, y, replace(ONE, lam=(1e-3, 1e-2), seed=seed))
        assert len(seen["held"]) == 20
        assert cdist(seen["held"], seen["tried"].centers).min() > 1e-9


def test_choice_is_the_least_validation_error():
    """Every candidate with every pair, by hand: the coarse model and the parts without the rows held out."""
    X, y = rows(100)
    options = replace(
        settings((5, 15), (1.0,), (1e-3,)), partitions=2, sigma=(0.5, 1.0), lam=(1e-3, 1e3), route="nearest",
        standardize=False, validation_fraction=0.2,
    )  # fmt: skip
    result = train(X, y, options)
    model, y = result.model, y - y.mean()
    own = [cdist(model.parts[p].X, X).argmin(axis=1) for p in range(2)]  # in shuffled order
    held = np.concatenate([rows[: round(0.2 * len(rows))] for rows in own])
    learnt = np.setdiff1d(np.arange(100), held)
    last = np.argsort(-Shuffle(100, 0).position(np.arange(100)))
    home, expected = cdist(X, model.centers).argmin(axis=1), []
    for M in (5, 15):
        Z = X[last[:M]]
        left = y - answers(X, Z, 1.0, by_hand(X[learnt], y[learnt], Z, 1.0, 1e-3))
        for sigma in (0.5, 1.0):
            for lam in (1e-3, 1e3):
                parts = [np.setdiff1d(rows, held) for rows in own]
                fitted = [ridge(sigma, lam * len(r)).fit(X[r], left[r]) for r in parts]
                gap = [left[i] - fitted[home[i]].predict(X[i : i + 1])[0] for i in held]
                expected.append(((M, sigma, lam), np.mean(np.square(gap))))
    got = [((r["centers"], r["sigma"], r["lambda"]), r["validation_mse"]) for r in result.grid]
    assert [setting for setting, _ in got] == [setting for setting, _ in expected]
    np.testing.assert_allclose([mse for _, mse in got], [mse for _, mse in expected], rtol=1e-6)
    best = min(expected, key=lambda pair: pair[1])[0]
    assert (result.params["centers"], model.sigma, model.lam) == best
    assert (result.params["coarse_sigma"], result.params["coarse_lambda"]) == (1.0, 1e-3)


def test_weights_of_whole_rows():
    """Weights that are all alike say nothing; others do."""
    X, y = rows(100)
    plain, same = train(X, y, ONE), train(X, y, ONE, np.full(100, 7.0))
    np.testing.assert_allclose(same.model.predict(X), plain.model.predict(X), rtol=1e-7)
    other = train(X, y, ONE, np.random.default_rng(0).uniform(0.1, 5, 100))
    assert np.abs(other.model.predict(X) - plain.model.predict(X)).max() > 1e-3


@formats
def test_model_file(csr, tmp_path):
    X, y = rows(100, zeros=0.4 if csr else 0)
    given = as_csr(X, csr)
    model = train(given, y, replace(ONE, route="soft")).model
    model.save(tmp_path / "m.h5")
    back = KRRModel.load(tmp_path / "m.h5")
    assert (back.soft, back.coarse.sigma, back.coarse.lam) == (model.soft, 1.5, 1e-4)
    np.testing.assert_array_equal(back.predict(given), model.predict(given))


@pytest.mark.parametrize("n_parts", [1, None])
def test_one_part(n_parts):
    """The default, on one rank, for up to 8,000 rows: the part's model of what the coarse one leaves over."""
    (X, y), (T, _) = rows(), rows(40, 1)
    model = TwoLevelKRR(
        n_parts, centers=20, coarse_sigma=1.5, coarse_lam=1e-4, sigma=0.5, lam=1e-3, standardize=False, random_state=0
    ).fit(X, y)  # fmt: skip
    Z = model.model_.coarse.centers
    beta = by_hand(X, y - y.mean(), Z, 1.5, 1e-4)
    local = ridge(0.5, 1e-3 * 120).fit(X, y - y.mean() - answers(X, Z, 1.5, beta)).predict(T)
    np.testing.assert_allclose(model.predict(T), y.mean() + answers(T, Z, 1.5, beta) + local, rtol=1e-6)


def test_beats_each_level_alone():
    """The coarse model learns what is smooth everywhere, and the parts what is rough in places."""

    def made(n, seed):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-3, 3, size=(n, 2))
        smooth = 5 * np.sin(0.6 * X[:, 0]) + 3 * np.cos(0.5 * X[:, 1])
        return X, smooth + 0.5 * np.sin(9 * X[:, 0]) + 0.1 * rng.normal(size=n)

    (X, y), (T, t) = made(900, 0), made(400, 1)
    grid = {"sigma": [0.05, 0.15, 0.5, 2.0], "n_parts": 12, "random_state": 0}
    coarse_grid = {"centers": 40, "coarse_sigma": [1.0, 2.0], "coarse_lam": [1e-6, 1e-4]}
    two = TwoLevelKRR(**grid, lam=[1e-4, 1e-3, 1e-2], **coarse_grid).fit(X, y)
    alone = TwoLevelKRR(**grid | {"sigma": 0.15}, lam=ALONE, **coarse_grid).fit(X, y)
    parts = BKRR2(**grid, lam=[1e-6, 1e-5, 1e-4, 1e-3, 1e-2]).fit(X, y)
    mse = {name: np.mean((m.predict(T) - t) ** 2) for name, m in (("two", two), ("alone", alone), ("parts", parts))}
    assert mse["two"] < 0.5 * mse["alone"]
    assert mse["two"] < 0.9 * mse["parts"]


def test_refined_models_do_not_follow_the_noise():
    """The lambda of 20 centres is far too small for all rows: with it errors are 12 and 30, and .13 unrefined."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    truth = np.sin(2 * X[:, 0]) + X[:, 1]
    y = truth + rng.normal(size=600)
    for N in (1, 5):
        model = TwoLevelKRR(3, centers=20, refine=N, random_state=0).fit(X[:400], y[:400])
        assert np.mean(np.square(model.predict(X[400:]) - truth[400:])) < 0.2
        assert model.params_["coarse_lambda"] > 10 * min(LAMS)


@pytest.mark.parametrize(("lam", "told"), [(1e-2, False), (1e-4, True), (1e-3, False), (1e3, False)])
def test_no_local_model_is_beyond_the_end_of_the_grid(lam, told):
    """The grid of lambdas goes on to 1000, which means no local model: .01 is not its end."""
    grid = [{"sigma": 1.0, "lambda": one, "validation_mse": 1.0} for one in (1e-4, 1e-3, 1e-2, 1e3)]
    model = SimpleNamespace(
        sigma=1.0, sigmas=None, lam=lam, like=SimpleNamespace(kind="gaussian"), coarse=object(), on_points=False
    )
    fitted = RidgeFit(model, np.ones(1), grid=grid)
    assert fitted.at_grid_end == ({"lambda": lam} if told else {})
    notes = Ridge().notes(Run(twolevel.METHOD, None, RidgeOptions(), Communicator(), 0), fitted)
    assert any("end of its grid" in note for note in notes) == told
    assert any("add next to nothing" in note for note in notes) == (lam == 1e3)
