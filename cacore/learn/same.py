"""The doors of training and of commands: all ranks are given the same, before anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from cacore.comm import Communicator, Unquoted, require_same
from cacore.data.dataset import Dataset
from cacore.data.rows import kind_of_rows
from cacore.files import described
from cacore.learn.options import Option, Options, declared

_OWN = ("progress", "watch", "start", "initial", "measured")  # options of which each rank has its own


def same_training(method: str, train: Dataset, options: Any, comm: Communicator) -> None:
    """Raise an InputError on all ranks if methods, options or kinds of rows differ between them; collective."""
    if comm.size == 1:
        return
    given = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in _OWN}
    y = train.y
    shape = None if y is None else y.shape[1:]
    rows = {**kind_of_rows(train.X), "shape of a row's target": shape, "sample_weight given": train.weights is not None}
    with comm.uncounted():
        require_same({"method": Unquoted(method), **given, **rows}, comm)


def same_command(
    prog: str, given: Mapping[str, Any], comm: Communicator, files: Mapping[str, Path | None] | None = None
) -> None:
    """Raise an InputError on all ranks if commands, options or input files differ between them; collective.

    Parameters
    ----------
    prog : str
    given : mapping of str to object
        Values of the options, by flag.
    comm : Communicator
    files : mapping of str to Path or None
        Input files by flag: all ranks must find the same size, beginning and end there.
    """
    if comm.size == 1:
        return
    found = {f"{flag} {path}": Unquoted(described(path)) for flag, path in (files or {}).items() if path is not None}
    with comm.uncounted():
        require_same({"command": Unquoted(prog), **given, **found}, comm)


def flags(*chosen: Options) -> dict[str, Any]:
    """Values of the options that commands have, by flag."""
    return {_flag(known): getattr(one, field.name) for one in chosen for field, known in declared(one) if known.flag}


def _flag(option: Option) -> str:
    """The flag, or for an argument without one its name in the help."""
    return option.flag if option.flag.startswith("-") else str(option.parser["metavar"])
