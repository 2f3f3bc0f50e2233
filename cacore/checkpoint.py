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

SCHEMA = "cakernels-checkpoint/1"
_FACTS = "run.json"


class Checkpoint:
    """A directory in which a run keeps what it has finished, so that the same command can go on from there.

    Parameters
    ----------
    path : path
        Made if it is not there. All ranks must see the same directory.
    comm : Communicator

    Notes
    -----
    A piece is written to a temporary file, which is renamed: it is there whole or not at all, whenever
    the run is killed. No pickle.
    """

    def __init__(self, path: str | Path, comm: Communicator) -> None:
        self.path = Path(path)
        with comm.agreed():
            if self.path.exists() and not self.path.is_dir():
                raise InputError(f"{self.path}: is a file; --checkpoint needs a directory")
            if comm.rank == 0:
                try:
                    self.path.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise InputError(f"{self.path}: cannot make this directory ({error.strerror})") from error

    def open(self, facts: dict[str, Any], comm: Communicator) -> None:
        """Take up the run that `facts` describe, or begin it; collective.

        Raises
        ------
        InputError
            On all ranks: the directory belongs to another run. The message names the first fact that differs.
        """
        told = json.loads(json.dumps({"schema": SCHEMA, **facts}))
        with comm.agreed():
            if comm.rank == 0:
                self._begin(told)
        comm.barrier()

    def _begin(self, facts: dict[str, Any]) -> None:
        path = self.path / _FACTS
        for left in self.path.glob(".*.part"):  # of a run that was killed while it wrote
            left.unlink()
        if not path.exists():
            if any(self.path.iterdir()):
                raise InputError(f"{self.path}: not empty, and not a checkpoint; name another directory")
            with replacing(path, suffix=".part") as temporary:
                temporary.write_text(json.dumps(facts, indent=1) + "\n")
            return
        try:
            known = json.loads(path.read_text())
        except ValueError as error:
            raise InputError(f"{path}: not a checkpoint of this package, or a damaged one ({error})") from error
        for name in {**known, **facts}:
            if known.get(name) != facts.get(name):
                raise InputError(
                    f"{self.path}: a checkpoint of another run: {name} was {_shown(known.get(name))} there and is "
                    f"{_shown(facts.get(name))} here; run the same command, or name another directory"
                )

    def get(self, name: str) -> dict[str, NDArray[Any]] | None:
        """The arrays of a finished piece, or None."""
        path = self.path / f"{name}.npz"
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{path}: damaged ({error}); remove it, and it will be computed again") from error

    def put(self, name: str, **arrays: NDArray[Any]) -> None:
        """Keep a finished piece."""
        with replacing(self.path / f"{name}.npz", suffix=".part") as temporary, temporary.open("wb") as file:
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
