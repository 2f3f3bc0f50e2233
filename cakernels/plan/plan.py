"""The plan of a training, from short runs of its command: seconds, memory, flops, bytes and messages, and their table.

1. :func:`planned`: the plan of one layout.
2. Seconds, bytes and messages: sums of terms of the layout, fitted to the runs.
3. Memory and flops: by formula.
4. The table on the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Any

import numpy as np
import scipy.optimize

from cacore.io.words import counted
from cacore.terminal import say, show_table
from cakernels.plan.machine import GIB, Machine, Network
from cakernels.plan.runs import PHASES, STARTED, JobLayout, Kind, Ran, Workload, of_job
from cakernels.search.candidates import RIDGE_POWER, SVM_POWER
from cakrr.solver import coarse, nystrom
from cakrr.solver.local import BAND_FROM, SMALL

UNCOUNTED = (
    "no mpiexec in PATH or beside the interpreter: the short runs had one rank, and the plan does not have the bytes, "
    "messages and time of communication; pip install 'cakernels[mpi]', or load your MPI"
)
_THREADED = PHASES[2:]  # reading is not faster with more threads


@dataclass(frozen=True)
class Plan:
    """Seconds, memory, flops and messages of one layout.

    Attributes
    ----------
    layout : JobLayout
    machine : Machine
    seconds : dict of str to float
        By phase; without "read" to the end of "predict" in "start".
    peak : float
        Bytes per rank.
    flops : float
        Of training, over all ranks.
    bytes, messages : dict of str to float
        By phase, over all ranks; empty on one rank.
    counted : bool
        False if no short run had several ranks, so that bytes, messages and their time are unknown.
    """

    layout: JobLayout
    machine: Machine
    seconds: dict[str, float]
    peak: float
    flops: float
    bytes: dict[str, float]
    messages: dict[str, float]
    counted: bool = True

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    @property
    def core_hours(self) -> float:
        """Hours of all phases times the cores of the nodes, of which centres charge whole ones."""
        return self.total / 3600 * self.layout.nodes * self.machine.cores

    @property
    def per_node(self) -> float:
        """Bytes per node."""
        return self.peak * min(self.layout.ranks, self.layout.ranks_per_node)

    @property
    def fits(self) -> bool:
        """True if the ranks of a node fit into its memory."""
        return self.per_node <= self.machine.room

    @property
    def nodes_needed(self) -> int | None:
        """Smallest number of nodes on which so many ranks fit; None if a single rank does not fit."""
        beside = min(self.layout.ranks_per_node, int(self.machine.room // self.peak))
        return ceil(self.layout.ranks / beside) if beside else None

    def report(self) -> dict[str, object]:
        """Entries for a JSON file."""
        layout = self.layout
        return {
            "ranks": layout.ranks, "nodes": layout.nodes, "ranks_per_node": layout.ranks_per_node,
            "threads_per_rank": layout.threads, "partitions": layout.parts,
            **({"centers": list(layout.centers)} if layout.centers else {}),
            "data": {"n_train": layout.n, "n_features": layout.d}, "seconds": {**self.seconds, "total": self.total},
            "memory": {"peak_rss_mib": self.peak / (1 << 20), "node_gib": self.per_node / GIB, "fits": self.fits},
            "nodes_needed": self.nodes_needed, "core_hours": self.core_hours, "flops": self.flops,
            "comm": {} if not self.counted else {
                phase: {"bytes": round(sent), "messages": round(self.messages.get(phase, 0.0))}
                for phase, sent in self.bytes.items()
            },
            **({} if self.counted else {"notes": [UNCOUNTED]}),
        }  # fmt: skip


def planned(runs: Sequence[Ran], job: JobLayout, work: Workload, machine: Machine, rate: float | None = None) -> Plan:
    """The plan of a job, from short runs of its method.

    Parameters
    ----------
    runs : sequence of Ran
    job : JobLayout
    work : Workload
    machine : Machine
    rate : float, optional
        Flops per second of a thread in matrix products, here. It bounds the time of a job that factors matrices, where
        the runs are too small to tell how it grows.
    """
    kind, options = work.kind, work.options
    direct = (kind is Kind.SYSTEM and options.solver != "cg") or (kind is Kind.POINTS and options.pick != "random")
    sent, messages = (traffic(runs, kind, job, what) for what in ("bytes", "messages"))
    seconds, operations = extrapolated(runs, kind, job, direct), flops(runs, job, work)
    if rate and (direct or kind in (Kind.RIDGE_PARTS, Kind.POINTS)) and not of_job(runs, job):
        products = operations / (job.ranks * runs[0].layout.threads * rate)
        seconds["train"] = bounded(seconds["train"], runs, products)
    beside = min(job.ranks, job.ranks_per_node) * job.threads
    same = machine.here and job.ranks in {run.layout.ranks for run in runs}
    slower = machine.slower if same else machine.slower * max(1.0, beside / machine.cores)
    shared = runs[0].layout.threads / job.threads  # threads are taken to share a rank's work evenly
    seconds = {phase: taken * slower * (shared if phase in _THREADED else 1.0) for phase, taken in seconds.items()}
    if job.nodes > 1:
        for phase in PHASES[1:]:
            seconds[phase] += _travel(runs, job, machine.network, phase, sent, messages)
    has_traffic = job.ranks == 1 or any(run.layout.ranks > 1 for run in runs)
    return Plan(job, machine, seconds, peak(runs, job, work), operations, sent, messages, has_traffic)


def _travel(
    runs: Sequence[Ran], job: JobLayout, network: Network, phase: str, sent: dict[str, float],
    messages: dict[str, float],
) -> float:  # fmt: skip
    """Seconds of a phase's messages between nodes.

    Two ranks send one message each per collective call, which gives the number of calls. Each is taken to be an
    Allreduce; what a rank sends beyond one message per call goes to single ranks, in exchanges.
    """
    pairs = [run for run in runs if run.layout.ranks > 1]
    if not pairs or not messages.get(phase):
        return 0.0
    few = min(pairs, key=lambda run: run.layout.ranks)
    calls = few.sent("messages").get(phase, 0.0) / few.layout.ranks
    if not calls:
        return 0.0
    per_rank = sent.get(phase, 0.0) / job.ranks
    further = max(0.0, messages[phase] / job.ranks - calls)
    return calls * network.allreduce(job.ranks, per_rank / calls) + further * network.between.gap


# -- seconds, bytes and messages --------------------------------------------------------------------------

Term = Callable[[JobLayout], float]


def folded(layout: JobLayout) -> float:
    """Rows of the rank that folds most leaves, in least squares on M points."""
    return layout.n / layout.leaves * ceil(layout.leaves / layout.ranks)


# Terms of a layout, in whose sum the seconds of a phase grow. Flops are but for a factor.
TERMS: dict[str, Term] = {
    "constant": lambda layout: 1.0,
    "rows": lambda layout: layout.rows_per_rank,
    "distances": lambda layout: layout.rows_per_rank * layout.parts,  # of a rank's rows to all centres
    "parts": lambda layout: layout.parts_per_rank * layout.part**2,  # entries of the matrices of a rank's parts
    "factors": lambda layout: layout.parts_per_rank * layout.part**3,  # flops of factoring them
    "coarse": lambda layout: layout.rows_per_rank * min(layout.coarse, layout.n) ** 2,  # normal equations of a rank
    "matrix": lambda layout: layout.n**2 / layout.ranks,  # entries of a rank's share of the matrix of all rows
    "factor": lambda layout: layout.n**3 / layout.ranks,  # flops of a rank's share of its factorisation
    "held out": lambda layout: layout.rows_per_rank * layout.part,  # kernel values of a rank's rows with one part each
    # Least squares on M points: rows of the rank that folds most leaves, their kernel values with the points, and flops
    # of folding them into a triangle; flops of the triangles, which all ranks compute alike; and flops of choosing the
    # points by pivots or means, among ten rows per point.
    "folded": folded,
    "points": lambda layout: folded(layout) * layout.points,
    "fold": lambda layout: folded(layout) * layout.points**2,
    "triangles": lambda layout: float(layout.points) ** 3,
    "drawn": lambda layout: min(layout.n, 10.0 * layout.points) / layout.ranks * layout.points**2,
}

_LEAST_POWER = 1.0  # exponent of the rows in a time that grows with a power of them, at least
_SIGNIFICANT = 0.02  # seconds below which a phase says little about its growth: clocks and starts scatter by some ms
# Bounds of the time of a factorisation as factors of that of its flops in matrix products, for jobs far larger than the
# runs: 250 and 500 rows, dkrr, gave 1.8e1 and 2.5e11 s for 10^6 rows that take 6e7 s, on a machine with other work.
FASTEST, SLOWEST = 0.5, 5.0


def extrapolated(runs: Sequence[Ran], kind: Kind, job: JobLayout, direct: bool) -> dict[str, float]:
    """Seconds of each phase of the job, on a machine like that of the runs, alone, without a network between nodes.

    Parameters
    ----------
    runs : sequence of Ran
        Runs of growing size first, as :meth:`cakernels.plan.runs.Trials.all` makes them.
    kind : Kind
    job : JobLayout
    direct : bool
        True if a system of all rows is factored, rather than solved by iterations; or if M points are chosen by
        factoring kernel values, rather than at random.
    """
    if itself := of_job(runs, job):
        return {phase: float(np.median([run.undisturbed(phase) for run in itself])) for phase in PHASES}
    first = runs[0].layout
    timed = [run for run in runs if run.layout.threads == first.threads and run.layout.ranks <= first.ranks]
    estimates = {"start": float(np.median([run.undisturbed("start") for run in timed]))}
    for phase in PHASES[1:]:
        estimates[phase] = _phase(phase, timed, kind, job, direct)
    return estimates


def bounded(seconds: float, runs: Sequence[Ran], products: float) -> float:
    """Seconds of a factorisation, extrapolated from runs, within the bounds that its flops set.

    Parameters
    ----------
    seconds : float
        Extrapolated seconds of the phase "train".
    runs : sequence of Ran
    products : float
        Seconds that matrix products with as many flops as the job take on its ranks and threads.
    """
    overhead = max(run.undisturbed("train") for run in runs)
    return min(max(seconds, FASTEST * products), overhead + SLOWEST * products)


def _phase(phase: str, runs: Sequence[Ran], kind: Kind, job: JobLayout, direct: bool) -> float:
    taken, layouts = [run.undisturbed(phase) for run in runs], [run.layout for run in runs]
    names = _terms(phase, kind, job, direct)
    if not names:
        return _by_power(layouts, taken, kind, job)
    return fitted([TERMS[name] for name in names], layouts, taken, job)


def _terms(phase: str, kind: Kind, job: JobLayout, direct: bool) -> list[str]:
    """Names of the terms of a phase; none for a training whose time grows with a power of the rows."""
    by_phase = {"read": [], "partition": ["distances"], "predict": ["held out" if kind.in_parts else "matrix"]}
    if kind is Kind.POINTS:
        by_phase |= {"partition": ["drawn"] if direct else [], "predict": ["points"]}
    if phase in by_phase:
        return ["constant", "rows", *by_phase[phase]]
    if kind is Kind.POINTS:
        return ["constant", "folded", "points", "fold", "triangles"]
    if kind is Kind.RIDGE_PARTS:
        return ["constant", "parts", "factors", *(["coarse"] if job.coarse else [])]
    return ["constant", "matrix", "factor"] if kind is Kind.SYSTEM and direct else []


def _by_power(layouts: Sequence[JobLayout], taken: Sequence[float], kind: Kind, job: JobLayout) -> float:
    """Seconds that grow with a power of the rows of a problem, whose exponent the two largest runs tell."""
    largest_power = RIDGE_POWER if kind is Kind.SYSTEM else SVM_POWER
    size: Term = (lambda layout: layout.part) if kind.in_parts else (lambda layout: float(layout.n))
    same = [(layout, t) for layout, t in zip(layouts, taken, strict=True) if layout.ranks == layouts[0].ranks]
    (small, before), (last, now) = sorted(same, key=lambda pair: size(pair[0]))[-2:] if same[1:] else [*same, *same]
    power = largest_power if now < _SIGNIFICANT else _LEAST_POWER
    if min(before, now) >= _SIGNIFICANT and size(last) > size(small):
        power = min(largest_power, max(_LEAST_POWER, log(now / before) / log(size(last) / size(small))))
    grown = float((size(job) / size(last)) ** power)
    if kind.in_parts:
        return now * grown * job.parts_per_rank / last.parts_per_rank
    return now * grown * _shared(layouts, taken, job.ranks) / _shared(layouts, taken, last.ranks)


def _shared(layouts: Sequence[JobLayout], taken: Sequence[float], ranks: int) -> float:
    """Time of one problem on so many ranks, over that on one: a + b / ranks, from the runs on one rank and on several.

    The part a is what every rank computes alike.
    """
    several = layouts[0].ranks
    alone = {layout.n: t for layout, t in zip(layouts, taken, strict=True) if layout.ranks == 1}
    pairs = [
        (alone[layout.n], t)
        for layout, t in zip(layouts, taken, strict=True)
        if layout.ranks == several and layout.n in alone
    ]
    if several == 1 or not pairs:
        return 1.0 / ranks if several == 1 else 1.0
    t_one, t_several = pairs[-1]
    alike = min(1.0, max(0.0, (t_several / max(t_one, 1e-9) - 1 / several) / (1 - 1 / several)))
    return alike + (1 - alike) / ranks


# Terms of a layout, in whose sum the bytes or the messages of a phase grow.
TRAFFIC: dict[str, Term] = {
    "sums": lambda layout: float(layout.ranks),  # numbers that all ranks add up
    "pairs": lambda layout: layout.ranks * (layout.ranks - 1.0),
    "moved": lambda layout: layout.n * (1 - 1 / layout.ranks),  # rows that change their rank
    "centres": lambda layout: float(layout.parts * layout.ranks),  # what all ranks receive: centres, or ...
    "columns": lambda layout: float(layout.n * layout.ranks),  # ... columns, or ...
    "triangles": lambda layout: float(layout.points**2 * layout.ranks),  # ... triangles and points
    "points": lambda layout: float(layout.points * layout.ranks),
}


def traffic(runs: Sequence[Ran], kind: Kind, job: JobLayout, what: str) -> dict[str, float]:
    """Bytes or messages of each phase, over all ranks; empty if no run had several ranks."""
    if job.ranks == 1:
        return {}
    if itself := of_job(runs, job):
        return itself[-1].sent(what)
    several = [run for run in runs if run.layout.ranks > 1]
    layouts = [run.layout for run in several]
    if not several:
        return {}
    received = ["triangles", "points"] if kind is Kind.POINTS else ["centres" if kind.in_parts else "columns"]
    names = ["sums", "moved", *received] if what == "bytes" else ["sums", "pairs"]
    terms = [TRAFFIC[name] for name in names]
    phases = several[0].sent(what)
    return {phase: fitted(terms, layouts, [run.sent(what).get(phase, 0.0) for run in several], job) for phase in phases}


def fitted(terms: Sequence[Term], layouts: Sequence[JobLayout], values: Sequence[float], job: JobLayout) -> float:
    """Value for the job of the best fit of these terms with coefficients of at least 0, by relative errors."""
    value = np.array(values, np.float64)
    if not value.any():
        return 0.0
    weight = 1.0 / np.maximum(value, 1e-2 * value.max())
    table = np.array([[term(layout) for term in terms] for layout in layouts])
    scale = table.max(axis=0)
    coefficients, _ = scipy.optimize.nnls(weight[:, None] * table / scale, weight * value)
    return float(np.array([term(job) for term in terms]) / scale @ coefficients)


# -- memory and flops -------------------------------------------------------------------------------------

_TELLS = float(1 << 26)  # bytes of kernel values from which a run's peak says how many of them are kept
_COLUMNS = 48  # bytes per row besides its features: target, order, part, coefficients


def memory(layout: JobLayout, work: Workload, largest: float = 1.0) -> tuple[float, float]:
    """Bytes of a rank's rows, and of its matrices or kernel values, without the interpreter and its libraries.

    `largest` is the number of rows of the largest part over the mean.
    """
    kind, options, itemsize = work.kind, work.options, work.itemsize
    rows = layout.rows_per_rank * (layout.d * work.density * itemsize + _COLUMNS)
    m = layout.part * largest
    if kind is Kind.RIDGE_PARTS:
        square = m * m * itemsize
        matrices = layout.threads if square * layout.threads <= SMALL else 1
        sets = options.coarse_grid(layout.n, layout.d) if layout.coarse else []
        return rows * (2 if layout.ranks > 1 else 1), max(square * matrices, coarse.memory_bytes(sets))
    if kind is Kind.POINTS:
        return 2 * rows, float(nystrom.memory_bytes(layout.points, layout.leaves, layout.ranks))
    if kind is Kind.SYSTEM:
        iterates = options.solver == "cg"
        return 2 * rows, layout.n**2 * (4 / 2 if iterates else itemsize) / layout.ranks
    cache = float(options.cache_gib * 2**30)
    if kind is Kind.SVM_PARTS:
        return 2 * rows, min(cache, 4.0 * m * m * layout.threads)
    cache = min(cache, 4.0 * layout.n**2 / layout.ranks)
    return 2 * rows if kind is Kind.SHARED else rows + layout.n * layout.d * work.density * itemsize, cache


def peak(runs: Sequence[Ran], job: JobLayout, work: Workload) -> float:
    """Peak memory of a rank in bytes: that of the job if it was run, or the formula's plus what else the runs took.

    The memory for kernel values is the formula's, times the share of it by which the peaks of the runs grow. If they
    are too small to tell, it is the share of support vectors, for SVMs.
    """
    if itself := of_job(runs, job):
        return itself[-1].peak
    largest = max(run.largest for run in runs if run.layout.n == max(run.layout.n for run in runs))
    rows, values = memory(job, work, largest)
    runs = [run for run in runs if run.layout.ranks == runs[0].layout.ranks]
    terms = [memory(run.layout, work, run.largest) for run in runs]
    share = _share(
        [run.peak - base for run, (base, _) in zip(runs, terms, strict=True)], [per_share for _, per_share in terms]
    )
    if share is None:
        svm = work.kind in (Kind.SVM_PARTS, Kind.SHARED)
        share = _share_of_support(max(runs, key=lambda run: run.layout.n)) if svm else 1.0
    besides = [run.peak - base - share * per_share for run, (base, per_share) in zip(runs, terms, strict=True)]
    return max(0.0, *besides) + rows + share * values


def _share(peaks: Sequence[float], values: Sequence[float]) -> float | None:
    """Growth of the peaks with the memory for kernel values, from 0.05 to 1; None if the runs do not tell."""
    largest = max(values)
    if largest < _TELLS or largest - min(values) < 0.5 * largest:
        return None
    slope, _ = np.polyfit(values, peaks, 1)
    return float(np.clip(slope, 0.05, 1.0))


def _share_of_support(run: Ran) -> float:
    """Share of its kernel values that an SVM keeps: the rows of K of its support vectors."""
    return min(1.0, float(sum(run.report["solver"]["n_support"])) / run.layout.n)


def flops(runs: Sequence[Ran], job: JobLayout, work: Workload) -> float:
    """Flops of training, over all ranks.

    Ridge systems: m^2 d per width, and m^3/3 per lambda or 4/3 m^3 for many, for the grid and the final solution.
    Coarse models: 2 n M (M + d) per width, 2 n M d for their predictions, and M^3/3 per factorisation on every rank.
    Their refinement: n^2/2 kernel values per iteration and at the start, and as many where lambda is chosen.
    Iterations: 2 d + 10 per kernel value, as many values as the largest run had for the square of its rows. SVMs: the
    same per kernel value that the solver computed in the largest run, in proportion to the square of a problem's rows.
    Least squares on M points: 2 n M (M + d) per width, and for each number of points that is compared, 12 M^3 on every
    rank, and 3 n M^2 for left-out errors.
    """
    kind, options, d = work.kind, work.options, job.d
    last = max(runs, key=lambda run: run.layout.n)
    if kind is Kind.POINTS:
        return _flops_of_points(job, work)
    if kind is Kind.RIDGE_PARTS or (kind is Kind.SYSTEM and options.solver != "cg"):
        widths, lams = len(options.widths(work.method, d)), len(options.lam)
        folds = options.folds(job.n) if kind is Kind.RIDGE_PARTS else 1
        training_share = (1 - 1 / folds if folds > 1 else 1 - options.validation_fraction) if widths * lams > 1 else 0.0
        m = job.part
        solved = 4 / 3 if lams >= BAND_FROM else lams / 3
        grid = folds * widths * ((training_share * m) ** 2 * d + solved * (training_share * m) ** 3)
        several_coarse = _flops_of_coarse_models(job, options) if job.coarse else 0.0
        return job.parts * (grid + m * m * d + m**3 / 3) + several_coarse
    if kind is Kind.SYSTEM:
        products = sum(sum(solution["products"].values()) for solution in last.report["solver"].get("solutions", []))
        return products * job.n**2 * (d + 5.0)
    values = float(sum(last.report["solver"].get("kernel_values", [])))
    problem = job.part if kind.in_parts else job.n
    measured = last.layout.part if kind.in_parts else last.layout.n
    return values * (problem / measured) ** 2 * job.parts / last.layout.parts * (2 * d + 10)


def _flops_of_coarse_models(job: JobLayout, options: Any) -> float:
    """Flops of the coarse models of all rows, whose small systems every rank solves alike."""
    n, d = job.n, job.d
    sets = options.coarse_grid(n, d)
    tried = sum(len(Ms) * len(lams) for _, Ms, lams in sets)
    total = 0.0
    for _, Ms, lams in sets:
        largest = Ms[-1]
        total += 2 * n * largest * (largest + 2 * d)
        total += job.ranks * (largest**3 / 3 + (2 if tried > 1 else 1) * len(lams) * sum(M**3 / 3 for M in Ms))
    products = (options.refine + 1) * (2 if tried > 1 else 1) if options.refine else 0
    return float(total + products * n**2 * (d + 5.0))


def _flops_of_points(job: JobLayout, work: Workload) -> float:
    """Flops of least squares on M points."""
    n, options = job.n, work.options
    widths = len(options.widths(work.method, job.d))
    chosen = sum(12 * M**3 * job.ranks + (3 * n * M**2 if options.select == "loo" else 0) for M in job.centers)
    several = widths * len(job.centers) * len(options.lam) > 1
    return float(widths * (2 * n * job.points * (job.points + job.d) + (chosen if several else 0)))


# -- the table --------------------------------------------------------------------------------------------


def show(name: str, plans: Sequence[Plan]) -> None:
    """Print one column per layout."""
    first = plans[0]
    say(f"{name}: {first.layout.n:,} rows x {first.layout.d:,} features on {first.machine.name}")
    columns = zip(*(list(_column(plan)) for plan in plans), strict=True)
    lines = [(label[0], label[1], *(text for _, text in texts)) for label, *texts in columns]
    show_table(lines, header=["ranks", *(f"{plan.layout.ranks:,}" for plan in plans)])
    for plan in plans:
        say(*notes(plan))
    say(*advice(plans))
    if not all(plan.counted for plan in plans):
        say(UNCOUNTED)


def _column(plan: Plan) -> Iterator[tuple[str, str]]:
    """Labels and texts of one layout."""
    layout = plan.layout
    yield "nodes x ranks x threads", f"{layout.nodes:,} x {min(layout.ranks, layout.ranks_per_node)} x {layout.threads}"
    if layout.centers:
        yield "rows, points", f"{layout.n:,}, {', '.join(f'{M:,}' for M in layout.centers)}"
    elif layout.parts > 1:
        yield "parts x rows", f"{layout.parts:,} x {layout.part:,.0f}"
    else:
        yield "parts x rows", f"1 x {layout.n:,}"
    for phase in PHASES:
        yield f"{phase}, s", _short(plan.seconds[phase])
    yield "total, s", _short(plan.total)
    yield "core-hours", _short(plan.core_hours)
    yield "memory per rank, GiB", f"{plan.peak / GIB:.2f}"
    yield "memory per node, GiB", f"{plan.per_node / GIB:.1f} of {plan.machine.memory / GIB:.0f}"
    yield "flops of training", f"{plan.flops:.2g}"
    yield "bytes sent", _sum(plan.bytes, plan)
    yield "messages", _sum(plan.messages, plan)


def _sum(by_phase: dict[str, float], plan: Plan) -> str:
    if not plan.counted:
        return "unknown"
    return f"{sum(by_phase.values()):.2g}" if by_phase else "0"


def _short(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def notes(plan: Plan) -> Iterator[str]:
    """Notes on the layouts that do not fit, and the number of nodes that would."""
    if plan.fits:
        return
    layout, ranks = plan.layout, counted(plan.layout.ranks, "rank")
    line = f"{ranks}: {plan.per_node / GIB:.1f} GiB per node do not fit into {plan.machine.room / GIB:.1f} GiB"
    if plan.nodes_needed is not None:
        beside = -(-layout.ranks // plan.nodes_needed)
        yield f"{line}; {counted(plan.nodes_needed, 'node')} with {counted(beside, 'rank')} each do"
    else:
        less = "fewer --centers" if layout.centers else "more --partitions"
        yield f"{line}, not even with one rank per node: {less}, more ranks or --dtype float32"


# Files that a rank opens while it starts: 999 of cakrr.bkrr2, 1,022 of casvm.casvm, by strace (docs/startup.md).
_FILES_OPENED = 1000


def advice(plans: Sequence[Plan]) -> Iterator[str]:
    """The layout that takes least time and the one that takes fewest core-hours, and what plans leave out of the start.

    A layout that is not faster by more than the plans' own error, a tenth, is not called quicker.
    """
    fitting = [plan for plan in plans if plan.fits]
    if len(fitting) > 1:
        cheapest = min(fitting, key=lambda plan: plan.core_hours)
        quickest = min(fitting, key=lambda plan: plan.total)
        if quickest.total > 0.9 * cheapest.total:
            if cheapest.layout.ranks < max(plan.layout.ranks for plan in fitting):
                yield f"{counted(cheapest.layout.ranks, 'rank')} are enough: more save less than a tenth of the time"
        else:
            share = 100 * cheapest.core_hours / quickest.core_hours
            yield (
                f"quickest: {counted(quickest.layout.ranks, 'rank')}, in {_short(quickest.total)} s; cheapest: "
                f"{counted(cheapest.layout.ranks, 'rank')}, in {_short(cheapest.total)} s for {share:.0f} % of "
                "the core-hours"
            )
    largest = plans[-1].layout
    if largest.nodes > 1:
        yield (
            f"start is that of one node: from a shared file system {counted(largest.ranks, 'rank')} open about "
            f"{_FILES_OPENED * largest.ranks:,} files, unless each node unpacks the environment (see Starting up)"
        )


def compare(plan: Plan, document: dict[str, Any]) -> None:
    """Print what was planned beside what a run took."""
    from cacore.run.report import show_rows

    show_rows(f"planned and measured: {document['method']}", list(differences(plan, document)))


def differences(plan: Plan, document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Planned and measured figures, and their ratio."""
    taken = document["seconds"]
    measured = {phase: taken.get(phase, 0.0) for phase in PHASES}
    measured["start"] = sum(taken.get(phase, 0.0) for phase in STARTED)
    for phase in PHASES:
        yield f"{phase}, s", _beside(plan.seconds[phase], measured[phase])
    work = plan.total - plan.seconds["start"], sum(measured.values()) - measured["start"]
    yield "without the start, s", _beside(*work)
    yield "total, s", _beside(plan.total, sum(measured.values()))
    yield "memory per rank, MiB", _beside(plan.peak / (1 << 20), max(document["memory"]["peak_rss_mib"]))
    if plan.bytes:
        for what, sent in (("bytes", plan.bytes), ("messages", plan.messages)):
            yield what, _beside(sum(sent.values()), sum(counts[what] for counts in document["comm"].values()))


def _beside(planned: float, measured: float) -> str:
    ratio = f", ratio {planned / measured:.2f}" if measured else ""
    return f"planned {planned:,.4g}, measured {measured:,.4g}{ratio}"
