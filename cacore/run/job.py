"""Options of every command besides its method's: files, threads, memory, verbosity."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cacore.checks import one_of, path, positive, share, whole, yes_or_no
from cacore.errors import InputError
from cacore.learn.options import FILES, RESOURCES, UNCERTAINTY, Options, argument, option
from cacore.learn.shared import ADAPTIVE


@dataclass(frozen=True)
class Job(Options):
    """Options that training and predicting commands share; sizes are in GiB."""

    threads: int | None = option(
        None, "threads per rank (default: the rank's share of the cores)", whole(1), metavar="T"
    )  # fmt: skip
    memory_limit: float | None = option(
        None, "memory that a rank may use (default: its share of what is free)", positive, group=RESOURCES,
        metavar="GIB",
    )  # fmt: skip
    report: Path | None = option(None, "write a report of the run", path, metavar="OUT.json")
    quiet: bool = option(False, "print nothing but errors", yes_or_no, group=FILES, exclusive=True, action="store_true")
    verbose: bool = option(
        False, "also print every setting that was compared, and every part", yes_or_no, group=FILES, exclusive=True,
        action="store_true",
    )  # fmt: skip


def _ignore_extra_columns() -> Any:
    """Declare that columns which are not expected are left out."""
    text = "leave out columns that the model or the training rows do not have (default: refuse them)"
    return option(False, text, yes_or_no, group=FILES, action="store_true")


@dataclass(frozen=True)
class Training(Job):
    """Options of every training command."""

    data: Path = argument(
        "data", "training rows: HDF5 (native layout), LIBSVM, CSV, TSV, NPZ, NPY, Parquet or Arrow", path
    )
    test: Path | None = option(None, "test rows (default: those of DATA, if it has any)", path, metavar="DATA")
    target: str | None = option(
        None, "target column of a table, by name or number, or several: A,B (default: the last)", metavar="COLUMN"
    )
    ignore_extra_columns: bool = _ignore_extra_columns()
    strict: bool = option(
        False, "refuse test rows that are also training rows", yes_or_no, group=FILES, action="store_true"
    )
    allow_overlap: bool = option(
        False, "do not check for test rows that are also training rows (default: warn about them)", yes_or_no,
        group=FILES, action="store_true",
    )  # fmt: skip
    dtype: str = option(
        "float64", "floating-point type of the rows", one_of("float32", "float64"), group=RESOURCES,
        choices=("float32", "float64"),
    )  # fmt: skip
    model: Path | None = option(None, "save the trained model", path, metavar="OUT.h5")
    comm_matrix: Path | None = option(
        None, "save bytes and messages by phase, sender and receiver, for python -m cacore.traffic", path, group=FILES,
        metavar="FILE.npz",
    )  # fmt: skip
    plot: Path | None = option(
        None, "plot the learned metric or the variogram, if there is one; otherwise a calibration curve, or the "
        "settings compared", path, group=FILES, metavar="FILE.png",
    )  # fmt: skip
    html: Path | None = option(
        None, "write a page of the run: results, settings, parts, seconds and bytes, in one file", path, group=FILES,
        metavar="OUT.html",
    )  # fmt: skip
    libsvm: Path | None = option(
        None, "also write each part's model in LIBSVM's text format", path, group=FILES, metavar="OUT.model"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strict and self.allow_overlap:
            raise InputError("--strict, --allow-overlap: one refuses what the other does not look for; drop one")


@dataclass(frozen=True)
class Predicting(Job):
    """Options of every predicting command."""

    model: Path = argument("model", "model saved by a training command", path)
    data: Path = argument("data", "rows to predict: the file's test rows, if it has any, or all its rows", path)
    target: str | None = option(
        None, "target column to compare the predictions with, if the table has one", metavar="COLUMN"
    )
    ignore_extra_columns: bool = _ignore_extra_columns()
    output: Path | None = option(
        None, "write the predictions: CSV, or Parquet or HDF5 if the name ends with .parquet or .h5", path, short="-o",
        metavar="OUT.csv",
    )  # fmt: skip
    decisions: bool = option(False, "also write the decision values", yes_or_no, group=FILES, action="store_true")
    probability: bool = option(
        False, "also write the probability of each class; the model must have been trained with --probability",
        yes_or_no, group=UNCERTAINTY, action="store_true",
    )  # fmt: skip
    std: bool = option(
        False, "also write the predictive standard deviation of each row", yes_or_no, group=UNCERTAINTY,
        action="store_true",
    )  # fmt: skip
    interval: float | None = option(
        None, "also write intervals that contain the target with this probability; the model must have been trained "
        "with --calibrate", share, group=UNCERTAINTY, metavar="COVERAGE",
    )  # fmt: skip
    adaptive: str | None = option(
        None, "vary the width of --interval: in proportion to the standard deviation (std; the model must have been "
        "trained with --keep-factors), or by the errors of each part (parts); without a value: std", one_of(*ADAPTIVE),
        group=UNCERTAINTY, choices=ADAPTIVE, nargs="?", const="std",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adaptive is not None and self.interval is None:
            raise InputError("--adaptive: needs --interval, for example --interval 0.9")
