"""Tables of options that do not go together, or not with a method: one line per mistake, in the order of the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from cacore.errors import InputError

Chosen = TypeVar("Chosen")
Trained = TypeVar("Trained")


@dataclass(frozen=True)
class Rule(Generic[Chosen, Trained]):
    """One mistake: when it is made, and what to say.

    Attributes
    ----------
    wrong : callable
        ``wrong(o, m)`` is True if options `o` make no sense, or not for method `m`.
    message : str or callable
        Its fields are ``o`` and ``m``, as in ``"{o.route}: {m.name} ..."``; or ``message(o, m)``.
    """

    wrong: Callable[[Chosen, Trained], bool]
    message: str | Callable[[Chosen, Trained], str]


def check(rules: Iterable[Rule[Chosen, Trained]], options: Chosen, method: Trained) -> None:
    """Raise an InputError for the first rule that `options` for `method` break."""
    for rule in rules:
        if rule.wrong(options, method):
            message = rule.message
            raise InputError(
                message.format(o=options, m=method) if isinstance(message, str) else message(options, method)
            )
