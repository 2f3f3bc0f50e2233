"""Behaviour of every SVM classifier as a scikit-learn estimator, with any problem and solver, and its refusals."""

from __future__ import annotations

import pickle
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import limit_warning, near, refusal
from helpers.data import LAYOUTS, as_csr, clouds, first_classes, formats, read_only
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from asygcd import AsyGCDSVC
from casvm import CASVC, DCSVC, SMOSVC, CascadeSVC, DCFilterSVC, DisSMOSVC
from partition import FCFS

# In one part, and in several, or by a working set: what several ranks would do.
PARTS = {"n_parts": 3, "random_state": 0}
EXACT = {"smosvc": SMOSVC, "casvc": CASVC}
SEVERAL = {
    "parts": lambda **more: CASVC(**{"n_parts": 2, "partitioner": "kmeans", "random_state": 0, **more}),
    "cascade": lambda **more: CascadeSVC(**PARTS, **more),
    "dcsvm": lambda **more: DCSVC(**PARTS, **more),
    "dcfilter": lambda **more: DCFilterSVC(**PARTS, **more),
    "dissmo": lambda **more: DisSMOSVC(working_set=64, **more),
}
# One thread does the same in each fit.
ASYGCD = {
    "asygcd": lambda **more: AsyGCDSVC(**{"threads": 1, **more}),
    "asygcd pairs": lambda **more: AsyGCDSVC(**{"threads": 1, "multi_class": "ovo", **more}),
}
MAKERS = {**EXACT, **SEVERAL, **ASYGCD}
SOLVERS = {
    f"{cls.__name__} {solver}": lambda cls=cls, solver=solver, **more: cls(2, solver=solver, random_state=0, **more)
    for cls, solver in product((CASVC, CascadeSVC, DCSVC, DCFilterSVC), ("smo", "asygcd"))
}
CLASSES = [SMOSVC, CASVC, CascadeSVC, DCSVC, DCFilterSVC, DisSMOSVC, AsyGCDSVC]
makers = pytest.mark.parametrize("name", MAKERS)


# -- what scikit-learn does with a classifier ------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in ("casvc", "asygcd pairs")])
def test_composes(name, digits):
    X, y = first_classes(digits, 3)
    make, folds = MAKERS[name], 3 if name in ("smosvc", "parts") else 2
    search = GridSearchCV(make(), {"C": [1e-4, 1.0], "gamma": ["scale", 1e3]}, cv=folds).fit(X, y)
    assert search.best_params_ == {"C": 1.0, "gamma": "scale"}
    calibrated = CalibratedClassifierCV(make(), cv=folds).fit(X, y)
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(axis=1), 1.0)
    assert calibrated.score(X, y) > 0.95
    assert OneVsRestClassifier(make()).fit(X, y).score(X, y) > 0.95
    scaled = StandardScaler().fit_transform(X)
    pipe = make_pipeline(StandardScaler(), make()).fit(X, y)
    alone = make().fit(scaled, y)
    np.testing.assert_allclose(pipe.decision_function(X), alone.decision_function(scaled), rtol=1e-12)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("name", [*MAKERS, *SOLVERS])
