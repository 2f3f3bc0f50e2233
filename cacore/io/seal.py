"""Checksums of HDF5 files, stored in a block before the HDF5 data, that reveal any later change.

A damaged file can end the process inside libhdf5, and one changed bit of a coefficient changes predictions. HDF5
reserves the first block of a file for its user; every HDF5 library reads the data after it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from cacore.errors import InputError

BLOCK = 512  # bytes; the smallest user block of HDF5
MARK, _HDF5 = b"cakernels sha256 ", b"\x89HDF\r\n\x1a\n"


def seal(path: Path) -> None:
    """Write the checksum of the rest of the file into its first block; the file is read once."""
    with path.open("r+b") as file:
        word = MARK + _checksum(file) + b"\n"
        file.seek(0)
        file.write(word.ljust(BLOCK, b"\0"))


def check_seal(path: Path) -> None:
    """Raise an InputError if the file has changed since it was sealed; a plain HDF5 file without a seal is accepted."""
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
