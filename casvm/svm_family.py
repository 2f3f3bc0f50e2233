"""Kernel SVMs in the commands: checks, warm-up, reading, reports and files.

:class:`Machines` has what the families share: LIBSVM's files, the search, and a line per part. They are classifiers
(:class:`SupportVectors`), regressions (:class:`Values`), one class (:class:`Outliers`), and quantiles
(:class:`Quantiles`), with a column per quantile, pinball losses, and intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore import metrics as errors
from cacore.comm import Communicator
from cacore.data import labels
from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.io.fingerprints import row_hashes
from cacore.io.predictions import Column
from cacore.io.table import Targets
from cacore.kernels.evaluate import warm_up
from cacore.kernels.registry import declaration
from cacore.learn.options import reported
from cacore.metrics import quantile_metrics
from cacore.run import reading
from cacore.run.family import (
    Answer,
    AnyAnswering,
    AnyFamily,
    Classifiers,
    Family,
    MethodT,
    NumberAnswer,
    OptionsT,
    Run,
    described_metric,
)
from cacore.run.launch import Predicting
from cacore.run.report import Report
from cacore.terminal import CellLines
from cacore.tuning import GridColumns, best_lines, end_lines
from casvm.methods import in_parts, of_values
from casvm.model.libsvm_files import export_libsvm
from casvm.model.quantile_model import QuantileModel
from casvm.model.svm_model import SVMModel
from casvm.model.svr_model import SVRModel
from casvm.options import PARTITIONERS, UNSEARCHED, UNSEARCHED_VALUES, SVMMethod, SVMOptions, ValueMethod, ValueOptions
from casvm.search.regression import QUANTILE_SCORE, SCORE
from casvm.svm_fit import SVMFit, predicted
from partition.parts_model import InParts, load_one_of

InPartsT = TypeVar("InPartsT", bound=InParts)
SVRModelT = TypeVar("SVRModelT", bound=SVRModel)

SVMRun = Run[SVMMethod, SVMOptions]
ValueRun = Run[ValueMethod, ValueOptions]

_SCORES = {SCORE: "R^2", QUANTILE_SCORE: "minus the mean pinball loss"}  # in titles; others have their own names
_SETTING = ("C", "epsilon", "gamma")


class Machines(Family[MethodT, OptionsT, SVMFit[Any], InPartsT], Generic[MethodT, OptionsT, InPartsT]):
    """Base of the families of kernel SVMs: files, figures and the search.

    Attributes
    ----------
    unsearched : str
        Note that there were too few rows for a search.
    averaged : str
        What the route "all" averages.
    """

    unsearched: ClassVar[str]
    averaged: ClassVar[str]

    def load(self, path: Path, comm: Communicator) -> tuple[Any, AnyAnswering]:
        """A saved SVM of any kind, and the family that predicts with it; collective."""
        model: Any = load_one_of((SVMModel, SVRModel, QuantileModel), path, comm)
        if isinstance(model, SVMModel):
            return model, SupportVectors()
        if isinstance(model, QuantileModel):
            return model, Quantiles()
        return model, Outliers() if model.one_class else Values()

    def check(self, run: Run[MethodT, Any]) -> dict[str, Path]:
        """The output file of ``--libsvm``, if given; refuses several ranks, and kernels and metrics that LIBSVM lacks.

        Raises
        ------
        InputError
        """
        libsvm, options = run.job.libsvm, run.options
        if libsvm is None:
            return {}
        if run.comm.size > 1:
            raise InputError("--libsvm: only one process can write the parts; save --model, and convert it on one rank")
        if declaration(options.kernel).libsvm is None:
            raise InputError(f"--libsvm: LIBSVM has no {options.kernel} kernel; save --model instead")
        if options.metric != "none":
            raise InputError("--libsvm: LIBSVM's format has no metric; leave out --libsvm or --metric")
        return {"--libsvm": libsvm}

    def save(self, run: Run[MethodT, OptionsT], fitted: SVMFit[Any]) -> None:
        """Write LIBSVM's files."""
        if run.job.libsvm is not None:
            export_libsvm(fitted.model, run.job.libsvm)

    def fields(self, run: Run[MethodT, Any], fitted: SVMFit[Any], params: Report) -> Report:
        """Fields of the report: `params`, the solver's statistics, the results of the search, and the metric."""
        search = fitted.search
        return {
            "params": params,
            "solver": {**fitted.solver, **fitted.more},
            "grid": [] if search is None else search.rows(),
            "cv": None if search is None else search.described(),
            "at_grid_end": {} if search is None else search.at_grid_end,
            "busy": fitted.busy,
            "metric": described_metric(run.options.metric, fitted),
        }

    def draws(self, run: Run[MethodT, Any]) -> str:
        """Name of the figure of --plot: the metric if there is one, else the grid, if settings were compared."""
        return super().draws(run) or ("grid" if run.options.searches else "")

    def columns(self, report: Report) -> GridColumns:
        """Columns of the grid in the report: C, gamma and the score, with the best of several epsilons."""
        score, single = report["cv"]["scoring"], not report["cv"]["per_part"]
        title = _SCORES.get(score, score.replace("_", " "))
        return GridColumns("gamma", "C", f"cv_{score}", f"{title} on rows left out", single=single)

    def lines(self, report: Report) -> Iterator[tuple[str, str]]:
        """Yield lines of the table: the best settings."""
        if report["grid"]:
            grid, cv = report["grid"], report["cv"]
            lines = best_lines(grid, [name for name in _SETTING if name in grid[0]], self.columns(report))
            early = f", {cv['ended']} of them ended early" if cv["ended"] else ""
            folds = f"{cv['folds']} fold{'s' * (cv['folds'] != 1)}"
            yield "best settings", CellLines([*lines, f"{cv['scoring']} of {folds}, {cv['settings']} settings{early}"])

    def notes(self, run: Run[MethodT, Any], fitted: SVMFit[Any]) -> list[str]:
        """Notes on solvers that stopped early, on the search, and on the route that suits random parts."""
        notes, search = list(fitted.notes), fitted.search
        if search is None and run.options.searches:
            notes.append(self.unsearched)
        if search is not None:
            notes += end_lines(search.at_grid_end)
            if search.ended.any():
                notes.append(
                    f"{np.count_nonzero(search.ended)} of {len(search.scores)} settings ended before their last fold: "
                    "they trailed the best by more than two standard errors"
                )
            notes += [search.limit_note] if search.limit_note else []
        if len(fitted.sizes) > 1 and self.random_nearest(run, fitted):
            notes.append(f"random parts: --route all, the mean of all {self.averaged}, is usually more accurate")
        return notes

    def random_nearest(self, run: Run[MethodT, OptionsT], fitted: SVMFit[Any]) -> bool:
        """True if parts are random, and rows are predicted by the nearest one."""
        raise NotImplementedError

    def details(self, report: Report) -> Iterator[str]:
        """Yield the lines of --verbose: each setting, and each part."""
        for row in report["grid"]:
            where = ", ".join(f"{name} {row[name]:.4g}" for name in _SETTING if name in row)
            yield f"{where}: {self.described_score(row, row[self.columns(report).score])}"
        solver, sizes = report["solver"], report["partition_sizes"]
        if "layers" not in solver:
            rows = sizes if len(solver["seconds"]) > 1 else [report["data"]["n_train"]]
            yield from problem_lines("part", solver, rows)

    def described_score(self, row: Report, score: float) -> str:
        """Text of the score in a row of the grid."""
        return f"{score:.5f}"


