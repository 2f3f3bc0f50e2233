"""Maps: means, standard deviations and draws on a grid, computed by all ranks and written box by box by rank 0."""

from __future__ import annotations

import errno
import itertools
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import block_bounds
from cacore.errors import InputError
from cacore.files import replacing
from cacore.io.native import created
from cacore.machine import memory
from cacore.machine.threads import blocks
from cacore.progress import Advance, silent
from cakriging.kriging_model import KrigingModel
from cakriging.space import Space

if TYPE_CHECKING:
    from rasterio.windows import Window

# -- the grid --------------------------------------------------------------------------------------------

BOX = 1 << 16  # places per rank that are predicted together: 0.5 MiB per column
MOST, MOST_AXIS = 10**11, 1 << 27  # places of a grid, 1.6 TB of means and deviations, and of one of its axes, 1 GiB
MOST_PICTURE = 1 << 25  # places of a grid that a picture holds: 64 bytes each while it is drawn are 2 GiB

Places = NDArray[np.float64]
Box = tuple[slice, ...]  # a part of the grid: a range of each axis


@dataclass(frozen=True)
class Grid:
    """A grid of places.

    Attributes
    ----------
    axes : tuple of ndarray
        Coordinates along each axis.
    box : int or None
        Places per rank that are predicted together; None for 65,536.
    """

    axes: tuple[NDArray[np.float64], ...]
    box: int | None = None

    @classmethod
    def of(cls, ends: tuple[tuple[float, float, float], ...]) -> Grid:
        """The grid of lo, hi and step along each axis; `hi` is included if it is a multiple of the step from `lo`.

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
        """Distance between neighbours along each axis; for an axis of one place that of another axis, or 1."""
        spacings = [float(axis[1] - axis[0]) if len(axis) > 1 else 0.0 for axis in self.axes]
        return [step or max(spacings) or 1.0 for step in spacings]

    @property
    def count(self) -> int:
        """Number of places."""
        return math.prod(self.shape)

    def boxes(self, ranks: int) -> list[Box]:
        """Boxes of the grid, each of at most `box` places per rank, that are predicted one after another."""
        room, ranges = (self.box or BOX) * ranks, []
        for length in reversed(self.shape):
            step = min(length, max(1, room))
            room //= step
            ranges.append([slice(lo, min(lo + step, length)) for lo in range(0, length, step)])
        return list(itertools.product(*reversed(ranges)))

    def places(self, box: Box, comm: Communicator) -> Places:
        """This rank's share of the places of a box, in the order of the array, shape (n_local, d)."""
        axes = [axis[part] for axis, part in zip(self.axes, box, strict=True)]
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

        for box, columns in self.computed(answer, model, comm):
            yield (box, None, None) if columns is None else (box, columns[..., 0], columns[..., 1])

    def computed(
        self, answer: Callable[[Places], NDArray[np.float64]], model: KrigingModel, comm: Communicator
    ) -> Iterator[tuple[Box, NDArray[np.float64] | None]]:
        """Yield each box, and on rank 0 the results of `answer` there, shape (box, columns); collective.

        `answer` is a collective function of this rank's rows, shape (n_local, d), with the result (n_local, columns).
        """
        for box in self.boxes(comm.size):
            columns = answer(self._rows(box, model, comm))
            with comm.phase("predict"):
                all_columns = comm.gather(columns)
            shape = [part.stop - part.start for part in box]
            yield box, None if all_columns is None else all_columns.reshape(*shape, -1)

    def drawn(
        self, model: KrigingModel, comm: Communicator, count: int, seed: int
    ) -> Iterator[NDArray[np.float64] | None]:
        """Yield `count` draws of the field on the whole grid, on rank 0, and None elsewhere; collective.

        All places are drawn jointly, in batches of draws that fit into memory; see :meth:`check_memory`.
        """
        if not count:
            return
        whole = tuple(slice(0, length) for length in self.shape)
        with comm.phase("predict"):
            batch, draw = model.drawing(self._rows(whole, model, comm), seed, comm)
        for lo, hi in blocks(count, batch):
            with comm.phase("predict"):
                draws = draw(range(lo, hi))
            for values in draws:
                with comm.phase("predict"):
                    all_values = comm.gather(values)
                yield None if all_values is None else all_values.reshape(self.shape)

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


