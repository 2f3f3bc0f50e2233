"""Checkpoints: a directory with one file per finished piece of a run, and the facts that identify the run."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.errors import InputError, OutputError
from cacore.files import replacing
from cacore.io.words import counted

SCHEMA = "cakernels-checkpoint/2"

Kept = dict[str, NDArray[Any]]  # arrays of a finished piece, or of a state, by name

_FACTS, _LOCK = "run.json", "lock"
_UNFINISHED = ".part"
_KINDS = {  # of pieces, by their names
    r"part-\d+": "parts", r"(?:[a-z]\w*-)?pair-\d{4}-\d{4}": "settings",
    r"search-\d+-.+|(?:.+-)?grid-\d+": "search",
}  # fmt: skip
_NOUNS = {"parts": ("part", ""), "settings": ("setting", ""), "search": ("piece", " of the search"),
          "other": ("other piece", "")}  # fmt: skip
_OF_A_RANK, _STATE = re.compile(r"-rank\d{6}$"), re.compile(r"-(unfinished-\d|[ab])-rank\d{6}$")


class Checkpoint:
    """Directory of finished pieces of a run, from which the same command can resume.

    All ranks must see the same directory; :meth:`open` creates it. A path to a file is an InputError. Each piece is
    written to a temporary file that is then renamed, so it is complete or absent even if the run is killed. No pickle.

    Attributes
    ----------
    path : Path
    failure : OutputError or None
        First error of this rank in saving a piece, if any; the run continues without that piece.
    resumed : dict of str to int, or None
        On rank 0, numbers of finished pieces by kind when a run was resumed, those of nested runs included; None for a
        run that begins.
    tell : callable or None
        Called on rank 0 with one line that says what is resumed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.failure: OutputError | None = None
        self.resumed: Counter[str] | None = None
        self.tell: Callable[[str], None] | None = None
        self._lock: weakref.finalize[[int], Checkpoint] | None = None
        self._outer: Checkpoint | None = None
        if os.path.exists(path) and not os.path.isdir(path):
            raise InputError(f"{self.path}: is a file; --checkpoint needs a directory")

    def open(self, facts: dict[str, object], comm: Communicator, expected: Mapping[str, int] | None = None) -> None:
        """Resume the run that `facts` describe, or begin it; collective.

        `expected` has the number of pieces of a whole run, by kind, where it is known; see :attr:`resumed`.
        All ranks raise an InputError if the directory cannot be made, is used by another process (which it names), or
        belongs to another run (it names the first fact that differs). A damaged piece is an InputError as well. The
        ranks share the work of reading all pieces here for this check alone, so that no rank fails later by itself.
        """
        run_facts = json.loads(json.dumps({"schema": SCHEMA, **facts}, default=lambda value: value.item()))
        with comm.agreed():
            again = comm.rank == 0 and self._begin(run_facts)
        comm.barrier()
        with comm.agreed():
            for path in sorted(self.path.glob("*.npz"))[comm.rank :: comm.size]:
                self.get(path.stem)
        with comm.agreed():
            if again:
                self._say(self._finished(comm.size), expected or {})

    def _begin(self, facts: dict[str, object]) -> bool:
        """Make or check the directory; True if there was a run before."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot make this directory ({error.strerror})") from error
        if not (self.path / _FACTS).exists():
            self._refuse_others()
        self._hold()
        saved_facts = self._saved_facts()
        if saved_facts is not None:
            self._compare(saved_facts, facts)
        # Temporary files of a run that was killed while it wrote.
        for entry in self.path.glob(f".*{_UNFINISHED}"):
            entry.unlink()
        if saved_facts is None:
            with replacing(self.path / _FACTS, suffix=_UNFINISHED) as temporary:
                temporary.write_text(json.dumps(facts, indent=1) + "\n")
        return saved_facts is not None

    def _finished(self, ranks: int) -> Counter[str]:
        """Numbers of finished pieces by kind; one whose ranks each save a share counts if all shares are here."""
        names = [path.stem for path in self.path.glob("*.npz") if not _STATE.search(path.stem)]
        shares = Counter(_OF_A_RANK.sub("", name) for name in names if _OF_A_RANK.search(name))
        whole = [name for name in names if not _OF_A_RANK.search(name)]
        whole += [name for name, count in shares.items() if count == ranks]
        kinds = (next((kind for form, kind in _KINDS.items() if re.fullmatch(form, name)), "other") for name in whole)
        return Counter(kinds)

    def _say(self, finished: Counter[str], expected: Mapping[str, int]) -> None:
        """Record what is resumed, here and in the enclosing checkpoint, and tell it."""
        outer: Checkpoint | None = self
        while outer is not None:
            outer.resumed = (outer.resumed or Counter()) + finished
            outer = outer._outer
        if self.tell is None:
            return
        each = []
        for kind, (noun, more) in _NOUNS.items():
            if kind in expected and finished[kind]:
                each.append(f"{finished[kind]:,} of {counted(expected[kind], noun)}{more}")
            elif finished[kind]:
                each.append(f"{counted(finished[kind], noun)}{more}")
        self.tell(f"resumed: {', '.join(each)}, from {self.path}" if each else
                  f"resumed: nothing is finished in {self.path}")  # fmt: skip

    def _refuse_others(self) -> None:
        """Raise an InputError if the directory has files but is not a checkpoint."""
        ours = {self.path / _LOCK, *self.path.glob(f".{_FACTS}.*{_UNFINISHED}")}
        if others := set(self.path.iterdir()) - ours:
            other = min(others).name
            raise InputError(f"{self.path}: not empty, and not a checkpoint ({other}); name another directory")

    def _hold(self) -> None:
        """Lock the directory until this process ends, even if it is killed."""
        if self._lock is not None:
            return
        try:
            lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError.of(self.path / _LOCK, error) from error
        self._lock = weakref.finalize(self, os.close, lock)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return  # the file system has no locks
            holder = os.read(lock, 200).decode(errors="replace").strip()
            raise InputError(
                f"{self.path}: in use by another run ({holder}); wait for its end, or name another directory"
            ) from error
        os.truncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {platform.node()}\n".encode())

    def _saved_facts(self) -> dict[str, object] | None:
        """Facts of the run saved here, or None."""
        path = self.path / _FACTS
        if not os.path.exists(path):
            return None
        try:
            saved_facts = json.loads(path.read_text())
            if not isinstance(saved_facts, dict):
                raise ValueError("not an object")
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path}: not a checkpoint of this package, or a damaged one ({error})") from error
        return saved_facts

    def _compare(self, saved_facts: dict[str, object], facts: dict[str, object]) -> None:
        """Raise an InputError that names the first different fact; a number of ranks alone has its own remedy."""
        there, here, apart = saved_facts.get("ranks"), facts.get("ranks"), {"ranks": 0, "partitions": 0}
        if isinstance(there, int) and there != here and {**saved_facts, **apart} == {**facts, **apart}:
            raise InputError(
                f"{self.path}: a checkpoint of {counted(there, 'rank')}, and this run has {here}; run the same command "
                f"on {counted(there, 'rank')}, also with --partitions, or name another directory"
            )
        for name in {**saved_facts, **facts}:
            if saved_facts.get(name) != facts.get(name):
                raise InputError(
                    f"{self.path}: a checkpoint of another run: {name} was {_shown(saved_facts.get(name))} there and "
                    f"is {_shown(facts.get(name))} here; run the same command, or name another directory"
                )

    def fact(self, name: str) -> Any:
        """Fact of the run saved here, or None."""
        return (self._saved_facts() or {}).get(name)

    def get(self, name: str) -> Kept | None:
        """Arrays of a finished piece, or None."""
        path = self.path / f"{name}.npz"
        if not path.exists():
            return None
        try:
            # Opened here because numpy does not close a file that it cannot read.
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except Exception as error:  # numpy, zipfile and zlib each raise their own exceptions for an invalid file
            raise InputError(f"{path}: damaged; remove it, and it will be computed again") from error

    def within(self, name: str) -> Checkpoint:
        """Checkpoint of a nested run, in a subfolder; its failures also count as failures of this one."""
        inner = type(self)(self.path / name)
        inner._outer, inner.tell = self, self.tell
        return inner

    def fail(self, error: OutputError) -> None:
        """Record the failure to save a piece, here and in the enclosing checkpoint; see :attr:`failure`."""
        self.failure = self.failure or error
        if self._outer is not None:
            self._outer.fail(error)

    def put(self, name: str, **arrays: NDArray[Any]) -> None:
        """Save a finished piece; errors are recorded in :attr:`failure`."""
        try:
            with replacing(self.path / f"{name}.npz", suffix=_UNFINISHED) as temporary, temporary.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        except OutputError as error:
            self.fail(error)


def remembered(
    checkpoint: Checkpoint | None, name: str, work: Callable[[], Kept], comm: Communicator | None = None
) -> Kept:
    """Result of `work`, taken from the checkpoint if an earlier run saved it.

    With `comm`, the work is collective: each rank saves its own file, and the result is reused only if all ranks have
    theirs.
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


