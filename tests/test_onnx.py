"""ONNX files predict as the models do, in onnxruntime, and what ONNX cannot hold is refused."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
from helpers.commands import run
from scipy import sparse
from sklearn.exceptions import NotFittedError

from cacore.comm import Communicator
from cacore.data.standardize import curves
from cacore.errors import InputError
from cacore.kernels import KINDS
from cacore.kernels.registry import SQUARED, KernelKind, register
from cacore.probability.calibrator import Calibrator
from cacore.probability.calibrator import coupled as reference_coupled
from cakernels import (
    BKRR2,
    CASVC,
    CASVR,
    DKRR,
    SMOSVC,
    SMOSVR,
    AsyGCDSVC,
    AutoKernelClassifier,
    AutoKernelRegressor,
    BKRR2Classifier,
    SMONuSVC,
    SMOOneClassSVM,
    TwoLevelKRR,
    to_onnx,
)
from cakernels.families import blended, classified, outputs
from cakernels.onnx.graph import Graph
from cakernels.onnx.operators import interpolated
from cakernels.onnx.svm import coupled

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(160, 4)), 1.5 * RNG.normal(size=(1000, 4))
VALUES = np.sin(X[:, 0]) + X[:, 1] ** 2
TWO = np.where(X[:, 0] * X[:, 1] > 0, "ant", "bee")
MANY = (X[:, 0] > 0) * 2 + (X[:, 1] > 0) * 3  # 0, 2, 3, 5
TARGETS = np.column_stack([VALUES, X[:, 2] + 5.0, 100.0 * VALUES**2])
ASKED = {"label": "predict", "prediction": "predict", "decisions": "decision_function",
         "probabilities": "predict_proba"}  # fmt: skip
PARTS = {"n_parts": 3, "gamma": 0.3, "C": 1.0, "random_state": 0}
RIDGE = {"sigma": 1.5, "lam": 1e-4, "random_state": 0}


def answers(made, rows, folder):
    """The outputs for these rows, by their names, of the file that is loaded again."""
    path = folder / "model.onnx"
    onnx.save(made, path)
    onnx.checker.check_model(str(path), full_check=True)
    session = ort.InferenceSession(path)
    assert [one.name for one in session.get_inputs()] == ["X"]
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": rows}), strict=True))


def nodes_of(made):
    return {node.op_type for node in made.graph.node if node.domain == "ai.onnx.ml"}


def check(fitted, folder, rows=NEW, outputs=None):
    """All outputs are the model's own, to 1e-5 of their scale."""
    made = to_onnx(fitted, rows[:1])
    found = answers(made, rows, folder)
    assert outputs is None or list(found) == outputs
    for name, values in found.items():
        expected = getattr(fitted, ASKED[name])(rows)
        assert values.shape == expected.shape
        if name == "label":
            np.testing.assert_array_equal(values, expected)
        else:
            assert np.abs(values - expected).max() <= 1e-5 * np.abs(expected).max()
    return made


@pytest.mark.parametrize("kernel", [*KINDS])
def test_kernels_of_an_svm_and_of_ridge_regression(kernel, tmp_path):
    width = {"sigma": 2.0} if KINDS[kernel].has_width else {"sigma": None}
    check(SMOSVC(kernel=kernel, gamma=0.3, C=0.5, degree=4).fit(X, TWO), tmp_path, outputs=["label", "decisions"])
    check(
        DKRR(kernel=kernel, degree=4, lam=1.0 if kernel == "sigmoid" else 1e-3, **width).fit(X, TARGETS),
        tmp_path,
        outputs=["prediction"],
    )


@pytest.mark.parametrize("estimator", [SMOSVC, CASVC, SMOSVR, CASVR])
def test_a_linear_kernel_keeps_the_digits_of_rows_far_from_0(estimator, tmp_path):
    """Weights of the features, as in `predict`: sums of K(z, x) alpha lost .004 at 1e6, and labels with it."""
    far, new = X + 1e6, NEW + 1e6
    targets = TWO if estimator in (SMOSVC, CASVC) else X @ [1.0, 2.0, -1.0, 0.5]
    fitted = estimator(kernel="linear", C=10.0).fit(far, targets)
    made = answers(to_onnx(fitted, new[:1]), new, tmp_path)
    if "prediction" in made:
        np.testing.assert_allclose(made["prediction"].ravel(), fitted.predict(new), rtol=0, atol=1e-7)
    else:
        np.testing.assert_array_equal(made["label"], fitted.predict(new))


