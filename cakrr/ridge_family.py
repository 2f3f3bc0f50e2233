"""Kernel ridge regression in the commands: checking, warm-up, reading, reporting and writing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data import labels
from cacore.data.dataset import Dataset
from cacore.data.rows import AnyRows
from cacore.errors import InputError
from cacore.io.fingerprints import row_hashes
from cacore.io.predictions import Column, Labels
from cacore.io.table import LABELS, Targets
from cacore.learn.options import reported
from cacore.linalg import thin
from cacore.machine import memory
from cacore.metrics import probability_scores
from cacore.run import reading
from cacore.run.answers import Predicted, RegressionAnswering
from cacore.run.family import Family, TrainedModel, described_metric
from cacore.run.launch import Predicting, Training
from cacore.terminal import CellLines
from cacore.tuning import GridColumns, best_lines, end_lines
from cakrr.methods import in_parts
from cakrr.options import ALONE, RidgeMethod, RidgeOptions
from cakrr.ridge_model import KRRModel, RidgeFit
from cakrr.solver.local import BAND_FROM
from cakrr.uncertainty.answer import IntervalRequest, answered, parts_sharing

_SMALL = RidgeMethod(
    name="bkrr2", summary="a small grid that compiles the code of all methods", trainer=in_parts, route="nearest",
    partitioner="kbalance",
)  # fmt: skip
_NUMBERS = Targets(
    many=True, remedy="use --classify for classes, or cacore.io convert --binarize CLASS for targets +1 and -1"
)


class Ridge(RegressionAnswering[KRRModel], Family[RidgeMethod, RidgeOptions, RidgeFit, KRRModel, Predicted]):
    """The family of kernel ridge regression."""

    also = "; or the settings that were compared: give several values of --sigma or --lambda"

    def check(self, method: RidgeMethod, job: Training, options: RidgeOptions, comm: Communicator) -> dict[str, Path]:
        """Refuse --model for an oracle, and options that exclude --out-of-core; returns the further output files."""
        options.check_out_of_core(method)
        if method.oracle and job.model is not None:
            raise InputError(
                f"--model: {method.name} is an oracle, which needs the true targets: its model cannot be saved"
            )
        return {}

    def warm_up(self, dtype: str, method: RidgeMethod, options: RidgeOptions) -> None:
        """Compile the code that every method uses, and the products of conjugate gradients if they are used."""
        self.warm_up_prediction(dtype)
        if options.solver != "cholesky" or options.refine:
            thin.warm_up()

    def warm_up_prediction(self, dtype: str) -> None:
        """Compile all other code with a small grid of BKRR2."""
        X = np.random.default_rng(0).normal(size=(12, 3)).astype(dtype)
        row_hashes(X, X[:, 0])
        train = Dataset(X, X[:, 0].astype(np.float64), len(X))
        options = RidgeOptions(partitions=2, sigma=(1.0, 2.0), lam=tuple(np.geomspace(0.1, 1.0, BAND_FROM)))
        _SMALL(train, options).model.predict(X[:1])

    def kernels(self, options: RidgeOptions) -> tuple[str, ...]:
        """Names of the kernel, or of all kernels that "auto" tries."""
        return tuple(like.kind for like in options.kernels())

    def options(self, method: RidgeMethod, options: RidgeOptions, train: Dataset) -> RidgeOptions:
        """Options of the command, which tries several widths by default."""
        return replace(options, wide=True)

    def read(
        self, method: RidgeMethod, job: Training, options: RidgeOptions, comm: Communicator, limit: int
    ) -> tuple[Dataset, Dataset | None]:
        """Read training rows with targets or labels, and test rows if there are any."""
        wanted = LABELS if options.classify else _NUMBERS
        train, test = reading.read(job, comm, limit, wanted, reading.Disk.of(method, job, options))
        if options.classify:
            train.y = labels.from_file(train, comm)
        return train, test

    def targets(self, model: KRRModel) -> tuple[Targets, tuple[int, ...]]:
        """Targets to read: labels for a classifier, otherwise as many numbers as the model predicts."""
        return (_NUMBERS, np.shape(model.offset)) if model.classes is None else (LABELS.like(model.classes), ())

    def load(self, path: Path, comm: Communicator) -> TrainedModel:
        """Load a saved model; collective."""
        return KRRModel.load(path, comm)

    def tested(self, model: KRRModel, test: Dataset, comm: Communicator) -> dict[str, NDArray[np.float64]]:
        """Predictions by the model's route; with soft routing also those of the nearest model alone."""
        if model.route == "oracle":
            return {"oracle": test.target() + model.oracle(test.X, test.target(), comm)}
        return model.predict_routes(test.X, comm)

    def metrics(
        self, model: KRRModel, test: Dataset, answers: dict[str, NDArray[np.float64]], comm: Communicator
    ) -> dict[str, object]:
        """Errors of the model's route, and of other routes under their names."""
        predicted = {route: _as_predicted(model, answer) for route, answer in answers.items()}
        metrics = {route: self.evaluate(model, test, answer, comm) for route, answer in predicted.items()}
        own_scores = metrics.pop(model.route)
        return own_scores | {
            f"{route}_{name}": value for route, scores in metrics.items() for name, value in scores.items()
        }

    def report(self, method: RidgeMethod, fitted: RidgeFit, options: RidgeOptions, job: Training) -> dict[str, Any]:
        """Fields of the report: chosen parameters, errors of the grid, seconds and residuals of the parts."""
        model = fitted.model
        pair = {"sigma": model.sigma, "lambda": model.lam}
        if model.sigmas is not None and model.lams is not None:
            pair = {"sigma": model.sigmas.tolist(), "lambda": model.lams.tolist()}
        chosen = {**pair, **fitted.params, "route": model.route}
        return {
            "params": {
                **reported(options, method.has),
                **chosen, **({"oracle": True} if method.oracle else {}), "dtype": model.dtype,
                **({"classify": True, "balanced": options.class_weight is not None} if options.classify else {}),
                **({"targets": model.target_shape[0]} if model.target_shape and not options.classify else {}),
                "kernel": model.like.kind,
                **{name: getattr(options, name) for name in model.like.declared.parameters if name != "gamma"},
            },
            "grid": fitted.grid,
            "at_grid_end": fitted.at_grid_end,
            "solver": {
                "n_support": fitted.sizes, "seconds": fitted.seconds,
                **({"residual": fitted.residual} if fitted.residual.size else {}), **fitted.iteration,
            },
            "busy": fitted.busy,
            "metric": described_metric(options.metric, fitted),
            "library_bytes": fitted.library_bytes,
        }  # fmt: skip

    def draws(self, method: RidgeMethod, options: RidgeOptions) -> str:
        """Name of the figure of --plot: the metric if there is one, else the grid, if settings were compared."""
        single = options.sigma is not None and len(options.sigma) * len(options.lam) == 1
        compared = not single or method.coarse or options.chooses_kernel
        return super().draws(method, options) or ("grid" if compared else "")

    def columns(self, report: dict[str, Any]) -> GridColumns:
        """Columns of the grid in the report: sigma, lambda, those of a coarse model, and the error."""
        rows = {"validation_mse": "rows held out", "test_mse": "test rows", "loo_mse": "rows left out one by one",
                "gcv_mse": "all rows, by generalised cross-validation"}  # fmt: skip
        scores = (name for row in report["grid"] for name in rows if row.get(name) is not None)
        score, single = next(scores, "validation_mse"), np.ndim(report["params"]["sigma"]) == 0
        return GridColumns(
            "sigma", "lambda", score, f"mean squared error on {rows[score]}", smaller=True, single=single
        )

    def lines(self, report: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield lines of the table: best settings, conjugate gradients, and the bytes that ScaLAPACK sends."""
        if len(report["grid"]) > 1:
            grid, columns = report["grid"], self.columns(report)
            names = [name for name in grid[0] if not name.endswith("_mse") and len({row[name] for row in grid}) > 1]
            yield (
                "best settings",
                CellLines([*best_lines(grid, names, columns), f"{columns.title}, {len(grid)} settings"]),
            )
        if "solutions" in report["solver"]:
            yield "iterations", _described(report["solver"])
            if report["solver"]["solutions"] and "near" in report["solver"]["solutions"][-1]:
                yield "near rows", _near(report["solver"]["solutions"][-1]["near"])
        sent = report["comm"]["train"].get("library_bytes_predicted")
        if sent is not None:
            yield "and ScaLAPACK", f"{sent:,} bytes in training, by its formula"

    def notes(self, method: RidgeMethod, fitted: RidgeFit, options: RidgeOptions) -> list[str]:
        """Notes for the user on the choice of sigma and lambda."""
        notes = [*fitted.reasons, *fitted.notes]
        if method.oracle:
            notes.insert(
                0, "oracle: each test row's best model, chosen with the true answer: a bound, not a prediction"
            )
        if fitted.residual.size and not fitted.iteration:
            notes.append(
                "float32: factors in single precision, solutions refined in double to a relative residual of "
                f"{fitted.residual.max():.1e}; the grid's errors are single precision's"
            )
        if options.select == "test" and fitted.grid:
            notes.append(
                "sigma and lambda were chosen by the test error, which is therefore too low; use --select validation"
            )
        if method.coarse and fitted.model.lam == ALONE:
            notes.append(f"lambda {ALONE:g}: the parts' models add next to nothing to the coarse model")
        return notes + end_lines(fitted.at_grid_end)

    def details(self, report: dict[str, Any]) -> Iterator[str]:
        """Yield the lines of --verbose: errors of the grid, and seconds of each part."""
        for row in report["grid"]:
            errors = [value for name, value in row.items() if name.endswith("_mse") and value is not None]
            error = f"{errors[0]:.6g}" if errors else "not positive definite"
            coarse = f"centers {row['centers']:<6} " if "centers" in row else ""
            if "coarse_sigma" in row:
                coarse += f"coarse sigma {row['coarse_sigma']:<8.4g} coarse lambda {row['coarse_lambda']:<8.4g} "
            kernel = f"{row['kernel']:<10} " if "kernel" in row else ""
            yield f"{coarse}{kernel}sigma {row['sigma']:<10.4g} lambda {row['lambda']:<10.4g} mse {error}"
        for part, (m, seconds) in enumerate(zip(report["partition_sizes"], report["solver"]["seconds"], strict=True)):
            yield f"part {part}: {m:,} rows, {seconds:.3f} s"

    def check_prediction(self, model: KRRModel, job: Predicting) -> None:
        """Refuse requests for uncertainty that the model was not trained for."""
        if job.probability and model.classes is None:
            raise InputError(
                "--probability: the model predicts numbers and has no classes; train it with --classify, or by "
                "cakernels fit with --task classification"
            )
        _request(job).check(model)

    def answers(self, model: KRRModel, rows: Dataset, job: Predicting, comm: Communicator) -> Predicted:
        """Predictions for this rank's rows and their uncertainty; collective."""
        return _predicted(model, rows.X, job, comm)

    def evaluate(self, model: KRRModel, rows: Dataset, answers: Predicted, comm: Communicator) -> dict[str, object]:
        """Errors of the predictions, or accuracy of a classifier; collective."""
        if model.classes is not None:
            metrics = labels.tested(model.classes, rows, model.labels(answers.mean), comm)
            if answers.probabilities is not None and rows.y is not None:
                metrics |= labels.tested_probabilities(model.classes, rows, answers.probabilities, comm)
            return metrics
        return super().evaluate(model, rows, answers, comm)

    def probability(
        self, model: KRRModel, rows: Dataset | None, answers: Any, metrics: dict[str, Any], comm: Communicator
    ) -> dict[str, object]:
        """Scores of a classifier's probabilities, if the rows have labels; collective."""
        calibrator = model.calibrator
        entry = {
            "form": "clipped" if calibrator is None else calibrator.form,
            "left_out": 0 if calibrator is None else calibrator.rows,
        }
        if isinstance(answers, dict):  # from a training command, by route
            if calibrator is None:
                return {}
            answers = _as_predicted(model, answers[model.route]) if rows is not None else None
        if answers is None:
            return entry
        if rows is None or answers.probabilities is None:
            return {}
        if model.classes is None or rows.y is None:
            return entry
        lines = labels.tested_reliability(model.classes, rows, answers.probabilities, comm)
        return {**entry, **probability_scores(metrics), **({"reliability": lines} if lines else {})}

    def predictions(self, model: KRRModel, answers: Predicted, decisions: bool) -> dict[str, Column]:
        """Column ``prediction``, or ``mean`` and the requested ones; one column per target if there are several."""
        if model.classes is not None:
            codes = np.searchsorted(model.classes, model.labels(answers.mean)).astype(np.int64)
            columns: dict[str, Column] = {"prediction": Labels(model.classes, codes)}
            if answers.probabilities is not None:
                names = [f"probability {label}" for label in model.classes]
                columns |= dict(zip(names, answers.probabilities.T, strict=True))
            return columns
        return super().predictions(model, answers, decisions)


def _request(job: Predicting) -> IntervalRequest:
    """The standard deviations and intervals that the command requests."""
    return IntervalRequest(job.std, job.interval, job.adaptive)


def _predicted(model: KRRModel, X: AnyRows, job: Predicting, comm: Communicator) -> Predicted:
    """Predictions with what the command requests, computing standard deviations only once; collective."""
    with comm.phase("predict"):
        mean, std, ends = answered(model, X, _request(job), comm, memory.limit_per_rank(comm, job.memory_limit))
    reported = std if job.std else None
    if job.probability:
        return Predicted(mean, reported, None, {}, model.probabilities(mean))
    if ends is None or model.calibration is None:
        return Predicted(mean, reported, None, {})
    facts = {
        "asked": job.interval, "adaptive": job.adaptive, "rows": model.calibration.rows,
        "calibration_rows": model.calibration.n,
    }  # fmt: skip
    if job.interval and job.adaptive == "parts" and (shared := parts_sharing(model, job.interval, comm)):
        facts["parts_sharing_a_width"] = shared
    return Predicted(mean, reported, ends, facts)


def _as_predicted(model: KRRModel, answer: NDArray[Any]) -> Predicted:
    """Predictions for test rows, with probabilities of the classes if the model is calibrated."""
    return Predicted(answer, None, None, {}, None if model.calibrator is None else model.probabilities(answer))


def _described(solver: dict[str, Any]) -> str:
    """A line on the last solution by conjugate gradients, and why it stopped."""
    last = solver["solutions"][-1] if solver["solutions"] else {}
    factor = f"{solver['preconditioner']} of rank {last['rank']:,}" if last else solver["preconditioner"]
    disk = f"; {last['scratch_gbps']:.2f} GB/s from disk" if "scratch_gbps" in last else ""
    return (
        f"{max(solver['iterations'])}, {factor}, relative residual {max(solver['residual']):.1e}, stopped by "
        f"{', '.join(dict.fromkeys(solver['stopped']))}{disk}"
    )


def _near(near: dict[str, Any]) -> str:
    """A line on the kernel values that the last solution left out."""
    if near["radius"] is None:
        return "all of them: no kernel value is small enough to be left out"
    return (
        f"{near['share']:.1%} of all pairs, up to distance {near['radius']:.4g}; norm of the rest at most "
        f"{near['bound']:.1e}, {near['allowed']:.1e} allowed; {near['islands']:,} "
        f"system{'s' if near['islands'] > 1 else ''}"
    )
