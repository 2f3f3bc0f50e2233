"""Words read from files: numbers, labels, and how messages show them.

Words of a target column are numbers if all of them are numerals, and text otherwise. Whole numbers are kept exactly, as
integers, and a word such as ``007`` or ``1_2`` is no numeral, so that different words are different labels. For targets
that arrive block by block, labels of one class against the rest are +1 and -1.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.containers import is_gap, is_missing
from cacore.errors import InputError

# Remedies for a cell that is not a number. A row whose target is missing can only be removed.
FILL = "remove the row or fill the gap, for example with scikit-learn's SimpleImputer"
ENCODE = "encode categories as numbers first, for example with scikit-learn's TargetEncoder or OneHotEncoder"


def as_number(word: str | float) -> float | None:
    """Number that a word stands for, or None."""
    try:
        return float(word)
    except ValueError:
        return None


_WHOLE = re.compile(r"([+-]?(?:0|[1-9][0-9]*))(?:\.0*)?")
_NUMERAL = re.compile(
    r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|(?:0|[1-9][0-9]*))(?:[eE][+-]?[0-9]+)?|[+-]?inf(?:inity)?", re.I
)


def numeral(word: str | float) -> int | float | None:
    """Number that a label stands for, whole ones exactly; None for words, such as ``007``, ``1_2`` and ``nan``."""
    if not isinstance(word, str):
        return word
    if whole := _WHOLE.fullmatch(word):
        return int(whole[1])
    if not _NUMERAL.fullmatch(word):
        return None
    value = float(word)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def is_same(word: str | float, positive: str) -> bool:
    """True if a label is the class `positive`: the same word, or the same number in another notation."""
    number = numeral(positive)
    return bool(word == positive or (number is not None and numeral(word) == number))


def counted(count: int, what: str) -> str:
    """Count with its noun: "1 rank", "2 ranks"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def number(value: float, digits: int = 3) -> str:
    """Text of a number with so many significant digits: 0.045, 51,500, 2.9e7; more of a share near 1."""
    size = abs(value)
    if not (math.isfinite(value) and value):
        return "0" if value == 0 else str(value)
    if 0.9 < size < 1.0:  # an R^2 or an accuracy, of which the distance to 1 is what counts
        digits = max(digits + 1, min(6, math.ceil(-math.log10(1.0 - size)) + 1))
    rounded = float(f"{value:.{digits - 1}e}")
    if not _PLAIN[0] <= size < _PLAIN[1]:
        mantissa, exponent = f"{rounded:.{digits - 1}e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    text = f"{rounded:,.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float) -> str:
    """Text of a share in per cent: "98.65 %"."""
    return f"{100 * share:.2f} %"


