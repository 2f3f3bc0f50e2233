"""The scikit-learn estimators, whose docstrings share one text for each parameter and attribute."""

from __future__ import annotations

import inspect
import re
from itertools import groupby
from typing import Any, ClassVar

_SECTION = re.compile(r"^(?:Parameters|Attributes)\n-+\n(?:(?!\n\w+\n--).)*", re.MULTILINE | re.DOTALL)
# Names, which may go on in further lines; a type; an indented text.
_ENTRY = re.compile(r"^(\w[\w, ]*(?:\n\w[\w, ]*(?=\n))*)( : .*)?((?:\n {4}.*)*)$", re.MULTILINE)
_REFERENCE = re.compile(r"\n {4}As for :class:`(\w+)`[.,;]?\s*(.*)", re.DOTALL)


class Documented:
    """Base of estimators whose docstrings may say "As for :class:`NAME`" of parameters or attributes.

    When a class is created, these words are replaced by what the class NAME says of each of them, so that ``help`` is
    complete and each text is written once. Words that follow are about the first of them.
    """

    _entries: ClassVar[dict[str, dict[str, tuple[str, str]]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        entries = Documented._entries[cls.__name__] = {}

        def completed(entry: re.Match[str]) -> str:
            names, kind, text = re.split(r",? *[,\n] *", entry[1]), entry[2] or "", entry[3]
            reference = _REFERENCE.fullmatch(text)
            others = Documented._entries.get(reference[1], {}) if reference else {}
            if reference is None or not set(names) <= others.keys():
                entries.update(dict.fromkeys(names, (kind, text)))
                return entry[0]
            remark = reference[2]
            for name in names:
                words = f"\n    {remark[0].upper()}{remark[1:]}" if remark and name == names[0] else ""
                entries[name] = kind or others[name][0], others[name][1] + words
            groups = groupby(names, lambda name: entries[name])
            return "\n".join(f"{', '.join(group)}{kind}{words}" for (kind, words), group in groups)

        doc = inspect.cleandoc(cls.__doc__ or "")
        cls.__doc__ = _SECTION.sub(lambda section: _ENTRY.sub(completed, section[0]), doc)
