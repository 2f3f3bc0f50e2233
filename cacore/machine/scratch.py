"""Unnamed scratch file for arrays that do not fit into memory."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.errors import InputError, OutputError


class Scratch:
    """Scratch file of this process for arrays that do not fit into memory; it has no name and vanishes at exit.

    Parameters
    ----------
    folder : Path

    Attributes
    ----------
    written, read : int
        Bytes written and read so far.
    seconds : float
        Seconds spent reading, summed over all threads.

    Raises
    ------
    InputError
        The folder does not exist, or no file can be made there.
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

    def write(self, array: NDArray[np.generic]) -> int:
        """Append an array and return its offset in bytes."""
        with self._guard:
            at, self._end = self._end, self._end + array.nbytes
        self.put(at, array)
        return at

    def put(self, at: int, array: NDArray[np.generic]) -> None:
        """Write an array at byte offset `at`."""
        with self._guard:
            self._end = max(self._end, at + array.nbytes)
            self.written += array.nbytes
        if not array.size:
            return
        view, place = np.ascontiguousarray(array).data.cast("B"), at
        try:
            while view:
                done = os.pwrite(self._file, view, place)
                view, place = view[done:], place + done
        except OSError as error:
            raise OutputError.of(self.folder, error) from error

    def fetch(self, at: int, out: NDArray[np.generic]) -> None:
        """Fill the C-contiguous array `out` with the bytes at offset `at`."""
        begun = time.perf_counter()
        view, place = out.data.cast("B"), at
        while view:
            done = os.preadv(self._file, [view], place)
            if not done:
                raise OutputError(f"--scratch {self.folder}: the file was cut short; free space there")
            view, place = view[done:], place + done
        with self._guard:
            self.read += out.nbytes
            self.seconds += time.perf_counter() - begun

    def array(self, shape: tuple[int, int], dtype: DTypeLike) -> NDArray[Any]:
        """Append an array of zeros that is mapped into memory."""
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
        """Length of the file in bytes."""
        return self._end

    def free(self, end: int) -> None:
        """Truncate the file to `end` bytes; arrays beyond must not be used any more."""
        os.ftruncate(self._file, end)
        self._end = end

    def count(self, nbytes: int, seconds: float) -> None:
        """Add a read from a mapped array to the statistics."""
        self.read += nbytes
        self.seconds += seconds

    @property
    def rate(self) -> float:
        """Bytes read per second, by one thread."""
        return self.read / self.seconds if self.seconds else 0.0
