"""The trainers of the SVM methods; each is imported when called, so that ``--help`` is fast."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

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


def in_parts(
    method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator, test: Dataset | None = None
) -> ClassFit:
    """Train one classifier per part; see :func:`partition.in_parts.in_parts`."""
    from casvm.tasks import ClassesTask

    return _trained(ClassesTask.in_parts, method, train, options, comm)


def in_a_tree(
    method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator, test: Dataset | None = None
) -> ClassFit:
    """Train a tree of merges; see :func:`casvm.methods.tree.fit`."""
    from casvm.methods.tree import fit

    return _trained(fit, method, train, options, comm)


def of_all_rows(
    method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator, test: Dataset | None = None
) -> ClassFit:
    """Solve one problem of all rows; see :func:`casvm.methods.all_rows.fit`."""
    from casvm.methods.all_rows import fit

    return _trained(fit, method, train, options, comm)


def of_values(
    method: ValueMethod, train: Dataset, options: ValueOptions, comm: Communicator, test: Dataset | None = None
) -> SVMFit[SVRModel]:
    """Train a regression, quantiles or one class; in parts, or see :func:`casvm.methods.all_rows.of_values`."""
    from casvm.methods import all_rows, length_scales
    from casvm.tasks import QuantilesTask, ValuesTask, calibrated

    kind = QuantilesTask if options.quantile is not None else ValuesTask
    fit = partial(all_rows.of_values, kind) if options.exact else kind.in_parts
    if options.metric != "none":
        with comm.agreed():
            options.checked(method, comm.size)
        fit = partial(length_scales.fit, fit, length_scales.VALUES)
    return calibrated(fit, method, train, options, comm)


def _trained(fit: Trainer, method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator) -> ClassFit:
    """Fit with this trainer; before that, search for settings and learn a metric, if requested."""
    with comm.agreed():
        options.checked(method, comm.size)
    if options.metric == LENGTHS:
        from casvm.methods import length_scales

        return length_scales.fit(partial(_trained, fit), length_scales.CODES, method, train, options, comm)
    if options.searches and (method.one_model or options.metric != "none"):
        from casvm.methods.all_rows import train_after_search

        return train_after_search(partial(_trained, fit), method, train, options, comm)
    if options.metric == "none":
        return _with_probabilities(fit, method, train, options, comm)
    from casvm.methods import metric_rounds

    return metric_rounds.fit(partial(_with_probabilities, fit), method, train, options, comm)


def _with_probabilities(
    fit: Trainer, method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator
) -> ClassFit:
    """Fit with this trainer, with probabilities if requested; training in parts calibrates them itself."""
    if options.probability is None or not method.one_model:
        return fit(method, train, options, comm)
    from casvm.methods.probability import fit_apart

    return fit_apart(fit, method, train, options, comm)
