"""Installed versions and libraries, and the resources of every rank of this job."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cacore import __version__
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.machine import memory, threads

_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "h5py", "mpi4py")


@dataclass(frozen=True)
class Rank:
    """Resources of one rank.

    Attributes
    ----------
    rank : int
    host : str
        Name of its machine.
    node : int
        Lowest rank on the same machine. MPI decides which ranks share one, since names may be equal in containers.
    node_cores : int
        Number of cores of its machine.
    cores : list of int
        Cores that it may run on.
    threads : int
        Number of threads that a command would use.
    cache : str
        Folder in which numba keeps compiled code; set only on the first rank of each machine, "" on the others.
    cache_fault : str
        Description of what is wrong with that folder; "" if nothing is.
    """

    rank: int
    host: str
    node: int
    node_cores: int
    cores: list[int]
    threads: int
    cache: str
    cache_fault: str


def versions() -> dict[str, str]:
    """Versions of this package and its dependencies; "none" for one that is not installed or cannot be loaded."""
    import h5py

    from cacore.run.report import mpi_version

    found = {"cakernels": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    try:
        found["mpi"] = " ".join(mpi_version().split())
    except (ImportError, RuntimeError):  # mpi4py or an MPI library is missing
        found["mpi"] = "none"
    return {**found, "hdf5": h5py.version.hdf5_version}


def blas() -> list[dict[str, Any]]:
    """Name, version and number of threads of every loaded BLAS, such as numpy's and scipy's."""
    from threadpoolctl import threadpool_info

    return [
        {"name": one["internal_api"], "version": one["version"], "threads": one["num_threads"]}
        for one in threadpool_info()
        if one["user_api"] == "blas"
    ]


def scalapack() -> dict[str, str]:
    """Location of ScaLAPACK as ``{"path": ...}``, or ``{"missing": reason and remedy}``."""
    from cacore.linalg.scalapack import where

    try:
        return {"path": where()}
    except InputError as error:
        return {"missing": str(error)}
    except (ImportError, RuntimeError):
        return {"missing": "ScaLAPACK needs an MPI library, and there is none"}


def node_memory() -> int:
    """Physical memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_of(comm: Communicator, limit: int) -> dict[str, int]:
    """Least physical ("node") and least available ("free") bytes of any machine, and the limit per rank; collective."""
    mine = np.array([node_memory(), memory.available()], np.int64)
    with comm.uncounted():
        node, free = comm.allreduce(mine, "min").tolist()
    return {"node": node, "free": free, "limit_per_rank": limit}


def ranks(comm: Communicator) -> list[Rank]:
    """Resources of every rank, on every rank; collective."""
    node = comm.node()
    with comm.uncounted():
        first = int(node.bcast(np.array([comm.rank]))[0])
    cache, fault = _numba_cache() if comm.rank == first else ("", "")
    mine = Rank(
        comm.rank, platform.node(), first, os.cpu_count() or 1, sorted(threads.cores()), threads.current(), cache, fault
    )
    text = np.frombuffer(json.dumps(asdict(mine)).encode(), np.uint8)
    with comm.uncounted():
        letters, counts = comm.allgather_parts(text)
    ends = np.cumsum(counts)
    return [Rank(**json.loads(letters[end - n : end].tobytes())) for end, n in zip(ends, counts, strict=True)]


def _numba_cache() -> tuple[str, str]:
    """Folder in which numba keeps compiled code, as numba reports it, and what is wrong with it ("" if nothing)."""
    wanted = os.environ.get("NUMBA_CACHE_DIR")
    remedy = "name a folder in NUMBA_CACHE_DIR that every rank may write to"
    try:
        from cacore.io.fingerprints import _add_hashes as compiled
    except RuntimeError as error:  # numba finds no folder that it may write to
        return "", f"numba cannot keep compiled code ({error}), and no command would start: {remedy}"
    used = str(compiled.stats.cache_path)
    if wanted and Path(os.path.abspath(wanted)) not in Path(os.path.abspath(used)).parents:
        return used, f"NUMBA_CACHE_DIR={wanted} cannot be written to, and numba uses {used} instead: {remedy}"
    return used, ""
