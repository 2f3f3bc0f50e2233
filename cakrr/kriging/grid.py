"""Predictions on a grid, computed by all ranks and written as they come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import block_bounds
from cacore.errors import InputError
from cacore.files import replacing
from cacore.io.native import created
from cakrr.kriging.model import KrigingModel

SLAB = 1 << 16  # points per rank and slab
MOST_PICTURE = 1 << 25  # points of a grid that a picture holds


def _axis(low: float, high: float, step: float) -> NDArray[np.float64]:
    return np.asarray(low + step * np.arange(int((high - low) / step + 1e-9) + 1), np.float64)


@dataclass(frozen=True)
class Grid:
    """A grid of places: coordinates along each axis.

    Attributes
    ----------
    axes : tuple of ndarray
    """

    axes: tuple[NDArray[np.float64], ...]

    @classmethod
    def of(cls, ends: tuple[tuple[float, float, float], ...]) -> Grid:
        """The grid of lo, hi and step along each axis; `hi` belongs to it if a multiple of the step leads there."""
        return cls(tuple(_axis(*one) for one in ends))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of points along each axis."""
        return tuple(len(axis) for axis in self.axes)

    def slabs(self, ranks: int) -> list[tuple[int, int]]:
        """Ranges of the first axis that are predicted together."""
        rest = int(np.prod(self.shape[1:], dtype=np.int64))
        step = max(1, SLAB * ranks // max(1, rest))
        return [(lo, min(lo + step, self.shape[0])) for lo in range(0, self.shape[0], step)]

    def places(self, lo: int, hi: int, comm: Communicator) -> NDArray[np.float64]:
        """This rank's share of the places from `lo` to `hi` along the first axis, in the order of the array."""
        shape = (hi - lo, *self.shape[1:])
        first, last = block_bounds(int(np.prod(shape, dtype=np.int64)), comm.size, comm.rank)
        index = np.unravel_index(np.arange(first, last), shape)
        axes = (self.axes[0][lo:hi], *self.axes[1:])
        return np.stack([axis[where] for axis, where in zip(axes, index, strict=True)], axis=1)

    def predicted(
        self, model: KrigingModel, comm: Communicator
    ) -> Iterator[tuple[int, int, NDArray[np.float64] | None, NDArray[np.float64] | None]]:
        """Yield ends of each slab, and on rank 0 its means and standard deviations; collective."""
        variance = model.variance_of(int(np.prod(self.shape, dtype=np.int64)))
        for lo, hi in self.slabs(comm.size):
            places = self.places(lo, hi, comm)
            rows = np.zeros((len(places), model.n_features))
            rows[:, model.drift.coordinates] = places
            found = np.column_stack(model.predict_std(rows, comm, variance))
            with comm.phase("predict"):
                every = comm.gather(found)
            shape = (hi - lo, *self.shape[1:])
            if every is None:
                yield lo, hi, None, None
            else:
                yield lo, hi, every[:, 0].reshape(shape), every[:, 1].reshape(shape)

    def check(self, model_coordinates: int, picture: bool) -> None:
        """Raise an InputError unless the grid has as many axes as the rows have coordinates."""
        if len(self.axes) != model_coordinates:
            raise InputError(f"--grid: {len(self.axes)} axes, and the rows have {model_coordinates} coordinates")
        if picture and (len(self.axes) != 2 or np.prod(self.shape, dtype=np.int64) > MOST_PICTURE):
            raise InputError(
                f"--map: a picture holds two axes and at most {MOST_PICTURE:,} points; name an HDF5 file (.h5)"
            )

    def write(self, path: Path, model: KrigingModel, comm: Communicator) -> None:
        """Write `mean`, `std` and `axis0`, `axis1`, ... to an HDF5 file; collective, rank 0 writes slab after slab."""
        if comm.rank:
            for _ in self.predicted(model, comm):
                pass
            return
        with replacing(path) as temporary, created(temporary) as file:
            for number, axis in enumerate(self.axes):
                file[f"axis{number}"] = axis
            means, deviations = (file.create_dataset(name, self.shape, np.float64) for name in ("mean", "std"))
            file.attrs["variance"] = model.variance_of(int(np.prod(self.shape, dtype=np.int64)))
            for lo, hi, mean, std in self.predicted(model, comm):
                means[lo:hi], deviations[lo:hi] = mean, std

    def arrays(self, model: KrigingModel, comm: Communicator) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Means and standard deviations of the whole grid on rank 0, None elsewhere; collective."""
        found = [(mean, std) for _, _, mean, std in self.predicted(model, comm) if mean is not None and std is not None]
        if comm.rank:
            return None
        return np.concatenate([mean for mean, _ in found]), np.concatenate([std for _, std in found])
