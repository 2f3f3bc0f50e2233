"""Inside mpiexec: who this rank is, and which rows it has."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from cacore.comm import Communicator
from cacore.comm.failure import wait
from cacore.errors import InputError
from cacore.io import Dataset


class Patient(MPI.Intracomm):
    """Its ranks come together before a call, without keeping the cores meanwhile, which the others need to get there.

    MPICH waits in a loop: of four ranks on two cores, those that wait would take the cores from those that work.
    """

    def Barrier(self):  # noqa: N802 - MPI's name
        wait(self.Ibarrier().Test)

    barrier = Barrier

    def allgather(self, value):
        self.Barrier()
        return super().allgather(value)

    def allreduce(self, value, op=MPI.SUM):
        self.Barrier()
        return super().allreduce(value, op)

    def bcast(self, value, root=0):
        self.Barrier()
        return super().bcast(value, root)


WORLD = Patient(MPI.COMM_WORLD)
R, RANK = WORLD.size, WORLD.rank
EVERY_ROW = slice(None)


def even(n):
    """This rank's block of n rows that all ranks share evenly."""
    return slice(n * RANK // R, n * (RANK + 1) // R)


def dataset(X, y, block=EVERY_ROW, dtype=np.float64, weights=None):
    """Rows, targets and weights of this rank, as a regression is given them."""
    return Dataset(X[block].astype(dtype), y[block].copy(), weights=None if weights is None else weights[block])


def labelled(X, y, block=None, weights=None):
    """Rows, labels and weights of this rank, as an SVM is given them; of all ranks without a `block`."""
    block = EVERY_ROW if block is None else block
    return Dataset(X[block].copy(), y[block], weights=None if weights is None else weights[block])


def by_one(call, *args, **options):
    """Result of a computation in one process, on all ranks; only one rank computes, since they share the machine."""
    told = None, None
    if RANK == 0:
        try:
            told = call(*args, **options), None
        except Exception as error:
            told = None, error  # the others wait for an answer
    answer, error = WORLD.bcast(told)
    if error is not None:
        raise error
    return answer


def in_order(parts):
    """All ranks' parts by number, on every rank, moved by mpi4py itself."""
    return {number: part for some in WORLD.allgather(parts) for number, part in some.items()}


def refused_by_all(call, *args, match):
    """One InputError of one line, the same on all ranks."""
    with pytest.raises(InputError, match=match) as caught:
        call(*args)
    assert caught.value.agreed
    messages = WORLD.allgather(str(caught.value))
    assert len(set(messages)) == 1
    assert "\n" not in messages[0]


def sent(work, phase="train"):
    """Bytes that all ranks together send in one phase of ``work(comm)``."""
    comm = Communicator(WORLD)
    work(comm)
    return comm.totals()[0][phase]
