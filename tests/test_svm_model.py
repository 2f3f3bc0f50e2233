"""SVM model files, and LIBSVM's text format."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp

from cacore.errors import InputError
from cakrr import BKRR2
from casvm import CASVC, SMOSVC, SVMModel, export_libsvm

formats = pytest.mark.parametrize("csr", [False, True], ids=["dense", "csr"])
classes = pytest.mark.parametrize("k", [2, 3])


def rows(n=120, seed=0, k=2, csr=False):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % k
    X = rng.normal(size=(n, 4)) + 1.2 * np.eye(4)[y]
    if csr:
        X[np.abs(X) < 0.5] = 0
        X[7] = 0
    return (sp.csr_matrix(X) if csr else X), y


# -- saved and loaded ----------------------------------------------------------------------------

LABELS = {"int": np.array([3, -1, 7]), "float": np.array([-2.0, 5.0, 8.0]), "bool": np.array([False, True]),
          "words": np.array(["no", "yes, certainly", "może"]), "objects": np.array(["x", "yy", "z"], object),
          "int8": np.array([1, 2, 3], np.int8)}  # fmt: skip


def back(model, folder, T):
    """The model as a file brings it back, which answers with the same bits."""
    path = folder / "m.h5"
    model.save(path)
    assert sorted(p.name for p in folder.iterdir()) == ["m.h5"]
    loaded = SVMModel.load(path)
    got, expected = loaded.predict(T), model.predict(T)
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(loaded.decision_function(T), model.decision_function(T))
    for name in ("method", "route", "kernel", "C", "dtype", "soft", "source"):
        assert getattr(loaded, name) == getattr(model, name)
    for name in ("classes", "centers", "sizes", "owners"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    assert sorted(loaded.parts) == sorted(model.parts)
    for number, part in model.parts.items():
        for name, values in vars(part).items():
            other = getattr(loaded.parts[number], name)
            assert (other.shape, other.dtype, sp.issparse(other)) == (values.shape, values.dtype, sp.issparse(values))
            assert abs(other - values).sum() == 0
    return loaded


@formats
@classes
@pytest.mark.parametrize("route", ["nearest", "soft", "all"])
def test_saved_and_loaded(route, k, csr, tmp_path):
    (X, y), (T, _) = rows(k=k, csr=csr), rows(50, seed=1, k=k, csr=csr)
    model = CASVC(5, partitioner="kmeans", route=route, standardize=True, random_state=0).fit(X, y)
    loaded = back(model.model_, tmp_path, T)
    np.testing.assert_array_equal(loaded.predict(T), model.predict(T))
    assert (loaded.soft is None) == (route != "soft")
    np.testing.assert_array_equal(loaded.standardizer.scale, model.model_.standardizer.scale)


@pytest.mark.parametrize("what", LABELS)
def test_labels(what, tmp_path):
    k = min(3, len(LABELS[what]))
    X, y = rows(k=k)
    names = LABELS[what][y]
    model = CASVC(3, random_state=0).fit(X, names)
    loaded = back(model.model_, tmp_path, X)
    assert loaded.classes.tolist() == np.unique(names).tolist()
    assert loaded.classes.dtype == names.dtype


@pytest.mark.parametrize("kernel", ["gaussian", "linear", "polynomial", "sigmoid"])
@classes
def test_smosvc(kernel, k, tmp_path):
    """The model of the exact solver answers as the estimator."""
    (X, y), (T, _) = rows(k=k), rows(50, seed=1, k=k)
    model = SMOSVC(kernel=kernel, gamma=0.2, coef0=0.5, degree=2, C=2.0).fit(X, y)
    loaded = back(model.model_, tmp_path, T)
    np.testing.assert_array_equal(loaded.predict(T), model.predict(T))
    np.testing.assert_array_equal(loaded.decision_function(T), model.decision_function(T))


@classes
def test_precomputed(k, tmp_path):
    (X, y), (T, _) = rows(k=k), rows(50, seed=1, k=k)
    model = SMOSVC(kernel="precomputed").fit(X @ X.T, y)
    loaded = back(model.model_, tmp_path, T @ X.T)
    np.testing.assert_array_equal(loaded.predict(T @ X.T), model.predict(T @ X.T))


@formats
def test_float32(csr, tmp_path):
    X, y = rows(csr=csr)
    back(CASVC(3, random_state=0).fit(X.astype(np.float32), y).model_, tmp_path, X.astype(np.float32))


def test_part_of_one_class(tmp_path):
    y = np.arange(60) % 2
    X = np.random.default_rng(0).normal(size=(60, 2)) + 100.0 * y[:, None]
    model = CASVC(2, partitioner="kmeans", random_state=0).fit(X, y).model_
    assert back(model, tmp_path, X).predict(X).tolist() == y.tolist()


def test_other_form_of_the_rows():
    """A model of dense rows answers for CSR rows and the other way round; lists are rows too."""
    S, y = rows(csr=True)
    D = S.toarray()
    for given in (D, S):
        model = CASVC(3, partitioner="fcfs", random_state=0).fit(given, y).model_
        expected = model.decision_function(given)
        for other in (D, S, sp.csc_matrix(S), D.tolist(), np.asfortranarray(D)):
            np.testing.assert_allclose(model.decision_function(other), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "route",
    [
        "nearest",
        "all",
        "soft",
    ],
)
@formats
@classes
def test_no_rows(k, csr, route):
    """A rank may have none."""
    X, y = rows(k=k, csr=csr)
    model = CASVC(4, partitioner="kmeans", route=route, random_state=0).fit(X, y).model_
    assert model.predict(X[:0]).shape == (0,)
    assert model.decision_function(X[:0]).shape == ((0,) if k == 2 else (0, 3))


@pytest.mark.parametrize("T", [np.ones((3, 5)), np.full((3, 4), np.nan), np.ones(4)], ids=["wide", "nan", "vector"])
def test_rows_refused(T):
    model = CASVC(3, random_state=0).fit(*rows()).model_
    for call in (model.predict, model.decision_function):
        with pytest.raises(InputError):
            call(T)


def test_model_of_the_other_family(tmp_path):
    X, y = rows()
    BKRR2(2, sigma=1.0, lam=1e-3).fit(X, y).model_.save(tmp_path / "krr.h5")
    with pytest.raises(InputError, match=re.escape(f"{tmp_path}/krr.h5: a model of the krr family; svm is needed")):
        SVMModel.load(tmp_path / "krr.h5")


def attribute(name, value):
    def change(file):
        file.attrs[name] = value

    return change


def remove(name):
    def change(file):
        del file[name]

    return change


DAMAGE = {
    "schema": attribute("schema", "other/1"), "attributes": attribute("attributes", "{}"),
    "json": attribute("attributes", "{"), "centers": remove("centers"), "sizes": remove("sizes"),
    "part": remove("parts/000001"), "coef": remove("parts/000001/coef"), "scale": remove("scale"),
    "indptr": remove("parts/000001/X/indptr"),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.h5"
    X, y = rows(csr=True)
    CASVC(3, standardize=True, random_state=0).fit(X, y).model_.save(path)
    return path.read_bytes()


def refused(path):
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: ") as caught:
        SVMModel.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged(what, saved, tmp_path):
    path = tmp_path / "m.h5"
    path.write_bytes(saved)
    with h5py.File(path, "r+") as file:
        DAMAGE[what](file)
    refused(path)


@pytest.mark.parametrize("keep", [0, 0.3, 0.9])
def test_truncated(keep, saved, tmp_path):
    path = tmp_path / "m.h5"
    path.write_bytes(saved[: int(keep * len(saved))])
    refused(path)


def test_no_file(tmp_path):
    refused(tmp_path / "m.h5")


def test_place_cannot_be_written(tmp_path):
    model = CASVC(2, random_state=0).fit(*rows()).model_
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "none" / "m.h5", tmp_path / "folder"):
        with pytest.raises(InputError, match=r"does not exist|is a directory"):
            model.save(path)
        with pytest.raises(InputError, match=r"does not exist|is a directory"):
            export_libsvm(model, path)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


# -- LIBSVM's text format --------------------------------------------------------------------------

KERNELS = {
    "gaussian": {"gamma": 0.3}, "linear": {}, "polynomial": {"gamma": 0.5, "degree": 2, "coef0": 1.0},
    "sigmoid": {"gamma": 0.05, "coef0": -0.2},
}  # fmt: skip
kernels = pytest.mark.parametrize("kernel", KERNELS)


def read(path):
    """Header, coefficients and support vectors of one of LIBSVM's files, by its own description of the format."""
    lines = Path(path).read_text().splitlines()
    stop = lines.index("SV")
    header = {line.split()[0]: line.split()[1:] for line in lines[:stop]}
    k = int(header["nr_class"][0])
    coef, vectors = [], []
    for line in lines[stop + 1 :]:
        words = line.split()
        coef.append([float(word) for word in words[: k - 1]])
        vectors.append({int(j): float(x) for j, x in (word.split(":") for word in words[k - 1 :])})
        assert list(vectors[-1]) == sorted(vectors[-1])  # LIBSVM merges rows and needs them so
    return header, np.array(coef).reshape(len(coef), k - 1).T, vectors