def soft_fields(model: InParts) -> dict[str, object]:
    """Parameters of soft routing, for the report's params."""
    return {} if model.soft is None else {"soft_k": model.soft.k, "soft_t": model.soft.t}


def problem_lines(what: str, solver: Report, rows: object) -> Iterator[str]:
    """Yield a line per problem; `rows` has the number of rows of each."""
    columns = (rows, *(solver[name] for name in ("n_support", "iterations", "gap", "seconds")))
    for number, (m, support, iterations, gap, seconds) in enumerate(zip(*columns, strict=True)):
        yield (
            f"{what} {number}: {m:,} rows, {support:,} support vectors, {iterations:,} iterations, "
            f"violation {gap:.2g}, {seconds:.3f} s"
        )


# -- classes -----------------------------------------------------------------------------------

_WARM_UP = SVMMethod(name="casvm", summary="a small CA-SVM that compiles the code of all methods", trainer=in_parts)


class SupportVectors(
    Machines[SVMMethod, SVMOptions, SVMModel], Classifiers[SVMMethod, SVMOptions, SVMFit[SVMModel], SVMModel]
):  # fmt: skip
    """The family of SVM classifiers: in parts, in trees of merges, and of all rows."""

    also = (
        "; or the settings that were compared: give several values of --C or --gamma; or a calibration curve: "
        "--probability"
    )
    unsearched, averaged = UNSEARCHED, "models' decisions"

    @classmethod
    def of(cls, method: SVMMethod | ValueMethod, options: Any) -> AnyFamily:
        """The family of classes, quantiles, one class or a regression."""
        if not isinstance(method, ValueMethod):
            return cls()
        if options.quantile is not None:
            return Quantiles()
        return Outliers() if method.one_class else Values()

    def check(self, run: SVMRun) -> dict[str, Path]:
        """Check the options that exclude --libsvm or --out-of-core; returns the further output files."""
        options = run.options
        options.check_out_of_core(run.job.libsvm is not None)
        files = super().check(run)
        if files and options.probability not in (None, "sigmoid"):
            raise InputError(
                f"--libsvm: LIBSVM's format has no {options.probability} probabilities; give --probability"
            )
        return files

    def warm_up_prediction(self, dtype: str) -> None:
        """Compile the code of all methods with a small CA-SVM."""
        X = np.random.default_rng(0).normal(size=(24, 3)).astype(dtype)
        row_hashes(X, X[:, 0])
        _WARM_UP(Dataset(X, (np.arange(24) % 2).astype(np.int64)), SVMOptions(max_iter=50)).model.predict(X[:2])

    def read(self, run: SVMRun) -> tuple[Dataset, Dataset | None]:
        """Read training and test rows with their labels; with ``--initial root``, rank 0 scatters them."""
        job, options, comm = run.job, run.options, run.comm
        if options.initial == "root":
            train, test = reading.read_at_root(job, comm, run.limit, options.seed)
        else:
            train, test = reading.read(job, comm, run.limit, disk=reading.Disk.of(run.method, job, options))
        train.y = labels.from_file(train, comm)
        with comm.agreed():
            if job.libsvm is not None and train.y.dtype.kind != "i":
                raise InputError("--libsvm: LIBSVM's labels are whole numbers, and some of these are not")
        return train, test

    def draws(self, run: SVMRun) -> str:
        """Name of the figure of --plot: the metric if there is one, else a calibration curve, else the grid."""
        name = super().draws(run)
        return "reliability" if run.options.probability and name != "metric" else name

    def report(self, run: SVMRun, fitted: SVMFit[SVMModel]) -> Report:
        """Fields of the report: parameters, solver statistics, and the predicted communication volume."""
        model, method, options = fitted.model, run.method, run.options
        one_model_options = options.searches or options.probability is not None
        unpredicted = options.initial == "root" or options.metric != "none" or (method.one_model and one_model_options)
        volume = {} if unpredicted or fitted.terms is None else predicted(method.name, fitted.terms)
        if volume and fitted.more.get("passes", 1) > 1:
            volume["formula"] += ", one pass"
        of_parts = {name: values for name, values in (("C", model.Cs), ("gamma", model.gammas)) if values is not None}
        params = {
            **self.params(model, options), **of_parts, "route": model.route, **soft_fields(model),
            **reported(options, method.has),
        }  # fmt: skip
        return {**self.fields(run, fitted, params), "volume": volume}

    def lines(self, report: Report) -> Iterator[tuple[str, str]]:
        """Yield lines of the table: best settings, measured and predicted volume, mean number of busy ranks."""
        yield from super().lines(report)
        if report["ranks"] > 1 and "volume" in report:
            volume = report["volume"]
            yield (
                "volume",
                f"{volume['measured_bytes']:,} bytes in partition and training; "
                f"{volume['predicted_bytes']:,} predicted, in words of 4 bytes {volume['formula']}",
            )
        if "average_parallelism" in report["solver"]:
            yield "parallelism", f"{report['solver']['average_parallelism']:.2f} ranks busy on average (eq. 2.13)"

    def random_nearest(self, run: SVMRun, fitted: SVMFit[SVMModel]) -> bool:
        """True if the method deals rows to parts at random, and the option asks for the nearest one."""
        return not run.method.partitioner and not run.method.one_model and run.options.route == "nearest"

    def details(self, report: Report) -> Iterator[str]:
        """Yield the lines of --verbose: each setting, and each part or each problem of a tree."""
        yield from super().details(report)
        for layer in report["solver"].get("layers", []):
            where = f"pass {layer['pass']}, layer {layer['layer']}"
            yield f"{where}: {layer['layer_seconds']:.3f} s on {layer['ranks']} ranks"
            yield from problem_lines("problem", layer, layer["rows"])

    def described_score(self, row: Report, score: float) -> str:
        """Text of the score in a row of the grid, with its folds."""
        text = f"{score:.4f}" if np.isfinite(score) else "no fold"
        return f"{text} of {row['folds']} folds{', ended' if row['ended'] else ''}"