# -- files -----------------------------------------------------------------------------------------------

Values = NDArray[np.float64]
PICTURES = (".png", ".pdf", ".svg")
_ARRAYS = (".h5", ".hdf5", ".nc")
_RASTERS = (".tif", ".tiff")
_BANDS = 65_535  # of a TIFF
_DEGREES = (("longitude", "degrees_east"), ("latitude", "degrees_north"))


def is_picture(path: Path) -> bool:
    """True for the name of a picture, which shows the map but does not hold its numbers."""
    return path.suffix.lower() in PICTURES


def check(path: Path) -> None:
    """Raise an InputError unless the suffix is that of a format that can be written here."""
    kind = path.suffix.lower()
    if kind in _RASTERS:
        _rasterio(path)
    elif kind not in (*_ARRAYS, *PICTURES):
        raise InputError(f"--map {path}: name an HDF5 or NetCDF file (.h5, .nc), a GeoTIFF (.tif) or a picture (.png)")


def check_room(path: Path, grid: Grid, draws: int) -> None:
    """Raise an InputError unless the format has enough bands, and the folder's disk enough room, for the map."""
    if path.suffix.lower() in _RASTERS and draws > _BANDS - 2:
        raise InputError(f"--simulate {draws}: a GeoTIFF holds at most {_BANDS - 2:,}; name an HDF5 file (.h5)")
    free = os.statvfs(path.parent)
    need, room = 8 * grid.count * (2 + draws), free.f_bavail * free.f_frsize
    if need > room and not is_picture(path):
        what = f"{grid.count:,} places" + (f" and {draws:,} draws" if draws else "")
        raise InputError(
            f"--map {path}: {what} need {need / memory.GIB:.3g} GiB of disk, and {room / memory.GIB:.3g} GiB are free "
            "there: use a coarser --grid" + (", fewer draws" if draws else "") + ", or another folder"
        )


def check_grid(path: Path, grid: Grid) -> None:
    """Raise an InputError if the format is for two axes and the grid has another number."""
    if path.suffix.lower() in _RASTERS and len(grid.axes) != 2:
        raise InputError(f"--map {path}: a GeoTIFF has two axes, the grid {len(grid.axes)}; name an HDF5 file (.h5)")


def write(
    path: Path, grid: Grid, model: KrigingModel, comm: Communicator, draws: int = 0, seed: int = 0,
    begin: Callable[[str, int], Advance] = silent,
) -> None:  # fmt: skip
    """Predict the grid and write it, with `draws` of the field; collective.

    HDF5 has the arrays `mean`, `std`, `axis0`, `axis1`, ... and `simulations`, shape (draws, grid), with the axes as
    dimension scales, so that NetCDF-4 programs can read them. A GeoTIFF has the bands `mean`, `std` and one per draw,
    north up. Rank 0 writes; it calls `begin` with a label and the number of steps, and calls the result after each.
    """
    if comm.rank:
        for _ in chain(grid.predicted(model, comm), grid.drawn(model, comm, draws, seed)):
            pass
        return
    boxes = len(grid.boxes(comm.size))
    advance = begin("map", boxes + draws)
    kind = _tiff if path.suffix.lower() in _RASTERS else _hdf5
    with replacing(path) as temporary, kind(temporary, grid, model, draws) as file:
        for number, (box, mean, std) in enumerate(grid.predicted(model, comm), 1):
            if mean is not None and std is not None:
                file.put(box, mean, std)
            advance(1, f"map: part {number:,} of {boxes:,}")
        for number, draw in enumerate(grid.drawn(model, comm, draws, seed)):
            if draw is not None:
                file.put_draw(number, draw)
            advance(1, f"map: draw {number + 1:,} of {draws:,}")


class MapFile(Protocol):
    """A map that is being written."""

    def put(self, box: Box, mean: Values, std: Values) -> None:
        """Write a box of the grid."""

    def put_draw(self, number: int, draw: Values) -> None:
        """Write one draw of the whole grid."""


