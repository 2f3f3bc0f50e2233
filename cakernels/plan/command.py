"""``cakernels plan METHOD``: what a training would take, as a table and a job script, before it is started."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacore import checks
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.files import check_writable, printing
from cacore.learn.options import add_options, from_arguments, option
from cacore.machine import memory
from cacore.progress import spinner
from cacore.run.launch import Job, Parser, Training, run_alone, start
from cacore.terminal import say
from cakernels.plan import runs
from cakernels.plan.runs import METHODS, JobLayout, Kind, SampleSource, Workload, method_named, mpiexec

if TYPE_CHECKING:
    from cacore.learn.method import Method
    from cakernels.plan.machine import Machine
    from cakernels.plan.plan import Plan


QUEUES = ("slurm", "pbs", "lsf")
# Factors of the planned seconds and memory in a job script, since a job that needs more is killed: the plans of
# docs/plan.md are within 0.80 to 1.48 of the measured seconds, and 0.93 to 1.05 of the memory. Starting takes longer on
# a shared file system, hence the further seconds.
_MARGIN, _FURTHER = 1.5, 600.0
_ROOM = 1.25


def script(queue: str, layout: JobLayout, seconds: float, peak: float, command: str) -> str:
    """A job script that runs `command` with this layout.

    Parameters
    ----------
    queue : {"slurm", "pbs", "lsf"}
    layout : JobLayout
    seconds : float
        Planned time; the script asks for half as much again and ten minutes.
    peak : float
        Planned memory per rank in bytes; the script asks for a quarter more.
    command : str

    Notes
    -----
    srun starts ranks by the interface that the cluster has set up; MPI_TYPE names another one (``srun --mpi=list``).
    """
    minutes = ceil((_MARGIN * seconds + _FURTHER) / 60)
    on_node = min(layout.ranks, layout.ranks_per_node)
    cores = on_node * layout.threads
    gib = max(1, ceil(_ROOM * peak * on_node / 2**30))
    hours = f"{minutes // 60:02d}:{minutes % 60:02d}"
    lines = {
        "slurm": [
            f"#SBATCH --nodes={layout.nodes}", f"#SBATCH --ntasks={layout.ranks}",
            f"#SBATCH --ntasks-per-node={on_node}", f"#SBATCH --cpus-per-task={layout.threads}",
            f"#SBATCH --mem={gib}G", f"#SBATCH --time={hours}:00",
            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", f"srun ${{MPI_TYPE:+--mpi=$MPI_TYPE}} {command}",
        ],
        "pbs": [
            f"#PBS -l select={layout.nodes}:ncpus={cores}:mpiprocs={on_node}:ompthreads={layout.threads}:mem={gib}gb",
            f"#PBS -l walltime={hours}:00", "cd $PBS_O_WORKDIR", f"mpiexec -n {layout.ranks} {command}",
        ],
        "lsf": [
            f"#BSUB -n {layout.nodes * cores}", f'#BSUB -R "span[ptile={cores}] rusage[mem={gib}GB]"',
            f"#BSUB -W {hours}", f"mpiexec -n {layout.ranks} -ppn {on_node} {command}",
        ],
    }  # fmt: skip
    return "\n".join(["#!/bin/bash", *lines[queue]]) + "\n"


PROG = "cakernels plan"
SCHEMA = "cakernels-plan/1"
_NETWORKS = ("gemini", "aries", "hdr", "ndr", "slingshot", "ethernet")
_MOST = 10**15  # most rows, features, nodes, parts
_SAMPLED = 20_000  # most generated rows: short runs that need more repeat them, slightly shifted
_DTYPES = {"float64": 8, "float32": 4}


@dataclass(frozen=True)
class Planning(Job):
    """Options of the command; those of the method follow them."""

    method: str | None = option(
        None, f"{', '.join(METHODS)}; left out with --check", flag="method", metavar="METHOD", nargs="?"
    )
    data: Path | None = option(
        None, "training rows, of which samples are taken (default: generated rows)", checks.path, flag="data",
        metavar="DATA", nargs="?",
    )  # fmt: skip
    rows: int | None = option(
        None, "number of training rows (default: those of DATA)", checks.whole(2, _MOST), metavar="N"
    )
    features: int | None = option(
        None, "number of features (default: those of DATA)", checks.whole(1, _MOST), metavar="D"
    )
    ranks: tuple[int, ...] | None = option(
        None, "number of ranks: a number, comma list or lo:hi:COUNT (default: 1)", checks.whole_values, metavar="R"
    )
    nodes: int | None = option(None, "number of nodes, instead of --ranks", checks.whole(1, _MOST), metavar="K")
    ranks_per_node: int | None = option(
        None, "ranks per node (default: one per core)", checks.whole(1, _MOST), metavar="N"
    )
    partitions: int | None = option(
        None, "number of parts (default: the method's own: one per rank, for ridge regression of at most 8,000 rows)",
        checks.whole(1, _MOST), metavar="P",
    )  # fmt: skip
    dtype: str = option("float64", "floating-point type of the rows", checks.one_of(*_DTYPES), choices=tuple(_DTYPES))
    target: str | None = option(None, "target column of DATA, as in the method's command", metavar="COLUMN")
    machine: Path | None = option(
        None, "nodes to plan for: a report of python -m cacore.info --report FILE, made there", checks.path,
        metavar="FILE",
    )  # fmt: skip
    network: str | None = option(
        None, "nodes of a known network to plan for, with cores as fast as those here", checks.one_of(*_NETWORKS),
        choices=_NETWORKS,
    )  # fmt: skip
    within: float = option(60.0, "time for the short runs from which the plan follows", checks.duration, metavar="TIME")
    queue: str | None = option(None, "also print a job script for this queue", checks.one_of(*QUEUES), choices=QUEUES)
    check: Path | None = option(
        None, "compare the plan with this report of a finished run, whose method and layout are planned", checks.path,
        metavar="REPORT",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranks is not None and self.nodes is not None:
            raise InputError("--ranks, --nodes: give one of them")
        if self.machine is not None and self.network is not None:
            raise InputError("--machine, --network: give one of them")


def main(argv: list[str] | None = None) -> None:
    """Run the command, and end the process."""
    run_alone(lambda comm: _plan(comm, argv), PROG, "it starts the ranks that it needs", argv)


def _plan(comm: Communicator, argv: list[str] | None) -> None:
    parser = Parser(
        prog=PROG, description="Plan a training: seconds, memory, flops and messages, from short runs of METHOD.",
        epilog="example: cakernels plan bkrr2 --rows 463715 --features 90 --ranks 96,384,1536 --network aries "
        "--queue slurm; further options are METHOD's own, such as --sigma or --C",
    )  # fmt: skip
    add_options(parser, (Planning,), lambda name: name != "verbose")
    arguments, words = parser.parse_known_args(argv)
    job = from_arguments(Planning, arguments)
    document = _reported(job.check) if job.check is not None else None
    if document is not None:
        job, words = _as_in(document, job, words)
    if job.method is None:
        raise InputError(f"METHOD is needed (see {PROG} --help): one of {', '.join(METHODS)}")
    method = method_named(job.method)
    options = _options(method, words)
    limit = start(replace(job, quiet=True), comm)  # quiet: threads are those of the planned ranks
    if job.report is not None:
        check_writable(job.report)
    source = _source(job, method, options, limit)
    density = source.X.nnz / (source.X.shape[0] * source.X.shape[1]) if hasattr(source.X, "nnz") else 1.0
    work = Workload(method, options, _DTYPES[job.dtype], density)
    machine = _machine(job, limit)
    layouts = _layouts(job, work, machine, source)
    plans = list(_planned(job, work, words, source, machine, layouts, limit))
    _show(job, method, words, plans, document)


def _reported(path: Path) -> dict[str, Any]:
    """The report of a run."""
    try:
        document = json.loads(path.read_text())
        if (
            not isinstance(document, dict)
            or document.get("schema") != "cakernels-report/1"
            or document["method"] not in METHODS
        ):
            raise KeyError("schema")
    except OSError as error:
        raise InputError(f"--check {path}: {error.strerror or error}") from None
    except (ValueError, KeyError):
        raise InputError(
            f"--check {path}: not the report of a training, as --report of its command writes it"
        ) from None
    return document


def _as_in(document: dict[str, Any], job: Planning, words: list[str]) -> tuple[Planning, list[str]]:
    """The layout and the method's options of a run."""
    if words:
        raise InputError(f"--check takes the method's options from the report; leave out {words[0]}")
    method = method_named(document["method"])
    parser = Parser(prog=PROG)
    add_options(parser, (Training,), lambda name: True)
    parser.add_argument("--partitions")
    parser.add_argument("--checkpoint")
    ran, words = parser.parse_known_args([str(word) for word in document["command"][1:]])
    path = Path(ran.data)
    many = document["partitions"] > 1 and Workload(method, _options(method, words)).kind.in_parts
    return replace(
        job, method=document["method"], data=path if path.exists() else None, rows=document["data"]["n_train"],
        features=document["data"]["n_features"], ranks=(document["ranks"],), threads=document["threads_per_rank"],
        partitions=document["partitions"] if many else None, dtype=ran.dtype, target=ran.target,
    ), words  # fmt: skip


