"""Kernel values by panels and by blocks against brute force in float64, and the choice between the two."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import near
from helpers.data import spotted, unsorted
from helpers.references import by_differences, kept, matrix

from cacore.kernels import Kernel
from cacore.kernels.columns import Blocks, Layout
from cacore.kernels.evaluate import NONZEROS, PRODUCTS, WHOLE
from cacore.kernels.panels import ROWS, Panels, nonzeros
from cacore.kernels.sums import GROUP, width

KERNELS = {
    "linear": Kernel("linear"), "polynomial": Kernel("polynomial", gamma=0.3, degree=3, coef0=0.7),
    "gaussian": Kernel("gaussian", gamma=0.2), "sigmoid": Kernel("sigmoid", gamma=0.1, coef0=-0.4),
}  # fmt: skip
L1, PRODUCT = Kernel("l1", gamma=0.2), Kernel("wendland0_product", gamma=0.3)
OTHERS = {"l1": L1, "wendland0_product": PRODUCT}
TOLERANCE = {"float64": 1e-12, "float32": 2e-5}
FORMS = {"dense": np.array, "csr": sp.csr_matrix}
SIDES = ["panels", "blocks"]


def rows_of(n, d=7, seed=0, dtype="float64", offset=0.0):
    """Rows with zeros, some of them all zero, and one column that is."""
    X = spotted(n, d, seed, offset=offset)
    X[::6] = 0
    X[:, d // 2] = 0
    return X.astype(dtype)


def values(kind, A, B):
    """By scikit-learn, and the gaussian ones by differences, which lose nothing far from the origin."""
    return by_differences(KERNELS[kind], A, B) if kind == "gaussian" else matrix(KERNELS[kind], A, B)


def sides(side, A, B, dtype, shift=None, measure=PRODUCTS):
    """`A` as rows and `B` as columns."""
    layout = Layout(np.dtype(dtype), shift, side == "panels", measure=measure)
    assert isinstance(layout.columns(B), Panels if side == "panels" else Blocks)
    return layout.rows(A), layout.columns(B)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [*KERNELS, *OTHERS])
@pytest.mark.parametrize("side", SIDES)
def test_add_equals_brute_force(side, kind, form, dtype):
    """Columns that fill several groups of panels and part of one more, rows that fill several tiles and part of one."""
    n, m, kernel = 2 * GROUP * width("float32") + 37, 2 * ROWS + 3, {**KERNELS, **OTHERS}[kind]
    A, B = rows_of(m, seed=1, dtype=dtype), rows_of(n, dtype=dtype)
    rows, columns = sides(side, FORMS[form](A), FORMS[form](B), dtype, measure=kernel.measure(form == "csr"))
    c, total, store = np.linspace(-1, 2, m), np.arange(n, dtype=float), np.full((m, n + 5), -7, dtype)
    for lo, hi in columns.tasks(5):
        columns.add(kernel, rows, lo, hi, c, total, store)
    want = matrix(kernel, A, B) if kind in OTHERS else values(kind, A, B)
    np.testing.assert_allclose(store[:, :n], want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    near(total - np.arange(n), c @ want, 30 * m * TOLERANCE[dtype])
    # What is added up is what is kept, and nothing is written behind the columns.
    near(total - np.arange(n), c @ store[:, :n].astype(np.float64), 1e-10)
    assert (store[:, n:] == -7).all()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 129])
def test_few_columns(n, side):
    A, B = rows_of(5, seed=1), rows_of(n, seed=2)
    rows, columns = sides(side, A, B, "float64")
    assert columns.n == n
    total = np.zeros(n)
    for lo, hi in columns.tasks(4):
        columns.add(KERNELS["gaussian"], rows, lo, hi, np.ones(5), total)
    np.testing.assert_allclose(total, values("gaussian", A, B).sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("n", [1, 64, 65, 1000])
def test_tasks_cover_every_column_once(n, count, side):
    tasks = sides(side, rows_of(1), rows_of(n), "float64")[1].tasks(count)
    assert 1 <= len(tasks) <= count
    assert [j for lo, hi in tasks for j in range(lo, hi)] == list(range(n))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KERNELS)
def test_values_do_not_depend_on_the_tasks(kind, dtype):
    """So that results are the same, bit for bit, for any number of threads."""
    X = rows_of(1111, dtype=dtype)
    rows, columns = sides("panels", X[:40], X, dtype)
    whole = kept(columns, KERNELS[kind], rows, dtype, tasks=1)
    for tasks in (2, 3, 5, 100):
        assert np.array_equal(kept(columns, KERNELS[kind], rows, dtype, tasks), whole)


@pytest.mark.parametrize("side", SIDES)
def test_one_range_leaves_the_others_alone(side):
    X = rows_of(3000)
    rows, columns = sides(side, X[:3], X, "float64")
    lo, hi = columns.tasks(4)[1]
    total, store = np.full(3000, -7.0), np.full((3, 3000), -7.0)
    columns.add(KERNELS["gaussian"], rows, lo, hi, np.ones(3), total, store)
    outside = np.r_[0:lo, hi:3000]
    assert 0 < lo < hi < 3000
    assert (total[outside] == -7).all()
    assert (store[:, outside] == -7).all()
    np.testing.assert_allclose(store[:, lo:hi], values("gaussian", X[:3], X[lo:hi]), rtol=1e-12)


@pytest.mark.parametrize("side", SIDES)
def test_places(side):
    """Rows go where they are told, rows without a place nowhere; all of them are added up."""
    X, kernel = rows_of(200), KERNELS["polynomial"]
    rows, columns = sides(side, X[:40], X, "float64")
    places = np.full(40, -1)
    some = np.arange(0, 40, 3)
    places[some] = np.random.default_rng(0).permutation(50)[: len(some)]
    total, store, want = np.zeros(200), np.full((50, 200), -7.0), values("polynomial", X[:40], X)
    for lo, hi in columns.tasks(2):
        columns.add(kernel, rows, lo, hi, np.ones(40), total, store, places)
    np.testing.assert_allclose(store[places[some]], want[some], rtol=1e-12)
    assert (np.delete(store, places[some], axis=0) == -7).all()
    np.testing.assert_allclose(total, want.sum(axis=0), rtol=1e-10)


@pytest.mark.parametrize("side", SIDES)
def test_no_row_has_a_place(side):
    X = rows_of(70)
    rows, columns = sides(side, X[:5], X, "float64")
    store = np.full((2, 70), -7.0)
    columns.add(KERNELS["linear"], rows, 0, 70, store=store, places=np.full(5, -1))
    assert (store == -7).all()


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("side", SIDES)
def test_kept_in_single_precision_computed_in_double(side, kind):
    """The sums are those of the rounded values: what is read again later takes away what was added."""
    X, c = rows_of(300), np.random.default_rng(3).standard_normal(20)
    rows, columns = sides(side, X[:20], X, "float64")
    total, store = np.zeros(300), np.zeros((20, 300), np.float32)
    for lo, hi in columns.tasks(2):
        columns.add(KERNELS[kind], rows, lo, hi, c, total, store)
    want = values(kind, X[:20], X)
    np.testing.assert_allclose(store, want, rtol=1e-7)
    near(total, c @ store.astype(np.float64), 1e-12)
    assert np.abs(total - c @ want).max() > 1e-9  # so that the line before says something


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("offset", [3.0, 1000.0])
@pytest.mark.parametrize("forms", [("dense", "dense"), ("dense", "csr"), ("csr", "dense")], ids="-".join)
def test_shift(forms, offset, side, dtype):
    """Rows far from the origin: rounding is that of their distances, not of their norms; one side may be sparse."""
    rng = np.random.default_rng(0)
    A, B = ((rng.standard_normal((m, 5)) + offset).astype(dtype) for m in (20, 150))
    given, met = (FORMS[form](X) for form, X in zip(forms, (A, B), strict=True))
    rows, columns = sides(side, given, met, dtype, B.mean(axis=0, dtype=np.float64))
    got = kept(columns, KERNELS["gaussian"], rows, dtype)
    near(got, values("gaussian", A, B), 20 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", [*FORMS, "shifted"])
@pytest.mark.parametrize("kind", KERNELS)
def test_symmetric_to_the_last_bit(kind, form, dtype):
    """A pair's kernel value is the same whichever of the two rows is computed, and 1 on the diagonal of gaussians."""
    X = rows_of(300, d=11, dtype=dtype) * np.asarray(3, dtype)
    given, shift = FORMS.get(form, np.array)(X), X.mean(axis=0, dtype=np.float64) if form == "shifted" else None
    rows, columns = sides("panels", given, given, dtype, shift)
    K = kept(columns, KERNELS[kind], rows, dtype)
    assert np.array_equal(K, K.T)
    if kind == "gaussian":
        assert (np.diagonal(K) == 1).all()
        assert K.max() == 1


