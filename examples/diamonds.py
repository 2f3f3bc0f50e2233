"""Download the diamonds of ggplot2 (Rdatasets): 53,940 prices in dollars, with words for cut, color and clarity.

    python examples/diamonds.py

diamonds.csv has all diamonds but a hundred, which new_diamonds.csv has without their price.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from urllib.request import urlopen

URL = "https://vincentarelbundock.github.io/Rdatasets/csv/ggplot2/diamonds.csv"
NEW = 100  # rows of new_diamonds.csv


def main() -> None:
    """Write both files to the current directory."""
    try:
        with urlopen(URL, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
    except OSError as error:
        sys.exit(f"diamonds.py: the diamonds cannot be downloaded ({error}); take any CSV file with a target")
    names, *rows = csv.reader(lines)
    step, price = len(rows) // NEW, names.index("price")
    new = rows[::step][:NEW]
    del rows[: NEW * step : step]
    without = [[cell for j, cell in enumerate(row) if j != price] for row in [names, *new]]
    for name, table in (("diamonds.csv", [names, *rows]), ("new_diamonds.csv", without)):
        with Path(name).open("w", newline="") as file:
            csv.writer(file).writerows(table)
    print(f"diamonds.csv: {len(rows):,} rows; new_diamonds.csv: {NEW} rows without their price")


if __name__ == "__main__":
    main()
