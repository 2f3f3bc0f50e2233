"""Features, targets and weights of any size, far from 0 or not, in both precisions, for every estimator.

Right: the answer of the same estimator at size 1 and in double precision, for the numbers that are left after rounding,
scaled back: predictions that agree to 1e-6 of the largest if only powers of two up to 2^60 were multiplied in double
precision; otherwise an accuracy or R^2 that is at most .02 smaller, or one class whose decisions agree to .01 for 98 %
of the rows; or one line. Never an answer that is no number.
"""

from __future__ import annotations

import functools
import warnings

import numpy as np

from cacore.errors import InputError

from . import estimators

FORMS = list(estimators.MADE)
GOOD = ("refused", "right")
WHAT = ("features", "targets", "weights", "offset")


def case(form, number, seed, folder):
    """One fit and its predictions for the training rows."""
    rng = np.random.default_rng([seed, number, FORMS.index(form)])
    X, y, weights = _numbers()
    sizes, exact = _sizes(form, rng)
    dtype, widths = ("f8", "f4")[int(rng.random() < 0.3)], rng.random() < 0.3
    told = ", ".join(f"{name} {size:.6g}" for name, size in sizes.items())
    shown = f"{told}, {dtype}, width {'given' if widths else 'scale'}"
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = (X * sizes["features"] + sizes["offset"]).astype(dtype)
        target = estimators.target(form, y) * (1.0 if estimators.classifies(form) else sizes["targets"])
        left = (given.astype("g") - np.longdouble(np.dtype(dtype).type(sizes["offset"]))) / np.longdouble(
            sizes["features"]
        )
        left = left.astype(float)
        steps = float(np.spacing(np.dtype(dtype).type(sizes["offset"]))) / sizes["features"] if sizes["offset"] else 0.0
        if not np.isfinite(left).all() or not (left.std(axis=0) > max(1e-3, 10 * steps)).all():
            # Rounding has left nothing of the numbers, or of centres, which are means of them: any answer is as good.
            left = None
        weighted = weights * sizes["weights"] if sizes["weights"] != 1.0 else None
    told = _fitted(form, given, target, weighted, _parameters(form, sizes, widths))
    if isinstance(told, str):
        return told if told == "refused" else f"{told}: {shown}"
    if left is None:
        return "right" if np.isfinite(told).all() else f"answers {told[:3]}: {shown}"
    plain = dict.fromkeys(WHAT, 1.0) | {"offset": 0.0}
    reference = _fitted(form, left, estimators.target(form, y), weights if weighted is not None else None,
                        _parameters(form, plain, widths))  # fmt: skip
    if isinstance(reference, str):
        return f"answers {told[:3]}, where size 1 is {reference}: {shown}"
    unit = {"SMOOneClassSVM": "weights"}.get(form, "targets")
    got = told if estimators.classifies(form) else told / sizes[unit]
    if not np.isfinite(got).all():
        return f"answers {told[:3]}: {shown}"
    if exact and dtype == "f8" and not np.allclose(got, reference, rtol=0, atol=1e-6 * np.abs(reference).max()):
        return f"answers {got[:3]}, not {reference[:3]}: {shown}"
    lost = _lost(form, reference, got, y)
    return "right" if lost <= 0.02 else f"score smaller by {lost:.3g}: {shown}"


@functools.cache
def _numbers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    return X, np.sin(2 * X[:, 0]) + X[:, 1], rng.uniform(0.5, 2.0, 60)


def _sizes(form, rng):
    """One or two sizes that are not 1, and True if they are powers of two that round nothing."""
    sizes = dict.fromkeys(WHAT, 1.0) | {"offset": 0.0}
    two = rng.random() < 0.5
    for name in rng.choice(WHAT, rng.integers(1, 3), replace=False):
        reach = rng.choice([10, 60, 300])
        power = rng.uniform(-reach, reach)
        sizes[name] = 2.0 ** round(power if reach == 60 else power / 0.302) if two else 10.0**power
    exact = two and sizes["offset"] == 0.0 and all(2.0**-60 <= sizes[name] <= 2.0**60 for name in WHAT[:3])
    return sizes, exact


def _parameters(form, sizes, widths):
    """Parameters that belong to rows of these sizes."""
    with np.errstate(all="ignore"):
        if "KRR" in form:
            return {"sigma": 1.0, "standardize": True} if not widths else {
                "sigma": sizes["features"], "standardize": False,
                **({"coarse_sigma": sizes["features"]} if form == "TwoLevelKRR" else {}),
            }  # fmt: skip
        more = {"gamma": float(0.5 / np.float64(sizes["features"]) ** 2) if widths else "scale"}
        if form not in ("SMONuSVC", "SMOOneClassSVM"):
            more["C"] = float(np.float64(1.0) / sizes["weights"])
        if form.endswith("SVR"):
            more["C"] *= sizes["targets"]
            more |= {"tol": 1e-3 * sizes["targets"]} | (
                {} if form == "SMONuSVR" else {"epsilon": 0.1 * sizes["targets"]}
            )
    return more


def _fitted(form, X, y, weights, parameters):
    """Predictions for the training rows, of one class the decisions, "refused", or what else happened."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers near the largest there are
        try:
            made = estimators.MADE[form](**parameters).fit(X, y, weights)
            return np.asarray(estimators.answers(form, made, X), float)
        except InputError as error:
            return "refused" if "\n" not in str(error) else f"a message of several lines {str(error)[:200]!r}"


def _lost(form, reference, got, y):
    """Loss of accuracy or R^2 of the training rows; of one class, the share of rows with another decision.

    The sign of the decision would be no judge: free support vectors lie on the boundary to the tolerance of 1e-3, on
    either side, as rounding has it.
    """
    if form == "SMOOneClassSVM":
        return np.mean(np.abs(got - reference) > 0.01 * np.abs(reference).max())
    return _score(form, reference, y) - _score(form, got, y)


def _score(form, answers, y):
    """Accuracy or R^2 of the training rows."""
    if estimators.classifies(form):
        return np.mean(answers == estimators.target(form, y))
    return 1 - np.mean((answers - y) ** 2) / y.var()
