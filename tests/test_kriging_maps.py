"""Maps of kriging as files: HDF5 that NetCDF-4 readers read, GeoTIFF, and what is refused."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from helpers.commands import run

from cacore.comm import Communicator
from cacore.errors import InputError
from cakriging import KrigingModel, maps
from cakriging.command import main
from cakriging.kriging_method import METHOD
from cakriging.maps import Grid


def optional(name):
    """A library that may be missing, imported before a test begins, since it sets variables of the environment."""
    try:
        return import_module(name)
    except ImportError:
        return None


rasterio, netcdf4 = optional("rasterio"), optional("netCDF4")
needs_rasterio = pytest.mark.skipif(rasterio is None, reason="rasterio is not installed")
KNOWN = ["--range", "40", "--sill", "1", "--nugget", "0.01", "--taper", "90", "--quiet"]
GRID = Grid.of(((-2.0, 2.0, 1.0), (48.0, 50.0, 0.5)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Values at places on the Earth."""
    made, rng = tmp_path_factory.mktemp("maps"), np.random.default_rng(0)
    X = rng.uniform([-2, 48], [2, 50], (120, 2))
    table = np.column_stack([X, np.sin(X[:, 0]) + X[:, 1]])
    np.savetxt(made / "rows.csv", table, delimiter=",", header="lon,lat,value", comments="")
    return made


@pytest.fixture(scope="module")
def write(folder):
    """``write(name)`` writes the map of that name, and returns its path and the means of the model at its places."""

    def written(name):
        words = ["rows.csv", "--geographic", "--grid", "-2:2:1,48:50:0.5", "--map", name, "--simulate", "1"]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            run("cakriging", [*words, "--model", "m.h5", *KNOWN])
        places = np.stack(np.meshgrid(*GRID.axes, indexing="ij"), axis=-1)
        return folder / name, KrigingModel.load(folder / "m.h5").predict(places.reshape(-1, 2)).reshape(GRID.shape)

    return written


def test_hdf5_has_the_axes_as_dimension_scales(write):
    path, mean = write("map.nc")
    with h5py.File(path) as file:
        np.testing.assert_allclose(file["mean"], mean, rtol=1e-12)
        for name, axes in (("mean", 2), ("std", 2), ("simulations", 3)):
            scales = [dimension[0].name for dimension in file[name].dims]
            assert scales == ["/draw", "/axis0", "/axis1"][3 - axes :]
        assert [file[f"axis{number}"].attrs["units"] for number in (0, 1)] == ["degrees_east", "degrees_north"]
        assert file["axis0"].is_scale


@pytest.mark.skipif(netcdf4 is None, reason="netCDF4 is not installed")
def test_netcdf4_reads_it(write):
    path, mean = write("read.nc")
    with netcdf4.Dataset(path) as file:
        np.testing.assert_allclose(file["mean"][:], mean, rtol=1e-12)
        assert file["mean"].dimensions == ("axis0", "axis1")


@needs_rasterio
@pytest.mark.parametrize("most", [1 << 16, 7])
def test_geotiff(most, write, tuned):
    """The same numbers at the same places, in one box and in several."""
    tuned(map_box=most)
    path, mean = write("map.tif")
    with rasterio.open(path) as file:
        assert (file.count, file.crs.to_epsg()) == (3, 4326)
        assert file.descriptions == ("mean", "std", "simulation 1")
        for i, east in enumerate(GRID.axes[0]):
            for j, north in enumerate(GRID.axes[1]):
                assert next(file.sample([(east, north)], indexes=1))[0] == pytest.approx(mean[i, j], rel=1e-12)
        assert file.bounds == (-2.5, 47.75, 2.5, 50.25)


@needs_rasterio
def test_what_gdal_could_not_write_is_an_error(write, monkeypatch):
    """GDAL keeps blocks until the end, and then tells only its log of a full disk: the file is too short."""
    path, _ = write("whole.tif")

    class Short:
        def __init__(self, path, *args, **options):
            Path(path).write_bytes(b"II*")

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def __getattr__(self, name):
            return lambda *args, **options: None

    monkeypatch.setattr(rasterio, "open", Short)
    with pytest.raises(OSError, match="No space"):
        maps.write(path, GRID, KrigingModel.load(path.parent / "m.h5"), Communicator())


