"""Model files: what was saved is what is loaded, and nothing is half-written."""

import json
import re

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from helpers.data import sealed

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import model_file as models

RNG = np.random.default_rng(0)
ATTRIBUTES = {"sigma": 0.5, "kernel": "gaussian", "classes": [1, 2], "none": None, "note": "x" * 100_000}
SHARED = {"centers": RNG.standard_normal((3, 4)), "counts": np.arange(3)}
OWNERS = np.zeros(3, np.int64)


def parts(dtype=np.float64, form=np.array):
    """Arrays of parts with 2, 3 and 1 rows; the last part has no support."""
    out = {}
    for p, m in enumerate((2, 3, 1)):
        X = RNG.standard_normal((m, 4)) * (RNG.random((m, 4)) < 0.5)
        out[p] = {"X": form(X.astype(dtype)), "alpha": RNG.standard_normal(m).astype(dtype), "none": np.empty(0)}
    return out


def load(path, family="krr"):
    return models.load(path, {family: lambda *read: read}, Communicator())


def save(path, made=None, family="krr"):
    models.save(path, family, ATTRIBUTES, SHARED, made or parts(), OWNERS, Communicator())


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_saved_and_loaded(tmp_path, dtype, form):
    made = parts(dtype, form)
    save(tmp_path / "m.h5", made)
    attributes, shared, read = load(tmp_path / "m.h5")
    loaded, owners = read.held, read.owners
    assert attributes == ATTRIBUTES
    assert sorted(shared) == sorted(SHARED)
    for name, values in SHARED.items():
        np.testing.assert_array_equal(shared[name], values)
        assert shared[name].dtype == values.dtype
    assert owners.tolist() == [0, 0, 0]
    assert sorted(loaded) == [0, 1, 2]
    for p, fields in made.items():
        assert sorted(loaded[p]) == ["X", "alpha", "none"]
        for name, values in fields.items():
            got = loaded[p][name]
            assert (got.shape, got.dtype, sp.issparse(got)) == (values.shape, values.dtype, sp.issparse(values))
            assert abs(got - values).sum() == 0


def test_parts_keep_their_numbers(tmp_path):
    """More parts than a name of one digit tells apart."""
    made = {p: {"alpha": np.array([float(p)])} for p in range(12)}
    models.save(tmp_path / "m.h5", "svm", {}, {}, made, np.zeros(12, np.int64), Communicator())
    loaded = load(tmp_path / "m.h5", "svm")[2].held
    assert {p: fields["alpha"].item() for p, fields in loaded.items()} == {p: float(p) for p in range(12)}


def test_no_pickle_inside(tmp_path):
    save(tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5") as file:
        assert json.loads(file.attrs["attributes"]) == ATTRIBUTES
        kinds = set()
        file.visititems(lambda _, item: kinds.add(item.dtype.kind) if isinstance(item, h5py.Dataset) else None)
    assert kinds <= set("if")


def test_saving_over_an_old_file(tmp_path):
    path = tmp_path / "m.h5"
    save(path, family="svm")
    save(path)
    assert load(path)[0] == ATTRIBUTES
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("old", [None, "old"])
def test_failed_write_keeps_the_old_file(tmp_path, old):
    path = tmp_path / "m.h5"
    if old:
        path.write_text(old)
    made = parts()
    made[2]["X"] = np.array([object()])  # what HDF5 cannot hold
    with pytest.raises(TypeError):
        save(path, made)
    assert [p.read_text() for p in tmp_path.iterdir()] == [old] * bool(old)


def test_place_is_checked_first(tmp_path):
    with pytest.raises(InputError, match="none does not exist"):
        save(tmp_path / "none" / "m.h5")


def remove(name):
    def change(file):
        del file[name]

    return change


def attribute(name, value):
    def change(file):
        file.attrs[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (attribute("schema", "other/1"), "not a model file of this package"),
        (attribute("family", "svm"), "a model of the svm family; krr is needed"),
        (attribute("attributes", "{"), "damaged"),
        (lambda file: file.attrs.__delitem__("attributes"), "damaged"),
        (lambda file: file.attrs.__delitem__("family"), "damaged"),
        (remove("parts"), "damaged"),
        (remove("parts/000001"), "damaged"),
        (remove("parts/000001/X/indptr"), "damaged"),
        (lambda file: file["parts/000001/X"].attrs.__delitem__("shape"), "damaged"),
    ],
)
def test_damaged(tmp_path, change, message):
    path = tmp_path / "m.h5"
    save(path, parts(form=sp.csr_matrix))
    with sealed(path) as file:
        change(file)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*{message}"):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "no such model file"), (b"", "damaged"), (b"x" * 99, "damaged")]
)
def test_not_a_model(tmp_path, content, message):
    path = tmp_path / "m.h5"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*{message}"):
        load(path)


@pytest.mark.parametrize("keep", [0.3, 0.99])
def test_truncated(tmp_path, keep):
    path = tmp_path / "m.h5"
    save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(InputError, match=re.escape(str(path))):
        load(path)


def test_arrays_are_not_changed(tmp_path):
    made = parts()
    before = {p: {k: v.copy() for k, v in fields.items()} for p, fields in made.items()}
    save(tmp_path / "m.h5", made)
    for p, fields in before.items():
        for name, values in fields.items():
            np.testing.assert_array_equal(made[p][name], values)
