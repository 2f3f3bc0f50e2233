"""Kernel SVMs in the commands: checks, warm-up, reading, reports and files.

First come the parts of the report that all SVMs share: LIBSVM's files, results of the solver and the search, and a line
per part. Then the families: classifiers (:class:`SupportVectors`), regression and one class (:class:`Values`), and
quantiles (:class:`Quantiles`), with a column per quantile, pinball losses, and intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

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
from cacore.kernels.registry import declaration
from cacore.learn.options import reported
from cacore.metrics import interval_metrics, quantile_metrics
from cacore.run import reading
from cacore.run.answers import Classifiers
from cacore.run.family import AnyFamily, Family, TrainedModel, described_metric
from cacore.run.launch import Predicting, Training
from cacore.terminal import CellLines
from cacore.tuning import GridColumns, best_lines, end_lines
from casvm.methods import in_parts, of_values
from casvm.model.libsvm_files import export_libsvm
from casvm.model.quantile_model import Ends, QuantileModel
from casvm.model.svm_model import SVMModel
from casvm.model.svr_model import SVRModel
from casvm.options import PARTITIONERS, UNSEARCHED, UNSEARCHED_VALUES, SVMMethod, SVMOptions, ValueMethod, ValueOptions
from casvm.svm_fit import SVMFit, predicted
from partition.parts_model import InParts, load_one_of


def check_libsvm(job: Training, options: SVMOptions | ValueOptions, comm: Communicator) -> dict[str, Path]:
    """The output file of ``--libsvm``, if given; refuses several ranks, and kernels and metrics that LIBSVM lacks.

    Raises
    ------
    InputError
    """
    if job.libsvm is None:
        return {}
    if comm.size > 1:
        raise InputError("--libsvm: only one process can write the parts; save --model, and convert it on one rank")
    if declaration(options.kernel).libsvm is None:
        raise InputError(f"--libsvm: LIBSVM has no {options.kernel} kernel; save --model instead")
    if options.metric != "none":
        raise InputError("--libsvm: LIBSVM's format has no metric; leave out --libsvm or --metric")
    return {"--libsvm": job.libsvm}


def soft_fields(model: InParts) -> dict[str, object]:
    """Parameters of soft routing, for the report's params."""
    return {} if model.soft is None else {"soft_k": model.soft.k, "soft_t": model.soft.t}


def fields(fitted: SVMFit[Any], params: dict[str, Any]) -> dict[str, Any]:
    """Fields of the report: `params`, the solver's statistics, and the results of the search."""
    return {
        "params": params,
        "solver": {**fitted.solver, **fitted.more},
        "grid": [] if fitted.search is None else fitted.search.rows(),
        "cv": None if fitted.search is None else fitted.search.described(),
        "at_grid_end": {} if fitted.search is None else fitted.search.at_grid_end,
        "busy": fitted.busy,
    }