@pytest.mark.parametrize("labels", [TWO, MANY, MANY > 2, MANY * 2.0], ids=["text", "numbers", "bool", "float"])
def test_exact_classifier_is_a_node(labels, tmp_path):
    made = check(SMOSVC(gamma=0.3).fit(X, labels), tmp_path)
    assert nodes_of(made) == {"SVMClassifier"}


@pytest.mark.parametrize("form", ["sigmoid", "isotonic"])
@pytest.mark.parametrize("labels", [TWO, MANY], ids=["two", "many"])
def test_probabilities(form, labels, tmp_path):
    both = ["label", "probabilities", "decisions"]
    check(SMOSVC(gamma=0.3, probability=form).fit(X, labels), tmp_path, outputs=both)
    check(BKRR2Classifier(2, **RIDGE, route="nearest", probability=form).fit(X, labels), tmp_path, outputs=both)
    for multi_class in ("ovr", "ovo"):
        made = AsyGCDSVC(gamma=0.3, multi_class=multi_class, probability=form, standardize=True, threads=1)
        check(made.fit(X, labels), tmp_path, outputs=both)


@pytest.mark.parametrize("route", ["nearest", "soft", "all"])
def test_routes(route, tmp_path):
    for labels, form in ((TWO, False), (MANY, "sigmoid"), (MANY, "isotonic")):
        parts = CASVC(**PARTS, partitioner="kmeans", route=route, probability=form, standardize=True)
        assert nodes_of(check(parts.fit(X, labels), tmp_path)) == set()
    check(CASVR(n_parts=3, gamma=0.3, C=1.0, route=route).fit(X, VALUES), tmp_path)
    check(BKRR2(3, **RIDGE, route=route).fit(X, VALUES), tmp_path)
    check(BKRR2Classifier(3, **RIDGE, route=route).fit(X, MANY), tmp_path)
    check(TwoLevelKRR(n_parts=3, **RIDGE, route=route).fit(X, TARGETS), tmp_path)


@pytest.mark.parametrize("route", ["nearest", "soft", "all"])
def test_parts_that_lack_classes(route, tmp_path):
    """A part of one class, one of two, and one of all three."""
    rows = np.concatenate([0.1 * X[:50] + shift for shift in (-3.0, 0.0, 3.0)])
    codes = np.concatenate([np.zeros(50), np.arange(50) % 2, np.arange(50) % 3]).astype(int)
    for form in (False, "sigmoid", "isotonic"):
        parts = CASVC(**PARTS, partitioner="kmeans", route=route, probability=form)
        check(parts.fit(rows, codes), tmp_path, 3.0 * NEW)
    check(CASVC(**PARTS, partitioner="kmeans", route=route).fit(rows, codes > 0), tmp_path, 3.0 * NEW)


def test_settings_of_parts_and_divisions(tmp_path):
    check(CASVC(n_parts=3, C=[0.1, 10.0], gamma=[0.1, 1.0], per_part=True, random_state=0).fit(X, TWO), tmp_path)
    for route in ("nearest", "soft"):
        check(BKRR2(2, **RIDGE, n_divisions=2, route=route).fit(X, TARGETS), tmp_path)


@pytest.mark.parametrize(
    "given",
    [{"metric": "diagonal"}, {"metric": "full"}, {"metric": "lengths"}, {"scaling": "quantile"}, {"scaling": "levels"}],
    ids=str,
)
def test_scaling_and_metric(given, tmp_path):
    rows = np.column_stack([np.exp(3.0 * X[:, 0]), np.round(X[:, 1]), np.full(len(X), 7.0), 1e6 + X[:, 3]])
    new = np.column_stack([np.exp(3.0 * NEW[:, 0]), np.round(NEW[:, 1]), NEW[:, 2], 1e6 + NEW[:, 3]])
    check(BKRR2(2, **RIDGE, metric_rounds=1, **given).fit(rows, VALUES), tmp_path, new)
    single = BKRR2(2, **RIDGE, metric_rounds=1, dtype="float32", **given).fit(rows[:, :3], VALUES)
    check(single, tmp_path, new[:, :3].astype(np.float32))


