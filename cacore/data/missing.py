"""Words that mark missing values in files and in tables of objects."""

from __future__ import annotations

_GAPS = {"", "na", "n/a", "#n/a", "nan", "<na>", "nat", "null"}
_MISSING = _GAPS | {"-", ".", "?", "none"}


def is_missing(word: str) -> bool:
    """True if this word marks a missing value."""
    return word.strip().lower() in _MISSING


def is_gap(word: str) -> bool:
    """True if this word marks a missing value even among words, where "none", "-", "." and "?" may be classes."""
    return word.strip().lower() in _GAPS
