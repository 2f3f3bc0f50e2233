"""Kernel values that stay between products: in memory, then in a file, as far as there is room."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError, OutputError

if TYPE_CHECKING:
    from cakrr.iterative.products import Strip

Tile = tuple[int, tuple[int, int]]


class Scratch:
    """A file of this process for what does not fit into memory; it has no name, and is gone when the process ends.

    Parameters
    ----------
    folder : Path

    Attributes
    ----------
    written, read : int
        Bytes.
    seconds : float
        Of reading, over all threads.

    Raises
    ------
    InputError
        The folder does not exist, or takes no file.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._file, name = tempfile.mkstemp(dir=folder, prefix=".cakernels-")
            os.unlink(name)
        except OSError as error:
            raise InputError(f"--scratch {folder}: cannot make a file there ({error.strerror})") from error
        self.folder, self._close = folder, weakref.finalize(self, os.close, self._file)
        self.written, self.read, self.seconds, self._end = 0, 0, 0.0, 0
        self._guard = threading.Lock()

    def write(self, array: NDArray[Any]) -> int:
        """Append an array; where it lies."""
        with self._guard:
            at, self._end = self._end, self._end + array.nbytes
            self.written += array.nbytes
        view, place = np.ascontiguousarray(array).data.cast("B"), at
        try:
            while view:
                done = os.pwrite(self._file, view, place)
                view, place = view[done:], place + done
        except OSError as error:
            raise OutputError.of(self.folder, error) from error
        return at

    def fetch(self, at: int, out: NDArray[Any]) -> None:
        """Read what lies there into `out`, C-contiguous."""
        begun = time.perf_counter()
        view, place = out.data.cast("B"), at
        while view:
            done = os.preadv(self._file, [view], place)
            if not done:
                raise OutputError(f"--scratch {self.folder}: the file has lost its end; free space there")
            view, place = view[done:], place + done
        with self._guard:
            self.read += out.nbytes
            self.seconds += time.perf_counter() - begun

    def array(self, shape: tuple[int, int], dtype: Any) -> NDArray[Any]:
        """An array of the file, of zeros."""
        at = -(-self._end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        nbytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
        try:
            os.posix_fallocate(self._file, at, max(1, nbytes))
        except OSError as error:
            raise OutputError.of(self.folder, error) from error
        self._end = at + nbytes
        return np.ndarray(shape, dtype, mmap.mmap(self._file, max(1, nbytes), offset=at))

    @property
    def end(self) -> int:
        """Bytes of the file."""
        return self._end

    def free(self, end: int) -> None:
        """Give back what lies behind; nobody may look at it any longer."""
        os.ftruncate(self._file, end)
        self._end = end

    def count(self, nbytes: int, seconds: float) -> None:
        """What was read of such an array."""
        self.read += nbytes
        self.seconds += seconds

    @property
    def rate(self) -> float:
        """Bytes read a second, by a thread."""
        return self.read / self.seconds if self.seconds else 0.0


class Keep:
    """Tiles of kernel values in single precision, computed once where there is room, and otherwise in every product.

    Parameters
    ----------
    limit : int
        Bytes of memory for them.
    scratch : Scratch or None
        Takes those that do not fit.
    """

    def __init__(self, limit: int, scratch: Scratch | None = None) -> None:
        self.limit, self.scratch = limit, scratch
        self._where: NDArray[np.int8] = np.zeros(0, np.int8)
        self._tiles: dict[Tile, NDArray[Any]] = {}
        self._places: dict[Tile, int] = {}
        self._here = threading.local()

    def plan(self, strips: list[Strip]) -> None:
        """Decide which strips stay: the first ones, as many as fit."""
        ends = np.cumsum([4 * strip.size for strip in strips])
        self._where = np.where(ends <= self.limit, 1, 2 if self.scratch is not None else 0).astype(np.int8)

    @property
    def share(self) -> float:
        """Of the strips that stay in memory."""
        return float((self._where == 1).mean()) if self._where.size else 0.0

    def forget(self) -> None:
        """Give the memory back."""
        self._tiles.clear()
        self._places.clear()

    def tile(
        self, strip: Strip, columns: tuple[int, int], dtype: np.dtype[Any], compute: Callable[[NDArray[Any]], object]
    ) -> NDArray[Any]:
        """The values of a strip in some columns; this thread's until its next call. Called from several threads."""
        shape = strip.rows[1] - strip.rows[0], columns[1] - columns[0]
        where = self._where[strip.number] if dtype == np.float32 else 0
        key = strip.number, columns
        if where == 1:
            known = self._tiles.get(key)
            if known is None:
                known = np.empty(shape, dtype)
                compute(known)
                self._tiles[key] = known
            return known
        out = self._buffer(shape, dtype)
        if where == 2 and self.scratch is not None:
            if key in self._places:
                self.scratch.fetch(self._places[key], out)
                return out
            compute(out)
            self._places[key] = self.scratch.write(out)
            return out
        compute(out)
        return out

    def _buffer(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """This thread's memory."""
        name, size = dtype.name, shape[0] * shape[1]
        buffer = vars(self._here).get(name)
        if buffer is None or buffer.size < size:
            buffer = np.empty(size, dtype)
            setattr(self._here, name, buffer)
        return np.asarray(buffer[:size].reshape(shape))
