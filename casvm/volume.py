"""Predicted communication volume of each method (Table 2.6), for comparison with the measured volume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WORD = 4  # bytes per word; the formulas count words, one per integer or real number


@dataclass(frozen=True)
class Terms:
    """Variables of the formulas, named as in Table 2.2.

    Attributes
    ----------
    m : int
        Number of training rows.
    n : float
        Mean number of nonzeros per row.
    P : int
        Number of parts, one per rank.
    s : int
        Number of support vectors.
    I : int
        Number of SMO iterations.
    k : int
        Number of K-means rounds.
    """

    m: int
    n: float
    P: int
    s: int
    I: int  # noqa: E741 - Table 2.2's name
    k: int


_FORMULAS: dict[str, tuple[str, Callable[[Terms], float]]] = {
    "dissmo": ("26IP + 2Pm + 4mn", lambda t: 26 * t.I * t.P + 2 * t.P * t.m + 4 * t.m * t.n),
    "cascade": ("3mn + 3m + 3sn", lambda t: 3 * t.m * t.n + 3 * t.m + 3 * t.s * t.n),
    "dcsvm": ("9mn + 12m + 2kPn", lambda t: 9 * t.m * t.n + 12 * t.m + 2 * t.k * t.P * t.n),
    "dcfilter": (
        "6mn + 7m + 3sn + 2kPn",
        lambda t: 6 * t.m * t.n + 7 * t.m + 3 * t.s * t.n + 2 * t.k * t.P * t.n,
    ),
    "cpsvm": ("6mn + 7m + 2kPn", lambda t: 6 * t.m * t.n + 7 * t.m + 2 * t.k * t.P * t.n),
    "casvm": ("0", lambda t: 0.0),
}
# Not in the table: the text under Fig. 2.7 likens BKM-SVM to CP-SVM, and FCFS-SVM to Cascade without its tree.
_FORMULAS["bkmsvm"] = _FORMULAS["cpsvm"]
_FORMULAS["fcfssvm"] = ("3mn + 3m", lambda t: 3 * t.m * t.n + 3 * t.m)


def predicted(method: str, terms: Terms) -> dict[str, Any]:
    """Entries ``formula``, ``terms`` and ``predicted_bytes`` for a method; empty if it has no formula."""
    if method not in _FORMULAS:
        return {}
    formula, words = _FORMULAS[method]
    return {"formula": formula, "terms": vars(terms), "predicted_bytes": round(WORD * words(terms))}
