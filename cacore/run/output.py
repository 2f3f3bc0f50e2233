"""Output files of a run: if one of them cannot be written, the others still are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from cacore.comm import Communicator
from cacore.errors import InputError, OutputError

# Folder from which a job was submitted, by the variables of Slurm, PBS and LSF.
_SUBMITTED_FROM = ("SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "LS_SUBCWD")


class Unwritten:
    """Context for writing one file, entered once per file: it delays any :class:`OutputError` until :meth:`tell`.

    So it does an InputError, such as that of a folder which was deleted during the run.
    """

    def __init__(self) -> None:
        self._errors: list[InputError | OutputError] = []

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, InputError | OutputError):
            self._errors.append(error)
            return True
        return False

    def tell(self) -> None:
        """Raise the first delayed error, if any; its attribute `others` has the rest, each for a line of its own."""
        if self._errors:
            first, *others = self._errors
            first.others = others
            raise first


class Saveable(Protocol):
    """A model that can be written to a file."""

    def save(self, path: Path, comm: Communicator) -> None:
        """Write the model; collective."""


def save_model(model: Saveable, path: Path, comm: Communicator) -> None:
    """Save a model, which may be hours of work; if that fails, save it elsewhere. Collective.

    The other places are the folder from which the job was submitted, the working directory, and the folder of temporary
    files, which may be a node's own.

    Raises
    ------
    OutputError
        On all ranks, if the model could not be written to `path`; the message names the other place, if any.
    """
    try:
        model.save(path, comm)
    except (InputError, OutputError) as error:
        failure = OutputError(str(error))
        for other in _elsewhere(path, comm):
            try:
                model.save(other, comm)
            except (InputError, OutputError):
                if comm.rank == 0:
                    with suppress(OSError):
                        other.parent.rmdir()
                continue
            failure = OutputError(f"{error}; the model was saved as {other} instead")
            break
        with comm.agreed():
            raise failure from error


def _elsewhere(path: Path, comm: Communicator) -> Iterator[Path]:
    """The same name in a new folder of each other place, which rank 0 chooses; collective."""
    folders = _folders(path) if comm.rank == 0 else iter(())
    while True:
        with comm.uncounted():
            folder = comm.bcast(np.frombuffer(os.fsencode(next(folders, "")), np.uint8)).tobytes()
        if not folder:
            return
        yield Path(os.fsdecode(folder)) / path.name


def _folders(path: Path) -> Iterator[str]:
    """A new folder in each place but that of `path`, where one can be made."""
    submitted = [os.environ[name] for name in _SUBMITTED_FROM if os.environ.get(name)]
    tried = set[str]()
    for number, place in enumerate((str(path.parent), *submitted, os.curdir, tempfile.gettempdir())):
        try:
            real = os.path.realpath(place)
        except OSError:  # the working directory has been deleted
            continue
        if real not in tried and number and (folder := _made_in(real)):
            yield folder
        tried.add(real)


def _made_in(place: str) -> str:
    """A new folder in `place`; "" if none can be made there."""
    try:
        return tempfile.mkdtemp(prefix="cakernels-", dir=place)
    except OSError:
        return ""
