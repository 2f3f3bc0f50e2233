"""The drop-in in a program: pickles, workers, threads, its counts and messages, the command and the plugin."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module

import numpy as np
import pytest
from helpers.dropin import CLASSES, SVMS, TIGHT, VALUES, X, close, rng, twice
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC, SVR, _base

from cakernels import patch_sklearn, unpatch_sklearn
from cakernels.dropin import costs, counts, seams, stand_ins
from cakernels.dropin.calls import CallCounts, Cost, UnsuitedError
from cakernels.dropin.libsvm_problem import LibsvmProblem


@pytest.fixture(autouse=True)
def as_before():
    """scikit-learn as it is, whatever a test leaves behind."""
    yield
    unpatch_sklearn()


def test_pickles(tmp_path):
    """A pickle of a patched process is read by a process without this package, and the other way round."""
    patch_sklearn(everything=True)
    models = [clone(model).fit(X, y) for model, y in SVMS.values()] + [KernelRidge(kernel="rbf").fit(X, VALUES)]
    here = [model.predict(X) for model in models]
    (tmp_path / "models").write_bytes(pickle.dumps((models, X, here)))
    assert b"cakernels" not in (tmp_path / "models").read_bytes()
    program = """
import pickle, sys
models, X, there = pickle.load(open(sys.argv[1], "rb"))
for model, wanted in zip(models, there):
    got = model.predict(X)
    assert (got == wanted).all() if got.dtype.kind != "f" else abs(got - wanted).max() < 1e-9
assert not any(name.startswith("cakernels") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "models")], check=True)


def test_worker_processes():
    """joblib's workers are patched when they get an estimator, and are not any more after unpatch_sklearn."""

    def library(model):
        from sklearn.svm import _base

        return type(_base.libsvm).__module__, model.fit(X[:50], VALUES[:50] > 0).score(X, VALUES > 0)

    try:
        pairs = twice(lambda: Parallel(n_jobs=2)(delayed(library)(SVC(**TIGHT)) for _ in range(2)))[:2]
        again = Parallel(n_jobs=2)(delayed(library)(SVC(**TIGHT)) for _ in range(2))
        grid = partial(GridSearchCV, SVC(**TIGHT), {"C": [0.1, 10]}, n_jobs=2)
        theirs, ours, _ = twice(lambda: grid().fit(X, CLASSES))
    finally:
        get_reusable_executor().shutdown(wait=True)
    assert {name for name, _ in pairs[0] + again} == {"builtins"}
    assert {name for name, _ in pairs[1]} == {"cakernels.dropin.stand_ins"}
    assert {score for _, score in pairs[0]} == {score for _, score in pairs[1]}
    np.testing.assert_allclose(theirs.cv_results_["mean_test_score"], ours.cv_results_["mean_test_score"])


def test_threads():
    """Several fits at a time in one process."""

    def make():
        with ThreadPoolExecutor(3) as pool:
            models = list(pool.map(lambda C: SVC(C=C, **TIGHT).fit(X, CLASSES), [0.5, 1, 2, 4]))
        return {"decisions": np.stack([model.decision_function(X) for model in models])}

    close(*twice(make)[:2])


def test_own_failures(monkeypatch, caplog):
    """An error of this package: the log has it once, and scikit-learn goes on."""
    patch_sklearn(everything=True)
    wanted = SVC().fit(X, CLASSES).predict(X)

    def fails(problem):
        raise ZeroDivisionError("here")

    monkeypatch.setattr("cakernels.dropin.train.train", fails)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert np.array_equal(SVC().fit(X, CLASSES).predict(X), wanted)
    assert [one.getMessage() for one in caplog.records] == [
        "SVC.fit failed in cakernels, and scikit-learn's own code goes on: ZeroDivisionError: here"
    ]


def test_verbose(capsys, tuned):
    """One line the first time that something is taken over, or left for a reason; small problems are left."""
    many = rng.normal(size=(1200, 2))
    tuned(loading_seconds=0.0)
    patch_sklearn(verbose=True)
    for _ in range(2):
        SVR(max_iter=1000).fit(many, many[:, 0])
        SVR().fit(X, VALUES)
        KernelRidge(kernel="cosine").fit(X, VALUES)
        SVR(kernel="sigmoid").fit(X, VALUES)
    assert capsys.readouterr().err.splitlines() == [
        "cakernels: SVR.fit: taken over",
        "cakernels: SVR.fit: left to scikit-learn (too small to gain)",
        "cakernels: KernelRidge's kernel: left to scikit-learn (kernel cosine)",
        "cakernels: KernelRidge.fit: left to scikit-learn (too small to gain: fewer than 1,000 rows)",
        f"cakernels: SVR.fit: left to scikit-learn ({stand_ins.INDEFINITE})",
    ]


