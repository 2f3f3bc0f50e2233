"""The layout of a training, and short runs of its command on few rows, from whose reports a plan is made.

1. :class:`JobLayout` and :class:`Workload`: rows, parts, ranks and threads; the method with its options.
2. :class:`SampleSource`: rows for the short runs, from a file or generated.
3. :class:`Trials`: the short runs.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, in_memory
from cacore.errors import InputError
from cacore.learn.method import Method, method_names
from cacore.linalg.tsqr import leaves_of

_HOMES = {name: package for package in ("cakrr", "casvm") for name in method_names(package)}
METHODS = tuple(_HOMES)


class Kind(Enum):
    """How the work of a method depends on the layout."""

    RIDGE_PARTS = "one ridge system per part"
    SVM_PARTS = "one SVM per part"
    SYSTEM = "one ridge system of all rows"
    TREE = "a tree of merged SVMs"
    SHARED = "one SVM of all rows"
    POINTS = "least squares on M points"

    @property
    def in_parts(self) -> bool:
        """True if parts are trained independently of each other."""
        return self in (Kind.RIDGE_PARTS, Kind.SVM_PARTS)


def method_named(name: str) -> Method:
    """The record of a method.

    Raises
    ------
    InputError
        There is no such method.
    """
    if name not in _HOMES:
        raise InputError(f"METHOD {name}: choose one of {', '.join(METHODS)}")
    method: Method = import_module(f"{_HOMES[name]}.{name}").METHOD
    return method


def kind_of(method: Any, options: Any) -> Kind:
    """Kind of a training by this method with these options."""
    if method.name == "subset":
        return Kind.POINTS
    if method.package == "cakrr":
        return Kind.RIDGE_PARTS if method.partitioner else Kind.SYSTEM
    if getattr(options, "exact", False) or getattr(method, "whole", False):
        return Kind.SHARED
    return Kind.TREE if getattr(method, "merge", "") else Kind.SVM_PARTS


@dataclass(frozen=True)
class Workload:
    """The training that is planned, apart from its layout.

    Attributes
    ----------
    method : Method
    options : RidgeOptions, SubsetOptions, SVMOptions or ValueOptions
    itemsize : int
        Bytes per number of the rows.
    density : float
        Share of the features that are stored.
    """

    method: Method
    options: Any
    itemsize: int = 8
    density: float = 1.0

    @property
    def kind(self) -> Kind:
        """How the work depends on the layout."""
        return kind_of(self.method, self.options)


@dataclass(frozen=True)
class JobLayout:
    """Rows, parts, ranks and threads of one training.

    Attributes
    ----------
    n, d : int
        Number of training rows and of features.
    parts : int
        P; 1 for methods of one problem.
    ranks : int
        R.
    ranks_per_node : int
    threads : int
        Threads per rank.
    centers : tuple of int
        Numbers of points that least squares on M points compares, ascending; empty for other methods.
    coarse : int
        Largest number of centres of a coarse model; 0 for methods without one.
    """

    n: int
    d: int
    parts: int
    ranks: int
    ranks_per_node: int
    threads: int
    centers: tuple[int, ...] = ()
    coarse: int = 0

    @property
    def points(self) -> int:
        """M, the largest number of points; 0 for other methods."""
        return max(self.centers, default=0)

    @property
    def leaves(self) -> int:
        """Number of leaves into which least squares on M points cuts the rows; at most as many ranks work."""
        return leaves_of(self.n, self.points + 2)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return ceil(self.ranks / self.ranks_per_node)

    @property
    def rows_per_rank(self) -> float:
        """Rows that a rank reads, n/R."""
        return self.n / self.ranks

    @property
    def part(self) -> float:
        """Rows per part, n/P."""
        return self.n / self.parts

    @property
    def parts_per_rank(self) -> int:
        """Parts of the busiest rank."""
        return ceil(self.parts / self.ranks)


COPIES = 3  # of the rows that are in memory while rows are generated and a sample of them is written
_CLUSTERS = 12
_NOISE = 0.1


@dataclass(frozen=True)
class SampleSource:
    """Rows from which samples of any size are drawn.

    Attributes
    ----------
    X : ndarray or CSR, shape (n, d)
    y : ndarray, shape (n,) or (n, t)
    """

    X: Rows
    y: NDArray[Any]

    def write(self, path: Path, n: int, dtype: str) -> None:
        """Write n rows, drawn at random, in the native layout; rows repeat, slightly shifted, if there are fewer."""
        import h5py

        from cacore.io.native import write_rows

        rng = np.random.default_rng(n)
        count = self.X.shape[0]
        chosen = rng.permutation(count)[:n] if n <= count else rng.integers(count, size=n)
        X = self.X[chosen].astype(dtype)
        if n > count and isinstance(X, np.ndarray):
            X += 0.01 * X.std(axis=0) * rng.normal(size=X.shape)
        with h5py.File(path, "w") as file:
            group = file.create_group("train")
            write_rows(group, "X", X)
            group["y"] = self.y[chosen]


def generated(n: int, d: int, classes: bool, seed: int = 0) -> SampleSource:
    """Clustered rows with a smooth target, or two classes that overlap, whose boundary is smooth."""
    rng = np.random.default_rng([seed, d])
    centers, waves = rng.uniform(size=(_CLUSTERS, d)), rng.normal(size=(d, 3)) * 6 / np.sqrt(d)
    X = centers[rng.integers(_CLUSTERS, size=n)] + rng.normal(scale=0.15, size=(n, d))
    y = np.sin(X @ waves).sum(axis=1) + rng.normal(scale=_NOISE, size=n)
    return SampleSource(X, np.where(y > np.median(y), 1.0, -1.0) if classes else y)


def of_file(path: Path, target: str | None, limit: int, text: bool) -> SampleSource:
    """All training rows of a data file; labels become whole numbers."""
    from cacore.io import load
    from cacore.io.table import LABELS, Targets

    wanted = LABELS if text else Targets(many=True)
    splits = load(path, Communicator(), "float64", target, limit=limit, wanted=wanted, training=True)
    rows = splits.get("train", next(iter(splits.values())))
    y = rows.target()
    return SampleSource(in_memory(rows.X), np.unique(y, return_inverse=True)[1].astype(np.float64) if text else y)


# -- short runs ----------------------------------------------------------------------------------------

# Sizes and times of the short runs; reasoned, and checked together by the table of docs/plan.md.
_FEWEST = 250  # rows per part of the first run, and per rank of a run without parts
_WIDE = 256  # most parts of the run that tells what dividing the rows into many parts costs
_WIDE_PART = 16  # rows per part of that run
_FEWEST_POINTS, _ROWS_PER_POINT = 125, 16  # of the first run of least squares on M points, per rank
_REPEATS, _BRIEF = 3, 0.1  # runs of the job itself, if one takes at most this share of the time: a median of three
_PATIENCE = 120.0  # seconds that a run may take, besides four times the time for all of them, ...
_LONGEST = 1e6  # ... at most
# Runs that tell how bytes and messages grow with the ranks and rows: numbers of ranks, and factors of the rows.
_COUNTED = ((4, 1), (2, 1), (2, 2))
STARTED = ("start", "compile", "other", "wait", "write")  # phases that do not depend on the rows, reported as one
PHASES = ("start", "read", "partition", "search", "train", "predict")


def mpiexec() -> str | None:
    """Program that starts ranks: in PATH, or beside the interpreter of an environment that is not activated."""
    return shutil.which("mpiexec") or shutil.which("mpiexec", path=str(Path(sys.executable).parent))


@dataclass(frozen=True)
class Ran:
    """A run, and its report.

    Attributes
    ----------
    layout : JobLayout
    report : dict
    busy : float
        Processor seconds per elapsed second, at most 1. A run on one rank computes all the time, so what is missing to
        1 is time that other programs had.
    """

    layout: JobLayout
    report: dict[str, Any]
    busy: float = 1.0

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds of each of :data:`PHASES`, of the slowest rank."""
        phases = dict(self.report["seconds"])
        return {"start": sum(phases.get(name, 0.0) for name in STARTED)} | {
            phase: float(phases.get(phase, 0.0)) for phase in PHASES[1:]
        }

    def undisturbed(self, phase: str) -> float:
        """Seconds of a phase without the time that other programs had."""
        return self.busy * self.seconds[phase]

    @property
    def work(self) -> float:
        """Seconds of the phases that depend on the rows."""
        return sum(self.seconds.values()) - self.seconds["start"]

    @property
    def peak(self) -> float:
        """Largest peak memory of a rank, in bytes."""
        return float(max(self.report["memory"]["peak_rss_mib"])) * (1 << 20)

    @property
    def largest(self) -> float:
        """Rows of the largest part over the mean."""
        sizes = self.report["partition_sizes"]
        return float(max(sizes) * len(sizes) / sum(sizes)) if sum(sizes) else 1.0

    def sent(self, what: str) -> dict[str, float]:
        """Bytes or messages of each phase, over all ranks."""
        return {phase: float(counts[what]) for phase, counts in self.report["comm"].items()}


