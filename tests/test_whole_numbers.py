"""Whole numbers that double precision does not tell apart, such as nanoseconds, are refused, not rounded."""

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers.checks import refusal
from helpers.commands import run

import casvm
from cacore.comm import Communicator
from cacore.data.resolution import rounded_columns
from cacore.io import load
from cacore.io.loading import load_in_file
from cacore.io.table import LABELS, NUMBERS, RowsRequest
from cakrr import BKRR2, DKRR, BKRR2Classifier
from partition import KBalance, KMeans

N = 90
BEGIN = 1_700_000_000_000_000_000
CLOSE = BEGIN + 3 * np.arange(N)
APART = BEGIN + 1_000_000_007 * np.arange(N)  # a second and some nanoseconds
INDEX = np.arange(N)
Y = np.sin(INDEX / 20)
MESSAGE = "whole numbers near 1.7e+18 have a standard deviation of"
ESTIMATORS = [(DKRR(), Y), (BKRR2(n_parts=1), Y), (BKRR2Classifier(n_parts=1), Y > 0), (casvm.SMOSVC(), Y > 0),
              (casvm.SMOSVR(), Y), (casvm.CASVC(1), Y > 0), (casvm.CASVR(1), Y), (casvm.SMOOneClassSVM(), None),
              (casvm.SMONuSVR(), Y)]  # fmt: skip


def name(value):
    return type(value[0]).__name__


@pytest.mark.parametrize("made", ESTIMATORS, ids=map(name, ESTIMATORS))
def test_features(made):
    estimator, y = made
    given = () if y is None else (y,)
    refusal(lambda: estimator.fit(np.column_stack([INDEX, CLOSE]), *given), match=f"X, column 1: its {MESSAGE}")


@pytest.mark.parametrize("made", ESTIMATORS[:2] + ESTIMATORS[4:5], ids=name)
@pytest.mark.parametrize("y", [CLOSE, CLOSE.tolist(), pd.Series(CLOSE), CLOSE.astype(np.uint64)[:, None]])
def test_targets(made, y):
    refusal(lambda: made[0].fit(INDEX[:, None].astype(float), y), match=MESSAGE)


@pytest.mark.parametrize("form", [
    lambda X: X.tolist(), lambda X: [[row[0], 0.5 * row[1]] for row in X.tolist()], pd.DataFrame,
    lambda X: pd.DataFrame(X, columns=["a", "b"]).astype("Int64"), lambda X: X.astype(np.uint64),
    lambda X: X.astype(object), sp.csr_matrix, sp.csc_array, sp.coo_array,
])  # fmt: skip
def test_containers(form):
    refusal(lambda: DKRR().fit(form(np.column_stack([CLOSE, INDEX])), Y), match=f": its {MESSAGE}")


def test_entries_that_are_not_stored_are_zeros():
    """Beside a single 0, nanoseconds are no different from each other in any precision."""
    X = np.column_stack([INDEX, np.append(0, CLOSE[1:])])
    for form in (np.array, sp.csr_matrix):
        DKRR(standardize=False).fit(form(X), Y)


@pytest.mark.parametrize("form", [np.array, np.ndarray.tolist, pd.DataFrame, sp.csr_array])
@pytest.mark.parametrize("cls", [KBalance, KMeans])
def test_partitioners(cls, form):
    refusal(lambda: cls(2).fit(form(np.column_stack([INDEX, CLOSE]))), match=f": its {MESSAGE}")
    made = cls(2, random_state=0).fit(form(np.column_stack([INDEX, APART])))
    made.predict(form(np.column_stack([INDEX, CLOSE])))


@pytest.mark.parametrize("y", [[2**80 + i for i in range(N)], np.uint64(2**63) + np.arange(N).astype(np.uint64)])
def test_targets_beyond_int64(y):
    refusal(lambda: DKRR().fit(INDEX[:, None], y), match="are 2" if isinstance(y, np.ndarray) else "are 2.68e+08 apart")
    DKRR().fit(INDEX[:, None], [value - int(y[0]) for value in map(int, y)])


def test_numbers_that_rounding_leaves_apart():
    """Seconds, in nanoseconds; constants; few rows to predict."""
    X = np.column_stack([APART, np.full(N, BEGIN + 1)])
    model = DKRR(standardize=True, lam=1e-6, sigma=0.2).fit(X, Y)
    assert np.abs(model.predict(X) - Y).max() < 0.01
    model.predict(np.array([[BEGIN, BEGIN + 1], [BEGIN + 1, BEGIN + 1]]))