def _options(method: Method, words: list[str]) -> Any:
    """The method's options from the rest of the command line."""
    parser = Parser(prog=f"python -m {method.prog}")
    add_options(parser, (method.options,), method.has, method.defaults, method.choices)
    arguments: argparse.Namespace = parser.parse_args(words)
    options = from_arguments(method.options, arguments)
    return replace(options, wide=True) if hasattr(options, "wide") else options


def _source(job: Planning, method: Method, options: Any, limit: int) -> SampleSource:
    """Rows for the short runs."""
    classes = method.package == "casvm" and hasattr(options, "class_weight") and not hasattr(method, "one_class")
    if job.data is not None:
        return runs.of_file(job.data, job.target, limit, classes or getattr(options, "classify", False))
    if job.rows is None or job.features is None:
        raise InputError("the number of rows and features is not known: give DATA, or --rows N --features D")
    count = min(job.rows, _SAMPLED)
    need = runs.COPIES * 8 * count * job.features
    memory.require(need, limit, f"a sample of {count:,} rows with {job.features:,} features", "plan from a file, DATA")
    return runs.generated(count, job.features, classes or getattr(options, "classify", False))


def _machine(job: Planning, limit: int) -> Machine:
    from cakernels.plan.machine import Machine

    if job.machine is not None:
        return Machine.of_report(job.machine, limit)
    here = Machine.this()
    return here if job.network is None else here.on(job.network)