@dataclass
class Trials:
    """The short runs of one method.

    Attributes
    ----------
    prog : str
        ``python -m PROG`` trains.
    words : sequence of str
        Options of the method.
    source : SampleSource
    dtype : str
    folder : Path
        For data files and reports.
    seconds : float
        Time for all runs; no further one begins if it would take longer.
    tell : callable
        Called with a line before each run.
    """

    prog: str
    words: Sequence[str]
    source: SampleSource
    dtype: str
    folder: Path
    seconds: float
    tell: Callable[[str], None] = lambda line: None
    runs: list[Ran] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begun = time.monotonic()

    def run(self, layout: JobLayout) -> Ran:
        """Train once with this layout.

        Raises
        ------
        InputError
            The command refuses its options or rows, with its own message; or it fails.
        """
        self.tell(f"{layout.n:,} rows, {layout.parts:,} parts, {layout.ranks:,} ranks")
        data, report = self.folder / f"{layout.n}.h5", self.folder / "report.json"
        if not data.exists():
            self.source.write(data, layout.n, self.dtype)
        launcher = [str(mpiexec()), "-n", str(layout.ranks)] if layout.ranks > 1 else []
        parts = ["--partitions", str(layout.parts)] if layout.parts > 1 else []
        command = [
            *launcher, sys.executable, "-m", self.prog, str(data), *parts, "--threads", str(layout.threads),
            "--dtype", self.dtype, "--report", str(report), "--quiet", *self.words,
        ]  # fmt: skip
        if layout.centers:  # the last one counts
            command += ["--centers", ",".join(map(str, layout.centers))]
        patience = min(_PATIENCE + 4 * self.seconds, _LONGEST)
        begun, worked = time.monotonic(), _processor_seconds()
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"a run with {layout.n:,} rows took more than {patience:.0f} s: --within a longer time"
            ) from None
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
            raise InputError(f"a run with {layout.n:,} rows failed: {last}")
        # Ranks wait for each other, and the first run for files that nothing has read yet: neither is load.
        quiet = layout.ranks > 1 or not self.runs
        busy = 1.0 if quiet else min(1.0, (_processor_seconds() - worked) / (time.monotonic() - begun))
        self.runs.append(Ran(layout, json.loads(report.read_text()), busy))
        return self.runs[-1]

    def all(self, job: JobLayout, kind: Kind, max_ranks: int) -> list[Ran]:
        """The runs from which a plan of `job` follows, on at most `max_ranks` ranks each."""
        for layout in self._growing(job, kind, max_ranks):
            self.run(layout)
        if self.runs[1:]:
            self.runs[0] = replace(self.runs[0], busy=self.runs[1].busy)
        grown = self.runs[-1]
        for layout in _others(job, kind, self.runs):
            self.run(layout)
        while job.ranks <= max_ranks and self._worth_running(grown, job):
            self.run(job)
        return self.runs

    def _worth_running(self, grown: Ran, job: JobLayout) -> bool:
        """True if there is time to run the job itself, judged by a run; or, if it is brief, to run it again."""
        same_runs = of_job(self.runs, job)
        if not same_runs:
            return self._remaining() > _longest(grown, job)
        took = sum(same_runs[-1].seconds.values())
        return len(same_runs) < _REPEATS and took < min(_BRIEF * self.seconds, self._remaining())

    def _remaining(self) -> float:
        """Seconds that are left for further runs."""
        return self.seconds - (time.monotonic() - self._begun)

    def _growing(self, job: JobLayout, kind: Kind, max_ranks: int) -> Iterator[JobLayout]:
        """Twice as many rows each time, up to the job's, or to the end of the time."""
        if kind is Kind.POINTS:
            yield from self._of_more_points(job, min(job.ranks, max_ranks))
            return
        ranks = min(job.ranks, max_ranks)
        held = min(job.parts_per_rank, 2 * job.threads) if kind.in_parts or kind is Kind.TREE else 0
        part = _FEWEST
        while True:
            whole = held > 0 and part >= job.part
            n = ceil(job.part) * held * ranks if whole else part * max(1, held) * ranks
            n, last = min(n, job.n), whole or n >= job.n
            yield replace(job, n=n, parts=max(1, held * ranks), ranks=ranks, ranks_per_node=ranks)
            before = self.runs[-1].work
            if last or (len(self.runs) >= 2 and self.runs[-1].seconds["start"] + 8 * before > self._remaining()):
                return
            part *= 2 if before > 0.02 * self.seconds or held else 4

    def _of_more_points(self, job: JobLayout, ranks: int) -> Iterator[JobLayout]:
        """Four times the rows and twice the points in turn, up to the job's, or to the end of the time."""
        points, n = min(job.points, _FEWEST_POINTS), _ROWS_PER_POINT * _FEWEST_POINTS * ranks
        while True:
            n = min(job.n, n)
            layout = with_points(replace(job, n=n, ranks=ranks, ranks_per_node=ranks), points)
            yield layout
            before = self.runs[-1].work
            if (n, points) == (job.n, job.points) or (
                len(self.runs) > 3 and self.runs[-1].seconds["start"] + 8 * before > self._remaining()
            ):
                return
            if (len(self.runs) % 2 and points < job.points) or n == job.n:
                points = min(job.points, 2 * points)
            else:
                n *= 4