def test_other_svms(tmp_path):
    assert nodes_of(check(SMOSVR(gamma=0.3).fit(X, VALUES), tmp_path, outputs=["prediction"])) == {"SVMRegressor"}
    check(SMONuSVC(nu=0.2).fit(X, MANY), tmp_path)
    check(SMOOneClassSVM(nu=0.2, gamma=0.3).fit(X), tmp_path, outputs=["label", "decisions"])
    check(SMOSVC(decision_function_shape="ovo", gamma=0.3).fit(X, MANY), tmp_path)


def test_no_node_where_single_precision_would_show(tmp_path):
    """Coefficients up to 1e4 lose what float32 rounds; so do features far from 0."""
    assert nodes_of(check(SMOSVC(C=1e4, gamma=0.3).fit(X, TWO), tmp_path)) == set()
    far = SMOSVC(gamma=0.3).fit(X + 1e5, TWO)
    assert nodes_of(check(far, tmp_path, NEW + 1e5)) == set()


def test_large_models_are_no_nodes(tuned):
    tuned(onnx_numbers=100)
    assert nodes_of(to_onnx(SMOSVC(gamma=0.3).fit(X, TWO))) == set()


def test_blend(tmp_path):
    model = blended(
        [BKRR2(2, **RIDGE).fit(X, VALUES).model_, SMOSVR().fit(X, VALUES).model_], np.array([0.3, 0.7]), None
    )
    check(model, tmp_path)
    both = [BKRR2(2, **RIDGE, kernel=kernel).fit(X, TARGETS).model_ for kernel in ("gaussian", "l1")]
    check(blended(both, np.array([0.5, 0.5]), None), tmp_path)


@pytest.mark.parametrize("form", ["sigmoid", "isotonic"])
@pytest.mark.parametrize("labels", [TWO, MANY], ids=["two", "many"])
def test_blend_of_classes(form, labels, tmp_path):
    """Probabilities by one model and by several, from a file; AutoKernelClassifier trains them."""
    members = [one.fit(X, labels).model_ for one in (SMOSVC(gamma=0.3), BKRR2Classifier(2, **RIDGE))]
    codes = np.unique(labels, return_inverse=True)[1]
    found = [Calibrator.of_outputs(form, outputs(one, X), codes, Communicator()) for one in members]
    for some, weights in (([0], [1.0]), ([1], [1.0]), ([0, 1], [0.3, 0.7])):
        model = classified([members[i] for i in some], np.array(weights), [found[i] for i in some], None)
        model.save(tmp_path / "m.h5")
        run("cakernels", ["export", tmp_path / "m.h5", tmp_path / "out.onnx", "--quiet"])
        given = answers(onnx.load(tmp_path / "out.onnx"), NEW, tmp_path)
        np.testing.assert_array_equal(given["label"], model.predict(NEW))
        np.testing.assert_allclose(given["probabilities"], model.probabilities(NEW), rtol=0, atol=1e-5)
        scores = model.scores(NEW)
        expected = scores[:, 0] if scores.ndim > 1 and scores.shape[1] == 1 else scores
        assert np.abs(given["decisions"] - expected).max() <= 1e-5 * np.abs(expected).max()


def test_auto_estimators(tmp_path):
    asked = {"max_time": None, "max_candidates": 1, "random_state": 0}
    check(AutoKernelRegressor(**asked, calibrate=True).fit(X, VALUES), tmp_path, outputs=["prediction"])
    fitted = AutoKernelClassifier(**asked, probability=True).fit(X, TWO)
    given = answers(to_onnx(fitted, X[:1]), NEW, tmp_path)
    np.testing.assert_array_equal(given["label"], fitted.predict(NEW))
    np.testing.assert_allclose(given["probabilities"], fitted.predict_proba(NEW), rtol=0, atol=1e-5)


def test_sparse_rows(tmp_path):
    """A model of CSR rows takes dense rows of the same width."""
    rows = sparse.csr_matrix(np.where(X > 0, X, 0.0))
    check(CASVC(**PARTS, metric="diagonal", metric_rounds=1, standardize=True).fit(rows, MANY), tmp_path)
    check(SMOSVC(gamma=0.3).fit(rows, TWO), tmp_path)
    check(BKRR2(2, **RIDGE, kernel="l1").fit(rows, VALUES), tmp_path)


def test_precomputed_kernel(tmp_path):
    """The input has the kernel values with all training rows."""
    K, new = ((rows @ X.T + 1.0) ** 2 for rows in (X, NEW))
    check(SMOSVC(kernel="precomputed").fit(K, MANY), tmp_path, new)
    check(SMOSVR(kernel="precomputed").fit(K, VALUES), tmp_path, new)
    check(DKRR(kernel="precomputed", lam=1e-3).fit(K, VALUES), tmp_path, new)


