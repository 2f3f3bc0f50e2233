"""Short runs of a method's own command on few rows, from whose reports a plan is made."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

from cacore.errors import InputError
from cakernels.plan.layout import JobLayout, Kind, SampleSource

_FEWEST = 250  # rows per part of the first run, and per rank of a run without parts
_WIDE = 256  # most parts of the run that tells what dividing the rows into many parts costs
_WIDE_PART = 16  # rows per part of that run
_FEWEST_POINTS, _ROWS_PER_POINT = 125, 16  # of the first run of least squares on M points, per rank
_REPEATS, _BRIEF = 3, 0.1  # runs of the job itself, if one takes at most this share of the time
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
    """

    layout: JobLayout
    report: dict[str, Any]

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds of each of :data:`PHASES`, of the slowest rank."""
        phases = dict(self.report["seconds"])
        return {"start": sum(phases.get(name, 0.0) for name in STARTED)} | {
            phase: float(phases.get(phase, 0.0)) for phase in PHASES[1:]
        }

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
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"a run with {layout.n:,} rows took more than {patience:.0f} s: --within a longer time"
            ) from None
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
            raise InputError(f"a run with {layout.n:,} rows failed: {last}")
        self.runs.append(Ran(layout, json.loads(report.read_text())))
        return self.runs[-1]

    def all(self, job: JobLayout, kind: Kind, max_ranks: int) -> list[Ran]:
        """The runs from which a plan of `job` follows, on at most `max_ranks` ranks each."""
        for layout in self._growing(job, kind, max_ranks):
            self.run(layout)
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
    if kind.in_parts and job.parts > 4 * first.parts:
        parts = min(job.parts, max(_WIDE, first.ranks))
        yield replace(first, n=min(job.n, parts * _WIDE_PART), parts=parts)
    if kind is Kind.POINTS:
        if job.ranks > 1 and mpiexec():
            for ranks, times in _COUNTED if first.ranks == 1 else _COUNTED[:1] if first.ranks != 4 else _COUNTED[1:2]:
                layout = replace(first, n=min(job.n, times * first.n), ranks=ranks, ranks_per_node=ranks, threads=1)
                yield with_points(layout, min(job.points, times * first.points))
        return
    if first.ranks > 1 and not kind.in_parts and job.ranks > first.ranks:
        yield replace(last, ranks=1, ranks_per_node=1)
    if job.ranks > 1 and mpiexec():
        for ranks, times in _COUNTED if first.ranks == 1 else _COUNTED[:1] if first.ranks != 4 else _COUNTED[1:2]:
            n, parts = times * max(first.n, ranks * 50), max(first.parts, ranks) if kind.in_parts else 1
            yield replace(first, n=min(job.n, n), parts=parts, ranks=ranks, ranks_per_node=ranks, threads=1)
