"""scikit-learn patched by the package, against scikit-learn as it is: answers, attributes, messages, processes."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers.dropin import CLASSES, NEW, SIGNED, SVMS, TIGHT, VALUES, X, close, twice
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR, NuSVR, OneClassSVM

from cakernels import patch_sklearn, unpatch_sklearn

ROWS = {
    "dense": np.asarray,
    "float32": np.float32,
    "CSR": sp.csr_array,
    "CSC": sp.csc_array,
    "CSC of int64": lambda X: sp.csc_matrix(np.rint(X).astype(np.int64)),
}


@pytest.fixture(autouse=True)
def as_before():
    """scikit-learn as it is, whatever a test leaves behind."""
    yield
    unpatch_sklearn()


def outputs(model, X):
    """Everything that the model says of rows."""
    names = ("decision_function", "predict", "score_samples", "predict_proba")
    return {name: getattr(model, name)(X) for name in names if hasattr(model, name)}


def form(model):
    """Types and shapes of the fitted attributes; a number for sizes that depend on the last digits."""
    sizes = {len(model.support_)} if hasattr(model, "support_") else set()

    def one(value):
        shape = tuple("s" if size in sizes else size for size in getattr(value, "shape", ()))
        return type(value), getattr(value, "dtype", None), shape

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # probA_ will be gone
        return {name: one(getattr(model, name)) for name in dir(model) if _fitted(name, model)}


def _fitted(name, model):
    return (
        name.endswith("_") and not name.endswith("__") and hasattr(model, name) and not callable(getattr(model, name))
    )


@pytest.mark.parametrize("weights", [None, SIGNED], ids=["", "weights"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", SVMS)
def test_svm(name, rows, weights):
    """The same outputs, and attributes of the same form."""
    model, y = SVMS[name]
    if name == "C=inf" and rows == "CSC of int64":
        pytest.skip("rows that cannot be told apart")
    given, new = ROWS[rows](X), ROWS[rows.removesuffix(" of int64")](NEW)
    theirs, ours, counts = twice(lambda: clone(model).fit(given, y, sample_weight=weights))
    assert list(counts.taken) == [f"{type(model).__name__}.fit"]
    assert not counts.handed_back
    assert form(theirs) == form(ours)
    wanted, got, counts = twice(lambda: outputs(theirs, new))  # one model, predicted by both
    assert not counts.handed_back
    close(wanted, got, 1e-10)
    close(wanted, outputs(ours, new))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kernel", ["linear", "poly", "rbf", "laplacian", "sigmoid"])
def test_ridge(kernel, rows):
    """The same coefficients with one alpha or several, with and without weights, in the same precision."""
    given, targets = ROWS[rows](X), np.c_[VALUES, VALUES**2]
    for alpha, y, weights in ((0.5, VALUES, None), ([0.1, 10.0], targets, np.maximum(SIGNED, 0)), (1.0, targets, 2.0)):
        model = KernelRidge(kernel=kernel, alpha=alpha, gamma=0.02)
        theirs, ours, counts = twice(lambda model=model, y=y, w=weights: clone(model).fit(given, y, sample_weight=w))
        assert not counts.handed_back
        assert form(theirs) == form(ours)
        wanted, got, counts = twice(lambda theirs=theirs: outputs(theirs, given))
        assert not counts.handed_back
        close(wanted, got, 1e-5 if rows == "float32" else 1e-10)
        close(wanted, outputs(ours, given), 1e-3 if rows == "float32" else 1e-8)


def test_ridge_without_an_answer():
    """A singular matrix: scikit-learn's warning, and its least squares."""
    doubled, y = np.r_[X, X], np.r_[VALUES, VALUES]

    def make():
        with pytest.warns(UserWarning, match="Singular matrix"):
            return outputs(KernelRidge(alpha=0, kernel="linear").fit(doubled, y), X)

    theirs, ours, counts = twice(make)
    assert ("KernelRidge.fit", "the matrix is singular to rounding") in counts.handed_back
    close(theirs, ours, 1e-8)


def product(A, B):
    """A kernel of two matrices, or of two rows, which is how KernelRidge calls it."""
    return (A @ B.T + 1) ** 2


@pytest.mark.parametrize("kernel", ["precomputed", product], ids=["precomputed", "callable"])
@pytest.mark.parametrize("model", [SVC(**TIGHT), NuSVR(**TIGHT), OneClassSVM(**TIGHT), KernelRidge()], ids=str)
def test_kernels_of_the_user(model, kernel):
    """Kernel matrices, and callables, which scikit-learn evaluates."""
    y = CLASSES if isinstance(model, SVC) else VALUES
    rows, new = (rbf_kernel(X), rbf_kernel(NEW, X)) if kernel == "precomputed" else (X, NEW)

    def make():
        return outputs(clone(model).set_params(kernel=kernel).fit(rows, y), new)

    theirs, ours, _ = twice(make)
    close(theirs, ours)


