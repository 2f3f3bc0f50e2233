"""The algorithms that train this family's methods; each is loaded when it is called, and not for ``--help``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cacore.comm import Communicator
    from cacore.data.dataset import Dataset
    from casvm import value_options
    from casvm.options import Fit, Method, Options


def in_parts(method: Method, train: Dataset, options: Options, comm: Communicator, test: Any = None) -> Fit:
    """One SVM a part; see :func:`casvm.methods.parts.fit`."""
    from casvm.methods.parts import fit

    return _trained(fit, method, train, options, comm)


def in_a_tree(method: Method, train: Dataset, options: Options, comm: Communicator, test: Any = None) -> Fit:
    """A tree of merges; see :func:`casvm.methods.tree.fit`."""
    from casvm.methods.tree import fit

    return _trained(fit, method, train, options, comm)


def of_all_rows(method: Method, train: Dataset, options: Options, comm: Communicator, test: Any = None) -> Fit:
    """One problem of all rows; see :func:`casvm.methods.dissmo.fit`."""
    from casvm.methods.dissmo import fit

    return _trained(fit, method, train, options, comm)


def of_values(
    method: value_options.Method, train: Dataset, options: value_options.Options, comm: Communicator, test: Any = None
) -> value_options.Fit:
    """Regression or one class, in parts or of all rows; see :func:`casvm.methods.values.fit`."""
    from casvm.methods.values import fit

    return fit(method, train, options, comm)


def _trained(fit: Any, method: Method, train: Dataset, options: Options, comm: Communicator) -> Fit:
    """By this trainer, at a setting that is chosen, and in a metric that is learned, if that is asked for."""
    with comm.agreed():
        options.checked(method, comm.size)
    if options.searches and (method.one_model or options.metric != "none"):
        from casvm.search.settle import settle_apart

        return settle_apart(partial(_trained, fit), method, train, options, comm)
    if options.metric == "none":
        return _with_probabilities(fit, method, train, options, comm)
    from casvm.methods import metric

    return metric.fit(partial(_with_probabilities, fit), method, train, options, comm)


def _with_probabilities(fit: Any, method: Method, train: Dataset, options: Options, comm: Communicator) -> Fit:
    """By this trainer, with probabilities of one model if they are asked for; parts have their own way."""
    if options.probability is None or not method.one_model:
        made: Fit = fit(method, train, options, comm)
        return made
    from casvm.methods.probability import fit_apart

    return fit_apart(fit, method, train, options, comm)
