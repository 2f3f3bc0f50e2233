"""Blocked Cholesky in place against scipy's LAPACK."""

import contextlib

import numpy as np
import pytest
import scipy.linalg
from scipy.linalg.lapack import get_lapack_funcs

from cacore.linalg import lapack
from cacore.linalg.lapack import BLOCK, cholesky, cholesky_solve
from cacore.machine.threads import one_blas_thread

TOLERANCE = {"float64": 1e-12, "float32": 2e-4}
SIZES = [1, 2, 97, BLOCK - 1, BLOCK, BLOCK + 1, 2500]


@pytest.fixture(params=[1], autouse=True)
def threads(request):
    """One BLAS thread, where a test asks for no more: on busy cores they wait for each other."""
    with one_blas_thread() if request.param == 1 else contextlib.nullcontext():
        yield


def definite(m, dtype, seed=0):
    """Symmetric, of full bandwidth, condition number below about 200."""
    G = np.random.default_rng(seed).standard_normal((m, 32)).astype(dtype)
    A = G @ G.T / 32
    A.flat[:: m + 1] += 1
    return A


@pytest.mark.parametrize(
    ("m", "dtype", "threads"),
    [(m, dtype, 1) for m in SIZES for dtype in TOLERANCE] + [(1500, dtype, "all") for dtype in TOLERANCE],
    indirect=["threads"],
)
def test_lower_triangle_is_the_factor_and_the_upper_is_untouched(m, dtype):
    A = definite(m, dtype)
    want = scipy.linalg.cholesky(A.astype(np.float64), lower=True)
    marks = np.triu(np.arange(m * m, dtype=dtype).reshape(m, m), 1)
    A = np.tril(A) + marks
    assert cholesky(A) == 0
    assert (np.triu(A, 1) == marks).all()
    assert np.abs(np.tril(A) - want).max() < TOLERANCE[dtype] * np.abs(want).max()


def test_nothing_above_the_diagonal_is_read():
    m = BLOCK + 300
    A = definite(m, "float64")
    want = scipy.linalg.cholesky(A, lower=True)
    A[np.triu(np.ones((m, m), bool), 1)] = np.nan
    assert cholesky(A) == 0
    np.testing.assert_allclose(np.tril(A), want, rtol=0, atol=1e-12)


def test_no_byte_beside_the_matrix():
    m = BLOCK + 5
    room = np.full((m + 2, m), -3.0)
    room[1:-1] = definite(m, "float64")
    assert cholesky(room[1:-1]) == 0
    assert (room[[0, -1]] == -3.0).all()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("minor", [1, 2, 700, BLOCK, BLOCK + 1, BLOCK + 20, 2 * BLOCK + 7])
def test_leading_minor_that_is_not_definite(minor, dtype):
    A = definite(2 * BLOCK + 10, dtype)
    A[minor - 1, minor - 1] = -1.0
    (potrf,) = get_lapack_funcs(("potrf",), (A,))
    _, info = potrf(A, lower=1)
    assert info == minor
    assert cholesky(A) == info


def test_semidefinite_is_reported_by_sign_not_by_zero():
    A = np.zeros((3, 3))
    A[0, 0] = 4.0
    assert cholesky(A) == 2


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("m", [1, 60, BLOCK + 100])
def test_solve_equals_scipy(m, k, dtype):
    A = definite(m, dtype)
    B = np.random.default_rng(2).standard_normal((k, m)).astype(dtype)
    want = scipy.linalg.solve(A.astype(np.float64), B.T.astype(np.float64), assume_a="pos").T
    L = A.copy()
    assert cholesky(L) == 0
    factor = L.copy()
    assert cholesky_solve(L, B) is None
    np.testing.assert_allclose(B, want, rtol=0, atol=TOLERANCE[dtype])
    np.testing.assert_array_equal(L, factor)


def test_of_nothing():
    assert cholesky(np.empty((0, 0))) == 0


@pytest.mark.parametrize(
    "A",
    [
        np.eye(4, dtype=np.int64),
        np.eye(4, dtype=np.float16),
        np.asfortranarray(np.eye(4) + np.tri(4)),
        np.eye(8)[::2, ::2],
        np.ones((3, 4)),
    ],
    ids=["integers", "half precision", "Fortran order", "strided", "not square"],
)
def test_unsuitable_arrays_are_refused(A):
    before = A.copy()
    with pytest.raises(ValueError, match="square C-contiguous"):
        cholesky(A)
    np.testing.assert_array_equal(A, before)


@pytest.mark.parametrize(
    "B",
    [np.ones((2, 4), np.float32), np.ones((2, 3)), np.asfortranarray(np.arange(8.0).reshape(2, 4))],
    ids=["other dtype", "other length", "Fortran order"],
)
def test_right_hand_sides_that_do_not_fit(B):
    before = B.copy()
    with pytest.raises(ValueError, match="right-hand sides"):
        cholesky_solve(np.eye(4), B)
    np.testing.assert_array_equal(B, before)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_trailing_update_goes_by_blocks(tuned, recorded, dtype):
    """One dsyrk of 19,000 rows is what crashed: the update must be cut, and the cuts must fit together."""
    calls = recorded(lapack, "call", lambda _, name, *args: (name, args[3]))
    tuned(lapack_update=300)
    A = definite(BLOCK + 1000, dtype)
    want = scipy.linalg.cholesky(A.astype(np.float64), lower=True)
    assert cholesky(A) == 0
    assert np.abs(np.tril(A) - want).max() < TOLERANCE[dtype] * np.abs(want).max()
    assert max(rows for name, rows in calls if name == "syrk") == 300
