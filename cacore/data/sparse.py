"""Type of sparse rows: scipy has no types, and scipy.sparse is loaded only for runs with sparse rows."""

# ruff: noqa: D102 - scipy documents the methods

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.arrays import Integers
from cacore.data.stored import RowNumbers

Numbers: TypeAlias = NDArray[Any]


class CSR(Protocol):
    """A scipy CSR matrix or array, as far as it is used."""

    data: Numbers
    indices: Integers
    indptr: Integers
    shape: tuple[int, int]
    dtype: np.dtype[np.floating]
    format: str
    nnz: int
    T: CSR  # or compressed by columns
    has_canonical_format: bool

    def __abs__(self) -> CSR: ...
    def __getitem__(self, cells: RowNumbers | tuple[slice, slice | NDArray[np.integer]], /) -> CSR: ...
    def __matmul__(self, other: Numbers, /) -> Numbers: ...
    def __rmatmul__(self, other: Numbers, /) -> Numbers: ...
    def astype(self, dtype: DTypeLike, copy: bool = True) -> CSR: ...
    def copy(self) -> CSR: ...
    def mean(self, axis: int, dtype: DTypeLike) -> Numbers: ...
    def multiply(self, factors: Numbers | CSR, /) -> CSR: ...  # or another sparse format
    def resize(self, shape: tuple[int, int]) -> None: ...
    def sort_indices(self) -> None: ...
    def sum(self, axis: int) -> Numbers: ...
    def sum_duplicates(self) -> None: ...
    def toarray(self) -> Numbers: ...
    def tocsr(self) -> CSR: ...
