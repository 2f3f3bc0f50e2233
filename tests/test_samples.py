"""The container of a rank's training rows, and the data set that they come from."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import refusal, same_rows
from helpers.data import forms, spotted

from cacore.data.dataset import Dataset, Samples


def rows(n, csr=False, dtype=np.float64, seed=0):
    X = spotted(n, seed=seed, dtype=dtype)
    return sp.csr_matrix(X) if csr else X


def samples(n, csr=False, dtype=np.float64, seed=0):
    """Columns of several types, one of them with two numbers a row."""
    rng = np.random.default_rng(seed)
    columns = {"y": rng.normal(size=n), "row": np.arange(n) + 100 * seed, "coef": rng.random((n, 2)).astype(dtype)}
    return Samples(rows(n, csr, dtype, seed), columns)


def same(got, X, columns):
    same_rows(got.X, X)
    assert list(got.columns) == list(columns)
    for name, values in columns.items():
        np.testing.assert_array_equal(got[name], values, strict=True)


@forms
@pytest.mark.parametrize(
    "chosen",
    [slice(2, 9, 3), slice(0, 0), np.array([5, 0, 5]), np.array([], int), np.arange(11) % 2 == 0],
    ids=["slice", "none", "again", "no number", "mask"],
)
def test_take(csr, dtype, chosen):
    some = samples(11, csr, dtype)
    taken = some.take(chosen)
    same(taken, some.X[chosen], {name: values[chosen] for name, values in some.columns.items()})
    assert len(taken) == taken.X.shape[0] == len(taken["row"])
    assert len(some) == 11


def test_rows_without_columns():
    some = Samples(rows(5))
    assert (len(some), some.columns) == (5, {})
    same(some.take(slice(1, 3)), some.X[1:3], {})
    same(Samples.stacked([some, some]), np.concatenate([some.X, some.X]), {})
    assert Samples(rows(2)).columns is not Samples(rows(2)).columns
    with pytest.raises(KeyError):
        some["y"]


@forms
def test_give(csr, dtype):
    """The rows themselves, not a copy; what gave them has none left, and holds no memory of theirs."""
    some = samples(11, csr, dtype)
    X, columns = some.X, dict(some.columns)
    given = some.give()
    assert given.X is X
    assert all(given[name] is values for name, values in columns.items())
    assert (len(some), some.columns) == (0, {})
    assert (some.X.shape, some.X.dtype, sp.issparse(some.X)) == ((0, 7), dtype, csr)
    assert not np.shares_memory(some.X.data if csr else some.X, X.data if csr else X)
    assert csr or some.X.base is None


@forms
@pytest.mark.parametrize("lengths", [(4,), (3, 0, 5), (0, 0)], ids=str)
def test_stacked(csr, dtype, lengths):
    blocks = [samples(n, csr, dtype, seed) for seed, n in enumerate(lengths)]
    X = np.concatenate([block.X.toarray() if csr else block.X for block in blocks])
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in ("y", "row", "coef")}
    same(Samples.stacked(blocks), sp.csr_matrix(X) if csr else X, columns)


def test_stacked_takes_back_what_was_taken_apart():
    some = samples(11)
    same(Samples.stacked([some.take(slice(lo, lo + 3)) for lo in range(0, 11, 3)]), some.X, some.columns)


# -- a data set --------------------------------------------------------------------------------


@forms
def test_a_data_set_gives_its_rows(csr, dtype):
    X = rows(6, csr, dtype)
    data = Dataset(X, np.arange(6.0))
    assert data.give() is X
    assert data.X.shape == (0, 7)
    assert sp.issparse(data.X) == csr


def test_a_data_set_without_a_target():
    assert refusal(Dataset(rows(3), None, where="a.h5 (test)").target) == "a.h5 (test): there is no target y in it"
    assert Dataset(rows(3), np.array(["a", "b", "a"])).target().tolist() == ["a", "b", "a"]


def test_weights_of_a_data_set():
    assert Dataset(rows(3), np.zeros(3)).row_weights().tolist() == [1.0, 1.0, 1.0]
    weights = np.array([0.0, 2.0, 1.0])
    assert Dataset(rows(3), np.zeros(3), weights=weights).row_weights() is weights
