"""Words that stand for a value that is not known, in files and in tables of objects."""

from __future__ import annotations

_MISSING = {"", "-", ".", "?", "na", "n/a", "#n/a", "nan", "<na>", "nat", "none", "null"}


def is_missing(word: str) -> bool:
    """Whether this word stands for a value that is not known."""
    return word.strip().lower() in _MISSING