def _processor_seconds() -> float:
    """Processor seconds of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def with_points(layout: JobLayout, points: int) -> JobLayout:
    """The layout with at most so many points; numbers of points that are compared keep their ratios."""
    share = points / layout.points
    return replace(layout, centers=tuple(sorted({max(1, round(share * count)) for count in layout.centers})))


def of_job(runs: Sequence[Ran], job: JobLayout) -> list[Ran]:
    """Runs of the job itself."""
    return [run for run in runs if replace(run.layout, ranks_per_node=job.ranks_per_node) == job]


def _longest(run: Ran, job: JobLayout) -> float:
    """Most seconds that the job takes, judged by a run: a rank's parts in turn, each with the cube of its rows."""
    grown = (job.part / run.layout.part) ** 3 * job.parts_per_rank / run.layout.parts_per_rank
    if job.centers:
        grown = job.n / run.layout.n * (job.points / run.layout.points) ** 3
    return run.seconds["start"] + run.work * max(1.0, grown)


def _others(job: JobLayout, kind: Kind, runs: Sequence[Ran]) -> Iterator[JobLayout]:
    """Runs with many parts, on one rank, and on several ranks, as far as the job needs them."""
    first, last = runs[0].layout, runs[-2:][0].layout
    # Runs of one rank need all of them; runs of several ranks one more number of ranks.
    counted: Sequence[tuple[int, int]] = (
        _COUNTED if first.ranks == 1 else _COUNTED[:1] if first.ranks != 4 else _COUNTED[1:2]
    )
    counted = counted if job.ranks > 1 and mpiexec() else ()
    if kind.in_parts and job.parts > 4 * first.parts:
        parts = min(job.parts, max(_WIDE, first.ranks))
        yield replace(first, n=min(job.n, parts * _WIDE_PART), parts=parts)
    if kind is Kind.POINTS:
        for ranks, times in counted:
            layout = replace(first, n=min(job.n, times * first.n), ranks=ranks, ranks_per_node=ranks, threads=1)
            yield with_points(layout, min(job.points, times * first.points))
        return
    if first.ranks > 1 and not kind.in_parts and job.ranks > first.ranks:
        yield replace(last, ranks=1, ranks_per_node=1)
    for ranks, times in counted:
        n, parts = times * max(first.n, ranks * 50), max(first.parts, ranks) if kind.in_parts else 1
        yield replace(first, n=min(job.n, n), parts=parts, ranks=ranks, ranks_per_node=ranks, threads=1)
