"""Words read from a file: their numbers, and how messages show them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


def amount(size: float) -> str:
    """Number of bytes with its unit: "697 kB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def some(values: Sequence[object] | NDArray[Any], most: int = 12) -> str:
    """First `most` values, separated by commas."""
    words = [str(v) for v in values[:most]]
    return ", ".join(words) + (", ..." if len(values) > most else "")


def printable(word: object) -> str:
    """Text in which bytes that are not valid UTF-8 are escaped; a file name may contain any bytes."""
    return str(word).encode(errors="backslashreplace").decode()


def short(word: str, most: int = 60) -> str:
    """Word itself, or its first `most` characters if it is longer."""
    return word if len(word) <= most else f"{word[:most]}..."
