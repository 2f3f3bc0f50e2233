"""The exceptions of the package."""

from __future__ import annotations

import os

from cacore.terminal import escaped


class InputError(ValueError):
    """Invalid input or usage; ``str(error)`` is one line that says what is wrong, where, and what to do.

    Attributes
    ----------
    agreed : bool
        True once every rank of a communicator raises this same error (see :meth:`cacore.comm.Communicator.agreed`).
    others : list
        Further errors of the same command, such as other files that could not be written either.

    Examples
    --------
    >>> from casvm import SMOSVC
    >>> SMOSVC(C=-1.0).fit([[0.0], [1.0]], [0, 1])
    Traceback (most recent call last):
        ...
    cacore.errors.InputError: C = -1.0: it must be a positive number, a list of them or grid
    """

    def __init__(self, message: str) -> None:
        super().__init__(escaped(" ".join(str(message).split())))
        self.agreed = False
        self.others: list[InputError | OutputError] = []


class CellError(InputError):
    """Cell or column of a table that a reader of numbers refuses, and :mod:`cacore.io.mixed` makes features of."""


class MemoryLimitError(InputError):
    """Allocation refused before it was attempted; the message gives the bytes needed and allowed.

    Examples
    --------
    >>> from cacore.machine import memory
    >>> memory.require(2 << 30, limit=1 << 30, what="the kernel matrix", remedy="use more parts")
    Traceback (most recent call last):
        ...
    cacore.errors.MemoryLimitError: the kernel matrix needs 2 GiB, and a rank may use 1 GiB: use more parts
    """


class OutputError(OSError):
    """Failure to write a file whose name was valid, such as a full disk or a quota; one line that names the file.

    Examples
    --------
    >>> import errno
    >>> from cacore.errors import OutputError
    >>> print(OutputError.of("model.h5", OSError(errno.ENOSPC, "")))
    model.h5: cannot be written (No space left on device)
    """

    def __init__(self, message: str) -> None:
        super().__init__(escaped(" ".join(str(message).split())))
        self.agreed = False
        self.others: list[InputError | OutputError] = []

    @classmethod
    def of(cls, path: str | os.PathLike[str], error: OSError) -> OutputError:
        """Output error that names the file and gives the reason of `error`."""
        return cls(f"{os.fspath(path)}: cannot be written ({os.strerror(error.errno) if error.errno else error})")


class RankError(RuntimeError):
    """Unexpected failure of one rank, raised on every rank; the message names the failed rank.

    Examples
    --------
    >>> from cacore.errors import RankError
    >>> raise RankError("rank 3 failed: ZeroDivisionError: division by zero")
    Traceback (most recent call last):
        ...
    cacore.errors.RankError: rank 3 failed: ZeroDivisionError: division by zero
    """
