"""LIBSVM's model files read: those that we write, and files that are not to be trusted."""

from __future__ import annotations

import bz2
import tracemalloc

import numpy as np
import pytest
from helpers.checks import near, refusal
from helpers.data import clouds, dense, formats

from cacore.machine import memory
from casvm import SMOSVC, SMOSVR, SMONuSVC, SMONuSVR, SMOOneClassSVM, export_libsvm, import_libsvm

LABELS = np.array([3, -1, 7, 12])  # not in the order of their first rows

MODELS = {
    "c_svc": SMOSVC(C=2.0, gamma=0.3), "nu_svc": SMONuSVC(nu=0.4, gamma=0.3), "epsilon_svr": SMOSVR(gamma=0.3),
    "nu_svr": SMONuSVR(kernel="polynomial", gamma=0.3, degree=2, coef0=0.5), "one_class": SMOOneClassSVM(gamma=0.3),
}  # fmt: skip


@formats
@pytest.mark.parametrize("svm_type", MODELS)
def test_read_as_written(svm_type, csr, tmp_path):
    X, y = clouds(120, k=4, csr=csr)
    model = MODELS[svm_type].fit(X, LABELS[y]).model_
    export_libsvm(model, tmp_path / "m.model")
    assert (tmp_path / "m.model").read_text().startswith(f"svm_type {svm_type}\n")
    again = import_libsvm(tmp_path / "m.model", X.shape[1])
    T = clouds(40, 1, 4, csr)[0]
    expected = model.decision_function(T)
    near(again.decision_function(T), expected, 1e-9 * max(1.0, np.abs(expected).max()))
    np.testing.assert_array_equal(again.predict(T), model.predict(T))
    export_libsvm(again, tmp_path / "again.model")
    assert (tmp_path / "again.model").read_text() == (tmp_path / "m.model").read_text()
    again.save(tmp_path / "m.h5")
    np.testing.assert_array_equal(type(again).load(tmp_path / "m.h5").predict(T), model.predict(T))


@pytest.mark.parametrize(("number", "svm_type"), [(0, "c_svc"), (2, "one_class"), (3, "epsilon_svr"), (4, "nu_svr")])
def test_read_as_libsvm_writes(number, svm_type, tmp_path, capfd):
    """With the 8 digits of a support vector that it writes."""
    svmutil = pytest.importorskip("libsvm.svmutil", reason="LIBSVM itself is not installed")
    X, y = clouds(120, k=4)
    problem = svmutil.svm_problem((2.0 * y - 1).tolist(), X.tolist())
    trained = svmutil.svm_train(problem, f"-s {number} -g 0.3 -n 0.4 -q")
    svmutil.svm_save_model(str(tmp_path / "m.model"), trained)
    T = clouds(40, 1, 4)[0]
    labels, _, values = svmutil.svm_predict([], T.tolist(), trained, "-q")
    capfd.readouterr()
    model = import_libsvm(tmp_path / "m.model")
    if svm_type == "c_svc":
        near(model.parts[0].pairs(T, model.kernel), np.array(values), 1e-6)
        np.testing.assert_array_equal(model.predict(T), labels)
    else:
        near(model.decision_function(T), np.ravel(values), 1e-6 * np.abs(values).max())
    assert (tmp_path / "m.model").read_text().startswith(f"svm_type {svm_type}\n")


GOOD = """svm_type c_svc
kernel_type rbf
gamma 0.5
nr_class 3
total_sv 4
rho 0.5 -0.25 0.125
label 5 -2 9
nr_sv 1 2 1
SV
0.5 1 1:0.5 3:1.5
-0.5 0.25 2:1
-0.25 1 1:-1 2:0.5
-1 -1.5 3:2
"""


def test_classes_in_the_order_of_the_file(tmp_path):
    """Votes and decisions by LIBSVM's rules, from the numbers above."""
    path = tmp_path / "m.model.bz2"
    path.write_bytes(bz2.compress(GOOD.replace("\n", "\r\n").encode()))
    model, T = import_libsvm(path), np.random.default_rng(0).normal(size=(50, 3))
    S = np.array([[0.5, 0, 1.5], [0, 1, 0], [-1, 0.5, 0], [0, 0, 2]])
    K = np.exp(-0.5 * ((T[:, None] - S) ** 2).sum(axis=2))
    first = K[:, 0] * 0.5 + K[:, 1] * -0.5 + K[:, 2] * -0.25 - 0.5  # 5 against -2
    second = K[:, 0] * 1 + K[:, 3] * -1 + 0.25  # 5 against 9
    third = K[:, 1] * 0.25 + K[:, 2] * 1 + K[:, 3] * -1.5 - 0.125  # -2 against 9
    votes = np.stack([(first > 0) * 1 + (second > 0), (first <= 0) * 1 + (third > 0), (second <= 0) * 1 + (third <= 0)])
    winners = np.array([5, -2, 9])[votes.argmax(axis=0)]
    clear = votes.max(axis=0) == 2
    assert clear.sum() > 20
    np.testing.assert_array_equal(model.predict(T)[clear], winners[clear])
    near(model.parts[0].pairs(T, model.kernel), np.stack([-first, third, second], axis=1), 1e-12)
    assert model.classes.tolist() == [-2, 5, 9]