def test_too_little_to_load(monkeypatch, tuned):
    """Nothing is loaded before the calls together are worth it; the count depends on their sizes alone."""
    import_module("cakernels.dropin.train")
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    tuned(loading_seconds=1.5)
    found = CallCounts()
    for _ in range(3):
        with pytest.raises(UnsuitedError, match="too little so far"):
            found.worth_loading(0.4)
    found.worth_loading(0.4)
    CallCounts(everything=True).worth_loading(0.1)
    early = CallCounts()
    early.preload(asked=True)
    early.worth_loading(0.1)
    with pytest.raises(UnsuitedError, match="too small"):
        early.worth(Cost(theirs=1.0, ours=1.0))


@pytest.mark.parametrize(
    ("rows", "classes", "features", "C", "is_worth"),
    [(12_000, 26, 16, 32.0, True), (150, 3, 4, 1e6, False), (200, 2, 4, 1.0, False), (3000, 2, 20, 1.0, True)],
)
def test_cost(rows, classes, features, C, is_worth):
    """Many classes of few rows each are taken over, and a few hundred rows in all are not."""
    problem = LibsvmProblem(X=np.zeros((rows, features)), y=np.zeros(rows), C=C, class_weight=np.ones(classes))
    cost = costs.of_training(problem)
    assert (cost.ours < cost.theirs) == is_worth


def test_put_back(monkeypatch):
    """Patched twice and put back once: all as it was. A place that is missing is named."""
    places = (_base.libsvm, _base.libsvm_sparse, KernelRidge.predict)
    patch_sklearn()
    patch_sklearn()
    assert _base.libsvm is not places[0]
    unpatch_sklearn()
    unpatch_sklearn()
    assert places == (_base.libsvm, _base.libsvm_sparse, KernelRidge.predict)
    assert counts() is None
    monkeypatch.setattr(seams, "SEAMS", (*seams.SEAMS, ("sklearn.svm._base", "", "moved", seams.Dense)))
    with pytest.warns(UserWarning, match=r"has no sklearn\.svm\._base\.moved"):
        patch_sklearn()


def test_another_version(monkeypatch):
    """Arguments that we do not know: scikit-learn's code, without a word."""
    original = _base.libsvm.fit
    monkeypatch.setattr(
        _base, "libsvm", type("Newer", (), {"fit": staticmethod(lambda X, y, new, **k: original(X, y, **k))})
    )
    patch_sklearn(everything=True)
    _base.libsvm.fit(X, VALUES, new=1, svm_type=3)
    assert list(counts().handed_back) == [("SVR.fit", "this version of scikit-learn calls LIBSVM in another way")]


def patched(*words, cwd):
    """Run ``python -m cakernels.patch``."""
    command = [sys.executable, "-m", "cakernels.patch", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_script(tmp_path):
    """Its arguments, the folder beside it, its name and its status are as they are without us."""
    (tmp_path / "beside.py").write_text("there = 1\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, beside\nfrom sklearn.svm import _base\n"
        "print(__name__, sys.argv, sys.path[0], type(_base.libsvm).__name__)\n"
        "if len(sys.argv) > 2:\n    sys.exit(7)\n"
        "1 / 0\n"
    )
    ended = patched(script, "--help", 1, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (7, "")
    assert ended.stdout == f"__main__ {[str(script), '--help', '1']} {tmp_path} Dense\n"
    failed = patched("-m", "script", cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "name a script or -m MODULE; --help says more"),
        (["none.py"], "none.py: there is no such file"),
        (["-m"], "-m: name a module"),
        (["-m", "no.such"], "-m no.such: there is no such module, or package with __main__"),
        (["-m", "cacore"], "-m cacore: there is no such module, or package with __main__"),
        (["."], ".: there is no program in this folder (__main__.py)"),
        (["--loud", "none.py"], "--loud: there is no such option; --help lists them"),
    ],
)
def test_no_script(words, line, tmp_path):
    """One line, status 2."""
    ended = patched(*words, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"cakernels.patch: {line}\n")


def test_plugin(tmp_path):
    """Tests of a patched scikit-learn: counts in the summary, exceptions by name, status 1 after an error of ours."""
    (tmp_path / "test_it.py").write_text(
        "from sklearn.svm import SVC\nimport cakernels.dropin.train as ours\n"
        "def test_fit():\n    SVC().fit([[0], [1]], [0, 1])\n"
        "def test_fails():\n    assert not SVC\n"
        "def test_breaks(monkeypatch):\n    monkeypatch.setattr(ours, 'train', None)\n    test_fit()\n"
    )
    (tmp_path / "known").write_text("# exceptions\n\ntest_it.py::test_fails: classes are true\n")
    command = [sys.executable, "-m", "pytest", "-p", "cakernels.sklearn_plugin", "--cakernels-exceptions=known"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 1, ended.stdout
    assert "SVC.fit: 1 taken over" in ended.stdout
    assert "2 passed, 1 xfailed" in ended.stdout
    ended = subprocess.run([*command, "-k", "not breaks"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 0, ended.stdout
