"""Right numbers: random problems against double precision, for solvers, families, searches and probabilities.

A solution of an SVM is right if its violation, recomputed in double precision from exactly centred rows, is at most
twice the tolerance, its bias optimal to as much, and its decisions for new rows those of its coefficients. Ridge
predictions are compared with the solution of the whole system, or of each part; the scores of a search and
probabilities with those of scikit-learn's SVC and SVR for the same folds and kernel matrices. A refusal in one line or
a warning is right, too. Each form is a family; ``python -m tests.fuzz numbers --cases 190`` tries 3,040 problems.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.special import expit
from sklearn.svm import SVC, SVR

from asygcd import AsyGCDSVC
from cacore.errors import InputError
from casvm import CASVC, CASVR, SMOSVC, SMOSVR, DisSMOSVC, DisSMOSVR, SMONuSVC, SMOOneClassSVM
from partition import Partitioner

from . import reference
from .problems import DEFINITE, dense, drawn
from .ridges import ridge

GOOD = ("right", "refused", "warned")
TOL = 1e-3
_STEPS = 200_000  # pairs of rows: a ConvergenceWarning after a second or two


class Halves(Partitioner, name="fuzz_halves"):
    """Rows below and above the middle row of the first feature."""

    def _partition(self, rows, y):
        first = np.asarray(rows.X[:, [0]].todense() if hasattr(rows.X, "todense") else rows.X[:, [0]]).ravel()
        labels = np.zeros(len(first), np.int32)
        labels[np.argsort(first, kind="stable")[len(first) // 2 :]] = 1
        return labels, rows.means(labels, 2)[0]


def case(form, number, seed, folder):
    """One problem, and how its answer differs from the reference."""
    rng = np.random.default_rng([seed, number, FORMS.index(form)])
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        problem, check = FAMILIES[form](form, rng)
        try:
            wrong = check(problem)
        except InputError as error:
            return "refused" if "\n" not in str(error) else f"a message of several lines {str(error)[:200]!r}"
    lines = [warning for warning in caught if issubclass(warning.category, UserWarning)]
    unexpected = {warning.category.__name__ for warning in caught} - {"ConvergenceWarning", "UserWarning"}
    if unexpected:
        return f"{sorted(unexpected)}, {caught[0].message}: {problem}"
    if wrong:
        return "warned" if lines else f"{wrong}: {problem}"
    return "right"


# SVMs: a check returns "" or what is wrong.


def _classes(form, rng):
    large = 0.0 if form == "asygcd" and rng.random() < 0.5 else 0.06
    problem = drawn(rng, DEFINITE if form == "asygcd" else reference.KERNELS, large, biased=form != "asygcd")
    C = _bound(problem)

    def check(problem):
        y = problem.labels()
        parameters = problem.parameters | {"tol": TOL, "max_iter": _STEPS}
        if form == "nu_svc":
            nu = float(rng.uniform(0.05, 0.5))
            problem.shown["nu"] = f"{nu:.3g}"
            made = SMONuSVC(nu=nu, **parameters)
        else:
            more = {"parts": {"partitioner": Halves(2), "route": "nearest", "random_state": 0}}.get(form, {})
            if form == "parts" and rng.random() < 0.3:
                more["solver"] = "asygcd"
            more |= {"threads": 1, "random_state": 0} if form == "asygcd" else {}
            problem.shown |= more
            estimator = {"svc": SMOSVC, "parts": CASVC, "dissmo": DisSMOSVC, "asygcd": AsyGCDSVC}[form]
            made = estimator(C=C, **parameters, **more)
        made.fit(problem.X, y)
        own = made.model_.C if form == "nu_svc" else C
        tol = min(0.5, TOL * own) if form == "nu_svc" else TOL  # scaled to a margin of 1
        bias = form != "asygcd" and problem.shown.get("solver") != "asygcd"
        if not bias:
            problem.uncentred()
        pieces = []
        for rows, coef, b, members in _solutions(made, problem, y):
            beta = np.zeros(len(y))
            beta[rows] = coef
            b = problem.bias(b, beta) if bias else b
            if len(np.unique(y[members])) < 2:
                pieces.append((members, beta, b))
                continue
            bounds = own * y[members]
            wrong = _judged(
                problem.matrix(problem.exact[members], problem.exact[members]), y[members].astype(float), beta[members],
                np.minimum(0, bounds), np.maximum(0, bounds), b, tol, bias=bias,
            )  # fmt: skip
            if wrong:
                return wrong
            pieces.append((members, beta, b))
        return _decisions(made.decision_function, problem, pieces, made, 1.0, y)

    return problem, check


def _solutions(made, problem, y):
    """Rows, coefficients and bias of each part, positive for the second class, and the part's rows."""
    model = made.model_
    if isinstance(made, AsyGCDSVC):
        yield model.rows, model.coef[:, 0], 0.0, np.arange(len(y))
        return
    halves = Halves(2).fit(problem.X).labels_ if isinstance(made, CASVC | CASVR) else np.zeros(len(y), int)
    for number, part in model.parts.items():
        if hasattr(part, "beta"):
            yield part.rows, part.beta, float(part.b[0]), np.flatnonzero(halves == number)
        elif len(part.classes) < 2:
            yield part.rows, np.zeros(len(part.rows)), 0.0, np.flatnonzero(halves == number)
        else:
            yield part.rows, -part.coef[0], -float(part.b[0]), np.flatnonzero(halves == number)


