"""Download California housing (StatLib; 20,640 blocks of houses, by scikit-learn) as the file that the README reads.

    python examples/housing.py

cal_housing.csv.bz2 has the eight features of the original, which scikit-learn's averages are computed from, and the
median value of a house in US dollars. new_houses.csv has a few of its rows without that value.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import fetch_california_housing

COLUMNS = (
    "longitude", "latitude", "housingMedianAge", "totalRooms", "totalBedrooms", "population", "households",
    "medianIncome", "medianHouseValue",
)  # fmt: skip
NEW = 100  # rows of new_houses.csv


def original(X: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns of the original file, from scikit-learn's features and its values in 100,000 dollars."""
    income, age, rooms, bedrooms, population, occupancy, latitude, longitude = X.T
    households = population / occupancy
    counts = [rooms * households, bedrooms * households, population, households]
    return np.column_stack([longitude, latitude, age, *map(np.rint, counts), income, np.rint(1e5 * y)])


def main() -> None:
    """Write both files to the current directory."""
    try:
        table = original(*fetch_california_housing(return_X_y=True))
    except OSError as error:
        sys.exit(f"housing.py: California housing cannot be downloaded ({error}); take any CSV file with a target")
    some = table[:: len(table) // NEW][:NEW, :-1]
    for name, rows in (("cal_housing.csv.bz2", table), ("new_houses.csv", some)):
        head = ",".join(COLUMNS[: rows.shape[1]])
        np.savetxt(name, rows, delimiter=",", fmt="%.10g", header=head, comments="")
    print(f"cal_housing.csv.bz2: {len(table):,} rows; new_houses.csv: {NEW} rows without their value")


if __name__ == "__main__":
    main()