def test_clone_and_pickle(name, k, digits):
    X, y = first_classes(digits, k)
    more = {
        "smosvc": {"decision_function_shape": "ovo"},
        "parts": {"n_parts": 3, "partitioner": "random", "random_state": 4, "route": "soft"},
        "asygcd pairs": {"random_state": 4},
    }.get(name, {})  # fmt: skip
    model = {**MAKERS, **SOLVERS}[name](C=3.0, class_weight={0: 2.0}, **more).fit(X, y)
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    for call in (fresh.predict, fresh.decision_function):
        refusal(call, X, error=NotFittedError)
    assert not hasattr(fresh, "coef_")
    back = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(back.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(back.predict(X), model.predict(X))
    if name in MAKERS:
        np.testing.assert_array_equal(fresh.fit(X, y).decision_function(X), model.decision_function(X))


INPUTS = {
    **{name: MAKERS[name] for name in MAKERS if name != "asygcd pairs"},
    "parts": lambda **more: CASVC(3, partitioner="fcfs", ratio=True, **more),
    "owned": lambda **more: AsyGCDSVC(threads=2, warm_start=True, **more),
    "stochastic": lambda **more: AsyGCDSVC(threads=2, update="stochastic", warm_start=True, **more),
    "parts of asygcd": lambda **more: CASVC(3, solver="asygcd", random_state=0, **more),
    **{f"{cls.__name__} of asygcd": lambda cls=cls, **more: cls(3, solver="asygcd", random_state=0, **more)
       for cls in (CascadeSVC, DCSVC, DCFilterSVC)},
}  # fmt: skip


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_input_stays(name, layout):
    X, y = clouds(60)
    X = LAYOUTS[layout](np.where(np.abs(X) < 0.3, 0, X))
    w = np.arange(60) % 3 + 1.0
    before = [array.copy() for array in (X, y, w)]
    read_only(X, y, w)
    for weights, more in product((None, w), ({}, {"standardize": True})):
        if more and name == "smosvc":
            continue
        model = INPUTS[name](class_weight="balanced", **more).fit(X, y, weights)
        model.fit(X, y, weights)
        model.predict(X)
        model.decision_function(X)
    for array, copy in zip((X, y, w), before, strict=True):
        assert abs(array - copy).sum() == 0


@makers
def test_predictions_do_not_change_the_model(name):
    X, y = clouds()
    model = MAKERS[name]().fit(X, y)
    first = model.decision_function(X)
    model.predict(X[:7])
    np.testing.assert_array_equal(model.decision_function(X), first)


@makers
def test_class_of_weight_zero_is_absent(name):
    """A label that only rows of weight 0 have is none of the model's."""
    X, y = clouds(k=3)
    model = MAKERS[name]().fit(X, y, (y < 2).astype(float))
    assert model.classes_.tolist() == [0, 1]
    assert set(model.predict(X)) <= {0, 1}
    assert model.decision_function(X).shape == (150,)


@makers
def test_score_with_weights(name):
    X, y = clouds()
    model, w = MAKERS[name]().fit(X, y), np.random.default_rng(0).random(150)
    assert model.score(X, y, w) == pytest.approx(np.average(model.predict(X) == y, weights=w))


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("standardize", [False, True])
@formats
def test_standardized(csr, name, standardize):
    """Standardising equals scaling by hand; CSR rows are not shifted."""
    X, y = clouds(d=3)
    X = as_csr(X * [1, 50, 0.01], csr, 0.005)
    more = {"n_parts": 3, "partitioner": "fcfs"} if name == "parts" else {}
    model = SEVERAL[name](standardize=standardize, tol=1e-6, **more).fit(X, y)
    assert (model.model_.standardizer is not None) == standardize
    if standardize:
        Z = StandardScaler(with_mean=not csr).fit_transform(X)
        expected = SEVERAL[name](tol=1e-6, **more).fit(Z, y).decision_function(Z)
        near(model.decision_function(X), expected, 1e-4)


# -- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{"max_iter": 1}, {"max_iter": 0}, {"max_time": 1e-9}], ids=str)
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("name", [*EXACT, *SEVERAL])
def test_not_converged(name, k, limit):
    """One line: how many iterations, and how far it is from the tolerance."""
    X, y = clouds(k=k)
    model = MAKERS[name](**limit)
    message = limit_warning(lambda: model.fit(X, y))
    alone = name == "smosvc"
    n_iter = model.n_iter_.max() if alone else model.n_iter_.sum()
    gap = model.gap_.max() if alone else model.solver_["gap"].max()
    assert f"stopped after {n_iter:,} iterations at a violation of {gap:.3g}, above tol = 0.001" in message
    assert gap > 1e-3
    if name in EXACT:
        assert n_iter <= limit.get("max_iter", 10**6) * (1 if alone else k * (k - 1) // 2)
    if alone:
        assert model.fit_status_ == 1
    assert np.isfinite(model.decision_function(X)).all()
    assert set(model.predict(X)) <= set(range(k))


# -- what is refused ---------------------------------------------------------------------------

BAD = {
    "C 0": ({"C": 0}, "C = 0:"), "C negative": ({"C": -1.0}, "C = -1.0:"), "C nan": ({"C": np.nan}, "C = nan:"),
    "C inf": ({"C": np.inf}, "C = inf:"), "gamma 0": ({"gamma": 0}, "gamma = 0:"),
    "gamma negative": ({"gamma": -1}, "gamma = -1:"), "gamma x": ({"gamma": "x"}, "gamma = 'x':"),
    "gamma nan": ({"gamma": np.nan}, "gamma = nan:"), "tol 0": ({"tol": 0}, "tol = 0:"),
    "tol negative": ({"tol": -1e-3}, "tol = -0.001:"), "tol nan": ({"tol": np.nan}, "tol = nan:"),
    "tol inf": ({"tol": np.inf}, "tol = inf:"),
    "kernel": ({"kernel": "cosine"}, "kernel = 'cosine': it must be one of"),
    "kernel None": ({"kernel": None}, "kernel = None:"), "kernel function": ({"kernel": np.dot}, "kernel"),
    "degree": ({"degree": -1}, "degree = -1:"), "degree 2.5": ({"degree": 2.5}, "degree = 2.5:"),
    "coef0": ({"coef0": np.nan}, "coef0 = nan:"), "cache": ({"cache_gib": -1}, "cache_gib = -1:"),
    "cache nan": ({"cache_gib": np.nan}, "cache_gib = nan:"), "time": ({"max_time": 0}, "max_time = 0:"),
    "time nan": ({"max_time": np.nan}, "max_time = nan:"),
    "class_weight": ({"class_weight": "equal"}, "class_weight 'equal'"),
    "class_weight list": ({"class_weight": [1, 2]}, "class_weight [1, 2]"),
    "class_weight label": ({"class_weight": {7: 1.0}}, "no class 7"),
    "class_weight negative": ({"class_weight": {0: -1.0}}, "class_weight of 0 = -1.0"),
    "class_weight nan": ({"class_weight": {0: np.nan}}, "class_weight of 0 = nan"),
    "C text": ({"C": "x"}, "C = 'x'"), "C None": ({"C": None}, "C = None"), "gamma None": ({"gamma": None}, "gamma"),
    "tol text": ({"tol": "x"}, "tol = 'x'"), "cache text": ({"cache_gib": "a"}, "cache_gib = 'a'"),
    "max_iter text": ({"max_iter": "a"}, "max_iter = 'a'"),
    "class_weight text": ({"class_weight": {0: "a"}}, "class_weight"),
}  # fmt: skip
TREES = [CascadeSVC, DCSVC, DCFilterSVC]
ALL_BUT_EXACT = [cls for cls in CLASSES if cls is not SMOSVC]
# Of some classes alone.
SPECIAL = {
    "shape": ([SMOSVC], {"decision_function_shape": "ovx"}, "decision_function_shape"),
    "precomputed": (ALL_BUT_EXACT, {"kernel": "precomputed"}, "precomputed"),
    "partitioner": ([CASVC], {"partitioner": "voronoi"}, "voronoi"),
    "partitioner number": ([CASVC], {"partitioner": 3}, "partitioner 3"),
    "partitioner class": ([CASVC], {"partitioner": FCFS}, "partitioner"),
    "route": ([CASVC], {"route": "oracle"}, "route = 'oracle': it must be one of nearest, soft, all"),
    "parts 0": ([CASVC, *TREES], {"n_parts": 0}, "n_parts = 0:"),
    "parts text": ([CASVC, *TREES], {"n_parts": "2"}, "n_parts = '2':"),
    "parts 2.0": ([CASVC, *TREES], {"n_parts": 2.0}, "n_parts = 2.0:"),
    "parts": ([CASVC, *TREES], {"n_parts": 151}, "151 parts of"),
    **{f"{name} parts": ([CASVC], {"n_parts": 151, "partitioner": name}, "151 parts of 150 rows")
       for name in ("fcfs", "bkm", "kmeans", "kbalance")},
    **{f"passes {value!r}": ([CascadeSVC, DCFilterSVC], {"passes": value},
                             f"passes = {value!r}: it must be a whole number") for value in (0, -1, 1.5, "2", None)},
    **{f"working_set {value!r}": ([DisSMOSVC], {"working_set": value},
                                  f"working_set = {value!r}: it must be a whole number")
       for value in (0, 1, -2, 2.0, "8")},
    **{f"solver {value!r}": ([CASVC, *TREES], {"n_parts": 2, "solver": value},
                             f"solver = {value!r}: it must be one of smo, asygcd")
       for value in ("", "SMO", "libsvm", None, 1, ["smo"])},
}  # fmt: skip
REFUSED = [(cls, *BAD[what], what) for cls, what in product(CLASSES, BAD)]
REFUSED += [(cls, more, match, what) for what, (classes, more, match) in SPECIAL.items() for cls in classes]


@pytest.mark.parametrize(
    ("cls", "more", "match"), [one[:3] for one in REFUSED], ids=[f"{cls.__name__} {what}" for cls, *_, what in REFUSED]
)
def test_bad_parameters(cls, more, match):
    model = cls(**more)
    refusal(model.fit, *clouds(), match=match)
    assert str(model.get_params()) == str(cls(**more).get_params())  # as text, for NaN differs from itself
    assert not hasattr(model, "model_")


@pytest.mark.parametrize("partitioner", ["kmeans", "kbalance", "random"])
def test_ratio_where_there_is_none(partitioner):
    match = "ratio" if partitioner == "random" else "does not balance classes"
    refusal(CASVC(2, partitioner=partitioner, ratio=True).fit, *clouds(), match=match)


def entry(value):
    X = clouds()[0]
    X[3, 1] = value
    return X


X0, Y0 = clouds()
ONE_LABEL = "the labels must be of at least 2 classes; there is one class only, "
BAD_ROWS = {
    "nan": (entry(np.nan), Y0), "inf": (entry(np.inf), Y0), "csr nan": (sp.csr_matrix(entry(np.nan)), Y0),
    "csr inf": (sp.csr_matrix(entry(-np.inf)), Y0), "one label": (X0, np.ones(150)),
    "one word": (X0, np.full(150, "spam")), "continuous": (X0, X0[:, 0]),
    "label nan": (X0, np.r_[np.nan, np.ones(149)]),
    "two columns": (X0, np.c_[Y0, Y0]), "short": (X0, Y0[:-1]), "no rows": (np.ones((0, 3)), np.ones(0)),
    "words": (np.full((150, 3), "word"), Y0), "weights short": (X0, Y0, np.ones(149)),
    "weights of two columns": (X0, Y0, np.ones((150, 2))), "weights negative": (X0, Y0, np.r_[-1.0, np.ones(149)]),
    "weights nan": (X0, Y0, np.r_[np.nan, np.ones(149)]), "weights inf": (X0, Y0, np.r_[np.inf, np.ones(149)]),
    "weights 0": (X0, Y0, np.zeros(150)), "weights of words": (X0, Y0, np.array(["one"] * 150)),
    "weights of one class": (X0, Y0, Y0.astype(float)),
}  # fmt: skip


@makers
@pytest.mark.parametrize("what", BAD_ROWS)
def test_bad_rows(name, what):
    for more in ({}, {"standardize": True}):
        if more and name == "smosvc":
            continue
        message = refusal(MAKERS[name](**more).fit, *BAD_ROWS[what])
        if what in ("one label", "one word"):
            assert message == ONE_LABEL + {"one label": "1.0", "one word": "spam"}[what]
        if "nan" in what or "inf" in what:
            assert "NaN" in message or "infinity" in message
        if what == "weights 0":
            assert "non-zero" in message


@makers
def test_bad_rows_to_predict(name):
    model = MAKERS[name]().fit(*clouds(k=3, csr=True))
    bad = (np.ones((3, 3)), np.ones((3, 5)), sp.csr_matrix(np.ones((3, 9))), np.full((3, 4), np.nan), np.ones(4),
           np.ones((0, 4)), entry(np.inf))  # fmt: skip
    for call in (model.predict, model.decision_function):
        for T in bad:
            refusal(call, T, error=ValueError)
        expected = f"X has 5 features, but {type(model).__name__} is expecting 4 features as input"
        refusal(call, np.ones((3, 5)), match=expected, error=ValueError)


@pytest.mark.parametrize("what", ["wide", "sparse"])
def test_precomputed_refused(what):
    X, y = clouds()
    K = X @ X.T
    rows = {"wide": K[:, :-1], "sparse": sp.csr_matrix(K)}[what]
    message = {"wide": "must be square; this one has shape (150, 149)", "sparse": "must be dense"}[what]
    assert refusal(SMOSVC(kernel="precomputed").fit, rows, y) == f"a precomputed kernel {message}"


def test_precomputed_tags():
    tags = SMOSVC(kernel="precomputed").__sklearn_tags__().input_tags
    assert tags.pairwise
    assert not tags.sparse


@makers
def test_class_without_weight(name):
    refusal(MAKERS[name](class_weight={2: 0.0}).fit, *clouds(k=3), match="must be a positive number")


# -- odd, and not refused ----------------------------------------------------------------------


@makers
@pytest.mark.parametrize("gamma", [1e6, 1e-12])
def test_extreme_gamma(name, gamma):
    """Every row alone, and no row different."""
    X, y = clouds()
    more = {"n_parts": 3, "partitioner": "bkm"} if name == "parts" else {}
    model = MAKERS[name](gamma=gamma, **more).fit(X, y)
    assert np.isfinite(model.decision_function(X)).all()
    if gamma > 1 and name != "parts":  # where a row may be nearest to the centre of another part
        np.testing.assert_array_equal(model.predict(X), y)


@makers
@pytest.mark.parametrize("n", [10, 11])
@formats
def test_rows_all_equal(name, n, csr):
    """There is nothing to learn but which class has more rows."""
    X, y = as_csr(np.ones((n, 2)), csr), np.arange(n) % 2
    model = MAKERS[name]().fit(X, y)
    decisions = model.decision_function(X)
    assert np.isfinite(decisions).all()
    assert np.ptp(decisions) == 0
    if n % 2 and name in EXACT:
        assert (model.predict(X) == 0).all()
        near(decisions, SVC().fit(X, y).decision_function(X), 1e-2)


ONE_FEATURE = {
    "SMOSVC": SMOSVC(), "CASVC": CASVC(), "DisSMOSVC": DisSMOSVC(working_set=2),
    **{f"{cls.__name__} {P}": cls(n_parts=P) for cls in TREES for P in (1, 2)},
    **{f"AsyGCDSVC {threads}": AsyGCDSVC(threads=threads) for threads in (1, 2)},
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_FEATURE)
def test_one_feature_and_two_rows(name):
    model = clone(ONE_FEATURE[name]).fit([[0.0], [1.0]], ["a", "b"])
    assert model.predict([[-0.5], [1.5]]).tolist() == ["a", "b"]
