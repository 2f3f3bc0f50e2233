"""Bytes that Open MPI itself counts, beside those of the communicator; started by test_openmpi_monitoring.py.

    mpiexec --mca pml_monitoring_enable 1 -n 3 python tests/openmpi_monitoring.py OUT.json DATA MODEL NAME ...

NAME is ``calls``, every call of the communicator, or one of `COMMANDS`, a whole run.

Open MPI's monitoring counts at two places, and its variables can be read through MPI's tool interface at any time:

asked   where a collective is called: for each other rank what this rank has for it
sent    where messages leave: what this rank really sends to each rank. With ``pml_monitoring_enable 1`` that is
        everything, with 2 only what is not part of a collective
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import sys
import warnings
from pathlib import Path

import numpy as np
from mpi4py import MPI

from cacore.comm import Communicator
from cacore.run import launch

WORLD = MPI.COMM_WORLD
R, RANK = WORLD.size, WORLD.rank
SIZE = 2  # MPI_T_PVAR_CLASS_SIZE
VARIABLES = [f"{where}_monitoring_messages_{what}" for where in ("coll", "pml") for what in ("size", "count")]


class Monitor:
    """Open MPI's counters of this rank."""

    def __init__(self):
        self._mpi = ctypes.CDLL(os.environ["MPI4PY_LIBMPI"])  # the library that mpi4py has loaded
        self._session = ctypes.c_void_p()
        self._call("init_thread", 0, ctypes.byref(ctypes.c_int()))
        self._call("pvar_session_create", ctypes.byref(self._session))
        self._handles = [self._handle(name) for name in VARIABLES]

    def _handle(self, name):
        index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        world = ctypes.c_void_p(MPI._addressof(WORLD))
        self._call("pvar_get_index", name.encode(), SIZE, ctypes.byref(index))
        self._call("pvar_handle_alloc", self._session, index, world, ctypes.byref(handle), ctypes.byref(count))
        assert count.value == R, (name, count.value)
        self._call("pvar_start", self._session, handle)
        return handle

    def _call(self, name, *arguments):
        status = getattr(self._mpi, f"MPI_T_{name}")(*arguments)
        if status:
            raise RuntimeError(f"MPI_T_{name}{arguments}: error {status}")

    def read(self):
        """Asked and sent, bytes and messages, by receiver: since the job began."""
        values = np.zeros((4, R), np.uint64)
        for row, handle in zip(values, self._handles, strict=True):
            self._call("pvar_read", self._session, handle, row.ctypes.data_as(ctypes.c_void_p))
        return values.astype(np.int64)


class Watched(Communicator):
    """A communicator that asks Open MPI whenever the phase changes, and before and after what is not counted."""

    def __init__(self):
        super().__init__(WORLD)
        self._monitor, self.seen, self._hidden = Monitor(), {}, ""
        self._before = self._monitor.read()

    def _charge(self):
        now = self._monitor.read()
        name = self._phase + self._hidden
        self.seen[name] = self.seen.get(name, 0) + now - self._before
        self._before = now

    def _switch(self, name):
        self._charge()
        return super()._switch(name)

    @contextlib.contextmanager
    def uncounted(self):
        self._charge()
        outer, self._hidden = self._hidden, ", not counted"
        with super().uncounted():
            yield
        self._charge()
        self._hidden = outer

    def told(self):
        """{phase: {ours, asked, sent: bytes and messages, by sender and receiver}} of all ranks, on rank 0."""
        self._charge()
        mine = {
            name: {"ours": np.array(self.sent(name)), "asked": values[:2], "sent": values[2:]}
            for name, values in self.seen.items()
        }
        every = WORLD.gather(mine)
        if every is None:
            return None
        return {
            name: {who: np.array([one[name][who] for one in every]).swapaxes(0, 1).tolist() for who in mine[name]}
            for name in mine
        }


def rows(count):
    """So many rows of three numbers."""
    return np.ones((count, 3))


def calls(comm):
    """Every call of the communicator, in a phase of its own."""
    root, counts = R - 1, np.arange(R)
    for name, call in {
        "bcast": lambda: comm.bcast(np.ones(10) if root == RANK else None, root),
        "allreduce": lambda: comm.allreduce(np.ones(10)),
        "allgather": lambda: comm.allgather(rows(RANK + 1)),
        "allgather, counts known": lambda: comm.allgather(rows(RANK + 1), counts + 1),
        "alltoall": lambda: comm.alltoall(rows(counts.sum()), counts),
        "gather": lambda: comm.gather(rows(RANK + 1), root),
        "scatter": lambda: comm.scatter(rows(counts.sum()) if root == RANK else None, counts, root),
        "send": lambda: comm.send(np.ones(10), 0) if RANK == 1 else comm.recv(1) if RANK == 0 else None,
        "barrier": comm.barrier,
        "nothing": lambda: None,
    }.items():
        with comm.phase(name):
            call()
    return comm.told()


COMMANDS = {
    "casvm": ["casvm.casvm", "--initial", "local", "--C", "1"],
    "casvm, rank 0 reads": ["casvm.casvm", "--initial", "root", "--C", "1"],
    "fcfssvm": ["casvm.fcfssvm", "--ratio", "--C", "1"],
    "cpsvm": ["casvm.cpsvm", "--C", "1"],
    "dissmo": ["casvm.dissmo"],
    "cascade": ["casvm.cascade"],
    "dcfilter": ["casvm.dcfilter"],
    "twolevel": ["cakrr.twolevel", "--sigma", "1", "--lambda", "0.01", "--centers", "20"],
}


def train(name, data, model):
    """A command from beginning to end, as mpiexec starts it."""
    comm = Watched()
    launch.world = lambda: comm
    module, *words = COMMANDS[name]
    sys.argv = [module, data, "--threads", "1", "--quiet", "--model", model, *words]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the module may have been imported before
        runpy.run_module(module, run_name="__main__")
    return comm.told()


if __name__ == "__main__":
    out, data, model, *names = sys.argv[1:]
    result = {name: calls(Watched()) if name == "calls" else train(name, data, model) for name in names}
    if RANK == 0:
        Path(out).write_text(json.dumps(result))
