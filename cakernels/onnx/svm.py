"""SVM models as ONNX operators: classifiers and real outputs, in one part or many, and Asy-GCD.

Decisions of pairs of classes become votes, shares, labels and calibrated probabilities. An exact SVM with one of
LIBSVM's kernels is a node SVMClassifier or SVMRegressor of ai.onnx.ml, which computes in single precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from asygcd.asygcd_model import AsyGCDModel
from cacore.data.rows import AnyRows, Rows, dense, in_memory
from cacore.kernels import Kernel
from cacore.probability.calibrator import LEAST, Calibrator
from cacore.probability.left_out import pairs_of
from cacore.svm.decision import layout_of
from cakernels.onnx.graph import ML, Graph, Value
from cakernels.onnx.operators import answered, expansion, interpolated, require_whole, transformed
from casvm.model.part_svm import PartSVM
from casvm.model.svm_model import SVMModel
from casvm.model.svr_model import PartSVR, SVRModel


@dataclass
class Classified:
    """Answers of a classifier.

    Attributes
    ----------
    codes : Value, shape (n,)
        Index of each row's class, int64.
    decisions : Value, shape (n, columns)
        One column for two classes.
    columns : int
    probabilities : Value, shape (n, k), or None
    """

    codes: Value
    decisions: Value
    columns: int
    probabilities: Value | None = None


def counted(g: Graph, decisions: Value, k: int) -> Value:
    """:func:`cacore.svm.decision.counted`: the pairs' votes, plus a term below 1/3 for their margin."""
    first, second = _sides(k)
    wins = g.cast(decisions > 0.0, np.float64)
    votes = wins @ first + (1.0 - wins) @ second
    sure = decisions @ (first - second)
    return votes + sure / (3.0 * (g.op("Abs", sure) + 1.0))


def shares(g: Graph, decisions: Value, k: int) -> Value:
    """:func:`cacore.svm.decision.shares`, shape (n, k)."""
    pairs = list(combinations(range(k), 2))
    both = g.op("Concat", decisions, -decisions, axis=1)
    columns_of_class = [
        [pair + len(pairs) * (i != c) for pair, (i, j) in enumerate(pairs) if c in (i, j)] for c in range(k)
    ]
    least = g.reduced("Min", g.columns(both, columns_of_class), keep=False)
    share = g.op("Max", 1.0 + g.op("Min", least, 1.0), 0.0)
    share = g.op("Where", g.reduced("Max", share) > 0.0, share, 1.0)
    return share / g.reduced("Sum", share)


def voted(g: Graph, scores: Value, columns: int) -> Value:
    """:func:`cacore.svm.decision.votes`: the class with the most votes, the first among equals."""
    return at_least_zero(g, scores) if columns == 1 else largest(g, g.op("Round", scores))


def largest(g: Graph, scores: Value) -> Value:
    """Index of each row's largest score, the first among equals."""
    return g.op("ArgMax", scores, axis=1, keepdims=0)


def at_least_zero(g: Graph, scores: Value) -> Value:
    """1 for rows whose only score is at least 0, else 0."""
    return g.cast(g.columns(scores, 0) >= 0.0, np.int64)


def calibrated(g: Graph, decisions: Value, calibrator: Calibrator, problems: NDArray[np.int64] | None = None) -> Value:
    """:meth:`cacore.probability.calibrator.Calibrator.first`: probabilities of the problems' first classes."""
    if calibrator.A is not None and calibrator.B is not None:
        A, B = (parameter if problems is None else parameter[problems] for parameter in (calibrator.A, calibrator.B))
        return g.op("Sigmoid", -(decisions * A + B))
    assert calibrator.steps is not None
    which = range(len(calibrator.steps.starts)) if problems is None else problems
    return interpolated(g, decisions, [calibrator.steps.curve(int(problem)) for problem in which])


def normalized(g: Graph, shares: Value) -> Value:
    """Probabilities of classes from those of each class against the rest, as :mod:`cakrr.ridge_model` divides them."""
    shares = g.op("Max", shares, LEAST)
    return shares / g.reduced("Sum", shares)


