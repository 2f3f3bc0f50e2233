"""Input that Asy-GCD's estimator refuses, and odd rows that it takes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.asygcd_fits import GAMMA, fitted, is_solution, updates
from helpers.checks import near, refusal
from helpers.data import clouds, formats, unsorted
from sklearn.metrics.pairwise import rbf_kernel

from asygcd import AsyGCDSVC
from cacore.machine.memory import GIB

# -- what is refused -------------------------------------------------------------------------------------------

BAD = {
    "precomputed": ({"kernel": "precomputed"}, "kernel = 'precomputed': it must be one of"),
    "update": ({"update": "locked"}, "update = 'locked': it must be one of owned, atomic, stochastic"),
    "multi_class": ({"multi_class": "ovx"}, "multi_class = 'ovx': it must be one of ovr, ovo"),
    "threads 0": ({"threads": 0}, "threads = 0:"), "threads negative": ({"threads": -1}, "threads = -1:"),
    "threads 1.5": ({"threads": 1.5}, "threads = 1.5:"), "threads text": ({"threads": "2"}, "threads = '2':"),
    "cache 0": ({"cache_gib": 0}, "a cache of 0 bytes does not hold two columns of 150"),
    "cache small": ({"cache_gib": 1e-6}, "a cache of 1,073 bytes does not hold two columns of 150"),
    "random_state": ({"random_state": "a"}, "'a'"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_parameters(what):
    more, match = BAD[what]
    model = AsyGCDSVC(threads=1).set_params(**more)
    refusal(model.fit, *clouds(), match=match, error=ValueError)
    assert not hasattr(model, "model_")


@pytest.mark.parametrize("update", ["owned", "atomic"])
@pytest.mark.parametrize("threads", [1, 2])
def test_cache_that_just_suffices(threads, update):
    """The figure in the message is the truth."""
    X, y = clouds()

    def with_cache(nbytes):
        return fitted(X, y, threads=threads, update=update, random_state=0, cache_gib=nbytes / GIB)

    message = refusal(with_cache, 100, match="raise it, or use fewer threads")
    needed = int(re.search(r"threads: ([\d,]+) bytes would", message)[1].replace(",", ""))
    assert with_cache(needed).fit_status_ == 0
    refusal(with_cache, needed - 1, match=f"{needed:,} bytes would")


def test_memory_too_small(tuned):
    tuned(available_memory=lambda: 10**7)
    X, y = clouds()
    assert fitted(X, y).fit_status_ == 0  # a cache of all columns is smaller than a GiB
    tuned(available_memory=lambda: 10**4)
    message = refusal(fitted, X, y, match="storing packed rows and the kernel cache needs")
    assert len(re.findall(r"[\d.e-]+ GiB", message)) == 2
    assert "use a smaller cache, or fewer rows" in message


# Finite, but their squares, or kernel values, are not: refused, as casvm does, and not as a warning of numpy's.
@pytest.mark.parametrize(
    ("kernel", "scale", "match"),
    [
        ("linear", 1e200, "squares of numbers above 1e+150 may overflow in float64: standardise the features"),
        ("polynomial", 1e120, "polynomial kernel: its values overflow float64; scale the features"),
    ],
)
def test_overflow(kernel, scale, match):
    X, y = clouds()
    refusal(lambda: fitted(X * scale, y, kernel=kernel, gamma=1.0), match=match)


# -- odd, and not refused ------------------------------------------------------------------------------------


@updates
@pytest.mark.parametrize("n", [10, 11])
@pytest.mark.parametrize("threads", [1, 3])
@formats
def test_rows_all_equal(csr, threads, n, update):
    """There is nothing to learn but which class has more rows."""
    X, y = np.ones((n, 2)), np.arange(n) % 2
    X = sp.csr_matrix(X) if csr else X
    model = fitted(X, y, threads=threads, update=update)
    decisions = model.decision_function(X)
    near(decisions, -1.0 if n % 2 else 0.0, 1e-5)
    if n % 2:
        assert (model.predict(X) == 0).all()


@pytest.mark.parametrize("gamma", [1e6, 1e-12])
def test_extreme_gamma(gamma):
    """Every row alone, and no row different."""
    X, y = clouds()
    K = rbf_kernel(X, gamma=gamma)
    is_solution(fitted(X, y, gamma=gamma, threads=2), K, y, K, X)


@pytest.mark.parametrize("threads", [1, 2])
def test_duplicates_with_opposite_labels(threads):
    X, y = clouds(60)
    X, y = np.r_[X, X[:9]], np.r_[y, 1 - y[:9]]
    K = rbf_kernel(X, gamma=GAMMA)
    is_solution(fitted(X, y, threads=threads), K, y, K, X)


def test_nothing_but_zeros():
    for X in (np.zeros((20, 3)), sp.csr_matrix((20, 3))):
        for kernel in ("gaussian", "linear"):
            model = fitted(X, np.arange(20) % 2, kernel=kernel, threads=2)
            assert model.decision_function(X).tolist() == [0.0] * 20


def test_csr_with_stored_zeros_and_unsorted_indices():
    X, y = clouds()
    S = sp.csr_matrix(X)
    S.data[::7] = 0
    odd = unsorted(S)
    expected = fitted(S.toarray(), y).decision_function(S.toarray())
    near(fitted(odd, y, threads=2).decision_function(odd), expected, 1e-4)


def test_more_than_there_can_be():
    X, y = clouds()
    model = AsyGCDSVC(cache_gib=1e300, max_iter=10**30, gamma=GAMMA).fit(X, y)
    assert model.fit_status_ == 0
