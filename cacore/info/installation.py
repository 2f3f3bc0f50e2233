"""The installation and the job: versions, resources of each rank, measured speeds, faults, and their table.

Messages, a matrix product and copying are measured for half a second each. A fault is one line with its remedy. The
table is what ``python -m cacore.info`` prints.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.comm import Communicator, alone_by_mistake
from cacore.errors import InputError
from cacore.io.words import counted
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

    by_package = {"cakernels": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            by_package[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            by_package[name] = "none"
    try:
        by_package["mpi"] = " ".join(mpi_version().split())
    except (ImportError, RuntimeError):  # mpi4py or an MPI library is missing
        by_package["mpi"] = "none"
    return {**by_package, "hdf5": h5py.version.hdf5_version}


def blas() -> list[dict[str, Any]]:
    """Name, version and number of threads of every loaded BLAS, such as numpy's and scipy's."""
    from threadpoolctl import threadpool_info

    return [
        {"name": library["internal_api"], "version": library["version"], "threads": library["num_threads"]}
        for library in threadpool_info()
        if library["user_api"] == "blas"
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


MIB = 1 << 20
SMALL, LARGE = 8, 8 * MIB  # bytes per message
FEWEST, MOST = 3, 100  # repetitions
COPIED = 32 * MIB  # more than the caches of one core
SECONDS = 0.5  # length of each measurement, unless FEWEST repetitions take longer
NEEDED = 256 * MIB  # bytes per rank that all measurements need


def messages(comm: Communicator) -> dict[str, float]:
    """Measure round trips between rank 0 and the last rank, and sums over all ranks; collective.

    Returns
    -------
    dict
        ``latency_us``: median half of a round trip of 8 bytes. ``bandwidth_gb_s``: best bandwidth with 8 MiB.
        ``allreduce_us``: mean time of an Allreduce of 8 bytes on the slowest rank. Empty if there is one rank.
    """
    if comm.size == 1:
        return {}
    with comm.uncounted():
        small, large = (_repeated(comm, _round_trip(comm, nbytes)) for nbytes in (SMALL, LARGE))
        sums = _repeated(comm, lambda: comm.allreduce(np.ones(1)))
        mean = comm.allreduce(np.array([np.mean(sums)]), "max")[0]
        seconds = comm.bcast(np.array([np.median(small), min(large)]) if comm.rank == 0 else None)
    return {
        "latency_us": float(seconds[0] / 2 * 1e6),
        "bandwidth_gb_s": float(2 * LARGE / seconds[1] / 1e9),
        "allreduce_us": float(mean * 1e6),
    }


def _round_trip(comm: Communicator, nbytes: int) -> Callable[[], object]:
    """Function that sends a message of `nbytes` from rank 0 to the last rank and back."""
    array, last = np.zeros(nbytes, np.uint8), comm.size - 1

    def trip() -> None:
        if comm.rank == 0:
            comm.send(array, last)
            comm.recv(last)
        elif comm.rank == last:
            comm.send(comm.recv(0), 0)

    return trip


def _repeated(comm: Communicator, work: Callable[[], object]) -> list[float]:
    """Seconds of each of several calls of `work`, equally many on every rank; collective."""
    work()  # opens the connections
    comm.barrier()
    first = [_timed(work) for _ in range(FEWEST)]
    wanted = min(MOST, int(SECONDS / max(sum(first) / FEWEST, 1e-9)))
    further = int(comm.bcast(np.array([max(0, wanted - FEWEST)]))[0])  # rank 0 decides
    seconds = [*first, *(_timed(work) for _ in range(further))]
    comm.barrier()
    return seconds


def _timed(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def rates(comm: Communicator, limit: int) -> dict[str, NDArray[np.float64]]:
    """Rates of every rank while all of them work: ``product_gflop_s`` and ``copy_gb_s`` (bytes read plus written).

    Parameters
    ----------
    comm : Communicator
        The call is collective.
    limit : int
        Bytes that a rank may use, the same on all ranks.
    """
    with comm.agreed():
        memory.require(NEEDED, limit, "measuring", "give the job more memory, or fewer ranks per node")
    measured = {}
    for name, (work, amount) in {"product_gflop_s": _product(), "copy_gb_s": _copy()}.items():
        work()  # one-time work, such as starting threads
        with comm.uncounted():
            comm.barrier()
            measured[name] = comm.allgather(np.array([amount / _seconds(work) / 1e9]))
    return measured


def _seconds(work: Callable[[], object]) -> float:
    """Mean seconds per call."""
    start, count = perf_counter(), 0
    while (now := perf_counter()) - start < SECONDS or not count:
        work()
        count += 1
    return (now - start) / count


def _product() -> tuple[Callable[[], object], float]:
    """Function that multiplies square matrices on this rank's threads, and its number of flops."""
    n = 512 if threads.current() <= 2 else 2048 if threads.current() > 16 else 1024
    A, out = np.full((n, n), 0.5), np.empty((n, n))
    return lambda: np.matmul(A, A, out=out), 2.0 * n**3


