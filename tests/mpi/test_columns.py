"""Columns in another order are put in order on every rank, and every rank refuses what is missing or too much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.columns import draw, write_columns
from helpers.data import write_hdf5
from helpers.distributed import RANK, WORLD, refused_by_all

from cacore.comm import Communicator
from cacore.data.encoding import Columns
from cacore.io import load
from cacore.io.loading import load_in_file
from cacore.io.names import Expected
from cacore.io.table import LABELS, RowsRequest
from cacore.run.launch import Training
from cacore.run.reading import read

pytestmark = pytest.mark.mpi(min_size=1)

KNOWN = Expected(Columns(("a", "b", "c"), ("y",)), "train.csv")
FORMS = ["csv", "csv.gz", "parquet", "h5"]


def written(folder, form, names, **more):
    """The file of rank 0, for all ranks."""
    path = folder / f"t.{form}"
    if RANK == 0:
        if form == "csv.gz":
            import gzip

            plain = write_columns(folder / "t.csv", draw() | more, names)
            path.write_bytes(gzip.compress(plain.read_bytes()))
        else:
            write_columns(path, draw() | more, names)
    WORLD.Barrier()
    return path


@pytest.mark.parametrize("form", FORMS)
def test_orders(form, folder, everywhere):
    comm, table = Communicator(WORLD), draw()
    path = written(folder, form, ("d", "y", "c", "a", "b"), d=table["a"] * 2)
    refused_by_all(lambda: load(path, comm, expected=KNOWN), match="column d, which train.csv does not have")
    ways = [lambda known: load(path, comm, expected=known)]
    if form == "h5":
        ways.append(lambda known: load_in_file(path, comm, RowsRequest(wanted=LABELS, expected=known), folder))
    for way in ways:
        rows = way(replace(KNOWN, ignore_extra=True))["train"]
        np.testing.assert_array_equal(everywhere(rows.X[:]), np.column_stack([table[name] for name in "abc"]))
        np.testing.assert_array_equal(everywhere(rows.y), table["y"])
        assert rows.columns == Columns(("a", "b", "c"), ("y",), rows.columns.kinds)
    WORLD.Barrier()
    path = written(folder, form, ("y", "c", "a"))
    for way in ways:
        refused_by_all(way, KNOWN, match="no column b, which train.csv has")


def test_csr_rows(folder, everywhere):
    comm, X = Communicator(WORLD), np.arange(60.0).reshape(20, 3) % 7
    if RANK == 0:
        import h5py

        path = write_hdf5(folder / "s.h5", True, train=(X[:, [2, 0, 1]], X[:, 0]))
        with h5py.File(path, "a") as file:
            file["train/names"] = ["c", "a", "b"]
    WORLD.Barrier()
    rows = load(folder / "s.h5", comm, expected=KNOWN)["train"]
    np.testing.assert_array_equal(everywhere(rows.X).toarray(), X)
    assert rows.X.has_sorted_indices


def test_training_and_test_rows(folder, everywhere, capfd):
    """The test rows are put in the order of the training rows, which one rank says; so is the chosen target."""
    comm, table = Communicator(WORLD), draw()
    if RANK == 0:
        write_columns(folder / "train.csv", draw(seed=1), ("a", "b", "c", "y"))
        write_columns(folder / "test.h5", table, ("c", "y", "b", "a"))
    WORLD.Barrier()
    train, test = read(Training(data=folder / "train.csv", test=folder / "test.h5"), comm, 1 << 30)
    np.testing.assert_array_equal(everywhere(test.X), np.column_stack([table[name] for name in "abc"]))
    y = draw(seed=1)["y"]
    assert train.chosen == {"column": "y", "range": [y.min(), y.max()]}
    assert capfd.readouterr().err.count("another order") == (RANK == 0)
