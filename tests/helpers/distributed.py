"""Inside mpiexec: who this rank is, and which rows it has."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import Dataset

WORLD = MPI.COMM_WORLD
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
    """What all ranks together send in one phase of a call of ``work(comm)``."""
    comm = Communicator(WORLD)
    work(comm)
    return comm.totals()[0][phase]