def _copy() -> tuple[Callable[[], object], float]:
    """Function that copies an array on this rank's threads, and the number of bytes it reads and writes."""
    source, target = np.ones(COPIED // 8), np.zeros(COPIED // 8)
    pieces = threads.blocks(len(source), -(-len(source) // threads.current()))
    tasks = [(target[lo:hi], source[lo:hi]) for lo, hi in pieces]
    return lambda: threads.for_blocks(np.copyto, tasks), 2.0 * COPIED


@dataclass
class Sharers:
    """Group of ranks on one machine that share cores, directly or through each other, and with no rank outside."""

    ranks: list[Rank] = field(default_factory=list)
    cores: set[int] = field(default_factory=set)

    def add(self, joining: Sharers) -> None:
        """Add the ranks and cores of another group."""
        self.ranks += joining.ranks
        self.cores |= joining.cores

    @property
    def threads(self) -> int:
        """Threads of all ranks."""
        return sum(rank.threads for rank in self.ranks)

    @property
    def fill_the_machine(self) -> bool:
        """True if only fewer ranks would help: each has one thread, and together they have all cores of the machine."""
        return all(rank.threads == 1 for rank in self.ranks) and len(self.cores) == self.ranks[0].node_cores


def sharers(ranks: list[Rank]) -> list[Sharers]:
    """Group the ranks by the cores they share; groups are ordered by their lowest rank."""
    groups: dict[int, list[Sharers]] = {}
    for rank in ranks:
        on_node, joined = groups.setdefault(rank.node, []), Sharers([rank], set(rank.cores))
        for group in [group_there for group_there in on_node if group_there.cores & joined.cores]:
            on_node.remove(group)
            joined.add(group)
        on_node.append(joined)
    merged = [group for on_node in groups.values() for group in on_node]
    return sorted(merged, key=lambda group: min(sharing.rank for sharing in group.ranks))


def of(ranks: list[Rank], comm: Communicator) -> list[str]:
    """All faults of this job, the same on all ranks."""
    alone = alone_by_mistake(comm.size)
    faults = [*([alone] if alone else []), *(line for group in sharers(ranks) for line in _of_cores(group))]
    faults += [f"{rank.host}: {rank.cache_fault}" for rank in ranks if rank.cache_fault]
    return list(dict.fromkeys(faults))


def notes(ranks: list[Rank]) -> list[str]:
    """Lines about ranks that are slower than they could be, although nothing is wrong; the same on all ranks."""
    return [
        f"{_shared(group)}, all that the machine has: that is slower, not wrong; fastest with at most "
        f"{counted(len(group.cores), 'rank')}"
        for group in sharers(ranks)
        if group.threads > len(group.cores) and group.fill_the_machine
    ]


def _shared(group: Sharers) -> str:
    """Host, threads, ranks and cores of a group with more threads than cores."""
    ranks, cores = counted(len(group.ranks), "rank"), counted(len(group.cores), "core")
    return f"{group.ranks[0].host}: {counted(group.threads, 'thread')} of {ranks} share {cores}"


def _of_cores(group: Sharers) -> Iterator[str]:
    """Faults of a group: ranks bound to one core by mistake, or more threads than cores."""
    rank, count, cores = group.ranks[0], len(group.ranks), len(group.cores)
    if group.threads <= cores or group.fill_the_machine:
        return
    if cores == 1 < min(count, rank.node_cores):
        yield (
            f"{rank.host}: {count} ranks are all bound to core {min(group.cores)}, of {rank.node_cores} cores: "
            "start with mpiexec --bind-to none or srun --cpu-bind=cores, and without taskset"
        )
        return
    if rank.threads == 1:
        remedy = f"start at most {cores} ranks there, or ask for more cores (srun --cpus-per-task)"
    else:
        remedy = f"leave --threads away, or give at most --threads {max(1, cores // count)}"
    yield f"{_shared(group)}: {remedy}"


GIB = 1 << 30
_MOST = 6  # machines or ranks listed by name


def rows(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows of the table: name and text."""
    package_versions = document["versions"]
    yield (
        "packages",
        ", ".join(f"{name} {package_versions[name]}" for name in package_versions if name not in ("cakernels", "mpi")),
    )
    none = "none can be loaded, so there is one rank only; for more: pip install 'cakernels[mpi]'"
    yield "MPI", none if package_versions["mpi"] == "none" else package_versions["mpi"]
    yield "processor", document["cpu"]
    yield from _places(document["ranks"])
    yield (
        "BLAS",
        ", ".join(
            f"{library_facts['name']} {library_facts['version']} (threads: {library_facts['threads']})"
            for library_facts in document["blas"]
        ),
    )
    library = document["scalapack"]
    yield "ScaLAPACK", library.get("path") or f"none; {library['missing']}"
    sizes = {name: size / GIB for name, size in document["memory"].items()}
    text = "{node:.1f} GiB per node, {free:.1f} of them free; {limit_per_rank:.1f} allowed per rank"
    yield "memory", text.format(**sizes)
    yield "numba's cache", _first_of({rank["cache"]: None for rank in document["ranks"] if rank["cache"]})
    yield "messages", _messages(document["messages"], len(document["ranks"]))
    for title, key, unit in (("matrix product", "product_gflop_s", "GFLOP/s"), ("memory copy", "copy_gb_s", "GB/s")):
        yield title, _rates([rank[key] for rank in document["ranks"]], unit)
    yield "this took", f"{document['seconds']:.1f} s"


def _places(ranks: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Rows about where the ranks run, and about their cores and threads."""
    nodes: dict[int, list[dict[str, Any]]] = {}
    for rank in ranks:
        nodes.setdefault(rank["node"], []).append(rank)
    hosts = {f"{len(there)} on {there[0]['host']}": None for there in nodes.values()}
    where = "" if len(nodes) == 1 else f" on {len(nodes)} nodes"
    yield "ranks", f"{len(ranks)}{where}: {_first_of(hosts)}"
    threads = sorted({rank["threads"] for rank in ranks})
    yield "threads", f"{' to '.join(str(t) for t in (threads[0], threads[-1])[: len(threads)])} per rank"
    bound = {f"rank {rank['rank']}: {intervals(rank['cores'])}": None for rank in ranks}
    free = all(len(rank["cores"]) == rank["node_cores"] for rank in ranks)
    cores = " or ".join(str(count) for count in sorted({rank["node_cores"] for rank in ranks}))
    yield "cores", f"{cores} per node; " + ("no rank is bound to a part of them" if free else _first_of(bound))


def _first_of(texts: dict[str, None]) -> str:
    hidden = len(texts) - _MOST
    return ", ".join(list(texts)[:_MOST]) + (f" and {hidden} more" if hidden > 0 else "")


def intervals(numbers: list[int]) -> str:
    """Ascending numbers as text, with runs joined, such as "0-3 8 10-11"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return " ".join("-".join(map(str, run)) for run in runs)


def _messages(measured: dict[str, float], count: int) -> str:
    if not measured:
        return "one rank sends none"
    between = f"rank 0 to rank {count - 1}: {measured['latency_us']:.3g} us, {measured['bandwidth_gb_s']:.3g} GB/s"
    return f"{between}; a sum over all ranks: {measured['allreduce_us']:.3g} us"


def _rates(values: list[float], unit: str) -> str:
    if len(values) == 1:
        return f"{values[0]:.3g} {unit}"
    least = min(values)
    return (
        f"{sum(values) / len(values):.3g} {unit} per rank, all at once; "
        f"the slowest, rank {values.index(least)}: {least:.3g}"
    )
