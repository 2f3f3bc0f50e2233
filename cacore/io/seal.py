"""Files that know whether they are as they were written: HDF5 behind a block of bytes with their checksum.

A damaged file can end the process inside libhdf5, and one changed bit of a coefficient changes answers. HDF5 leaves the
first block of a file to its user, and any HDF5 library reads what comes after it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from cacore.errors import InputError

BLOCK = 512  # bytes, the least that HDF5 has
MARK, _HDF5 = b"cakernels sha256 ", b"\x89HDF\r\n\x1a\n"


def seal(path: Path) -> None:
    """Write the checksum of what comes after the first block into it; the file is read once."""
    with path.open("r+b") as file:
        word = MARK + _checksum(file) + b"\n"
        file.seek(0)
        file.write(word.ljust(BLOCK, b"\0"))


def check_seal(path: Path) -> None:
    """Refuse a file that has changed since it was sealed; one of plain HDF5, which never was, is not looked at."""
    with path.open("rb") as file:
        head = file.read(BLOCK)
        if head.startswith(_HDF5):
            return
        if not head.startswith(MARK):
            raise InputError(f"{path}: not a model file of this package, or a damaged one")
        if head.rstrip(b"\0") != MARK + _checksum(file) + b"\n":
            raise InputError(f"{path}: damaged: it has changed since it was written; copy it again")


def _checksum(file: Any) -> bytes:
    file.seek(BLOCK)
    return hashlib.file_digest(file, "sha256").hexdigest().encode()