CASES = {
    "empty": ("", "", "not a LIBSVM model: there is no line SV"),
    "another file": (GOOD, "hello\n", "line 1: 'hello' is no line of a LIBSVM model's header"),
    "type": ("c_svc", "c_rank", "line 1: svm_type 'c_rank': only c_svc, nu_svc"),
    "kernel": ("rbf", "precomputed", "line 2: kernel_type 'precomputed': only linear, polynomial, rbf, sigmoid can"),
    "gamma": ("gamma 0.5", "gamma nan", "line 3: gamma 'nan' is not a finite number"),
    "negative gamma": ("gamma 0.5", "gamma -1", "gamma = -1: it must be a positive number"),
    "no gamma": ("gamma 0.5\n", "", "the header: a rbf kernel needs gamma"),
    "twice": ("gamma 0.5\n", "gamma 0.5\ngamma 0.5\n", "line 4: gamma occurs twice"),
    "no rho": ("rho 0.5 -0.25 0.125\n", "", "the header has no rho"),
    "rho": ("rho 0.5 -0.25", "rho 0.5 inf", "line 6: rho 'inf' is not a finite number"),
    "few rho": (" 0.125\n", "\n", "the header: rho has 2 values; 3 are needed"),
    "classes": ("nr_class 3", "nr_class 2000000000", "rho has 3 values; 1,999,999,999,000,000,000 are needed"),
    "huge class": ("nr_class 3", "nr_class 99999999999999999999999", "line 4: nr_class '9999"),
    "labels": ("label 5 -2 9", "label 5 5 9", "label names a class twice"),
    "half a label": ("label 5", "label 5.5", "line 7: label '5.5' is not a whole number"),
    "counts": ("nr_sv 1 2 1", "nr_sv 1 2 2", "nr_sv adds up to 5, but total_sv is 4"),
    "huge counts": (
        "total_sv 4\nrho 0.5 -0.25 0.125\nlabel 5 -2 9\nnr_sv 1 2 1",
        "total_sv 2000000000\nrho 0.5 -0.25 0.125\nlabel 5 -2 9\nnr_sv 1 2 1999999997",
        "4 support vectors, but total_sv is 2,000,000,000: the file was cut short",
    ),
    "cut short": ("-1 -1.5 3:2\n", "", "3 support vectors, but total_sv is 4: the file was cut short"),
    "one more": ("3:2\n", "3:2\n1 1 1:1\n", "line 14: more support vectors than total_sv = 4"),
    "coefficient": ("0.5 1 1:0.5", "0.5 nan 1:0.5", "line 10: coefficient 'nan' is not a finite number"),
    "few coefficients": ("-1 -1.5 3:2", "-1", "line 13: a support vector must begin with 2 coefficients"),
    "value": ("2:1\n", "2:1e999\n", "line 11: the value of index 2 '1e999' is not a finite number"),
    "order": ("1:0.5 3:1.5", "3:0.5 1:1.5", "line 10: '1:1.5': the indices must ascend"),
    "same index": ("1:0.5 3:1.5", "1:0.5 1:1.5", "line 10: '1:1.5': the indices must ascend"),
    "index 0": ("1:0.5", "0:0.5", "line 10: index '0' is not a whole number from 1 to 2,147,483,647"),
    "huge index": ("3:2\n", "99999999999:2\n", "line 13: index '99999999999' is not a whole number"),
    "no colon": ("3:2\n", "32\n", "line 13: '32' is not index:value"),
}


@pytest.mark.parametrize(("old", "new", "message"), CASES.values(), ids=CASES)
def test_files_that_are_wrong(old, new, message, tmp_path):
    path = tmp_path / "m.model"
    path.write_text(GOOD.replace(old, new, 1) if old else "")
    tracemalloc.start()
    text = refusal(import_libsvm, path, match=message)
    assert tracemalloc.get_traced_memory()[1] < 2**22  # nothing is allocated for what a header claims
    tracemalloc.stop()
    assert text.startswith(str(path))


def test_files_that_are_no_text(tmp_path):
    path = tmp_path / "m.model"
    refusal(import_libsvm, path, match="no such file")
    path.write_bytes(bytes(range(256)) * 10)
    refusal(import_libsvm, path, match=f"{path}: line 1: ")
    path.write_bytes(bz2.compress(GOOD.encode())[:-20])
    refusal(import_libsvm, path, match="cannot be read")


def test_a_width_that_memory_does_not_have(tmp_path, monkeypatch):
    path = tmp_path / "m.model"
    path.write_text(GOOD.replace("3:2\n", "2147483647:2\n"))
    monkeypatch.setattr(memory, "limit_per_rank", lambda comm: 1 << 30)
    refusal(import_libsvm, path, match="a model of 2,147,483,647 features needs 32 GiB, and a rank may use 1 GiB")
    refusal(import_libsvm, path, 3, match="it has 2,147,483,647 features, but n_features is 3")


def test_features_that_no_support_vector_has(tmp_path):
    path = tmp_path / "m.model"
    path.write_text(GOOD)
    T = np.random.default_rng(0).normal(size=(20, 5))
    T[:, 3:] = 0
    wide, narrow = import_libsvm(path, 5), import_libsvm(path)
    near(wide.decision_function(T), narrow.decision_function(dense(T)[:, :3]), 1e-12)