def kernel_values(header, vectors, T):
    S = np.zeros((len(vectors), T.shape[1]))
    for row, values in enumerate(vectors):
        for j, x in values.items():
            S[row, j - 1] = x
    kind = header["kernel_type"][0]
    number = {name: float(header[name][0]) for name in ("gamma", "coef0", "degree") if name in header}
    if kind == "rbf":
        return np.exp(-number["gamma"] * ((T[:, None] - S) ** 2).sum(axis=2))
    if kind == "linear":
        return T @ S.T
    if kind == "polynomial":
        return (number["gamma"] * (T @ S.T) + number["coef0"]) ** int(number["degree"])
    assert kind == "sigmoid"
    return np.tanh(number["gamma"] * (T @ S.T) + number["coef0"])


def by_file(path, T):
    """Labels and pairs' decisions, from the file alone, as svm_predict_values of svm.cpp computes them."""
    header, coef, vectors = read(path)
    assert header["svm_type"] == ["c_svc"]
    assert int(header["total_sv"][0]) == len(vectors)
    labels, counts = ([int(word) for word in header[name]] for name in ("label", "nr_sv"))
    starts, k = np.append(0, np.cumsum(counts)), len(labels)
    K = kernel_values(header, vectors, T)
    decisions, ballots = np.empty((len(T), k * (k - 1) // 2)), np.zeros((len(T), k), int)
    for pair, (i, j) in enumerate(combinations(range(k), 2)):
        mine, other = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        value = K[:, mine] @ coef[j - 1, mine] + K[:, other] @ coef[i, other] - float(header["rho"][pair])
        decisions[:, pair] = value
        ballots[:, i] += value > 0
        ballots[:, j] += value <= 0
    return np.array(labels)[ballots.argmax(axis=1)], decisions


def part_of(model, number, T):
    """Labels and pairs' decisions of one part."""
    part = model.parts[number]
    one = SVMModel(
        "one", "nearest", model.classes, model.kernel, model.C, model.centers[:1], np.array([1]),
        np.zeros(1, np.int64), None, model.dtype, parts={0: part},
    )  # fmt: skip
    return one.predict(T), part.pairs(T, model.kernel)


def trained(kernel, k, csr, P):
    X, y = rows(k=k, csr=csr)
    labels = np.array([3, -1, 7, 12])[y]  # not in the order of their first rows
    given = {"kernel": kernel, "C": 2.0, **KERNELS[kernel]}
    model = SMOSVC(**given) if P is None else CASVC(P, partitioner="kmeans", random_state=0, **given)
    return model.fit(X, labels).model_


@kernels
@formats
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("P", [None, 3])
def test_export(P, k, csr, kernel, tmp_path):
    """Decisions by brute force from the text, to 1e-9 of the largest: 17 digits are written."""
    model, T = trained(kernel, k, csr, P), rows(40, seed=1, k=k, csr=csr)[0]
    written = export_libsvm(model, tmp_path / "m.model")
    names = ["m.model"] if P is None else [f"m.{p:06d}.model" for p in range(3)]
    assert [p.name for p in written] == names == sorted(p.name for p in tmp_path.iterdir())
    for number, path in enumerate(written):
        dense = T.toarray() if csr else T
        labels, decisions = by_file(path, dense)
        expected, pairs = part_of(model, number, T)
        np.testing.assert_array_equal(labels, expected)
        np.testing.assert_allclose(decisions, pairs, rtol=0, atol=1e-9 * max(1.0, np.abs(pairs).max(initial=0)))


@kernels
@formats
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("P", [None, 3])
def test_export_is_read_by_libsvm(P, k, csr, kernel, tmp_path, capfd):
    svmutil = pytest.importorskip("libsvm.svmutil", reason="LIBSVM itself is not installed")
    model, T = trained(kernel, k, csr, P), rows(40, seed=1, k=k, csr=csr)[0]
    for number, path in enumerate(export_libsvm(model, tmp_path / "m.model")):
        loaded = svmutil.svm_load_model(str(path))
        assert loaded is not None
        labels, _, decisions = svmutil.svm_predict([], T, loaded, "-q")
        expected, pairs = part_of(model, number, T)
        np.testing.assert_array_equal(labels, expected)
        if pairs.shape[1]:
            np.testing.assert_allclose(decisions, pairs, rtol=0, atol=1e-9 * max(1.0, np.abs(pairs).max()))
    capfd.readouterr()


def one_class_parts():
    y = np.arange(60) % 2
    X = np.random.default_rng(0).normal(size=(60, 2)) + 100.0 * y[:, None]
    return CASVC(2, partitioner="kmeans", random_state=0).fit(X, 2 * y - 1).model_, X


def test_export_of_a_part_of_one_class(tmp_path):
    model, _ = one_class_parts()
    labels = []
    for path in export_libsvm(model, tmp_path / "m.model"):
        header, coef, vectors = read(path)
        assert (header["nr_class"], header["total_sv"], header["rho"], header["nr_sv"]) == (["1"], ["0"], [], ["0"])
        assert (coef.size, vectors) == (0, [])
        labels += header["label"]
    assert sorted(labels) == ["-1", "1"]


def test_part_of_one_class_is_read_by_libsvm(tmp_path, capfd):
    svmutil = pytest.importorskip("libsvm.svmutil", reason="LIBSVM itself is not installed")
    model, X = one_class_parts()
    for number, path in enumerate(export_libsvm(model, tmp_path / "m.model")):
        labels, _, _ = svmutil.svm_predict([], X, svmutil.svm_load_model(str(path)), "-q")
        np.testing.assert_array_equal(labels, part_of(model, number, X)[0])
    capfd.readouterr()


def test_export_over_an_old_file(tmp_path):
    (tmp_path / "m.model").write_text("old")
    model = SMOSVC().fit(*rows()).model_
    export_libsvm(model, str(tmp_path / "m.model"))
    assert (tmp_path / "m.model").read_text().startswith("svm_type c_svc\nkernel_type rbf\n")


def test_whole_float_labels_are_exported(tmp_path):
    X, y = rows()
    export_libsvm(SMOSVC().fit(X, 2.0 * y - 1).model_, tmp_path / "m.model")
    assert read(tmp_path / "m.model")[0]["label"] == ["-1", "1"]


@pytest.mark.parametrize("what", ["words", "precomputed"])
def test_not_exported(what, tmp_path):
    X, y = rows()
    if what == "words":
        model, message = SMOSVC().fit(X, np.array(["no", "yes"])[y]).model_, "whole numbers; these are no, yes"
    else:
        model, message = SMOSVC(kernel="precomputed").fit(X @ X.T, y).model_, "precomputed"
    with pytest.raises(InputError, match=message):
        export_libsvm(model, tmp_path / "m.model")
    assert list(tmp_path.iterdir()) == []
