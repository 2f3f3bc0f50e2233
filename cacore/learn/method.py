"""The record of a method, which is also the call that trains it, once all ranks agree on what they were given."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np

from cacore.comm import CommLike, Communicator, Unquoted, collective, require_same, shared_name
from cacore.data.dataset import Dataset
from cacore.data.rows import first_nonfinite, is_sparse, kind_of_rows
from cacore.errors import InputError
from cacore.files import described
from cacore.learn.options import Option, Options, declared
from cacore.machine import threads


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: its name, its options, and the algorithm that trains it.

    Its command, the estimators and a notebook all train through :meth:`__call__`.

    Attributes
    ----------
    name : str
        Name of its command, in its model and in its report.
    summary : str
        One line for the command's help.
    trainer : callable or str
        ``trainer(method, train, options, comm, test)``: the algorithm, on all ranks' rows. Or its module and name, such
        as "cakrr.methods.task:train", if it imports what ``--help`` does without.
    package : str
        The family's package.
    options : type
        The family's dataclass of options.
    """

    package: ClassVar[str]
    options: ClassVar[type]

    name: str
    summary: str
    trainer: Callable[..., Any] | str

    def __call__(self, train: Dataset, options: Options, comm: CommLike = None, test: Dataset | None = None) -> Any:
        """Train on all ranks' rows; a collective call.

        Parameters
        ----------
        train : Dataset
            This rank's rows. They are taken out of it, so that memory does not hold them twice: it is empty afterwards.
        options : Options
        comm : mpi4py communicator, Communicator or None
        test : Dataset, optional
            Test rows, for methods that can use them.

        Returns
        -------
        Fit

        Raises
        ------
        InputError, RankError
            On all ranks.
        """
        columns = train.columns
        with collective(comm) as ranks:
            same_training(self.name, train, options, ranks)
            with ranks.uncounted(), ranks.agreed(own_rows=True):
                _check_finite(train)
                n, d = ranks.offset(train.X.shape[0])[1], train.X.shape[1]
            with threads.suited_to(*train.X.shape):
                trainer = resolve_name(self.trainer) if isinstance(self.trainer, str) else self.trainer
                fitted = trainer(self, train, options, ranks, test)
            if hasattr(fitted.model, "comm"):  # a model that lies on the ranks that trained it
                fitted.model.comm, fitted.model.identity = comm, shared_name(ranks)
        columns.put(fitted.model.source)
        fitted.model.source["training"] = {"rows": n, "features": d}
        return fitted

    def has(self, name: str) -> bool:
        """True if the command of this method has the option `name`, whether its own or one that all commands share."""
        only = next((declaration.only for option, declaration in declared(self.options) if option.name == name), None)
        return name not in self.without and (only is None or only(self))

    @property
    def without(self) -> Collection[str]:
        """Names of the options that other commands have and this one lacks."""
        return ()

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Defaults of the command's options that differ from the declared ones."""
        return {}

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Choices of the command's options that differ from the declared ones."""
        return {}

    @property
    def example(self) -> str:
        """A command that a user can type, for ``--help``."""
        return f"mpiexec -n 4 python -m {self.prog} DATA.h5 --model MODEL.h5 --report REPORT.json"

    @property
    def prog(self) -> str:
        """Name of the command: ``python -m PROG``."""
        return f"{self.package}.{self.name}"


def declarations(package: str, pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the module and the text of each declaration in a package's sources, by its pattern; no module is loaded."""
    home = find_spec(package)
    if home is None or home.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    for path in sorted(Path(home.origin).parent.glob("*.py")):
        for text in re.findall(pattern, path.read_text("utf-8"), re.MULTILINE):
            yield path.stem, text


def method_names(package: str) -> list[str]:
    """Names of the modules of a package that declare a method, by a line ``METHOD = ...``."""
    return [module for module, _ in declarations(package, r"^METHOD\b")]


def _check_finite(train: Dataset) -> None:
    """Refuse this rank's first NaN or infinity; rows that stay in a file are checked as they are read."""
    X, y, place = train.X, train.y, None
    if (isinstance(X, np.ndarray) or is_sparse(X)) and first_nonfinite(X) is not None:
        from cacore.data.validation import place_in_rows

        place = place_in_rows(X)
    elif y is not None and y.dtype.kind == "f" and not np.isfinite(y).all():
        from cacore.data.validation import place_in_targets

        place = place_in_targets(y)
    if place is not None:
        raise InputError(place)


_OWN = ("progress", "watch", "start", "initial", "measured")  # options of which each rank has its own


def same_training(method: str, train: Dataset, options: Any, comm: Communicator) -> None:
    """Raise an InputError on all ranks if methods, options or kinds of rows differ between them; collective."""
    if comm.size == 1:
        return
    settings = {option.name: getattr(options, option.name) for option in fields(options) if option.name not in _OWN}
    y = train.y
    shape = None if y is None else y.shape[1:]
    rows = {**kind_of_rows(train.X), "shape of a row's target": shape, "sample_weight given": train.weights is not None}
    with comm.uncounted():
        require_same({"method": Unquoted(method), **settings, **rows}, comm)


def same_command(
    prog: str, options: Mapping[str, Any], comm: Communicator, files: Mapping[str, Path | None] | None = None
) -> None:
    """Raise an InputError on all ranks if commands, options or input files differ between them; collective.

    Parameters
    ----------
    prog : str
    options : mapping of str to object
        Values of the options, by flag.
    comm : Communicator
    files : mapping of str to Path or None
        Input files by flag: all ranks must find the same size, beginning and end there.
    """
    if comm.size == 1:
        return
    input_files = {
        f"{flag} {path}": Unquoted(described(path)) for flag, path in (files or {}).items() if path is not None
    }
    with comm.uncounted():
        require_same({"command": Unquoted(prog), **options, **input_files}, comm)


def flags(*chosen: Options) -> dict[str, Any]:
    """Values of the options that commands have, by flag."""
    return {
        _flag(declaration): getattr(chosen_options, field.name)
        for chosen_options in chosen
        for field, declaration in declared(chosen_options)
        if declaration.flag
    }


def _flag(option: Option) -> str:
    """The flag, or for an argument without one its name in the help."""
    return option.flag if option.flag.startswith("-") else str(option.parser["metavar"])