# -- numbers -----------------------------------------------------------------------------------

_SMALL = ValueMethod(name="svr", summary="small problems that compile the code of all methods", trainer=of_values)
_NUMBERS = Targets(remedy="for class labels, use python -m casvm.casvm or another classifier")
_NOT_NEEDED = Targets(labels="any", needed=False)


def _solve_small(dtype: str, one_class: bool = False, **options: Any) -> None:
    """Train and predict with a few rows, which compiles the code."""
    X = np.random.default_rng(0).normal(size=(24, 3)).astype(dtype)
    y = X[:, 0].astype(np.float64)
    row_hashes(X, y)
    method = replace(_SMALL, name="oneclass", one_class=True) if one_class else _SMALL
    method(Dataset(X, y), ValueOptions(max_iter=50, **options)).model.predict(X[:2])


class Values(Machines[ValueMethod, ValueOptions, SVRModelT], Generic[SVRModelT]):
    """The family of regressions: one real number per row."""

    also = "; or the settings that were compared: give several values of --C, --epsilon or --gamma"
    unsearched, averaged = UNSEARCHED_VALUES, "models"

    def warm_up(self, run: ValueRun) -> None:
        """Compile the code of the method and of prediction, and of nu-SVR or the search if they are requested."""
        super().warm_up(run)
        options = run.options
        extra = {"nu": 0.5} if options.nu is not None else {"C": (1.0, 2.0)} if options.searches else None
        if extra is not None:
            _solve_small(run.job.dtype, **extra)

    def warm_up_prediction(self, dtype: str) -> None:
        """Compile all other code with a small regression in two parts; one class is predicted by the same code."""
        _solve_small(dtype, partitions=2)

    def read(self, run: ValueRun) -> tuple[Dataset, Dataset | None]:
        """Read training rows with their targets, which must differ, and test rows if there are any."""
        comm = run.comm
        train, test = reading.read(run.job, comm, run.limit, _NUMBERS)
        y = train.target()
        with comm.uncounted():
            low = comm.allreduce(np.array([y.min(initial=np.inf)]), "min")[0]
            high = comm.allreduce(np.array([y.max(initial=-np.inf)]), "max")[0]
        with comm.agreed():
            if low == high:
                raise InputError(f"{train.where}: all {train.n:,} targets are {low:g}; there is nothing to learn")
        return train, test

    def targets(self, model: SVRModelT) -> tuple[Targets, tuple[int, ...]]:
        """Targets to read: numbers."""
        return _NUMBERS, ()

    def check_prediction(self, model: SVRModelT, job: Predicting) -> None:
        """Refuse options that only apply to other models."""
        if job.probability:
            raise InputError("--probability: the model has no classes; leave it out")
        self.check_interval(model, job)
        if job.decisions and not model.one_class:
            raise InputError("--decisions: the model is a regression's, which only has predictions; leave it out")

    def check_interval(self, model: SVRModelT, job: Predicting) -> None:
        """Refuse intervals, which only quantiles have."""
        if job.interval is not None:
            raise InputError("--interval: the model has no quantiles; train one with casvm.svr --quantile 0.05,0.95")

    def tested(self, model: SVRModelT, test: Dataset, comm: Communicator) -> Answer:
        """Outputs for this rank's test rows; collective."""
        return NumberAnswer(model, {"mean": model.decision_function(test.X, comm)})

    def answer(self, model: SVRModelT, rows: Dataset, job: Predicting, comm: Communicator) -> Answer:
        """Outputs for this rank's rows; collective."""
        return self.tested(model, rows, comm)

    def report(self, run: ValueRun, fitted: SVMFit[SVRModelT]) -> Report:
        """Fields of the report: parameters as numbers, and solver statistics of each part."""
        model, options = fitted.model, run.options
        kernel = model.kernel
        assert kernel is not None
        parts = {} if options.exact else {"partitioner": options.partitioner or PARTITIONERS[0]}
        params = {
            "svm_type": model.svm_type, **model.params, "tol": fitted.tol, "kernel": kernel.kind,
            **{name: getattr(kernel, name) for name in kernel.declared.parameters},
            **reported(options, run.method.has), **parts, "route": model.route, **soft_fields(model),
            "dtype": model.dtype,
        }  # fmt: skip
        return self.fields(run, fitted, params)

    def random_nearest(self, run: ValueRun, fitted: SVMFit[SVRModelT]) -> bool:
        """True if random parts were requested, and the model's route is the nearest one."""
        return run.options.partitioner == "random" and fitted.model.route == "nearest"


