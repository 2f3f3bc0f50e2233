"""Weak and strong scaling on a simulated cluster of virtual ranks; see benchmarks/cluster.

python -m benchmarks weak-scaling [--methods NAME ...] [--ranks R ...] [--rows N] [--network NAME] [--up-to R ...]
python -m benchmarks strong-scaling [--methods NAME ...] [--ranks R ...] [--rows N] [--network NAME]
python -m benchmarks validate [--methods NAME ...] [--rows N]

Every rank's computation is really run, on one core, and timed alone. Messages are recorded, and a LogGP model of the
network combines both into a timeline. Rows are SYNTHETIC; for ridge regression, they have the shape of the Million Song
Dataset.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.cluster import exact, simgrid
from benchmarks.cluster.calibrate import this_machine
from benchmarks.cluster.company import company
from benchmarks.cluster.extrapolate import Load, at, loads
from benchmarks.cluster.programs import PHASES, PROGRAMS, Program, method_only
from benchmarks.cluster.timeline import replay
from benchmarks.plots import timeline
from benchmarks.race import least
from benchmarks.results import Record, Results, table
from benchmarks.synthetic_msd import FEATURES, block, shape_of
from cacore.machine import threads
from cacore.run import figures
from cakernels.plan.machine import PRESETS, Network

COLUMNS = {
    "method": "", "ranks": ",", "rows": ",", "how": "", "partition_seconds": ".4f", "train_seconds": ".4f",
    "predict_seconds": ".4f", "seconds": ".4f", "efficiency": ".3f", "iteration_efficiency": ".3f",
    "simgrid_seconds": ".4f", "memory_gib": ".2f",
}  # fmt: skip
TEST_ROWS = 2000


def generated(path: Path, rows: int, classes: bool) -> Path:
    """Write a native file of SYNTHETIC rows."""
    rng = np.random.default_rng(0)
    shape = shape_of(rng)
    X, y = block(rng, rows + TEST_ROWS, shape)
    if classes:
        y = np.where(y > np.median(y), 1.0, -1.0)
    with h5py.File(path, "w") as file:
        file.attrs["note"] = "SYNTHETIC"
        for split, some in (("train", slice(rows)), ("test", slice(rows, None))):
            file[f"{split}/X"], file[f"{split}/y"] = X[some], y[some]
    return path


def keep_memory() -> None:
    """Keep the memory that this process frees, so that a second run can reuse it.

    A virtual machine fetches fresh memory from its host: on some ranks, the first touch of the 32 MB matrix of a part
    of 2,000 rows took as long as its factorisation. Call it before another thread allocates memory, as those of
    scikit-learn's BLAS do when they start: from then on, glibc gives each thread memory of its own.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        trim_threshold, mmap_max, arena_max = -1, -4, -8
        for option, value in ((mmap_max, 0), (arena_max, 1), (trim_threshold, -1)):
            libc.mallopt(option, value)


def _measured(
    name: str, program: Program, data: Path, ranks: int, rows: int, network: Network, args: argparse.Namespace
) -> tuple[Record, dict[str, Load]]:  # fmt: skip
    """Record of one run on virtual ranks, and the loads for extrapolation."""
    traces = program.timed(data, ranks, args.repeats, args.memory)
    line = replay(traces, network)
    if args.timeline is not None:
        args.timeline.mkdir(parents=True, exist_ok=True)
        title, file = f"{name} on {ranks} virtual ranks, {rows:,} rows", f"{name}_{ranks}.png"
        figures.save(timeline(line, title), args.timeline / file.replace(", ", "_").replace(" ", "_"))
    found: Record = {"method": name, "ranks": ranks, "rows": rows, "how": "computed"}
    found |= {f"{phase}_seconds": line.phases.get(phase, 0.0) for phase in PHASES} | {"seconds": line.end}
    if args.simgrid:
        found["simgrid_seconds"] = simgrid.predicted(traces, network)
    return found, loads(traces)


def _extrapolated(name: str, runs: dict[int, dict[str, Load]], R: int, rows: int, network: Network) -> Record:
    found = {phase: load.seconds(network, R) for phase, load in at(runs, R).items()}
    record: Record = {"method": name, "ranks": R, "rows": rows, "how": "extrapolated"}
    record |= {f"{phase}_seconds": found.get(phase, 0.0) for phase in PHASES}
    return record | {"seconds": sum(found.values())}


def _exact(ranks: int, rows: int, network: Network, rate: float) -> Record:
    """Record of DKRR, by formula."""
    seconds, gib = exact.seconds(rows, FEATURES, ranks, rate, network), exact.memory(rows, ranks)
    fits = gib * network.ranks_per_node <= network.memory_per_node
    how = "formula" if fits else "formula; does not fit"
    return {"method": "dkrr", "ranks": ranks, "rows": rows, "how": how, "train_seconds": seconds, "seconds": seconds,
            "memory_gib": gib}  # fmt: skip


def _efficiencies(records: list[Record], weak: bool) -> None:
    """Add efficiencies relative to the fewest ranks of each method: of the total, and of one iteration."""
    for method in dict.fromkeys(record["method"] for record in records):
        mine = [record for record in records if record["method"] == method]
        base = mine[0]
        for record in mine:
            more = 1.0 if weak else record["ranks"] / base["ranks"]
            record["efficiency"] = base["seconds"] / record["seconds"] / more
            record["iteration_efficiency"] = _iteration(base) / _iteration(record) / more


def _iteration(record: Record) -> float:
    """Seconds after partitioning, which each further sigma and lambda would take (Table 3.3)."""
    return float(record["seconds"] - record.get("partition_seconds", 0.0))


