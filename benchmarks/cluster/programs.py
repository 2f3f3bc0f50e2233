"""The programs whose scaling is measured: commands with options, on virtual ranks and under mpiexec."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cluster.trace import Trace
from benchmarks.cluster.world import World
from cacore.comm import Communicator

PHASES = ("partition", "train", "predict")  # phases of a method; reading and compiling depend on the machine


@dataclass(frozen=True)
class Program:
    """A method's command.

    Attributes
    ----------
    package, method : str
        The command is ``python -m PACKAGE.METHOD``.
    options : tuple of str
    parts : int
        Parts per rank; 0 for methods without parts.
    """

    package: str
    method: str
    options: tuple[str, ...] = ()
    parts: int = 1

    @property
    def name(self) -> str:
        """Name for tables."""
        return self.method if self.parts < 2 else f"{self.method}, {self.parts} parts a rank"

    def arguments(self, data: Path, ranks: int) -> list[str]:
        """Arguments after the name of the module."""
        divided = ["--partitions", str(self.parts * ranks)] if self.parts else []
        return [str(data), *divided, *self.options, "--threads", "1", "--allow-overlap", "--quiet"]

    def virtual(
        self, data: Path, ranks: int, repeats: int, limit: float, words: Sequence[str] = ()
    ) -> list[Trace]:  # fmt: skip
        """Trace of every virtual rank, with the smallest time of each computation over `repeats` runs.

        `limit` is the memory of a rank in GiB; `words` are further options.
        """
        work = self.work(data, ranks, limit, words)
        return least([World(ranks).run(work) for _ in range(repeats)])

    def work(
        self, data: Path, ranks: int, limit: float, words: Sequence[str] = ()
    ) -> Callable[[Communicator], None]:  # fmt: skip
        """The command as a function of a rank's communicator."""
        method = importlib.import_module(f"{self.package}.{self.method}").METHOD
        command = importlib.import_module(f"{self.package}.command")
        argv = [*self.arguments(data, ranks), "--memory-limit", str(limit), *words]

        def work(comm: Communicator) -> None:
            command.train(method, comm, argv)

        return work

    def timed(self, data: Path, ranks: int, repeats: int, limit: float, words: Sequence[str] = ()) -> list[Trace]:
        """Trace of every virtual rank, as :meth:`virtual` has it, restricted to the method.

        One more run comes first and is not counted: it compiles, and fetches fresh memory.
        """
        self.virtual(data, ranks, 1, limit, words)
        return method_only(self.virtual(data, ranks, repeats, limit, words))

    def real(self, data: Path, ranks: int) -> dict[str, Any]:
        """Run under mpiexec and return the report."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            command = [sys.executable, "-m", f"{self.package}.{self.method}", *self.arguments(data, ranks)]
            subprocess.run(["mpiexec", "-n", str(ranks), *command, "--report", str(report)], check=True, timeout=3600)
            found: dict[str, Any] = json.loads(report.read_text())
            return found


def least(runs: list[list[Trace]]) -> list[Trace]:
    """Traces with the smallest time of each computation over several runs, to exclude other load on the machine."""
    first = runs[0]
    for run in runs[1:]:
        if [[step.call for step in trace] for trace in run] != [[step.call for step in trace] for trace in first]:
            raise ValueError("two runs of the same program made different calls")
    return [
        [replace(steps[0], seconds=min(step.seconds for step in steps)) for steps in zip(*traces, strict=True)]
        for traces in zip(*runs, strict=True)
    ]


def method_only(traces: list[Trace]) -> list[Trace]:
    """Traces restricted to the steps in PHASES, without reading, compiling and writing."""
    return [[step for step in trace if step.phase in PHASES] for trace in traces]


KRR = ("--sigma", "3", "--lambda", "1e-4")
SVM = ("--C", "1", "--gamma", "scale")
PROGRAMS = {
    one.name: one
    for one in (
        *(Program("cakrr", name, KRR) for name in ("bkrr2", "kkrr2", "dckrr")),
        Program("cakrr", "kkrr2", KRR, 8),
        Program("casvm", "dissmo", SVM, 0),
        *(Program("casvm", name, SVM) for name in (
            "cascade", "dcsvm", "dcfilter", "cpsvm", "bkmsvm", "fcfssvm", "casvm")),
    )
}  # fmt: skip
