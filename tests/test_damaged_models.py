"""Files that are no models, or damaged ones: every family refuses them, and says where they are wrong."""

from __future__ import annotations

import json
import re

import h5py
import numpy as np
import pytest
from helpers.checks import names, refusal, same_content
from helpers.data import clouds, curved, remove, sealed, set_attribute, smooth, waves
from helpers.models import asygcd, parts

from asygcd import AsyGCDModel
from cacore.errors import InputError
from cacore.io import model_file
from cakrr import BKRR2, KRRModel
from casvm import SVMModel

FAMILIES = {
    "svm": (SVMModel, lambda: parts(standardize=True).fit(*clouds(120, csr=True))),
    "asygcd": (AsyGCDModel, lambda: asygcd(standardize=True).fit(*clouds(k=3, csr=True))),
    "krr": (KRRModel, lambda: BKRR2(3, sigma=1.0, lam=1e-3, random_state=0).fit(*smooth(csr=True))),
}
LEARNED = {
    "full": lambda: BKRR2(3, sigma=1.0, lam=1e-3, metric="full", random_state=0).fit(*waves()),
    "diagonal": lambda: parts(metric="diagonal", random_state=1, C=10.0, standardize=True).fit(*curved(300)),
}
families = pytest.mark.parametrize("family", FAMILIES)
DAMAGE = {
    "schema": set_attribute("schema", "other/1"), "attributes": set_attribute("attributes", "{}"),
    "json": set_attribute("attributes", "{"), "list": set_attribute("attributes", "[]"), "parts": remove("parts"),
    "part": remove("parts/000000"), "indptr": remove("parts/000000/X/indptr"), "scale": remove("scale"),
}  # fmt: skip


def put(name, values):
    """Another array in its place."""

    def change(file):
        del file[name]
        file[name] = np.asarray(values)

    return change


def number(name, place, value):
    """One number of an array changed."""

    def change(file):
        values = file[name][()]
        values[place] = value
        put(name, values)(file)

    return change


def external(file):
    """Values that lie in another file, which the model would show to whoever asks it."""
    shape = file["parts/000000/rows" if "rows" in file["parts/000000"] else "sizes"].shape
    del file["mean"]
    file.create_dataset("mean", shape, "f8", external=[("/proc/self/exe", 0, 8 * shape[0])])


def virtual(file):
    layout = h5py.VirtualLayout(file["scale"].shape, "f8")
    layout[:] = h5py.VirtualSource("/other.h5", "scale", file["scale"].shape)
    del file["scale"]
    file.create_virtual_dataset("scale", layout)


def link(made):
    def change(file):
        del file["mean"]
        file["mean"] = made

    return change


def promised(file):
    """More than the file has: 8 TiB."""
    del file["mean"]
    file.create_dataset("mean", (1 << 40,), "f8", chunks=(1 << 20,))


def altered(**values):
    """Other attributes."""

    def change(file):
        file.attrs["attributes"] = json.dumps({**json.loads(file.attrs["attributes"]), **values})

    return change


