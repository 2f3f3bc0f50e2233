"""Fill values, scales and offsets that attributes of HDF5 and netCDF arrays declare, applied as xarray applies them.

Numbers equal to ``_FillValue`` or ``missing_value`` become NaN. All others are multiplied by ``scale_factor``, and then
``add_offset`` is added. netCDF's own fill values count as well: of floats in any file, of integers in files that netCDF
wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError

FLOAT_FILL = 9.969209968386869e36  # netCDF's default for floats, of either precision
_INTEGER_FILLS = {"i2": -32767, "u2": 65535, "i4": -2147483647, "u4": 4294967295, "i8": -(2**63) + 2, "u8": 2**64 - 2}
_MOST = 100  # numbers of an attribute that are read


@dataclass(frozen=True)
class Packing:
    """Encoding of the numbers of an array.

    Attributes
    ----------
    fills : tuple of float or int
        Stored numbers that mark gaps.
    scale, offset : float
    unsigned : bool
        True if signed integers stand for unsigned ones.
    scaled : bool
        True if a scale or an offset is declared, so that the numbers are of double precision.
    label : str
        Name of the first fill value in messages; empty if none is declared.
    """

    fills: tuple[float | int, ...] = ()
    scale: float = 1.0
    offset: float = 0.0
    unsigned: bool = False
    scaled: bool = False
    label: str = ""

    @classmethod
    def of(cls, item: h5py.Dataset, where: str) -> Packing:
        """The encoding that an array's attributes declare."""
        declared = [(name, value) for name in ("_FillValue", "missing_value") for value in _numbers(item, name) or ()]
        fills = [value for _, value in declared]
        dtype, netcdf = item.dtype, "_NCProperties" in item.file.attrs
        if netcdf and dtype.kind in "iu" and not fills and (known := _INTEGER_FILLS.get(dtype.str[1:])) is not None:
            fills = [known]
        scale, offset = (_number(item, name, where) for name in ("scale_factor", "add_offset"))
        return cls(
            tuple(fills), 1.0 if scale is None else scale, 0.0 if offset is None else offset, _is_unsigned(item),
            scale is not None or offset is not None,
            f"{declared[0][0]} {declared[0][1]:g}" if declared else "",
        )  # fmt: skip

    @property
    def gap(self) -> str:
        """Description of a gap in messages."""
        return f"missing ({self.label} or nan)" if self.label else "nan or netCDF's fill value"

    @property
    def applied(self) -> str:
        """Scale and offset in messages; empty if none is declared."""
        return f"scale_factor {self.scale:g} and add_offset {self.offset:g} are applied" if self.scaled else ""

    def type_of(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Type of the decoded numbers of an array of this type, unless some are missing."""
        if self.scaled:
            return np.dtype(np.float64)
        return np.dtype(dtype.str.replace("i", "u")) if self.unsigned and dtype.kind == "i" else dtype

    def decoded(self, values: NDArray[Any]) -> NDArray[Any]:
        """The numbers that stored ones stand for, NaN for gaps; `values` themselves where nothing changes."""
        if self.unsigned and values.dtype.kind == "i":
            values = values.view(values.dtype.str.replace("i", "u"))
        gaps = self._gaps(values)
        if self.scaled:
            values = values.astype(np.float64) * self.scale + self.offset
        if gaps is not None and gaps.any():
            values = values if values.dtype.kind == "f" else values.astype(np.float64)
            values[gaps] = np.nan
        return values

    def _gaps(self, values: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Mask of stored numbers that mark gaps; None if there are none."""
        gaps = None
        for fill in self.fills:
            with np.errstate(over="ignore", invalid="ignore"):
                stored = np.array(fill).astype(values.dtype)
            if values.dtype.kind == "f" or stored == fill:
                gaps = values == stored if gaps is None else gaps | (values == stored)
        if values.dtype.kind == "f" and values.size:
            with np.errstate(over="ignore", invalid="ignore"):
                if not abs(values.sum(dtype=np.float64)) < FLOAT_FILL / 2:
                    default = values.astype(np.float32) == np.float32(FLOAT_FILL)
                    gaps = default if gaps is None else gaps | default
        return gaps


def _numbers(item: h5py.Dataset, name: str) -> list[Any] | None:
    """Numbers of an attribute; None if there is no such attribute, or if it holds something else."""
    if name not in item.attrs:
        return None
    stored = item.attrs.get_id(name)  # read only if it holds numbers: a damaged string would end the process
    if stored.dtype.kind not in "biuf" or int(np.prod(stored.shape or ())) > _MOST:
        return None
    values: list[Any] = np.ravel(item.attrs[name]).tolist()
    return values


def _number(item: h5py.Dataset, name: str, where: str) -> float | None:
    """Number of an attribute, None if there is no such attribute; anything but one finite number is an InputError."""
    if name not in item.attrs:
        return None
    values = _numbers(item, name) or []
    if len(values) != 1 or not np.isfinite(values[0]) or (name == "scale_factor" and values[0] == 0):
        raise InputError(f"{where}: its attribute {name} is not one finite number: write the numbers themselves")
    return float(values[0])


def _is_unsigned(item: h5py.Dataset) -> bool:
    """True if the attribute ``_Unsigned`` is "true", as netCDF writes it."""
    if "_Unsigned" not in item.attrs or item.attrs.get_id("_Unsigned").dtype.kind != "S":
        return False
    return bool(np.ravel(item.attrs["_Unsigned"])[:1].tolist() == [b"true"])
