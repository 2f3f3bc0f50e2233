"""Kernel ridge regression of a table with categories and gaps: by itself, and with scikit-learn's encoders before it.

BKRR2 takes a DataFrame with words and gaps as it is, and makes features of its columns. Arrays of objects have no types
of columns, so words in them are refused, with a line that says where they are. A pipeline compares other features: gaps
filled with the column's median and a column that says so, and each category as the mean target of its rows
(TargetEncoder, which does that on other folds than the row's own) or as a column per level (OneHotEncoder).

    python examples/categories.py [--rows N] [--data FOLDER]

The rows are those of California housing, where the place becomes the name of a field of the map, the age a word, and
every twentieth value is lost; without the file, rows are generated. pandas is used if it is installed: columns have
names then, and numbers without it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, TargetEncoder

from cacore.errors import InputError
from cacore.io import text
from cakrr import BKRR2

CATEGORIES = ("field", "age")
Columns = dict[str, NDArray[Any]]


def housing(file: Path) -> tuple[Columns, NDArray[np.float64]]:
    """California housing: place and age as words, the other columns as they are, and the median value in dollars."""
    table = text.parse(file)["train"]
    columns = dict(zip(table.names, table.X.T, strict=True))
    west, north = columns.pop("longitude"), columns.pop("latitude")
    field = np.char.add(
        np.char.add(np.floor(2 * north).astype(int).astype(str), "N"), np.floor(2 * west).astype(int).astype(str)
    )
    age = np.array(["new", "old", "older"])[np.digitize(columns.pop("housingMedianAge"), [15, 35])]
    return {**{name: np.log1p(column) for name, column in columns.items()}, "field": field, "age": age}, table.y


def generated(n: int) -> tuple[Columns, NDArray[np.float64]]:
    """Two numbers and two categories, each of which has a level of its own."""
    rng = np.random.default_rng(0)
    a, b, field, age = rng.normal(size=n), rng.normal(size=n), rng.integers(40, size=n), rng.integers(3, size=n)
    y = np.sin(2 * a) + b + 2 * rng.normal(size=40)[field] + age + 0.1 * rng.normal(size=n)
    names = np.array([f"field {k}" for k in range(40)])
    return {"a": a, "b": b, "field": names[field], "age": np.array(["new", "old", "older"])[age]}, y


def rows(n: int, folder: Path | None) -> tuple[Columns, NDArray[np.float64]]:
    """At most `n` rows in random order, with every twentieth value lost."""
    file = None if folder is None else folder / "cal_housing.csv.bz2"
    columns, y = housing(file) if file is not None and file.is_file() else generated(n)
    rng = np.random.default_rng(1)
    place = rng.permutation(len(y))[:n]
    kept = {name: np.array(column[place], object) for name, column in columns.items()}
    for column in kept.values():
        column[rng.random(len(place)) < 0.05] = None
    return kept, y[place]


def table(columns: Columns) -> tuple[Any, list[Any], list[Any]]:
    """A DataFrame, or an array of objects without pandas; which columns are numbers, and which are categories."""
    names = list(columns)
    try:
        import pandas
    except ImportError:
        numbers = [j for j, name in enumerate(names) if name not in CATEGORIES]
        return np.column_stack(list(columns.values())), numbers, [names.index(name) for name in CATEGORIES]
    frame = pandas.DataFrame(columns)
    numbers = [name for name in names if name not in CATEGORIES]
    return (
        frame.astype({**dict.fromkeys(numbers, float), **dict.fromkeys(CATEGORIES, "category")}),
        numbers,
        [*CATEGORIES],
    )


def pipeline(numbers: list[Any], categories: list[Any]) -> Pipeline:
    """Gaps filled and categories as numbers, then BKRR2."""
    columns = ColumnTransformer(
        [
            ("numbers", SimpleImputer(strategy="median", add_indicator=True), numbers),
            ("categories", TargetEncoder(target_type="continuous"), categories),
        ]
    )
    return Pipeline([("columns", columns), ("regressor", BKRR2(n_parts=2, lam=[1e-5, 1e-4, 1e-3], random_state=0))])


def main() -> None:
    """Fit the table as it is, choose an encoder and a width by cross-validation, and print both test errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("CAKERNELS_DATA", "../shared/data")))
    args = parser.parse_args()
    columns, y = rows(args.rows, args.data)
    X, numbers, categories = table(columns)
    X, T, y, t = train_test_split(X, y, test_size=0.2, random_state=0)
    try:
        regressor = BKRR2(n_parts=2, random_state=0).fit(X, y)
        print(f"the table as it is: R^2 {regressor.score(T, t):.3f}")
    except InputError as error:  # an array of objects, without pandas
        print(f"without encoding: {error}")
    one_hot = OneHotEncoder(handle_unknown="ignore", min_frequency=20, sparse_output=False)
    choices = {
        "columns__categories": [TargetEncoder(target_type="continuous"), one_hot],
        "regressor__sigma": [2.0, 4.0, 8.0],
    }
    search = GridSearchCV(pipeline(numbers, categories), choices, cv=3).fit(X, y)
    for params, r2 in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
        encoder, sigma = params.values()
        print(f"{type(encoder).__name__:>13}, sigma {sigma:g}: R^2 {r2:.3f} in cross-validation")
    print(f"R^2 {search.score(T, t):.3f} on {len(T):,} test rows")


if __name__ == "__main__":
    main()
