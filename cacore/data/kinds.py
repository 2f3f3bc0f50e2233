"""Kinds of the columns of a table, and the user's word on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cacore.errors import InputError

NUMBER, CLOCK, CATEGORY, DATE = "number", "clock", "category", "date"
IDENTIFIER, CONSTANT, COPY = "identifier", "constant", "copy"
MEASURED = (NUMBER, CLOCK, DATE)  # kinds of which the cells are numbers
PREDICTED = ("prediction", "mean", "std", "lower", "upper")  # columns of predictions, of which no key has the name
DROPPED, KEY, WEIGHT = "dropped", "key", "weight"  # by the user
KINDS = (NUMBER, CLOCK, CATEGORY, DATE, IDENTIFIER, CONSTANT, COPY, DROPPED, KEY, WEIGHT)


@dataclass(frozen=True)
class Overrides:
    """The user's word on columns, which comes before what their cells suggest.

    Attributes
    ----------
    kinds : dict of str to str
        "number" or "category" by the name of a column.
    drop : tuple of str
        Names of columns that are left out.
    gaps : {"fill", "refuse"}
        What is done with cells without a value.
    weight, key : str
        Names of the columns with the weights of the rows, and with what is kept beside predictions; empty for none.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    gaps: str = "fill"
    weight: str = ""
    key: str = ""

    @classmethod
    def of(cls, *sources: Mapping[str, Any]) -> Overrides:
        """The overrides of several sources, by the options' names: lists add up, other values replace those before.

        Raises
        ------
        InputError
            Columns have several meanings; it names all of them.
        """
        meanings = defaultdict[str, set[str]](set)
        values: dict[str, str] = {}
        for source in sources:
            values |= {key: source[key] for key in ("weight", "id", "gaps") if source.get(key)}
            for key in ("category", "number", "drop"):
                for name in source.get(key, ()):
                    meanings[name].add(key)
        for key in ("weight", "id"):
            if key in values:
                meanings[values[key]].add(key)
        if values.get("id") in PREDICTED:
            raise InputError(f"--id {values['id']}: predictions have a column of this name; rename it in the data")
        if several := [f"{name} ({', '.join(sorted(keys))})" for name, keys in meanings.items() if len(keys) > 1]:
            raise InputError(f"column {', '.join(several)}: give each column one meaning")
        kinds = {name: kind for kind in (NUMBER, CATEGORY) for name, keys in meanings.items() if kind in keys}
        dropped = tuple(name for name, keys in meanings.items() if "drop" in keys)
        return cls(kinds, dropped, values.get("gaps", "fill"), values.get("weight", ""), values.get("id", ""))

    @property
    def aside(self) -> dict[str, str]:
        """Kinds of the columns that are no features, by name."""
        named = {self.weight: WEIGHT, self.key: KEY}
        return dict.fromkeys(self.drop, DROPPED) | {name: kind for name, kind in named.items() if name}

    @property
    def any(self) -> bool:
        """True if a column is named."""
        return bool(self.kinds or self.aside)

    @property
    def flags(self) -> str:
        """Names of the options, for messages."""
        return " and ".join(word for word in self.words if word.startswith("--"))

    @property
    def words(self) -> list[str]:
        """The options that say the same, as they are written in a command."""
        lists = {kind: [name for name, of_name in self.kinds.items() if of_name == kind] for kind in (CATEGORY, NUMBER)}
        options = {
            key: ",".join(f'"{name}"' if "," in name else name for name in names)
            for key, names in (lists | {"drop": list(self.drop)}).items()
        }
        options |= {"weight": self.weight, "id": self.key, "gaps": self.gaps if self.gaps != "fill" else ""}
        return [word for key, value in options.items() if value for word in (f"--{key}", value)]

    def check(self, names: Sequence[str]) -> None:
        """Raise an InputError for a column that a table with these names does not have, naming all of them."""
        if unknown := [name for name in (*self.kinds, *self.aside) if name not in names]:
            there = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            raise InputError(f"no feature column {', '.join(unknown)}; the columns are {there}")


NO_OVERRIDES = Overrides()