def _layouts(job: Planning, work: Workload, machine: Machine, source: SampleSource) -> list[JobLayout]:
    """The layouts to plan, one per number of ranks."""
    kind, method, options = work.kind, work.method, work.options
    parts = kind.in_parts or kind is Kind.TREE
    n, d = job.rows or source.X.shape[0], job.features or source.X.shape[1]
    if d != source.X.shape[1]:
        raise InputError(f"--features {d}: {job.data} has {source.X.shape[1]}; leave it out")
    if kind is Kind.POINTS and job.partitions is not None:
        raise InputError(f"--partitions: {method.name} has one model of all rows; leave it out")
    numbers = tuple(options.numbers(n)) if kind is Kind.POINTS else ()
    coarse = max(Ms[-1] for _, Ms, _ in options.coarse_grid(n, d)) if getattr(method, "coarse", False) else 0
    threads, beside = job.threads or 1, job.ranks_per_node
    if beside is None:
        beside = max(1, machine.cores // threads)
    ranks = job.ranks or (1 if job.nodes is None else job.nodes * beside,)
    layouts = []
    for R in sorted(set(ranks)):
        on_node = min(R, beside)
        P = (job.partitions or _parts(job, n, R)) if parts else 1
        if max(R, P) > n:
            raise InputError(f"{max(R, P):,} {'ranks' if R > P else 'parts'} of {n:,} rows: ask for fewer")
        layouts.append(JobLayout(n, d, P, R, beside, job.threads or max(1, machine.cores // on_node), numbers, coarse))
    return layouts


def _parts(job: Planning, n: int, ranks: int) -> int:
    """Default number of parts."""
    from cakrr.methods.prepare import ROWS_PER_PART

    ridge = method_named(str(job.method)).package == "cakrr"
    return max(ranks, ceil(n / ROWS_PER_PART)) if ridge else ranks


def _planned(
    job: Planning, work: Workload, words: list[str], source: SampleSource, machine: Machine, layouts: list[JobLayout],
    limit: int,
) -> Iterator[Plan]:  # fmt: skip
    """The plan of each layout; layouts with the same ranks and threads in their short runs share these."""
    from cakernels.plan.machine import Machine, product_rate
    from cakernels.plan.plan import planned

    done: dict[tuple[int, int], list[runs.Ran]] = {}
    here = Machine.this().cores
    keys = [_short_runs(planned_layout, here, machine) for planned_layout in layouts]
    with tempfile.TemporaryDirectory() as folder, spinner(not job.quiet, "short runs") as tell:
        for layout, (ranks, threads) in reversed(list(zip(layouts, keys, strict=True))):
            if (ranks, threads) not in done:
                trials = runs.Trials(
                    work.method.prog, words, source, job.dtype, Path(folder), job.within / len(set(keys)),
                    lambda line: tell(f"short run: {line}"),
                )  # fmt: skip
                done[ranks, threads] = trials.all(replace(layout, threads=threads), work.kind, ranks)
    rate = product_rate(limit) if work.method.package == "cakrr" else None
    for layout, key in zip(layouts, keys, strict=True):
        yield planned(done[key], layout, work, machine, rate)


def _short_runs(layout: JobLayout, cores: int, machine: Machine) -> tuple[int, int]:
    """Ranks and threads of the short runs: the job's own, or as many as this machine has cores for."""
    threads = min(layout.threads, cores)
    if mpiexec() is None:
        return 1, threads
    like_job = machine.here and layout.ranks <= 2 * cores
    return layout.ranks if like_job else min(layout.ranks, max(1, cores // threads)), threads


def _show(job: Planning, method: Method, words: list[str], plans: list[Plan], document: dict[str, Any] | None) -> None:
    """Print the table and the job script, and write the report."""
    from cacore.run import report
    from cakernels.plan import plan

    last = plans[-1]
    parts = f" --partitions {last.layout.parts}" if last.layout.parts > 1 else ""
    command = shlex.join(["python", "-m", method.prog, str(job.data or "DATA.h5"), *words]) + parts
    if job.report is not None:
        report.write(
            job.report,
            {"schema": SCHEMA, "method": method.name, "command": sys.argv, "machine": last.machine.name,
             "plans": [layout_plan.report() for layout_plan in plans]},
        )  # fmt: skip
    if job.quiet:
        return
    with printing():
        plan.show(method.name, plans)
        if document is not None:
            plan.compare(last, document)
        if job.queue is not None:
            job_script = script(job.queue, last.layout, last.total, last.peak, command)
            say("", *job_script.splitlines())
