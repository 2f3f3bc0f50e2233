"""Traces of the training rows in a model's file: a sample of them for explanations, and fingerprints of some.

Both are texts in the model's `source`, which earlier versions of the package pass over. The fingerprints are the
smallest ones, a sample that does not depend on the order of the rows or on the number of ranks: of a model of at most
2,048 rows all of them, and of more rows a sample that estimates the share of other rows that are training rows.
"""

from __future__ import annotations

import base64
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.rows import AnyRows, Rows, dense, gather_rows, in_memory
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError
from cacore.io.fingerprints import row_hashes

Source: TypeAlias = dict[str, Any]
NAME = "training_rows"  # entry of a model's `source`
_Number = TypeVar("_Number", np.float64, np.uint64)
SAMPLE = 100  # most rows of a background
# Bytes of the background, beyond which it has fewer rows, and rows below which there is none. Reasoned: the file of a
# model of few support vectors should not double, and a mean over fewer rows is no background.
_BYTES, _FEWEST = 1 << 18, 10
_FINGERPRINTS = 2_048  # 16 KiB; a share of 1 % is then known to .2 %


def of(train: Dataset, comm: Communicator) -> dict[str, object]:
    """The entry of a model's `source` for these training rows; collective. O(n d) operations, 16 KiB per rank sent."""
    facts: dict[str, object] = {}
    if train.y is not None:
        with comm.uncounted():
            hashes = np.unique(row_hashes(train.X, train.y))[:_FINGERPRINTS]
            facts["fingerprints"] = _text(np.unique(comm.allgather(hashes))[:_FINGERPRINTS])
    count = min(SAMPLE, _BYTES // max(1, 8 * train.X.shape[1]))
    if count >= _FEWEST:
        facts["background"] = _text(np.asarray(dense(sampled(train.X, comm, count)), np.float64))
    return {NAME: facts}


def background(source: Source, d: int) -> NDArray[np.float64] | None:
    """The training rows in a model's `source`, shape (m, d), in the features' own units; None if there are none."""
    text = source.get(NAME, {}).get("background")
    if text is None:
        return None
    rows = _array(text, np.float64)
    if not rows.size or rows.size % d or not np.isfinite(rows).all():
        raise InputError("its sample of training rows is damaged: train the model again")
    return rows.reshape(-1, d)


def trained_on(source: Source, rows: Dataset, comm: Communicator) -> tuple[int, bool]:
    """The number of these rows that trained the model, target included, and whether it is exact; collective.

    It is 0 for a model without fingerprints, and an estimate if the model has had more rows than fingerprints.
    """
    text = source.get(NAME, {}).get("fingerprints")
    if text is None or rows.y is None:
        return 0, True
    smallest = _array(text, np.uint64)
    exact = len(smallest) < _FINGERPRINTS
    hashes = row_hashes(rows.X, rows.y)
    comparable = np.ones(len(hashes), np.bool_) if exact else hashes <= smallest.max()
    with comm.uncounted():
        same, total = comm.allreduce(np.array([np.isin(hashes[comparable], smallest).sum(), comparable.sum()])).tolist()
    return (same if exact else round(rows.n * same / max(total, 1))), exact


def sampled(X: AnyRows, comm: Communicator, count: int = SAMPLE) -> Rows:
    """At most `count` of all ranks' rows, the same on every rank and for any number of ranks; collective."""
    with comm.uncounted():
        first, n = comm.offset(X.shape[0])
    chosen = Shuffle(max(n, 1), 0).row(np.arange(min(count, n)))
    here = np.sort(chosen[(chosen >= first) & (chosen < first + X.shape[0])]) - first
    return gather_rows(in_memory(X[here]), comm)


def _text(values: NDArray[np.generic]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def _array(text: str, kind: type[_Number]) -> NDArray[_Number]:
    """The numbers in a text; an InputError if it is damaged."""
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), kind)
    except (TypeError, ValueError) as error:
        raise InputError("its sample of training rows is damaged: train the model again") from error
