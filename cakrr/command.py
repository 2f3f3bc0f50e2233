"""The commands of kernel ridge regression: training, one per method, and prediction with a saved model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacore.run.command import Commands

if TYPE_CHECKING:
    from cacore.run.family import AnyFamily


def _family(*_: object) -> AnyFamily:
    """The family of ridge regression; imported here, since it loads compiled code that --help does not need."""
    from cakrr.ridge_family import Ridge

    return Ridge()


COMMANDS = Commands("cakrr", _family, ("probability", "std", "interval", "adaptive"))
train, main, main_predict = COMMANDS.train, COMMANDS.main, COMMANDS.main_predict
