"""The communicator, which counts every byte sent: a wrapper around mpi4py, or a single rank without it."""

from cacore.comm.alike import Unquoted, require_same, shared_name, unlike
from cacore.comm.communicator import (
    PHASES,
    CommLike,
    Communicator,
    alone_by_mistake,
    first_prints,
    launched,
    launched_rank,
    launched_size,
)
from cacore.comm.ranks import as_communicator, collective, world

__all__ = [
    "PHASES", "CommLike", "Communicator", "Unquoted", "alone_by_mistake", "as_communicator", "collective",
    "first_prints", "launched", "launched_rank", "launched_size", "require_same", "shared_name", "unlike", "world",
]  # fmt: skip
