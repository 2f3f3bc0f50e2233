"""Words of a file: the numbers that they are, and how a message lists them."""

from __future__ import annotations

from typing import Any

# What to do about a cell that is no number. Of a target that is missing, the row can only be removed.
FILL = "remove the row or fill the gap, as examples/categories.py does"
ENCODE = "encode categories as numbers first, as examples/categories.py does"


def as_number(word: str) -> float | None:
    """The number that a word is, or None."""
    try:
        return float(word)
    except ValueError:
        return None


def some(values: Any, most: int = 12) -> str:
    """The first of these values, in one line."""
    words = [str(v) for v in values[:most]]
    return ", ".join(words) + (", ..." if len(values) > most else "")


def printable(word: object) -> str:
    """The word, with what UTF-8 cannot say written out: a file's name may be any bytes."""
    return str(word).encode(errors="backslashreplace").decode()


def short(word: str, most: int = 60) -> str:
    """A word, or how a long one begins."""
    return word if len(word) <= most else f"{word[:most]}..."
