"""Fingerprints of rows, to find test rows among the training rows and to match a checkpoint with its data."""

from __future__ import annotations

from hashlib import blake2b

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.arrays import Reals
from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.rows import AnyRows, is_sparse
from cacore.data.shuffle import mix64
from cacore.machine.threads import blocks, rows_in

_BLOCK_BYTES = 4 << 20  # of rows that are read at a time, where they are in a file


def row_hashes(X: AnyRows, y: NDArray[np.generic]) -> NDArray[np.uint64]:
    """64-bit fingerprint of each row and its target, shape (m,); zeros do not count, so dense and CSR rows agree.

    Targets are numbers, shape (m,) or (m, t), or text labels.
    """
    # Each column has its own random word, so the sum over the columns does not depend on their order.
    start = _target_hashes(y)
    if is_sparse(X):
        value = mix64(X.data.astype(np.float64).view(np.uint64) ^ _words(X.indices))
        value[X.data == 0] = 0
        ends = np.concatenate([np.zeros(1, np.uint64), np.cumsum(value, dtype=np.uint64)])
        return mix64(start + ends[X.indptr[1:]] - ends[X.indptr[:-1]])
    words = _words(np.arange(X.shape[1]))
    for lo, hi in blocks(X.shape[0], rows_in(_BLOCK_BYTES, X.shape[1])):
        _add_hashes(X[lo:hi], words, start[lo:hi])
    return mix64(start)


def _target_hashes(y: NDArray[np.generic]) -> NDArray[np.uint64]:
    if y.dtype.kind not in "biuf":
        return mix64(_numbers(y).view(np.uint64) + np.uint64(1))
    bits = np.ascontiguousarray(y, np.float64).view(np.uint64)
    if y.ndim == 1:
        return mix64(bits + np.uint64(1))
    return mix64(mix64(bits ^ _words(np.arange(y.shape[1]))).sum(axis=1, dtype=np.uint64))


def _numbers(labels: NDArray[np.generic]) -> NDArray[np.float64]:
    """Hash of each label as a number, the same in every process."""
    words, codes = np.unique(labels, return_inverse=True)
    digests = [blake2b(str(word).encode(), digest_size=6).digest() for word in words]
    return np.array([float(int.from_bytes(digest, "little")) for digest in digests])[codes]


def _words(columns: NDArray[np.generic]) -> NDArray[np.uint64]:
    return mix64((columns.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))


@numba.njit(cache=True, nogil=True)
def _add_hashes(X: Reals, words: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:  # pragma: no cover - compiled
    """Add each row's hash to `out`. X: float32 or float64 (m, d); words: uint64 (d,); out: uint64 (m,)."""
    buffer = np.empty(1, np.float64)
    bits = buffer.view(np.uint64)
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            if X[i, j] != 0:
                buffer[0] = X[i, j]
                v = bits[0] ^ words[j]
                v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                out[i] += v ^ (v >> np.uint64(31))


def fingerprint(X: AnyRows, y: NDArray[np.generic], weights: NDArray[np.generic] | None, comm: Communicator) -> str:
    """Number of rows and hash of all rows, targets and weights in order; independent of their split over ranks."""
    first, n = comm.offset(X.shape[0])
    place = np.arange(first, first + X.shape[0], dtype=np.uint64)
    words = row_hashes(X, y) ^ mix64(place)
    if weights is not None:
        words ^= mix64(mix64(np.asarray(weights, np.float64).view(np.uint64)))
    return f"{n} rows, {int(comm.allreduce(np.array([mix64(words).sum(dtype=np.uint64)]))[0]):016x}"


def overlap(train: Dataset, test: Dataset, comm: Communicator) -> NDArray[np.bool_]:
    """Mask of all test rows, shape (n_test,), that equal a training row, target included; the same on every rank.

    It compares 64-bit fingerprints: 8 bytes per test row are sent to every rank, and one byte back.
    """
    tested = comm.allgather(row_hashes(test.X, test.target()))
    trained = row_hashes(train.X, train.target())
    return comm.allreduce(np.isin(tested, trained).astype(np.int8), "max").astype(np.bool_)
