"""A note on a number that is much farther from the others than they are from each other."""

import numpy as np
import pytest
from helpers.commands import read, run
from helpers.data import normal_rows, write_csv, write_hdf5

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.encoding import Columns


def noted(X, y=None):
    return Dataset(X, y, len(X), "a.csv", columns=Columns(("age", "height"), ("price",))).far_numbers(Communicator())


@pytest.mark.parametrize("many", [1, 20])
@pytest.mark.parametrize("far", [1e9, -1e9])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_a_fill_value(many, far, dtype):
    """Neither a fill value in many rows nor another column hides it."""
    X = normal_rows(3000, 2).astype(dtype)
    X[:: len(X) // many, 1] = far
    (line,) = noted(X)
    assert line.startswith(f"a.csv: feature 1 (height) has the number {far:g}, ")
    ratio = float(line.split(", ")[1].split()[0])
    assert 0.9e9 < ratio < 1.1e9


def test_targets():
    X = normal_rows(100, 2)
    y = X[:, 0].copy()
    y[3] = 1e20
    assert noted(X, y)[0].startswith("a.csv: target 0 (price) has the number 1e+20")


@pytest.mark.parametrize("column", [
    np.exp(3 * normal_rows(2000, 1)[:, 0]), np.eye(2000)[0] * 1e9, np.full(2000, 7e12), np.arange(2000.0) ** 2,
    1.7e9 + normal_rows(2000, 1)[:, 0],
])  # fmt: skip
def test_ordinary_columns(column):
    """Skewed ones, indicators, constants, times."""
    assert noted(np.column_stack([column, normal_rows(2000, 1)])) == []


@pytest.mark.parametrize("program", ["cakrr.bkrr2", "casvm.svr"])
def test_reports(program, tmp_path):
    X = normal_rows(120, 3)
    y = X[:, 0].copy()
    X[5, 1] = -1e9
    write_csv(tmp_path / "a.csv", X, y)
    write_hdf5(tmp_path / "a.h5", train=(X, y))
    for name in ("a.csv", "a.h5"):
        run(program, [tmp_path / name, "--partitions", "1", "--report", tmp_path / "r.json", "--quiet"])
        assert any(
            "feature 1" in line and "has the number -1e+09" in line for line in read(tmp_path / "r.json")["notes"]
        )
