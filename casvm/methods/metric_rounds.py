"""Learning a metric for kernel SVMs in rounds, with any training method.

Validation rows are held out of all rounds. After each round, the gradients of the decision function at some training
rows define the next metric (:mod:`cacore.data.metric`). The round with the smallest validation error is trained again
on all rows. It is often the first one, without a metric: SVMs gain less from a metric than regression does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.holdout import Holdout
from cacore.data.labels import all_classes
from cacore.data.metric import SAMPLE, best_round, check_features, check_kernel, sample_of
from cacore.data.rows import gather_rows, in_memory
from cacore.data.standardize import Root, Standardizer, mapped
from cacore.errors import InputError
from cacore.kernels.gradients import moments, stacked
from casvm.model.svm_model import SVMModel
from casvm.options import SVMMethod, SVMOptions
from casvm.svm_fit import SVMFit
from partition.parts_model import nearest

WHOLE = "whole"  # name of the final training in a checkpoint
_ABSENT = np.iinfo(np.int64).max  # place of rows with weight 0

Trainer = Callable[[SVMMethod, Dataset, SVMOptions, Communicator], SVMFit[SVMModel]]


def fit(train: Trainer, method: SVMMethod, rows: Dataset, options: SVMOptions, comm: Communicator) -> SVMFit[SVMModel]:
    """Train with the best metric found in several rounds; collective.

    Arguments and result are those of the trainer.

    Notes
    -----
    Every round trains on 1 - `validation_fraction` of the rows and sends what that training sends. It also sends the
    validation rows to their models, `SAMPLE` rows to all ranks, and an Allreduce of d x d numbers, or d for a diagonal
    metric. If the model is in pieces on all ranks, the Allreduce has the gradients at the sampled rows instead.
    """
    with comm.phase("read"):
        with comm.agreed():
            y, weights = rows.target(), rows.weights
            check_kernel(options.metric, options.kernel)
            check_features(options.metric, rows.X.shape[1], options.memory_limit)
        X, standardizer = rows.give(), None
        if options.standardize:
            if weights is None:
                standardizer = Standardizer.fit(X, comm)
            else:  # rows of weight 0 count as absent
                standardizer = Standardizer.fit(X[weights > 0], comm, weights[weights > 0])
            X = standardizer.apply(X)
    inner = replace(options, standardize=False, metric="none")
    first = _Round(train, method, Dataset(X, y, weights=weights), inner, options.metric, comm)
    _check_classes(y, first, comm)
    best, errors, notes = best_round([[first]], options.metric_rounds, comm)
    fitted = best.trained(slice(None), WHOLE, comm)
    fitted.model.standardizer = Standardizer.with_root(standardizer, best.root)
    fitted.errors = errors
    fitted.notes += notes
    return fitted


def _check_classes(y: NDArray[np.generic], first: _Round, comm: Communicator) -> None:
    """Refuse classes of which the learning rows have but one; collective."""
    present = first.order < _ABSENT
    with comm.uncounted():
        whole, learning = all_classes(y[present], comm), all_classes(y[present & (first.order >= first.first)], comm)
    with comm.agreed():
        if len(learning) < 2 <= len(whole):
            raise InputError(
                f"metric: all rows are of class {learning[0]} but those held out to judge it, a share of "
                f"validation_fraction = {first.options.validation_fraction:g}; train without a metric"
            )


class _Round:
    """A round of training: see :class:`cacore.data.metric.Round`."""

    def __init__(
        self, train: Trainer, method: SVMMethod, rows: Dataset, options: SVMOptions, form: str, comm: Communicator,
        root: Root | None = None, number: int = 0,
    ) -> None:  # fmt: skip
        self.train, self.method, self.rows, self.options = train, method, rows, options
        self.form, self.root, self.number, self.error = form, root, number, np.inf
        counted = np.flatnonzero(rows.row_weights() > 0)
        holdout = Holdout.shuffled(len(counted), options.seed, comm, options.validation_fraction)
        with comm.agreed():
            if (n := holdout.n) == 0:
                raise InputError("Sample weights must contain at least one non-zero number.")
            if n < 2:
                raise InputError("n_samples = 1, and a metric needs 2: one row leaves none to validate on")
        self.order = np.full(rows.X.shape[0], _ABSENT)
        self.order[counted] = holdout.place
        _, self.first = holdout.run()  # in this order, of the learning rows
        self.fitted: SVMFit[SVMModel] | None = None

    def again(self, root: Root, comm: Communicator) -> _Round:
        """The next round, in this metric; collective."""
        return _Round(self.train, self.method, self.rows, self.options, self.form, comm, root, self.number + 1)

    def trained(self, which: slice | NDArray[np.bool_], name: str, comm: Communicator) -> SVMFit[SVMModel]:
        """The method's fit of some rows, in the metric; collective."""
        X, checkpoint = mapped(self.rows.X[which], self.root), self.options.checkpoint
        weights = None if self.rows.weights is None else self.rows.weights[which].copy()
        train = Dataset(X, self.rows.target()[which], weights=weights)
        if checkpoint is not None:
            checkpoint = checkpoint.within(name)
        options = replace(self.options, checkpoint=checkpoint)
        if name != WHOLE:
            options = replace(options, probability=None)
        return self.train(self.method, train, options, comm)

    def choose(self, comm: Communicator) -> None:
        """Train on the learning rows, and count wrong answers for the others; collective."""
        held = self.order < self.first
        self.fitted = self.trained(~held, f"round-{self.number}", comm)
        predicted = self.fitted.model.predict(mapped(self.rows.X[held], self.root), comm)
        w = self.rows.row_weights()[held]
        with comm.phase("predict"):
            wrong, total = comm.allreduce(np.array([w @ (predicted != self.rows.target()[held]), w.sum()]))
        self.error = float(wrong / total)

    def moments(self, comm: Communicator) -> NDArray[np.float64]:
        """The sum of grad f grad f^T, or its diagonal, over pairs of classes and some learning rows; collective."""
        assert self.fitted is not None
        model, d = self.fitted.model, self.rows.X.shape[1]
        assert model.kernel is not None
        diagonal, pieces, k = self.form == "diagonal", model.route == "sum", len(model.classes)
        count = sample_of(d * k * (k - 1) // 2) if pieces else SAMPLE
        with comm.phase("train"):
            sample = gather_rows(mapped(self.rows.X[self._sampled(count)], self.root), comm)
            if pieces:
                slopes = np.zeros((k * (k - 1) // 2, sample.shape[0], d))
                for part in model.parts.values():
                    if len(part.rows):
                        slopes += stacked(model.kernel, sample, in_memory(part.X), part.weights().T)
                slopes = comm.allreduce(slopes)
                if diagonal:
                    return np.asarray(np.square(slopes).sum(axis=(0, 1)))
                return np.asarray(np.einsum("kij,kil->jl", slopes, slopes))
            total, near = np.zeros(d if diagonal else (d, d)), nearest(sample, model.centers)
            for number, part in model.parts.items():
                rows = sample[near == number]
                if rows.shape[0] and len(part.rows) and len(part.classes) > 1:
                    total += moments(model.kernel, rows, in_memory(part.X), part.weights().T, diagonal)
            return comm.allreduce(total)

    def _sampled(self, count: int) -> NDArray[np.bool_]:
        return np.asarray((self.order >= self.first) & (self.order < self.first + count))
