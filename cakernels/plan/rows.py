"""Rows for short runs: from the user's file, or made up if only their number is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.data.stored import in_memory

COPIES = 3  # of the rows that are in memory while rows are generated and a sample of them is written
_CLUSTERS = 12
_NOISE = 0.1


@dataclass(frozen=True)
class SampleSource:
    """Rows from which samples of any size are drawn.

    Attributes
    ----------
    X : ndarray or CSR, shape (n, d)
    y : ndarray, shape (n,) or (n, t)
    """

    X: Rows
    y: NDArray[Any]

    def write(self, path: Path, n: int, dtype: str) -> None:
        """Write n rows, drawn at random, in the native layout; rows repeat, slightly shifted, if there are fewer."""
        import h5py

        from cacore.io.native import write_rows

        rng = np.random.default_rng(n)
        count = self.X.shape[0]
        chosen = rng.permutation(count)[:n] if n <= count else rng.integers(count, size=n)
        X = self.X[chosen].astype(dtype)
        if n > count and isinstance(X, np.ndarray):
            X += 0.01 * X.std(axis=0) * rng.normal(size=X.shape)
        with h5py.File(path, "w") as file:
            group = file.create_group("train")
            write_rows(group, "X", X)
            group["y"] = self.y[chosen]


def generated(n: int, d: int, classes: bool, seed: int = 0) -> SampleSource:
    """Clustered rows with a smooth target, or two classes that overlap, whose boundary is smooth."""
    rng = np.random.default_rng([seed, d])
    centers, waves = rng.uniform(size=(_CLUSTERS, d)), rng.normal(size=(d, 3)) * 6 / np.sqrt(d)
    X = centers[rng.integers(_CLUSTERS, size=n)] + rng.normal(scale=0.15, size=(n, d))
    y = np.sin(X @ waves).sum(axis=1) + rng.normal(scale=_NOISE, size=n)
    return SampleSource(X, np.where(y > np.median(y), 1.0, -1.0) if classes else y)


def of_file(path: Path, target: str | None, limit: int, text: bool) -> SampleSource:
    """All training rows of a data file; labels become whole numbers."""
    from cacore.io import load
    from cacore.io.table import LABELS, Targets

    wanted = LABELS if text else Targets(many=True)
    splits = load(path, Communicator(), "float64", target, limit=limit, wanted=wanted, training=True)
    rows = splits.get("train", next(iter(splits.values())))
    y = rows.target()
    return SampleSource(in_memory(rows.X), np.unique(y, return_inverse=True)[1].astype(np.float64) if text else y)
