"""LIBSVM's text format: what SVM models export, by its own description of the format, and as LIBSVM reads it."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from helpers.checks import names, near, refusal
from helpers.data import clouds, dense, formats, separate_clouds

from casvm import CASVC, SMOSVC, SVMModel, export_libsvm

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
        first, second = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        value = K[:, first] @ coef[j - 1, first] + K[:, second] @ coef[i, second] - float(header["rho"][pair])
        decisions[:, pair] = value
        ballots[:, i] += value > 0
        ballots[:, j] += value <= 0
    return np.array(labels)[ballots.argmax(axis=1)], decisions


def part_of(model, number, T):
    """Labels and pairs' decisions of one part."""
    part = model.parts[number]
    one = SVMModel(
        method="one", route="nearest", classes=model.classes, kernel=model.kernel, C=model.C,
        centers=model.centers[:1], sizes=np.array([1]), owners=np.zeros(1, np.int64), standardizer=None,
        dtype=model.dtype, parts={0: part},
    )  # fmt: skip
    return one.predict(T), part.pairs(T, model.kernel)


def trained(kernel, k, csr, P):
    X, y = clouds(120, k=k, csr=csr)
    labels = np.array([3, -1, 7, 12])[y]  # not in the order of their first rows
    more = {"kernel": kernel, "C": 2.0, **KERNELS[kernel]}
    model = SMOSVC(**more) if P is None else CASVC(P, partitioner="kmeans", random_state=0, **more)
    return model.fit(X, labels).model_


@kernels
@formats
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("P", [None, 3])
def test_export(P, k, csr, kernel, tmp_path):
    """Decisions by brute force from the text, to 1e-9 of the largest: 17 digits are written."""
    model, T = trained(kernel, k, csr, P), clouds(40, 1, k, csr)[0]
    written = export_libsvm(model, tmp_path / "m.model")
    expected = ["m.model"] if P is None else [f"m.{p:06d}.model" for p in range(3)]
    assert [p.name for p in written] == expected == names(tmp_path)
    for number, path in enumerate(written):
        labels, decisions = by_file(path, dense(T))
        expected, pairs = part_of(model, number, T)
        np.testing.assert_array_equal(labels, expected)
        near(decisions, pairs, 1e-9 * max(1.0, np.abs(pairs).max(initial=0)))


@kernels
@formats
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("P", [None, 3])
def test_export_is_read_by_libsvm(P, k, csr, kernel, tmp_path, capfd):
    svmutil = pytest.importorskip("libsvm.svmutil", reason="LIBSVM itself is not installed")
    model, T = trained(kernel, k, csr, P), clouds(40, 1, k, csr)[0]
    for number, path in enumerate(export_libsvm(model, tmp_path / "m.model")):
        loaded = svmutil.svm_load_model(str(path))
        assert loaded is not None
        labels, _, decisions = svmutil.svm_predict([], T, loaded, "-q")
        expected, pairs = part_of(model, number, T)
        np.testing.assert_array_equal(labels, expected)
        if pairs.shape[1]:
            near(decisions, pairs, 1e-9 * max(1.0, np.abs(pairs).max()))
    capfd.readouterr()


def one_class_parts():
    X, y = separate_clouds()
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
    model = SMOSVC().fit(*clouds(120)).model_
    export_libsvm(model, str(tmp_path / "m.model"))
    assert (tmp_path / "m.model").read_text().startswith("svm_type c_svc\nkernel_type rbf\n")


def test_whole_float_labels_are_exported(tmp_path):
    X, y = clouds(120)
    export_libsvm(SMOSVC().fit(X, 2.0 * y - 1).model_, tmp_path / "m.model")
    assert read(tmp_path / "m.model")[0]["label"] == ["-1", "1"]


@pytest.mark.parametrize("what", ["words", "precomputed"])
def test_not_exported(what, tmp_path):
    X, y = clouds(120)
    if what == "words":
        model, message = SMOSVC().fit(X, np.array(["no", "yes"])[y]).model_, "whole numbers; these are no, yes"
    else:
        model, message = SMOSVC(kernel="precomputed").fit(X @ X.T, y).model_, "precomputed"
    refusal(export_libsvm, model, tmp_path / "m.model", match=message)
    assert names(tmp_path) == []


def test_place_cannot_be_written(tmp_path):
    model = CASVC(2, random_state=0).fit(*clouds(120)).model_
    (tmp_path / "folder").mkdir()
    refusal(export_libsvm, model, tmp_path / "none" / "m.h5", match="does not exist")
    refusal(export_libsvm, model, tmp_path / "folder", match="is a directory")
    assert names(tmp_path) == ["folder"]
