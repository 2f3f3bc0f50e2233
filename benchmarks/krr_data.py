"""The regression data sets: target columns, numbers of parts, and random splits."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import generated
from cacore.io import text
from cacore.io.fingerprints import row_hashes
from cacore.io.table import RowsRequest


@dataclass(frozen=True)
class Source:
    """A data file.

    Attributes
    ----------
    file : str
    train : int
        Number of rows that `krr_datasets` trains on.
    parts : int or None
        Number of parts for the methods in parts; by default, they choose it.
    target : str or None
        Target column; None means the last.
    distinct : bool
        True if `krr_datasets` drops duplicate rows.
    """

    file: str
    train: int = 0
    parts: int | None = None
    target: str | None = None
    distinct: bool = False

    @property
    def convert(self) -> list[str]:
        """Options of ``python -m cacore.io convert``."""
        target = [] if self.target is None else ["--target", self.target]
        return ["--split", str(self.train), *target, *(["--drop-duplicates"] if self.distinct else [])]


SETS = {
    "mg_scale": Source("mg_scale", 1024, 4),
    "space_ga_scale": Source("space_ga_scale", 2560, 4),
    "cadata": Source("cal_housing.csv.bz2", 18432, 16),
    "CASP12k": Source("CASP.csv.xz", 12000, 16, "0", distinct=True),
    "CASP": Source("CASP.csv.xz", 41000, 32, "0", distinct=True),
    "keggundirected": Source("keggundirected.csv.gz", 16700, 16, distinct=True),
    "kin40k": Source("kin40k.csv.gz", 36000, 32),
    "BNG_breastTumor": Source("BNG_breastTumor.tsv.gz", 105000, 64),
    "YearPredictionMSD": Source("YearPredictionMSD.1176rows.csv", 1058, 2, "0"),
}


def source(name: str) -> Source:
    """The data set of this name, or a text file by its path, whose last column is the target."""
    return SETS.get(name) or Source(name)


def native(folder: Path, name: str, out: Path) -> Path:
    """Path of a data set as HDF5 for the commands; converts it if necessary."""
    if not out.exists():
        text_file = generated.file(folder, SETS[name].file)
        command = [sys.executable, "-m", "cacore.io", "convert", str(text_file), str(out), *SETS[name].convert]
        subprocess.run(command, check=True)
    return out


@dataclass(frozen=True)
class Split:
    """Training and test rows, and a mask of test rows that, with their target, are also training rows."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    T: NDArray[np.float64]
    t: NDArray[np.float64]
    seen: NDArray[np.bool_]

    def __str__(self) -> str:
        """Numbers of rows and features, with constant features and duplicates."""
        constant = int((np.ptp(self.X, axis=0) == 0).sum())
        seen = f", {self.seen.sum():,} of which are training rows" if self.seen.any() else ""
        return (
            f"{len(self.X):,} training rows x {self.X.shape[1]} features"
            f"{f', {constant} of them constant' if constant else ''}; {len(self.T):,} test rows{seen}"
        )


def load(folder: Path, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """All rows of a data set, or of a file, and their targets, in the order of the file."""
    found = source(name)
    table = text.parse(generated.file(folder, found.file), RowsRequest(target=found.target))["train"].checked()
    X = table.X.toarray() if hasattr(table.X, "toarray") else table.X
    return np.ascontiguousarray(X, np.float64), np.asarray(table.y, np.float64)


def split(X: NDArray[np.float64], y: NDArray[np.float64], seed: int, test_fraction: float = 0.1) -> Split:
    """A random split, determined by the seed."""
    place = np.random.default_rng(seed).permutation(len(X))
    n = len(X) - round(test_fraction * len(X))
    mine, others = place[:n], place[n:]
    seen = np.isin(row_hashes(X[others], y[others]), row_hashes(X[mine], y[mine]))
    return Split(X[mine], y[mine], X[others], y[others], seen)
