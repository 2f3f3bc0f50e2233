"""Output files are written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cacore.errors import InputError, OutputError

_STEM = 64  # bytes of a file's name that its temporary file has too: with the rest, a name that any file system takes
_RANDOM = "[0-9a-f]" * 8


class Temporary:
    """A file that is being written, and vanishes unless it is kept.

    Attributes
    ----------
    path : Path
        Where it is.
    """

    def __init__(self, path: str | os.PathLike[str], temporary: Path, handle: int) -> None:
        self.path = temporary
        self._final, self._handle = path, handle

    def share(self) -> None:
        """Let others read it under a lock of theirs, as HDF5 does; who writes the same file still leaves it alone."""
        with suppress(OSError):  # there are no locks in this file system
            fcntl.flock(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def keep(self) -> None:
        """Let it take the place that it was made for, where it is on the disk from then on."""
        if _is_stream(self._final):
            with self.path.open("rb") as written, Path(self._final).open("ab") as out:
                shutil.copyfileobj(written, out)
            return
        target = Path(os.path.realpath(self._final))
        os.fsync(self._handle)
        os.replace(self.path, target)
        _sync_folder(target.parent)


@contextmanager
def temporary(path: str | os.PathLike[str], suffix: str = "") -> Iterator[Temporary]:
    """A file beside `path` that may take its place, and vanishes when the block ends.

    Its name begins with a dot and ends with `suffix`; what a killed process left is removed when the same file is
    written again. A link stays one, and the file that it names is replaced; a device is written to.

    Raises
    ------
    InputError
        There can be no such file; see :func:`check_writable`.
    OutputError
        It could not be written.
    """
    check_writable(path)
    target = Path(os.path.realpath(path))
    folder = Path(tempfile.gettempdir()) if _is_stream(path) else target.parent
    stem = os.fsdecode(os.fsencode(target.name)[:_STEM])
    try:
        _remove_left(folder, stem, suffix)
        made = folder / f".{stem}.{secrets.token_hex(4)}{suffix}"
        handle = os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
    except OSError as error:
        raise OutputError.of(path, error) from error
    try:
        _locked(handle)
        yield Temporary(path, made, handle)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError.of(path, error) from error
    finally:
        os.close(handle)
        made.unlink(missing_ok=True)


@contextmanager
def replacing(path: str | os.PathLike[str], suffix: str = "") -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes otherwise.

    It is on the disk when it takes that place, so that a machine that goes down leaves the old file or the new one.
    The rest is as :func:`temporary` says.
    """
    with temporary(path, suffix) as made:
        yield made.path
        made.keep()


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a place where no file can be put, before the work is done rather than after."""
    target, folder = Path(os.path.realpath(path)), Path(path).parent
    if _is_stream(path):
        return
    try:
        if target.is_dir():
            raise InputError(f"{path}: is a directory; name a file")
        if target.exists() and not target.is_file():
            raise InputError(f"{path}: is no regular file; name another")
        if not target.parent.is_dir():
            raise InputError(f"{path}: the directory {folder} does not exist; create it first")
        if not os.access(target.parent, os.W_OK):
            raise InputError(f"{path}: the directory {folder} cannot be written to")
    except OSError as error:  # a name that is too long
        raise InputError(f"{path}: cannot be a file ({error.strerror}); name another") from error


def check_apart(outputs: Iterable[tuple[str, Path | None]], inputs: Iterable[tuple[str, Path | None]] = ()) -> None:
    """Refuse two options that name one file, unless it is read by both: the second would replace the first's.

    Each is given with its flag, or what messages call it.
    """
    named: dict[str, str] = {os.path.realpath(path): flag for flag, path in inputs if path is not None}
    for flag, path in outputs:
        if path is None or _is_stream(path):
            continue
        if other := named.get(place := os.path.realpath(path)):
            raise InputError(f"{flag} {path}: the file of {other}, which it would replace; name another")
        named[place] = flag


@contextmanager
def printing() -> Iterator[None]:
    """Around what prints: it is on its way when the block ends, and who closes a pipe early wants no more of it.

    Raises
    ------
    OutputError
        It could not be written: the output goes to a file on a full disk.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OutputError:
        raise
    except OSError as error:
        # What is left in the buffer would be tried again at the interpreter's end, which has a status of its own.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise OutputError.of("standard output", error) from error


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether it is written to, as /dev/null and /dev/stdout are: there is nothing to replace."""
    name = os.path.abspath(path)
    try:
        device = stat.S_ISCHR(os.stat(name).st_mode)
    except OSError:  # there is no such file, or cannot be
        device = False
    return device or name in ("/dev/stdout", "/dev/stderr") or name.startswith("/dev/fd/")


def _remove_left(folder: Path, stem: str, suffix: str) -> None:
    """Remove the temporary files of processes that were killed, for theirs is no lock any more."""
    for path in folder.glob(f".{glob.escape(stem)}.{_RANDOM}{suffix}"):
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError:
            continue  # it has just taken its place, or is another user's
        if _locked(handle):
            path.unlink(missing_ok=True)
        os.close(handle)


def _locked(handle: int) -> bool:
    """Whether an open file is now locked by this process, until it is closed or the process ends."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked by another, or there are no locks in this file system
        return False
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot do this for a folder
            raise
    finally:
        os.close(handle)
