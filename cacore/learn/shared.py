"""Options that several families declare alike."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cacore.checks import one_of, path, whole, yes_or_no
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.learn.options import option
from cacore.probability.forms import FORMS, check_form

METRICS = ("none", "diagonal", "full")

seed = whole(0, (1 << 32) - 1)


def _checkpoint(value: Any, name: str) -> Any:
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
    return check_form(value, name)


def probability() -> Any:
    """Declare the option of a model with probabilities, see :mod:`cacore.probability.calibrator`."""
    text = "probabilities of the classes as well, from decisions on rows that are left out (default: sigmoid)"
    return option(None, text, _form, choices=FORMS, nargs="?", const=FORMS[0])


def switch(default: bool, text: str, **more: Any) -> Any:
    """Declare an option that is ``--name`` or ``--no-name``."""
    return option(default, text, yes_or_no, action=argparse.BooleanOptionalAction, **more)