@pytest.fixture(scope="module")
def ridge():
    return BKRR2(2, **RIDGE).fit(pd.DataFrame(X, columns=list("abcd")), VALUES)


def test_types_versions_and_metadata(ridge, tmp_path):
    made = to_onnx(ridge)
    assert [(one.domain, one.version) for one in made.opset_import] == [("", 18), ("ai.onnx.ml", 1)]
    assert made.ir_version == 8
    assert {one.key: one.value for one in made.metadata_props} == {"method": "bkrr2", "columns": '["a", "b", "c", "d"]'}
    for rows, kind in ((X[:1].astype(np.float32), "FLOAT"), (X[:1], "DOUBLE"), (np.ones((1, 4), int), "DOUBLE")):
        tensor = to_onnx(ridge.model_, rows).graph.input[0].type.tensor_type
        assert tensor.elem_type == getattr(onnx.TensorProto, kind)
        assert [one.dim_value for one in tensor.shape.dim] == [0, 4]
    single = pd.DataFrame(NEW.astype(np.float32), columns=list("abcd"))
    found = answers(to_onnx(ridge, single), single.to_numpy(), tmp_path)["prediction"]
    np.testing.assert_allclose(found, ridge.predict(single), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_few_rows(n, tmp_path):
    """Parts without a row to predict, a node, and a loop over features."""
    for model in (CASVC(**PARTS, partitioner="kmeans", probability=True), SMOSVC(gamma=0.3, probability=True)):
        for name, values in answers(to_onnx(model.fit(X, MANY)), NEW[:n], tmp_path).items():
            expected = getattr(model, ASKED[name])(NEW[:3])[:n]
            assert values.shape == expected.shape
            np.testing.assert_allclose(values, expected, rtol=0, atol=1e-5 * (1 + np.abs(expected).max(initial=0)))
    ridge = DKRR(kernel="l1", sigma=1.5, lam=1e-3).fit(X, VALUES)
    given = answers(to_onnx(ridge), NEW[:n], tmp_path)["prediction"]
    np.testing.assert_allclose(given, ridge.predict(NEW[:3])[:n], rtol=1e-9)


def test_coupling_of_many_classes(tmp_path):
    """Against the direct solution, with probabilities of pairs that are certain, equal, or consistent."""
    k, p = 9, np.random.default_rng(1).dirichlet(np.ones(9), 20)
    i, j = np.triu_indices(k, 1)
    pairs = np.concatenate([RNG.uniform(size=(40, 36)), RNG.integers(0, 2, (40, 36)), p[:, i] / (p[:, i] + p[:, j])])
    g = Graph("float64", 36, {})
    g.output("p", coupled(g, g.X, k), np.float64, k)
    np.testing.assert_allclose(
        answers(g.model(), pairs, tmp_path)["p"], reference_coupled(pairs, k), rtol=1e-6, atol=1e-9
    )


def test_curves(tmp_path):
    """Curves of different lengths, one of a single point; numbers at the points, between and beyond them."""
    given = [(np.array([0.0]), np.array([2.0])), (np.array([-1.0, 0.0, 0.5]), np.array([3.0, 1.0, 1.5])),
             *curves(np.round(np.sort(RNG.normal(size=(1001, 2)), axis=0), 1))]  # fmt: skip
    rows = np.concatenate([NEW, np.round(NEW, 1)])
    g = Graph("float64", 4, {})
    g.output("y", interpolated(g, g.X, given), np.float64, 4)
    expected = np.column_stack([np.interp(column, *curve) for column, curve in zip(rows.T, given, strict=True)])
    np.testing.assert_allclose(answers(g.model(), rows, tmp_path)["y"], expected, rtol=1e-10, atol=1e-10)


def test_command(ridge, tmp_path, capsys):
    ridge.save(tmp_path / "m.h5")
    run("cakernels", ["export", tmp_path / "m.h5", tmp_path / "m.onnx", "--dtype", "float32"])
    told = capsys.readouterr().out
    assert told.startswith(f"{tmp_path}/m.onnx: X (rows x 4, float32) -> prediction, by operators in float64, 0.0 MiB")
    found = answers(onnx.load(tmp_path / "m.onnx"), NEW.astype(np.float32), tmp_path)["prediction"]
    np.testing.assert_allclose(found, ridge.model_.predict(NEW.astype(np.float32)), rtol=1e-9, atol=1e-9)
    run("cakernels", ["export", tmp_path / "m.h5", tmp_path / "m.onnx", "--quiet"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [(["none.h5", "m.onnx"], "none.h5: no such model file"), (["m.h5", "m.h5"], "is also the file of MODEL"),
     (["m.h5", "nowhere/m.onnx"], "nowhere does not exist"), (["m.h5", "."], "is a directory"),
     (["m.h5"], "OUT.onnx"), (["m.h5", "-"], "-"), (["m.h5", ""], "OUT.onnx"),
     (["half.h5", "m.onnx"], "half.h5"), (["rows.csv", "m.onnx"], "rows.csv"),
     (["m.h5", "m.onnx", "--dtype", "int"], "--dtype")],
)  # fmt: skip
def test_command_refuses(words, message, ridge, tmp_path, refuses):
    ridge.save(tmp_path / "m.h5")
    whole = (tmp_path / "m.h5").read_bytes()
    (tmp_path / "half.h5").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "rows.csv").write_text("1,2,3,4\n")
    refuses("cakernels export", words, message, tmp_path)


def test_intervals_are_left_out(tmp_path, capsys):
    BKRR2(2, **RIDGE, calibrate=0.2).fit(X, VALUES).save(tmp_path / "m.h5")
    run("cakernels", ["export", tmp_path / "m.h5", tmp_path / "m.onnx"])
    assert capsys.readouterr().out.endswith(" MiB; its intervals are left out\n")


def test_refused(ridge, monkeypatch, tuned):
    def linear(A, B):
        return A @ B.T

    def cauchy(row, a, b, gamma, coef0, degree):
        row[0] = 1.0

    with pytest.raises(NotFittedError):
        to_onnx(SMOSVC())
    register(KernelKind("declared", "", SQUARED, cauchy, lambda *_: 0.0, ("gamma",)))
    unknown = SMOSVC().fit(X, TWO)
    unknown.model_.kernel = type(unknown.model_.kernel)("declared")
    oracle = BKRR2(2, **RIDGE).fit(X, VALUES)
    oracle.model_.route = "oracle"
    elsewhere = BKRR2(2, **RIDGE).fit(X, VALUES)
    del elsewhere.model_.parts[1]
    for model, rows, message in (
        (SMOSVC(kernel=linear).fit(X, TWO), None, "a callable kernel"), (unknown, None, "has no declared kernel"),
        (oracle, None, "an oracle"), (elsewhere, None, "other ranks hold parts"),
        (ridge, X[:1, :3], r"X has shape \(1, 3\): rows of 4 features"), (ridge, X[0], r"X has shape \(4,\)"),
        (ridge, pd.DataFrame(X[:1], columns=list("abdc")), "X, column 2: 'd'"), ("ridge", None, "a str cannot be"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            to_onnx(model, rows)
    del KINDS["declared"]
    tuned(onnx_bytes=1000)
    with pytest.raises(InputError, match="the format holds 2 GiB"):
        to_onnx(ridge)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"needs the package onnx: pip install 'cakernels\[onnx\]'"):
        to_onnx(ridge)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "l1", "matern32", "matern52"])
@pytest.mark.parametrize("labels", [TWO, MANY], ids=["two", "many"])
@pytest.mark.parametrize("name", ["ovr", "ovo", "parts"])
def test_labels_of_rows_far_from_all_support_vectors(name, labels, kernel, dtype, tmp_path):
    """Without a bias the sign of the smallest decision counts: kernel values end at the same one in both."""
    given = {"kernel": kernel, "gamma": 2.0}
    if name == "parts":
        model = CASVC(n_parts=1, solver="asygcd", random_state=0, **given)
    else:
        model = AsyGCDSVC(multi_class=name, **given)
    model.fit(X.astype(dtype), labels)
    far = (np.array([3.0, 10.0, 30.0, 100.0])[np.arange(40) % 4, None] * NEW[:40]).astype(dtype)
    got = answers(to_onnx(model, far[:1]), far, tmp_path)
    np.testing.assert_array_equal(got["label"], model.predict(far))
    many = np.tile(far, (50, 1)) + np.repeat(np.arange(50.0), 40)[:, None].astype(dtype)  # few of them have near rows
    np.testing.assert_array_equal(model.predict(many)[:40], got["label"])
