"""Kernel values against scikit-learn and against float64 brute force."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import near
from helpers.data import spotted
from helpers.references import by_differences, matrix

from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.evaluate import exp32, exp64

KERNELS = {
    "linear": Kernel("linear"), "polynomial": Kernel("polynomial", gamma=0.3, degree=4, coef0=0.7),
    "gaussian": Kernel("gaussian", gamma=0.2), "sigmoid": Kernel("sigmoid", gamma=0.1, coef0=-0.4),
    "laplacian": Kernel("laplacian", gamma=0.4), "matern32": Kernel("matern32", gamma=0.2),
    "matern52": Kernel("matern52", gamma=0.2), "l1": Kernel("l1", gamma=0.3),
    "rational": Kernel("rational", gamma=0.2, degree=2), "wendland4_product": Kernel("wendland4_product", gamma=0.3),
}  # fmt: skip
TOLERANCE = {"float64": 1e-12, "float32": 2e-5}


def rows_of(m, d=6, seed=0, dtype="float64", offset=0.0):
    return spotted(m, d, seed, dtype, offset)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("forms", ["dense dense", "csr csr", "csr dense", "dense csr"])
@pytest.mark.parametrize("kind", KERNELS)
def test_block_equals_scikit_learn(kind, forms, dtype):
    kernel = KERNELS[kind]
    A, B = rows_of(37, dtype=dtype), rows_of(23, seed=1, dtype=dtype)
    form = {"dense": np.array, "csr": sp.csr_matrix}
    first, second = (form[name](M) for name, M in zip(forms.split(), (A, B), strict=True))
    # No shift for a mixture: only dense rows have one.
    like = kernel.points(sp.csr_matrix(A)) if "csr" in forms else kernel.points(first)
    got = kernel.block(kernel.points(first, like), kernel.points(second, like))
    want = matrix(kernel, A, B)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_sparse_rows_made_like_shifted_dense_ones():
    kernel = Kernel.gaussian(1.5)
    A, B = rows_of(20, offset=3.0), rows_of(10, seed=1)
    train = kernel.points(A)
    got = kernel.block(kernel.points(sp.csr_matrix(B), like=train), train)
    np.testing.assert_allclose(got, by_differences(kernel, B, A), rtol=1e-12)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
def test_gaussian_far_from_the_origin(offset, dtype):
    kernel = Kernel.gaussian(1.3)
    A, B = rows_of(60, 8, dtype=dtype, offset=offset), rows_of(40, 8, seed=1, dtype=dtype, offset=offset)
    train = kernel.points(A)
    test = kernel.points(B, like=train)
    near(kernel.block(test, train), by_differences(kernel, B, A), 10 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gaussian_of_almost_equal_rows_is_at_most_1(dtype):
    base = rows_of(1, 20, seed=3, dtype=dtype)
    A = np.repeat(base, 50, axis=0) * (1 + np.arange(50)[:, None] * np.finfo(dtype).eps).astype(dtype)
    kernel = Kernel("gaussian", gamma=50.0)
    points = kernel.points(A)
    assert kernel.block(points, points).max() <= 1.0


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KERNELS)
def test_gram_over_many_blocks(kind, dtype, form):
    kernel = KERNELS[kind]
    X = rows_of(700, dtype=dtype)
    K = np.full((700, 700), np.nan, dtype)
    kernel.gram(kernel.points(form(X)), K)
    want = matrix(kernel, X)
    lower = np.tril_indices(700)
    np.testing.assert_allclose(K[lower], want[lower], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    if kernel.of_distance:
        assert (np.diagonal(K) == 1.0).all()


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
@pytest.mark.parametrize("shape", [(90,), (90, 3)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_apply_equals_block_times_coefficients(dtype, shape, form):
    kernel = KERNELS["gaussian"]
    A, B = rows_of(1500, dtype=dtype), rows_of(90, seed=1, dtype=dtype)
    c = np.random.default_rng(2).standard_normal(shape)
    like = kernel.points(form(B))
    got = kernel.apply(kernel.points(form(A), like), like, c)
    assert got.shape == (1500, *shape[1:])
    near(got, by_differences(kernel, A, B) @ c, 100 * TOLERANCE[dtype])


def test_block_writes_its_own_part_only():
    kernel = KERNELS["gaussian"]
    points = kernel.points(rows_of(10))
    whole = np.full((14, 16), -7.0)
    kernel.block(points[2:8], points[0:5], out=whole[3:9, 4:9])
    np.testing.assert_allclose(whole[3:9, 4:9], by_differences(kernel, rows_of(10)[2:8], rows_of(10)[:5]), rtol=1e-12)
    whole[3:9, 4:9] = -7.0
    assert (whole == -7.0).all()


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
def test_no_rows(form):
    kernel = KERNELS["gaussian"]
    points = kernel.points(form(rows_of(5)))
    assert kernel.block(points[0:0], points).shape == (0, 5)
    assert kernel.apply(points[0:0], points, np.ones(5)).shape == (0,)


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
@pytest.mark.parametrize("kind", KERNELS)
def test_rows_are_not_changed(kind, form):
    kernel = KERNELS[kind]
    X = form(rows_of(30, offset=2.0))
    before = X.copy()
    points = kernel.points(X)
    kernel.block(points, points)
    kernel.gram(points, np.empty((30, 30)))
    kernel.apply(points, points, np.ones(30))
    assert abs(X - before).max() == 0


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_tiny_sigma_is_the_identity(dtype):
    kernel = Kernel.gaussian(1e-200)
    K = np.zeros((8, 8), dtype)
    kernel.gram(kernel.points(rows_of(8, dtype=dtype)), K)
    np.testing.assert_allclose(np.tril(K), np.eye(8), atol=1e-18)


def test_sigma_and_gamma_say_the_same():
    assert Kernel.gaussian(0.5).gamma == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Kernel("rbf"), "'rbf'.*gaussian"),
        (lambda: Kernel("gaussian", gamma=0.0), "gamma = 0"),
        (lambda: Kernel("polynomial", gamma=math.nan), "gamma = nan"),
        (lambda: Kernel.gaussian(-1.0), "sigma = -1"),
        (lambda: Kernel.gaussian(math.inf), "sigma = inf"),
        (
            lambda: Kernel("wendland2").suited(4),
            "degree = 3: the wendland2 kernel is then positive definite for at most 3 features, and the rows have 4; "
            "use degree 4, which makes the kernel narrower, or wendland2_product, which allows any number",
        ),
        (lambda: Kernel("rational", degree=0), "degree = 0: the rational kernel needs a whole number of at least 1"),
    ],
)
def test_bad_parameters(make, named):
    with pytest.raises(InputError, match=named):
        make()


@pytest.mark.parametrize(
    ("exp", "real", "least", "greatest"),
    [(exp64, np.float64, -345.0, 700.0), (exp32, np.float32, -43.0, 80.0)],
)
def test_exp_to_two_units_in_the_last_place(exp, real, least, greatest):
    x = np.concatenate([np.linspace(least, greatest, 3000), np.linspace(-1, 1, 1001), -np.logspace(-18, 1, 50)])
    x = x.astype(real)
    got = np.array([exp(v) for v in x], real)
    want = np.exp(x.astype(np.float64)).astype(real)
    assert (np.abs(got - want) <= 2 * np.spacing(want)).all()
    assert exp(real(0)) == 1
    assert 0 <= exp(real(-1e30)) < 1e-18


@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4, 5, 31, 100, 12345, 2**31 - 1])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_powers(dtype, degree):
    """In a few squarings: a degree of two thousand million costs no more than one of thirty does."""
    X = rows_of(40, dtype="float64")
    X = (X * (0.999 / np.linalg.norm(X, axis=1).max())).astype(dtype)  # no inner product is above 1
    points = Kernel("linear").points(X)
    products = Kernel("linear").block(points, points).astype(np.float64)
    got = Kernel("polynomial", 1.0, degree, 0.0).block(points, points)
    np.testing.assert_allclose(got, products**degree, rtol=2 * np.finfo(dtype).eps * max(1, degree), atol=1e-30)