# -- one class ---------------------------------------------------------------------------------


class OutlierAnswer(Answer):
    """Decisions of one class, by the name "decision"."""

    def metrics(self, rows: Dataset, comm: Communicator) -> Report:
        """Share of outliers and, with labels 1 and -1, accuracy."""
        with comm.phase("predict"):
            return outlier_metrics(rows.y, self.model.answers(self.arrays["decision"]), comm)

    def columns(self, decisions: bool) -> dict[str, Column]:
        """Column ``prediction``, 1 or -1, and the decision on request."""
        prediction = self.model.answers(self.arrays["decision"])
        return {"prediction": prediction, **(self.arrays if decisions else {})}


class Outliers(Values[SVRModel]):
    """The family of one-class SVMs: a decision per row, which needs no targets."""

    def warm_up(self, run: ValueRun) -> None:
        """Compile the code of one class, which has its own form of the pairs."""
        _solve_small(run.job.dtype, one_class=True, partitions=2)
        warm_up((str(run.options.kernel),))

    def read(self, run: ValueRun) -> tuple[Dataset, Dataset | None]:
        """Read training rows, and test rows if there are any."""
        return reading.read(run.job, run.comm, run.limit, _NOT_NEEDED)

    def targets(self, model: SVRModel) -> tuple[Targets, tuple[int, ...]]:
        """Labels of any kind, of which only 1 and -1 are used."""
        return _NOT_NEEDED, ()

    def tested(self, model: SVRModel, test: Dataset, comm: Communicator) -> Answer:
        """Decisions for this rank's rows; collective."""
        return OutlierAnswer(model, {"decision": model.decision_function(test.X, comm)})


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
    labelled = y is not None and y.dtype.kind in "biuf" and bool(np.isin(y, (-1, 1)).all())
    out, n = comm.allreduce(np.array([np.count_nonzero(predicted < 0), len(predicted)], np.int64)).tolist()
    metrics: Report = {"outliers": out / max(1, n)}
    if not comm.all(labelled or not len(predicted)) or y is None:
        return metrics
    metrics |= errors.classification_metrics(y, predicted, np.array([-1, 1]), comm)
    (right, missed), (wrong, _) = metrics["confusion"]
    for name, others in (("precision", wrong), ("recall", missed)):
        metrics[name] = right / (right + others) if right + others else None
    return metrics


