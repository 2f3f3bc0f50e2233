"""Names of the columns of a data set, features and targets, as they come from files, DataFrames and models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cacore.errors import InputError


def clean(name: object) -> str:
    """Name of a column in the form in which names are compared: without quotes, #, and surplus blanks."""
    return " ".join(str(name).strip(" \"'\n\r#").split())


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a data set, as far as they are known.

    Attributes
    ----------
    features : tuple of str
        One name per feature; empty if the features have no names.
    target : tuple of str
        One name per target; empty if there is no target, or if it has no name.
    kinds : str
        numpy's letter for the type of each feature's column in the source: "f", "i", "u" or "b"; empty if unknown.
    """

    features: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    kinds: str = ""

    def taken(self, order: Iterable[int] | None) -> Columns:
        """The names of the features with these numbers, in this order; all of them if it is None."""
        if order is None or not self.features:
            return self
        numbers = list(order)
        kinds = "".join(self.kinds[j] for j in numbers) if self.kinds else ""
        return Columns(tuple(self.features[j] for j in numbers), self.target, kinds)

    def described(self) -> dict[str, object]:
        """The names as JSON holds them, in a model's `source` and in reports; empty if the features have none."""
        if not self.features:
            return {}
        return {"features": list(self.features), "target": list(self.target), "kinds": self.kinds}

    def put(self, source: dict[str, Any]) -> None:
        """Store the names in a model's `source`, if the features have any."""
        if self.features:
            source["columns"] = self.described()

    @classmethod
    def of_source(cls, source: dict[str, Any]) -> Columns:
        """The names in a model's `source`; none in that of an older model.

        Raises
        ------
        InputError
            The entry is damaged.
        """
        found = source.get("columns")
        if found is None:
            return cls()
        lists = [found.get(key) for key in ("features", "target")] if isinstance(found, dict) else []
        words = [one for one in lists if isinstance(one, list) and all(isinstance(word, str) for word in one)]
        kinds = found.get("kinds") if isinstance(found, dict) else None
        if len(words) < 2 or not isinstance(kinds, str) or len(kinds) not in (0, len(words[0])):
            raise InputError("its columns are not lists of names")
        return cls(tuple(words[0]), tuple(words[1]), kinds)


UNNAMED = Columns()
