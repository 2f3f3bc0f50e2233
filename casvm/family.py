"""SVM classifiers in the commands: checking, warm-up, reading, reporting and writing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cacore.comm import Communicator
from cacore.data import labels
from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.io.fingerprints import row_hashes
from cacore.learn.options import reported
from cacore.run import reading
from cacore.run.classifiers import Classifiers
from cacore.run.family import AnyFamily, TrainedModel, described_metric
from cacore.run.job import Training
from cacore.terminal import CellLines
from cacore.tuning.results import GridColumns, best_lines, end_lines
from casvm.described import check_libsvm, fields, part_lines, problem_lines, soft_fields
from casvm.fit import SVMFit
from casvm.methods import in_parts
from casvm.model.libsvm import export_libsvm
from casvm.model.model import SVMModel
from casvm.model.quantiles import QuantileModel
from casvm.model.svr import SVRModel
from casvm.options import UNSEARCHED, SVMMethod, SVMOptions
from casvm.quantile_family import Quantiles
from casvm.value_family import Values
from casvm.volume import predicted
from partition.model import InParts, load_one_of

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

    def columns(self, made: dict[str, Any]) -> GridColumns:
        """Columns of the grid in the report: C, gamma and a score."""
        name, one = made["cv"]["scoring"], not made["cv"]["per_part"]
        return GridColumns("gamma", "C", f"cv_{name}", f"{name.replace('_', ' ')} on rows left out", one=one)

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
        more = options.searches or options.probability is not None
        other = options.initial == "root" or options.metric != "none" or (method.one_model and more)
        volume = {} if other or fitted.terms is None else predicted(method.name, fitted.terms)
        if volume and fitted.more.get("passes", 1) > 1:
            volume["formula"] += ", one pass"
        params = {
            **self.params(model, options), **_own(model), "route": model.route, **soft_fields(model),
            **reported(options, method.has),
        }  # fmt: skip
        return {**fields(fitted, params), "metric": described_metric(options.metric, fitted), "volume": volume}

    def save(self, fitted: SVMFit[SVMModel], job: Training) -> None:
        """Write LIBSVM's files."""
        if job.libsvm is not None:
            export_libsvm(fitted.model, job.libsvm)

    def lines(self, made: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield lines of the table: best settings, measured and predicted volume, mean number of busy ranks."""
        if made["grid"]:
            grid, cv = made["grid"], made["cv"]
            more = f", {cv['ended']} of them ended early" if cv["ended"] else ""
            lines = best_lines(grid, [name for name in ("C", "gamma") if name in grid[0]], self.columns(made))
            said = f"{cv['scoring']} of {cv['folds']} folds, {cv['settings']} settings{more}"
            yield "best settings", CellLines([*lines, said])
        if made["ranks"] > 1 and "volume" in made:
            volume = made["volume"]
            yield (
                "volume",
                f"{volume['measured_bytes']:,} bytes in partition and training; "
                f"{volume['predicted_bytes']:,} predicted, in words of 4 bytes {volume['formula']}",
            )
        if "average_parallelism" in made["solver"]:
            yield "parallelism", f"{made['solver']['average_parallelism']:.2f} ranks busy on average (eq. 2.13)"

    def notes(self, method: SVMMethod, fitted: SVMFit[SVMModel], options: SVMOptions) -> list[str]:
        """Notes on solvers that stopped early, on the search, and on the route that suits random parts."""
        notes = [*fitted.notes, *_of_search(fitted, options)]
        if not method.partitioner and not method.one_model and len(fitted.sizes) > 1 and options.route == "nearest":
            notes.append("random parts: --route all, the mean of all models' decisions, is usually more accurate")
        return notes

    def details(self, made: dict[str, Any]) -> Iterator[str]:
        """Yield the lines of --verbose: each setting, and each part or each problem of a tree."""
        for row in made["grid"]:
            score = row[f"cv_{made['cv']['scoring']}"]
            where = ", ".join(f"{name} {row[name]:.4g}" for name in ("C", "gamma") if name in row)
            shown = f"{score:.4f}" if np.isfinite(score) else "no fold"
            yield f"{where}: {shown} of {row['folds']} folds{', ended' if row['ended'] else ''}"
        solver = made["solver"]
        if "layers" not in solver:
            yield from part_lines(made)
        for layer in solver.get("layers", []):
            where = f"pass {layer['pass']}, layer {layer['layer']}"
            yield f"{where}: {layer['layer_seconds']:.3f} s on {layer['ranks']} ranks"
            yield from problem_lines("problem", layer, layer["rows"])


def _own(model: SVMModel) -> dict[str, object]:
    """C and gamma of each part, if every part has its own."""
    own = {"C": model.Cs, "gamma": model.gammas}
    return {name: values for name, values in own.items() if values is not None}


def _of_search(fitted: SVMFit[SVMModel], options: SVMOptions) -> Iterator[str]:
    """Notes on the choice of C and gamma."""
    found = fitted.search
    if found is None:
        if options.searches:
            yield UNSEARCHED
        return
    yield from end_lines(found.at_grid_end)
    if found.ended.any():
        yield (
            f"{np.count_nonzero(found.ended)} of {len(found.scores)} settings ended before their last fold: they "
            "trailed the best by more than two standard errors"
        )
    if found.stopped:
        yield f"{found.stopped:,} of {found.solved:,} solutions of the search stopped at the iteration limit"
