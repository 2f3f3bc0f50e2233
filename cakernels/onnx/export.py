"""Models of every family as ONNX models, which predict the same without this package."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from asygcd.asygcd_model import AsyGCDModel
from cacore.data.dataset import Columns
from cacore.data.rows import RowsLike
from cacore.data.validation import check_names
from cacore.errors import InputError
from cakernels.families import Blend, ClassBlend
from cakernels.onnx import blends, ridge, svm
from cakernels.onnx.graph import Graph
from cakernels.onnx.svm import Classified, labels
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
        With the input "X", shape (rows, d), and these outputs: "prediction" of a regression; "label", "probabilities",
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
    g = Graph(_input_type(X, fitted) if dtype is None else dtype, fitted.n_features, _facts(fitted))
    if isinstance(fitted, SVMModel):
        _classified(g, svm.classifier(g, fitted, getattr(model, "decision_function_shape", "") == "ovo"), fitted)
    elif isinstance(fitted, AsyGCDModel):
        _classified(g, svm.asygcd(g, fitted), fitted)
    elif isinstance(fitted, KRRModel) and fitted.classes is not None:
        _classified(g, ridge.classifier(g, fitted), fitted)
    elif isinstance(fitted, ClassBlend):
        _classified(g, blends.classifier(g, fitted), fitted)
    elif isinstance(fitted, SVRModel) and fitted.svm_type == "one_class":
        decisions = g.columns(svm.values(g, fitted), 0)
        sides = g.op("Where", decisions >= 0.0, np.int64(1), np.int64(-1))
        g.output("label", sides, np.int64)
        g.output("decisions", decisions, np.float64)
    else:
        shape = tuple(getattr(fitted, "target_shape", ()))
        predicted = blends.values(g, fitted)
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
