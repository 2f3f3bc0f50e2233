"""The bytes and the lines of a data file, decompressed and counted: no line or block is larger than memory allows."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from cacore.errors import InputError, MemoryLimitError
from cacore.machine import memory, threads

_OPENERS: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)
_BLOCK = 1 << 20
_TELL_EVERY = 4096  # lines
_PER_BYTE = 32  # bytes of memory while a byte of text is parsed: a word of two characters is an object of 35 bytes
REMEDY = "read it where there is more memory, or raise --memory-limit"

Told = Callable[[int], None]  # called, while a file is read, with how many of its bytes have been

# What reading a damaged or truncated file ends with.
DAMAGE = (OSError, EOFError, lzma.LZMAError, zlib.error)

Stamp = tuple[int, int]  # of a file: its size, and when it was written last


def stamp(path: Path) -> Stamp:
    """What differs once a file is written to."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def check_unchanged(path: Path, before: Stamp) -> None:
    """Refuse a file that has been written to since it had this stamp: parts of it may be old and others new."""
    try:
        same = stamp(path) == before
    except OSError:
        same = False
    if not same:
        raise InputError(f"{path}: it changed while it was read; read it again when nothing writes to it")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around what reads a file: damage, memory that is not there, and changes meanwhile are an InputError."""
    try:
        before = stamp(path)
        try:
            yield
        except Exception:
            check_unchanged(path, before)
            raise
        check_unchanged(path, before)
    except (*DAMAGE, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: damaged or truncated ({error}); copy it again") from error
    except MemoryError as error:
        raise MemoryLimitError(f"{path}: there is not enough memory for its rows; {REMEDY}") from error


def check_regular(path: Path) -> None:
    """Refuse what is no file of bytes: a pipe can be read once only, and a device may have no end."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise InputError(f"{path}: {what} cannot be read; name a file that holds the rows")


def open_bytes(path: Path) -> BinaryIO:
    """The file's bytes, decompressed; its first bytes say what it is, not its name."""
    opener = _opener(path)
    return path.open("rb") if opener is None else opener(path, "rb")


def place(stream: BinaryIO) -> int:
    """How many bytes of the file itself have been read to get at what :func:`open_bytes` has given."""
    return os.lseek(stream.fileno(), 0, os.SEEK_CUR)


def _opener(path: Path) -> Callable[..., BinaryIO] | None:
    with path.open("rb") as raw:
        magic = raw.read(8)
    return next((opener for start, opener in _OPENERS if magic.startswith(start)), None)


def is_compressed(path: Path) -> bool:
    """Whether :func:`open_bytes` decompresses."""
    return _opener(path) is not None


def in_memory(path: Path, limit: int) -> io.BytesIO:
    """All bytes of a file, decompressed; refused as soon as they are more than `limit`."""
    whole = io.BytesIO()
    with open_bytes(path) as stream:
        while block := stream.read(_BLOCK):
            memory.require(whole.tell() + len(block), limit, f"{path}: what it holds, decompressed,", REMEDY)
            whole.write(block)
    whole.seek(0)
    return whole


def blocks_of_lines(
    path: Path, limit: int, told: Told | None = None, start: int = 0, end: int = -1
) -> Iterator[tuple[int, bytes]]:
    """Whole lines, at most about a MiB at a time, with the number of the first of them, from 1.

    The last line ends as the others do, whether the file's does or not. `start` and `end` are bytes, decompressed, at
    which lines begin: those between them are read, up to the end of the file if `end` is -1, and counted.
    """
    # Some blocks a thread wait at a time, each with the numbers that were found in it.
    first, size = 1, min(_BLOCK, max(1 << 16, limit // (64 * max(2, threads.current()))))
    with open_bytes(path) as stream:
        stream.seek(start)
        at = start
        while block := stream.read(size if end < 0 else max(0, min(size, end - at))):
            if not block.endswith(b"\n"):
                block += stream.readline(limit // _PER_BYTE + 1)
            memory.require(len(block) * _PER_BYTE, limit, f"{path}: to parse what begins at line {first}", REMEDY)
            if told is not None:
                told(place(stream))
            at += len(block)
            if first == 1 and start == 0:
                block = block.removeprefix(codecs.BOM_UTF8)
            yield first, block if block.endswith(b"\n") else block + b"\n"
            first += block.count(b"\n")


def line_start(path: Path, byte: int) -> int:
    """The first byte of plain text, from this one on, at which a line begins, or the file's length."""
    with path.open("rb") as file:
        file.seek(byte - 1)
        while (piece := file.readline(_BLOCK)) and not piece.endswith(b"\n"):
            pass
        return file.tell()


def lines_before(path: Path, byte: int) -> int:
    """How many lines of plain text end before this byte, at which one begins; the text is read again."""
    count = 0
    with path.open("rb") as file:
        while file.tell() < byte and (block := file.read(min(_BLOCK, byte - file.tell()))):
            count += block.count(b"\n")
    return count


class Lines:
    """The lines of a text file, from line `first` on, without a byte order mark.

    Attributes
    ----------
    number : int
        Of the line that was read last, from 1.
    rows : int
        Lines that were handed out and are not empty.
    """

    def __init__(self, path: Path, limit: int, first: int = 1, told: Told | None = None) -> None:
        self._path, self._limit, self._first, self._told = path, limit, first, told
        self.number = self.rows = 0

    def __iter__(self) -> Iterator[str]:
        longest = self._limit // _PER_BYTE + 1
        with io.TextIOWrapper(open_bytes(self._path), encoding="utf-8-sig", errors="replace") as text:
            for line in iter(partial(text.readline, longest), ""):
                self.number += 1
                if self._told is not None and not self.number % _TELL_EVERY:
                    self._told(place(text.buffer))
                if len(line) == longest:
                    memory.require(
                        longest * _PER_BYTE, self._limit, f"{self._path}: to parse line {self.number}", REMEDY
                    )
                if self.number >= self._first:
                    self.rows += line != "\n"
                    yield line
