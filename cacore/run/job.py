"""What every command takes beside its method's options: files, threads, memory, how much to print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cacore.checks import one_of, path, positive, share, whole, yes_or_no
from cacore.errors import InputError
from cacore.learn.options import Options, option

ADAPTIVE = ("std", "parts")


@dataclass(frozen=True)
class Job(Options):
    """Options of training and prediction alike; sizes in GiB."""

    threads: int | None = option(None, "threads a rank (default: its share of the cores)", whole(1), metavar="T")
    memory_limit: float | None = option(
        None, "memory a rank may use (default: its share)", positive, metavar="GIB"
    )  # fmt: skip
    report: Path | None = option(None, "write a report", path, metavar="OUT.json")
    quiet: bool = option(False, "print nothing but errors", yes_or_no, exclusive=True, action="store_true")
    verbose: bool = option(
        False, "print the grid and each part as well", yes_or_no, exclusive=True, action="store_true"
    )  # fmt: skip


@dataclass(frozen=True)
class Training(Job):
    """Options of every training command."""

    data: Path = option(None, "HDF5 (native layout), LIBSVM, CSV, TSV or NPZ", path, flag="data", metavar="DATA")
    test: Path | None = option(None, "test rows, if DATA has none", path, metavar="DATA")
    target: str | None = option(
        None, "target column of CSV files, or several: A,B (default: the last)", metavar="COLUMN"
    )
    strict: bool = option(False, "refuse test rows that are also training rows", yes_or_no, action="store_true")
    allow_overlap: bool = option(
        False, "do not look for test rows that are also training rows", yes_or_no, action="store_true"
    )  # fmt: skip
    dtype: str = option("float64", "of the rows", one_of("float32", "float64"), choices=("float32", "float64"))
    model: Path | None = option(None, "save the model", path, metavar="OUT.h5")
    comm_matrix: Path | None = option(
        None, "save bytes and messages by phase, sender and receiver (cacore.traffic draws them)", path,
        metavar="FILE.npz",
    )  # fmt: skip
    plot: Path | None = option(
        None, "draw the metric that was learned, or a calibration curve, or else the settings that were compared", path,
        metavar="FILE.png",
    )  # fmt: skip
    libsvm: Path | None = option(
        None, "write each part's model in LIBSVM's text format as well", path, metavar="OUT.model"
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strict and self.allow_overlap:
            raise InputError("--strict, --allow-overlap: one refuses what the other does not look for; drop one")


@dataclass(frozen=True)
class Predicting(Job):
    """Options of every predicting command."""

    model: Path = option(None, "that a training command saved", path, flag="model", metavar="MODEL")
    data: Path = option(None, "its test rows, if it has some, or all rows", path, flag="data", metavar="DATA")
    target: str | None = option(None, "target column of CSV files that have one", metavar="COLUMN")
    output: Path | None = option(
        None, "write the predictions: CSV, or Parquet or HDF5 if its name ends with .parquet or .h5", path, short="-o",
        metavar="OUT.csv",
    )  # fmt: skip
    decisions: bool = option(False, "write the decisions beside the labels", yes_or_no, action="store_true")
    probability: bool = option(
        False, "write the probability of each class beside the labels; the model needs --probability", yes_or_no,
        action="store_true",
    )  # fmt: skip
    std: bool = option(
        False, "standard deviations of new targets, beside the predictions", yes_or_no, action="store_true"
    )  # fmt: skip
    interval: float | None = option(
        None, "ends of intervals that hold a new target with this probability; the model needs --calibrate", share,
        metavar="COVERAGE",
    )  # fmt: skip
    adaptive: str | None = option(
        None, "--interval in standard deviations, narrow where the model is sure, which needs --keep-factors; or from "
        "each part's own errors", one_of(*ADAPTIVE), choices=ADAPTIVE, nargs="?", const="std",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adaptive is not None and self.interval is None:
            raise InputError("--adaptive: there are no intervals; give --interval 0.9 as well")
