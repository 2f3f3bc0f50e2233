"""Traces of the training rows in a model's file: a background for explanations, and fingerprints."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from helpers.commands import flat, read, run
from helpers.data import saddle, write_csv

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.rows import csr
from cacore.errors import InputError
from cacore.io import training_rows
from cakernels import DKRR, families

ALONE = Communicator()


def rows_of(n, seed=0, sparse=False):
    X, y = saddle(n, seed)
    if sparse:
        X = csr(X.ravel(), np.tile(np.arange(3), n), np.arange(0, 3 * n + 1, 3), X.shape)
    return Dataset(X, y, n)


@pytest.mark.parametrize("n", [100, 10_000])
def test_rows_that_trained_the_model_are_counted(n):
    """The count is exact up to 2,048 rows, and within a few per cent beyond; in any order, sparse or dense."""
    source = training_rows.of(rows_of(n), ALONE)
    new, old, order = rows_of(n, 1), rows_of(n, sparse=True), np.random.default_rng(0).permutation(n)
    assert training_rows.trained_on(source, new, ALONE)[0] == 0
    assert training_rows.trained_on(source, Dataset(old.X[order], old.y[order], n), ALONE) == (n, n <= 2048)
    half = Dataset(np.vstack([rows_of(n).X[: n // 2], new.X[n // 2 :]]), np.r_[old.y[: n // 2], new.y[n // 2 :]], n)
    assert training_rows.trained_on(source, half, ALONE)[0] == pytest.approx(n // 2, rel=0.06 if n > 2048 else 0)
    assert training_rows.trained_on({}, old, ALONE) == (0, True)
    assert training_rows.trained_on(source, Dataset(old.X, None, n), ALONE) == (0, True)


@pytest.mark.parametrize(("d", "count"), [(3, 100), (2_000, 16), (5_000, 0)])
def test_the_background_is_a_sample_of_bounded_size(d, count):
    X = np.random.default_rng(0).normal(size=(120, d))
    sample = training_rows.background(training_rows.of(Dataset(X, X[:, 0], 120), ALONE), d)
    if not count:
        assert sample is None
        return
    assert sample.shape == (count, d)
    assert {row.tobytes() for row in sample} <= {row.tobytes() for row in X}


def test_a_damaged_sample_is_refused():
    for text in ("?", "AAAAAAAA8H8=", "AAAA"):
        with pytest.raises(InputError, match="its sample of training rows is damaged"):
            training_rows.background({training_rows.NAME: {"background": text}}, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    X, y = saddle(60)
    write_csv(folder / "train.csv", X[:50], y[:50], names="abc", target="y")
    write_csv(folder / "new.csv", X[50:], y[50:], names="abc", target="y")
    write_csv(folder / "one.csv", X[50:51], y[50:51], names="abc", target="y")
    run("cakrr.dkrr", [folder / "train.csv", "--sigma", "2", "--lambda", "1e-3", "--model", folder / "m.h5", "--quiet"])
    return folder


def test_one_row_is_explained_by_training_rows(folder):
    """Values are those with all training rows as background, and predictions are as without the sample."""
    run("cakernels", ["explain", folder / "m.h5", folder / "one.csv", "-o", folder / "v.csv", "--quiet"])
    values = np.loadtxt(folder / "v.csv", delimiter=",", skiprows=1)
    model, X = families.load(folder / "m.h5"), saddle(60)[0]
    reference = model.explain(X[50:51], background=X[:50])
    np.testing.assert_allclose(values[:3], reference.values[0], rtol=1e-9)
    assert np.abs(values[:3]).max() > 0.1
    before = model.predict(X)
    del model.source[training_rows.NAME]
    np.testing.assert_array_equal(model.predict(X), before)


def test_one_row_without_training_rows_is_refused(folder):
    X, y = saddle(60)
    with pytest.raises(InputError, match=r"a single row is compared with itself.* give rows for comparison"):
        DKRR(sigma=2.0, lam=1e-3).fit(X, y).explain(X[:1])


def test_an_earlier_version_reads_the_file(folder):
    """It knows the attribute of all short entries, and that of the columns; nothing else has a place of its own."""
    with h5py.File(folder / "m.h5") as file:
        assert training_rows.NAME not in file.attrs["attributes"]
        names = {name.split(" ")[0] for name in file.attrs}
        assert names == {"schema", "family", "version", "date", "attributes", "columns", training_rows.NAME}
        assert set(file) & {training_rows.NAME} == set()


@pytest.mark.parametrize(("name", "repeated"), [("train", 50), ("new", 0)])
def test_predict_says_that_rows_trained_the_model(name, repeated, folder, capsys):
    run("cakernels", ["predict", folder / "m.h5", folder / f"{name}.csv", "--report", folder / "r.json"])
    report, out = read(folder / "r.json"), flat(capsys.readouterr().out)
    assert report["data"].get("overlap", 0) == repeated
    assert ("50 test rows, of which 50 trained the model; R^2" in out) == bool(repeated)
    assert ("50 of 50 rows trained the model, which flatters the error" in out) == bool(repeated)