def test_columns_that_are_rounded():
    odd = np.array([[2**53 + 1, 2**53 + 2, 5], [0, 0, 7]])
    assert rounded_columns(odd).tolist() == [True, False, False]
    assert rounded_columns(-odd).tolist() == [True, False, False]
    assert rounded_columns(odd[:, 0]).tolist() == [True]
    assert not rounded_columns(odd.astype(float)).any()


def write(path, t, y):
    """A file of this form whose first feature is `t`."""
    X, form = np.column_stack([t, INDEX]), path.suffix
    if form in (".csv", ".quoted"):
        cell = '"{}"' if form == ".quoted" else "{}"
        lines = [f"{a},{b},{cell.format(c)}" for a, b, c in zip(t.tolist(), INDEX.tolist(), y.tolist(), strict=True)]
        path.write_text("\n".join(["t,b,y", *lines]) + "\n")
    elif form == ".h5":
        with h5py.File(path, "w") as file:
            file["train/X"], file["train/y"] = X, y
    elif form == ".csr":
        rows = sp.csr_matrix(X)
        with h5py.File(path, "w") as file:
            group = file.create_group("train/X")
            group["data"], group["indices"], group["indptr"] = rows.data, rows.indices, rows.indptr
            group.attrs["shape"], file["train/y"] = X.shape, y
    elif form in (".libsvm", ".sparse"):
        far = 9 if form == ".sparse" else 3  # most of nine features are zeros
        lines = [f"{c} 1:{a} {far}:{b}" for a, b, c in zip(t.tolist(), INDEX.tolist(), y.tolist(), strict=True)]
        path.write_text("\n".join(lines) + "\n")
    elif form == ".npz":
        np.savez(path, x=X, y=y)
    elif form == ".npy":
        np.save(path, np.column_stack([t, INDEX, y]))
    else:
        pd.DataFrame({"t": t, "b": INDEX, "y": y}).to_parquet(path)
    return path


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("form", ["csv", "quoted", "h5", "csr", "npz", "npy", "parquet", "on disk", "libsvm", "sparse"])
def test_files(tmp_path, form, dtype):
    def loaded(t, y, training=True, wanted=NUMBERS):
        path = write(tmp_path / f"a.{'h5' if form == 'on disk' else form}", t, y)
        if form == "on disk":
            request = RowsRequest(np.dtype(dtype), wanted=wanted, training=training)
            return load_in_file(path, Communicator(), request, tmp_path)
        return load(path, Communicator(), dtype, wanted=wanted, training=training)

    refusal(lambda: loaded(CLOSE, INDEX), match=f": its {MESSAGE}")
    refusal(lambda: loaded(INDEX, CLOSE), match=f": its {MESSAGE}")
    if dtype == "float64":
        loaded(APART, APART)
    loaded(CLOSE, INDEX, training=False)
    if form in ("libsvm", "sparse"):  # labels are read as doubles
        refusal(lambda: loaded(INDEX, CLOSE, wanted=LABELS), match=f"target 0: its {MESSAGE}")
    else:
        assert loaded(INDEX, CLOSE, wanted=LABELS)["train"].y.tolist() == CLOSE.tolist()


def test_convert(tmp_path, refuses):
    """Tables are refused before their digits are lost; integers of an HDF5 file stay integers."""
    for t, y in ((CLOSE, INDEX), (INDEX, CLOSE)):
        for form in ("csv", "libsvm"):
            refuses("cacore.io", ["convert", write(tmp_path / f"a.{form}", t, y), "b.h5"], MESSAGE, tmp_path)
    run("cacore.io", ["convert", write(tmp_path / "a.csv", APART, INDEX), tmp_path / "b.h5", "--quiet"])
    run("cacore.io", ["convert", write(tmp_path / "a.h5", INDEX, CLOSE), tmp_path / "c.h5", "--quiet"])
    with h5py.File(tmp_path / "c.h5") as file:
        assert file["train/y"][:].tolist() == CLOSE.tolist()


def test_the_front(tmp_path, refuses):
    path = write(tmp_path / "a.csv", INDEX, CLOSE)
    refuses("cakernels fit", [path, "--within", "2"], f"the target: its {MESSAGE}", tmp_path)
