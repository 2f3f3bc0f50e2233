"""Fixtures of the distributed tests: the communicator, splits of rows over its ranks, a folder for files.

The pattern of a test: all that is collective first, on every rank; then the serial answer, and assertions.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.distributed import RANK, WORLD, R
from mpi4py import MPI

from cacore.comm import Communicator

SPLITS = {"even": (1, 1, 1, 1), "uneven": (3, 1, 2, 5), "rank without rows": (2, 0, 3, 1)}
TRIED = {1: "even", 2: "uneven", 3: "rank without rows", 4: "even"}  # on one rank they are all the same


def pytest_addoption(parser):
    parser.addoption(
        "--spread-variants", action="store_true",
        help="run each variant of a test on one of 1, 2, 3 and 4 ranks, and each test on all of these numbers",
    )  # fmt: skip


def pytest_collection_modifyitems(config, items):
    """With --spread-variants, deal the variants of a test to the numbers of ranks, in an order that no parameter knows.

    So each test runs on every number of ranks, and each of its variants on one of them; of two or three variants, each
    number of ranks has one.
    """
    if not config.getoption("spread_variants"):
        return
    variants = {}
    for item in items:
        variants.setdefault((item.path, item.originalname), []).append(item)
    left_out = set()
    for tests in variants.values():
        shuffled, hands = sorted(tests, key=_place), min(4, len(tests))
        left_out |= {item for number, item in enumerate(shuffled) if (number + R) % hands}
    config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
    items[:] = [item for item in items if item not in left_out]


def _place(item):
    """Number that orders the variants of a test by their parameters, without the split of the rows, which R decides."""
    indices = item.callspec.indices if hasattr(item, "callspec") else {}
    return zlib.crc32(repr(sorted(pair for pair in indices.items() if pair[0] != "mine")).encode())


@pytest.fixture
def comm():
    return Communicator(WORLD)


@pytest.fixture(params=[TRIED[R]] if R in TRIED else SPLITS)
def mine(request):
    """``mine(n)`` is this rank's slice of n rows."""

    def block(n):
        shares = np.cumsum((0, *SPLITS[request.param][:R]))
        bounds = n * shares // shares[-1]
        return slice(int(bounds[RANK]), int(bounds[RANK + 1]))

    return block


@pytest.fixture
def everywhere():
    """``everywhere(rows)`` are all ranks' rows in rank order, moved by mpi4py itself."""

    def joined(rows):
        pieces = WORLD.allgather(rows)
        return sp.vstack(pieces, format="csr") if sp.issparse(rows) else np.concatenate(pieces)

    return joined


@pytest.fixture
def folder(request):
    """An empty folder that all ranks see."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    path = Path(os.environ["CAKERNELS_MPI_TESTS"], request.module.__name__, name)
    path.mkdir(parents=True, exist_ok=True)
    WORLD.Barrier()
    return path


@pytest.fixture
def half():
    """A communicator of every other rank: of half of them, or of all if there is but one."""
    part = WORLD.Split(RANK % 2, RANK)
    yield part
    part.Free()


@pytest.fixture
def few_communicators():
    """Most of those that the MPI library has are taken: in MPICH, of about 2,000; 8 are left."""
    taken = []
    with contextlib.suppress(MPI.Exception):
        while len(taken) < 5000:
            taken.append(MPI.COMM_SELF.Dup())
    for comm in taken[-8:]:
        comm.Free()
    yield
    for comm in taken[:-8]:
        comm.Free()
