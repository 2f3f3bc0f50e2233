"""Checkpoints: finished pieces of a run in a directory, each a file of its own, and the facts they belong to."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.files import replacing

SCHEMA = "cakernels-checkpoint/2"
_FACTS = "run.json"
_UNFINISHED = ".part"


class Checkpoint:
    """A directory in which a run keeps what it has finished, so that the same command can go on from there.

    All ranks must see the same one; :meth:`open` makes it; a file is an InputError. A piece is written to a temporary
    file, which is renamed: it is there whole or not at all, whenever the run is killed. No pickle.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file; --checkpoint needs a directory")

    def open(self, facts: dict[str, Any], comm: Communicator) -> None:
        """Take up the run that `facts` describe, or begin it; collective.

        A directory that cannot be made, or belongs to another run, is an InputError on all ranks, which names the
        first fact that differs.
        """
        known = json.loads(json.dumps({"schema": SCHEMA, **facts}, default=lambda value: value.item()))
        with comm.agreed():
            if comm.rank == 0:
                self._begin(known)
        comm.barrier()

    def _begin(self, facts: dict[str, Any]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot make this directory ({error.strerror})") from error
        known = self._known()
        begun = known is not None
        if known is not None:
            self._compare(known, facts)
        # What a run left that was killed while it wrote; in a directory that is no checkpoint yet, of this file only.
        unfinished = set(self.path.glob(f".*{_UNFINISHED}" if begun else f".{_FACTS}.*{_UNFINISHED}"))
        if not begun and (others := set(self.path.iterdir()) - unfinished):
            other = min(others).name
            raise InputError(f"{self.path}: not empty, and not a checkpoint ({other}); name another directory")
        for entry in unfinished:
            entry.unlink()
        if not begun:
            with replacing(self.path / _FACTS, suffix=_UNFINISHED) as temporary:
                temporary.write_text(json.dumps(facts, indent=1) + "\n")

    def _known(self) -> dict[str, Any] | None:
        """The facts of the run that is kept here, or None."""
        path = self.path / _FACTS
        if not path.exists():
            return None
        try:
            known = json.loads(path.read_text())
            if not isinstance(known, dict):
                raise ValueError("no object")
        except ValueError as error:
            raise InputError(f"{path}: not a checkpoint of this package, or a damaged one ({error})") from error
        return known

    def _compare(self, known: dict[str, Any], facts: dict[str, Any]) -> None:
        for name in {**known, **facts}:
            if known.get(name) != facts.get(name):
                raise InputError(
                    f"{self.path}: a checkpoint of another run: {name} was {_shown(known.get(name))} there and is "
                    f"{_shown(facts.get(name))} here; run the same command, or name another directory"
                )

    def fact(self, name: str) -> Any:
        """A fact of the run that is kept here, or None."""
        return (self._known() or {}).get(name)

    def get(self, name: str) -> dict[str, NDArray[Any]] | None:
        """The arrays of a finished piece, or None."""
        path = self.path / f"{name}.npz"
        if not path.exists():
            return None
        try:
            # Opened here: numpy forgets to close a file that it cannot read.
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except (OSError, EOFError, ValueError, KeyError, NotImplementedError, zipfile.BadZipFile) as error:
            raise InputError(f"{path}: damaged ({error}); remove it, and it will be computed again") from error

    def put(self, name: str, **arrays: NDArray[Any]) -> None:
        """Keep a finished piece."""
        with replacing(self.path / f"{name}.npz", suffix=_UNFINISHED) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]


def remembered(
    checkpoint: Checkpoint | None,
    name: str,
    work: Callable[[], dict[str, NDArray[Any]]],
    comm: Communicator | None = None,
) -> dict[str, NDArray[Any]]:
    """What `work` returns, or returned in a run that was killed later.

    With `comm`, the work is collective: each rank keeps a file of its own, and all of them count or none.
    """
    if comm is not None:
        name = f"{name}-rank{comm.rank:06d}"
    if checkpoint is None:
        return work()
    done = checkpoint.get(name)
    if comm is not None and not comm.all(done is not None):
        done = None
    if done is None:
        done = work()
        checkpoint.put(name, **done)
    return done


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
