"""Models of every family as ONNX models, which predict the same without this package."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from asygcd.asygcd_model import AsyGCDModel
from cacore.data.encoding import Columns
from cacore.data.rows import RowsLike
from cacore.data.validation import check_names
from cacore.errors import InputError
from cakernels.families import Blend, ClassBlend
from cakernels.onnx import svm
from cakernels.onnx.graph import Graph, Value
from cakernels.onnx.operators import answered, expansion, require_whole, transformed
from cakernels.onnx.svm import Classified, labels, largest, of_classes
from cakrr.ridge_model import KRRModel
from casvm.model.svm_model import SVMModel
from casvm.model.svr_model import SVRModel

Model = KRRModel | SVMModel | SVRModel | AsyGCDModel | Blend


def to_onnx(model: Any, X: RowsLike | None = None) -> Any:
    """A fitted estimator or a model of any family as an ONNX model.

    Parameters
    ----------
    model : estimator or model
        A fitted estimator of this package, its `model_`, or a model that was loaded from a file.
    X : array-like, shape (1, d), optional
        A row, or several: the input of the ONNX model has its type, float32 or float64. By default, and for rows of
        another type, the input has the type of the rows on which the model was trained.

    Returns
    -------
    onnx.ModelProto
        With the input "X", shape (rows, d), or, for a table with words, an input for each column, shape (rows, 1),
        and these outputs: "prediction" of a regression; "label", "probabilities",
        if the model has them, and "decisions" of a classifier; "label" and "decisions" of a one-class model. Shapes
        and values are those of `predict`, `predict_proba` and `decision_function`. ``onnx.save`` writes it to a file.
        Standard deviations and intervals are left out.

    Raises
    ------
    InputError
        ONNX cannot hold the model: a callable kernel or one that the export does not know, an oracle, more than 2 GiB;
        or other ranks hold parts of it, `X` has another number or other names of columns, or ``onnx`` is not installed.

    Notes
    -----
    Everything is computed in float64, with plain operators of opset 18. An exact SVM with one of LIBSVM's kernels is a
    node SVMClassifier or SVMRegressor, which computes in float32, if this changes decisions by at most 2e-6 of their
    scale, and probabilities by at most 2e-6. The file holds 8 bytes for each number in a support vector, or in a
    training row of ridge regression.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from cakernels import SMOSVC, to_onnx
    >>> X, y = make_moons(200, noise=0.2, random_state=0)
    >>> exported = to_onnx(SMOSVC(C=10, gamma=1.0).fit(X, y), X[:1])
    >>> [output.name for output in exported.graph.output]
    ['label', 'decisions']
    """
    return exported(model, X).model()


def exported(model: Any, X: RowsLike | None = None, dtype: str | None = None) -> Graph:
    """The graph of :func:`to_onnx`; `dtype` is the type of the input, by default as there."""
    fitted = _fitted(model)
    table = Columns.of_source(fitted.source).table
    if table is None:
        g = Graph(_input_type(X, fitted) if dtype is None else dtype, fitted.n_features, _facts(fitted))
    else:
        g = Graph(fitted.dtype, fitted.n_features, _facts(fitted), table)
    if isinstance(fitted, SVMModel):
        _classified(g, svm.classifier(g, fitted, getattr(model, "decision_function_shape", "") == "ovo"), fitted)
    elif isinstance(fitted, AsyGCDModel):
        _classified(g, svm.asygcd(g, fitted), fitted)
    elif isinstance(fitted, KRRModel) and fitted.classes is not None:
        _classified(g, _ridge_classifier(g, fitted), fitted)
    elif isinstance(fitted, ClassBlend):
        _classified(g, _blended_classifier(g, fitted), fitted)
    elif isinstance(fitted, SVRModel) and fitted.one_class:
        decisions = g.columns(svm.values(g, fitted), 0)
        sides = g.op("Where", decisions >= 0.0, np.int64(1), np.int64(-1))
        g.output("label", sides, np.int64)
        g.output("decisions", decisions, np.float64)
    else:
        shape = tuple(getattr(fitted, "target_shape", ()))
        predicted = _regression(g, fitted)
        g.output("prediction", predicted if shape else g.columns(predicted, 0), np.float64, *shape)
    return g


def _classified(g: Graph, answers: Classified, model: SVMModel | AsyGCDModel | KRRModel | ClassBlend) -> None:
    assert model.classes is not None
    g.output("label", labels(g, answers.codes, model.classes), model.classes.dtype)
    if answers.probabilities is not None:
        g.output("probabilities", answers.probabilities, np.float64, len(model.classes))
    if answers.columns == 1:
        g.output("decisions", g.columns(answers.decisions, 0), np.float64)
    else:
        g.output("decisions", answers.decisions, np.float64, answers.columns)


def _fitted(model: Any) -> Model:
    if isinstance(model, BaseEstimator):
        check_is_fitted(model)
        model = getattr(model, "model_", model)
    if not isinstance(model, Model):
        raise InputError(
            f"a {type(model).__name__} cannot be exported: give a fitted estimator of this package, or its model; the "
            "steps of a pipeline are exported one by one"
        )
    return model


def _input_type(X: RowsLike | None, model: Model) -> str:
    """Type of the input for rows like `X`, once their columns are those of the model."""
    if X is None:
        return model.dtype
    check_names(X, model.source)
    shape = np.shape(X)
    if len(shape) != 2 or shape[1] != model.n_features:
        raise InputError(f"X has shape {tuple(shape)}: rows of {model.n_features} features are needed, such as X[:1]")
    kinds = {str(kind) for kind in getattr(X, "dtypes", [getattr(X, "dtype", "")])}
    return kinds.pop() if kinds in ({"float32"}, {"float64"}) else model.dtype


def _facts(model: Model) -> dict[str, str]:
    """Metadata of the file: the method and, if they are known, the names of the columns as JSON."""
    names = Columns.of_source(model.source).features
    return {"method": str(model.described()["method"])} | ({"columns": json.dumps(names)} if names else {})


# -- ridge regression -------------------------------------------------------------------------------------


def _ridge(g: Graph, model: KRRModel) -> Value:
    """:meth:`KRRModel.predict`, shape (n, t), with one column for a single target."""
    require_whole(model)
    Z = transformed(g, g.X, model.standardizer, model.dtype)

    def answer(number: int, rows: Value) -> Value:
        part = model.parts[number]
        return expansion(g, rows, part.X, _as_columns(part.alpha), model.kernel_of(number))

    total = answered(g, Z, model, np.size(model.offset), answer)
    for f in model.everywhere():
        total = total + f.b
        if len(f.weights):
            total = total + expansion(g, Z, f.X, f.weights, f.kernel)
    return total


def _ridge_classifier(g: Graph, model: KRRModel) -> Classified:
    """Answers of a classifier: :meth:`KRRModel.labels` and :meth:`KRRModel.probabilities`."""
    outputs = _ridge(g, model)
    many = bool(model.target_shape)
    codes = largest(g, outputs) if many else g.cast(g.columns(outputs, 0) > 0.0, np.int64)
    shares = _clipped(g, outputs, many) if model.calibrator is None else of_classes(g, outputs, model.calibrator)
    return Classified(codes, outputs, model.target_shape[0] if many else 1, shares)


def _clipped(g: Graph, outputs: Value, many: bool) -> Value:
    """Probabilities from outputs without a calibrator; `many` says that there are more than two classes."""
    if not many:
        second = g.op("Max", g.op("Min", (1.0 + outputs) / 2.0, 1.0), 0.0)
        return g.op("Concat", 1.0 - second, second, axis=1)
    positive = g.reduced("Max", outputs) > 0.0
    share = g.op("Where", positive, g.op("Max", outputs, 0.0), outputs - g.reduced("Min", outputs))
    share = g.op("Where", g.reduced("Max", share) > 0.0, share, 1.0)
    return share / g.reduced("Sum", share)


def _as_columns(coefficients: NDArray[np.floating]) -> np.ndarray:
    return np.asarray(coefficients).reshape(len(coefficients), -1)


# -- weighted means of several models ---------------------------------------------------------------------


def _regression(g: Graph, model: KRRModel | SVRModel | Blend) -> Value:
    """Predictions of a regression, shape (n, t), with one column for a single target."""
    if isinstance(model, KRRModel):
        return _ridge(g, model)
    if isinstance(model, SVRModel):
        return svm.values(g, model)
    return _mean(model, [_regression(g, member) for member in model.members])


def _blended_classifier(g: Graph, model: ClassBlend) -> Classified:
    """Answers of a blend: a single member's own labels and decisions, or those of the mean probabilities."""
    k = len(model.classes)
    answers = []
    for member, calibrator in zip(model.members, model.calibrators, strict=True):
        if member.family == KRRModel.family:
            answers.append(_ridge_classifier(g, member))
        else:  # a decision of a pair counts in the scores of k - 1 classes, so in as many probabilities
            answers.append(svm.classifier(g, member, steepness=(k - 1) * calibrator.steepness))
    calibrated = zip(answers, model.calibrators, strict=True)
    shares = [of_classes(g, answer.decisions, calibrator) for answer, calibrator in calibrated]
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
