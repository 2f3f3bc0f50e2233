"""Output files are written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cacore.comm import Communicator, Unquoted, require_same
from cacore.errors import InputError, OutputError

STDOUT = Path("-")  # name that stands for standard output, where a command says so
_STEM = 64  # bytes of the file's name kept in the temporary name, which stays short enough for any file system
_LOOKED_AT = 1 << 16  # bytes at the beginning and the end of a file by which copies are told apart
_RANDOM = "[0-9a-f]" * 8


class Temporary:
    """Temporary file that is deleted unless it is kept.

    Attributes
    ----------
    path : Path
        Path of the temporary file.
    """

    def __init__(self, path: str | os.PathLike[str], temporary: Path, handle: int) -> None:
        self.path = temporary
        self._final, self._handle = path, handle

    def share(self) -> None:
        """Allow readers that take a lock, as HDF5 does; other writers of the same file still leave this one alone."""
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def keep(self) -> None:
        """Replace the final file with this one, and flush both the file and its folder to disk."""
        if _is_stream(self._final):
            with self.path.open("rb") as written, Path(self._final).open("ab") as out:
                shutil.copyfileobj(written, out)
            return
        target = Path(_real(self._final))
        os.fsync(self._handle)
        os.replace(self.path, target)
        _sync_folder(target.parent)


@contextmanager
def temporary(path: str | os.PathLike[str], suffix: str = "") -> Iterator[Temporary]:
    """Create a temporary file beside `path`, which is deleted at the end of the block unless it is kept.

    Its name begins with a dot and ends with `suffix`. Files left by killed processes are removed the next time the
    same file is written. If `path` is a link, the file it points to is replaced; a device is written to directly.

    Raises
    ------
    InputError
        No file can be written at `path`; see :func:`check_writable`.
    OutputError
        Writing failed.
    """
    check_writable(path)
    target = Path(_real(path))
    folder = Path(tempfile.gettempdir()) if _is_stream(path) else target.parent
    stem = os.fsdecode(os.fsencode(target.name)[:_STEM])
    try:
        _remove_left(folder, stem, suffix)
        hidden = folder / f".{stem}.{secrets.token_hex(4)}{suffix}"
        handle = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
    except OSError as error:
        raise OutputError.of(path, error) from error
    try:
        _locked(handle)
        yield Temporary(path, hidden, handle)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError.of(path, error) from error
    finally:
        os.close(handle)
        hidden.unlink(missing_ok=True)


@contextmanager
def replacing(path: str | os.PathLike[str], suffix: str = "") -> Iterator[Path]:
    """Replace the file at `path` with what the block writes, unless the block raises an error.

    The new file is flushed to disk first, so a crash leaves either the old file or the new one. See :func:`temporary`
    for names, links, devices and errors.
    """
    with temporary(path, suffix) as replacement:
        yield replacement.path
        replacement.keep()


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise an InputError, before any work is done, if no file can be written at `path`."""
    target, folder = Path(_real(path)), Path(path).parent
    if _is_stream(path):
        return
    try:
        if target.is_dir():
            raise InputError(f"{path}: is a directory; name a file")
        if target.exists() and not target.is_file():
            raise InputError(f"{path}: is not a regular file; name another")
        if not target.parent.is_dir():
            raise InputError(f"{path}: the directory {folder} does not exist; create it first")
        if not os.access(target.parent, os.W_OK):
            raise InputError(f"{path}: the directory {folder} cannot be written to")
    except OSError as error:  # a name that is too long
        raise InputError(f"{path}: cannot be a file ({error.strerror}); name another") from error


def check_apart(outputs: Iterable[tuple[str, Path | None]], inputs: Iterable[tuple[str, Path | None]] = ()) -> None:
    """Raise an InputError if an output would overwrite an input or another output.

    Each path comes with its command-line flag, or with the name to use for it in the message.
    """
    named: dict[str, str] = {_real(path): flag for flag, path in inputs if path is not None}
    for flag, path in outputs:
        if path is None or _is_stream(path):
            continue
        if owner := named.get(place := _real(path)):
            raise InputError(f"{flag} {path}: is also the file of {owner}, which it would replace; name another")
        named[place] = flag


def described(path: str | os.PathLike[str]) -> str:
    """Size of a file and digest of its beginning and end, or the reason why it cannot be read."""
    try:
        kind = os.stat(path).st_mode
        if not stat.S_ISREG(kind):
            return "a directory" if stat.S_ISDIR(kind) else "not a regular file"
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            digest = hashlib.blake2b(digest_size=8)
            for place in (0, max(0, size - _LOOKED_AT)):
                file.seek(place)
                digest.update(file.read(_LOOKED_AT))
    except OSError as error:
        return f"{os.fspath(path)}: {error.strerror}"
    return f"{size:,} bytes [{digest.hexdigest()}]"


def same_file(name: str, path: str | os.PathLike[str], comm: Communicator) -> None:
    """Raise an InputError on all ranks if they do not all find the same file at `path`; collective."""
    if comm.size > 1:
        with comm.uncounted():
            require_same({name: Unquoted(described(path))}, comm)


@contextmanager
def printing() -> Iterator[None]:
    """Flush standard output at the end of the block, and ignore a reader that closed the pipe early.

    Raises
    ------
    OutputError
        The output could not be written, for example to a file on a full disk.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OutputError:
        raise
    except OSError as error:
        # Discard the buffer: at exit the interpreter would flush it again, fail again, and change the exit status.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise OutputError.of("standard output", error) from error


def _real(path: str | os.PathLike[str], follow: Callable[[str], str] = os.path.realpath) -> str:
    """Absolute path without links; an InputError if `path` is relative to a working directory that was deleted."""
    try:
        return follow(os.fspath(path))
    except FileNotFoundError as error:
        remedy = "change to another directory, or give a full path"
        raise InputError(f"{path}: the working directory was deleted: {remedy}") from error


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """True if `path` is a device or standard stream, such as /dev/null, which cannot be replaced by another file."""
    name = _real(path, os.path.abspath)
    try:
        device = stat.S_ISCHR(os.stat(name).st_mode)
    except OSError:  # the file does not exist, or its name is invalid
        device = False
    return device or name in ("/dev/stdout", "/dev/stderr") or name.startswith("/dev/fd/")


def _remove_left(folder: Path, stem: str, suffix: str) -> None:
    """Remove temporary files left by killed processes, whose locks are released."""
    for path in folder.glob(f".{glob.escape(stem)}.{_RANDOM}{suffix}"):
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError:
            continue  # it has just been renamed, or belongs to another user
        if _locked(handle):
            path.unlink(missing_ok=True)
        os.close(handle)


def _locked(handle: int) -> bool:
    """Lock an open file until it is closed or the process ends; True if that succeeded."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process holds the lock, or the file system has none
        return False
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot flush a folder
            raise
    finally:
        os.close(handle)
