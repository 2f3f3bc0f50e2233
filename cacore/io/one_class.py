"""Labels +1 and -1 for one class against the rest, for targets that arrive block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError
from cacore.io.words import is_same, some

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
            known = classes if self._classes is None else np.concatenate([self._classes, classes])
            self._classes = np.unique(known)[:_KEPT]
        return np.where(np.isin(y, hit), 1.0, -1.0)

    def check(self, where: str) -> None:
        """Raise an InputError if no row seen so far has the class."""
        if not self._found:
            known = some([] if self._classes is None else self._classes)
            raise InputError(f"{where}: --binarize {self._positive}: no row has this class; the classes are {known}")
