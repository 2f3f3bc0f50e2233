"""Models of every family as files: what is loaded is what was saved, and wrong rows are refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import limit_warning, names, near, same_content
from helpers.data import clouds, formats, separate_clouds, smooth
from helpers.models import asygcd, parts
from sklearn.exceptions import NotFittedError

from asygcd import AsyGCDSVC
from cacore.errors import InputError
from cakrr import BKRR2, DKRR, BKRR2Classifier, KRRModel
from casvm import CASVC, CASVR, SMOSVC, SMOSVR, DisSMOSVC, DisSMOSVR, SMONuSVC, SMONuSVR, SMOOneClassSVM

classes = pytest.mark.parametrize("k", [2, 3])


KERNELS = ["gaussian", "linear", "polynomial", "sigmoid"]
LABELS = {
    "int": np.array([3, -1, 7]), "far int": np.array([2**40, -3, 7]), "int8": np.array([1, 2, 3], np.int8),
    "float": np.array([-2.0, 5.0, -0.0]), "bool": np.array([False, True]),
    "words": np.array(["no", "yes, certainly", "może"]), "objects": np.array(["x", "yy", "z"], object),
}  # fmt: skip


def back(model, folder, T):
    """The model as a file brings it back, which answers with the same bits."""
    path = folder / "m.h5"
    model.save(path)
    assert names(folder) == ["m.h5"]
    loaded = type(model).load(path)
    same_content(loaded, model)
    got, expected = loaded.predict(T), model.predict(T)
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(loaded.decision_function(T), model.decision_function(T))
    return loaded


def checked(estimator, folder, T):
    """The same of an estimator's model, which answers as the estimator."""
    loaded = back(estimator.model_, folder, T)
    np.testing.assert_array_equal(loaded.predict(T), estimator.predict(T))
    np.testing.assert_array_equal(loaded.decision_function(T), estimator.decision_function(T))
    return loaded


ESTIMATORS = {
    **dict.fromkeys((SMOSVC(), SMONuSVC(), CASVC(2), DisSMOSVC(), AsyGCDSVC(threads=1)), "labels"),
    **dict.fromkeys((SMOSVR(), SMONuSVR(), CASVR(2), DisSMOSVR(), DKRR(), BKRR2(n_parts=2)), "numbers"),
    SMOOneClassSVM(): "nothing",
}  # fmt: skip


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda one: type(one).__name__)
def test_estimators_save_and_load(estimator, tmp_path):
    """A loaded model predicts as its estimator does; an estimator without a fit has no file."""
    X, y = clouds(60)
    y = {"labels": LABELS["words"][y], "numbers": X[:, 0] + y, "nothing": None}[ESTIMATORS[estimator]]
    with pytest.raises(NotFittedError):
        estimator.save(tmp_path / "m.h5")
    assert names(tmp_path) == []
    expected = estimator.fit(X, y).predict(X)
    assert estimator.save(tmp_path / "m.h5") is None
    loaded = type(estimator).load(tmp_path / "m.h5")
    assert type(loaded) is type(estimator.model_)
    np.testing.assert_array_equal(loaded.predict(X), expected)


def test_ridge_classifiers_save_a_model_of_outputs(tmp_path):
    """They have no `load`, for its predictions would not be theirs."""
    X, y = clouds(60)
    estimator = BKRR2Classifier(n_parts=2).fit(X, LABELS["words"][y])
    estimator.save(tmp_path / "m.h5")
    model = KRRModel.load(tmp_path / "m.h5")
    np.testing.assert_array_equal(model.labels(model.predict(X)), estimator.predict(X))
    assert not hasattr(estimator, "load")
    with pytest.raises(InputError, match=r"m\.h5: .*svm"):
        SMOSVC.load(tmp_path / "m.h5")


# -- saved and loaded ----------------------------------------------------------------------------


@formats
@classes
@pytest.mark.parametrize("route", ["nearest", "soft", "all"])
def test_parts(route, k, csr, tmp_path):
    (X, y), (T, _) = clouds(120, k=k, csr=csr), clouds(50, 1, k, csr)
    model = parts(n_parts=5, partitioner="kmeans", route=route, standardize=True).fit(X, y)
    loaded = checked(model, tmp_path, T)
    assert (loaded.soft is None) == (route == "nearest" or (route == "all" and k == 2))
    np.testing.assert_array_equal(loaded.standardizer.scale, model.model_.standardizer.scale)


@formats
@pytest.mark.parametrize(("k", "multi_class"), [(2, "ovr"), (3, "ovr"), (3, "ovo")])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_asygcd(dtype, standardize, k, multi_class, csr, tmp_path):
    (X, y), (T, _) = clouds(k=k, csr=csr), clouds(50, 1, k, csr)
    X, T = X.astype(dtype), T.astype(dtype)
    model = asygcd(standardize=standardize, multi_class=multi_class).fit(X, LABELS["words"][y])
    assert (checked(model, tmp_path, T).standardizer is not None) == standardize


@pytest.mark.parametrize("make", [parts, asygcd])
@pytest.mark.parametrize("what", LABELS)
def test_labels(what, make, tmp_path):
    X, y = clouds(120, k=min(3, len(LABELS[what])))
    labels = LABELS[what][y]
    loaded = checked(make().fit(X, labels), tmp_path, X)
    assert loaded.classes.tolist() == np.unique(labels).tolist()
    assert loaded.classes.dtype == labels.dtype


