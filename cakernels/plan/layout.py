"""The layout of a training: rows, parts, ranks and threads; and the rows for short runs, from a file or made up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.data.stored import in_memory
from cacore.errors import InputError
from cacore.learn.method import method_names
from cacore.linalg.tsqr import leaves_of

if TYPE_CHECKING:
    from cacore.learn.method import Method


_HOMES = {name: package for package in ("cakrr", "casvm") for name in method_names(package)}
METHODS = tuple(_HOMES)


class Kind(Enum):
    """How the work of a method depends on the layout."""

    RIDGE_PARTS = "one ridge system per part"
    SVM_PARTS = "one SVM per part"
    SYSTEM = "one ridge system of all rows"
    TREE = "a tree of merged SVMs"
    SHARED = "one SVM of all rows"
    POINTS = "least squares on M points"

    @property
    def in_parts(self) -> bool:
        """True if parts are trained independently of each other."""
        return self in (Kind.RIDGE_PARTS, Kind.SVM_PARTS)


def method_named(name: str) -> Method:
    """The record of a method.

    Raises
    ------
    InputError
        There is no such method.
    """
    if name not in _HOMES:
        raise InputError(f"METHOD {name}: choose one of {', '.join(METHODS)}")
    method: Method = import_module(f"{_HOMES[name]}.{name}").METHOD
    return method


def kind_of(method: Any, options: Any) -> Kind:
    """Kind of a training by this method with these options."""
    if method.name == "subset":
        return Kind.POINTS
    if method.package == "cakrr":
        return Kind.RIDGE_PARTS if method.partitioner else Kind.SYSTEM
    if getattr(options, "exact", False) or getattr(method, "whole", False):
        return Kind.SHARED
    return Kind.TREE if getattr(method, "merge", "") else Kind.SVM_PARTS


@dataclass(frozen=True)
class JobLayout:
    """Rows, parts, ranks and threads of one training.

    Attributes
    ----------
    n, d : int
        Number of training rows and of features.
    parts : int
        P; 1 for methods of one problem.
    ranks : int
        R.
    ranks_per_node : int
    threads : int
        Threads per rank.
    centers : tuple of int
        Numbers of points that least squares on M points compares, ascending; empty for other methods.
    coarse : int
        Largest number of centres of a coarse model; 0 for methods without one.
    """

    n: int
    d: int
    parts: int
    ranks: int
    ranks_per_node: int
    threads: int
    centers: tuple[int, ...] = ()
    coarse: int = 0

    @property
    def points(self) -> int:
        """M, the largest number of points; 0 for other methods."""
        return max(self.centers, default=0)

    @property
    def leaves(self) -> int:
        """Number of leaves into which least squares on M points cuts the rows; at most as many ranks work."""
        return leaves_of(self.n, self.points + 2)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return ceil(self.ranks / self.ranks_per_node)

    @property
    def rows_per_rank(self) -> float:
        """Rows that a rank reads, n/R."""
        return self.n / self.ranks

    @property
    def part(self) -> float:
        """Rows per part, n/P."""
        return self.n / self.parts

    @property
    def parts_per_rank(self) -> int:
        """Parts of the busiest rank."""
        return ceil(self.parts / self.ranks)


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
