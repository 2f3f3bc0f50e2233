"""The trainers of the SVM methods, each in what :func:`partition.in_parts.around` puts around it.

Everything is imported when called, so that ``--help`` is fast.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cacore.learn.options import LENGTHS

if TYPE_CHECKING:
    from collections.abc import Callable

    from cacore.comm import Communicator
    from cacore.data.dataset import Dataset
    from casvm.model.svm_model import SVMModel
    from casvm.model.svr_model import SVRModel
    from casvm.options import SVMMethod, SVMOptions, ValueMethod, ValueOptions
    from casvm.svm_fit import SVMFit

    ClassFit = SVMFit[SVMModel]
    Trainer = Callable[[SVMMethod, Dataset, SVMOptions, Communicator], ClassFit]
    ValueTrainer = Callable[[ValueMethod, Dataset, ValueOptions, Communicator], SVMFit[SVRModel]]


def in_parts(
    method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator, test: Dataset | None = None
) -> ClassFit:
    """Train one classifier per part; see :func:`partition.in_parts.in_parts`."""
    from casvm.tasks import ClassesTask

    return _of_classes(ClassesTask.train, method, train, options, comm)


def in_a_tree(
    method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator, test: Dataset | None = None
) -> ClassFit:
    """Train a tree of merges; see :func:`casvm.methods.tree.fit`."""
    from casvm.methods.tree import fit

    return _of_classes(fit, method, train, options, comm)


def of_all_rows(
    method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator, test: Dataset | None = None
) -> ClassFit:
    """Solve one problem of all rows; see :func:`casvm.methods.all_rows.fit`."""
    from casvm.methods.all_rows import fit

    return _of_classes(fit, method, train, options, comm)


def of_values(
    method: ValueMethod, train: Dataset, options: ValueOptions, comm: Communicator, test: Dataset | None = None
) -> SVMFit[SVRModel]:
    """Train a regression, quantiles or one class; in parts, or see :func:`casvm.methods.all_rows.of_values`."""
    from casvm.methods import all_rows
    from casvm.tasks import QuantilesTask, ValuesTask, calibrated
    from partition.in_parts import around

    kind = QuantilesTask if options.quantile is not None else ValuesTask
    fit: ValueTrainer = partial(all_rows.of_values, kind) if options.exact else kind.train
    return around(fit, intervals=calibrated, lengths=_lengths_of_values)(method, train, options, comm)


def _of_classes(fit: Trainer, method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator) -> ClassFit:
    """Train classes with `fit`, and what goes around it."""
    from partition.in_parts import around

    wrapped = around(fit, lengths=_lengths, settings=_settings, metric=_metric, probability=_probability)
    fitted: ClassFit = _checked(wrapped, method, train, options, comm)
    return fitted


def _checked(fit: Callable[..., Any], method: Any, train: Dataset, options: Any, comm: Communicator) -> Any:
    """Check the options on all ranks, then train."""
    with comm.agreed():
        options.checked(method, comm.size)
    return fit(method, train, options, comm)


def _lengths_of_values(
    fit: ValueTrainer, method: ValueMethod, train: Dataset, options: ValueOptions, comm: Communicator
) -> SVMFit[SVRModel]:
    """Learn length scales first, if requested."""
    if options.metric == "none":
        return fit(method, train, options, comm)
    from casvm.methods import length_scales

    scaled: ValueTrainer = partial(length_scales.fit, fit, length_scales.VALUES)
    fitted: SVMFit[SVRModel] = _checked(scaled, method, train, options, comm)
    return fitted


def _lengths(fit: Trainer, method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator) -> ClassFit:
    """Learn length scales first, if requested."""
    if options.metric != LENGTHS:
        return fit(method, train, options, comm)
    from casvm.methods import length_scales

    return length_scales.fit(partial(_checked, fit), length_scales.CODES, method, train, options, comm)


def _settings(fit: Trainer, method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator) -> ClassFit:
    """Search for settings before one model or a metric is trained; a task in parts searches for its own."""
    if not (options.searches and (method.one_model or options.metric != "none")):
        return fit(method, train, options, comm)
    from casvm.methods.all_rows import train_after_search

    return train_after_search(partial(_checked, fit), method, train, options, comm)


def _metric(fit: Trainer, method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator) -> ClassFit:
    """Learn a metric in rounds of training, if requested."""
    if options.metric == "none":
        return fit(method, train, options, comm)
    from casvm.methods import metric_rounds

    return metric_rounds.fit(fit, method, train, options, comm)


def _probability(fit: Trainer, method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator) -> ClassFit:
    """Calibrate the probabilities of one model, if requested; a task in parts calibrates its own."""
    if options.probability is None or not method.one_model:
        return fit(method, train, options, comm)
    from casvm.methods.probability import fit_apart

    return fit_apart(fit, method, train, options, comm)
