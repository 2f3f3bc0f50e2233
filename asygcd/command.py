"""The commands of Asy-GCD: train, and predict with a saved model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacore.run.command import Commands

if TYPE_CHECKING:
    from cacore.run.family import AnyFamily


def _family(*_: object) -> AnyFamily:
    """Load the family; imported here, since it loads compiled code that --help does not need."""
    from asygcd.asygcd_family import AsyGCDFamily

    return AsyGCDFamily()


COMMANDS = Commands("asygcd", _family, ("decisions", "probability"))
train, main, main_predict = COMMANDS.train, COMMANDS.main, COMMANDS.main_predict
