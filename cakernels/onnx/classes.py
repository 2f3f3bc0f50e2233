"""Decisions of pairs of classes as operators: votes, shares, labels, and calibrated probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cacore.probability.calibrator import Calibrator
from cacore.probability.coupling import LEAST
from cakernels.onnx.curves import interpolated
from cakernels.onnx.graph import Graph, Value


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
    own = [[pair + len(pairs) * (i != c) for pair, (i, j) in enumerate(pairs) if c in (i, j)] for c in range(k)]
    least = g.reduced("Min", g.columns(both, own), keep=False)
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
        A, B = (one if problems is None else one[problems] for one in (calibrator.A, calibrator.B))
        return g.op("Sigmoid", -(decisions * A + B))
    assert calibrator.steps is not None
    which = range(len(calibrator.steps.starts)) if problems is None else problems
    return interpolated(g, decisions, [calibrator.steps.curve(int(problem)) for problem in which])


def normalized(g: Graph, shares: Value) -> Value:
    """Probabilities of classes from those of each class against the rest, as :mod:`cakrr.model` divides them."""
    shares = g.op("Max", shares, LEAST)
    return shares / g.reduced("Sum", shares)


def of_classes(g: Graph, outputs: Value, calibrator: Calibrator) -> Value:
    """:meth:`cacore.probability.calibrator.Calibrator.of_classes`: probabilities of the classes, shape (n, k)."""
    if calibrator.problems > 1:
        return normalized(g, calibrated(g, outputs, calibrator))
    first = calibrated(g, -outputs, calibrator)
    return g.op("Concat", first, 1.0 - first, axis=1)


def coupled(g: Graph, pairs: Value, k: int) -> Value:
    """:func:`cacore.probability.coupling.coupled`: probabilities of k classes from those of their pairs, shape (n, k).

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
    rest = 1.0 - r
    diagonal = (rest * rest) @ first + (r * r) @ second
    off = g.reshaped((r * rest) @ square.reshape(len(first), k * k), -1, k, k)
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