def of_classes(g: Graph, outputs: Value, calibrator: Calibrator) -> Value:
    """:meth:`cacore.probability.calibrator.Calibrator.of_classes`: probabilities of the classes, shape (n, k)."""
    if calibrator.problems > 1:
        return normalized(g, calibrated(g, outputs, calibrator))
    first = calibrated(g, -outputs, calibrator)
    return g.op("Concat", first, 1.0 - first, axis=1)


def coupled(g: Graph, pairs: Value, k: int) -> Value:
    """Probabilities of k classes, shape (n, k), as :func:`cacore.probability.calibrator.coupled` gives them.

    Q p = -b e and e'p = 1 give (Q + e e') p = (1 - b) e, with a positive definite matrix. It is eliminated without
    pivots, class by class, and p divided by its sum: 2 k^3 flops and k^2 numbers of memory per row.
    """
    r = g.op("Min", g.op("Max", pairs, LEAST), 1.0 - LEAST)
    if k == 2:
        return g.op("Concat", r, 1.0 - r, axis=1)
    first, second = _sides(k)
    square = np.zeros((len(first), k, k))
    for pair, (i, j) in enumerate(combinations(range(k), 2)):
        square[pair, i, j] = square[pair, j, i] = 1.0
    s = 1.0 - r
    diagonal = (s * s) @ first + (r * r) @ second
    off = g.reshaped((r * s) @ square.reshape(len(first), k * k), -1, k, k)
    system = g.op("Unsqueeze", diagonal, g.indices(2)) * np.eye(k) - off + np.ones((k, k))
    whole = g.op("Concat", system, g.op("Unsqueeze", g.filled(r, np.ones(k)), g.indices(2)), axis=2)

    def eliminate(c: Value, table: Value) -> list[Value]:
        row = g.op("Unsqueeze", g.op("Gather", table, c, axis=1), g.indices(1))
        column = g.op("Unsqueeze", g.op("Gather", table, c, axis=2), g.indices(2))
        pivot = g.op("Gather", row, c, axis=2)
        row = row / g.op("Unsqueeze", pivot, g.indices(2))
        unit = g.op("Gather", np.eye(k), c, axis=0)
        unit = g.op("Unsqueeze", unit, g.indices(1))
        return [table - (column - unit) * row]

    solved = g.loop(k, [whole], eliminate)[0]
    p = g.op("Max", g.op("Gather", solved, np.int64(k), axis=2), float(np.finfo(np.float64).tiny))
    return p / g.reduced("Sum", p)


def placed(g: Graph, values: Value, classes: NDArray[np.int64], k: int, missing: float) -> Value:
    """Columns of some classes among those of all k classes; `missing` in the others."""
    if len(classes) == k:
        return values
    where = np.zeros((len(classes), k))
    where[np.arange(len(classes)), classes] = 1.0
    filled: NDArray[np.float64] = missing * (1.0 - where.sum(axis=0))
    return values @ where + filled


def labels(g: Graph, codes: Value, classes: NDArray[np.generic]) -> Value:
    """The labels of classes with these indices, in the labels' own type."""
    return g.op("Gather", classes.astype(object) if classes.dtype.kind == "U" else classes, codes)


