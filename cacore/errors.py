"""The exceptions of the package."""

from __future__ import annotations

import os


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


class OutputError(OSError):
    """A file that could not be written, though its name was good: a full disk, a quota; one line that names it."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).split()))
        self.agreed = False

    @classmethod
    def of(cls, path: str | os.PathLike[str], error: OSError) -> OutputError:
        """What `error` says of this file."""
        return cls(f"{os.fspath(path)}: cannot be written ({os.strerror(error.errno) if error.errno else error})")


class RankError(RuntimeError):
    """What every rank raises when one of them failed with anything else; the message names it."""