class _Hdf5:
    """The arrays of a map in an open HDF5 file."""

    def __init__(self, file: h5py.File, grid: Grid, draws: int) -> None:
        scales = [_scale(file, f"axis{number}", axis) for number, axis in enumerate(grid.axes)]
        self.mean, self.std = (_over(file, name, scales) for name in ("mean", "std"))
        if draws:
            self.draws = _over(file, "simulations", [_scale(file, "draw", np.arange(draws)), *scales])

    def put(self, box: Box, mean: Values, std: Values) -> None:
        self.mean[box], self.std[box] = mean, std

    def put_draw(self, number: int, draw: Values) -> None:
        self.draws[number] = draw


def _scale(file: h5py.File, name: str, values: NDArray[Any]) -> h5py.Dataset:
    """An axis as a dimension scale."""
    scale = file.create_dataset(name, data=values)
    scale.make_scale(name)
    return scale


def _over(file: h5py.File, name: str, scales: list[h5py.Dataset]) -> h5py.Dataset:
    """An array over these axes."""
    array = file.create_dataset(name, [len(scale) for scale in scales], np.float64)
    for dimension, scale in zip(array.dims, scales, strict=True):
        dimension.attach_scale(scale)
    return array


@contextmanager
def _hdf5(path: Path, grid: Grid, model: KrigingModel, draws: int) -> Iterator[MapFile]:
    """Create an HDF5 file; names are kept in the order they come in, which NetCDF-4 asks for."""
    with created(path, track_order=True) as file:
        map_file = _Hdf5(file, grid, draws)
        file.attrs["variance"] = model.variance_of(grid.count)
        if model.space.geographic:
            for number, (name, unit) in enumerate(_DEGREES):
                file[f"axis{number}"].attrs.update({"standard_name": name, "units": unit})
        yield map_file


class _Tiff:
    """The bands of a map in an open GeoTIFF, whose first row is the northernmost."""

    def __init__(self, file: Any, grid: Grid) -> None:
        self.file, self.rows = file, grid.shape[1]

    def put(self, box: Box, mean: Values, std: Values) -> None:
        for band, values in enumerate((mean, std), 1):
            self.file.write(np.ascontiguousarray(values.T[::-1]), band, window=self._window(box))

    def put_draw(self, number: int, draw: Values) -> None:
        self.file.write(np.ascontiguousarray(draw.T[::-1]), number + 3)

    def _window(self, box: Box) -> Window:
        from rasterio.windows import Window

        across, up = box
        return Window(across.start, self.rows - up.stop, across.stop - across.start, up.stop - up.start)


@contextmanager
def _tiff(path: Path, grid: Grid, model: KrigingModel, draws: int) -> Iterator[MapFile]:
    """Create a GeoTIFF, in longitude and latitude if the model is geographic; places are the centres of its cells."""
    rasterio = _rasterio(path)
    (west, _), (_, north) = ((axis[0], axis[-1]) for axis in grid.axes)
    width, height = grid.steps
    names = ["mean", "std", *(f"simulation {number + 1}" for number in range(draws))]
    with rasterio.open(
        path, "w", driver="GTiff", width=grid.shape[0], height=grid.shape[1], count=len(names), dtype="float64",
        transform=rasterio.Affine(width, 0.0, west - width / 2, 0.0, -height, north + height / 2),
        crs="EPSG:4326" if model.space.geographic else None, tiled=True, BIGTIFF="IF_SAFER",
    ) as file:  # fmt: skip
        file.update_tags(variance=model.variance_of(grid.count))
        for band, name in enumerate(names, 1):
            file.set_band_description(band, name)
        yield _Tiff(file, grid)
    if path.stat().st_size < 8 * grid.count * len(names):  # GDAL says nothing of what it could not write at the end
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _rasterio(path: Path) -> Any:
    """Import rasterio, or raise an InputError that says how to install it or what to do otherwise."""
    try:
        import rasterio
    except ImportError as error:
        how = "pip install 'cakernels[maps]', or name an HDF5 or NetCDF file (.h5, .nc)"
        raise InputError(f"--map {path}: rasterio, which writes GeoTIFF, is not installed: {how}") from error
    return rasterio
