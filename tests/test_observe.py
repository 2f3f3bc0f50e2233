"""Observations: rows of values, sums and gradients against finite differences, and models fitted to them."""

import numpy as np
import pytest
import scipy.sparse as sp

from cacore.errors import InputError
from cacore.kernels import KINDS, Kernel
from cakernels import SubsetKRR
from cakrr import observe

ROUGH = ("laplacian", "l1", "wendland0", "wendland0_product")
STEP = 1e-5


def kernel(kind):
    return Kernel(kind, gamma=0.3, degree=3, coef0=0.5)


def points():
    """Rows, of which one is a centre, and centres."""
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(7, 4)), rng.normal(size=(12, 4))
    X[2] = Z[3]
    return X, Z


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ROUGH])
def test_gradients_are_finite_differences(kind):
    X, Z = points()
    found = observe.gradients(X).rows(kernel(kind), Z).reshape(7, 4, 12)
    for j, step in enumerate(STEP * np.eye(4)):
        up, down = (observe.values(X + sign * step).rows(kernel(kind), Z) for sign in (1, -1))
        np.testing.assert_allclose(found[:, j], (up - down) / (2 * STEP), atol=1e-7)
    rng = np.random.default_rng(1)
    along, groups = rng.normal(size=(7, 3, 4)), rng.integers(0, 5, size=(7, 3))
    every = np.einsum("nkd,ndm->nkm", along, found)
    np.testing.assert_allclose(observe.gradients(X, along).rows(kernel(kind), Z), every.reshape(21, 12), atol=1e-12)
    sums = observe.gradients(X, along, groups).rows(kernel(kind), Z)
    for group in range(5):
        np.testing.assert_allclose(sums[group], every[groups == group].sum(axis=0), atol=1e-12)


def test_values_and_sums():
    X, Z = points()
    k = np.exp(-0.3 * ((X[:, None] - Z) ** 2).sum(axis=2))
    for rows, centers in ((X, Z), (sp.csr_matrix(X), sp.csr_matrix(Z)), (X.tolist(), Z)):
        np.testing.assert_allclose(observe.values(rows).rows(kernel("gaussian"), centers), k, rtol=1e-12)
    groups = [0, 2, 0, 2, 2, 0, 3]
    total = observe.sums(X, groups).rows(kernel("gaussian"), Z)
    np.testing.assert_allclose(total, [k[np.array(groups) == g].sum(axis=0) for g in range(4)], rtol=1e-12)
    assert len(observe.sums(X, groups)) == 4
    assert len(observe.gradients(X)) == 28


@pytest.mark.parametrize("kind", ROUGH)
def test_rough_kernels_are_refused(kind):
    X, Z = points()
    with pytest.raises(InputError, match=f"observe.gradients: the {kind} kernel has no gradient"):
        observe.gradients(X).rows(kernel(kind), Z)
    with pytest.raises(InputError, match="the laplacian kernel has no gradient"):
        SubsetKRR(kernel="laplacian", sigma=1.0, lam=1e-3, centers=Z, rows=[(observe.gradients(X), np.ones(28))]).fit()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X: observe.values(X[0]), r"X has shape \(4,\)"),
        (lambda X: observe.values([["a"]]), "numbers are needed"),
        (lambda X: observe.sums(X, [0, 1]), "groups has 2 entries of type int64; 7 whole numbers"),
        (lambda X: observe.sums(X, -np.ones(7, int)), "groups"),
        (lambda X: observe.sums(X, np.ones(7)), "of type float64"),
        (lambda X: observe.gradients(X, np.ones((7, 4))), r"along has shape \(7, 4\); \(7, k, 4\) is needed"),
    ],
)
def test_bad_observations(make, message):
    with pytest.raises(InputError, match=message):
        make(points()[0])


