"""Kernel ridge regression in the commands: checking, warm-up, reading, reporting and writing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data import labels
from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.io.fingerprints import row_hashes
from cacore.io.predictions import Column
from cacore.io.table import LABELS, Targets
from cacore.io.words import number
from cacore.kernels.evaluate import warm_up
from cacore.learn.options import reported
from cacore.linalg import thin
from cacore.machine import memory
from cacore.run import reading
from cacore.run.family import Answer, ClassAnswer, Family, NumberAnswer, Run, described_metric
from cacore.run.launch import Predicting
from cacore.run.report import Report
from cacore.terminal import CellLines
from cacore.tuning import GridColumns, best_lines, end_lines
from cakrr.options import ALONE, RidgeMethod, RidgeOptions
from cakrr.ridge_model import KRRModel, RidgeFit
from cakrr.solver.local import BAND_FROM
from cakrr.uncertainty.answer import IntervalRequest, answered, parts_sharing

_SMALL = RidgeMethod(
    name="bkrr2", summary="a small grid that compiles the code of all methods", trainer="cakrr.methods.task:train",
    route="nearest", partitioner="kbalance",
)  # fmt: skip
_NUMBERS = Targets(
    many=True, remedy="use --classify for classes, or cacore.io convert --binarize CLASS for targets +1 and -1"
)


RidgeRun = Run[RidgeMethod, RidgeOptions]


class Ridge(Family[RidgeMethod, RidgeOptions, RidgeFit, KRRModel]):
    """The family of kernel ridge regression."""

    kind = KRRModel
    also = "; or the settings that were compared: give several values of --sigma or --lambda"

    def check(self, run: RidgeRun) -> dict[str, Path]:
        """Refuse --model for an oracle, and options that exclude --out-of-core; there are no further output files."""
        method = run.method
        run.options.check_out_of_core(method)
        if method.oracle and run.job.model is not None:
            raise InputError(
                f"--model: {method.name} is an oracle, which needs the true targets: its model cannot be saved"
            )
        return {}

    def warm_up(self, run: RidgeRun) -> None:
        """Compile what every method uses, the products of conjugate gradients, and all kernels that "auto" tries."""
        self.warm_up_prediction(run.job.dtype)
        if run.options.solver != "cholesky" or run.options.refine:
            thin.warm_up()
        warm_up([like.kind for like in run.options.kernels()])

    def warm_up_prediction(self, dtype: str) -> None:
        """Compile all other code with a small grid of BKRR2."""
        X = np.random.default_rng(0).normal(size=(12, 3)).astype(dtype)
        row_hashes(X, X[:, 0])
        train = Dataset(X, X[:, 0].astype(np.float64), len(X))
        options = RidgeOptions(partitions=2, sigma=(1.0, 2.0), lam=tuple(np.geomspace(0.1, 1.0, BAND_FROM)))
        _SMALL(train, options).model.predict(X[:1])

    @contextmanager
    def progress(self, shown: bool) -> Iterator[dict[str, object]]:
        """Options of the command, which tries several widths by default."""
        with super().progress(shown) as options:
            yield {**options, "wide": True}

    def read(self, run: RidgeRun) -> tuple[Dataset, Dataset | None]:
        """Read training rows with targets or labels, and test rows if there are any."""
        wanted = LABELS if run.options.classify else _NUMBERS
        disk = reading.Disk.of(run.method, run.job, run.options)
        train, test = reading.read(run.job, run.comm, run.limit, wanted, disk)
        if run.options.classify:
            train.y = labels.from_file(train, run.comm)
        return train, test

    def targets(self, model: KRRModel) -> tuple[Targets, tuple[int, ...]]:
        """Targets to read: labels for a classifier, otherwise as many numbers as the model predicts."""
        return (_NUMBERS, model.target_shape) if model.classes is None else (LABELS.like(model.classes), ())

    def check_prediction(self, model: KRRModel, job: Predicting) -> None:
        """Refuse requests for uncertainty that the model was not trained for."""
        if job.probability and model.classes is None:
            raise InputError(
                "--probability: the model predicts numbers and has no classes; train it with --classify, or by "
                "cakernels fit with --task classification"
            )
        IntervalRequest(job.std, job.interval, job.adaptive).check(model)

    def answer(self, model: KRRModel, rows: Dataset, job: Predicting, comm: Communicator) -> Answer:
        """Predictions for this rank's rows with what the command requests, computing deviations only once; collective.

        Of a classifier, probabilities are on request, calibrated or not.
        """
        with comm.phase("predict"):
            request = IntervalRequest(job.std, job.interval, job.adaptive)
            limit = memory.limit_per_rank(comm, job.memory_limit)
            mean, std, ends = answered(model, rows.X, request, comm, limit)
        answer = _answer(model, mean, job.probability)
        if job.std and std is not None:
            answer.arrays["std"] = std
        if ends is not None and model.calibration is not None and job.interval is not None:
            answer.arrays["lower"], answer.arrays["upper"] = ends
            answer.facts = model.calibration.described(job.interval, job.adaptive)
            if job.adaptive == "parts" and (shared := parts_sharing(model, job.interval, comm)):
                answer.facts["parts_sharing_a_width"] = shared
        return answer

    def tested(self, model: KRRModel, test: Dataset, comm: Communicator) -> Answer:
        """Predictions by the model's route; with soft routing also those of the nearest model alone."""
        if model.route == "oracle":
            return RouteAnswer(model, {"oracle": test.target() + model.oracle(test.X, test.target(), comm)})
        return RouteAnswer(model, model.predict_routes(test.X, comm))

    def report(self, run: RidgeRun, fitted: RidgeFit) -> Report:
        """Fields of the report: chosen parameters, errors of the grid, seconds and residuals of the parts."""
        model, method, options = fitted.model, run.method, run.options
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

    def draws(self, run: RidgeRun) -> str:
        """Name of the figure of --plot: the metric if there is one, else the grid, if settings were compared."""
        options = run.options
        single = options.sigma is not None and len(options.sigma) * len(options.lam) == 1
        compared = not single or run.method.coarse or options.chooses_kernel
        return super().draws(run) or ("grid" if compared else "")

    def columns(self, report: Report) -> GridColumns:
        """Columns of the grid in the report: sigma, lambda, those of a coarse model, and the error."""
        rows = {"validation_mse": "rows held out", "test_mse": "test rows", "loo_mse": "rows left out one by one",
                "gcv_mse": "all rows, by generalised cross-validation"}  # fmt: skip
        scores = (name for row in report["grid"] for name in rows if row.get(name) is not None)
        score, single = next(scores, "validation_mse"), np.ndim(report["params"]["sigma"]) == 0
        return GridColumns(
            "sigma", "lambda", score, f"mean squared error on {rows[score]}", smaller=True, single=single
        )

    def lines(self, report: Report) -> Iterator[tuple[str, str]]:
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

    def notes(self, run: RidgeRun, fitted: RidgeFit) -> list[str]:
        """Notes for the user on the choice of sigma and lambda."""
        method = run.method
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
        if run.options.select == "test" and fitted.grid:
            notes.append(
                "sigma and lambda were chosen by the test error, which is therefore too low; use --select validation"
            )
        if method.coarse and fitted.model.lam == ALONE:
            notes.append(f"lambda {ALONE:g}: the parts' models add next to nothing to the coarse model")
        return notes + end_lines(fitted.at_grid_end)

    def details(self, report: Report) -> Iterator[str]:
        """Yield the lines of --verbose: errors of the grid, and seconds of each part."""
        for row in report["grid"]:
            errors = [value for name, value in row.items() if name.endswith("_mse") and value is not None]
            error = number(errors[0], 4) if errors else "not positive definite"
            coarse = f"centers {row['centers']:<6} " if "centers" in row else ""
            if "coarse_sigma" in row:
                coarse += (
                    f"coarse sigma {number(row['coarse_sigma']):<8} coarse lambda {number(row['coarse_lambda']):<8} "
                )
            kernel = f"{row['kernel']:<10} " if "kernel" in row else ""
            yield f"{coarse}{kernel}sigma {number(row['sigma']):<10} lambda {number(row['lambda']):<10} mse {error}"
        for part, (m, seconds) in enumerate(zip(report["partition_sizes"], report["solver"]["seconds"], strict=True)):
            yield f"part {part}: {m:,} rows, {seconds:.3f} s"


