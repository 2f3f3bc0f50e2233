"""What every command takes beside its method's options: files, threads, memory, how much to print."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cacore.errors import InputError
from cacore.run.options import Options, one_of, option, positive, share, whole, yes_or_no

METRICS = ("none", "diagonal", "full")
ADAPTIVE = ("std", "parts")
FORMS = ("sigmoid", "isotonic")  # of probabilities


def path(value: Any, name: str) -> Path:
    """A file's name. ``Path("")`` would be the directory, and ``-`` a file that few can name afterwards."""
    if not isinstance(value, str | os.PathLike) or value in ("", "-"):
        name = name if name.startswith("-") or name.endswith("=") else name.upper()
        raise InputError(f"{name} {value!r}: it must be the name of a file (/dev/stdout is what is printed)")
    return Path(value)


def path_argument(word: str) -> Path:
    """As :func:`path`, for argparse, which names the argument."""
    try:
        return path(word, "")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


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


seed = whole(0, (1 << 32) - 1)


def _checkpoint(value: Any, name: str) -> Any:
    from cacore.io.checkpoint import Checkpoint

    return value if isinstance(value, Checkpoint) else Checkpoint(value)


def checkpoint() -> Any:
    """Declare the option of a directory of finished parts, as :class:`cacore.io.checkpoint.Checkpoint`."""
    text = "keep finished parts here; the same command goes on from them if it is killed"
    return option(None, text, _checkpoint, estimator="", metavar="DIR")


def out_of_core() -> Any:
    """Declare the option of rows in a file, see :mod:`cacore.data.stored`."""
    text = "keep the rows in a file, and read a part when its turn comes: for HDF5 data larger than memory"
    return option(False, text, yes_or_no, estimator="", action="store_true")


def scratch(text: str, **more: Any) -> Any:
    """Declare the folder of what does not fit into memory, see :class:`cacore.machine.scratch.Scratch`."""
    return option(None, text, path, metavar="DIR", **more)


def check_out_of_core(wanted: bool, scratch: Path | None, given: dict[str, bool]) -> None:
    """Refuse the options that are `given` beside ``--out-of-core``, and ``--scratch`` without it.

    Raises
    ------
    InputError
    """
    if not wanted:
        if scratch is not None:
            raise InputError("--scratch: there is nothing to put there; give --out-of-core as well, or leave it out")
        return
    for name, there in given.items():
        if there:
            raise InputError(f"{name}: needs all rows in memory; leave it out, or --out-of-core")


def metric(*more: str) -> Any:
    """Declare the option of a learned metric, see :mod:`cacore.data.metric`, which may have `more` values."""
    text = "learn, in rounds of training, how much each feature counts, or each direction of them"
    forms = (*METRICS, *more)
    return option("none", text, one_of(*forms), choices=forms)


def metric_rounds() -> Any:
    """Declare how many rounds the metric is learned in at most."""
    return option(10, "most rounds of --metric; the best one is kept", whole(1), metavar="N")


def _form(value: Any, name: str) -> str | None:
    from cacore.probability.calibrator import check_form

    return check_form(value, name)


def probability() -> Any:
    """Declare the option of a model with probabilities, see :mod:`cacore.probability.calibrator`."""
    text = "probabilities of the classes as well, from decisions on rows that are left out (default: sigmoid)"
    return option(None, text, _form, choices=FORMS, nargs="?", const=FORMS[0])


def switch(default: bool, text: str, **more: Any) -> Any:
    """Declare an option that is ``--name`` or ``--no-name``."""
    return option(default, text, yes_or_no, action=argparse.BooleanOptionalAction, **more)
