"""Ridge regression in the fuzzer `numbers`: predictions against the solution of the whole system, or of each part."""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError

from cakrr import BKRR2, DKRR, SubsetKRR

from . import reference
from .problems import DEFINITE, dense, drawn, standardizable


def ridge(form, rng):
    """A problem of ridge regression, and the check of an estimator's predictions."""
    problem, standardize = _ridge_problem(rng)

    def check(problem):
        y, unit, exact, mean = problem.targets()
        lam, single = 10.0 ** rng.uniform(-7, 0), bool(rng.random() < 0.2)
        problem.shown |= {"lambda": f"{lam:.3g}", "standardize": standardize, "dtype": "f4" if single else "f8"}
        common = {
            "sigma": problem.sigma, "lam": lam, "kernel": problem.kernel, "degree": problem.degree, "coef0": 1.0,
            "standardize": standardize, "dtype": "float32" if single else "float64", "random_state": 0,
        }  # fmt: skip
        made = {
            "cholesky": lambda: DKRR(**common),
            "cg": lambda: DKRR(solver="cg", **common),
            "bkrr2": lambda: BKRR2(3, **common),
            "subset": lambda: SubsetKRR(centers=problem.X[: len(y) // 4], **common),
        }[form]().fit(problem.X, y)
        told = (made.predict(problem.T).astype("g") - mean).astype(float) / unit
        if not np.isfinite(told).all():
            return f"predictions {told[:3]}"
        rounding = 16 * reference.EPS * np.abs(y).max() / unit
        if form == "bkrr2":
            return _parts(made, problem, exact, unit, lam, mean, told, single, rounding)
        K, new = problem.matrix(), problem.matrix(problem.tested, problem.exact)
        if form == "subset":
            M = len(y) // 4
            if np.linalg.cond(K[:M, :M]) > 1e13:
                return ""  # points that nearly coincide
            try:
                beta = reference.on_points(K[:, :M], K[:M, :M], exact / unit, lam)
            except LinAlgError:
                return ""  # points that coincide, or nearly
            expected, condition = new[:, :M] @ beta, float(np.trace(K)) / (lam * len(y)) + 1
        else:
            beta, condition = reference.ridge(K, exact / unit, lam)
            expected = new @ beta
        allowed = 1e-6 + 100 * reference.EPS * condition + rounding + (1e-3 if form == "cg" else 0)
        if single:
            allowed += 2e-3 + 1e-6 * condition
        if allowed > 0.05:  # not even double precision has digits left
            return ""
        lost = np.max(np.abs(told - expected)) / max(1.0, float(np.abs(expected).max()))
        return f"predictions off by {lost:.3g} deviations, {allowed:.2g} is allowed" if lost > allowed else ""

    return problem, check


def _ridge_problem(rng):
    standardize = bool(rng.random() < 0.4)
    state = rng.bit_generator.state
    problem = drawn(rng, DEFINITE, biased=False, standardized=standardize)
    if standardize:
        dtype = problem.X.dtype
        if not standardizable(problem.X, dtype) or problem.kernel in reference.PRODUCTS:
            rng.bit_generator.state = state
            return drawn(rng, DEFINITE, biased=False), False
    return problem, standardize


def _parts(made, problem, y, unit, lam, mean, told, single, rounding):
    """What is wrong with BKRR2: targets that its parts' systems stand for, or predictions of the nearest part."""
    residual, answers, noise, shift = [], [], 0.0, float(np.longdouble(made.model_.offset) - mean) / unit
    rows = [dense(part.X) for part in made.model_.parts.values()]
    about = np.concatenate(rows)
    plain = problem.shown["standardize"] or problem.kernel in reference.PRODUCTS
    about = np.zeros((1, about.shape[1])) if plain else about
    tested, scaling = problem.tested, made.model_.standardizer
    if scaling is not None:  # the model's own mean, whose rounding moves rows far from 0
        tested = ((dense(problem.T).astype("g") - scaling.mean) / scaling.scale).astype(float)
    for part, own in zip(made.model_.parts.values(), rows, strict=True):
        A, alpha = reference.centred(own, about), part.alpha.astype(float) / unit
        K = problem.matrix(A, A)
        residual.append(K @ alpha + lam * len(A) * alpha + shift)
        noise = max(noise, float((np.abs(K) @ np.abs(alpha)).max()))
        answers.append(problem.matrix(tested, A) @ alpha + shift)
    allowed = 1e-6 + 64 * reference.EPS * noise + rounding + single * (1e-3 + 5e-6 * noise)
    if allowed > 0.05:
        return ""
    lost = np.max(np.abs(np.sort(np.concatenate(residual)) - np.sort(y / unit)))
    if lost > allowed:
        return f"the parts' systems are off by {lost:.3g} deviations, {allowed:.2g} is allowed"
    gaps = np.min(np.abs(told - np.array(answers)), axis=0)
    if gaps.max() > allowed:
        return f"predictions off by {gaps.max():.3g} deviations of any part's, {allowed:.2g} is allowed"
    return ""
