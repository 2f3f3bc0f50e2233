"""Sparse rows of very many features against scikit-learn: kernel values, and the methods that are made of them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import near
from helpers.data import unsorted
from helpers.references import kept, matrix
from sklearn.kernel_ridge import KernelRidge
from sklearn.svm import SVC

from asygcd import AsyGCDSVC
from cacore.kernels import Kernel, Points
from cacore.kernels.columns import Blocks, Layout
from cacore.kernels.evaluate import NONZEROS, PRODUCTS
from cacore.kernels.precision import WIDEST
from cacore.kernels.wide import COLUMNS, MOST, ROWS, Arranged, Features, Wide
from cakrr import DKRR
from casvm import SMOSVC, DisSMOSVC
from partition.parts_model import closest

KERNELS = {
    "linear": Kernel("linear"), "gaussian": Kernel("gaussian", gamma=0.2), "l1": Kernel("l1", gamma=0.1),
    "laplacian": Kernel("laplacian", gamma=0.3),
}  # fmt: skip
TOLERANCE = {"float64": 1e-12, "float32": 2e-5}
D = WIDEST + 2000


def text(n, d=D, seed=0, dtype="float64", often=9):
    """Rows with some frequent features and many rare ones, every sixth empty; a third of the features of no row."""
    rng = np.random.default_rng(seed)
    places = np.repeat(np.arange(n), 8), rng.integers(0, d, 8 * n)
    rare = sp.coo_matrix((rng.random(8 * n) - 0.3, places), (n, d)).tocsr()
    rare = rare.multiply(np.arange(d) % 3 > 0).tolil()
    rare[:, 5 : 5 + often] = rng.standard_normal((n, often)) * (rng.random((n, often)) < 0.5)
    rare[::6] = 0
    return rare.tocsr().astype(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KERNELS)
def test_add_equals_scikit_learn(kind, dtype):
    """Columns of more than one tile, rows of more than one, and features that one side alone has."""
    kernel, n, m, d = KERNELS[kind], COLUMNS + 150, ROWS + 7, 1200
    A, B = text(m, d, 1, dtype), text(n, d, 2, dtype)
    features = Features.of(A)
    assert 0 < features.packed < features.count < d
    layout = Layout(np.dtype(dtype), None, False, measure=kernel.measure(nonzeros=True), features=features)
    rows, columns = layout.rows(A), layout.columns(B)
    c, total, store = np.linspace(-1, 2, m), np.arange(n, dtype=float), np.full((m + 2, n + 5), -7, dtype)
    places = np.random.default_rng(0).permutation(m + 2)[:m]
    places[::5] = -1
    for lo, hi in columns.tasks(5):
        columns.add(kernel, rows, lo, hi, c, total, store, places)
    want, some = matrix(kernel, A, B), places >= 0
    np.testing.assert_allclose(store[places[some], :n], want[some], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    near(total - np.arange(n), c @ want, 30 * m * TOLERANCE[dtype])
    assert (store[:, n:] == -7).all()  # nothing is written behind the columns, or into rows that nobody has
    assert (np.delete(store, places[some], axis=0) == -7).all()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("kind", "often"), [("gaussian", 0), ("gaussian", 9), ("l1", 9)])
def test_values_depend_neither_on_tasks_nor_on_sides(kind, often, dtype):
    """Bit for bit, and a row is at distance 0 from itself; with packed features, and without."""
    X, kernel = text(700, seed=3, dtype=dtype, often=often), KERNELS[kind]
    layout = Layout.of(X, kernel, dtype)
    assert layout.dtype == dtype
    assert bool(layout.features.packed) == bool(often)
    rows, columns = layout.rows(X), layout.columns(X)
    K = kept(columns, kernel, rows, dtype, tasks=1)
    assert np.array_equal(kept(columns, kernel, rows, dtype, tasks=7), K)
    assert np.array_equal(K, K.T)
    assert (np.diagonal(K) == 1).all()
    picked = np.array([600, 3, 3, 0, 41])
    few = layout.columns(X, picked)
    assert np.array_equal(kept(few, kernel, layout.rows(X, picked[::-1]), dtype), K[np.ix_(picked[::-1], picked)])


@pytest.mark.parametrize("kind", ["gaussian", "l1"])
def test_values_do_not_depend_on_tiles(kind, tuned):
    """Bit for bit, and ranges of columns need not be whole tiles; two beginnings of a list at most a nonzero."""
    X, kernel = text(700, d=600, seed=19), KERNELS[kind]
    features = Features.of(X)
    layout = Layout(np.dtype("float64"), None, False, measure=kernel.measure(nonzeros=True), features=features)
    one, rows = layout.columns(X), layout.rows(X)
    tuned(wide_columns=64)
    many = layout.columns(X)
    assert len(one.starts) < 5 < len(many.starts)
    assert many.starts.size <= 2 * len(many.values) + features.listed + 1
    K = kept(one, kernel, rows, "float64")
    np.testing.assert_allclose(K, matrix(kernel, X), rtol=1e-12)
    for tasks in (1, 2, 5, 30):
        assert np.array_equal(kept(many, kernel, rows, "float64", tasks=tasks), K)


@pytest.mark.parametrize("container", [sp.csr_matrix, sp.csr_array])
@pytest.mark.parametrize("kind", ["gaussian", "l1"])
def test_csr_of_any_sort(kind, container):
    """Entries that are zero, given in pieces, or not in order; long indices; nothing is changed."""
    X, kernel = container(text(90, seed=4)), KERNELS[kind]
    X.data[::5] = 0
    want, pieces = matrix(kernel, X), unsorted(sp.csr_matrix(X))
    pieces.data *= 0.5
    doubled = container(
        (np.repeat(pieces.data, 2), np.repeat(pieces.indices, 2).astype(np.int64), 2 * pieces.indptr.astype(np.int64)),
        X.shape,
    )
    before = [array.copy() for array in (doubled.data, doubled.indices, doubled.indptr)]
    layout = Layout.of(doubled, kernel, "float64")
    np.testing.assert_allclose(kept(layout.columns(doubled), kernel, layout.rows(doubled), "float64"), want, rtol=1e-12)
    for array, old in zip((doubled.data, doubled.indices, doubled.indptr), before, strict=True):
        assert np.array_equal(array, old)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 130), (5, 1), (0, 3)])
@pytest.mark.parametrize("kind", KERNELS)
def test_few_rows(kind, m, n):
    A, B, kernel = text(m + 1, seed=5)[1:], text(n + 1, seed=6)[1:], KERNELS[kind]
    layout = Layout.of(A, kernel, "float64")
    got = kept(layout.columns(B), kernel, layout.rows(A), "float64")
    np.testing.assert_allclose(got, matrix(kernel, A, B) if m else np.zeros((0, n)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ["gaussian", "l1"])
def test_rows_of_another_form_and_a_sample_of_them(kind):
    """A model of CSR rows is asked about dense ones; a layout that a sample of the rows has chosen has all features."""
    A, B, kernel = text(20, seed=17), text(30, seed=18), KERNELS[kind]
    want = matrix(kernel, A, B)
    layout = Layout.of(A, kernel, "float64")
    got = kept(layout.columns(B.toarray()), kernel, layout.rows(A.toarray(), np.arange(20)), "float64")
    np.testing.assert_allclose(got, want, rtol=1e-12)
    layout = Layout.of(A[:5], kernel, "float64", largest=9.0)
    assert layout.features.count == D
    np.testing.assert_allclose(kept(layout.columns(B), kernel, layout.rows(A), "float64"), want, rtol=1e-12)


def test_nothing_but_zeros():
    Z, kernel = sp.csr_matrix((70, D)), KERNELS["gaussian"]
    layout = Layout.of(Z, kernel, "float64")
    assert layout.features.count == 0
    assert (kept(layout.columns(Z), kernel, layout.rows(Z), "float64") == 1).all()


def test_which_features_are_packed():
    """The most frequent ones first, no more of them than a panel has room for; none that no row has has a number."""
    X = text(400)
    counts, features = np.bincount(X.indices, minlength=D), Features.of(X)
    assert ((features.number >= 0) == (counts > 0)).all()
    packed = np.flatnonzero((features.number >= 0) & (features.number < features.packed))
    assert (packed == np.flatnonzero(counts > 400 / 16)).all()
    assert (np.diff(counts[packed[np.argsort(features.number[packed])]]) <= 0).all()
    assert Features.of(sp.csr_matrix(np.ones((3, MOST + 5)))).packed == MOST


@pytest.mark.parametrize("d", [30, D])
@pytest.mark.parametrize("kind", KERNELS)
def test_blocks_of_kernel_values(kind, d):
    """Kernel values that ridge regression and routing evaluate: CSR rows with each other, and with dense ones."""
    A, B, kernel = text(1100, d, seed=7), text(150, d, seed=8), KERNELS[kind]
    A, B = (A, B) if d == D else (A[:40], B[:40])
    want = matrix(kernel, A, B)
    room = np.zeros((A.shape[0], B.shape[0] + 3))
    kernel.block(Points(A), Points(B), room[:, :-3])
    np.testing.assert_allclose(room[:, :-3], want, rtol=1e-11, atol=1e-12)
    assert (room[:, -3:] == 0).all()
    few, dense = A[:9], B.toarray()
    np.testing.assert_allclose(kernel.block(Points(few), Points(dense)), want[:9], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(kernel.block(Points(dense), Points(few)), want[:9].T, rtol=1e-11, atol=1e-12)


def test_closest_centres_of_wide_rows():
    X, centers = text(200, seed=9), text(7, seed=10)[1:].toarray()
    parts, squares = closest(X, centers, 2)
    want = ((X.toarray()[:, None] - centers) ** 2).sum(axis=2)
    np.testing.assert_allclose(squares, np.sort(want, axis=1)[:, :2], rtol=1e-12)
    np.testing.assert_allclose(np.take_along_axis(want, parts, axis=1), squares, rtol=1e-12)


# -- methods -------------------------------------------------------------------------------------


def labelled(n=500, seed=11):
    X = text(n, seed=seed)
    return X, (np.asarray(X[:, 5 : 5 + 9].sum(axis=1)).ravel() + 0.3 * np.cos(np.arange(n)) > 0).astype(int)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("make", [SMOSVC, DisSMOSVC, AsyGCDSVC])
def test_classifiers_of_wide_rows_as_of_the_same_rows_dense(make, dtype):
    """Exact ones as LIBSVM; Asy-GCD, which has no bias, as itself on dense rows of the features that occur."""
    X, y = labelled()
    test, given = text(60, seed=12), {"C": 3.0, "gamma": 0.2, "tol": 1e-5}
    model = make(**given).fit(X.astype(dtype), y)
    used = np.union1d(np.unique(X.indices), np.unique(test.indices))
    peer = make(**given) if make is AsyGCDSVC else SVC(**given)
    want = peer.fit(X[:, used].toarray(), y).decision_function(test[:, used].toarray())
    near(model.decision_function(test.astype(dtype)), want, 1e-3 if dtype == "float32" else 1e-4)
    near(model.decision_function(test[1].astype(dtype)), want[1:2], 1e-3)


def test_ridge_regression_of_wide_rows():
    X, y = labelled(300)
    test = text(50, seed=13)
    got = DKRR(sigma=1.5, lam=1e-2, standardize=False).fit(X, y).predict(test)
    reference = KernelRidge(kernel="rbf", gamma=1 / (2 * 1.5**2), alpha=1e-2 * 300).fit(X, y - y.mean())
    near(got, reference.predict(test) + y.mean(), 1e-8)


def test_memory_in_proportion_to_the_nonzeros():
    """A million features, of which rows have 20: a few times the rows, and some numbers for each feature."""
    n, d = 4000, 1_000_000
    rng = np.random.default_rng(0)
    indices = rng.integers(0, d // 20, (n, 20)) + np.arange(20) * (d // 20)
    X = sp.csr_matrix((rng.random(20 * n), indices.ravel(), np.arange(0, 20 * n + 1, 20)), (n, d))
    kernel, rows, features = Kernel("gaussian", gamma=1.0), 12 * X.nnz + 8 * n, 8 * d
    tracemalloc.start()
    layout = Layout.of(X, kernel, "float64")
    columns, some = layout.columns(X), layout.rows(X, np.arange(500))
    K = kept(columns, kernel, some, "float64")
    _, values = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    kernel.block(Points(X[:300]), Points(X))
    _, block = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert values < K.nbytes + 6 * rows + 3 * features
    assert block < 2 * K.nbytes + 8 * rows + 4 * features
    assert values < 0.01 * 8 * n * d


def test_unpacked_rows_are_computed_by_blocks():
    """Columns without features: the same values by :meth:`Kernel.block`."""
    X, kernel = text(80, seed=14), KERNELS["gaussian"]
    layout = Layout(np.dtype("float64"), None, False)
    columns = layout.columns(X)
    assert isinstance(columns, Blocks)
    assert isinstance(Layout.of(X, kernel, "float64").columns(X), Wide)
    np.testing.assert_allclose(kept(columns, kernel, layout.rows(X), "float64"), matrix(kernel, X), rtol=1e-12)


def test_norms_have_the_features_that_nobody_else_has():
    A, B = text(30, seed=15), text(40, seed=16)
    features = Features.of(A)
    for measure, power in ((PRODUCTS, 2), (NONZEROS, 1)):
        got = Arranged.of(B, features, np.float64, measure=measure).norms
        np.testing.assert_allclose(got, (abs(B.toarray()) ** power).sum(axis=1), rtol=1e-12)
