"""Output files are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cacore.errors import InputError, OutputError

_STEM = 64  # bytes of a file's name that its temporary file has too: with the rest, a name that any file system takes


@contextmanager
def replacing(path: str | os.PathLike[str], suffix: str = "") -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes otherwise.

    It is on the disk when it takes that place, so that a machine that goes down leaves the old file or the new one. Its
    name begins with a dot and ends with `suffix`, by which what a killed process left is recognised. A link stays one,
    and the file that it names is replaced; a device is written to.

    Raises
    ------
    InputError
        There can be no such file; see :func:`check_writable`.
    OutputError
        It could not be written.
    """
    check_writable(path)
    target, stream = Path(os.path.realpath(path)), _is_stream(path)
    temporary = _new(Path(tempfile.gettempdir()) if stream else target.parent, target.name, suffix)
    try:
        yield temporary
        if stream:
            with temporary.open("rb") as written, Path(path).open("ab") as out:
                shutil.copyfileobj(written, out)
        else:
            _sync(temporary)
            os.replace(temporary, target)
            with suppress(OSError):  # some file systems cannot do this for a directory
                _sync(target.parent)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError.of(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a place where no file can be put, before the work is done rather than after."""
    target, folder = Path(os.path.realpath(path)), Path(path).parent
    try:
        if _is_stream(path):
            return
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


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether it is written to, as /dev/null and /dev/stdout are: there is nothing to replace."""
    name = os.path.abspath(path)
    return name in ("/dev/stdout", "/dev/stderr") or name.startswith("/dev/fd/") or Path(name).is_char_device()


def _new(folder: Path, name: str, suffix: str) -> Path:
    """A new file with the permissions that the user's files have, hidden, named after the one that it will be."""
    stem = os.fsdecode(os.fsencode(name)[:_STEM])
    temporary = folder / f".{stem}.{secrets.token_hex(4)}{suffix}"
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise OutputError.of(folder / name, error) from error
    return temporary


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