def scaling(args: argparse.Namespace, weak: bool) -> Results:
    """Run the methods on virtual ranks, with constant rows per rank (weak) or constant rows in all (strong)."""
    network = replace(PRESETS[args.network], ranks_per_node=args.ranks_per_node, pauses=True)
    results = Results(
        "weak-scaling" if weak else "strong-scaling", about={"network": network.source, "data": "SYNTHETIC"}
    )
    rate = exact.rate() if "dkrr" in args.methods else 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name in args.methods:
            program, runs = PROGRAMS.get(name), {}
            for ranks in args.ranks:
                rows = args.rows * ranks if weak else args.rows
                if program is None:
                    results.add(**_exact(ranks, rows, network, rate))
                    continue
                if not weak and program.parts:
                    program = replace(program, parts=max(args.ranks) // ranks)
                data = Path(folder) / f"{program.package}_{rows}.h5"
                if not data.exists():
                    generated(data, rows, program.package == "casvm")
                record, runs[ranks] = _measured(name, program, data, ranks, rows, network, args)
                results.add(**record)
                print(f"  {name}, {ranks} ranks: {record['seconds']:.3f} s", flush=True)
            for R in args.up_to if weak else ():
                if program is None:
                    results.add(**_exact(R, args.rows * R, network, rate))
                elif len(runs) > 1:
                    results.add(**_extrapolated(name, runs, R, args.rows * R, network))
    _efficiencies(results.records, weak)
    return results


def validate(args: argparse.Namespace) -> Results:
    """Compare the model's seconds with those of mpiexec on 1, 2 and 4 ranks of this machine; the fastest runs count.

    While a rank is timed, as many ranks compute as would under mpiexec: see :mod:`benchmarks.cluster.company`.
    """
    results = Results("validate", about={"data": "SYNTHETIC"})
    here = this_machine(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in args.methods:
            program = PROGRAMS[name]
            for ranks in args.ranks:
                data = Path(folder) / f"{program.package}.h5"
                if not data.exists():
                    generated(data, args.rows, program.package == "casvm")
                if program.parts:
                    program = replace(program, parts=max(1, max(args.ranks) // ranks))
                network = replace(here, ranks_per_node=ranks)
                beside = min(ranks, here.cores_per_node) - 1
                with company(beside, name, program, data, ranks, args.memory):
                    program.virtual(data, ranks, 1, args.memory)  # compiles
                    runs = [method_only(program.virtual(data, ranks, 1, args.memory)) for _ in range(args.repeats)]
                ends = [replay(traces, network).end for traces in runs]
                real, busy = least(lambda run=(program, data, ranks): _seconds(run[0].real(*run[1:])), args.repeats)
                record: dict[str, Any] = {"method": name, "ranks": ranks, "rows": args.rows, "seconds": min(ends)}
                if args.simgrid:
                    record["simgrid_seconds"] = simgrid.predicted(runs[ends.index(min(ends))], network)
                results.add(**record, measured_seconds=real, ratio=min(ends) / real, others=busy)
                print(f"  {name}, {ranks} ranks: {min(ends):.3f} s, measured {real:.3f}, others {busy:.2f}", flush=True)
    return results


def _seconds(report: Record) -> float:
    """Seconds of the phases of a method, including the wait for other ranks at their ends."""
    return float(sum(report["seconds"][phase] for phase in PHASES))


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def parser(name: str) -> argparse.ArgumentParser:
    """Argument parser of one of the three commands."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=__doc__.splitlines()[0])
    few = [4, 8, 16, 32, 64] if name != "validate" else [1, 2, 4]
    methods = ["bkrr2", "kkrr2", "dkrr"] if name != "validate" else ["bkrr2", "kkrr2", "casvm", "cascade", "dissmo"]
    known = [*PROGRAMS, *([] if name == "validate" else ["dkrr"])]
    made.add_argument("--methods", nargs="+", choices=known, default=methods, metavar="NAME", help=", ".join(known))
    made.add_argument("--ranks", nargs="+", type=positive, default=few)
    rows = {"weak-scaling": 2000, "strong-scaling": 64_000, "validate": 8000}[name]
    made.add_argument("--rows", type=positive, default=rows, help="number of rows per rank (weak), or in all")
    made.add_argument("--repeats", type=positive, default=3,
                      help="number of runs after a warm-up; the smallest time of each computation counts")  # fmt: skip
    made.add_argument("--memory", type=float, default=4.0, help="GiB of memory per rank")
    made.add_argument("--simgrid", action=argparse.BooleanOptionalAction, default=simgrid.installed(),
                      help="also run SimGrid (default: if smpirun is installed)")  # fmt: skip
    if name != "validate":
        made.add_argument("--network", choices=PRESETS, default="aries")
        made.add_argument("--ranks-per-node", type=positive, default=1, help="ranks per node (1: as in the thesis)")
        made.add_argument("--timeline", type=Path, metavar="FOLDER", help="folder for plots of every run's timeline")
    if name == "weak-scaling":
        made.add_argument(
            "--up-to", nargs="*", type=positive, default=[1024, 65_536], help="numbers of ranks to extrapolate to"
        )
    return made


def run(name: str, argv: list[str]) -> Results:
    """Run one of the three commands, print its table, and return the results."""
    args = parser(name).parse_args(argv)
    threads.set_threads(1)  # a rank computes on one core
    if name != "validate":  # jobs under mpiexec also touch fresh memory
        keep_memory()
    results = validate(args) if name == "validate" else scaling(args, name == "weak-scaling")
    columns = COLUMNS if name != "validate" else {
        "method": "", "ranks": "", "rows": ",", "seconds": ".3f", "simgrid_seconds": ".3f", "measured_seconds": ".3f",
        "ratio": ".2f", "others": ".2f"}  # fmt: skip
    print(table(results.records, columns))
    return results
