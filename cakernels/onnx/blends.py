"""Weighted means of several models as operators: regressions, and classifiers with calibrated probabilities."""

from __future__ import annotations

from cakernels.families import Blend, ClassBlend
from cakernels.onnx import ridge, svm
from cakernels.onnx.graph import Graph, Value
from cakernels.onnx.svm import Classified, largest, of_classes
from cakrr.ridge_model import KRRModel
from casvm.model.svr_model import SVRModel


def values(g: Graph, model: KRRModel | SVRModel | Blend) -> Value:
    """Predictions of a regression, shape (n, t), with one column for a single target."""
    if isinstance(model, KRRModel):
        return ridge.values(g, model)
    if isinstance(model, SVRModel):
        return svm.values(g, model)
    return _mean(model, [values(g, member) for member in model.members])


def classifier(g: Graph, model: ClassBlend) -> Classified:
    """Answers of a blend: a single member's own labels and decisions, or those of the mean probabilities."""
    k = len(model.classes)
    answers = []
    for member, calibrator in zip(model.members, model.calibrators, strict=True):
        # A decision of a pair counts in the scores of k - 1 classes, so in as many probabilities.
        ridged = member.family == KRRModel.family
        answers.append(
            ridge.classifier(g, member)
            if ridged
            else svm.classifier(g, member, steepness=(k - 1) * calibrator.steepness),
        )
    shares = [
        of_classes(g, answer.decisions, sigmoid) for answer, sigmoid in zip(answers, model.calibrators, strict=True)
    ]
    if len(answers) == 1:
        answers[0].probabilities = shares[0]
        return answers[0]
    P = _mean(model, shares)
    if k > 2:
        return Classified(largest(g, P), P, k, P)
    decisions = g.columns(P, [1]) - g.columns(P, [0])
    return Classified(g.cast(g.columns(decisions, 0) > 0.0, "int64"), decisions, 1, P)


def _mean(model: Blend, terms: list[Value]) -> Value:
    """Mean of the members' values by the weights of the blend."""
    weighted = [float(weight) * term for weight, term in zip(model.weights, terms, strict=True)]
    return sum(weighted[1:], start=weighted[0])