@pytest.mark.parametrize("gamma", [1e-12, 50.0, 1e6, 1e300])
def test_a_row_with_itself_whatever_gamma(gamma):
    X = rows_of(100, dtype="float32")
    rows, columns = sides("panels", X, X, "float32")
    K = kept(columns, Kernel("gaussian", gamma=gamma), rows, "float32")
    assert (np.diagonal(K) == 1).all()
    assert np.isfinite(K).all()


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("side", SIDES)
def test_nothing_but_zeros(side, form, kind):
    Z = FORMS[form](np.zeros((70, 3)))
    rows, columns = sides(side, Z, Z, "float64")
    want = {"linear": 0.0, "polynomial": 0.7**3, "gaussian": 1.0, "sigmoid": np.tanh(-0.4)}[kind]
    np.testing.assert_allclose(kept(columns, KERNELS[kind], rows, "float64"), want, rtol=1e-12)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("form", FORMS)
def test_no_rows_to_meet_the_columns(form, side):
    X = FORMS[form](rows_of(70))
    rows, columns = sides(side, X[:0], X, "float64")
    total = np.full(70, 2.0)
    columns.add(KERNELS["gaussian"], rows, 0, 70, np.zeros(0), total)
    assert (total == 2).all()


def test_csr_entries_that_are_zero_or_not_in_order():
    X = rows_of(90)
    csr = sp.csr_matrix(X)
    csr.data[::5] = 0  # zeros that are stored
    X = csr.toarray()
    csr = unsorted(csr)
    got = kept(Panels(csr, "float64"), KERNELS["gaussian"], nonzeros(csr, "float64"), "float64")
    np.testing.assert_allclose(got, values("gaussian", X, X), rtol=1e-12)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("container", [sp.csr_matrix, sp.csr_array])
