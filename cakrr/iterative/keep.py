"""Kernel values kept between products: in memory as far as they fit, then in a file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cacore.machine.scratch import Scratch

if TYPE_CHECKING:
    from cakrr.iterative.products import Strip

Tile = tuple[int, tuple[int, int]]


class Keep:
    """Store of kernel tiles in single precision; tiles that do not fit are computed again in every product.

    Parameters
    ----------
    limit : int
        Bytes of memory for the tiles.
    scratch : Scratch or None
        File for the tiles that do not fit into memory.
    """

    def __init__(self, limit: int, scratch: Scratch | None = None) -> None:
        self.limit, self.scratch = limit, scratch
        self._where: NDArray[np.int8] = np.zeros(0, np.int8)
        self._tiles: dict[Tile, NDArray[np.floating]] = {}
        self._places: dict[Tile, int] = {}
        self._here = threading.local()

    def plan(self, strips: list[Strip]) -> None:
        """Choose the strips to keep in memory: as many of the first ones as fit."""
        ends = np.cumsum([4 * strip.size for strip in strips])
        self._where = np.where(ends <= self.limit, 1, 2 if self.scratch is not None else 0).astype(np.int8)

    @property
    def share(self) -> float:
        """Share of the strips that are kept in memory."""
        return float((self._where == 1).mean()) if self._where.size else 0.0

    def forget(self) -> None:
        """Free the memory."""
        self._tiles.clear()
        self._places.clear()

    def tile(
        self, strip: Strip, columns: tuple[int, int], dtype: np.dtype[np.floating],
        compute: Callable[[NDArray[np.floating]], object],
    ) -> NDArray[np.floating]:  # fmt: skip
        """Values of a strip in some columns, valid until this thread's next call; thread-safe."""
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

    def _buffer(self, shape: tuple[int, int], dtype: np.dtype[np.floating]) -> NDArray[np.floating]:
        """A buffer of this thread, reused by its next call."""
        name, size = dtype.name, shape[0] * shape[1]
        buffer = vars(self._here).get(name)
        if buffer is None or buffer.size < size:
            buffer = np.empty(size, dtype)
            setattr(self._here, name, buffer)
        return np.asarray(buffer[:size].reshape(shape))
