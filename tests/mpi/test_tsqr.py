"""The tree of triangles on all ranks: bits of one process, bytes by the formula, one error on all ranks."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.distributed import RANK, WORLD, R, by_one, refused_by_all

from cacore.comm import Communicator
from cacore.io.checkpoint import Checkpoint
from cacore.linalg.tsqr import bounds, owners, sent_bytes, tsqr

pytestmark = pytest.mark.mpi(min_size=1)
M, T, N = 17, 2, 2001


def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, M + T)) * np.geomspace(1, 1e-9, M + T)


def blocks(leaves, step=60):
    A, border = rows(), bounds(N, leaves)

    def of(leaf, skipped):
        for lo in range(border[leaf] + skipped * step, border[leaf + 1], step):
            yield A[lo : min(lo + step, border[leaf + 1])]

    return of


def found(comm, leaves, **more):
    triangle = tsqr(blocks(leaves), M, T, leaves, Communicator(comm), **more)
    return triangle.R.tobytes(), triangle.q.tobytes(), triangle.s.tobytes(), triangle.rows


@pytest.mark.parametrize("leaves", [1, 2, 8, 32])
def test_bits_of_one_process(leaves):
    assert found(WORLD, leaves) == by_one(found, None, leaves)


@pytest.mark.parametrize("leaves", [1, 2, 8, 32])
def test_bytes_by_the_formula(leaves):
    comm = Communicator(WORLD)
    comm.barrier()
    with comm.phase("train"):
        tsqr(blocks(leaves), M, T, leaves, comm)
    sent = comm.totals()[0]["train"]["bytes"]
    # Besides, one number for the rows, and one by which ranks agree that no block failed.
    assert sent == sent_bytes(M + T, leaves, R) + (R > 1) * 16 * R


@pytest.mark.parametrize("ends", ["raises", "width", "nan"])
def test_one_error_and_the_same_bits_afterwards(ends, tmp_path_factory):
    leaves = 8
    folder = WORLD.bcast(str(tmp_path_factory.mktemp("run")) if RANK == 0 else None)
    given, last = blocks(leaves), R - 1
    leaf = int(np.flatnonzero(owners(leaves, R) == last)[0])

    def failing(one, skipped):
        for number, block in enumerate(given(one, skipped), skipped):
            if (one, number) == (leaf, 2):
                if ends == "raises":
                    raise KeyError("energy")
                yield block[:, 1:] if ends == "width" else np.where(np.arange(M + T) == 3, np.nan, block)
            yield block

    comm, kept = Communicator(WORLD), Checkpoint(folder)
    expected = {"raises": "KeyError: 'energy'", "width": "18\\), and 19 columns", "nan": "column 3 is nan"}[ends]
    match = rf"rows, share {leaf}, block 2 \(rank {last}\): .*{expected}"
    refused_by_all(lambda: tsqr(failing, M, T, leaves, comm, checkpoint=kept), match=match)
    asked = []

    def counting(one, skipped):
        asked.append((one, skipped))
        return given(one, skipped)

    again = tsqr(counting, M, T, leaves, comm, checkpoint=kept)
    assert asked == ([(one, 2 * (one == leaf)) for one in range(leaf, leaves)] if last == RANK else [])
    assert again.R.tobytes() == by_one(found, None, leaves)[0]
