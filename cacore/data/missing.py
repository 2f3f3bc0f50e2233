"""Words that mark missing values in files and in tables of objects."""

from __future__ import annotations

_MISSING = {"", "-", ".", "?", "na", "n/a", "#n/a", "nan", "<na>", "nat", "none", "null"}


def is_missing(word: str) -> bool:
    """True if this word marks a missing value."""
    return word.strip().lower() in _MISSING