class Unfinished:
    """States of an unfinished piece of work, which each rank saves to its own file from time to time; collective.

    The last two states are kept: if the run is killed while its ranks write one, the state before is complete.

    Parameters
    ----------
    checkpoint : Checkpoint
    name : str
        Name of the piece.
    comm : Communicator
    seconds : float
        Least time between two states.
    """

    def __init__(self, checkpoint: Checkpoint, name: str, comm: Communicator, seconds: float = 300.0) -> None:
        self._checkpoint, self._comm, self._seconds = checkpoint, comm, seconds
        self._names = [f"{name}-unfinished-{turn}-rank{comm.rank:06d}" for turn in range(2)]
        self._count, self._last = 0, time.monotonic()

    def due(self) -> bool:
        """True if this rank's next state is due; the caller must then make all ranks save one."""
        return time.monotonic() - self._last >= self._seconds

    def put_if_due(self, **arrays: NDArray[Any]) -> None:
        """Save a state if one is due by rank 0's clock; collective."""
        with self._comm.uncounted():
            due = bool(self._comm.bcast(np.array([self.due()]))[0])
        if due:
            self.put(**arrays)

    def put(self, **arrays: NDArray[Any]) -> None:
        """Save a state in place of the last but one; errors are recorded in :attr:`Checkpoint.failure`."""
        self._count, self._last = self._count + 1, time.monotonic()
        self._checkpoint.put(self._names[self._count % 2], state=np.array(self._count), **arrays)

    def get(self) -> Kept | None:
        """Last state that all ranks have saved, or None."""
        states = [self._checkpoint.get(name) for name in self._names]
        numbers = np.array([0 if state is None else int(state["state"]) for state in states])
        with self._comm.uncounted():
            least, most = self._comm.allreduce(numbers, "min"), self._comm.allreduce(numbers, "max")
        self._count = int(np.where(least == most, most, 0).max())
        return states[self._count % 2] if self._count else None

    def remove(self) -> None:
        """Delete the states after the piece itself has been saved, unless saving failed on some rank."""
        if self._comm.all(self._checkpoint.failure is None):
            for name in self._names:
                (self._checkpoint.path / f"{name}.npz").unlink(missing_ok=True)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
