"""The commands of kriging: training, and prediction with a saved model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacore.run.command import Commands

if TYPE_CHECKING:
    from cacore.run.family import AnyFamily


def _family(*_: object) -> AnyFamily:
    """The family of kriging; imported here, since it loads compiled code that ``--help`` does not need."""
    from cakriging.kriging_family import Kriged

    return Kriged()


COMMANDS = Commands("cakriging", _family, ("std", "interval"))
train, main, main_predict = COMMANDS.train, COMMANDS.main, COMMANDS.main_predict