def _values(form, rng):
    problem = drawn(rng, reference.KERNELS)

    def check(problem):
        y, unit, exact, mean = problem.targets()
        C, epsilon, tol = _bound(problem) * unit, 0.1 * unit, TOL * unit
        more = {"parts_svr": {"partitioner": Halves(2), "route": "nearest", "random_state": 0}}.get(form, {})
        estimator = {"svr": SMOSVR, "parts_svr": CASVR, "dissmo_svr": DisSMOSVR}[form]
        made = estimator(C=C, epsilon=epsilon, tol=tol, max_iter=_STEPS, **problem.parameters, **more)
        made.fit(problem.X, y)
        pieces = []
        for rows, coef, b, members in _solutions(made, problem, y):
            beta = np.zeros(len(y))
            beta[rows] = coef
            own = problem.bias(np.longdouble(b) - mean, beta)
            K = problem.matrix(problem.exact[members], problem.exact[members])
            spread = np.full(len(members), C)
            wrong = _judged(K, exact[members], beta[members], -spread, spread, own, tol, epsilon, size=np.abs(y).max())
            if wrong:
                return wrong
            pieces.append((members, beta, own))

        def decided(T):
            return (made.predict(T).astype("g") - mean).astype(float)

        return _decisions(decided, problem, pieces, made, unit, y, np.abs(y).max())

    return problem, check


def _one_class(form, rng):
    problem = drawn(rng, reference.KERNELS)

    def check(problem):
        nu, n = float(rng.uniform(0.05, 0.5)), problem.X.shape[0]
        problem.shown["nu"] = f"{nu:.3g}"
        made = SMOOneClassSVM(nu=nu, tol=TOL, max_iter=_STEPS, **problem.parameters).fit(problem.X)
        beta, b = np.zeros(n), float(made.intercept_[0])
        beta[made.support_] = made.dual_coef_[0]
        if abs(beta.sum() - nu * n) > 1e-6 * n:
            return f"coefficients sum to {beta.sum():.6g}, not {nu * n:.6g}"
        problem.uncentred()
        wrong = _judged(problem.matrix(), np.zeros(n), beta, np.zeros(n), np.ones(n), b, TOL, sum_free=True)
        return wrong or _decisions(made.decision_function, problem, [(np.arange(n), beta, b)], made, 1.0, None)

    return problem, check


def _judged(K, y, beta, lower, upper, b, tol, epsilon=0.0, bias=True, size=0.0, sum_free=False):
    """What is wrong with a solution of the dual; `size` is that of targets before they were centred."""
    found = reference.Optimality(K, y, beta, lower, upper, epsilon, bias)
    allowed = 2 * tol + found.noise + 16 * reference.EPS * size
    if found.outside > 1e-9:
        return f"a coefficient is outside its bounds by {found.outside:.3g} of them"
    if bias and not sum_free and abs(beta.sum()) > 1e-9 * np.abs(beta).sum():
        return f"coefficients sum to {beta.sum():.3g}"
    if not found.violation <= allowed:
        return f"violation {found.violation:.3g} where {tol:.3g} is asked"
    # The bias of one class is moved by the rounding of stored kernel values, so that nu bounds the share of outliers.
    moved = 8 * float(np.finfo("f4").eps) * abs(b) if sum_free else 0.0
    if bias and not found.off(b) <= allowed + moved:
        return f"bias off by {found.off(b):.3g} where {tol:.3g} is asked"
    return ""