def amount(size: float) -> str:
    """Number of bytes with its unit: "697 kB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


_PLAIN = (1e-4, 1e7)  # sizes of numbers that are written without a power of ten; legible, not measured


def first_values(values: Sequence[object] | NDArray[Any], most: int = 12) -> str:
    """First `most` values, separated by commas."""
    words = [str(v) for v in values[:most]]
    return ", ".join(words) + (", ..." if len(values) > most else "")


def printable(word: object) -> str:
    """Text in which bytes that are not valid UTF-8 are escaped; a file name may contain any bytes."""
    return str(word).encode(errors="backslashreplace").decode()


def short(word: str, most: int = 60) -> str:
    """Word itself, or its first `most` characters if it is longer."""
    return word if len(word) <= most else f"{word[:most]}..."


FEW = 20  # most different words that are classes, however few rows there are
_SHOWN = 3  # rows named in a message


class Wrong(NamedTuple):
    """Words that are no labels.

    Attributes
    ----------
    codes : ndarray of int64
        Codes of the words; empty if the whole column is wrong.
    message : str
        What is wrong, and what to do.
    """

    codes: NDArray[np.int64]
    message: str


class Words:
    """Words of the target column, with a code for each.

    Attributes
    ----------
    codes : dict of str to float
        Distinct words seen so far, with their codes.
    held : int
        Memory of the words in bytes.
    """

    def __init__(self) -> None:
        self.codes: dict[str, float] = {}
        self.held = 0

    def code(self, word: str) -> float:
        """Code of a word; a new word gets the next code."""
        word = word.strip()
        if word not in self.codes:
            self.held += 200 + 4 * len(word)
            self.codes[word] = float(len(self.codes))
        return self.codes[word]

    def agree(self, comm: Communicator, own_codes: bool) -> NDArray[np.float64]:
        """Merge the words of all ranks; return the new code of each old one, of this rank (`own_codes`) or rank 0."""
        mine = np.frombuffer((json.dumps(list(self.codes)) + "\n").encode(), np.uint8)
        lists = [json.loads(line) for line in comm.allgather(mine).tobytes().decode().splitlines()]
        before = lists[comm.rank if own_codes else 0]
        self.codes = {word: float(code) for code, word in enumerate(dict.fromkeys(chain.from_iterable(lists)))}
        return np.array([self.codes[word] for word in before])

    def labels(self, verbatim: bool = False) -> NDArray[Any]:
        """Label of each code: a number if all words are numerals, otherwise, or if `verbatim`, the word.

        Whole numbers are int64 or uint64; numbers that neither holds stay words.
        """
        words = list(self.codes)
        values = [None if verbatim else numeral(word) for word in words]
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(words):
            return np.array(words)
        if not all(isinstance(number, int) for number in numbers):
            return np.array([float(word) for word in words])
        least, most = min(numbers, default=0), max(numbers, default=0)
        for dtype in (np.int64, np.uint64):
            if np.iinfo(dtype).min <= least and most <= np.iinfo(dtype).max:
                return np.array(numbers, dtype)
        return np.array([str(number) for number in numbers])

    def picked(self, positive: str) -> NDArray[np.float64]:
        """Sign of each code: +1 for the class `positive`, in any notation, and -1 for all others."""
        return np.where([is_same(word, positive) for word in self.codes], 1.0, -1.0)

    def gaps(self) -> Wrong | None:
        """Words that mark missing values, such as an empty cell; in a column of words, "none" and "-" are words."""
        words = list(self.codes)
        loose = all(is_missing(word) or numeral(word) is not None for word in words)
        codes = [code for code, word in enumerate(words) if (is_missing(word) if loose else is_gap(word))]
        if not codes:
            return None
        return Wrong(np.array(codes, np.int64), f"'{words[codes[0]]}' is not a label, but missing: remove the row")

    def wrong(self, counts: NDArray[np.int64], numbers: bool, guess: bool) -> Wrong | None:
        """Words that are no labels, in rows of which each word has so many; None if all are.

        Parameters
        ----------
        counts : ndarray of int64, shape (number of words,)
        numbers : bool
            True if labels must be numbers.
        guess : bool
            True if the words decide what is learnt, so that a few words among numbers are errors, not classes.
        """
        words, rows = list(self.codes), int(counts.sum())
        text = np.array([numeral(word) is None for word in words], np.bool_)
        codes = np.flatnonzero(text)
        if not len(codes):
            return None
        word, others = words[codes[0]], int(counts[~text].sum())
        if numbers:
            return Wrong(codes, f"'{word}' is not a number, and the model's labels are")
        if 2 * others >= rows and (guess or len(words) > FEW):
            remedy = "correct it or remove the row"
            if guess and len(words) <= FEW:
                remedy += ", or choose --task classification"
            return Wrong(codes, f"'{word}' is not a number, as {others:,} of {rows:,} targets are: {remedy}")
        if len(words) > max(FEW, rows // (5 if guess else 2)):
            remedy = "name another column by --target" + (", or choose --task" if guess else "")
            return Wrong(codes[:0], f"{len(words):,} different words in {rows:,} rows are no classes: {remedy}")
        return None


@dataclass(frozen=True)
class LabelColumn:
    """The words of this rank's rows as codes, and their place in messages.

    Attributes
    ----------
    words : Words
        Known on all ranks.
    codes : ndarray of int64, shape (m,)
    first : int
        Number in the file of the first row here.
    path, name : str
        The file, and the target in it.
    line_of : callable or None
        For text files: function that finds the line of a row.
    numbers : ndarray of int64 or None
        See :class:`cacore.io.table.Table`.
    """

    words: Words
    codes: NDArray[np.int64]
    first: int
    path: str
    name: str
    line_of: Callable[[int], int] | None = None
    numbers: NDArray[np.int64] | None = None

    def labels(self, wanted: str, comm: Communicator) -> NDArray[Any]:
        """Labels of the rows, if targets are `wanted` as :attr:`cacore.io.table.Targets.labels` says; collective.

        Raises an InputError on all ranks for words that are no labels.
        """
        self.refuse(self.words.gaps(), comm)
        if wanted != "words":
            counts = comm.allreduce(np.bincount(self.codes, minlength=len(self.words.codes)).astype(np.int64))
            self.refuse(self.words.wrong(counts, wanted == "numbers", wanted == "guess"), comm)
        return self.words.labels(verbatim=wanted == "words")[self.codes]

    def refuse(self, wrong: Wrong | None, comm: Communicator) -> None:
        """Raise an InputError on all ranks for words that are no labels, if there are any, with their lines."""
        if wrong is None:
            return
        rows = self.first + np.flatnonzero(np.isin(self.codes, wrong.codes))
        rows = rows if self.numbers is None else self.numbers[rows]
        with comm.uncounted():
            every, count = np.sort(comm.allgather(rows[:_SHOWN])), comm.allreduce(np.array([len(rows)]))[0]
        with comm.agreed():
            place = f"{self._place(every[:_SHOWN].tolist(), int(count))}, {self.name}" if count else self.name
            raise InputError(f"{self.path}: {place}: {wrong.message}")

    def _place(self, rows: list[int], count: int) -> str:
        """The first rows of so many, by their lines in a text file."""
        noun = "row"
        if self.line_of is not None:
            rows, noun = [self.line_of(row) for row in rows], "line"
        more = f" and {count - len(rows):,} more" if count > len(rows) else ""
        return f"{noun}{'s' if count > 1 else ''} {', '.join(map(str, rows))}{more}"


def labels_of(y: NDArray[Any], wanted: str, comm: Communicator, first: int, path: str) -> NDArray[Any]:
    """Labels of this rank's rows, whose targets `y` are text, shape (m,): the same as of words in a table; collective.

    Arguments and errors are otherwise those of :class:`LabelColumn` and :meth:`LabelColumn.labels`.
    """
    words, (texts, places) = Words(), np.unique(y, return_inverse=True)
    codes = np.array([words.code(str(text)) for text in texts], np.int64)[places]
    codes = words.agree(comm, True)[codes].astype(np.int64)
    return LabelColumn(words, codes, first, path, "the target").labels(wanted, comm)


_KEPT = 13  # classes kept for an error message: one more than it lists


class OneClass:
    """Labels +1 for the class `positive`, in any notation, and -1 for all others."""

    def __init__(self, positive: str) -> None:
        self._positive = positive
        self._classes: NDArray[Any] | None = None
        self._found = False

    def signs(self, y: NDArray[Any], where: str) -> NDArray[np.float64]:
        """Signs of a block of targets; several targets per row are an InputError."""
        if y.ndim > 1:
            raise InputError(
                f"{where}: --binarize {self._positive}: y has shape {y.shape}; one class per row is needed"
            )
        classes = np.unique(y)
        hit = [c for c in classes.tolist() if is_same(c, self._positive)]
        self._found |= bool(hit)
        if not self._found:
            all_classes = classes if self._classes is None else np.concatenate([self._classes, classes])
            self._classes = np.unique(all_classes)[:_KEPT]
        return np.where(np.isin(y, hit), 1.0, -1.0)

    def check(self, where: str) -> None:
        """Raise an InputError if no row seen so far has the class."""
        if not self._found:
            classes = first_values([] if self._classes is None else self._classes)
            raise InputError(f"{where}: --binarize {self._positive}: no row has this class; the classes are {classes}")