class RidgeClassAnswer(ClassAnswer):
    """Classes by the outputs of a ridge regression, which are no decision values."""

    def columns(self, decisions: bool) -> dict[str, Column]:
        """Column ``prediction``, and one of probabilities per class on request."""
        return super().columns(decisions=False)

    def probability(self, rows: Dataset, metrics: Report, comm: Communicator) -> Report:
        """Origin of the probabilities, and their scores if the rows have labels of the same kind."""
        entries = super().probability(rows, metrics, comm)
        return {name: value for name, value in entries.items() if value != []}


def _answer(model: KRRModel, mean: NDArray[np.float64], probability: bool) -> Answer:
    """Numbers, or classes, with probabilities on request, from the predictions of a model."""
    if model.classes is None:
        return NumberAnswer(model, {"mean": mean})
    probabilities = {"probabilities": model.probabilities(mean)} if probability else {}
    return RidgeClassAnswer(model, {"scores": mean, **probabilities})


class RouteAnswer(Answer):
    """Predictions for test rows by route, which are judged one by one."""

    def _of(self, route: str) -> Answer:
        return _answer(self.model, self.arrays[route], self.model.calibrator is not None)

    def metrics(self, rows: Dataset, comm: Communicator) -> Report:
        """Metrics of the model's route, and of other routes under their names."""
        metrics = {route: self._of(route).metrics(rows, comm) for route in self.arrays}
        of_the_model = metrics.pop(self.model.route)
        return of_the_model | {
            f"{route}_{name}": value for route, scores in metrics.items() for name, value in scores.items()
        }

    def probability(self, rows: Dataset, metrics: Report, comm: Communicator) -> Report:
        """Origin and scores of the probabilities by the model's route."""
        return self._of(self.model.route).probability(rows, metrics, comm)

    def columns(self, decisions: bool) -> dict[str, Column]:
        """Columns of the predictions by the model's route."""
        return self._of(self.model.route).columns(decisions)


def _described(solver: Report) -> str:
    """A line on the last solution by conjugate gradients, and why it stopped."""
    last = solver["solutions"][-1] if solver["solutions"] else {}
    factor = f"{solver['preconditioner']} of rank {last['rank']:,}" if last else solver["preconditioner"]
    disk = f"; {last['scratch_gbps']:.2f} GB/s from disk" if "scratch_gbps" in last else ""
    return (
        f"{max(solver['iterations'])}, {factor}, relative residual {max(solver['residual']):.1e}, stopped by "
        f"{', '.join(dict.fromkeys(solver['stopped']))}{disk}"
    )


def _near(near: Report) -> str:
    """A line on the kernel values that the last solution left out."""
    if near["radius"] is None:
        return "all of them: no kernel value is small enough to be left out"
    return (
        f"{near['share']:.1%} of all pairs, up to distance {number(near['radius'])}; norm of the rest at most "
        f"{near['bound']:.1e}, {near['allowed']:.1e} allowed; {near['islands']:,} "
        f"system{'s' if near['islands'] > 1 else ''}"
    )
