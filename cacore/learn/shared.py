"""Options that several families declare alike."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacore.checks import one_of, path, whole, yes_or_no
from cacore.errors import InputError
from cacore.learn.options import KERNEL, METRIC, RESOURCES, UNCERTAINTY, option
from cacore.probability.forms import FORMS, check_form

if TYPE_CHECKING:
    from cacore.data.labels import ClassWeight
    from cacore.io.checkpoint import Checkpoint

LENGTHS = "lengths"  # metric of length scales that minimise the leave-one-out error
METRICS = ("none", "diagonal", "full", LENGTHS)
ADAPTIVE = ("std", "parts")  # widths of intervals that vary with the row

seed = whole(0, (1 << 32) - 1)


def _checkpoint(value: Any, name: str) -> Checkpoint:
    from cacore.io.checkpoint import Checkpoint

    return value if isinstance(value, Checkpoint) else Checkpoint(value)


def random_state() -> int:
    """Declare the seed."""
    text = "seed of the random number generator"
    return option(0, text, seed, estimator="", report=True, group=RESOURCES, metavar="S")


def checkpoint() -> Checkpoint | None:
    """Declare the folder of finished parts, a :class:`cacore.io.checkpoint.Checkpoint`."""
    text = "keep finished parts in this folder; after an interruption, rerun the same command to continue"
    return option(None, text, _checkpoint, estimator="", group=RESOURCES, metavar="DIR")


def out_of_core(only: Callable[[Any], bool] | None = None, read: str = "each part when it is trained") -> bool:
    """Declare that rows stay in a file, see :mod:`cacore.data.stored`; `read` is what is read when."""
    text = f"keep the rows in a file and read {read}, for HDF5 data larger than memory"
    return option(False, text, yes_or_no, estimator="", group=RESOURCES, only=only, action="store_true")


def scratch(text: str, estimator: str | None = None, only: Callable[[Any], bool] | None = None) -> Path | None:
    """Declare the folder for data that does not fit in memory, see :class:`cacore.machine.scratch.Scratch`."""
    return option(None, text, path, estimator=estimator, group=RESOURCES, only=only, metavar="DIR")


def check_out_of_core(wanted: bool, scratch: Path | None, given: dict[str, bool]) -> None:
    """Refuse options, of those `given`, that exclude ``--out-of-core``; and ``--scratch`` without it.

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


def metric() -> str:
    """Declare the learned metric, see :mod:`cacore.data.metric` and :mod:`cacore.data.lengths`."""
    text = "learn, in rounds of training, how much each feature counts (diagonal) or each direction (full); or learn "
    text += f"length scales that reduce the leave-one-out error ({LENGTHS})"
    return option("none", text, one_of(*METRICS), group=METRIC, choices=METRICS)


def metric_rounds() -> int:
    """Declare the number of rounds in which the metric is learned."""
    return option(
        10, "maximum number of rounds of --metric; the best round is kept", whole(1), group=METRIC, metavar="N"
    )


def probability(
    text: str = "also fit class probabilities, from decisions on held-out rows (without a value: sigmoid)",
) -> str | None:
    """Declare that a model has probabilities, see :mod:`cacore.probability.calibrator`."""
    return option(None, text, check_form, group=UNCERTAINTY, choices=FORMS, nargs="?", const=FORMS[0])


def balanced(text: str = "weight the classes so that each counts equally") -> ClassWeight:
    """Declare that classes are weighted by the inverse of their frequency."""
    return option(None, text, flag="--balanced", estimator="", group=KERNEL, action="store_const", const="balanced")


def standardize(default: bool) -> bool:
    """Declare ``--standardize`` and ``--no-standardize``."""
    text = "scale each feature by the training rows' mean and standard deviation"
    return option(default, text, yes_or_no, report=True, group=METRIC, action=argparse.BooleanOptionalAction)
