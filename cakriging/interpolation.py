"""Interpolation of values at points to a grid by one call, over NumPy arrays or xarray's named dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore import checks
from cacore.comm import Communicator, collective
from cacore.errors import InputError
from cakriging.estimators import Kriging, as_numbers
from cakriging.maps import BOX, Grid

if TYPE_CHECKING:
    import xarray

    Labelled = xarray.DataArray | xarray.Dataset

Fields = tuple[NDArray[np.float64], NDArray[np.float64]]


@overload
def interpolate(
    points: object, values: ArrayLike, grid: Sequence[ArrayLike], *, errors: ArrayLike | None = None,
    exposure: ArrayLike | None = None, neighbours: int | None = None, chunks: int | None = None, **options: object,
) -> Fields: ...  # fmt: skip


@overload
def interpolate(
    points: object, values: ArrayLike, grid: Labelled, *, errors: ArrayLike | None = None,
    exposure: ArrayLike | None = None, neighbours: int | None = None, chunks: int | None = None, **options: object,
) -> xarray.Dataset: ...  # fmt: skip


def interpolate(
    points: object, values: ArrayLike, grid: Sequence[ArrayLike] | Labelled, *, errors: ArrayLike | None = None,
    exposure: ArrayLike | None = None, neighbours: int | None = None, chunks: int | None = None, **options: object,
) -> Fields | xarray.Dataset:  # fmt: skip
    """Means and standard deviations of a field on a grid, by kriging.

    Parameters
    ----------
    points : array-like of shape (n, d), DataFrame, xarray.Dataset or mapping
        Coordinates, with columns in the order of the grid's dimensions. A table with names has a column for each
        dimension, in any order, if the grid is xarray's.
    values : array-like of shape (n,)
    grid : sequence of d arrays, xarray.DataArray or xarray.Dataset
        Coordinates along each dimension, increasing or not. Of an xarray object, the coordinates of its dimensions are
        used, not its values.
    errors, exposure : array-like of shape (n,) or None
        Standard deviations of the values' errors; exposures, or numbers of trials, of counts.
    neighbours : int or None
        Nearest points that determine each prediction; None: see :class:`Kriging`.
    chunks : int or None
        Places that are predicted at a time, 65,536 by default. Results do not depend on it.
    **options
        Further parameters of :class:`Kriging`, such as ``kernel`` or ``geographic=True`` for longitude and latitude in
        this order. `random_state` is 0 by default. One rank does the work.

    Returns
    -------
    mean, std : ndarray of float64, shape (len(grid[0]), len(grid[1]), ...)
        For an xarray grid, variables of these names in an xarray.Dataset with the dimensions, coordinates and
        attributes of the grid, also those of its coordinate reference.

    Raises
    ------
    InputError
        The grid's dimensions do not match the points, or have no numbers as coordinates; or as :meth:`Kriging.fit`.

    Notes
    -----
    Beside the 16 bytes per place of the result, memory is that of the fit and of one chunk.

    Examples
    --------
    >>> import numpy as np
    >>> from cakriging import interpolate
    >>> places = np.random.default_rng(0).uniform(0, 10, (200, 2))
    >>> depth = np.sin(places[:, 0]) + 0.1 * places[:, 1]
    >>> mean, std = interpolate(places, depth, (np.arange(11.0), np.arange(0, 10.5, 0.5)), kernel="matern52")
    >>> mean.shape
    (11, 21)
    """
    labelled = hasattr(grid, "coords") and hasattr(grid, "sizes")
    names = tuple(grid.sizes) if labelled else ()  # type: ignore[union-attr]
    _check(grid if labelled else None, names, options)
    axes = tuple(_axis(grid, name) for name in (names if labelled else range(len(grid))))
    X = _coordinates(points, names, len(axes))
    size = BOX if chunks is None else checks.whole(1)(chunks, "chunks =")
    model = Kriging(**{"random_state": 0, "neighbours": neighbours, **options})  # type: ignore[arg-type]
    fields = Grid(axes, size).arrays(model.fit(X, values, errors, exposure).model_, Communicator())
    assert fields is not None  # one rank
    return _labelled(grid, names, fields) if labelled else fields  # type: ignore[arg-type]


def _check(grid: Any, names: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Refuse names of an xarray grid that the result cannot have, and options that a grid excludes."""
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"grid: the name of dimension {name!r} is no text; rename it, grid.rename({{{name!r}: 'x'}})"
            )
    taken = [name for name in ("mean", "std") if names and name in grid.coords]
    if taken:
        raise InputError(f"grid: coordinate {taken[0]!r} has the name of a result; rename it")
    if not isinstance(options.get("drift", "auto"), str):
        raise InputError(
            "drift: its columns are unknown on a grid; name a drift, such as linear, or use Kriging.predict"
        )
    with collective(options.get("comm")) as comm, comm.agreed():
        if comm.size > 1:
            raise InputError("comm: a grid is interpolated by one rank; leave comm out, or use Kriging.predict")


def _axis(grid: Any, key: str | int) -> NDArray[np.float64]:
    """Coordinates along a dimension, by name or number."""
    if isinstance(key, str) and key not in grid.coords:
        raise InputError(f"grid: dimension {key!r} has no coordinates; assign some, or select one of its places")
    axis = np.asarray(grid[key])
    if axis.ndim != 1 or not axis.size or axis.dtype.kind not in "fiu" or not np.isfinite(axis).all():
        raise InputError(
            f"grid: dimension {key!r} has coordinates of shape {axis.shape} and type {axis.dtype}; they must be finite "
            "numbers, shape (m,), and at least one"
        )
    return axis.astype(np.float64)


def _coordinates(points: Any, names: tuple[str, ...], d: int) -> NDArray[np.float64]:
    """Points as rows of coordinates in the order of the grid's dimensions, shape (n, d)."""
    if names and (isinstance(points, Mapping) or hasattr(points, "columns") or hasattr(points, "data_vars")):
        missing = [name for name in names if name not in points]
        if missing:
            raise InputError(f"points: there is no column {missing[0]!r}, which is a dimension of the grid")
        return np.column_stack([as_numbers(points[name], f"points, column {name!r}") for name in names])
    X = as_numbers(points, "points")
    if X.ndim != 2 or X.shape[1] != d:
        dimensions = f"{d} dimensions" + (f" ({', '.join(names)})" if names else "")
        raise InputError(f"points has shape {X.shape}; a grid of {dimensions} needs {d} columns")
    return X


def _labelled(grid: Labelled, names: tuple[str, ...], fields: Fields) -> xarray.Dataset:
    """Means and standard deviations with the coordinates, attributes and grid mapping of a grid."""
    import xarray

    arrays = {name: (names, values) for name, values in zip(("mean", "std"), fields, strict=True)}
    out = xarray.Dataset(arrays, coords=grid.coords, attrs=grid.attrs)
    variables = [grid, *getattr(grid, "data_vars", {}).values()]
    mapping = [variable.encoding["grid_mapping"] for variable in variables if "grid_mapping" in variable.encoding]
    for name in arrays if mapping else ():
        out[name].encoding["grid_mapping"] = mapping[0]
    return out
