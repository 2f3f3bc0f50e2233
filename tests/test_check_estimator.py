"""scikit-learn's own checks of every estimator, and the reasons for those that are expected to fail."""

from __future__ import annotations

from functools import cache
from itertools import groupby

import pytest
from sklearn.base import is_classifier
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    check_sample_weight_equivalence_on_sparse_data,
    parametrize_with_checks,
)

from asygcd import AsyGCDSVC
from cakriging import Kriging, estimation, selection
from cakrr import (
    BKRR,
    BKRR2,
    DCKRR,
    DKRR,
    KKRR,
    KKRR2,
    BKRR2Classifier,
    BKRRClassifier,
    DCKRRClassifier,
    DKRRClassifier,
    KKRR2Classifier,
    KKRRClassifier,
    SubsetKRR,
    SubsetKRRClassifier,
    TwoLevelKRR,
    TwoLevelKRRClassifier,
)
from cakrr.options import RidgeMethod
from casvm import (
    CASVC,
    CASVR,
    DCSVC,
    SMOSVC,
    SMOSVR,
    CAQuantileSVR,
    CascadeSVC,
    DCFilterSVC,
    DisSMOSVC,
    DisSMOSVR,
    SMONuSVC,
    SMONuSVR,
    SMOOneClassSVM,
    SMOQuantileSVR,
)

WEIGHTS = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data")
# scikit-learn's own SVC is exempt from these two as well.
REPETITION = dict.fromkeys(WEIGHTS, "gamma='scale' and the tolerance see a row twice where a weight of 2 is one row")
ORDER = "a row twice and a row of weight 2 come in another order, or are judged by other rows"
PARTS = {"check_fit2d_1sample": "one row is not two parts", **dict.fromkeys(WEIGHTS, ORDER)}
FOLDS = dict.fromkeys(WEIGHTS, "the check has a list of splits for `cv`, and folds are a number here")
ASYNCHRONOUS = {"check_fit_idempotent": "threads are never twice in the same order: fits agree within the tolerance"}

