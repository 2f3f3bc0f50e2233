"""Cholesky factorisation of a matrix distributed over all ranks, and solves with it, by ScaLAPACK through ctypes.

ScaLAPACK comes from the ``mkl`` package or from a library named in the environment variable CAKRR_SCALAPACK. A single
rank needs neither and uses :mod:`cacore.linalg.lapack`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import math
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
from numpy.typing import DTypeLike, NDArray

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.linalg.lapack import cholesky, cholesky_solve
from cacore.machine import threads

BLOCK = 320  # rows and columns of a block; 384 until the crossover with one rank was measured as it is used (d8a72be2)
FEW = 4  # up to this many right-hand sides are solved one by one: only vectors move; pdpotrs may move the factor
VARIABLE = "CAKRR_SCALAPACK"

_ROUTINES = [f"p{real}{name}_" for real in "ds" for name in ("potrf", "potrs", "trsv")]
_ROUTINES += ["Csys2blacs_handle", "Cfree_blacs_system_handle", "Cblacs_gridinit", "Cblacs_gridexit"]
# MKL's threading layers in the order they are tried, each with the OpenMP runtime that must be loaded first.
_THREADED = (("libmkl_intel_thread", "libiomp5.so"), ("libmkl_gnu_thread", "libgomp.so.1"))


def grid_shape(ranks: int) -> tuple[int, int]:
    """Process rows and process columns: as square as possible, with no more rows than columns.

    On 2 ranks 1 x 2 is a fifth faster than 2 x 1 at n = 12,000 and 18,432.
    """
    rows = max(d for d in range(1, math.isqrt(ranks) + 1) if ranks % d == 0)
    return rows, ranks // rows


def layout(n: int, ranks: int, block: int = BLOCK) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Global numbers of the rows and of the columns of every rank's local matrix, ascending.

    Block (I, J) is at process row I mod Pr and process column J mod Pc of the Pr x Pc grid of `grid_shape`,
    and rank r at process row r // Pc and process column r mod Pc.
    """
    shape = grid_shape(ranks)
    owner = np.arange(n) // block
    rows, columns = ([np.flatnonzero(owner % count == i).astype(np.int64) for i in range(count)] for count in shape)
    return [(rows[r // shape[1]], columns[r % shape[1]]) for r in range(ranks)]


class BlockCyclic(contextlib.AbstractContextManager["BlockCyclic"]):
    """A symmetric n x n matrix distributed block-cyclically over all ranks of a communicator.

    Fill `local` as `column_blocks` says, call `cholesky`, then `solve`, then `close` (or use ``with``).
    The constructor, `cholesky`, `solve` and `close` are collective.

    Parameters
    ----------
    n : int
        Order of the matrix.
    comm : Communicator
    dtype : float64 or float32
    block : int, optional
        Rows and columns of a block.

    Attributes
    ----------
    rows, columns : ndarray of int64
        Global numbers of this rank's rows and columns, ascending; `layout` has those of every rank.
    local : ndarray, shape (len(columns), len(rows)), C-contiguous
        ``local[j, i]`` is entry (rows[i], columns[j]); not initialised. On several ranks only the lower
        triangle, rows[i] >= columns[j], is read; on one rank only rows[i] <= columns[j], see
        :func:`cacore.linalg.lapack.cholesky`. `column_blocks` covers either triangle.

    Notes
    -----
    A rank holds about n^2 / R numbers, both triangles of its part and at most 2^31 - 1 (ScaLAPACK's integers),
    and panels of about n * block * (1/Pr + 1/Pc) more. The communicator's counters do not include the bytes that
    ScaLAPACK sends: see `predicted_bytes`. Blackford et al., ScaLAPACK Users' Guide, SIAM 1997, chapters 4 and 5.
    """

    def __init__(self, n: int, comm: Communicator, dtype: DTypeLike = np.float64, block: int | None = None) -> None:
        self.n, self.comm, self.block = n, comm, BLOCK if block is None else block
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise ValueError("a float32 or float64 matrix is needed")
        self.grid, everyone = grid_shape(comm.size), layout(n, comm.size, self.block)
        self.rows, self.columns = everyone[comm.rank]
        self._context: int | None = None
        if comm.size > 1:
            if math.prod(map(len, everyone[0])) >= 2**31:  # the first rank has the largest share
                raise InputError(
                    f"{n} rows need more than {comm.size} ranks: ScaLAPACK takes 2^31 - 1 numbers per rank"
                )
            with comm.agreed():
                self._library = _library()
            self._context = self._library.open_grid(comm, self.grid)
        self.local: NDArray[np.floating] = np.empty((len(self.columns), len(self.rows)), self.dtype)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.comm.in_step(error):  # a rank that fails alone must not enter a collective call
            self.close()

    def close(self) -> None:
        """Free ScaLAPACK's communicators. The matrix can still be read afterwards, but `solve` no longer works."""
        if self._context is not None:
            self.comm.barrier()
            self._library.call("Cblacs_gridexit", self._context)
            self._context = None

    def column_blocks(self) -> Iterator[tuple[slice, slice]]:
        """Blocks to fill: pairs of slices, ``local[columns, rows]``, that cover the triangle that is read.

        Each block of local columns comes with the local rows from its first column on or, on one rank, with the rows
        up to its last column. Only blocks on the diagonal contain entries that are not read.
        """
        for lo in range(0, len(self.columns), self.block):
            hi = min(lo + self.block, len(self.columns))
            if self.comm.size == 1:
                yield slice(lo, hi), slice(0, hi)
            else:
                first = int(np.searchsorted(self.rows, self.columns[lo]))
                if first < len(self.rows):
                    yield slice(lo, hi), slice(first, len(self.rows))

    def cholesky(self) -> int:
        """Factor the matrix in place; n^3 / 3 flops, shared by all ranks.

        Returns 0, or the order of the leading minor that is not positive definite; the same on all ranks.
        """
        if self.comm.size == 1:
            return cholesky(self.local)
        info = self._call("potrf", b"L", self.n, self.local, 1, 1, self._describe(self.n, self.block))
        return int(self.comm.allreduce(np.array([info], np.int64), "max")[0])

    def solve(self, y: NDArray[np.floating]) -> NDArray[Any]:
        """Solve for all columns of `y` with the factor; 2 n^2 flops per column, shared by all ranks.

        `y`, shape (n,) or (n, k), is the same on all ranks and not changed. Every rank returns the whole solution, an
        array of the shape of `y` and the matrix' dtype.
        """
        if y.shape[:1] != (self.n,) or y.ndim > 2:
            raise ValueError(f"the right-hand side must have {self.n} rows")
        X = np.array(y.reshape(self.n, -1).T, self.dtype, order="C")
        if self.comm.size == 1:
            cholesky_solve(self.local, X)
        else:
            k, (_, Pc) = len(X), self.grid
            width = -(-k // Pc)  # block width with which the process columns share the right-hand sides
            shares = [slice(q * width, (q + 1) * width) for q in range(Pc)]
            piece = X[shares[self.comm.rank % Pc]][:, self.rows].copy()
            a, b = self._describe(self.n, self.block), self._describe(k, width)
            if k > FEW:
                self._call("potrs", b"L", self.n, k, self.local, 1, 1, a, piece, 1, 1, b)
            for transpose, j in ((t, j) for t in (b"N", b"T") for j in range(1, k + 1) if k <= FEW):
                self._call("trsv", b"L", transpose, b"N", self.n, self.local, 1, 1, a, piece, 1, j, b, 1)
            pieces, at = self.comm.allgather(piece.reshape(-1)), 0
            for rank, (rows, _) in enumerate(layout(self.n, self.comm.size, self.block)):
                part = X[shares[rank % Pc]]
                part[:, rows] = pieces[at : at + len(part) * len(rows)].reshape(len(part), len(rows))
                at += len(part) * len(rows)
        return np.ascontiguousarray(X.T).reshape(y.shape)

    def _describe(self, columns: int, width: int) -> NDArray[np.int32]:
        """ScaLAPACK's descriptor of an n x `columns` matrix with blocks of `width` columns."""
        assert self._context is not None, "closed"
        return np.array([1, self._context, self.n, columns, self.block, width, 0, 0, max(1, len(self.rows))], np.int32)

    def _call(self, name: str, *args: bytes | int | NDArray[np.generic]) -> int:
        """Call the routine of this dtype with bytes, ints and arrays, and return `info`; trsv ignores that argument."""
        info, boxed = ctypes.c_int(0), list[object](args)
        for i, arg in enumerate(args):
            if not isinstance(arg, bytes):
                boxed[i] = ctypes.byref(ctypes.c_int(arg)) if isinstance(arg, int) else ctypes.c_void_p(arg.ctypes.data)
        self.comm.barrier()  # notices failed ranks; the library would wait for them forever
        self._library.call(f"p{'d' if self.dtype == np.float64 else 's'}{name}_", *boxed, ctypes.byref(info))
        if info.value < 0:
            raise RuntimeError(f"ScaLAPACK's {name} does not take argument {-info.value}")
        return info.value

    def predicted_bytes(self) -> int:
        """Bytes that this rank sends in `cholesky` if every block goes straight to each rank that needs it.

        Notes
        -----
        Right-looking, with b the block size and s the bytes per number. In step k, each block (I, k) of the panel is
        needed along its process row: its holder sends it to Pc - 1 others. It is needed again, transposed, in block
        I's process column: the process at (I mod Pr, I mod Pc), which has it by then, sends it to Pr - 1 others. To
        solve for the panel, the diagonal block goes to Pr - 1 others. Over all steps and ranks, this is
        s n^2/2 (Pr + Pc - 2) + s n b (Pr - 1), or about s n^2/2 (1/Pr + 1/Pc) per rank. ScaLAPACK forwards panels
        along rings and trees, so compare the sum over ranks, not one rank's share.
        """
        Pr, Pc = self.grid
        height = np.diff(np.append(np.arange(0, self.n, self.block), self.n))  # rows of each block row
        number = np.arange(len(height))
        row, column = number % Pr == self.comm.rank // Pc, number % Pc == self.comm.rank % Pc
        below = (height * row)[::-1].cumsum()[::-1] - height * row  # this rank's rows below block row k
        panels = int((below * height)[column].sum()) * (Pc - 1)
        columns_before = number * self.block  # columns of L left of each diagonal block
        diagonal = np.where(number + 1 < len(height), height, 0)  # the last one is not sent
        transposed = int((height * (columns_before + diagonal))[row & column].sum()) * (Pr - 1)
        return (panels + transposed) * self.dtype.itemsize


# -- the library -------------------------------------------------------------------------------


class _Library:
    """Shared libraries, opened in order, and the routines of ScaLAPACK and its BLACS in them.

    ctypes' own CDLL resolves all symbols at once, which fails for libraries that need each other, such as MKL's.
    """

    def __init__(self, source: str, paths: list[str]) -> None:
        self._source, self._paths, self._c = source, paths, ctypes.CDLL(None)
        self._c.dlopen.restype, self._c.dlopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
        self._c.dlsym.restype, self._c.dlsym.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
        self._c.dlerror.restype = ctypes.c_char_p
        self._handles: list[int] = []
        for path in paths:
            handle = self._c.dlopen(os.fsencode(path), os.RTLD_LAZY | os.RTLD_GLOBAL)
            if not handle:
                raise InputError(f"{source}: cannot open {path} ({self._c.dlerror().decode(errors='replace')})")
            self._handles.append(handle)
        self._routines = {name: self._find(name) for name in _ROUTINES}

    @property
    def path(self) -> str:
        """Path of ScaLAPACK itself, which is opened last."""
        return self._paths[-1]

    def _find(self, name: str) -> Callable[..., int]:
        for handle in reversed(self._handles):
            if address := self._c.dlsym(handle, name.encode()):
                return ctypes.CFUNCTYPE(ctypes.c_int)(address)
        raise InputError(f"{self._source}: no {name} in {', '.join(self._paths)}: not all of ScaLAPACK and its BLACS")

    def call(self, name: str, *args: object) -> int:
        """Call a routine, on as many threads as this rank has."""
        if self._source == VARIABLE:
            with threadpoolctl.threadpool_limits(threads.current(), user_api="blas"):  # whichever BLAS it uses
                return int(self._routines[name](*args))
        self._find("MKL_Set_Num_Threads")(threads.current())
        return int(self._routines[name](*args))

    def open_grid(self, comm: Communicator, shape: tuple[int, int]) -> int:
        """BLACS context of a row-major grid of all ranks of a communicator."""
        from mpi4py import MPI

        # MPICH's communicators are ints, Open MPI's are pointers.
        kind = ctypes.c_int if MPI._sizeof(MPI.Comm) == ctypes.sizeof(ctypes.c_int) else ctypes.c_void_p
        handle = self.call("Csys2blacs_handle", kind(MPI._handleof(comm._mpi)))
        context = ctypes.c_int(handle)
        self.call("Cblacs_gridinit", ctypes.byref(context), b"Row", *shape)
        self.call("Cfree_blacs_system_handle", handle)  # the grid has its own communicators
        return context.value


def where() -> str:
    """Path of ScaLAPACK; an InputError with the remedy if there is none."""
    return _library().path


@cache
def _library() -> _Library:
    """ScaLAPACK on mpi4py's MPI; opened once per process, because an open library cannot be replaced."""
    if named := os.environ.get(VARIABLE):
        return _Library(VARIABLE, [_mpi()[0], *filter(None, named.split(os.pathsep))])
    try:
        os.getcwd()
    except FileNotFoundError as error:  # where MKL would end the process
        raise InputError("ScaLAPACK cannot be loaded, the working directory was deleted: change to another") from error
    mkl = _files("mkl")
    if "libmkl_scalapack_lp64" not in mkl:
        raise InputError(
            "dkrr on more than one rank needs ScaLAPACK: pip install 'cakernels[scalapack]' (x86-64), "
            f"or set {VARIABLE} to the path of a library"
        )
    mpi, family = _mpi()
    last = ("libmkl_intel_lp64", f"libmkl_blacs_{family}_lp64", "libmkl_scalapack_lp64")
    return _Library("the mkl package", [mpi, mkl["libmkl_core"], *_threading(mkl), *(mkl[name] for name in last)])


def _threading(mkl: dict[str, str]) -> list[str]:
    """MKL's threading layer for this rank's threads, after the OpenMP runtime that it needs."""
    for layer, runtime in _THREADED if threads.current() > 1 else ():
        path = _files("intel-openmp").get(runtime.partition(".")[0], runtime)
        with contextlib.suppress(OSError):
            ctypes.CDLL(path)
            return [path, mkl[layer]]
    return [mkl["libmkl_sequential"]]


def _files(package: str) -> dict[str, str]:
    """Paths of the shared libraries of a package, by name without version; empty if it is not installed."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    named = ((re.fullmatch(r"(lib\w+)\.so[.\d]*", file.name), file) for file in files)
    return {match[1]: os.path.realpath(str(file.locate())) for match, file in named if match}


def _mpi() -> tuple[str, str]:
    """Path of the MPI library that mpi4py has loaded, and MKL's name for its family."""
    from mpi4py import MPI

    version = MPI.Get_library_version().strip("\0")
    loaded = re.search(r"/\S.*/libmpi(ch)?\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    if loaded is None:
        raise InputError(f"ScaLAPACK needs MPICH, Intel MPI or Open MPI; mpi4py has loaded {version.splitlines()[0]}")
    return loaded[0], "openmpi" if version.startswith("Open MPI") else "intelmpi"