@pytest.mark.filterwarnings("ignore:The `probability` parameter:FutureWarning")
@pytest.mark.filterwarnings("ignore:Attribute `probA_`:FutureWarning")
def test_probabilities():
    """Folds are drawn anew, so that fits agree roughly; the same seed gives the same numbers, one model the same."""
    make = partial(SVC, probability=True, random_state=3)
    theirs, ours, _ = twice(lambda: make().fit(X, CLASSES))
    patch_sklearn(everything=True)
    assert np.array_equal(make().fit(X, CLASSES).predict_proba(X), ours.predict_proba(X))
    unpatch_sklearn()
    assert np.abs(theirs.predict_proba(X) - ours.predict_proba(X)).mean() < 0.05
    assert theirs.probA_.shape == ours.probA_.shape
    wanted, got, _ = twice(lambda: outputs(theirs, X))
    close(wanted, got, 1e-10)


def test_limit_of_iterations():
    """Warning and status of a fit that ends early."""

    def make():
        with pytest.warns(ConvergenceWarning, match="max_iter=2"):
            return SVC(max_iter=2).fit(X, CLASSES)

    for model in twice(make)[:2]:
        assert model.fit_status_ == 1
        assert model.n_iter_.max() <= 2
        assert model.shape_fit_ == X.shape


def test_frames():
    """DataFrames with names of features, tables of pyarrow, whatever is an array by ``__array__``; pandas out."""
    frame = pd.DataFrame(X, columns=list("abcd"))

    class Array:
        dtype, shape, ndim = X.dtype, X.shape, 2

        def __array__(self, dtype=None, copy=None):
            return np.asarray(X, dtype)

        def __len__(self):
            return len(X)

    def make():
        scaler = StandardScaler().set_output(transform="pandas")
        model = make_pipeline(scaler, SVC(**TIGHT)).fit(frame, pd.Series(CLASSES))
        assert list(model[-1].feature_names_in_) == list("abcd")
        ridge = KernelRidge(kernel="rbf").fit(frame, pd.Series(VALUES))
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            ridge.predict(X)
        with pytest.raises(ValueError, match="feature names should match"):
            ridge.predict(frame[list("bacd")])
        return outputs(model, frame) | {
            "ridge": ridge.predict(frame),
            "array": SVR(**TIGHT).fit(Array(), VALUES).predict(Array()),
            "list": KernelRidge().fit(X.tolist(), VALUES).predict(X.tolist()),
        }

    close(*twice(make)[:2])


BAD = {
    "NaN": lambda make, y: make().fit(np.where(X > 2, np.nan, X), y),
    "infinite": lambda make, y: make().fit(np.where(X > 2, np.inf, X), y),
    "targets": lambda make, y: make().fit(X, np.r_[VALUES[:-1], np.nan]),
    "one class": lambda make, y: make().fit(X, np.zeros(150)),
    "lengths": lambda make, y: make().fit(X, y[:-1]),
    "weights": lambda make, y: make().fit(X, y, sample_weight=np.ones(3)),
    "no weight": lambda make, y: make().fit(X, y, sample_weight=np.zeros(150)),
    "weights of NaN": lambda make, y: make().fit(X, y, sample_weight=np.full(150, np.nan)),
    "vector": lambda make, y: make().fit(X[:, 0], y),
    "no rows": lambda make, y: make().fit(X[:0], y[:0]),
    "one row": lambda make, y: make().fit(X[:1], y[:1]),
    "words": lambda make, y: make().fit([["a"]] * 150, y),
    "complex": lambda make, y: make().fit(X + 1j, y),
    "kernel": lambda make, y: make(kernel="no such").fit(X, y),
    "gamma": lambda make, y: make(gamma=-1.0).fit(X, y),
    "square": lambda make, y: make(kernel="precomputed").fit(X, y),
    "large": lambda make, y: make(kernel="linear").fit(X * 1e200, y),
    "not fitted": lambda make, y: make().predict(X),
    "features": lambda make, y: make().fit(X, y).predict(X[:, :2]),
    "NaN later": lambda make, y: make().fit(X, y).predict(X * np.nan),
    "large later": lambda make, y: make().fit(X, y).predict(X * 1e200),
    "dense, then sparse": lambda make, y: make().fit(X, y).predict(sp.csr_array(X)),
    "sparse matrix of kernel values": lambda make, y: make(kernel="precomputed").fit(sp.csr_array(rbf_kernel(X)), y),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("make", [SVC, NuSVR, OneClassSVM, KernelRidge])
def test_bad_input(make, case):
    """The error of scikit-learn, or its answer, and nothing of ours."""
    y = CLASSES if make is SVC else VALUES

    def attempt():
        try:
            answer = BAD[case](make, y)
        except Exception as error:
            return type(error), str(error).split("0x")[0]
        return type(answer), getattr(answer, "shape", None)

    theirs, ours, _ = twice(attempt)
    assert theirs == ours
