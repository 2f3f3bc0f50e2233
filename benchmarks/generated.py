"""GENERATED files that replace the data sets on a machine without them: same names, formats and columns, other rows.

Errors, accuracies and numbers of support vectors on them say nothing about the real data, and speeds differ from those
on the real rows. So everything that is printed, drawn or saved is marked GENERATED.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.files import replacing

MARK = "GENERATED"  # a file of this name makes a folder one of generated data
CLUSTERS = 12
_OPEN: dict[str, Callable[..., Any]] = {
    ".bz2": bz2.open, ".gz": gzip.open, ".xz": partial(lzma.open, preset=0),
}  # fmt: skip


@dataclass(frozen=True)
class Standin:
    """Shape and format of one file.

    Attributes
    ----------
    rows, features : int
    form : str
        "libsvm", "csv", "tsv" or "npz".
    classes : int
        Number of classes; 0 for a numeric target.
    named : bool
        True if the columns have names.
    first : bool
        True if the target is the first column instead of the last.
    binary : bool
        True if the features are 0 or 1.
    test : int
        Number of test rows in an .npz file.
    """

    rows: int
    features: int
    form: str
    classes: int = 0
    named: bool = False
    first: bool = False
    binary: bool = False
    test: int = 0


FILES = {
    "ijcnn1.bz2": Standin(20_000, 22, "libsvm", 2),
    "ijcnn1.t.bz2": Standin(5_000, 22, "libsvm", 2),
    "a9a.bz2": Standin(10_000, 123, "libsvm", 2, binary=True),
    "a9a.t.bz2": Standin(3_000, 123, "libsvm", 2, binary=True),
    "usps.bz2": Standin(7_291, 256, "libsvm", 10),
    "usps.t.bz2": Standin(2_007, 256, "libsvm", 10),
    "covtype.data.xz": Standin(100_000, 54, "csv", 7),
    "mnist.npz": Standin(12_000, 784, "npz", 10, test=2_000),
    "face.npz": Standin(12_000, 361, "npz", 2, test=2_000),
    "cal_housing.csv.bz2": Standin(20_640, 8, "csv", named=True),
    "mg_scale": Standin(1_385, 6, "libsvm"),
    "space_ga_scale": Standin(3_107, 6, "libsvm"),
    "CASP.csv.xz": Standin(45_730, 9, "csv", named=True, first=True),
    "keggundirected.csv.gz": Standin(63_608, 27, "csv"),
    "kin40k.csv.gz": Standin(40_000, 8, "csv"),
    "BNG_breastTumor.tsv.gz": Standin(116_640, 9, "tsv", named=True),
    "YearPredictionMSD.1176rows.csv": Standin(1_176, 90, "csv", first=True),
}


def is_generated(folder: Path) -> bool:
    """True if the data sets in this folder are generated."""
    return (folder / MARK).exists()


def label(folder: Path, name: str) -> str:
    """Name of a data set for tables and records."""
    return f"{name}, {MARK}" if is_generated(folder) else name


def file(folder: Path, name: str) -> Path:
    """Path of a data set; in a folder of generated data, the file is written on first use."""
    path = folder / name
    if is_generated(folder) and not path.exists():
        write(path, FILES[name])
    return path


def rows(n: int, d: int, classes: int, binary: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Clustered rows in [0, 1], and a smooth target: a number, or one of `classes` classes.

    Files with the same number of features share the clusters and the function; a different n gives different rows.
    """
    shape, draw = np.random.default_rng(d), np.random.default_rng([d, n])
    centers, waves = shape.uniform(size=(CLUSTERS, d)), shape.normal(size=(d, 3)) * 6 / np.sqrt(d)
    X = centers[draw.integers(CLUSTERS, size=n)] + draw.normal(scale=0.15, size=(n, d))
    X = (X > 0.7).astype(np.float64) if binary else np.clip(X, 0.0, 1.0)
    signal = np.sin(X @ waves).sum(axis=1) + draw.normal(scale=0.1, size=n)
    if not classes:
        return X, signal
    return X, np.searchsorted(np.linspace(-1.5, 1.5, classes + 1)[1:-1], signal).astype(np.float64)


def write(path: Path, like: Standin) -> None:
    """Write one file, whole or not at all."""
    X, y = rows(like.rows, like.features, like.classes, like.binary)
    if like.form == "libsvm" and like.classes == 2:
        y = 2.0 * y - 1.0
    with replacing(path) as temporary, _OPEN.get(path.suffix, open)(temporary, "wb") as stream:
        if like.form == "npz":
            n, images = like.rows - like.test, np.rint(255 * X).astype(np.uint8)
            np.savez(
                stream, x_train=images[:n], y_train=y[:n].astype(np.uint8), x_test=images[n:],
                y_test=y[n:].astype(np.uint8),
            )  # fmt: skip
        elif like.form == "libsvm":
            from sklearn.datasets import dump_svmlight_file  # its threads must not come first: see `keep_memory`

            dump_svmlight_file(np.round(X, 4), y, stream, zero_based=False)
        else:
            _text(stream, X, y, like)


def _text(stream: Any, X: NDArray[np.float64], y: NDArray[np.float64], like: Standin) -> None:
    table = np.column_stack([y, X] if like.first else [X, y])
    target = 0 if like.first else like.features
    names = [f"x{k}" for k in range(like.features)]
    names.insert(target, "target")
    separator = "\t" if like.form == "tsv" else ","
    form = ["%.4f"] * len(names)
    form[target] = "%d" if like.classes else "%.4f"
    np.savetxt(stream, table, form, separator, header=separator.join(names) if like.named else "", comments="")