# scikit-learn's checks use few rows and one process, which is one part by default: so parts are asked for, or rounds.
# Most ridge estimators are given a pair, since a search in each of some hundred fits is slow.
PAIR = {"sigma": None, "lam": 1e-4, "random_state": 0}
CLASSIFIERS = [
    SMOSVC(), SMOSVC(probability=True), SMONuSVC(),
    CASVC(), CASVC(2, random_state=0), CASVC(2, partitioner="random", random_state=0),
    CascadeSVC(2, passes=20, random_state=0), DCSVC(2, random_state=0), DCFilterSVC(2, random_state=0),
    DisSMOSVC(working_set=64), CASVC(solver="asygcd"), AsyGCDSVC(threads=1),
    AsyGCDSVC(threads=2, multi_class="ovo"), CASVC(metric="full", metric_rounds=1, random_state=0),
]  # fmt: skip
# Of these, only the record of the method differs.
DIVIDED = [cls(n_parts=2, **PAIR) for cls in (BKRR2, KKRR2, DCKRR, BKRR, KKRR)]
DIVIDED_CLASSIFIERS = [
    cls(n_parts=2, **PAIR)
    for cls in (BKRR2Classifier, KKRR2Classifier, DCKRRClassifier, BKRRClassifier, KKRRClassifier)
]
REGRESSORS = [
    BKRR2(), DKRR(), BKRR2(**PAIR), DKRR(**PAIR), *DIVIDED,
    TwoLevelKRR(n_parts=2, centers=20, coarse_lam=1e-4, lam=[1e-4, 1e-2], random_state=0),
    BKRR2(metric="full", metric_rounds=1, **PAIR), SubsetKRR(**PAIR),
    Kriging(), Kriging(range=1.0, sill=1.0, nugget=0.1),
]  # fmt: skip
VALUES = [
    SMOSVR(),
    SMONuSVR(),
    SMOOneClassSVM(),
    DisSMOSVR(working_set=64),
    CASVR(),
    CASVR(2, random_state=0),
    CASVR(2, partitioner="random", random_state=0),
    SMOQuantileSVR(),
    CAQuantileSVR(2, random_state=0),
]
LEAST_SQUARES = [
    BKRR2Classifier(), DKRRClassifier(), DKRRClassifier(**PAIR),
    *DIVIDED_CLASSIFIERS, SubsetKRRClassifier(**PAIR),
    TwoLevelKRRClassifier(n_parts=2, centers=20, coarse_lam=1e-4, lam=[1e-4, 1e-2], random_state=0),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def short_searches():
    """Default searches are fitted some hundred times, and compare 2 of 5 widths and 2 of 5 lambdas in each fold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RidgeMethod, "sigmas", lambda method, width: (width, 2 * width))
        patch.setattr(RidgeMethod, "lams", (1e-5, 1e-3))
        patch.setattr(estimation, "_RANGES", (0.03, 0.3))
        patch.setattr(estimation, "_CLOSE", 0.1)
        patch.setattr(selection, "SCREENED", 100)
        yield


def expected_failures(estimator):
    """Names of checks, and why they fail."""
    parameters = estimator.get_params()
    if isinstance(estimator, (SMOSVR, SMOQuantileSVR, SMONuSVR, SMOOneClassSVM, DisSMOSVR)):
        return REPETITION
    if isinstance(estimator, (CASVR, CAQuantileSVR)):
        return dict.fromkeys(WEIGHTS, ORDER) if parameters["n_parts"] else REPETITION
    if isinstance(estimator, SMONuSVC):
        return REPETITION | {"check_class_weight_classifiers": "nu = 0.5 is infeasible with weights of 1,000 to 1"}
    searches = parameters.get("lam") == "auto"
    if "lam" in parameters and is_classifier(estimator):
        judged = dict.fromkeys(WEIGHTS, ORDER) if parameters.get("n_parts") or searches else {}
        return FOLDS if "cv" in parameters else judged
    if not is_classifier(estimator):
        judged = dict.fromkeys(WEIGHTS, ORDER) if parameters.get("metric", "none") != "none" or searches else {}
        judged |= FOLDS if "cv" in parameters else {}
        return PARTS if parameters.get("n_parts") else judged
    asynchronous = parameters.get("solver") == "asygcd" or (parameters.get("threads") or 1) > 1
    return REPETITION | (ASYNCHRONOUS if asynchronous else {})


SPARSE = ("check_estimator_sparse_matrix", "check_estimator_sparse_array")


def dealt(checks):
    """The checks, without those that another estimator has, too, for the same code.

    Estimators of which only the record differs have the checks in turn. So have all estimators those two in which the
    rows are a sparse matrix and a sparse array, which one conversion takes.
    """
    turns = {id(one): (turn, len(alike)) for alike in (DIVIDED, DIVIDED_CLASSIFIERS) for turn, one in enumerate(alike)}
    for number, (key, group) in enumerate(groupby(checks, lambda case: id(getattr(case, "values", case)[0]))):
        turn, size = turns.get(key, (0, 1))
        for place, case in enumerate(group):
            name = getattr(case, "values", case)[1].func.__name__
            if place % size == turn and (size > 1 or name != SPARSE[number % 2]):
                yield case


CHECKS = parametrize_with_checks(
    [*CLASSIFIERS, *REGRESSORS, *VALUES, *LEAST_SQUARES], expected_failed_checks=expected_failures
)


# scikit-learn writes an estimator down for each of its checks: a fifth of the time to collect all tests. Once will do.
@pytest.mark.parametrize(CHECKS.args[0], list(dealt(CHECKS.args[1])), ids=cache(CHECKS.kwargs["ids"]))
def test_scikit_learn(estimator, check, request):
    expected = request.node.get_closest_marker("xfail")
    try:
        check(estimator)
    except Exception as error:
        if expected:  # pytest would take a quarter of a second to write down lines of code that nobody reads
            raise error.with_traceback(None) from None
        raise


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_of_asygcd(threads):
    """Where the reason above is none: a fixed gamma, and the digits that are compared."""
    estimator = AsyGCDSVC(threads=threads, gamma=0.01, tol=1e-12)
    check_sample_weight_equivalence_on_dense_data("AsyGCDSVC", estimator)
    check_sample_weight_equivalence_on_sparse_data("AsyGCDSVC", estimator)
