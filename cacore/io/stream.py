"""Bytes and lines of data files: decompression, checksums, and the division of a text among ranks.

No line or block may exceed the memory limit. Each rank reads the lines of plain text that begin in its even share of
the bytes. Compressed text cannot be divided by bytes: rank 0 decompresses it and sends blocks of lines to the other
ranks in turn, which parse them meanwhile; afterwards the order of the file is restored.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import SameRows, block_bounds, exchange_rows, take_rows
from cacore.errors import InputError, MemoryLimitError, OutputError
from cacore.files import same_file
from cacore.machine import memory, threads

_OPENERS: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)
_BLOCK = 1 << 20  # bytes of text per block
_TELL_EVERY = 4096  # lines
_PER_BYTE = 32  # bytes of memory per byte of text while it is parsed: a word of two characters takes 35 bytes
REMEDY = "read it where there is more memory, or raise --memory-limit"

OnBytesRead = Callable[[int], None]  # progress callback, called with the number of bytes of the file read so far

# Exceptions raised when a damaged or truncated file is read.
DAMAGE = (OSError, EOFError, lzma.LZMAError, zlib.error)

Stamp = tuple[int, int, int]  # size of a file, and times of the last change of its content, and of the file itself


BLOCK = 512  # bytes before the HDF5 data of a model file, which hold its seal; the smallest user block of HDF5
MARK, _HDF5 = b"cakernels sha256 ", b"\x89HDF\r\n\x1a\n"


def stamp(path: Path, what: str = "file") -> Stamp:
    """Size and times of a file, which change when it is written to, and when another file takes its place."""
    facts = _facts(path, what)
    # The time of the last change cannot be set: a copy that keeps the time of its content has another.
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


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


Part = tuple[NDArray[np.float64], NDArray[np.float64]]  # features and targets of a block of rows

_LAST = np.iinfo(np.int64).max
_A_RANK = 1 << 32  # block numbers reserved for each rank, so that those of the next rank are larger


class Block(NamedTuple):
    """Block of lines of a text.

    Attributes
    ----------
    number : int
        Block number; numbers ascend in the file.
    first : int
        Number of its first line, where the first line of the rank's share is 1.
    text : bytes
    """

    number: int
    first: int
    text: bytes


class Share:
    """This rank's share of the lines of a text; creating it and reading it are collective.

    Parameters
    ----------
    path : Path
    limit : int
        Bytes that a rank may use.
    comm : Communicator
    start : int
        Length of the header to skip, in decompressed bytes.
    on_read : callable, optional
        See :func:`blocks_of_lines`.

    Attributes
    ----------
    numbers : list of int
        Numbers of the blocks read so far.
    """

    def __init__(
        self, path: Path, limit: int, comm: Communicator, start: int = 0, on_read: OnBytesRead | None = None
    ) -> None:
        self._path, self._limit, self._comm, self._start, self._on_read = path, limit, comm, start, on_read
        self.numbers: list[int] = []
        self._dealt = comm.size > 1 and is_compressed(path)
        self._bytes = start, -1
        if comm.size > 1 and not self._dealt:
            bounds = block_bounds(max(0, os.stat(path).st_size - start), comm.size, comm.rank)
            lo, hi = (line_start(path, start + at) if at else start for at in bounds)
            self._bytes = lo, hi

    def blocks(self) -> Generator[Block, None, None]:
        """Yield the blocks; a caller that stops early must close this generator, which then receives pending blocks."""
        if not self._dealt:
            lines = blocks_of_lines(self._path, self._limit, self._on_read, *self._bytes)
            for k, (first, text) in enumerate(lines):
                yield self._noted(Block(self._comm.rank * _A_RANK + k, first, text))
        elif self._comm.rank:
            yield from self._received()
        else:
            self._deal()

    def line(self, number: int) -> int:
        """Line number in the file of line `number` of the share."""
        return number + (0 if self._dealt else lines_before(self._path, self._bytes[0]))

    def place(self, done: int) -> int:
        """Number of the block after `done` blocks; if that could not be read, one after all others of this rank."""
        if done < len(self.numbers):
            return self.numbers[done]
        return _LAST - 1 if self._dealt else (self._comm.rank + 1) * _A_RANK - 1

    def _noted(self, block: Block) -> Block:
        self.numbers.append(block.number)
        return block

    def _deal(self) -> None:
        others = self._comm.size - 1
        try:
            lines = blocks_of_lines(self._path, self._limit, None, self._start)
            for number, (first, text) in enumerate(lines):
                head = np.array([number, first], np.int64).tobytes()
                self._comm.send(np.frombuffer(head + text, np.uint8), 1 + number % others)
        finally:
            for rank in range(1, self._comm.size):
                self._comm.send(np.zeros(0, np.uint8), rank)

    def _received(self) -> Iterator[Block]:
        with closing(_messages(self._comm, 1)) as messages:
            for (message,) in messages:
                number, first = message[:16].view(np.int64).tolist()
                yield self._noted(Block(number, first, message[16:].tobytes()))


def _messages(comm: Communicator, arrays: int) -> Generator[list[NDArray[Any]], None, None]:
    """Yield messages of so many arrays from rank 0 until an empty one; closing it receives those that are pending."""
    while len(head := comm.recv(0)):
        message = [head, *(comm.recv(0) for _ in range(1, arrays))]
        try:
            yield message
        except GeneratorExit:
            for _ in _messages(comm, arrays):
                pass
            raise


class Dealt:
    """Distributor of rows that rank 0 reads, block by block, to all ranks in turn; collective."""

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._number = comm, 0

    def parts(self, read: Iterable[Part]) -> Generator[tuple[int, Part], None, None]:
        """Yield this rank's blocks, with their numbers; only rank 0 uses `read`.

        A caller that stops early must close this generator, which then receives the pending blocks.
        """
        if self._comm.rank:
            with closing(_messages(self._comm, 3)) as messages:
                for number, X, y in messages:
                    self._number = int(number[0])
                    yield self._number, (X, y)
            return
        try:
            for self._number, part in enumerate(read):
                rank = self._number % self._comm.size
                if rank:
                    self._send(part, rank)
                else:
                    yield self._number, part
        finally:
            for rank in range(1, self._comm.size):
                self._comm.send(np.zeros(0, np.int64), rank)

    def place(self) -> int:
        """Number of the block being read."""
        return self._number

    def _send(self, part: Part, rank: int) -> None:
        for array in (np.array([self._number]), *part):
            self._comm.send(array, rank)


@contextmanager
def first_error(comm: Communicator, place: Callable[[], int]) -> Iterator[None]:
    """Raise on all ranks the error that comes first in the file: that of the rank with the smallest `place`.

    The block of code may communicate, provided that its failure leaves no other rank waiting.
    """
    error: InputError | OutputError | None = None
    try:
        yield
    except (InputError, OutputError) as caught:
        error = caught
    mine = _LAST if error is None else place()
    first = int(comm.allreduce(np.array([mine], np.int64), "min")[0])
    with comm.agreed():
        if error is not None and mine == first:
            raise error


def in_order(
    X: SameRows, y: NDArray[Any], numbers: list[int], counts: list[int], comm: Communicator
) -> tuple[SameRows, NDArray[Any]]:
    """Redistribute the rows of all ranks into even blocks in the order of the file; collective.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d)
    y : ndarray, shape (m, ...)
    numbers, counts : list of int
        Number and row count of each of this rank's blocks, in order; numbers ascend in the file.
    comm : Communicator
        Each row is sent at most once, with 8 additional bytes.

    Returns
    -------
    X, y : this rank's even block
    """
    if comm.size == 1:
        return X, y
    mine = np.array([numbers[: len(counts)], counts], np.int64).T
    every = comm.allgather(mine)
    every = every[np.argsort(every[:, 0])]
    n = int(every[:, 1].sum())
    starts = np.cumsum(every[:, 1]) - every[:, 1]
    first = starts[np.searchsorted(every[:, 0], mine[:, 0])]
    place = np.repeat(first - (np.cumsum(mine[:, 1]) - mine[:, 1]), mine[:, 1]) + np.arange(len(y))
    ends = [block_bounds(n, comm.size, rank)[1] for rank in range(comm.size)]
    leaving = np.diff(np.searchsorted(place, ends), prepend=0).astype(np.int64)
    X, (y, _), (place, _) = exchange_rows(X, leaving, comm), comm.alltoall(y, leaving), comm.alltoall(place, leaving)
    order = np.argsort(place, kind="stable")
    if (order[1:] < order[:-1]).any():
        X, y = take_rows(X, order), y[order]
    return X, y


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
