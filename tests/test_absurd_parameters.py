"""Every parameter of every estimator with values that make no sense: it fits, or one line refuses the parameter."""

import os
import warnings

import numpy as np
import pytest
from helpers.checks import refusal
from sklearn.exceptions import ConvergenceWarning

import cakrr
import casvm
import partition
from asygcd import AsyGCDSVC
from cacore.errors import InputError

CLASSIFIERS = [
    casvm.SMOSVC, casvm.CASVC, casvm.CascadeSVC, casvm.DCSVC, casvm.DCFilterSVC, casvm.DisSMOSVC, AsyGCDSVC
]  # fmt: skip
REGRESSORS = [cakrr.DKRR, cakrr.DCKRR, cakrr.BKRR2, cakrr.KKRR2, cakrr.BKRR, cakrr.KKRR, cakrr.TwoLevelKRR]
PARTITIONERS = [
    partition.RandomPartition, partition.FCFS, partition.KMeans, partition.BalancedKMeans, partition.KBalance
]  # fmt: skip
ESTIMATORS = {one.__name__: one for one in [*CLASSIFIERS, *REGRESSORS, *PARTITIONERS]}
VALUES = [
    np.inf, -np.inf, np.nan, 0, -1, 0.5, -0.5, 1e300, 1e-300, 2**31, 2**32, 2**63, 2**64, 10**400, "text", "", "1",
    "1e400", b"b", None, True, 1j, object(), len, [], [1], [np.nan], ["a"], [10**400], [[1]], {}, {"a": 1}, (), (1, 2),
    range(3), np.array([1.0, 2.0]), np.array("x"), np.float32(2), np.int8(3), np.datetime64("2020"),
]  # fmt: skip
# Where another word says what to change: sizes in bytes, the number of parts, a kernel's width in the list of sigmas.
ALSO = {
    "cache_gib": ("cache",), "n_parts": ("parts",), "coarse_lam": ("coarse-lambda",), "lam": ("lambda",),
    "coarse_sigma": ("sigma",),
}  # fmt: skip


EVERY = "CAKERNELS_ALL_VARIANTS" in os.environ


def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    return X, (X[:, 0] + 0.3 * rng.normal(size=60) > 0).astype(int)


def cases():
    """Each parameter of each estimator with some of the values, which go round the estimators that have it.

    Every value meets every parameter on half of them, and on the only one that has it.
    """
    have = {}
    for name, made in ESTIMATORS.items():
        for parameter in made().get_params():
            have.setdefault(parameter, []).append(name)
    for parameter, names in have.items():
        for turn, name in enumerate(names):
            yield name, parameter, VALUES if len(names) == 1 or EVERY else VALUES[turn % 2 :: 2]


@pytest.mark.parametrize(
    ("name", "parameter", "values"), [pytest.param(*case, id="-".join(case[:2])) for case in cases()]
)
def test_absurd_values_fit_or_are_refused(name, parameter, values):
    X, y = rows()
    for value in values:
        made = ESTIMATORS[name]()
        few = {"n_parts": 2, "sigma": 1.0, "lam": 1e-3} | ({"solver": "cg"} if name == "DKRR" else {"max_time": 0.2})
        made.set_params(**{known: few[known] for known in few if known in made.get_params()})
        made.set_params(**{parameter: value})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ConvergenceWarning)
            try:
                made.fit(X, y)
            except InputError as error:
                message = str(error)
                words = (parameter, parameter.replace("_", "-"), *ALSO.get(parameter, ()))
                assert any(word in message for word in words), (value, message)
                assert "ambiguous" not in message, (value, message)


@pytest.mark.parametrize("made", CLASSIFIERS)
def test_a_tolerance_that_is_an_int(made):
    """Compiled code has one version, and no number too large for it."""
    X, y = rows()
    whole, real = (made(tol=tol).fit(X, y).decision_function(X) for tol in (1, 1.0))
    np.testing.assert_allclose(whole, real, atol=5.0)
    made(tol=10**30).fit(X, y)


@pytest.mark.parametrize("weights", [["a"] * 60, "text", [np.nan] * 60, [-1.0] * 60, [1.0] * 59, [[1.0]] * 60])
@pytest.mark.parametrize("made", [*CLASSIFIERS, *REGRESSORS])
def test_weights(made, weights):
    refusal(lambda: made().fit(*rows(), sample_weight=weights), match="sample_weight")


@pytest.mark.parametrize("y", [np.array(["a"] * 60), np.array(["a"] * 60, object), [None] * 60, [1j] * 60])
@pytest.mark.parametrize("made", REGRESSORS)
def test_targets_that_are_no_numbers(made, y):
    refusal(lambda: made().fit(rows()[0], y))