def test_csr_of_any_sort(container, index):
    X = rows_of(90)
    csr = container(X)
    csr.indices, csr.indptr = csr.indices.astype(index), csr.indptr.astype(index)
    rows, columns = sides("panels", csr, csr, "float32")
    np.testing.assert_allclose(
        kept(columns, KERNELS["linear"], rows, "float32"), X @ X.T, rtol=2e-5, atol=TOLERANCE["float32"]
    )


@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_dense_in_any_order(order):
    X = np.repeat(rows_of(90), 2, axis=0)[::2] if order == "strided" else np.array(rows_of(90), order=order)
    for side in SIDES:
        rows, columns = sides(side, X, X, "float64")
        np.testing.assert_allclose(
            kept(columns, KERNELS["gaussian"], rows, "float64"), values("gaussian", X, X), rtol=1e-12
        )


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_are_not_changed(dtype, form, side):
    X = FORMS[form](rows_of(150, dtype=dtype, offset=3.0))
    before, kernel = X.copy(), KERNELS["gaussian"]
    shift = X.mean(axis=0, dtype=np.float64) if form == "dense" else None
    for target in TOLERANCE:
        rows, columns = sides(side, X, X, target, shift)
        kept(columns, kernel, rows, target)
    Layout.of(X, kernel, "float32").columns(X)
    kernel.diagonal(X)
    assert abs(X - before).max() == 0
    assert X.dtype == dtype


# -- which layout ------------------------------------------------------------------------------


def one_hot(n=2000, d=100):
    return np.eye(d)[np.random.default_rng(0).integers(0, d, n)]


GAUSSIAN = Kernel("gaussian", gamma=0.2)


def test_far_from_the_origin_is_shifted():
    X = np.random.default_rng(0).standard_normal((3000, 4)) + 100.0
    layout = Layout.of(X, GAUSSIAN, "float32")
    np.testing.assert_allclose(layout.shift, X.mean(axis=0), atol=0.2)
    assert layout.packed
    assert layout.dtype == np.float32  # where they lie after the shift counts
    assert Layout.of(X - 100.0, GAUSSIAN, "float32").shift is None


def test_one_hot_is_not_shifted():
    assert Layout.of(one_hot(), GAUSSIAN, "float32") == Layout(np.dtype(np.float32), None, True, 1.0)


@pytest.mark.parametrize("kind", ["linear", "polynomial", "sigmoid"])
def test_only_kernels_of_a_distance_are_shifted(kind):
    assert Layout.of(rows_of(100, offset=100.0), KERNELS[kind], "float32").shift is None


def test_only_features_that_all_csr_rows_store_are_shifted():
    X = np.random.default_rng(0).standard_normal((100, 3))
    far, some = X[:, :1] + 1e6, np.where(X[:, 1:2] > 0, 1e6, 0.0)
    assert Layout.of(sp.csr_matrix(X), GAUSSIAN, "float64").shift is None
    layout = Layout.of(sp.csr_matrix(np.hstack([far, some, X[:, 2:]])), GAUSSIAN, "float64")
    assert layout.shift.tolist() == [pytest.approx(1e6), 0.0, 0.0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("gamma", "dtype"), [(0.5, np.float32), (100.0, np.float64)])
