"""The one communicator: mpi4py or none, every byte counted."""

from cacore.comm.communicator import PHASES, Communicator, as_communicator, world

__all__ = ["PHASES", "Communicator", "as_communicator", "world"]
