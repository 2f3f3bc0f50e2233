"""Files of maps: means, standard deviations and draws on a grid, written box by box as they are predicted."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.files import replacing
from cacore.io.native import created
from cacore.machine import memory
from cacore.progress import Advance, silent
from cakrr.kriging.grid import Box, Grid
from cakrr.kriging.model import KrigingModel

if TYPE_CHECKING:
    from rasterio.windows import Window

Values = NDArray[np.float64]
PICTURES = (".png", ".pdf", ".svg")
_ARRAYS = (".h5", ".hdf5", ".nc")
_RASTERS = (".tif", ".tiff")
_BANDS = 65_535  # of a TIFF
_DEGREES = (("longitude", "degrees_east"), ("latitude", "degrees_north"))


def is_picture(path: Path) -> bool:
    """True if the name is that of a picture, which shows the map but does not hold its numbers."""
    return path.suffix.lower() in PICTURES


def check(path: Path) -> None:
    """Raise an InputError, before any work is done, unless the name ends as a kind of file that can be written here."""
    kind = path.suffix.lower()
    if kind in _RASTERS:
        _rasterio(path)
    elif kind not in (*_ARRAYS, *PICTURES):
        raise InputError(f"--map {path}: name an HDF5 or NetCDF file (.h5, .nc), a GeoTIFF (.tif) or a picture (.png)")


def check_room(path: Path, grid: Grid, draws: int) -> None:
    """Raise an InputError unless the folder of a map that is not a picture, and its format, have room for it."""
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
    """Raise an InputError if this kind of file has other than the grid's number of axes."""
    if path.suffix.lower() in _RASTERS and len(grid.axes) != 2:
        raise InputError(f"--map {path}: a GeoTIFF has two axes, the grid {len(grid.axes)}; name an HDF5 file (.h5)")


def write(
    path: Path, grid: Grid, model: KrigingModel, comm: Communicator, draws: int = 0, seed: int = 0,
    begin: Callable[[str, int], Advance] = silent,
) -> None:  # fmt: skip
    """Predict the grid and write it, with `draws` of the field; collective.

    HDF5 has the arrays `mean`, `std`, `axis0`, `axis1`, ... and `simulations`, shape (draws, grid), with the axes as
    dimension scales, so that programs which read NetCDF-4 read it. A GeoTIFF has the bands `mean`, `std` and one per
    draw, north up. Rank 0 writes; it calls `begin` with a label and the number of steps, and what that returns after
    each.
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
    made = file.create_dataset(name, [len(scale) for scale in scales], np.float64)
    for dimension, scale in zip(made.dims, scales, strict=True):
        dimension.attach_scale(scale)
    return made


@contextmanager
def _hdf5(path: Path, grid: Grid, model: KrigingModel, draws: int) -> Iterator[MapFile]:
    """Create an HDF5 file; names are kept in the order they come in, which NetCDF-4 asks for."""
    with created(path, track_order=True) as file:
        made = _Hdf5(file, grid, draws)
        file.attrs["variance"] = model.variance_of(grid.count)
        if model.space.geographic:
            for number, (name, unit) in enumerate(_DEGREES):
                file[f"axis{number}"].attrs.update({"standard_name": name, "units": unit})
        yield made


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
