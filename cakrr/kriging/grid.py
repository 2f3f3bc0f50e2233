"""Predictions on a grid, computed by all ranks and written as they come."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import block_bounds
from cacore.errors import InputError
from cacore.machine import memory
from cacore.machine.threads import blocks
from cakrr.kriging.model import KrigingModel
from cakrr.kriging.space import Space

BOX = 1 << 16  # places per rank that are predicted together
MOST, MOST_AXIS = 10**11, 1 << 27  # places of a grid, and of one of its axes
MOST_PICTURE = 1 << 25  # places of a grid that a picture holds

Places = NDArray[np.float64]
Box = tuple[slice, ...]  # a part of the grid: a range of each axis


@dataclass(frozen=True)
class Grid:
    """A grid of places.

    Attributes
    ----------
    axes : tuple of ndarray
        Coordinates along each axis.
    """

    axes: tuple[NDArray[np.float64], ...]

    @classmethod
    def of(cls, ends: tuple[tuple[float, float, float], ...]) -> Grid:
        """The grid of lo, hi and step along each axis; `hi` belongs to it if a multiple of the step leads there.

        Raises
        ------
        InputError
            The grid has more than 10^11 places, or an axis more than 2^27.
        """
        steps = [(high - low) / step for low, high, step in ends]
        if max(steps) >= MOST_AXIS or math.prod(count + 1.0 for count in steps) > MOST:
            shape = [f"{math.floor(count + 1e-9) + 1:,}" if count < MOST else f"{count:.3g}" for count in steps]
            raise InputError(f"--grid: {' x '.join(shape)} places; use larger steps")
        counts = [math.floor(count + 1e-9) + 1 for count in steps]
        axes = [np.arange(count, dtype=np.float64) for count in counts]
        return cls(tuple(low + step * axis for (low, _, step), axis in zip(ends, axes, strict=True)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of places along each axis."""
        return tuple(len(axis) for axis in self.axes)

    @property
    def steps(self) -> list[float]:
        """Distance of two neighbours along each axis; along an axis of one place, that of another axis, or 1."""
        found = [float(axis[1] - axis[0]) if len(axis) > 1 else 0.0 for axis in self.axes]
        return [step or max(found) or 1.0 for step in found]

    @property
    def count(self) -> int:
        """Number of places."""
        return math.prod(self.shape)

    def boxes(self, ranks: int) -> list[Box]:
        """The parts of the grid that are predicted together, of at most 65,536 places per rank."""
        room, ranges = BOX * ranks, []
        for length in reversed(self.shape):
            step = min(length, max(1, room))
            room //= step
            ranges.append([slice(lo, min(lo + step, length)) for lo in range(0, length, step)])
        return list(itertools.product(*reversed(ranges)))

    def places(self, box: Box, comm: Communicator) -> Places:
        """This rank's share of the places of a box, in the order of the array, shape (n_local, d)."""
        axes = [axis[some] for axis, some in zip(self.axes, box, strict=True)]
        shape = tuple(len(axis) for axis in axes)
        index = np.unravel_index(np.arange(*block_bounds(math.prod(shape), comm.size, comm.rank)), shape)
        return np.stack([axis[where] for axis, where in zip(axes, index, strict=True)], axis=1)

    def predicted(
        self, model: KrigingModel, comm: Communicator
    ) -> Iterator[tuple[Box, NDArray[np.float64] | None, NDArray[np.float64] | None]]:
        """Yield each box, and on rank 0 its means and standard deviations; collective."""
        variance = model.variance_of(self.count)

        def answer(rows: Places) -> NDArray[np.float64]:
            return np.column_stack(model.predict_std(rows, comm, variance))

        for box, found in self.computed(answer, model, comm):
            yield (box, None, None) if found is None else (box, found[..., 0], found[..., 1])

    def computed(
        self, answer: Callable[[Places], NDArray[np.float64]], model: KrigingModel, comm: Communicator
    ) -> Iterator[tuple[Box, NDArray[np.float64] | None]]:
        """Yield each box, and on rank 0 the answers there, shape (box, columns); collective.

        `answer` is a collective function of this rank's rows, shape (n_local, d), with the result (n_local, columns).
        """
        for box in self.boxes(comm.size):
            found = answer(self._rows(box, model, comm))
            with comm.phase("predict"):
                every = comm.gather(found)
            shape = [some.stop - some.start for some in box]
            yield box, None if every is None else every.reshape(*shape, -1)

    def drawn(
        self, model: KrigingModel, comm: Communicator, count: int, seed: int
    ) -> Iterator[NDArray[np.float64] | None]:
        """Yield `count` draws of the field on the whole grid, on rank 0, and None elsewhere; collective.

        All places are drawn together, as many draws at once as fit; see :meth:`check_memory`.
        """
        if not count:
            return
        whole = tuple(slice(0, length) for length in self.shape)
        with comm.phase("predict"):
            batch, draw = model.drawing(self._rows(whole, model, comm), seed, comm)
        for lo, hi in blocks(count, batch):
            with comm.phase("predict"):
                some = draw(range(lo, hi))
            for values in some:
                with comm.phase("predict"):
                    every = comm.gather(values)
                yield None if every is None else every.reshape(self.shape)

    def _rows(self, box: Box, model: KrigingModel, comm: Communicator) -> Places:
        """This rank's share of the places of a box, as rows of the model."""
        places = self.places(box, comm)
        rows = np.zeros((len(places), model.n_features))
        rows[:, model.drift.coordinates] = places
        return rows

    def check(self, coordinates: int, picture: bool, geographic: bool = False) -> None:
        """Raise an InputError unless the grid has as many axes as the rows have coordinates, and is on the Earth."""
        if len(self.axes) != coordinates:
            raise InputError(f"--grid: {len(self.axes)} axes, and the rows have {coordinates} coordinates")
        if geographic:
            Space(geographic).check_latitudes(self.axes[1][[0, -1]], "--grid")
        if picture and (len(self.axes) != 2 or self.count > MOST_PICTURE):
            raise InputError(
                f"--map: a picture holds two axes and at most {MOST_PICTURE:,} points; name an HDF5 file (.h5)"
            )

    def check_memory(self, draws: int, dense: int, picture: bool, limit: int, ranks: int) -> None:
        """Raise a MemoryLimitError unless a rank can draw the grid, and rank 0 can hold a picture of it.

        `dense` is the number of points if the system is dense, whose draws take a factor of all points and places on
        every rank; otherwise 0, and draws take about 300 numbers per place.
        """
        coarser = "use a coarser --grid"
        if draws:
            need = 8 * (300 * self.count // ranks + 2 * self.count)
            memory.require(need, limit, f"--simulate {draws}", f"{coarser}, or more ranks")
            need = 16 * (dense + self.count) ** 2 if dense else 0
            what = f"--simulate {draws}: the dense matrix of {dense + self.count:,} points and places"
            memory.require(need, limit, what, f"{coarser}, or --solver cg")
        if picture:
            memory.require(64 * self.count, limit, f"a picture of {self.count:,} places", f"{coarser}, or name a .h5")

    def arrays(self, model: KrigingModel, comm: Communicator) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Means and standard deviations of the whole grid on rank 0, None elsewhere; collective."""
        if comm.rank:
            for _ in self.predicted(model, comm):
                pass
            return None
        means, deviations = np.empty(self.shape), np.empty(self.shape)
        for box, mean, std in self.predicted(model, comm):
            means[box], deviations[box] = mean, std
        return means, deviations
