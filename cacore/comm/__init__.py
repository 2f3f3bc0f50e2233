"""The one communicator: mpi4py or none, every byte counted."""

from cacore.comm.communicator import Communicator, as_communicator, collective, world
from cacore.comm.ledger import PHASES
from cacore.comm.mpi import launched, launched_rank, launched_size

__all__ = [
    "PHASES", "Communicator", "as_communicator", "collective", "launched", "launched_rank", "launched_size", "world",
]  # fmt: skip
