"""Rules for options that contradict each other or the method; each rule that is broken gives a one-line message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from cacore.errors import InputError

Chosen = TypeVar("Chosen")
Trained = TypeVar("Trained")


@dataclass(frozen=True)
class Rule(Generic[Chosen, Trained]):
    """A mistake in the options: the condition that detects it, and its message.

    Attributes
    ----------
    wrong : callable
        ``wrong(o, m)`` is True if options `o` contradict each other or method `m`.
    message : str or callable
        A format string with the fields ``o`` and ``m``, such as ``"{o.route}: {m.name} ..."``, or a function of both.
    """

    wrong: Callable[[Chosen, Trained], bool]
    message: str | Callable[[Chosen, Trained], str]


def check(rules: Iterable[Rule[Chosen, Trained]], options: Chosen, method: Trained) -> None:
    """Raise an InputError for the first rule that `options` break, if any."""
    for rule in rules:
        if rule.wrong(options, method):
            message = rule.message
            raise InputError(
                message.format(o=options, m=method) if isinstance(message, str) else message(options, method)
            )
