"""Coordinates in which a correlation is a function of distance alone: anisotropy, and chords of the Earth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import largest_size, largest_usable
from cacore.errors import InputError

EARTH = 6371.0088  # mean radius in km
_DECIMALS = 10  # of a degree: places that agree in them are one place


@dataclass(frozen=True)
class Space:
    """The map from given coordinates to those in which distances are taken.

    Attributes
    ----------
    geographic : bool
        True if rows are longitude and latitude in degrees: distances are then chords in km, through the Earth. They are
        shorter than the arc by 0.1 % at 1,000 km. A function that is positive definite in space is so on the sphere.
    anisotropy : tuple of float
        Range along each further axis over the range along the first one; empty if all ranges are equal.
    angle : float
        Direction of the first axis in the plane of the first two coordinates, counterclockwise, in degrees.
    """

    geographic: bool = False
    anisotropy: tuple[float, ...] = ()
    angle: float = 0.0

    def check(self, d: int) -> None:
        """Raise an InputError unless rows of `d` coordinates fit."""
        if self.geographic and d != 2:
            raise InputError(f"geographic: rows are longitude and latitude, and these have {d} coordinates")
        if self.geographic and (self.anisotropy or self.angle):
            raise InputError("geographic: distances on the Earth have no anisotropy or angle; leave one of them out")
        if self.anisotropy and len(self.anisotropy) != d - 1:
            raise InputError(
                f"anisotropy: {len(self.anisotropy)} ratios, and {d} coordinates need {d - 1}: the range along each "
                "further axis over the range along the first one"
            )
        if self.angle and d < 2:
            raise InputError("angle: there is only one coordinate; leave it out")

    @staticmethod
    def check_latitudes(latitudes: NDArray[np.float64], option: str = "geographic") -> None:
        """Raise an InputError for a latitude beyond 90 degrees; it names the row, or the `option`'s value."""
        wrong = np.flatnonzero(~(np.abs(latitudes) <= 90.0))
        if wrong.size:
            row = f"the latitude of row {int(wrong[0])} is" if option == "geographic" else "a latitude is"
            raise InputError(
                f"{option}: {row} {latitudes[wrong[0]]:g}; it must be from -90 to 90 degrees, after the longitude"
            )

    def coordinates(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Coordinates of the rows of `X`, shape (n, d): shape (n, d), or (n, 3) on the Earth.

        Raises
        ------
        InputError
            A latitude beyond 90 degrees, with its row; or coordinates whose squares overflow.
        """
        if self.geographic:
            self.check_latitudes(X[:, 1])
            return _chordal(X)
        Z = np.array(X, np.float64)
        if self.angle:
            cos, sin = math.cos(math.radians(self.angle)), math.sin(math.radians(self.angle))
            Z[:, 0], Z[:, 1] = cos * X[:, 0] + sin * X[:, 1], cos * X[:, 1] - sin * X[:, 0]
        if self.anisotropy:
            with np.errstate(over="ignore"):
                Z[:, 1:] /= np.array(self.anisotropy)
            if (largest := largest_size(Z)) > largest_usable(Z.dtype):
                raise InputError(
                    f"anisotropy: coordinates over {min(self.anisotropy):g} are as large as {largest:g}, and their "
                    "squares overflow: give larger ratios"
                )
        return Z


def _chordal(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coordinates in space of longitudes and latitudes, the same to the bit however a place is written.

    Longitudes that differ by 360 degrees, and all longitudes at a pole, are one place. Rounding to 1e-10 degrees, 0.01
    mm on the ground, hides the rounding error of the numbers themselves, such as that of 365.1 beside 5.1.
    """
    longitude, latitude = np.fmod(X[:, 0], 360.0), np.round(X[:, 1], _DECIMALS)
    longitude = np.round(longitude - 360.0 * np.sign(longitude) * (np.abs(longitude) > 180.0), _DECIMALS)
    longitude = np.where((longitude == 180.0), -180.0, np.where(np.abs(latitude) == 90.0, 0.0, longitude))
    longitude, latitude = np.radians(longitude), np.radians(latitude)
    across = EARTH * np.cos(latitude)
    return np.column_stack([across * np.cos(longitude), across * np.sin(longitude), EARTH * np.sin(latitude)])
