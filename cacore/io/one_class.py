"""One class against the rest, of targets that come block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError
from cacore.io.words import as_number, some

_TOLD = 13  # classes of a message, and one more


class OneClass:
    """+1 for a class, which may be written in several ways, and -1 for the others."""

    def __init__(self, positive: str) -> None:
        self._positive, self._number = positive, as_number(positive)
        self._classes: NDArray[Any] | None = None
        self._found = False

    def signs(self, y: NDArray[Any], where: str) -> NDArray[np.float64]:
        """The signs of some rows' targets; several a row are an InputError."""
        if y.ndim > 1:
            raise InputError(f"{where}: --binarize {self._positive}: y has shape {y.shape}; one class a row is needed")
        classes = np.unique(y)
        hit = [c for c in classes.tolist() if self._is_it(c)]
        self._found |= bool(hit)
        if not self._found:
            known = classes if self._classes is None else np.concatenate([self._classes, classes])
            self._classes = np.unique(known)[:_TOLD]
        return np.where(np.isin(y, hit), 1.0, -1.0)

    def _is_it(self, name: Any) -> bool:
        return bool(name == self._positive or (self._number is not None and as_number(name) == self._number))

    def check(self, where: str) -> None:
        """Refuse a class that no row has had."""
        if not self._found:
            known = some([] if self._classes is None else self._classes)
            raise InputError(f"{where}: --binarize {self._positive}: no row has this class; there are {known}")
