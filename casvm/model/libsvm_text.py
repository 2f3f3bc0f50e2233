"""LIBSVM's model files: header and support vectors, parsed and checked line by line.

Files are not trusted: nothing is allocated from the counts in the header; rows are stored as they are read, and
counted.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cacore.data.labels import MOST_CLASSES
from cacore.data.rows import Rows, csr
from cacore.errors import InputError
from cacore.io.stream import DAMAGE, REMEDY, Lines, check_regular
from cacore.io.words import short
from cacore.machine import memory

CLASSIFIERS, VALUED = ("c_svc", "nu_svc"), ("one_class", "epsilon_svr", "nu_svr")
KERNELS = ("linear", "polynomial", "rbf", "sigmoid")
# Names of the header's lines, and the number of words that follow: -1 for any number.
_WORDS = {
    "svm_type": 1, "kernel_type": 1, "degree": 1, "gamma": 1, "coef0": 1, "nr_class": 1, "total_sv": 1, "rho": -1,
    "label": -1, "probA": -1, "probB": -1, "prob_density_marks": -1, "nr_sv": -1,
}  # fmt: skip
_NEEDED = ("svm_type", "kernel_type", "nr_class", "total_sv", "rho")
_LARGEST = 2**31 - 1
_DENSE_FROM = 1 / 3  # share of nonzeros from which the support vectors become a dense array


@dataclass(frozen=True)
class Header:
    """The lines above the support vectors.

    Attributes
    ----------
    svm_type, kernel_type : str
    degree : int
    gamma, coef0 : float
    rho : ndarray of float64, shape (k (k - 1) / 2,), or (1,) for regression and one class
    labels, n_support : ndarray of int64, shape (k,)
        In the file's order; for classifiers only.
    total : int
        Number of support vectors.
    slopes, offsets : ndarray of float64, shape (k (k - 1) / 2,), or None
        probA and probB, for classifiers with probabilities.
    """

    svm_type: str
    kernel_type: str
    degree: int
    gamma: float
    coef0: float
    rho: NDArray[np.float64]
    labels: NDArray[np.int64]
    n_support: NDArray[np.int64]
    total: int
    slopes: NDArray[np.float64] | None = None
    offsets: NDArray[np.float64] | None = None

    @property
    def coefficients(self) -> int:
        """Number of coefficients per support vector: k - 1."""
        return max(len(self.labels) - 1, 1)


class _Reader:
    """Reader of the file's words that knows the current line number."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self.lines = Lines(path, limit)
        self._each = iter(self.lines)

    def words(self) -> Iterator[list[str]]:
        """Words of each line that is not empty."""
        for line in self._each:
            if words := line.split():
                yield words

    def refuse(self, what: str) -> InputError:
        """The error, with the file and the line number."""
        return InputError(f"{self.path}: line {self.lines.number}: {what}")

    def whole(self, word: str, name: str, least: int, most: int = _LARGEST) -> int:
        """Parse a whole number within these limits."""
        value = int(word) if len(word) < 20 and word.lstrip("+-").isascii() and word.lstrip("+-").isdigit() else None
        if value is None or not least <= value <= most:
            raise self.refuse(f"{name} {short(word)!r} is not a whole number from {least:,} to {most:,}")
        return value

    def real(self, word: str, name: str) -> float:
        """Parse a finite number."""
        try:
            value = float(word) if "_" not in word else math.nan
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.refuse(f"{name} {short(word)!r} is not a finite number")
        return value


def read(path: Path, limit: int) -> tuple[Header, NDArray[np.float64], Rows]:
    """Header, coefficients, shape (coefficients, total), and support vectors, shape (total, largest index).

    Parameters
    ----------
    path : Path
        May be compressed.
    limit : int
        Number of bytes that may be allocated.

    Raises
    ------
    InputError
        The file cannot be read; the message names the file, and the line or what is missing.
    """
    check_regular(path)
    reader = _Reader(path, limit)
    try:
        header = _header(reader)
        return header, *_support_vectors(reader, header)
    except DAMAGE as error:
        raise InputError(f"{path}: cannot be read ({error})") from error


def _header(reader: _Reader) -> Header:
    found: dict[str, list[str]] = {}
    for name, *words in reader.words():
        if name == "SV":
            break
        if name not in _WORDS:
            raise reader.refuse(f"{short(name)!r} is no line of a LIBSVM model's header")
        if name in found:
            raise reader.refuse(f"{name} occurs twice in the header")
        if _WORDS[name] >= 0 and len(words) != _WORDS[name]:
            raise reader.refuse(f"{name} needs one value, and has {len(words)}")
        if len(words) > MOST_CLASSES * MOST_CLASSES // 2:
            raise reader.refuse(f"{name} has {len(words):,} values; there may be {MOST_CLASSES:,} classes")
        _check(reader, name, words)
        found[name] = words
    else:
        raise InputError(f"{reader.path}: not a LIBSVM model: there is no line SV")
    for name in _NEEDED:
        if name not in found:
            raise InputError(f"{reader.path}: the header has no {name}")
    return _made(reader, found)


