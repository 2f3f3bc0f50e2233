"""Rows in a file of each rank: the same models as of rows in memory, on as many ranks, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.data import smooth as rows
from helpers.data import write_hdf5
from helpers.distributed import RANK, WORLD, R, in_order, refused_by_all

from cacore.comm import Communicator
from cacore.data.rows import block_bounds, exchange_rows, gather_rows
from cacore.data.stored import is_stored
from cacore.io import load
from cacore.io.loading import load_in_file
from cacore.io.table import LABELS, RowsRequest
from cakrr import bkrr2, dckrr, subset
from cakrr.options import RidgeOptions, SubsetOptions
from casvm import casvm, cpsvm
from casvm.options import SVMOptions

pytestmark = pytest.mark.mpi(min_size=1)

GRID = RidgeOptions(partitions=6, sigma=(0.5, 1.5), lam=(1e-5, 1e-3), seed=2)
TRAINED = {
    "nearest": (bkrr2.METHOD, GRID),
    "all": (dckrr.METHOD, GRID),
    "clusters": (cpsvm.METHOD, SVMOptions(partitions=6, standardize=True)),
    "dealt": (casvm.METHOD, SVMOptions(partitions=6, route="all")),
}


@pytest.fixture
def data(folder, tuned):
    tuned(stored_block=256)
    if RANK == 0:
        (X, y), (T, t) = rows(), rows(41, seed=1)
        write_hdf5(folder / "data.h5", train=(X, (y > np.median(y)).astype(float)), test=(T, t))
    WORLD.Barrier()
    return folder / "data.h5"


def in_file(path, comm, folder=None):
    return load_in_file(path, comm, RowsRequest(wanted=LABELS), folder or path.parent)


@pytest.mark.parametrize("name", TRAINED)
def test_same_model(name, data, comm, everywhere):
    method, options = TRAINED[name]
    fits, answers = [], []
    for splits in (load(data, comm), in_file(data, comm)):
        train, test = splits["train"], splits["test"]
        if "svm" in method.package:
            train.y = train.y.astype(np.int64)
        fits.append(method(train, options, comm))
        answers.append(everywhere(fits[-1].model.predict(test.X[:], comm)))
    np.testing.assert_array_equal(*answers)
    np.testing.assert_array_equal(*(fit.model.centers for fit in fits))
    held = [fit.model.parts for fit in fits]
    assert held[0].keys() == held[1].keys()
    for part, expected in held[0].items():
        assert is_stored(held[1][part].X)
        np.testing.assert_array_equal(held[1][part].X[:], expected.X)
    coefficients = "alpha" if "krr" in method.package else "coef"
    every = [in_order({number: getattr(part, coefficients) for number, part in parts.items()}) for parts in held]
    assert sorted(every[0]) == list(range(6))
    for number, expected in every[0].items():
        np.testing.assert_array_equal(every[1][number], expected)
    names = WORLD.bcast(sorted(path.name for path in data.parent.iterdir()) if RANK == 0 else None)
    assert names == ["data.h5"]  # what lies beside it has no name


@pytest.mark.parametrize("ends", ["alike", "uneven", "none"])
def test_rows_that_move(ends, data, comm):
    """Sorted by receiver, as rows in memory move; those that stay where they are keep their file."""
    X = in_file(data, comm)["train"].X
    rng = np.random.default_rng([RANK, len(ends)])
    counts = {"alike": np.full(R, len(X) // R), "uneven": rng.multinomial(len(X), rng.dirichlet(np.ones(R))),
              "none": np.where(np.arange(R) == RANK, len(X), 0)}[ends].astype(np.int64)  # fmt: skip
    counts[-1 if ends == "alike" else RANK] += len(X) - counts.sum()
    moved, expected = exchange_rows(X, counts, comm), exchange_rows(X[:], counts, comm)
    np.testing.assert_array_equal(moved[:], expected)
    assert (moved is X) == (R == 1 or ends == "none")


def test_least_squares_on_points(data, comm, everywhere):
    options = SubsetOptions(centers=(10, 20), sigma=(0.5, 1.5), lam=(1e-5, 1e-3), seed=2)
    every = [subset.METHOD(splits["train"], options, comm) for splits in (load(data, comm), in_file(data, comm))]
    np.testing.assert_array_equal(*(fit.model.coarse.beta for fit in every))
    assert every[0].grid == every[1].grid


def test_rows_of_all_ranks(data, comm):
    split = in_file(data, comm)["train"]
    lo, hi = block_bounds(split.n, R, RANK)
    X = load(data, Communicator())["train"].X
    got = gather_rows(split.X.subset(np.arange(len(split.X))[::2]), comm)[:]
    wanted = [np.arange(*block_bounds(split.n, R, rank))[::2] for rank in range(R)]
    np.testing.assert_array_equal(split.X[:], X[lo:hi])
    np.testing.assert_array_equal(got, X[np.concatenate(wanted)])


def test_no_folder_on_one_rank(data, comm):
    folder = data.parent / ("absent" if RANK == R - 1 else ".")
    refused_by_all(in_file, data, comm, folder, match="--scratch .*absent: cannot make a file there")