CSR = "parts/000000/X"
DAMAGE |= {
    "column beyond": number(f"{CSR}/indices", 0, 1 << 20), "column below": number(f"{CSR}/indices", 0, -1),
    "column in between": number(f"{CSR}/indices", 0, 4), "row that begins beyond": number(f"{CSR}/indptr", 1, 1 << 20),
    "row that ends before it begins": number(f"{CSR}/indptr", 1, -1), "last row": number(f"{CSR}/indptr", -1, 0),
    "data that is no number": number(f"{CSR}/data", 0, np.nan), "words": put("mean", np.array([b"a", b"b"])),
    "shape": lambda file: file[CSR].attrs.__setitem__("shape", [1, 2, 3]),
    "fewer features": lambda file: file[CSR].attrs.__setitem__("shape", [len(file[f"{CSR}/indptr"]) - 1, 3]),
    "more rows": lambda file: file[CSR].attrs.__setitem__("shape", [1 << 40, 4]),
    "scale 0": number("scale", 0, 0.0), "scale below 0": number("scale", 0, -1.0), "mean": number("mean", 1, np.inf),
    "short mean": put("mean", np.zeros(3)), "table of scales": put("scale", np.ones((4, 1))),
    "a group": lambda file: (file.__delitem__("mean"), file.create_group("mean")),
    "external": external, "virtual": virtual, "promised": promised, "soft link": link(h5py.SoftLink("/scale")),
    "external link": link(h5py.ExternalLink("other.h5", "/scale")), "dtype": altered(dtype="float16"),
    "other kernel": altered(kernel={"kind": "none"}),
    "gamma below 0": altered(kernel={"kind": "gaussian", "gamma": -1}),
    "number for a word": altered(dtype=1), "unknown": altered(unknown=1), "source": altered(source=[1]),
    "half a character": set_attribute("family", b"\xdb"),
    "deep": set_attribute("attributes", "[" * 100_000), "family": set_attribute("family", np.arange(3)),
    "parts that are no group": put("parts", np.arange(3)),
    "one part more": lambda file: file["parts"].create_group("more"),
    "one field more": lambda file: file["parts/000000"].create_dataset("more", data=np.zeros(1)),
}  # fmt: skip
OF_FAMILY = {
    "svm": {
        "coef": number("parts/000000/coef", (0, 0), np.nan), "short coef": put("parts/000000/coef", np.ones((1, 2))),
        "b": put("parts/000000/b", np.zeros(2)), "classes": put("parts/000000/classes", np.array([0, 9])),
        "same classes": put("parts/000000/classes", np.array([1, 1])),
        "rows": put("parts/000000/rows", np.zeros(1, int)),
        "n_support": put("parts/000000/n_support", np.array([1, 1])),
        "negative n_support": number("parts/000000/n_support", slice(None), -1),
        "no sizes": put("sizes", np.zeros(0, int)), "two sizes": put("sizes", np.ones(2, int)),
        "real sizes": put("sizes", np.ones(3)), "centers": put("centers", np.zeros((2, 4))),
        "flat centers": put("centers", np.zeros(12)), "route": altered(route=1), "other route": altered(route="none"),
        "C": altered(C=-1), "C of words": altered(C="one"), "one class": altered(classes=[1]),
        "order of classes": altered(classes=[1, 0]), "soft": altered(route="soft", soft=None),
        "soft of no centre": altered(route="soft", soft={"k": 0, "t": 1.0}),
        "soft of no width": altered(route="soft", soft={"k": 2, "t": "wide"}),
        "soft of another route": altered(route="nearest", soft={"k": 2, "t": 1.0}),
    },
    "asygcd": {
        "coef": number("parts/000000/coef", (0, 0), np.nan), "short coef": put("parts/000000/coef", np.ones((1, 3))),
        "columns of coef": lambda file: put("parts/000000/coef", file["parts/000000/coef"][:, :2])(file),
        "multi_class": altered(multi_class=1), "rows": put("parts/000000/rows", np.zeros(1, int)),
        "classes": altered(classes=[[0, 1, 2]]), "C": altered(C=0),
    },
    "krr": {
        "alpha": number("parts/000000/alpha", 0, np.nan), "short alpha": put("parts/000000/alpha", np.zeros(2)),
        "sigma": altered(sigma=0), "lambda": altered(**{"lambda": "much"}), "offset": altered(offset=None),
        "no offset": altered(offset=[]), "soft of another route": altered(route="all", soft={"k": 2, "t": 1.0}),
        "route": altered(route="most"), "no sizes": put("sizes", np.zeros(0, int)),
        "centers": put("centers", np.zeros((3, 5))), "coarse": altered(coarse={"sigma": 1.0}),
        "coarse without centres": altered(coarse={"sigma": 1.0, "lambda": 1.0}),
    },
}  # fmt: skip
FIELDS = {"svm": ["centers", "sizes", "parts/000001", "parts/000001/coef", "parts/000001/X/indptr"],
          "asygcd": ["parts/000000/coef", "parts/000000/rows"],
          "krr": ["centers", "sizes", "parts/000001/alpha", "parts/000001/X/indptr"]}  # fmt: skip
