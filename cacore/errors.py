"""The one exception for everything the user can put right."""

from __future__ import annotations


class InputError(ValueError):
    """Input or usage that cannot be used; ``str(error)`` is one line that says where and what to do.

    Attributes
    ----------
    agreed : bool
        True once every rank of the job raises this same error, so that the job can end without
        an abort (see :meth:`cacore.comm.communicator.Communicator.agreed`).
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).split()))
        self.agreed = False


class MemoryLimitError(InputError):
    """An allocation that was refused before it was tried; the message carries the figures."""
