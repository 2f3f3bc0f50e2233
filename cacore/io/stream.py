"""Bytes and lines of a data file, decompressed and counted; no line or block may exceed the memory limit."""

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

from cacore.comm import Communicator
from cacore.errors import InputError, MemoryLimitError
from cacore.files import same_file
from cacore.machine import memory, threads

_OPENERS: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)
_BLOCK = 1 << 20
_TELL_EVERY = 4096  # lines
_PER_BYTE = 32  # bytes of memory per byte of text while it is parsed: a word of two characters takes 35 bytes
REMEDY = "read it where there is more memory, or raise --memory-limit"

OnBytesRead = Callable[[int], None]  # progress callback, called with the number of bytes of the file read so far

# Exceptions raised when a damaged or truncated file is read.
DAMAGE = (OSError, EOFError, lzma.LZMAError, zlib.error)

Stamp = tuple[int, int, int]  # size of a file, and times of the last change of its content, and of the file itself


def stamp(path: Path, what: str = "file") -> Stamp:
    """Size and times of a file, which change when it is written to, and when another file takes its place."""
    found = _facts(path, what)
    # The time of the last change cannot be set: a copy that keeps the time of its content has another.
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def check_unchanged(path: Path, before: Stamp) -> None:
    """Raise an InputError if the file has been written to since this stamp, so that rows read may be inconsistent."""
    try:
        same = stamp(path) == before
    except InputError:
        same = False
    if not same:
        raise InputError(f"{path}: it changed while it was read; read it again when nothing writes to it")


@contextmanager
def unchanging(path: Path, comm: Communicator, kind: str = "data") -> Iterator[None]:
    """Raise an InputError on all ranks if they find other files, or one that changes while it is read; collective.

    No rank enters the block before all have a stamp of the file, and no rank leaves it before all have read: so all of
    them have read the same content. The messages are not counted. `kind` is "data" or "model".
    """
    same_file(f"{kind} file", path, comm)
    with comm.uncounted(), comm.agreed():
        before = stamp(path, "file" if kind == "data" else f"{kind} file")
    yield
    with comm.uncounted(), comm.agreed():
        check_unchanged(path, before)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn damage, lack of memory, and changes of the file while the block reads it into an InputError."""
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
    """Raise an InputError unless `path` is a regular file: a pipe can be read only once, and a device may never end."""
    mode = _facts(path).st_mode
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise InputError(f"{path}: {what} cannot be read; name a file that holds the rows")


def _facts(path: Path, what: str = "file") -> os.stat_result:
    """Status of a file, as :func:`os.stat` returns it; an InputError if there is none."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path}: no such {what}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading decompressed bytes; its first bytes, not its name, decide on the compression."""
    opener = _opener(path)
    return path.open("rb") if opener is None else opener(path, "rb")


def place(stream: BinaryIO) -> int:
    """Number of bytes of the file itself, before decompression, that a stream from :func:`open_bytes` has read."""
    return os.lseek(stream.fileno(), 0, os.SEEK_CUR)


def _opener(path: Path) -> Callable[..., BinaryIO] | None:
    with path.open("rb") as raw:
        magic = raw.read(8)
    return next((opener for start, opener in _OPENERS if magic.startswith(start)), None)


def is_compressed(path: Path) -> bool:
    """True if :func:`open_bytes` decompresses the file."""
    return _opener(path) is not None


def in_memory(path: Path, limit: int) -> io.BytesIO:
    """Read all decompressed bytes of a file; raise an error as soon as they exceed `limit`."""
    whole = io.BytesIO()
    with open_bytes(path) as stream:
        while block := stream.read(_BLOCK):
            memory.require(whole.tell() + len(block), limit, f"{path}: decompressing it", REMEDY)
            whole.write(block)
    whole.seek(0)
    return whole


def blocks_of_lines(
    path: Path, limit: int, on_read: OnBytesRead | None = None, start: int = 0, end: int = -1
) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, of about 1 MiB at most, each with the number (from 1) of its first line.

    A newline is appended to the last line if it has none. `start` and `end` are offsets of line starts in the
    decompressed bytes: only the lines between them are read and counted. If `end` is -1, the file is read to its end.
    """
    # Several blocks per thread wait at a time, together with the numbers parsed from them.
    first, size = 1, min(_BLOCK, max(1 << 16, limit // (64 * max(2, threads.current()))))
    with open_bytes(path) as stream:
        stream.seek(start)
        at = start
        while block := stream.read(size if end < 0 else max(0, min(size, end - at))):
            if not block.endswith(b"\n"):
                block += stream.readline(limit // _PER_BYTE + 1)
            memory.require(len(block) * _PER_BYTE, limit, f"{path}: parsing the lines from line {first}", REMEDY)
            if on_read is not None:
                on_read(place(stream))
            at += len(block)
            if first == 1 and start == 0:
                block = block.removeprefix(codecs.BOM_UTF8)
            yield first, block if block.endswith(b"\n") else block + b"\n"
            first += block.count(b"\n")


def line_start(path: Path, byte: int) -> int:
    """Offset of the first line that begins at or after byte `byte` of a plain text; the file's length if none does."""
    with path.open("rb") as file:
        file.seek(byte - 1)
        while (piece := file.readline(_BLOCK)) and not piece.endswith(b"\n"):
            pass
        return file.tell()


def lines_before(path: Path, byte: int) -> int:
    """Number of lines before byte `byte`, at which a line begins, of a plain text; the text is read again."""
    count = 0
    with path.open("rb") as file:
        while file.tell() < byte and (block := file.read(min(_BLOCK, byte - file.tell()))):
            count += block.count(b"\n")
    return count


class Lines:
    """Iterable over the lines of a text file from line `first` on, without a byte order mark.

    Attributes
    ----------
    number : int
        Number (from 1) of the line read last.
    rows : int
        Number of nonempty lines yielded.
    """

    def __init__(self, path: Path, limit: int, first: int = 1, on_read: OnBytesRead | None = None) -> None:
        self._path, self._limit, self._first, self._on_read = path, limit, first, on_read
        self.number = self.rows = 0

    def __iter__(self) -> Iterator[str]:
        longest = self._limit // _PER_BYTE + 1
        with io.TextIOWrapper(open_bytes(self._path), encoding="utf-8-sig", errors="replace") as text:
            for line in iter(partial(text.readline, longest), ""):
                self.number += 1
                if self._on_read is not None and not self.number % _TELL_EVERY:
                    self._on_read(place(text.buffer))
                if len(line) == longest:
                    memory.require(
                        longest * _PER_BYTE, self._limit, f"{self._path}: parsing line {self.number}", REMEDY
                    )
                if self.number >= self._first:
                    self.rows += line != "\n"
                    yield line
