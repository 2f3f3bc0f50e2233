"""Output files of a run: if one of them cannot be written, the others still are."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Protocol

from cacore.comm import Communicator
from cacore.errors import OutputError


class Unwritten:
    """Context for writing one file, entered once per file: it delays any :class:`OutputError` until :meth:`tell`."""

    def __init__(self) -> None:
        self._errors: list[OutputError] = []

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, OutputError):
            self._errors.append(error)
            return True
        return False

    def tell(self) -> None:
        """Raise the first delayed error, if any."""
        if self._errors:
            raise self._errors[0]


class Saveable(Protocol):
    """A model that can be written to a file."""

    def save(self, path: Path, comm: Communicator) -> None:
        """Write the model; collective."""


def save_model(model: Saveable, path: Path, comm: Communicator) -> None:
    """Save a model; if that fails, save it among the temporary files, since it may be hours of work. Collective.

    Raises
    ------
    OutputError
        On all ranks, if the model could not be written to `path`; the message names the other place, if any.
    """
    try:
        model.save(path, comm)
    except OutputError as error:
        other = path
        with comm.agreed():
            if comm.rank == 0:
                try:
                    other = Path(tempfile.mkdtemp(prefix="cakernels-")) / path.name
                except OSError:
                    raise error from None
        try:
            model.save(other, comm)
        except OutputError:
            if comm.rank == 0:
                other.parent.rmdir()
            raise error from None
        with comm.agreed():
            if comm.rank == 0:
                raise OutputError(f"{error}; the model was saved as {other} instead") from error