DAMAGED = [(family, name, change) for family in FAMILIES for name, change in DAMAGE.items()]
DAMAGED += [(family, name, change) for family, changes in OF_FAMILY.items() for name, change in changes.items()]
DAMAGED += [(family, name, remove(name)) for family, removed in FIELDS.items() for name in removed]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The bytes of a model of each family."""
    path = tmp_path_factory.mktemp("models") / "m.h5"

    def made(fit):
        fit().model_.save(path)
        return path.read_bytes()

    return {family: made(fit) for family, (_, fit) in FAMILIES.items()}


def refused(family, path):
    message = refusal(FAMILIES[family][0].load, path)
    assert message.startswith(f"{path}: ")
    return message


@pytest.mark.parametrize(("family", "name", "change"), DAMAGED, ids=[" ".join(one[:2]) for one in DAMAGED])
def test_damaged(family, name, change, saved, tmp_path):
    path = tmp_path / "m.h5"
    path.write_bytes(saved[family])
    with sealed(path) as file:
        change(file)
    refused(family, path)


@pytest.fixture(scope="module")
def learned():
    """Models that have learned a metric."""
    return {form: fit() for form, fit in LEARNED.items()}


@pytest.mark.parametrize("form", LEARNED)
def test_a_metric(form, learned, tmp_path):
    """It is in the file, and what is loaded answers with the same bits; an older file has none."""
    estimator = learned[form]
    model, path = estimator.model_, tmp_path / "m.h5"
    root, T = model.standardizer.root, np.random.default_rng(1).normal(size=(40, model.n_features))
    assert root.ndim == (2 if form == "full" else 1)
    model.save(path)
    loaded = type(model).load(path)
    same_content(loaded, model)
    np.testing.assert_array_equal(loaded.predict(T), estimator.predict(T))
    name = "metric_root" if form == "full" else "metric_weights"
    with sealed(path) as file:
        np.testing.assert_array_equal(file[name][()], root)
        del file[name]
    older = type(model).load(path)
    assert older.standardizer.root is None
    assert older.predict(T).shape == (40,)


OF_A_METRIC = {
    "no number": lambda name, root: number(name, (0,) * root.ndim, np.nan),
    "infinite": lambda name, root: number(name, -1, np.inf),
    "short": lambda name, root: put(name, root[1:]),
    "of other features": lambda name, root: put(name, np.eye(len(root) + 1) if root.ndim == 2 else np.append(root, 1)),
    "of whole numbers": lambda name, root: put(name, root.astype(int)),
    "of one more dimension": lambda name, root: put(name, root[..., None]),
    "without a mean": lambda name, root: remove("mean"),
    "twice": lambda name, root: lambda file: file.create_dataset(
        *(("metric_weights", None, None, root[0]) if root.ndim == 2 else ("metric_root", None, None, np.diag(root)))
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", LEARNED)
@pytest.mark.parametrize("what", OF_A_METRIC)
def test_a_damaged_metric(what, form, learned, tmp_path):
    model, path = learned[form].model_, tmp_path / "m.h5"
    model.save(path)
    with sealed(path) as file:
        OF_A_METRIC[what]("metric_root" if form == "full" else "metric_weights", model.standardizer.root)(file)
    assert refusal(type(model).load, path).startswith(f"{path}: ")


@families
@pytest.mark.parametrize("keep", [0, 0.3, 0.9])
def test_truncated(keep, family, saved, tmp_path):
    path = tmp_path / "m.h5"
    path.write_bytes(saved[family][: int(keep * len(saved[family]))])
    refused(family, path)


def test_a_model_that_changes_while_it_is_read(saved, tmp_path, monkeypatch):
    """Once its checksum has been found right, another model takes its place."""
    path, other, check = tmp_path / "m.h5", tmp_path / "other.h5", model_file.check_seal
    for place in (path, other):
        place.write_bytes(saved["svm"])

    def checked(*args):
        check(*args)
        other.replace(path)

    monkeypatch.setattr(model_file, "check_seal", checked)
    with pytest.raises(InputError, match=r"m\.h5: it changed while it was read"):
        SVMModel.load(path)


@families
def test_no_file(family, tmp_path):
    assert "no such model file" in refused(family, tmp_path / "m.h5")


@families
@pytest.mark.parametrize("other", FAMILIES)
def test_model_of_another_family(other, family, saved, tmp_path):
    path = tmp_path / "m.h5"
    path.write_bytes(saved[other])
    if other == family:
        assert isinstance(FAMILIES[family][0].load(path), FAMILIES[family][0])
    else:
        assert refused(family, path) == f"{path}: a model of the {other} family; {family} is needed"


@families
def test_place_cannot_be_written(family, saved, tmp_path, monkeypatch):
    path = tmp_path / "m.h5"
    path.write_bytes(saved[family])
    model = FAMILIES[family][0].load(path)
    path.unlink()
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "none" / "m.h5", tmp_path / "folder", tmp_path / "folder" / "none" / "m.h5"):
        with pytest.raises(InputError, match=re.escape(str(place.parent)) + ".*(does not exist|is a directory)"):
            model.save(place)
    assert [p.name for p in tmp_path.rglob("*")] == ["folder"]
    # A disk that fills up half way leaves the old file as it was.
    path.write_text("old")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(model_file, "write_rows", full)
    with pytest.raises(OSError, match="no space left"):
        model.save(path)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["folder", "m.h5"]