# -- quantiles ---------------------------------------------------------------------------------


class QuantileAnswer(Answer):
    """Quantiles of rows, ascending, by the name "values", shape (n_local, t); on request "lower" and "upper"."""

    def metrics(self, rows: Dataset, comm: Communicator) -> Report:
        """Pinball losses, and the share of targets below each quantile."""
        with comm.phase("predict"):
            return quantile_metrics(rows.target(), self.arrays["values"], self.model.levels, comm)

    def columns(self, decisions: bool) -> dict[str, Column]:
        """A column per quantile, such as ``quantile 0.1``, and ``lower`` and ``upper`` ends of intervals."""
        values = np.ascontiguousarray(self.arrays["values"].T)
        columns: dict[str, Column] = {
            f"quantile {level:g}": column for level, column in zip(self.model.levels, values, strict=True)
        }
        return columns | {name: ends for name, ends in self.arrays.items() if name != "values"}


class Quantiles(Values[QuantileModel]):
    """The family of quantile regressions: one real number per row and level."""

    def check(self, run: ValueRun) -> dict[str, Path]:
        """Refuse --libsvm."""
        if run.job.libsvm is not None:
            raise InputError("--libsvm: LIBSVM's format has no quantiles; save --model instead")
        return {}

    def check_interval(self, model: QuantileModel, job: Predicting) -> None:
        """Refuse intervals of a model without calibration, or of a coverage that it cannot reach."""
        if job.adaptive is not None:
            raise InputError("--adaptive: intervals of quantiles have a width for each row already; leave it out")
        if job.interval is not None:
            model.width(job.interval)

    def tested(self, model: QuantileModel, test: Dataset, comm: Communicator) -> Answer:
        """Quantiles of this rank's test rows; collective."""
        return QuantileAnswer(model, {"values": model.quantiles(model.decision_function(test.X, comm))})

    def answer(self, model: QuantileModel, rows: Dataset, job: Predicting, comm: Communicator) -> Answer:
        """Quantiles of this rank's rows, and the ends of their intervals if requested; collective."""
        raw = model.decision_function(rows.X, comm)
        answer = QuantileAnswer(model, {"values": model.quantiles(raw)})
        if job.interval is not None and model.calibration is not None:
            answer.arrays["lower"], answer.arrays["upper"] = model.ends(raw, job.interval)
            answer.facts = model.calibration.described(job.interval)
        return answer

    def report(self, run: ValueRun, fitted: SVMFit[QuantileModel]) -> Report:
        """Fields of the report: also the levels, and the share of rows that intervals are calibrated on."""
        report = super().report(run, fitted)
        report["params"] |= {"quantile": list(run.options.levels), "calibrate": run.options.calibrate}
        return report

    def notes(self, run: ValueRun, fitted: SVMFit[Any]) -> list[str]:
        """Notes; also on the rows that intervals are calibrated on."""
        notes, share = super().notes(run, fitted), run.options.calibrate
        if share is not None:
            notes.append(f"a share of {share:g} of the rows was held out to calibrate the quantiles")
        return notes