def test_double_precision_where_rounding_would_show(gamma, dtype, form):
    X = FORMS[form](rows_of(500, dtype="float32"))
    assert Layout.of(X, Kernel("gaussian", gamma=gamma), "float32").dtype == dtype
    assert Layout.of(X, Kernel("gaussian", gamma=gamma), "float64").dtype == np.float64


@pytest.mark.parametrize(
    ("d", "zeros", "packed"),
    [(64, 0.0, True), (65, 0.0, False), (1000, 0.0, False), (1000, 0.8, True), (5000, 0.99, False)],
)
def test_wide_dense_goes_by_matrix_products(d, zeros, packed):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((60, d)) * (rng.random((60, d)) >= zeros)).astype(np.float32)
    layout = Layout.of(X, Kernel("gaussian", gamma=0.5 / d), "float32")
    assert layout.packed == packed
    assert isinstance(layout.columns(X), Panels if packed else Blocks)


@pytest.mark.parametrize(("d", "packed"), [(4000, True), (5000, False)])
def test_very_wide_csr_stays_csr(d, packed):
    X = sp.random(30, d, density=0.01, format="csr", random_state=0)
    layout = Layout.of(X, Kernel("linear"), "float64")
    assert layout.packed == packed
    rows, columns = layout.rows(X), layout.columns(X)
    np.testing.assert_allclose(
        kept(columns, Kernel("linear"), rows, "float64"), (X @ X.T).toarray(), rtol=1e-12, atol=1e-14
    )


def test_bytes_of_the_columns():
    X, csr = rows_of(128), sp.random(30, 5000, density=0.01, format="csr", random_state=0)
    layout = Layout(np.dtype(np.float32), None, True)
    assert layout.nbytes(X) == layout.columns(X).data.nbytes
    assert Layout(np.dtype(np.float64), None, False).nbytes(csr) >= csr.data.nbytes


# -- the diagonal ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KERNELS)
def test_diagonal(kind, form, dtype):
    """In double precision, whatever the rows are."""
    X = rows_of(80, dtype=dtype)
    got = KERNELS[kind].diagonal(FORMS[form](X))
    assert (got.dtype, got.shape) == (np.float64, (80,))
    np.testing.assert_allclose(got, np.diagonal(values(kind, X, X)), rtol=1e-12)


# -- l1 distances ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("measure", [WHOLE, NONZEROS])
def test_l1_distances_of_equal_rows(measure, dtype):
    """Exactly 0, and the same whichever of the rows is the column (to rounding, by the nonzeros)."""
    X = rows_of(300, d=11, dtype=dtype) * np.asarray(3, dtype)
    X[200:] = X[:100]
    rows, columns = sides("panels", X, X, dtype, measure=measure)
    K = kept(columns, L1, rows, dtype)
    equal = (X[:, None] == X[None]).all(axis=2)
    assert (K[equal] == 1).all()
    np.testing.assert_allclose(K, K.T, rtol=0, atol=0 if measure == WHOLE else 20 * np.finfo(dtype).eps)


def test_l1_layouts():
    """By nonzeros where there are few, and in double precision only where norms are far apart."""
    X = np.random.default_rng(0).standard_normal((500, 70)).astype(np.float32)
    assert Layout.of(X, L1, "float32") == Layout(np.dtype(np.float32), None, True, 70.0, WHOLE)
    assert Layout.of(X + 100, L1, "float32").shift is not None
    assert Layout.of(one_hot(), L1, "float32") == Layout(np.dtype(np.float32), None, True, 1.0, NONZEROS)
    csr = sp.csr_matrix(X)
    assert Layout.of(csr, Kernel("l1", gamma=1e-4), "float32").measure == NONZEROS
    assert Layout.of(csr, Kernel("l1", gamma=1e-4), "float32").dtype == np.float32
    assert Layout.of(csr, Kernel("l1", gamma=10.0), "float32").dtype == np.float64


@pytest.mark.parametrize("given", [np.array, sp.csr_matrix])
def test_l1_rows_of_another_form_than_the_columns(given):
    """A model of dense rows is asked about CSR rows, and the other way round."""
    X = rows_of(90)
    for measure, other in ((WHOLE, sp.csr_matrix), (NONZEROS, np.array)):
        rows, columns = sides("panels", given(X[:20]), other(X), "float64", measure=measure)
        np.testing.assert_allclose(kept(columns, L1, rows, "float64"), matrix(L1, X[:20], X), rtol=1e-12)
