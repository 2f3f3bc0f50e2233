"""Small problems for the drop-in, and what scikit-learn and the drop-in make of them."""

from __future__ import annotations

import numpy as np
from sklearn.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM

from cakernels import patch_sklearn, unpatch_sklearn
from cakernels.dropin import counts

rng = np.random.default_rng(0)
X = rng.normal(size=(150, 4)) * (rng.random((150, 4)) > 0.3)
VALUES = X @ [1.0, -1.0, 0.5, 0.0] + 0.1 * rng.normal(size=150)
CLASSES = np.array(["low", "middle", "top"])[np.digitize(VALUES, [-0.5, 0.5])]
NEW = rng.normal(size=(90, 4))  # rows to predict: none on the edge of a one-class model
SIGNED = rng.uniform(-0.3, 2, 150) * (rng.random(150) > 0.1)  # weights of 0 and below, too
TIGHT = {"tol": 1e-6}
SVMS = {
    "SVC": (SVC(C=3, **TIGHT), CLASSES),
    "SVC of two classes": (SVC(kernel="poly", coef0=1, class_weight={True: 3.0}, **TIGHT), VALUES > 0),
    "balanced": (SVC(kernel="linear", class_weight="balanced", **TIGHT), CLASSES),
    "ovo": (SVC(decision_function_shape="ovo", kernel="sigmoid", gamma=0.1, **TIGHT), CLASSES),
    "break_ties": (SVC(break_ties=True, **TIGHT), CLASSES),
    "C=inf": (SVC(C=np.inf, gamma=5.0, **TIGHT), VALUES > 0),
    "NuSVC": (NuSVC(nu=0.2, **TIGHT), CLASSES),
    "SVR": (SVR(C=2, epsilon=0.05, **TIGHT), VALUES),
    "NuSVR": (NuSVR(nu=0.3, **TIGHT), VALUES),
    "OneClassSVM": (OneClassSVM(nu=0.3, **TIGHT), None),
}


def twice(make):
    """``make()`` by scikit-learn, ``make()`` when every problem is taken over, and the counts of the latter."""
    unpatch_sklearn()
    theirs = make()
    patch_sklearn(everything=True)
    ours, made = make(), counts()
    unpatch_sklearn()
    assert not made.errors
    return theirs, ours, made


def close(theirs, ours, allowed=1e-4):
    """Numbers alike, relative to their scale; anything else equal."""
    assert theirs.keys() == ours.keys()
    for name, want in theirs.items():
        got = ours[name]
        assert (got.shape, got.dtype) == (want.shape, want.dtype), name
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, atol=allowed * np.abs(want).max(), err_msg=name)
        else:
            assert np.array_equal(got, want), name