@pytest.mark.parametrize(
    ("name", "more", "match"),
    [
        ("map.txt", [], "name an HDF5 or NetCDF file"),
        pytest.param("map.tif", ["--grid", "0:1:1,0:1:1,0:1:1"], "3 axes, and the rows have 2", marks=needs_rasterio),
    ],
)
def test_refused_before_training(name, more, match, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        main(METHOD, ["rows.csv", "--grid", "0:1:1,48:49:1", "--map", name, *KNOWN, *more])
    assert end.value.code == 2
    assert match in capsys.readouterr().err


def test_a_geotiff_has_two_axes_and_needs_rasterio(monkeypatch):
    with pytest.raises(InputError, match="a GeoTIFF has two axes, the grid 3"):
        maps.check_grid(Path("map.tif"), Grid.of(((0, 1, 1),) * 3))
    monkeypatch.setitem(sys.modules, "rasterio", None)
    with pytest.raises(InputError, match="or name an HDF5 or NetCDF file"):
        maps.check(Path("map.tif"))


def test_steps_of_a_grid():
    assert Grid.of(((0, 1, 0.5), (3, 3, 0.25))).steps == [0.5, 0.5]
    assert Grid.of(((2, 2, 1),)).steps == [1.0]


@pytest.mark.parametrize(
    ("more", "match"),
    [
        (["--simulate", "1e12"], "from 1 to 1000000"),
        (["--neighbours", "1e9"], "--neighbours 1e9: it must be a whole number from 1 to 4096"),
        (["--neighbours", "3", "--solver", "cg"], "--neighbours 3: --solver cg uses all points"),
        (["--degree", "9" * 20], "from 1 to 2147483647"),
        (["--degree", "2000000", "--kernel", "wendland2"], "at most 1000000"),
        (["--anisotropy", "1e-200"], "their squares overflow: give larger ratios"),
        (["--nugget", "1e200", "--sill", "1e-200"], "a value's noise over the sill overflows"),
        (["--grid", "0:1:1e-320,48:49:1"], "inf x 2 places; use larger steps"),
        (["--grid", "0:1e300:1e-300,48:49:1"], "inf x 2 places; use larger steps"),
        (["--grid", "0:1:1e-6,48:49:1e-5", "--memory-limit", "0.5"], "1,000,001 x 100,001 places; use larger steps"),
        (["--grid", "0:1:1e-4,48:49:1e-3", "--simulate", "3", "--memory-limit", "0.5"], "--simulate 3 needs"),
        (["--grid", "0:1:0.01,48:49:0.02", "--simulate", "3", "--memory-limit", "0.1"], "the dense matrix of 5,271"),
    ],
)
def test_absurd_numbers_are_refused_in_one_line(more, match, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    known = ["--range", "40", "--quiet", "--grid", "0:1:1,48:49:1", "--map", "map.h5"]
    with pytest.raises(SystemExit) as end:
        main(METHOD, ["rows.csv", *known, *more])
    told = capsys.readouterr().err
    assert match in told
    assert (end.value.code, told.count("\n")) == (2, 1)
    assert not (folder / "map.h5").exists()


@pytest.mark.parametrize(
    "more", [["--taper", "1e300"], ["--kernel", "wendland2", "--range", "1e200"], ["--taper", "1e-300"]]
)
def test_a_radius_beyond_all_points_or_below_their_distances(more, folder, monkeypatch):
    monkeypatch.chdir(folder)
    known = ["--range", "0.3", "--sill", "1", "--nugget", "0.1", "--kernel", "matern32"]
    main(METHOD, ["rows.csv", "--quiet", *known, "--solver", "cg", *more])


def test_a_map_needs_room_on_the_disk(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = ["rows.csv", "--grid", "0:1:0.01,48:49:0.01", "--map", "map.h5", *KNOWN, "--simulate", "2"]
    whole = os.statvfs(folder)
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_bavail=1000, f_frsize=100))
    with pytest.raises(SystemExit):
        main(METHOD, words)
    assert "10,201 places and 2 draws need 0.000304 GiB of disk" in capsys.readouterr().err
    monkeypatch.setattr("os.statvfs", lambda path: whole)


def test_many_draws_take_no_more_memory_than_few(folder, monkeypatch):
    """Draws are written as they are made; each is the same whatever their number."""
    monkeypatch.chdir(folder)
    made = []
    drawing = KrigingModel.drawing

    def watched(self, X, seed, ranks):
        batch, draw = drawing(self, X, seed, ranks)
        return batch, lambda numbers: made.append(len(numbers)) or draw(numbers)

    monkeypatch.setattr(KrigingModel, "drawing", watched)
    for count in (2, 40):
        words = ["rows.csv", "--grid", "-1:1:1,48:49:1", "--map", f"{count}.h5", *KNOWN, "--simulate", str(count)]
        main(METHOD, words)
    assert max(made) <= 16
    with h5py.File("2.h5") as few, h5py.File("40.h5") as many:
        np.testing.assert_allclose(many["simulations"][:2], few["simulations"], atol=1e-9)
        assert np.ptp(many["simulations"], axis=0).min() > 0
