"""Regression and one-class SVMs in the commands: warm-up, reading, reporting and writing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.io.fingerprints import row_hashes
from cacore.io.predictions import Column
from cacore.io.table import Targets
from cacore.learn.options import reported
from cacore.metrics import errors
from cacore.run import reading
from cacore.run.family import Family, described_metric
from cacore.run.job import Predicting, Training
from cacore.terminal import CellLines
from cacore.tuning.results import GridColumns, best_lines, end_lines
from casvm.described import check_libsvm, fields, part_lines, soft_fields
from casvm.fit import SVMFit
from casvm.methods import of_values
from casvm.model.libsvm import export_libsvm
from casvm.model.svr import SVRModel
from casvm.value_options import PARTITIONERS, UNSEARCHED, ValueMethod, ValueOptions

_SMALL = ValueMethod(name="svr", summary="small problems that compile the code of all methods", trainer=of_values)
_NUMBERS = Targets(remedy="for class labels, use python -m casvm.casvm or another classifier")
_NOT_NEEDED = Targets(labels="any", needed=False)


def _solve_small(dtype: str, one_class: bool, **options: Any) -> None:
    """Train and predict with a few rows, which compiles the code."""
    X = np.random.default_rng(0).normal(size=(24, 3)).astype(dtype)
    y = X[:, 0].astype(np.float64)
    row_hashes(X, y)
    method = replace(_SMALL, name="oneclass", one_class=True) if one_class else _SMALL
    method(Dataset(X, y), ValueOptions(max_iter=50, **options)).model.predict(X[:2])


class Values(Family[ValueMethod, ValueOptions, SVMFit[SVRModel], SVRModel, Any]):
    """The family of regression and one-class SVMs: one real number per row."""

    score: ClassVar[str] = "R^2 on rows left out"  # of a search
    also = "; or the settings that were compared: give several values of --C, --epsilon or --gamma"

    def check(self, method: ValueMethod, job: Training, options: ValueOptions, comm: Communicator) -> dict[str, Path]:
        """Check --libsvm; returns the further output files."""
        return check_libsvm(job, options, comm)

    def warm_up(self, dtype: str, method: ValueMethod, options: ValueOptions) -> None:
        """Compile the code of the method and of prediction, and of nu-SVR or the search if they are requested."""
        _solve_small(dtype, method.one_class, partitions=2)
        own = {"nu": 0.5} if options.nu is not None else {"C": (1.0, 2.0)} if options.searches else None
        if own is not None and not method.one_class:
            _solve_small(dtype, False, **own)

    def warm_up_prediction(self, dtype: str) -> None:
        """Compile all other code with a small regression in two parts; one class is predicted by the same code."""
        _solve_small(dtype, False, partitions=2)

    def read(
        self, method: ValueMethod, job: Training, options: ValueOptions, comm: Communicator, limit: int
    ) -> tuple[Dataset, Dataset | None]:
        """Read training rows with their targets (not needed for one class), and test rows if there are any."""
        train, test = reading.read(job, comm, limit, _NOT_NEEDED if method.one_class else _NUMBERS)
        if not method.one_class:
            y = train.target()
            with comm.uncounted():
                low = comm.allreduce(np.array([y.min(initial=np.inf)]), "min")[0]
                high = comm.allreduce(np.array([y.max(initial=-np.inf)]), "max")[0]
            with comm.agreed():
                if low == high:
                    raise InputError(f"{train.where}: all {train.n:,} targets are {low:g}; there is nothing to learn")
        return train, test

    def draws(self, method: ValueMethod, options: ValueOptions) -> str:
        """Name of the figure of --plot: the metric if there is one, else the grid, if settings were compared."""
        return super().draws(method, options) or ("grid" if options.searches else "")

    def columns(self, made: dict[str, Any]) -> GridColumns:
        """Columns of the grid in the report: C, gamma and the score, with the best of several epsilons."""
        return GridColumns("gamma", "C", f"cv_{made['cv']['scoring']}", self.score)

    def load(self, path: Path, comm: Communicator) -> SVRModel:
        """Load a saved model; collective."""
        return SVRModel.load(path, comm)

    def targets(self, model: SVRModel) -> tuple[Targets, tuple[int, ...]]:
        """Targets to read: numbers; for one class, labels of any kind, of which only 1 and -1 are used."""
        return (_NOT_NEEDED if model.svm_type == "one_class" else _NUMBERS), ()

    def tested(self, model: SVRModel, test: Dataset, comm: Communicator) -> dict[str, NDArray[np.float64]]:
        """Outputs for this rank's test rows; collective."""
        return {"values": model.decision_function(test.X, comm)}

    def metrics(
        self, model: SVRModel, test: Dataset, answers: dict[str, NDArray[np.float64]], comm: Communicator
    ) -> dict[str, object]:
        """Metrics of the test rows; see :meth:`judged`."""
        return self.judged(model, test, answers["values"], comm)

    def judged(self, model: SVRModel, rows: Dataset, answers: Any, comm: Communicator) -> dict[str, object]:
        """Regression errors, or for one class the share of outliers and, with labels 1 and -1, accuracy. Collective."""
        with comm.phase("predict"):
            if model.svm_type != "one_class":
                return dict(errors.regression_metrics(rows.target(), answers, comm))
            return outlier_metrics(rows.y, model.answers(answers), comm)

    def report(
        self, method: ValueMethod, fitted: SVMFit[SVRModel], options: ValueOptions, job: Training
    ) -> dict[str, Any]:
        """Fields of the report: parameters as numbers, and solver statistics of each part."""
        model = fitted.model
        kernel = model.kernel
        assert kernel is not None
        parts = {} if options.exact else {"partitioner": options.partitioner or PARTITIONERS[0]}
        params = {
            "svm_type": model.svm_type, **model.params, "tol": fitted.tol, "kernel": kernel.kind,
            **{name: getattr(kernel, name) for name in kernel.declared.parameters},
            **reported(options, method.has), **parts, "route": model.route, **soft_fields(model), "dtype": model.dtype,
        }  # fmt: skip
        return {**fields(fitted, params), "metric": described_metric(options.metric, fitted)}

    def save(self, fitted: SVMFit[SVRModel], job: Training) -> None:
        """Write LIBSVM's files."""
        if job.libsvm is not None:
            export_libsvm(fitted.model, job.libsvm)

    def lines(self, made: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield lines of the table: the best settings."""
        if made["grid"]:
            names = [name for name in ("C", "epsilon", "gamma") if name in made["grid"][0]]
            lines = best_lines(made["grid"], names, self.columns(made))
            folds, settings = made["cv"]["folds"], made["cv"]["settings"]
            said = f"{made['cv']['scoring']} of {folds} fold{'s' * (folds != 1)}, {settings} settings"
            yield "best settings", CellLines([*lines, said])

    def notes(self, method: ValueMethod, fitted: SVMFit[SVRModel], options: ValueOptions) -> list[str]:
        """Notes on solvers that stopped early, on the search, and on the route that suits random parts."""
        notes, found = list(fitted.notes), fitted.search
        if found is None and options.searches:
            notes.append(UNSEARCHED)
        if found is not None:
            notes += end_lines(found.at_grid_end)
            if found.stopped:
                notes.append(f"{found.stopped:,} of {found.solved:,} solutions of the search stopped at the limit")
        if options.partitioner == "random" and len(fitted.sizes) > 1 and fitted.model.route == "nearest":
            notes.append("random parts: --route all, the mean of all models, is usually more accurate")
        return notes

    def details(self, made: dict[str, Any]) -> Iterator[str]:
        """Yield the lines of --verbose: each setting, and each part."""
        for row in made["grid"]:
            where = ", ".join(f"{name} {row[name]:.4g}" for name in ("C", "epsilon", "gamma") if name in row)
            yield f"{where}: {row[self.columns(made).score]:.5f}"
        yield from part_lines(made)

    def check_prediction(self, model: SVRModel, job: Predicting) -> None:
        """Refuse options that only apply to classifiers."""
        if job.probability:
            raise InputError("--probability: the model has no classes; leave it out")
        self.check_interval(model, job)
        if job.decisions and model.svm_type != "one_class":
            raise InputError("--decisions: the model is a regression's, which only has predictions; leave it out")

    def check_interval(self, model: SVRModel, job: Predicting) -> None:
        """Refuse intervals, which only quantiles have."""
        if job.interval is not None:
            raise InputError("--interval: the model has no quantiles; train one with casvm.svr --quantile 0.05,0.95")

    def answers(self, model: SVRModel, rows: Dataset, job: Predicting, comm: Communicator) -> Any:
        """Outputs for this rank's rows; collective."""
        return model.decision_function(rows.X, comm)

    def predictions(self, model: SVRModel, answers: Any, decisions: bool) -> dict[str, Column]:
        """Column ``prediction``, for one class 1 or -1; and the decision of one class, if requested."""
        if model.svm_type != "one_class":
            return {"prediction": answers}
        return {"prediction": model.answers(answers), **({"decision": answers} if decisions else {})}


def outlier_metrics(
    y: NDArray[np.generic] | None, predicted: NDArray[np.int64], comm: Communicator
) -> dict[str, object]:
    """Share of predicted outliers; if all labels are 1 or -1, also accuracy, precision and recall. Collective.

    Parameters
    ----------
    y : ndarray, shape (n_local,), or None
        Labels of any kind; -1 means outlier.
    predicted : ndarray of int64, shape (n_local,)
    comm : Communicator

    Returns
    -------
    dict
        ``outliers``; and ``accuracy``, ``balanced_accuracy``, ``confusion`` (rows: true -1 and 1), and ``precision``
        and ``recall`` of the outliers, None for 0 / 0.
    """
    known = y is not None and y.dtype.kind in "biuf" and bool(np.isin(y, (-1, 1)).all())
    out, n = comm.allreduce(np.array([np.count_nonzero(predicted < 0), len(predicted)], np.int64)).tolist()
    told: dict[str, Any] = {"outliers": out / max(1, n)}
    if not comm.all(known or not len(predicted)) or y is None:
        return told
    told |= errors.classification_metrics(y, predicted, np.array([-1, 1]), comm)
    (right, missed), (wrong, _) = told["confusion"]
    for name, others in (("precision", wrong), ("recall", missed)):
        told[name] = right / (right + others) if right + others else None
    return told
