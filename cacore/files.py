"""Output files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cacore.errors import InputError

_READING_UMASK = threading.Lock()  # it can only be read by setting it


@contextmanager
def replacing(path: str | os.PathLike[str], suffix: str = "") -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes otherwise.

    Its name begins with a dot and ends with `suffix`, by which what a killed process left is recognised.
    """
    target = Path(path)
    check_writable(target)
    handle, name = tempfile.mkstemp(suffix, f".{target.name}.", target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with _READING_UMASK:
            umask = os.umask(0)
            os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a place where no file can be put, before the work is done rather than after."""
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target}: is a directory; name a file")
    if not target.parent.is_dir():
        raise InputError(f"{target}: the directory {target.parent} does not exist; create it first")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{target}: the directory {target.parent} cannot be written to")