def mixed(share, shares):
    """Values, sums and gradients of sin(x_1) + x_2^2, in blocks of the ten sets of a share."""
    for seed in range(share * 40 // shares, (share + 1) * 40 // shares):
        X = np.random.default_rng(seed).uniform(-2, 2, size=(9, 2))
        f, slope = np.sin(X[:, 0]) + X[:, 1] ** 2, np.stack([np.cos(X[:, 0]), 2 * X[:, 1]], axis=1)
        yield observe.sums(X[:4], [0, 0, 1, 1]), f[:4].reshape(2, 2).sum(axis=1), 2.0
        yield observe.gradients(X[4:]), slope[4:].ravel(), np.full(10, 0.5)
        if seed % 8 == 0:
            yield observe.values(X), f


CENTERS = np.stack(np.meshgrid(np.linspace(-2, 2, 7), np.linspace(-2, 2, 7)), axis=-1).reshape(-1, 2)


def test_mixed_observations():
    """Coefficients solve the stacked problem, and the function is found from sums and slopes."""
    model = SubsetKRR(centers=CENTERS, sigma=1.0, lam=1e-9, rows=mixed).fit()
    blocks = [(*block, 1.0)[:3] for block in mixed(0, 1)]
    k = Kernel.gaussian(1.0)
    A = np.concatenate([one.rows(k, CENTERS) for one, _, _ in blocks])
    y = np.concatenate([y for _, y, _ in blocks])
    w = np.concatenate([np.broadcast_to(w, len(y)) for _, y, w in blocks])
    L = np.linalg.cholesky(observe.values(CENTERS).rows(k, CENTERS))
    whole = np.vstack([np.sqrt(w)[:, None] * A, np.sqrt(1e-9 * w.sum()) * L.T])
    c = np.linalg.lstsq(whole, np.append(np.sqrt(w) * y, np.zeros(49)), rcond=None)[0]
    T = np.random.default_rng(99).uniform(-1.8, 1.8, size=(100, 2))
    np.testing.assert_allclose(model.predict(T), observe.values(T).rows(k, CENTERS) @ c, atol=1e-7)
    np.testing.assert_allclose(model.predict(T), np.sin(T[:, 0]) + T[:, 1] ** 2, atol=6e-2)
    assert model.params_["leaves"] == 16
    assert model.sizes_.tolist() == [len(y)]
    listed = SubsetKRR(centers=CENTERS, sigma=1.0, lam=1e-9, rows=list(mixed(0, 1))).fit()
    np.testing.assert_allclose(listed.predict(T), model.predict(T), atol=1e-7)
    once = SubsetKRR(centers=CENTERS, sigma=1.0, lam=[1e-9, 1e-5], select="gcv", rows=mixed(0, 1)).fit()
    assert once.lam_ == 1e-9
    several = SubsetKRR(centers=CENTERS, sigma=[0.2, 1.0], lam=[1e-9, 1e-5], rows=mixed).fit()
    assert (several.sigma_, len(several.grid_)) == (1.0, 4)


def test_arrays_and_many_targets():
    rng = np.random.default_rng(0)
    A, Y = rng.normal(size=(30, 49)), rng.normal(size=(30, 2))
    model = SubsetKRR(centers=CENTERS, sigma=0.1, lam=1e-2, rows=[(A[:10], Y[:10]), (A[10:], Y[10:], 1.0)]).fit()
    K = observe.values(CENTERS).rows(Kernel.gaussian(0.1), CENTERS)
    np.testing.assert_allclose(model.coef_, np.linalg.solve(A.T @ A + 0.3 * K, A.T @ Y), rtol=1e-8)
    assert model.predict(CENTERS[:3]).shape == (3, 2)


ONES = np.ones((3, 49))
BLOCKS = {
    "width": ([(ONES, np.ones(3)), (ONES[:, 1:], np.ones(3))], r"share 0, block 1 \(rank 0\): .*shape \(3, 48\)"),
    "targets": ([(ONES, np.ones(2))], "it has 3 rows and 2 targets"),
    "columns": ([(ONES, np.ones(3)), (ONES, np.ones((3, 2)))], "have 2 columns, and those of other blocks 1"),
    "nan": ([(ONES, np.array([1, np.nan, 1]))], r"share 0, block 0 \(rank 0\): row 1: its target is nan"),
    "nan in A": (
        [(ONES, np.ones(3)), (ONES * np.nan, np.ones(3))],
        r"share 0, block 1 \(rank 0\): row 0, column 0 is nan",
    ),
    "weight": ([(ONES, np.ones(3)), (ONES, np.ones(3), -1.0)], "block 1.*a weight is negative"),
    "weights": ([(ONES, np.ones(3)), (ONES, np.ones(3), np.ones(4))], r"block 1.*its weights have shape \(4,\)"),
    "no tuple": ([ONES], r"block 0 \(rank 0\): a block must be"),
    "empty": ([], "there is no block of rows on any rank"),
    "scalar": ([(ONES[:1], 1.0), (ONES[:1], "x")], "block 1.*could not convert"),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_bad_blocks(name):
    rows, message = BLOCKS[name]
    with pytest.raises(InputError, match=message):
        SubsetKRR(centers=CENTERS, sigma=1.0, lam=1e-3, rows=rows).fit()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"centers": 10}, "rows: give the centers as an array"),
        ({"sigma": "auto"}, "rows: give sigma"),
        ({"sigma": None}, "rows: give sigma"),
        ({"shares": 12}, "shares = 12: it must be a power of two"),
        ({"dtype": "float32"}, "with rows, it must be 'float64'"),
        ({"rows": iter([(ONES, np.ones(3))]), "sigma": [1.0, 2.0]}, "an iterator is read once"),
        ({"rows": iter([(ONES, np.ones(3))]), "lam": [1.0, 2.0]}, "select='gcv'"),
    ],
)
def test_bad_requests(given, message):
    estimator = SubsetKRR(**{"centers": CENTERS, "sigma": 1.0, "lam": 1e-3, "rows": mixed, **given})
    with pytest.raises(InputError, match=message):
        estimator.fit()
    with pytest.raises(InputError, match="fit takes no X, y"):
        estimator.fit(CENTERS, CENTERS[:, 0])


def test_continues_after_a_block_that_failed(tmp_path):
    asked, fails = [], [True]

    def rows(share, shares):
        for number, block in enumerate(mixed(share, shares)):
            asked.append((share, number))
            if fails and (share, number) == (5, 3):
                raise OSError("no such file")
            yield block

    estimator = SubsetKRR(centers=CENTERS, sigma=1.0, lam=1e-9, rows=rows, checkpoint=tmp_path / "kept")
    with pytest.raises(InputError, match=r"rows, share 5, block 3 \(rank 0\): OSError: no such file"):
        estimator.fit()
    fails.clear()
    asked.clear()
    estimator.fit()
    assert {share for share, _ in asked} == {0, *range(5, 16)}  # the first block says how many targets there are
    whole = SubsetKRR(centers=CENTERS, sigma=1.0, lam=1e-9, rows=mixed).fit()
    np.testing.assert_array_equal(estimator.coef_, whole.coef_)
    with pytest.raises(InputError, match="another run: lam was"):
        SubsetKRR(centers=CENTERS, sigma=1.0, lam=1e-8, rows=rows, checkpoint=tmp_path / "kept").fit()