def _sides(k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Indicators of the first and of the second class of each pair, shape (k (k - 1) / 2, k)."""
    first, second = np.zeros((2, k * (k - 1) // 2, k))
    for pair, (i, j) in enumerate(combinations(range(k), 2)):
        first[pair, i] = second[pair, j] = 1.0
    return first, second


def classifier(g: Graph, model: SVMModel, pairs: bool = False, steepness: float = 0.0) -> Classified:
    """Answers of an SVM.

    `pairs` asks for the decisions of all pairs, which only a model of one part has. `steepness` is that of
    probabilities which the caller computes from the decisions, see :func:`suits_node`.
    """
    require_whole(model)
    Z = transformed(g, g.X, model.standardizer, model.dtype)
    alone = model.route in ("nearest", "sum")
    if len(model.sizes) == 1 and alone and len(model.parts[0].classes) == len(model.classes):
        return _of_one_part(g, Z, model, pairs, steepness)
    k = len(model.classes)
    columns = 1 if k == 2 else k

    def answer(number: int, rows: Value) -> Value:
        part = model.parts[number]
        decisions = None if len(part.classes) == 1 else _pairs(g, rows, part, model.kernel_of(number), model.dtype)
        return _scores(g, rows, decisions, part, k) if alone else _shares(g, rows, decisions, part, k)

    scores = answered(g, Z, model, columns, answer)
    codes = voted(g, scores, columns) if alone or columns == 1 else largest(g, scores)
    return Classified(codes, scores, columns, _probabilities(g, Z, model))


def _of_one_part(g: Graph, Z: Value, model: SVMModel, pairs: bool, steepness: float) -> Classified:
    part, kernel, k = model.parts[0], model.kernel_of(0), len(model.classes)
    if model.calibrator is not None:
        steepness = max(steepness, _calibrator_of_part(model.calibrator, part).steepness)
    if kernel is not None and suits_node(X := in_memory(part.X), part.weights(), part.b, kernel, steepness):
        codes, decisions = classifier_node(g, Z, X, part.coef, part.b, part.n_support, kernel)
        scores = -decisions if k == 2 else counted(g, decisions, k)
    else:
        decisions = _pairs(g, Z, part, kernel, model.dtype)
        scores = -decisions if k == 2 else counted(g, decisions, k)
        codes = voted(g, scores, 1 if k == 2 else k)
    result = Classified(codes, scores, 1 if k == 2 else k)
    if model.calibrator is not None:
        result.probabilities = coupled(g, calibrated(g, decisions, _calibrator_of_part(model.calibrator, part)), k)
    if pairs and k > 2:
        result.decisions, result.columns = decisions, k * (k - 1) // 2
    return result


def _type(X: AnyRows, kernel: Kernel | None, weights: NDArray[np.float64], dtype: str) -> str:
    """Type of the kernel values with which the model decides about rows of type `dtype`."""
    if kernel is None or not kernel.compiled:
        return dtype
    return layout_of(in_memory(X), kernel, dtype, weights).dtype.name


def _pairs(g: Graph, Z: Value, part: PartSVM, kernel: Kernel | None, dtype: str) -> Value:
    """Decisions of all pairs of a part's classes, positive for the first class."""
    weights = part.weights()
    return expansion(g, Z, part.X, weights, kernel, part.rows, _type(part.X, kernel, weights, dtype)) + part.b


def _scores(g: Graph, Z: Value, decisions: Value | None, part: PartSVM, k: int) -> Value:
    """:meth:`PartSVM.scores`; without decisions, for a part of one class."""
    code = int(part.classes[0])
    if k == 2:
        return g.filled(Z, [2.0 * code - 1.0]) if decisions is None else -decisions
    if decisions is None:
        return g.filled(Z, -1.0 * (np.arange(k) != code))
    return placed(g, counted(g, decisions, len(part.classes)), part.classes, k, -1.0)


def _shares(g: Graph, Z: Value, decisions: Value | None, part: PartSVM, k: int) -> Value:
    """:meth:`PartSVM.shares`; without decisions, for a part of one class."""
    if k == 2:
        return _scores(g, Z, decisions, part, k)
    if decisions is None:
        return g.filled(Z, np.arange(k) == part.classes[0])
    return placed(g, shares(g, decisions, len(part.classes)), part.classes, k, 0.0)


def _probabilities(g: Graph, Z: Value, model: SVMModel) -> Value | None:
    """:meth:`SVMModel.probabilities` of a model in parts: products of the parts' probabilities, normalised."""
    calibrator, k = model.calibrator, len(model.classes)
    if calibrator is None:
        return None

    def logarithms(number: int, rows: Value) -> Value:
        part = model.parts[number]
        m, unseen = len(part.classes), 1.0 / (int(model.sizes[number]) + k)
        p = g.filled(rows, [1.0])
        if m > 1:
            problems = None if part.slopes is not None else pairs_of(part.classes, k)
            decisions = _pairs(g, rows, part, model.kernel_of(number), model.dtype)
            p = coupled(g, calibrated(g, decisions, _calibrator_of_part(calibrator, part), problems), m)
        return g.op("Log", placed(g, p * (1.0 - unseen * (k - m)), part.classes, k, unseen))

    return g.op("Softmax", answered(g, Z, model, k, logarithms), axis=1)


def _calibrator_of_part(calibrator: Calibrator, part: PartSVM) -> Calibrator:
    """The calibrator with the part's own sigmoids, if it has any."""
    if part.slopes is None or part.shifts is None:
        return calibrator
    return Calibrator(calibrator.form, calibrator.rows, part.slopes, part.shifts)


def values(g: Graph, model: SVRModel) -> Value:
    """Real outputs of a regression or one-class SVM, shape (n, 1); or quantiles, ascending, shape (n, t)."""
    require_whole(model)
    Z, (t,) = transformed(g, g.X, model.standardizer, model.dtype), model.output_shape or (1,)

    def answer(number: int, rows: Value) -> Value:
        part: PartSVR = model.parts[number]
        beta, kernel = part.columns, model.kernel
        if len(model.sizes) == 1 and kernel is not None and t == 1:
            X = in_memory(part.X)
            if suits_node(X, beta, part.b, kernel):
                return regressor_node(g, rows, X, beta[:, 0], part.b, kernel)
        return expansion(g, rows, part.X, beta, kernel, part.rows) + part.b

    outputs = _ascending(g, answered(g, Z, model, t, answer), t)
    shifts = getattr(model, "shifts", None)
    return outputs if shifts is None else _ascending(g, outputs + shifts, t)


def _ascending(g: Graph, columns: Value, t: int) -> Value:
    """The t columns sorted in each row."""
    return columns if t == 1 else g.ops("TopK", 2, columns, g.indices(t), axis=1, largest=0, sorted=1)[0]


def asygcd(g: Graph, model: AsyGCDModel) -> Classified:
    """Answers of an Asy-GCD model, which has no bias."""
    Z, k = transformed(g, g.X, model.standardizer, model.dtype), len(model.classes)
    decisions = expansion(
        g, Z, model.X, model.coef, model.kernel, dtype=_type(model.X, model.kernel, model.coef, model.dtype),
        biased=False,
    )  # fmt: skip
    pairs = k > 2 and model.multi_class == "ovo"
    scores = counted(g, decisions, k) if pairs else decisions
    columns = 1 if k == 2 else k
    codes = at_least_zero(g, scores) if k == 2 else voted(g, scores, k) if pairs else largest(g, scores)
    result = Classified(codes, scores, columns)
    if model.calibrator is not None:
        first = calibrated(g, -decisions if k == 2 else decisions, model.calibrator)
        result.probabilities = normalized(g, first) if model.against_the_rest else coupled(g, first, k)
    return result


# -- nodes for exact SVMs ---------------------------------------------------------------------------------

_TYPES = {"linear": "LINEAR", "polynomial": "POLY", "gaussian": "RBF", "sigmoid": "SIGMOID"}
_AGREES = 2e-6  # largest difference from double precision, relative to the largest decision, or to probability 1
_SAMPLE = 64  # support vectors on which that is measured
_NUMBERS = 1 << 22  # numbers of a block of differences
_MOST = 1 << 24  # numbers of the support vectors at most: an attribute is a list of objects before it is a file


def suits_node(
    X: Rows, weights: NDArray[np.float64], b: NDArray[np.float64], kernel: Kernel | None, steepness: float = 0.0
) -> bool:
    """True if a node can hold the model and agrees with double precision, measured on a sample of support vectors.

    Parameters
    ----------
    X : ndarray or CSR, shape (s, d)
        Support vectors.
    weights : ndarray, shape (s, p)
        Coefficients of p decisions.
    b : ndarray, shape (p,)
    kernel : Kernel or None
    steepness : float
        Largest change of a probability relative to that of a decision, since probabilities must agree as well.

    Notes
    -----
    With coefficients of size C, single precision loses about 6e-8 C sqrt(s) of a decision, which is near 1: with a
    large C the plain operators in double precision are needed. So they are without a bias, where the sign of a decision
    counts however small it is: kernel values of distant rows are 0 in single precision.
    """
    if not b.all() or kernel is None or kernel.kind not in _TYPES or not 0 < X.shape[0] * X.shape[1] <= _MOST:
        return False
    sample = np.asarray(dense(X[:: -(-X.shape[0] // _SAMPLE)]), np.float64)
    points = kernel.points(np.asarray(dense(X), np.float64))
    exact = kernel.block(kernel.points(sample, like=points), points) @ weights + b
    with np.errstate(all="ignore"):
        single = _single(kernel, sample, dense(X)) @ weights.astype(np.float32).astype(np.float64) + b.astype(
            np.float32
        )
        gap, scale = np.abs(single - exact).max(), np.abs(exact).max()
        return bool(gap <= _AGREES * scale and gap * steepness <= _AGREES)


def _single(kernel: Kernel, Z: NDArray[np.floating], A: NDArray[np.floating]) -> NDArray[np.float64]:
    """Kernel values as the nodes compute them, in float32, with squared distances from differences."""
    Z, A = Z.astype(np.float32), A.astype(np.float32)
    gamma, coef0 = np.float32(kernel.gamma), np.float32(kernel.coef0)
    if kernel.kind == "gaussian":
        step = max(1, _NUMBERS // A.size)
        near = [((Z[lo : lo + step, None] - A) ** 2).sum(axis=2) for lo in range(0, len(Z), step)]
        return np.asarray(np.exp(-gamma * np.concatenate(near)), np.float64)
    product = Z @ A.T
    if kernel.kind == "polynomial":
        product = (gamma * product + coef0) ** np.float32(kernel.degree)
    elif kernel.kind == "sigmoid":
        product = np.tanh(gamma * product + coef0)
    return np.asarray(product, np.float64)


def classifier_node(
    g: Graph, Z: Value, X: Rows, coef: NDArray[np.float64], b: NDArray[np.float64], counts: NDArray[np.int64],
    kernel: Kernel,
) -> tuple[Value, Value]:  # fmt: skip
    """An SVMClassifier: the index of each row's class, and the decisions of all pairs in float64.

    The arrays are those of :class:`casvm.model.part_svm.PartSVM`.
    """
    k = len(counts)
    codes, decisions = g.ops(
        "SVMClassifier", 2, g.cast(Z, np.float32), domain=ML, **_node(g, X, kernel), coefficients=_floats(coef),
        rho=_floats(b), vectors_per_class=counts.tolist(), classlabels_ints=list(range(k)), post_transform="NONE",
    )  # fmt: skip
    decisions = g.cast(decisions, np.float64)
    return codes, g.columns(decisions, [1]) if k == 2 else decisions  # with two classes: the negative one stands first


def regressor_node(
    g: Graph, Z: Value, X: Rows, beta: NDArray[np.float64], b: NDArray[np.float64], kernel: Kernel
) -> Value:
    """An SVMRegressor: the outputs of :class:`casvm.model.svr_model.PartSVR` in float64, shape (n, 1)."""
    values = g.op(
        "SVMRegressor", g.cast(Z, np.float32), domain=ML, **_node(g, X, kernel), coefficients=_floats(beta),
        rho=_floats(b), n_supports=len(beta), post_transform="NONE",
    )  # fmt: skip
    return g.cast(values, np.float64)


def _node(g: Graph, X: Rows, kernel: Kernel) -> dict[str, object]:
    """Attributes that both nodes have."""
    g.reserve(4 * int(np.prod(X.shape)))
    return {
        "kernel_type": _TYPES[kernel.kind], "support_vectors": _floats(dense(X)),
        "kernel_params": [kernel.gamma, kernel.coef0, float(kernel.degree)],
    }  # fmt: skip


def _floats(values: NDArray[np.floating]) -> list[float]:
    return values.astype(np.float32).ravel().tolist()
