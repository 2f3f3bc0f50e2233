"""The classification data sets, scaled as in the papers, and their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks.generated import file
from cacore.io import text
from cacore.io.table import RowsRequest


@dataclass
class Problem:
    """Training and test rows, C and gamma, and the number of parts for methods in parts."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    Xt: NDArray[np.float64]
    yt: NDArray[np.float64]
    C: float
    gamma: float
    parts: int = 8


def _libsvm(folder: Path, name: str, d: int, C: float, gamma: float) -> Problem:
    halves: list[Any] = []
    for half in (f"{name}.bz2", f"{name}.t.bz2"):
        table = text.parse(file(folder, half), RowsRequest(n_features=d))["train"]
        halves += [np.asarray(table.X.todense() if hasattr(table.X, "todense") else table.X, np.float64), table.y]
    return Problem(*halves, C, gamma)


def _images(folder: Path, name: str, odd: bool, C: float, gamma: float) -> Problem:
    with np.load(file(folder, f"{name}.npz")) as images:
        X, Xt = (images[key].reshape(len(images[key]), -1) / 255.0 for key in ("x_train", "x_test"))
        y, yt = (np.asarray(images[key], np.float64).ravel() for key in ("y_train", "y_test"))
    if odd:
        y, yt = (np.where(labels % 2, 1.0, -1.0) for labels in (y, yt))
    return Problem(X, y, Xt, yt, C, gamma)


def _covtype(folder: Path, train: int | None, test: int | None, parts: int) -> Problem:
    """covtype, class 2 against the rest, features scaled to [0, 1], rows shuffled; None means 90 % and 10 %."""
    table = text.parse(file(folder, "covtype.data.xz"))["train"]
    X, y = np.asarray(table.X, np.float64), np.where(np.asarray(table.y) == 2, 1.0, -1.0)
    low, high = X.min(axis=0), X.max(axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)
    place = np.random.default_rng(0).permutation(len(X))
    n = len(X) * 9 // 10 if train is None else train
    mine, others = place[:n], place[n : None if test is None else n + test]
    return Problem(X[mine], y[mine], X[others], y[others], 32.0, 32.0, parts)


def _first_digits(problem: Problem) -> Problem:
    """The problem of separating digits 0 to 4 from the rest."""
    problem.y, problem.yt = (np.where(labels <= 4, 1.0, -1.0) for labels in (problem.y, problem.yt))
    return problem


SETS = {
    "ijcnn1": lambda folder: _libsvm(folder, "ijcnn1", 22, 32.0, 2.0),
    "a9a": lambda folder: _libsvm(folder, "a9a", 123, 1.0, 0.008),
    "covtype50k": lambda folder: _covtype(folder, 50_000, 20_000, 8),
    "covtype": lambda folder: _covtype(folder, None, None, 64),
    "mnist_odd": lambda folder: _images(folder, "mnist", True, 10.0, 0.02),
    "mnist": lambda folder: _images(folder, "mnist", False, 10.0, 0.02),
    "usps_binary": lambda folder: _first_digits(_libsvm(folder, "usps", 256, 10.0, 0.0078125)),
    "usps": lambda folder: _libsvm(folder, "usps", 256, 10.0, 0.0078125),
    "face": lambda folder: _images(folder, "face", False, 10.0, 0.02),
}


def native(problem: Problem, path: Path) -> Path:
    """Write the problem to a file for the commands."""
    with h5py.File(path, "w") as out:
        for split, X, y in (("train", problem.X, problem.y), ("test", problem.Xt, problem.yt)):
            out[f"{split}/X"], out[f"{split}/y"] = X, y
    return path