def part_lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield a line per part, from the report."""
    solver = report["solver"]
    yield from problem_lines(
        "part", solver, report["partition_sizes"] if len(solver["seconds"]) > 1 else [report["data"]["n_train"]]
    )


def problem_lines(what: str, solver: dict[str, Any], rows: object) -> Iterator[str]:
    """Yield a line per problem; `rows` has the number of rows of each."""
    columns = (rows, *(solver[name] for name in ("n_support", "iterations", "gap", "seconds")))
    for number, (m, support, iterations, gap, seconds) in enumerate(zip(*columns, strict=True)):
        yield (
            f"{what} {number}: {m:,} rows, {support:,} support vectors, {iterations:,} iterations, "
            f"violation {gap:.2g}, {seconds:.3f} s"
        )


_WARM_UP = SVMMethod(name="casvm", summary="a small CA-SVM that compiles the code of all methods", trainer=in_parts)


class SupportVectors(Classifiers[SVMMethod, SVMOptions, SVMFit[SVMModel], SVMModel]):
    """The family of SVM classifiers: in parts, in trees of merges, and of all rows."""

    also = (
        "; or the settings that were compared: give several values of --C or --gamma; or a calibration curve: "
        "--probability"
    )

    def check(self, method: SVMMethod, job: Training, options: SVMOptions, comm: Communicator) -> dict[str, Path]:
        """Check the options that exclude --libsvm or --out-of-core; returns the further output files."""
        options.check_out_of_core(job.libsvm is not None)
        files = check_libsvm(job, options, comm)
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

    def read(
        self, method: SVMMethod, job: Training, options: SVMOptions, comm: Communicator, limit: int
    ) -> tuple[Dataset, Dataset | None]:
        """Read training and test rows with their labels; with ``--initial root``, rank 0 scatters them."""
        if options.initial == "root":
            train, test = reading.read_at_root(job, comm, limit, options.seed)
        else:
            train, test = reading.read(job, comm, limit, disk=reading.Disk.of(method, job, options))
        train.y = labels.from_file(train, comm)
        with comm.agreed():
            if job.libsvm is not None and train.y.dtype.kind != "i":
                raise InputError("--libsvm: LIBSVM's labels are whole numbers, and some of these are not")
        return train, test

    def draws(self, method: SVMMethod, options: SVMOptions) -> str:
        """Name of the figure of --plot: the metric if there is one, else a calibration curve, else the grid."""
        sure = "reliability" if options.probability else ""
        return super().draws(method, options) or sure or ("grid" if options.searches else "")

    def columns(self, report: dict[str, Any]) -> GridColumns:
        """Columns of the grid in the report: C, gamma and a score."""
        name, single_grid = report["cv"]["scoring"], not report["cv"]["per_part"]
        return GridColumns("gamma", "C", f"cv_{name}", f"{name.replace('_', ' ')} on rows left out", single=single_grid)

    def load(self, path: Path, comm: Communicator) -> InParts:
        """Load a saved SVM of any kind: classifier, regression or one class; collective."""
        return load_one_of((SVMModel, SVRModel, QuantileModel), path, comm)

    def of(self, model: TrainedModel) -> AnyFamily:
        """The family that predicts with `model`."""
        if isinstance(model, QuantileModel):
            return Quantiles()
        return Values() if isinstance(model, SVRModel) else self

    def report(self, method: SVMMethod, fitted: SVMFit[SVMModel], options: SVMOptions, job: Training) -> dict[str, Any]:
        """Fields of the report: parameters, solver statistics, and the predicted communication volume."""
        model = fitted.model
        one_model_options = options.searches or options.probability is not None
        unpredicted = options.initial == "root" or options.metric != "none" or (method.one_model and one_model_options)
        volume = {} if unpredicted or fitted.terms is None else predicted(method.name, fitted.terms)
        if volume and fitted.more.get("passes", 1) > 1:
            volume["formula"] += ", one pass"
        params = {
            **self.params(model, options), **_per_part_settings(model), "route": model.route, **soft_fields(model),
            **reported(options, method.has),
        }  # fmt: skip
        return {**fields(fitted, params), "metric": described_metric(options.metric, fitted), "volume": volume}

    def save(self, fitted: SVMFit[SVMModel], job: Training) -> None:
        """Write LIBSVM's files."""
        if job.libsvm is not None:
            export_libsvm(fitted.model, job.libsvm)

    def lines(self, report: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield lines of the table: best settings, measured and predicted volume, mean number of busy ranks."""
        if report["grid"]:
            grid, cv = report["grid"], report["cv"]
            early = f", {cv['ended']} of them ended early" if cv["ended"] else ""
            lines = best_lines(grid, [name for name in ("C", "gamma") if name in grid[0]], self.columns(report))
            summary = f"{cv['scoring']} of {cv['folds']} folds, {cv['settings']} settings{early}"
            yield "best settings", CellLines([*lines, summary])
        if report["ranks"] > 1 and "volume" in report:
            volume = report["volume"]
            yield (
                "volume",
                f"{volume['measured_bytes']:,} bytes in partition and training; "
                f"{volume['predicted_bytes']:,} predicted, in words of 4 bytes {volume['formula']}",
            )
        if "average_parallelism" in report["solver"]:
            yield "parallelism", f"{report['solver']['average_parallelism']:.2f} ranks busy on average (eq. 2.13)"

    def notes(self, method: SVMMethod, fitted: SVMFit[SVMModel], options: SVMOptions) -> list[str]:
        """Notes on solvers that stopped early, on the search, and on the route that suits random parts."""
        notes = [*fitted.notes, *_of_search(fitted, options)]
        if not method.partitioner and not method.one_model and len(fitted.sizes) > 1 and options.route == "nearest":
            notes.append("random parts: --route all, the mean of all models' decisions, is usually more accurate")
        return notes

    def details(self, report: dict[str, Any]) -> Iterator[str]:
        """Yield the lines of --verbose: each setting, and each part or each problem of a tree."""
        for row in report["grid"]:
            score = row[f"cv_{report['cv']['scoring']}"]
            where = ", ".join(f"{name} {row[name]:.4g}" for name in ("C", "gamma") if name in row)
            text = f"{score:.4f}" if np.isfinite(score) else "no fold"
            yield f"{where}: {text} of {row['folds']} folds{', ended' if row['ended'] else ''}"
        solver = report["solver"]
        if "layers" not in solver:
            yield from part_lines(report)
        for layer in solver.get("layers", []):
            where = f"pass {layer['pass']}, layer {layer['layer']}"
            yield f"{where}: {layer['layer_seconds']:.3f} s on {layer['ranks']} ranks"
            yield from problem_lines("problem", layer, layer["rows"])


def _per_part_settings(model: SVMModel) -> dict[str, object]:
    """C and gamma of each part, if every part has its own."""
    settings = {"C": model.Cs, "gamma": model.gammas}
    return {name: values for name, values in settings.items() if values is not None}


def _of_search(fitted: SVMFit[SVMModel], options: SVMOptions) -> Iterator[str]:
    """Notes on the choice of C and gamma."""
    results = fitted.search
    if results is None:
        if options.searches:
            yield UNSEARCHED
        return
    yield from end_lines(results.at_grid_end)
    if results.ended.any():
        yield (
            f"{np.count_nonzero(results.ended)} of {len(results.scores)} settings ended before their last fold: they "
            "trailed the best by more than two standard errors"
        )
    if results.limit_note:
        yield results.limit_note


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
        extra = {"nu": 0.5} if options.nu is not None else {"C": (1.0, 2.0)} if options.searches else None
        if extra is not None and not method.one_class:
            _solve_small(dtype, False, **extra)

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

    def columns(self, report: dict[str, Any]) -> GridColumns:
        """Columns of the grid in the report: C, gamma and the score, with the best of several epsilons."""
        return GridColumns("gamma", "C", f"cv_{report['cv']['scoring']}", self.score)

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
        return self.evaluate(model, test, answers["values"], comm)

    def evaluate(self, model: SVRModel, rows: Dataset, answers: Any, comm: Communicator) -> dict[str, object]:
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

    def lines(self, report: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield lines of the table: the best settings."""
        if report["grid"]:
            names = [name for name in ("C", "epsilon", "gamma") if name in report["grid"][0]]
            lines = best_lines(report["grid"], names, self.columns(report))
            folds, settings = report["cv"]["folds"], report["cv"]["settings"]
            summary = f"{report['cv']['scoring']} of {folds} fold{'s' * (folds != 1)}, {settings} settings"
            yield "best settings", CellLines([*lines, summary])

    def notes(self, method: ValueMethod, fitted: SVMFit[SVRModel], options: ValueOptions) -> list[str]:
        """Notes on solvers that stopped early, on the search, and on the route that suits random parts."""
        notes, results = list(fitted.notes), fitted.search
        if results is None and options.searches:
            notes.append(UNSEARCHED_VALUES)
        if results is not None:
            notes += end_lines(results.at_grid_end)
            notes += [results.limit_note] if results.limit_note else []
        if options.partitioner == "random" and len(fitted.sizes) > 1 and fitted.model.route == "nearest":
            notes.append("random parts: --route all, the mean of all models, is usually more accurate")
        return notes

    def details(self, report: dict[str, Any]) -> Iterator[str]:
        """Yield the lines of --verbose: each setting, and each part."""
        for row in report["grid"]:
            where = ", ".join(f"{name} {row[name]:.4g}" for name in ("C", "epsilon", "gamma") if name in row)
            yield f"{where}: {row[self.columns(report).score]:.5f}"
        yield from part_lines(report)

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
    labelled = y is not None and y.dtype.kind in "biuf" and bool(np.isin(y, (-1, 1)).all())
    out, n = comm.allreduce(np.array([np.count_nonzero(predicted < 0), len(predicted)], np.int64)).tolist()
    metrics: dict[str, Any] = {"outliers": out / max(1, n)}
    if not comm.all(labelled or not len(predicted)) or y is None:
        return metrics
    metrics |= errors.classification_metrics(y, predicted, np.array([-1, 1]), comm)
    (right, missed), (wrong, _) = metrics["confusion"]
    for name, others in (("precision", wrong), ("recall", missed)):
        metrics[name] = right / (right + others) if right + others else None
    return metrics


@dataclass
class PredictedQuantiles:
    """Quantiles of this rank's rows, ascending, shape (n_local, t); and ends of intervals, and facts about them."""

    values: NDArray[np.float64]
    ends: Ends | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Quantiles(Values):
    """The family of quantile regressions: one real number per row and level."""

    score: ClassVar[str] = "minus the mean pinball loss on rows left out"

    def check(self, method: ValueMethod, job: Training, options: ValueOptions, comm: Communicator) -> dict[str, Path]:
        """Refuse --libsvm."""
        if job.libsvm is not None:
            raise InputError("--libsvm: LIBSVM's format has no quantiles; save --model instead")
        return {}

    def tested(self, model: SVRModel, test: Dataset, comm: Communicator) -> dict[str, NDArray[np.float64]]:
        """Quantiles of this rank's test rows; collective."""
        return {"values": _quantiles(model).quantiles(model.decision_function(test.X, comm))}

    def metrics(
        self, model: SVRModel, test: Dataset, answers: dict[str, NDArray[np.float64]], comm: Communicator
    ) -> dict[str, object]:
        """Pinball losses of the test rows, and the share of targets below each quantile; collective."""
        return self.evaluate(model, test, PredictedQuantiles(answers["values"]), comm)

    def evaluate(
        self, model: SVRModel, rows: Dataset, answers: PredictedQuantiles, comm: Communicator
    ) -> dict[str, object]:
        """Pinball losses, and the share of targets below each quantile; collective."""
        with comm.phase("predict"):
            return quantile_metrics(rows.target(), answers.values, _quantiles(model).levels, comm)

    def report(
        self, method: ValueMethod, fitted: SVMFit[SVRModel], options: ValueOptions, job: Training
    ) -> dict[str, Any]:
        """Fields of the report: also the levels, and the share of rows that intervals are calibrated on."""
        report = super().report(method, fitted, options, job)
        report["params"] |= {"quantile": list(options.levels), "calibrate": options.calibrate}
        return report

    def notes(self, method: ValueMethod, fitted: SVMFit[SVRModel], options: ValueOptions) -> list[str]:
        """Notes; also on the rows that intervals are calibrated on."""
        notes = super().notes(method, fitted, options)
        if options.calibrate is not None:
            notes.append(f"a share of {options.calibrate:g} of the rows was held out to calibrate the quantiles")
        return notes

    def check_interval(self, model: SVRModel, job: Predicting) -> None:
        """Refuse intervals of a model without calibration, or of a coverage that it cannot reach."""
        if job.adaptive is not None:
            raise InputError("--adaptive: intervals of quantiles have a width for each row already; leave it out")
        if job.interval is not None:
            _quantiles(model).width(job.interval)

    def answers(self, model: SVRModel, rows: Dataset, job: Predicting, comm: Communicator) -> PredictedQuantiles:
        """Quantiles of this rank's rows, and the ends of their intervals if requested; collective."""
        raw, calibration = model.decision_function(rows.X, comm), _quantiles(model).calibration
        values = _quantiles(model).quantiles(raw)
        if job.interval is None or calibration is None:
            return PredictedQuantiles(values)
        facts = {"asked": job.interval, "adaptive": None, "rows": calibration.rows, "calibration_rows": calibration.n}
        return PredictedQuantiles(values, _quantiles(model).ends(raw, job.interval), facts)

    def intervals(self, rows: Dataset, answers: PredictedQuantiles, comm: Communicator) -> dict[str, object]:
        """Coverage and mean width of the intervals; collective."""
        if answers.ends is None:
            return {}
        with comm.phase("predict"):
            return answers.facts | interval_metrics(rows.y, *answers.ends, comm)

    def predictions(self, model: SVRModel, answers: PredictedQuantiles, decisions: bool) -> dict[str, Column]:
        """A column per quantile, such as ``quantile 0.1``, and ``lower`` and ``upper`` ends of intervals."""
        names = [f"quantile {level:g}" for level in _quantiles(model).levels]
        columns: dict[str, Column] = dict(zip(names, np.ascontiguousarray(answers.values.T), strict=True))
        return columns | ({} if answers.ends is None else dict(zip(("lower", "upper"), answers.ends, strict=True)))


def _quantiles(model: SVRModel) -> QuantileModel:
    assert isinstance(model, QuantileModel)
    return model
