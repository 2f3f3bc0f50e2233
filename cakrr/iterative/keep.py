"""Kernel values that stay between products: in memory, then in a file, as far as there is room."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.machine.scratch import Scratch

if TYPE_CHECKING:
    from cakrr.iterative.products import Strip

Tile = tuple[int, tuple[int, int]]


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
