"""Gradients of kernel expansions against finite differences, and the sums of their products."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import close, near
from helpers.data import as_csr, dense, formats
from helpers.references import matrix

from cacore.kernels import KINDS, Kernel, gradients

kinds = pytest.mark.parametrize("kind", KINDS)
STEP = 1e-5


def problem(kind, csr=False, n=23, m=17, d=4):
    """Rows, centres, two rows of coefficients."""
    rng = np.random.default_rng(0)
    X, Z = (as_csr(rng.normal(1.0, 1.0, (rows, d)), csr, 0.5) for rows in (n, m))
    return Kernel(kind, 0.3, degree=2, coef0=0.4), X, Z, rng.normal(size=(2, m))


def by_differences(kernel, X, Z, c):
    """Shape (k, n, d), from kernel values by scikit-learn and scipy."""
    X, out = dense(X), np.empty((len(c), *X.shape))
    for k in range(X.shape[1]):
        shift = STEP * (np.arange(X.shape[1]) == k)
        out[:, :, k] = c @ (matrix(kernel, X + shift, Z) - matrix(kernel, X - shift, Z)).T / (2 * STEP)
    return out


@kinds
@formats
def test_finite_differences(csr, kind):
    """Where a feature of both rows is 0 the l1 kernel has a kink, at which central differences are 0 as well."""
    kernel, X, Z, c = problem(kind, csr)
    near(gradients.stacked(kernel, X, Z, c), by_differences(kernel, X, Z, c), 1e-8)


@kinds
@formats
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sums_of_products(dtype, csr, kind, tuned):
    """Gradients summed over all expansions, in blocks of rows, with those of a coarse model; in double precision."""
    kernel, X, Z, c = problem(kind, csr)
    X, Z, base = X.astype(dtype), Z.astype(dtype), np.random.default_rng(1).normal(size=(2, 23, 4))
    tuned(gradient_bytes=8 * 17 * 5)  # five rows at a time
    for added in (None, base):
        G = gradients.stacked(kernel, X, Z, c) + (0.0 if added is None else added)
        full = gradients.moments(kernel, X, Z, c, False, added)
        close(full, np.einsum("kij,kil->jl", G, G), 1e-12)
        close(gradients.moments(kernel, X, Z, c, True, added), np.diagonal(full), 1e-12)
    exact = gradients.stacked(kernel, X.astype(np.float64), Z.astype(np.float64), c)
    np.testing.assert_array_equal(gradients.stacked(kernel, X, Z, c), exact)


@pytest.mark.parametrize("kind", ["laplacian", "l1", "wendland0_product"])
@formats
def test_a_row_that_is_a_center_is_left_out(csr, kind):
    """Where the kernel has a tip the row itself adds nothing; all others what they are."""
    kernel, _, Z, c = problem(kind, csr)
    got = gradients.stacked(kernel, Z, Z, c)
    for i in range(Z.shape[0]):
        others = np.delete(np.arange(Z.shape[0]), i)
        near(got[:, i], by_differences(kernel, Z[[i]], Z[others], c[:, others])[:, 0], 1e-8)


@pytest.mark.parametrize("kind", ["gaussian", "matern32", "laplacian"])
def test_rows_far_from_the_origin(kind):
    """The distances are those of the centred rows."""
    kernel, X, Z, c = problem(kind)
    near(gradients.stacked(kernel, X + 1e5, Z + 1e5, c), gradients.stacked(kernel, X, Z, c), 1e-7)


@kinds
def test_no_rows_and_no_centers(kind):
    kernel, X, Z, c = problem(kind)
    assert not gradients.moments(kernel, X[:0], Z, c, False).any()
    assert not gradients.moments(kernel, X, Z[:0], c[:, :0], False).any()