def _check(reader: _Reader, name: str, words: list[str]) -> None:
    """Refuse invalid values on a line of this name."""
    if name == "svm_type" and words[0] not in (*CLASSIFIERS, *VALUED):
        raise reader.refuse(f"svm_type {short(words[0])!r}: only {', '.join((*CLASSIFIERS, *VALUED))} can be read")
    if name == "kernel_type" and words[0] not in KERNELS:
        raise reader.refuse(
            f"kernel_type {short(words[0])!r}: only {', '.join(KERNELS)} can be read; LIBSVM's file of a precomputed "
            "kernel lacks the number of training rows"
        )
    if name in ("gamma", "coef0", "rho", "probA", "probB", "prob_density_marks"):
        for word in words:
            reader.real(word, name)
    if name in ("degree", "nr_class", "total_sv", "label", "nr_sv"):
        for word in words:
            reader.whole(word, name, {"label": -_LARGEST, "nr_class": 1}.get(name, 0))


def _made(reader: _Reader, found: dict[str, list[str]]) -> Header:
    """Build the header, if its lines are consistent."""

    def wrong(what: str) -> InputError:
        return InputError(f"{reader.path}: the header: {what}")

    k, total, svm_type = int(found["nr_class"][0]), int(found["total_sv"][0]), found["svm_type"][0]
    classifies = svm_type in CLASSIFIERS
    pairs = k * (k - 1) // 2 if classifies else 1
    if len(found["rho"]) != pairs:
        raise wrong(f"rho has {len(found['rho']):,} values; {pairs:,} are needed")
    if not classifies and k != 2:
        raise wrong(f"nr_class is {k:,}; for {svm_type} it must be 2")
    labels, counts = (list(map(int, found.get(name, []))) if classifies else [] for name in ("label", "nr_sv"))
    if classifies:
        _check_classes(labels, counts, k, total, wrong)
    sigmoids = [np.array(found[name], np.float64) for name in ("probA", "probB") if classifies and name in found]
    if len(sigmoids) == 1 or any(len(values) != pairs for values in sigmoids):
        raise wrong(f"probA and probB need {pairs:,} values each, one per pair of classes")
    for name, kernels in (("gamma", KERNELS[1:]), ("coef0", ("polynomial", "sigmoid")), ("degree", ("polynomial",))):
        if found["kernel_type"][0] in kernels and name not in found:
            raise wrong(f"a {found['kernel_type'][0]} kernel needs {name}")
    return Header(
        svm_type, found["kernel_type"][0], int(found.get("degree", ["3"])[0]), float(found.get("gamma", ["1"])[0]),
        float(found.get("coef0", ["0"])[0]), np.array(found["rho"], np.float64), np.array(labels, np.int64),
        np.array(counts, np.int64), total, *sigmoids,
    )  # fmt: skip


def _check_classes(
    labels: list[int], counts: list[int], k: int, total: int, wrong: Callable[[str], InputError]
) -> None:
    """Refuse inconsistent classes."""
    for name, values in (("label", labels), ("nr_sv", counts)):
        if len(values) != k:
            raise wrong(f"{name} has {len(values):,} values; {k:,} are needed, one per class")
    if len(set(labels)) < k:
        raise wrong("label names a class twice")
    if sum(counts) != total:
        raise wrong(f"nr_sv adds up to {sum(counts):,}, but total_sv is {total:,}")


def _support_vectors(reader: _Reader, header: Header) -> tuple[NDArray[np.float64], Rows]:
    coef, values, columns, lengths, width = array("d"), array("d"), array("q"), array("q"), 0
    for words in reader.words():
        if len(lengths) == header.total:
            raise reader.refuse(f"more support vectors than total_sv = {header.total:,}")
        if len(words) < header.coefficients:
            raise reader.refuse(f"a support vector must begin with {header.coefficients:,} coefficients")
        coef.extend(reader.real(word, "coefficient") for word in words[: header.coefficients])
        last = 0
        for word in words[header.coefficients :]:
            index, colon, value = word.partition(":")
            if not colon:
                raise reader.refuse(f"{short(word)!r} is not index:value")
            column = reader.whole(index, "index", 1)
            if column <= last:
                raise reader.refuse(f"{short(word)!r}: the indices must ascend")
            last = column
            columns.append(column - 1)
            values.append(reader.real(value, f"the value of index {column}"))
        width = max(width, last)
        lengths.append(len(words) - header.coefficients)
        need = 64 * len(values) + 32 * len(coef)
        memory.require(need, reader.limit, f"{reader.path}: storing the support vectors", REMEDY)
    if len(lengths) < header.total:
        raise InputError(
            f"{reader.path}: {len(lengths):,} support vectors, but total_sv is {header.total:,}: the file was cut short"
        )
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.frombuffer(lengths, np.int64))])
    kind = np.int32 if len(values) < 2**31 else np.int64
    X = csr(np.array(values, np.float64), np.array(columns, kind), starts.astype(kind), (header.total, max(width, 1)))
    A = np.array(coef, np.float64).reshape(header.total, header.coefficients).T
    if len(values) >= _DENSE_FROM * header.total * width:
        memory.require(8 * header.total * width, reader.limit, f"{reader.path}: storing the support vectors", REMEDY)
        return np.ascontiguousarray(A), X.toarray()
    return np.ascontiguousarray(A), X