def _decisions(decided, problem, pieces, made, unit, y, size=0.0):
    """What is wrong with decisions for new rows, by the coefficients of the part whose centre is nearest."""
    told, answers, noise = decided(problem.T), [], 0.0
    for members, beta, b in pieces:
        if y is not None and unit == 1.0 and not beta.any() and len(np.unique(y[members])) < 2:
            answers.append(np.full(len(told), np.nan))  # one class: any decision of this sign
            continue
        K = problem.matrix(problem.tested, problem.exact)
        answers.append(K @ beta + b)
        noise = max(noise, 16 * reference.EPS * float((np.abs(K) @ np.abs(beta)).max() + abs(b)))
    if not np.isfinite(told).all():
        return f"decisions {told[:3]}"
    wrong = np.abs(told - np.array(answers)) > 5 * TOL * unit + noise + 16 * reference.EPS * size
    far = (
        np.all(wrong & ~np.isnan(answers), axis=0) if len(pieces) == 1 else _misrouted(problem, pieces, wrong, answers)
    )
    if far.any():
        row = int(np.flatnonzero(far)[0])
        return f"decision {told[row]:.6g} for row {row}, not {[f'{answer[row]:.6g}' for answer in answers]}"
    return ""


def _misrouted(problem, pieces, wrong, answers):
    """Rows whose decision is none of the nearest part's; near ties go to either."""
    centers = np.array([problem.exact[members].mean(axis=0) for members, _, _ in pieces])
    gaps = np.linalg.norm(problem.tested[:, None] - centers, axis=2).T
    size = np.linalg.norm(np.abs(dense(problem.T).astype(float)), axis=1)
    near = gaps <= gaps.min(axis=0) * (1 + 1e-6) + 1e-6 * size
    return ~np.any(near & (~wrong | np.isnan(answers)), axis=0)


def _bound(problem):
    """C of two-class problems: smaller for many rows, and in units of 1 / K for the linear kernel."""
    most = 2 if problem.X.shape[0] > 1000 else 4
    C = 10.0 ** problem.rng.uniform(-1, most)
    if problem.kernel == "linear":
        C /= float(np.mean(np.sum(problem.exact**2, axis=1))) or 1.0
    problem.shown["C"] = f"{C:.4g}"
    return float(C)


# Searches and probabilities.


def _search(form, rng):
    problem = drawn(rng, DEFINITE, large=0.0)
    folds = 3

    def check(problem):
        n = problem.X.shape[0]
        gammas = sorted(problem.gamma * np.array([1.0, 10.0 ** rng.uniform(0.5, 3)]))
        Cs = sorted(_bound(problem) * np.array([1.0, 10.0 ** rng.uniform(-2, -0.5)]))
        grids = {"C": Cs, "gamma": gammas} if problem.kernel != "linear" else {"C": Cs}
        parameters = problem.parameters | {"max_iter": _STEPS, "cv": folds}
        if form == "search_svc":
            y, unit = problem.labels(), 1.0
            made = SMOSVC(**parameters | grids).fit(problem.X, y)
            fold = np.empty(n, int)
            fold[np.argsort(y, kind="stable")] = np.arange(n) % folds
        else:
            y, unit, exact, _ = problem.targets()
            grids["C"] = [C * unit for C in Cs]
            made = SMOSVR(epsilon=0.1 * unit, tol=TOL * unit, **parameters | grids).fit(problem.X, y)
            y, fold = exact / unit, np.arange(n) % folds
        results, wrong = made.cv_results_, []
        for place, setting in enumerate(results["params"]):
            if results["ended"][place]:
                continue
            problem.gamma = setting.get("gamma", problem.gamma)
            K, C = problem.matrix(), setting["C"] / unit
            scores = [_score(form, K, y, C, fold == f) for f in range(folds)]
            if None in scores:
                continue
            # Below 0 a setting is useless, and its score depends on the search's loose tolerance.
            told, expected = (max(0.0, float(score)) for score in (results["mean_test_score"][place], np.mean(scores)))
            if abs(told - expected) > 0.05 + 2.0 / n:
                wrong.append(f"score {told:.4g}, not {expected:.4g}, of {setting}")
        return wrong[0] if wrong else ""

    return problem, check


