"""Least squares on M points on all ranks: the bits of one process, its models, and one error for all."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.distributed import RANK, WORLD, R, by_one, even, refused_by_all, sent

from cacore.linalg.tsqr import leaves_of, sent_bytes
from cakrr import KRRModel, SubsetKRR, SubsetKRRClassifier, TwoLevelKRR, observe

pytestmark = pytest.mark.mpi(min_size=1)
N, M = 301, 20
CENTERS = np.random.default_rng(5).uniform(-2, 2, size=(M, 2))


def problem():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(N, 2))
    return X, np.sin(X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=N), rng.integers(1, 3, size=N).astype(float)


def observed(share, shares):
    X, y, _ = problem()
    for lo in range(N * share // shares, N * (share + 1) // shares, 7):
        rows = slice(lo, min(lo + 7, N * (share + 1) // shares))
        yield observe.values(X[rows]), y[rows], 2.0
        if lo % 2:
            yield observe.gradients(X[rows]), np.stack([np.cos(X[rows, 0]), 2 * X[rows, 1]], axis=1).ravel()


def of_observations(comm, rows=observed, **more):
    given = {"sigma": 1.0, "lam": [1e-6, 1e-3], "shares": 8, **more}
    return SubsetKRR(centers=CENTERS, rows=rows, comm=comm, **given).fit()


def bits(comm, select):
    model = of_observations(comm, select=select)
    return model.coef_.tobytes(), [row[f"{select}_mse"] for row in model.grid_], model.model_.coarse.factor.tobytes()


@pytest.mark.parametrize("select", ["loo", "gcv"])
def test_bits_of_one_process(select):
    assert bits(WORLD, select) == by_one(bits, None, select)


def of_rows(comm, block, csr, dtype):
    X, y, w = problem()
    X = sp.csr_matrix(X[block]) if csr else X[block]
    model = SubsetKRR(centers=[10, M], sigma=[0.5, 1.0], lam=[1e-6, 1e-3], dtype=dtype, random_state=0, comm=comm)
    model.fit(X, y[block], w[block])
    T = problem()[0][:30]
    return model, model.predict(T), model.predict(T, return_std=True)[1]


@pytest.mark.parametrize(("csr", "dtype"), [(False, "float64"), (True, "float64"), (False, "float32")])
def test_models_of_training_rows(csr, dtype, tmp_path_factory):
    """Means of features and targets are rounded otherwise on several ranks, so the last digits may differ."""
    model, mean, std = of_rows(WORLD, even(N), csr, dtype)
    alone = by_one(of_rows, None, slice(None), csr, dtype)
    tolerance = 1e-7 if dtype == "float64" else 2e-3
    np.testing.assert_allclose(mean, alone[1], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(std, alone[2], rtol=tolerance)
    assert (model.sigma_, model.lam_, model.params_["centers"]) == (
        alone[0].sigma_, alone[0].lam_, alone[0].params_["centers"])  # fmt: skip
    path = WORLD.bcast(str(tmp_path_factory.mktemp("model") / "m.h5") if RANK == 0 else None)
    model.save(path)
    np.testing.assert_array_equal(KRRModel.load(path, WORLD).predict(problem()[0][:30]), mean)
    np.testing.assert_array_equal(KRRModel.load(path).predict_std(problem()[0][:30])[1], std)


def test_bytes_do_not_depend_on_the_rows():
    """Rows on their leaves' ranks already: what is sent in training are triangles, and a few numbers."""
    X, y, _ = problem()

    def fit(comm):
        SubsetKRR(centers=CENTERS, sigma=1.0, lam=1e-3, standardize=False, comm=comm).fit(X[even(N)], y[even(N)])

    traffic = sent(fit)
    columns = M + 2
    assert traffic["bytes"] == sent_bytes(columns, leaves_of(N, columns), R) + (R > 1) * 24 * R


def test_rows_on_one_rank_and_none_on_others():
    X, y, _ = problem()
    block = slice(None) if RANK == R - 1 else slice(0, 0)
    given = {"centers": CENTERS, "sigma": 1.0, "lam": 1e-3, "standardize": False}
    model = SubsetKRR(**given, comm=WORLD).fit(X[block], y[block])
    alone = by_one(lambda: SubsetKRR(**given).fit(X, y).coef_)
    np.testing.assert_allclose(model.coef_, alone, rtol=1e-9, atol=1e-9)


def test_own_blocks():
    """An iterable has this rank's blocks; ranks without any take part."""
    mine = [block for share in range(8) for block in observed(share, 8)] if RANK == R - 1 else []
    model = of_observations(WORLD, mine)
    np.testing.assert_allclose(model.coef_, by_one(lambda: of_observations(None).coef_), rtol=1e-6, atol=1e-6)


FAILS = {"raises": "KeyError: 'row'", "width": "its rows have shape", "nan": "row 0: its target is nan"}


@pytest.mark.parametrize("ends", FAILS)
def test_one_error_for_all(ends, tmp_path_factory):
    """A block fails on the last rank; the same call goes on there."""
    folder = WORLD.bcast(str(tmp_path_factory.mktemp("kept")) if RANK == 0 else None)
    fails, asked = [True], []

    def rows(share, shares):
        for number, (A, y, *w) in enumerate(observed(share, shares)):
            asked.append((share, number))
            if fails and (share, number) == (7, 2):
                if ends == "raises":
                    raise KeyError("row")
                A, y = (np.ones((len(y), M + 1)), y) if ends == "width" else (A, np.full(len(y), np.nan))
            yield A, y, *w

    def fit():
        return of_observations(WORLD, rows, lam=1e-3, checkpoint=folder)

    refused_by_all(fit, match=rf"rows, share 7, block 2 \(rank {R - 1}\): {FAILS[ends]}")
    fails.clear()
    asked.clear()
    assert fit().coef_.tobytes() == by_one(lambda: of_observations(None, lam=1e-3).coef_).tobytes()
    first = 8 * RANK // R  # whose first block says how many targets there are
    assert {share for share, _ in asked} <= {first, 7}


def test_coarse_model_by_triangles():
    """Two levels with a lambda that is too small for normal equations; some ranks have no parts."""

    def fit(comm, block):
        X, y, _ = problem()
        given = {"n_parts": 2, "centers": M, "coarse_sigma": 1.0, "coarse_lam": 1e-14, "sigma": 1.0, "lam": 1e-2}
        model = TwoLevelKRR(**given, random_state=0, comm=comm).fit(X[block], y[block])
        return model.model_.coarse.predict(np.array([[0.3, -0.2], [1.0, 1.5]]))

    np.testing.assert_allclose(fit(WORLD, even(N)), by_one(fit, None, slice(None)), rtol=1e-5)


@pytest.mark.parametrize("k", [2, 3])
def test_classes(k):
    """The same outputs as in one process; a rank may lack a class."""
    X, y, w = problem()
    labels = np.sort(np.digitize(y, np.quantile(y, [0.5] if k == 2 else [0.3, 0.6])))  # whole blocks of one class

    def fit(comm, block):
        model = SubsetKRRClassifier(centers=CENTERS, sigma=1.0, lam=1e-3, class_weight="balanced", comm=comm)
        model.fit(X[block], labels[block], w[block])
        return model.classes_, model.decision_function(X[:30]), model.predict(X[:30])

    classes, values, told = fit(WORLD, even(N))
    alone = by_one(fit, None, slice(None))
    np.testing.assert_array_equal(classes, alone[0])
    np.testing.assert_allclose(values, alone[1], rtol=1e-7, atol=1e-7)
    np.testing.assert_array_equal(told, alone[2])
