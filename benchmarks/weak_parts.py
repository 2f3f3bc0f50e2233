"""Weak scaling with parts of a realistic size, to 256 virtual ranks; some parts are trained, and stand for the others.

python -m benchmarks weak-parts [--methods NAME ...] [--ranks R ...] [--rows M] [--train N] [--repeats K]

Every rank has one part: 20,000 rows for an SVM, 8,000 for ridge regression. All ranks divide, exchange, combine and
predict, each on its own rows. Only `--train` random parts, and any that is larger than these, are trained. Each other
part takes the coefficients of a trained one, so that it predicts as much, and is charged the time of the slowest
trained part. Reading is not counted; everything else is. Rows are SYNTHETIC, in the shape of the Million Song Dataset.

Test rows: a tenth of the training rows where a row goes to one rank; where every rank answers for every row, a tenth of
the rows of one part.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.cluster.programs import KRR, PHASES, SVM, Program, least, method_only
from benchmarks.cluster.timeline import replay
from benchmarks.cluster.trace import Trace
from benchmarks.cluster.world import World
from benchmarks.race import copy_rate, machine_rate
from benchmarks.results import Record, Results, table
from benchmarks.scaling import keep_memory, positive
from benchmarks.synthetic_msd import FEATURES, block, shape_of
from cacore.data.dataset import Samples
from cacore.io.native import created
from cacore.machine import threads
from cacore.run import command
from cakernels.plan.machine import PRESETS, Network
from cakrr.methods.task import RidgeTask
from cakrr.solver.local import Workspace
from casvm.tasks import ClassesTask

Kept = dict[str, NDArray[Any]]

COLUMNS = {
    "method": "", "ranks": "", "rows": ",", "test_rows": ",", "trained": "", "partition_seconds": ".3f",
    "train_seconds": ".3f", "predict_seconds": ".3f", "seconds": ".3f", "efficiency": ".3f", "calls": "", "MB": ",.1f",
}  # fmt: skip
_BLOCK = 50_000  # rows that are generated at a time
_LARGER = 1.02  # a part with this many times the rows of all trained ones is trained, too
_TOUCHED = 5  # GiB of memory that are fetched from the host before anything is timed


@dataclass(frozen=True)
class Case:
    """A method, the rows of a part, and how many rows are predicted: a share of all rows, or of one part's."""

    program: Program
    rows: int
    everywhere: bool = False
    dtype: str = "float64"

    def test_rows(self, rows: int, ranks: int) -> int:
        """Number of test rows for parts of `rows` rows."""
        return rows // 10 * (1 if self.everywhere else ranks)


CASES = {
    "casvm": Case(Program("casvm", "casvm", (*SVM, "--dtype", "float32")), 20_000, True, "float32"),
    "casvm-nearest": Case(
        Program("casvm", "casvm", (*SVM, "--dtype", "float32", "--route", "nearest")), 20_000, False, "float32"
    ),
    "bkrr2": Case(Program("cakrr", "bkrr2", KRR), 8_000),
}


class StandIns:
    """Training of some parts on virtual ranks; the others take what it returned.

    Parameters
    ----------
    ranks, count : int
        Number of ranks, and of random ones whose part is trained.
    """

    def __init__(self, ranks: int, count: int) -> None:
        self.chosen = set(np.random.default_rng(0).permutation(ranks)[:count].tolist())
        self.trained: dict[int, int] = {}  # step of each such rank's trace
        self.standing: dict[int, int] = {}
        self._traces: list[Trace] = []
        self._largest, self._example = 0, Kept()

    @contextmanager
    def on(self, world: World) -> Iterator[None]:
        """Context in which the ranks of `world` train few parts."""
        svm, krr = ClassesTask.solve, RidgeTask.solve
        self._traces, self._largest = world.traces, 0
        self.trained.clear()
        self.standing.clear()

        def classes(task: ClassesTask, number: int, rows: Samples, side_by_side: int) -> Kept:
            arrays = self._solved(len(rows), lambda: svm(task, number, rows, side_by_side))
            return arrays | {"places": arrays["places"] % len(rows)}

        def values(task: RidgeTask, number: int, rows: Samples, side_by_side: int) -> Kept:
            m, freed = len(rows), copy(task)
            # A matrix of its own, which is freed at once.
            freed.division = replace(task.division, workspace=Workspace(m, task.division.workspace.dtype))
            arrays = self._solved(m, lambda: krr(freed, number, rows, side_by_side))
            return arrays | {"alpha": np.resize(arrays["alpha"], m)}

        with (
            patch.object(ClassesTask, "solve", classes), patch.object(RidgeTask, "solve", values),
            patch.object(command, "compiled_ahead"),  # which trains a small part
        ):  # fmt: skip
            yield

    def _solved(self, rows: int, work: Callable[[], Kept]) -> Kept:
        rank = int(threading.current_thread().name)
        trains = rank in self.chosen or rows > _LARGER * self._largest
        (self.trained if trains else self.standing)[rank] = len(self._traces[rank])
        if trains:
            self._largest, self._example = max(rows, self._largest), work()
        return self._example

    def charged(self, traces: list[Trace]) -> list[Trace]:
        """The traces, in which ranks with a part that was not trained compute as long as the slowest that did."""
        slowest = max(traces[rank][step].seconds for rank, step in self.trained.items())
        made = [list(trace) for trace in traces]
        for rank, step in self.standing.items():
            made[rank][step] = replace(made[rank][step], seconds=slowest)
        return made


