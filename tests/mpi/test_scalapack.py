"""Cholesky and solve over all ranks against numpy's, in sub-communicators too, and what is read of the matrix."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import scalapack_is_missing
from helpers.distributed import RANK, WORLD, R

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.linalg import scalapack
from cacore.linalg.scalapack import BlockCyclic, layout

pytestmark = pytest.mark.mpi(min_size=1)
needs_library = pytest.mark.skipif(
    R > 1 and scalapack_is_missing(), reason="no ScaLAPACK: the mkl package is not installed"
)

TOLERANCE = {"float64": 1e-10, "float32": 1e-4}


def definite(n, seed=0):
    """Symmetric, of full bandwidth, well conditioned."""
    G = np.random.default_rng(seed).standard_normal((n, 12))
    return G @ G.T / 12 + np.eye(n)


def filled(A, comm, dtype=np.float64, block=None):
    """Only the triangle that may be read is filled, through `column_blocks`; the rest is NaN."""
    matrix = BlockCyclic(len(A), comm, dtype, block)
    matrix.local.fill(np.nan)
    for columns, rows in matrix.column_blocks():
        i, j = matrix.rows[rows][None, :], matrix.columns[columns][:, None]
        read = i <= j if comm.size == 1 else i >= j
        matrix.local[columns, rows] = np.where(read, A[i, j], np.nan)
    return matrix


def close(x, expected, dtype="float64"):
    assert np.abs(x - expected).max() <= TOLERANCE[dtype] * np.abs(expected).max()


@needs_library
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("n", "block"), [(1, 4), (7, 16), (16, 16), (101, 8), (128, 8), (230, 64), (90, None)])
def test_solves(comm, n, block, dtype):
    A, right = definite(n), np.random.default_rng(1).standard_normal((n, 7))
    before = right.copy()
    with filled(A, comm, dtype, block) as matrix:
        assert matrix.local.shape == (len(matrix.columns), len(matrix.rows))
        assert matrix.cholesky() == 0
        shapes = [right, right[:, :1], right[:, :3], right[:, 2], np.asfortranarray(right), right.astype(np.float32)]
        found = [matrix.solve(y) for y in shapes]
        with pytest.raises(ValueError, match="right-hand side"):
            matrix.solve(right[1:])
    everywhere = [WORLD.bcast(x) for x in found]
    np.testing.assert_array_equal(right, before)
    for y, x, other in zip(shapes, found, everywhere, strict=True):
        assert (x.shape, x.dtype) == (y.shape, dtype)
        assert x.flags.c_contiguous
        np.testing.assert_array_equal(x, other)
        close(x, np.linalg.solve(A, y.astype(np.float64)), dtype if y.dtype == np.float64 else "float32")


@needs_library
@pytest.mark.parametrize("order", [1, 2, 8, 9, 40, 77])
def test_not_definite(comm, order):
    A = definite(77)
    A[order - 1, order - 1] = -1.0
    with filled(A, comm, block=8) as matrix:
        info = matrix.cholesky()
    assert WORLD.allgather(info) == [order] * R


@needs_library
def test_columns_of_many_right_hand_sides_are_shared(comm):
    A, right = definite(30), np.random.default_rng(1).standard_normal((30, 61))
    with filled(A, comm, block=4) as matrix:
        assert matrix.cholesky() == 0
        close(matrix.solve(right), np.linalg.solve(A, right))


@needs_library
def test_many_matrices(comm, few_communicators):
    """More than an MPI library has communicators for, were they not given back: it has 8 left."""
    A, y = definite(9), np.arange(9.0)
    for _ in range(12):
        matrix = BlockCyclic(9, comm, block=2)
        matrix.close()
        matrix.close()
    with filled(A, comm, block=2) as first, filled(2 * A, comm, block=3) as second:
        assert (first.cholesky(), second.cholesky()) == (0, 0)
        answers = first.solve(y), second.solve(y)
    close(answers[0], np.linalg.solve(A, y))
    close(answers[1], np.linalg.solve(2 * A, y))


@needs_library
@pytest.mark.parametrize("way", ["halves", "reversed"])
def test_other_communicators(way):
    """Each half solves a system of its own; ranks of the other order get the other parts."""
    color = RANK % 2 if way == "halves" else 0
    part = WORLD.Split(color, -RANK)
    comm = Communicator(part)
    A, y = definite(50 + color, seed=color), np.arange(50.0 + color)
    with filled(A, comm, block=4) as matrix:
        info, x = matrix.cholesky(), matrix.solve(y)
    part.Free()
    assert info == 0
    close(x, np.linalg.solve(A, y))


@needs_library
def test_layout_is_what_each_rank_holds(comm):
    with BlockCyclic(100, comm, block=8) as matrix:
        held = WORLD.allgather((matrix.rows, matrix.columns))
    for found, expected in zip(held, layout(100, R, 8), strict=True):
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


@needs_library
def test_traffic(comm):
    """The solution is gathered through the communicator; what ScaLAPACK sends is only predicted."""
    with filled(definite(40), comm, block=8) as matrix:
        with comm.phase("train"):
            assert matrix.cholesky() == 0
        with comm.phase("predict"):
            matrix.solve(np.ones(40))
    held = len(matrix.rows) if RANK % matrix.grid[1] == 0 else 0  # one right-hand side is in the first process column
    assert comm.sent("train")[0].sum() == (8 if R > 1 else 0)
    assert comm.sent("predict")[0].sum() == (8 + 8 * held if R > 1 else 0)


@pytest.mark.mpi(min_size=2)
def test_library_that_one_rank_lacks(comm, tuned):
    def lacking():
        if RANK == R - 1:
            raise InputError("needs ScaLAPACK")

    tuned(scalapack_library=lacking)
    with pytest.raises(InputError, match="needs ScaLAPACK"):
        BlockCyclic(10, comm)


@pytest.mark.mpi(min_size=2)
def test_matrix_too_large_for_the_ranks(comm):
    with pytest.raises(InputError, match=f"500000 rows need more than {R} ranks"):
        BlockCyclic(500_000, comm)


@pytest.mark.mpi(min_size=2)
def test_messages(monkeypatch, tuned):
    """The function itself, not its cached answer."""
    monkeypatch.setenv(scalapack.VARIABLE, "/nowhere/libscalapack.so")
    with pytest.raises(InputError, match="CAKRR_SCALAPACK: cannot open /nowhere/libscalapack"):
        scalapack._library.__wrapped__()
    monkeypatch.delenv(scalapack.VARIABLE)
    tuned(scalapack_files=lambda package: {})
    with pytest.raises(InputError, match="needs ScaLAPACK: pip install"):
        scalapack._library.__wrapped__()
