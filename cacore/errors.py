"""The exceptions of the package."""

from __future__ import annotations


class InputError(ValueError):
    """Input or usage that cannot be used; ``str(error)`` is one line that says where and what to do.

    Attributes
    ----------
    agreed : bool
        True once every rank of a communicator raises this same error (see :meth:`cacore.comm.Communicator.agreed`).
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).split()))
        self.agreed = False


class MemoryLimitError(InputError):
    """An allocation that was refused before it was tried; the message carries the figures."""


class RankError(RuntimeError):
    """What every rank raises when one of them failed with anything but an :class:`InputError`; the message names it."""