def generated(path: Path, rows: int, tested: int, case: Case) -> Path:
    """Write a native file of SYNTHETIC rows, block by block."""
    rng = np.random.default_rng(0)
    shape, middle = shape_of(rng), 0.0
    with created(path) as file:
        file.attrs["note"] = "SYNTHETIC"
        for split, n in (("train", rows), ("test", tested)):
            X = file.create_dataset(f"{split}/X", (n, FEATURES), case.dtype)
            y = file.create_dataset(f"{split}/y", (n,), np.float64)
            for lo in range(0, n, _BLOCK):
                X[lo : lo + _BLOCK], values = block(rng, min(_BLOCK, n - lo), shape)
                middle = middle or float(np.median(values))
                y[lo : lo + _BLOCK] = (
                    np.where(values > middle, 1.0, -1.0) if case.program.package == "casvm" else values
                )
    return path


def measured(
    name: str, data: Path, ranks: int, rows: int, network: Network, args: argparse.Namespace
) -> Record:  # fmt: skip
    """Record of one run on virtual ranks, the smallest time of each computation over the repeats."""
    case, some, runs = CASES[name], StandIns(ranks, args.train), []
    work = case.program.work(data, ranks, args.memory)
    for _ in range(args.repeats):
        world = World(ranks)
        with some.on(world):
            runs.append(world.run(work))
    traces = method_only(some.charged(least(runs)))
    line = replay(traces, network)
    return {
        "method": name, "ranks": ranks, "rows": rows, "test_rows": case.test_rows(rows // ranks, ranks),
        "trained": len(some.trained), **{f"{phase}_seconds": line.phases.get(phase, 0.0) for phase in PHASES},
        "seconds": line.end, "calls": max(sum(bool(step.call) for step in trace) for trace in traces),
        "MB": sum(step.nbytes for trace in traces for step in trace) / 1e6,
    }  # fmt: skip


def weak(args: argparse.Namespace) -> Results:
    """Run the methods on virtual ranks with constant rows per rank."""
    network = replace(PRESETS[args.network], pauses=True)
    results = Results("weak-parts", about={"network": network.source, "data": "SYNTHETIC"})
    for name in args.methods:
        case, rows, first = CASES[name], args.rows or CASES[name].rows, None
        for ranks in args.ranks:
            with tempfile.TemporaryDirectory() as folder:
                if first is None:  # compile
                    small = generated(Path(folder) / "small.h5", 2_000, 200, case)
                    World(2).run(case.program.work(small, 2, args.memory))
                data = generated(Path(folder) / "rows.h5", rows * ranks, case.test_rows(rows, ranks), case)
                record = measured(name, data, ranks, rows * ranks, network, args)
            first = first or record["seconds"]
            results.add(**record, efficiency=first / record["seconds"])
            print(
                f"  {name}, {ranks} ranks: {record['seconds']:.3f} s; machine {machine_rate():.0f} GFLOP/s, "
                f"{copy_rate():.1f} GB/s",
                flush=True,
            )
    return results


def touch(gib: float) -> None:
    """Fetch so much memory from the host, which :func:`keep_memory` keeps; print a line if it could not."""
    held = [np.ones(1 << 24) for _ in range(int(gib * 8))]
    held.clear()
    fetched = threading.Thread(target=_again)
    fetched.start()
    fetched.join()


def _again() -> None:
    """Use 128 MiB again in another thread, as ranks will."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(1 << 24)
    if resource.getrusage(resource.RUSAGE_SELF).ru_minflt > before + 32:
        print("note: memory is not kept, so seconds include its first touch")


def run(argv: list[str]) -> Results:
    """Run the command, print its table, and return the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks weak-parts", description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=CASES, default=["casvm", "bkrr2"])
    parser.add_argument("--ranks", nargs="+", type=positive, default=[1, 4, 16, 64, 256])
    parser.add_argument("--rows", type=positive, help="rows per part (default: 20,000 for casvm, 8,000 for bkrr2)")
    parser.add_argument("--train", type=positive, default=8, help="random parts that are trained (default: 8)")
    parser.add_argument("--repeats", type=positive, default=2, help="the smallest time of each computation counts")
    parser.add_argument("--memory", type=float, default=4.0, help="GiB of memory per rank")
    parser.add_argument("--network", choices=PRESETS, default="aries")
    args = parser.parse_args(argv)
    threads.set_threads(1)  # a rank computes on one core
    keep_memory()
    touch(_TOUCHED)
    results = weak(args)
    print(table(results.records, COLUMNS))
    return results
