"""Class labels over all ranks: their codes, their form in files, class weights, and metrics of test rows."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cacore import metrics
from cacore.comm import Communicator, unlike
from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.metrics import class_scores, reliability

ClassWeight: TypeAlias = dict[int, float] | Literal["balanced"] | None  # weights by code; None: all classes alike
MOST_CLASSES = 1000  # half a million pairs of classes


def require_classes(classes: NDArray[np.generic], pairs: bool = True, way: str = "") -> None:
    """Raise an InputError for fewer than two classes, and for labels that look like the targets of a regression.

    `pairs` is true if there is one problem per pair of classes, false if there is one column per class. `way` is how
    the caller learns a regression.
    """
    way = way or ("use a method of cakrr" if pairs else "leave --classify out, or use a regressor")
    k, remedy = len(classes), f"{way}, or make classes of them (cacore.io convert --binarize)"
    if not k:
        raise InputError("Sample weights must contain at least one non-zero number.")
    if k == 1:
        raise InputError(f"the labels must be of at least 2 classes; there is one class only, {classes[0]}")
    if k > 2 and classes.dtype.kind == "f" and (classes != np.rint(classes)).any():
        first = classes[classes != np.rint(classes)][0]
        raise InputError(f"the labels look like targets of a regression, {first:g} is no whole number: {remedy}")
    if k > MOST_CLASSES:
        many = f"{k:,} classes make {k * (k - 1) // 2:,} pairs of them" if pairs else f"there are {k:,} of them"
        raise InputError(f"the labels look like targets of a regression, {many}: {remedy}")


def class_codes(y: NDArray[np.generic], classes: NDArray[np.generic]) -> NDArray[np.int64]:
    """Index of each label in the ascending `classes`; -1 for labels that are not among them."""
    y, classes = comparable(y, classes)
    codes = np.searchsorted(classes, y).astype(np.int64)
    codes[codes == len(classes)] = 0
    codes[classes[codes] != y] = -1
    return codes


def all_classes(y: NDArray[np.generic], comm: Communicator) -> NDArray[np.generic]:
    """Labels that occur on any rank, ascending, and of the same type on all ranks; text here and numbers there fail."""
    classes = np.unique(y)
    if comm.size == 1:
        return classes
    text = np.frombuffer((json.dumps(classes.tolist()) + "\n").encode(), np.uint8)
    labels_of_ranks = [json.loads(line) for line in comm.allgather(text).tobytes().decode().splitlines()]
    kinds = [("text" if isinstance(labels[0], str) else "numbers") if labels else "" for labels in labels_of_ranks]
    if {"text", "numbers"} <= set(kinds):
        with comm.agreed():
            raise InputError(unlike("labels", kinds))
    return np.unique(_array([label for labels in labels_of_ranks for label in labels]))


def _array(labels: list[Any]) -> NDArray[Any]:
    """Labels as an array; whole numbers that int64 does not hold are not rounded to floats."""
    if all(isinstance(label, int) for label in labels) and any(label >= 2**63 for label in labels):
        return np.array(labels, object if min(labels) < 0 else np.uint64)
    return np.array(labels)


def comparable(y: NDArray[Any], classes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Labels and classes of types that are compared exactly: signed beside unsigned integers become Python's."""
    if {y.dtype.kind, classes.dtype.kind} == {"i", "u"}:
        return y.astype(object), classes.astype(object)
    return y, classes


def class_factors(
    class_weight: ClassWeight, codes: NDArray[np.int64], weights: NDArray[np.float64], k: int, comm: Communicator
) -> NDArray[np.float64]:
    """Factor of C for each of the k classes; "balanced" adds up the row weights of all ranks."""
    if class_weight == "balanced":
        count = comm.allreduce(np.bincount(codes, weights, k).astype(np.float64))
        return np.asarray(count.sum() / (k * count))
    return np.array([1.0 if class_weight is None else class_weight.get(code, 1.0) for code in range(k)])


def from_file(data: Dataset, comm: Communicator) -> NDArray[np.generic]:
    """Labels of a data set from a file: text, integers if all ranks' labels are whole numbers, or else floats."""
    y = data.target()
    if not comm.all(y.dtype.kind == "f"):
        return y
    whole = bool((y == np.rint(y)).all())
    with comm.agreed():
        if whole and np.abs(y).max(initial=0) >= 2**53:
            raise InputError(
                f"{data.where}: labels of 2^53 and more are rounded in this file: store them as integers, or in a table"
            )
    return y.astype(np.int64) if comm.all(whole) else y


def stored_classes(classes: NDArray[np.generic]) -> dict[str, object]:
    """The ascending labels as attributes of a model file."""
    return {"classes": classes.tolist(), "labels": classes.dtype.str}


def read_classes(attributes: dict[str, Any]) -> NDArray[np.generic]:
    """The labels of a model file; removes the entry with their type from `attributes`."""
    return np.array(attributes["classes"], np.dtype(attributes.pop("labels")))


def check_classes(classes: NDArray[Any]) -> None:
    """Raise an InputError if the labels of a model file are not valid."""
    if classes.ndim != 1 or len(classes) < 2:
        raise InputError("fewer than two labels")
    if not (classes[1:] > classes[:-1]).all():
        raise InputError("the labels are not in ascending order")


def tested(
    classes: NDArray[np.generic], test: Dataset, predicted: NDArray[np.generic], comm: Communicator
) -> dict[str, Any]:
    """Metrics of the predicted classes of the test rows, and these classes, in the order of the confusion matrix.

    Collective. Empty if one side is text, the other numbers.
    """
    y = from_file(test, comm)
    if (classes.dtype.kind in "biuf") != (y.dtype.kind in "biuf"):
        return {}  # text is never equal to numbers
    with comm.phase("predict"):
        y, classes = comparable(y, classes)
        others, predicted = all_classes(y, comm), predicted.astype(classes.dtype, copy=False)
        every = np.union1d(classes, others)
        return {**metrics.classification_metrics(y, predicted, every, comm), "classes": every.tolist()}


def tested_probabilities(
    classes: NDArray[np.generic], test: Dataset, P: NDArray[np.float64], comm: Communicator
) -> dict[str, float]:
    """Scores of the predicted probabilities `P` of the test rows; collective."""
    codes = _codes_of(classes, test, comm)
    with comm.phase("predict"):
        return {} if codes is None else class_scores(codes, P, comm)


def tested_reliability(
    classes: NDArray[np.generic], test: Dataset, P: NDArray[np.float64], comm: Communicator
) -> list[dict[str, float]]:
    """Bins of a reliability diagram of the predicted probabilities `P`; collective."""
    codes = _codes_of(classes, test, comm)
    with comm.phase("predict"):
        return [] if codes is None else reliability(codes, P, comm)


def _codes_of(classes: NDArray[np.generic], test: Dataset, comm: Communicator) -> NDArray[np.int64] | None:
    """Class codes of the test rows; None if only one of the rows' labels and the classes is text."""
    y = from_file(test, comm)
    return None if (classes.dtype.kind in "biuf") != (y.dtype.kind in "biuf") else class_codes(y, classes)