@pytest.mark.parametrize("make", [SMOSVC, asygcd])
@pytest.mark.parametrize("kernel", KERNELS)
@classes
def test_kernels(k, kernel, make, tmp_path):
    (X, y), (T, _) = clouds(120, k=k), clouds(50, 1, k)
    C, gamma = (5.0, 0.01) if kernel == "sigmoid" and make is asygcd else (2.0, 0.2)  # which need not have a solution
    checked(make(kernel=kernel, gamma=gamma, coef0=0.5, degree=2, C=C).fit(X, y), tmp_path, T)


@classes
def test_precomputed(k, tmp_path):
    (X, y), (T, _) = clouds(120, k=k), clouds(50, 1, k)
    checked(SMOSVC(kernel="precomputed").fit(X @ X.T, y), tmp_path, T @ X.T)


@formats
def test_float32(csr, tmp_path):
    X, y = clouds(120, csr=csr)
    back(parts().fit(X.astype(np.float32), y).model_, tmp_path, X.astype(np.float32))


def test_part_of_one_class(tmp_path):
    X, y = separate_clouds()
    model = parts(n_parts=2, partitioner="kmeans").fit(X, y).model_
    assert back(model, tmp_path, X).predict(X).tolist() == y.tolist()


@formats
def test_no_support_vectors(csr, tmp_path):
    """Nothing was learnt: a model all the same."""
    X, y = clouds(csr=csr)
    model = AsyGCDSVC(max_iter=0, threads=1)
    limit_warning(lambda: model.fit(X, y))
    assert model.decision_function(X).tolist() == [0.0] * 150
    assert back(model.model_, tmp_path, X).sizes.tolist() == [0]


# -- rows to predict -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [parts, asygcd])
@formats
def test_other_form_of_the_rows(csr, make):
    """A model of dense rows answers for CSR rows and the other way round; lists are rows too."""
    S, y = clouds(120, csr=True)
    D = S.toarray()
    model = make().fit(S if csr else D, y)
    expected = model.decision_function(S if csr else D)
    for other in (D, S, sp.csr_array(S), sp.csc_matrix(S), sp.coo_array(S), D.tolist(), np.asfortranarray(D)):
        near(model.decision_function(other), expected, 1e-10)
        near(model.model_.decision_function(other), expected, 1e-10)


def test_integers_into_a_loaded_model(tmp_path):
    BKRR2(2, random_state=0).fit(*smooth()).model_.save(tmp_path / "m.h5")
    model = KRRModel.load(tmp_path / "m.h5")
    whole = np.ones((3, 4), int)
    np.testing.assert_array_equal(model.predict(whole), model.predict(whole.astype(float)))
    with pytest.raises(InputError, match="NaN"):
        model.predict(np.full((1, 4), np.nan))


@pytest.mark.parametrize(
    "make", [*(lambda route=route: parts(n_parts=4, partitioner="kmeans", route=route)
               for route in ("nearest", "all", "soft")), asygcd], ids=["nearest", "all", "soft", "asygcd"],
)  # fmt: skip
@formats
@classes
def test_no_rows(k, csr, make):
    """A rank may have none."""
    X, y = clouds(120, k=k, csr=csr)
    model = make().fit(X, y).model_
    assert model.predict(X[:0]).shape == (0,)
    assert model.decision_function(X[:0]).shape == ((0,) if k == 2 else (0, 3))


# In a process of its own: what reads memory beyond its arrays may end it.
ROWS = """
import sys
import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

from asygcd import AsyGCDSVC
from casvm import CASVC
from cacore.errors import InputError

rng = np.random.default_rng(0)
y = np.arange(150) % 2
X = rng.normal(size=(150, 4)) + y[:, None]
model = (AsyGCDSVC(threads=1) if sys.argv[1] == "asygcd" else CASVC(3, random_state=0)).fit(X, y).model_
rows = {"wide": np.ones((3, 5)), "narrow": np.ones((3, 3)), "nan": np.full((3, 4), np.nan), "vector": np.ones(4),
        "wide csr": sp.csr_matrix(np.ones((3, 9))), "list": X.tolist(), "csc": sp.csc_matrix(X)}
for what, given in rows.items():
    for call in (model.decision_function, model.predict):
        try:
            answers = call(given)
            right = len(answers) == 150 and np.allclose(answers, call(X), rtol=0, atol=1e-9)
            print(what, "right" if right else f"wrong {answers[:3]}", flush=True)
        except InputError:
            print(what, "refused", flush=True)
        except Exception as error:
            print(what, repr(error), flush=True)
"""


@pytest.mark.parametrize("family", ["svm", "asygcd"])
def test_rows_refused_and_taken(family, python):
    """Other features are refused, and numbers that are none; lists and other formats are taken."""
    done = python("-c", ROWS, family)
    expected = {**dict.fromkeys(["wide", "narrow", "nan", "vector", "wide csr"], "refused"),
                **dict.fromkeys(["list", "csc"], "right")}  # fmt: skip
    assert done.stdout.splitlines() == [f"{name} {result}" for name, result in expected.items() for _ in range(2)]
    assert (done.returncode, done.stderr) == (0, "")
