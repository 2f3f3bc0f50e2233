"""The layout over ranks, one rank without ScaLAPACK, and the messages where ScaLAPACK is missing."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.linalg import scalapack
from cacore.linalg.scalapack import BlockCyclic, grid_shape, layout

shapes = st.tuples(st.integers(1, 60), st.integers(1, 13), st.integers(1, 20))  # order, ranks, block


@given(st.integers(1, 5000))
def test_grid_is_the_squarest(ranks):
    rows, columns = grid_shape(ranks)
    assert rows * columns == ranks
    assert rows <= columns
    assert not any(ranks % d == 0 for d in range(rows + 1, math.isqrt(ranks) + 1))


def test_grids():
    assert [grid_shape(r) for r in (1, 2, 3, 4, 6, 7, 12, 16)] == [
        (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (1, 7), (3, 4), (4, 4),
    ]  # fmt: skip


@given(shapes)
def test_layout_has_each_entry_once_and_whole_blocks(shape):
    n, ranks, block = shape
    times = np.zeros((n, n), int)
    blocks = np.arange(n) // block
    for rows, columns in layout(n, ranks, block):
        assert rows.dtype == columns.dtype == np.int64
        assert (np.diff(rows) > 0).all()
        assert (np.diff(columns) > 0).all()
        times[np.ix_(rows, columns)] += 1
        for numbers in (rows, columns):
            assert np.isin(blocks, blocks[numbers]).sum() == len(numbers)
    assert (times == 1).all()


def part(n, ranks, block, rank):
    """One rank's part, without the others."""
    comm, matrix = Communicator(), BlockCyclic.__new__(BlockCyclic)
    comm.rank, comm.size = rank, ranks
    matrix.n, matrix.comm, matrix.block, matrix.grid = n, comm, block, grid_shape(ranks)
    matrix.dtype = np.dtype(np.float32)
    matrix.rows, matrix.columns = layout(n, ranks, block)[rank]
    return matrix


@given(shapes)
def test_column_blocks_cover_the_triangle_once(shape):
    n, ranks, block = shape
    times = np.zeros((n, n), int)
    for rank in range(ranks):
        matrix = part(n, ranks, block, rank)
        for columns, rows in matrix.column_blocks():
            times[np.ix_(matrix.rows[rows], matrix.columns[columns])] += 1
    needed = np.tri(n, dtype=int) if ranks > 1 else np.tri(n, dtype=int).T
    diagonal = np.arange(n) // block
    assert (times[needed == 1] == 1).all()
    assert (times[(needed == 0) & (diagonal[:, None] != diagonal)] == 0).all()
    assert times.max() == 1


@settings(max_examples=40)
@given(shapes)
def test_predicted_bytes_are_those_of_every_block_sent(shape):
    n, ranks, block = shape
    Pr, Pc = grid_shape(ranks)
    sizes = [min(block, n - lo) for lo in range(0, n, block)]
    sent = np.zeros((Pr, Pc), int)
    for k, width in enumerate(sizes):
        sent[k % Pr, k % Pc] += width * width * (Pr - 1) * (k + 1 < len(sizes))
        for i in range(k + 1, len(sizes)):
            sent[i % Pr, k % Pc] += sizes[i] * width * (Pc - 1)
            sent[i % Pr, i % Pc] += sizes[i] * width * (Pr - 1)
    found = [part(n, ranks, block, rank).predicted_bytes() for rank in range(ranks)]
    assert found == (4 * sent.reshape(-1)).tolist()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("block", [7, 64, None])
def test_one_rank_needs_no_library(tuned, dtype, block):
    tuned(scalapack_library=None)
    G = np.random.default_rng(0).standard_normal((50, 60))
    A, y = G @ G.T + np.eye(50), G[:, :3]
    with BlockCyclic(50, Communicator(), dtype, block) as matrix:
        matrix.local.fill(np.nan)
        for columns, rows in matrix.column_blocks():
            matrix.local[columns, rows] = A[np.ix_(matrix.rows[rows], matrix.columns[columns])].T
        assert matrix.cholesky() == 0
        np.testing.assert_allclose(matrix.solve(y), np.linalg.solve(A, y), atol=1e-10 if dtype == np.float64 else 1e-2)
        assert matrix.solve(y[:, 0]).shape == (50,)
        assert matrix.predicted_bytes() == 0


def test_integer_matrices_are_refused():
    with pytest.raises(ValueError, match="float32 or float64"):
        BlockCyclic(5, Communicator(), np.int64)


# -- messages ----------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    """The function itself, not its cached answer, with the C library in the place of MPI's."""
    monkeypatch.delenv(scalapack.VARIABLE, raising=False)
    monkeypatch.setattr(scalapack, "_mpi", lambda: ("libc.so.6", "intelmpi"))
    return scalapack._library.__wrapped__


def test_nothing_installed(tuned, opened):
    tuned(scalapack_files=lambda package: {})
    with pytest.raises(InputError) as caught:
        opened()
    assert str(caught.value) == (
        "dkrr on more than one rank needs ScaLAPACK: pip install 'cakernels[scalapack]' (x86-64), or set "
        "CAKRR_SCALAPACK to the path of a library"
    )


def test_named_library_that_is_not_there(monkeypatch, opened):
    monkeypatch.setenv(scalapack.VARIABLE, "libc.so.6:/nowhere/libscalapack.so")
    with pytest.raises(InputError, match="CAKRR_SCALAPACK: cannot open /nowhere/libscalapack"):
        opened()


def test_named_library_without_scalapack_is_refused(monkeypatch, opened):
    monkeypatch.setenv(scalapack.VARIABLE, "libc.so.6")
    with pytest.raises(InputError, match=r"^CAKRR_SCALAPACK: no pdpotrf_ in libc\.so\.6"):
        opened()


def test_packages_and_their_libraries(tmp_path, monkeypatch):
    assert scalapack._files("no-such-package") == {}
    names = ["lib/libmkl_core.so.3", "lib/libmkl_sequential.so", "lib/libmkl_core.a", "mkl.txt", "libiomp5.so.dbg"]
    package = tmp_path / "mkl-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: some-mkl\nVersion: 1\n")
    (package / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    monkeypatch.syspath_prepend(tmp_path)
    package.rename(tmp_path / "some_mkl-1.dist-info")
    found = scalapack._files("some-mkl")
    assert found == {
        name: str(tmp_path / "lib" / file)
        for name, file in (("libmkl_core", "libmkl_core.so.3"), ("libmkl_sequential", "libmkl_sequential.so"))
    }


@pytest.mark.parametrize(("count", "missing", "layer"), [
    (1, [], ["/sequential"]),
    (2, [], ["/libiomp5.so", "/intel"]),
    (2, ["/libiomp5.so"], ["libgomp.so.1", "/gnu"]),
    (2, ["/libiomp5.so", "libgomp.so.1"], ["/sequential"]),
])  # fmt: skip
def test_threading_layer(monkeypatch, tuned, count, missing, layer):
    def load(path):
        if path in missing:
            raise OSError

    mkl = {"libmkl_sequential": "/sequential", "libmkl_intel_thread": "/intel", "libmkl_gnu_thread": "/gnu"}
    monkeypatch.setattr(scalapack.threads, "current", lambda: count)
    tuned(scalapack_files=lambda package: {"libiomp5": "/libiomp5.so"})
    monkeypatch.setattr(scalapack.ctypes, "CDLL", load)
    assert scalapack._threading(mkl) == layer