def _score(form, K, y, C, left_out):
    """Accuracy or R^2 on left-out rows by LIBSVM; None if it does not converge."""
    kept = ~left_out
    maker = SVC(C=C, kernel="precomputed", max_iter=_STEPS) if form == "search_svc" else SVR(
        C=C, epsilon=0.1, kernel="precomputed", max_iter=_STEPS
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        maker.fit(K[np.ix_(kept, kept)], y[kept])
        answers = maker.predict(K[np.ix_(left_out, kept)])
    if caught:
        return None
    return (
        np.mean(answers == y[left_out]) if form == "search_svc" else 1 - np.mean((answers - y[left_out]) ** 2) / y.var()
    )


def _probability(form, rng):
    problem = drawn(rng, DEFINITE, large=0.0)
    C, folds = _bound(problem), 5

    def check(problem):
        y, parts = problem.labels(), bool(rng.random() < 0.5)
        problem.shown["parts"] = parts
        common = problem.parameters | {"C": C, "max_iter": _STEPS, "probability": True}
        seeded = {"partitioner": Halves(2), "route": "nearest", "random_state": 0}
        n = problem.X.shape[0]
        made = CASVC(**common, **seeded) if parts else SMOSVC(**common)
        made.fit(problem.X, y)
        if min(np.bincount(y > 0)) < 3 * folds:
            return ""
        halves = Halves(2).fit(problem.X).labels_ if parts else np.zeros(n, int)
        decisions = np.full(n, np.nan)
        for half in np.unique(halves):
            members = np.flatnonzero(halves == half)
            if min(np.bincount(y[members] > 0, minlength=2)) < folds:
                return ""
            fold = np.empty(len(members), int)
            fold[np.argsort(y[members], kind="stable")] = np.arange(len(members)) % folds
            for f in range(folds):
                kept, out = members[fold != f], members[fold == f]
                svc = SVC(C=C, kernel="precomputed", max_iter=_STEPS, tol=1e-3)
                svc.fit(problem.matrix(problem.exact[kept], problem.exact[kept]), y[kept])
                if svc.fit_status_:
                    return ""
                decisions[out] = svc.decision_function(problem.matrix(problem.exact[out], problem.exact[kept]))
        if np.std(decisions) <= 1e-6 * np.abs(decisions).max():
            return ""  # alike but for rounding: any slope is as good
        told, f = made.predict_proba(problem.T)[:, 1], made.decision_function(problem.T)
        shared = reference.platt(decisions, y > 0)
        sigmoids = [
            reference.platt(decisions[halves == half], (y > 0)[halves == half], shared) if parts else shared
            for half in np.unique(halves)
        ]
        centers = np.array([problem.exact[halves == half].mean(axis=0) for half in np.unique(halves)])
        which = np.argmin(np.linalg.norm(problem.tested[:, None] - centers, axis=2), axis=1)
        A, B = np.array(sigmoids)[which].T
        expected = expit(-(A * f + B))
        lost = float(np.mean(np.abs(told - expected)))
        allowed = 0.15 if parts else 0.05  # the rows of a part are in another order, and so are its folds
        return f"probabilities off by {lost:.3g} on average" if not lost <= allowed else ""

    return problem, check


FAMILIES = {
    **dict.fromkeys(("svc", "nu_svc", "parts", "dissmo", "asygcd"), _classes),
    **dict.fromkeys(("svr", "parts_svr", "dissmo_svr"), _values),
    "one_class": _one_class,
    **dict.fromkeys(("cholesky", "cg", "bkrr2", "subset"), ridge),
    **dict.fromkeys(("search_svc", "search_svr"), _search),
    "probability": _probability,
}
FORMS = list(FAMILIES)
