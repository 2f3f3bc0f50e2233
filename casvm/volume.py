"""The communication volume that theory predicts for each method (Table 2.6), to be set beside what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WORD = 4  # bytes; the formulas count words, an integer or a number each


@dataclass(frozen=True)
class Terms:
    """Table 2.2's letters.

    Attributes
    ----------
    m : int
        Training rows.
    n : float
        Nonzeros of a row, on average.
    P : int
        Parts, one a rank.
    s : int
        Support vectors.
    I : int
        Iterations of SMO.
    k : int
        Rounds of K-means.
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
    """The volume's fields of the report: formula, terms and predicted bytes; none for a method without a formula."""
    if method not in _FORMULAS:
        return {}
    formula, words = _FORMULAS[method]
    return {"formula": formula, "terms": vars(terms), "predicted_bytes": round(WORD * words(terms))}
