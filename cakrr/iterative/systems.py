"""Solution of all systems of one sigma at once, for every lambda and target: factor, preconditioner and report.

With a cut kernel, the solution goes island by island: rows beyond reach of all others are a system of their own, with
its own iterations. What is left out of K changes the residual of the whole system by at most bound |x| / |b|. The
report's residual has this bound added to it, so it bounds the residual of the system without a cut.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, dense, nbytes
from cacore.errors import InputError
from cacore.io.checkpoint import Kept, remembered
from cacore.kernels import Kernel
from cacore.linalg.pivoted import Pivoted, pivoted_cholesky
from cacore.machine import memory, threads
from cacore.machine.clock import working_time
from cacore.machine.memory import Scratch
from cacore.near.halo import Routed
from cakrr.iterative import cost
from cakrr.iterative.islands import SHARE, KernelCut, Tiles, islands, owners
from cakrr.iterative.preconditioner import Factor, Preconditioner, ResidualBlocks, SpreadRows, residual_blocks
from cakrr.iterative.products import Borrowing, Keep, KernelProducts, NearProducts, borrows, gathers
from cakrr.iterative.solver import CGSolution, StoppingCriteria, solve
from cakrr.options import RidgeOptions
from partition.algorithms import divide


@dataclass
class Within:
    """Facts that an island takes from the system that it belongs to.

    Attributes
    ----------
    n : int
        Number of rows of the whole system, which its ridge lambda n is for.
    weight : float
        Their mean weight.
    tiles : Tiles
    share : float
        Share of the island's pairs of rows that are computed.
    """

    n: int
    weight: float
    tiles: Tiles
    share: float


@dataclass
class RidgeProblem:
    """The systems (K + lambda n I) alpha = y of one kernel, for every lambda and target.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
        This rank's rows.
    number : ndarray of int64, shape (m,)
        Places of these rows among the n rows of all ranks.
    y : ndarray, shape (m, t)
    weights : ndarray, shape (m,), or None
    kernel : Kernel
    lams : tuple of float
    name : str
        Name in the report.
    piece : str
        Name in the checkpoint.
    within : Within or None
        Facts of the system that an island belongs to.
    """

    X: Rows
    number: NDArray[np.int64]
    y: NDArray[np.float64]
    weights: NDArray[np.float64] | None
    kernel: Kernel
    lams: tuple[float, ...]
    name: str
    piece: str
    within: Within | None = None


PART = 768  # rows of a block of the preconditioners local and two-level: 4.7 MB, and m^3/3 flops per ridge


def needed(shape: tuple[int, int, int], row_bytes: float, lams: int, limit: int, comm: Communicator) -> int:
    """Bytes that this rank needs for its rows in both precisions, the other ranks' rows, and all vectors.

    `shape` holds the number of rows on all ranks, of rows on this rank, and of targets.
    """
    n, n_local, targets = shape
    sides = lams * targets
    everyone = int(1.5 * row_bytes * n) if gathers(comm, int(row_bytes * n), limit) else int(4 * row_bytes * n_local)
    vectors: int = 8 * sides * (12 * n_local + (2 * threads.current() + 2) * n // 2)
    return int(3 * row_bytes * n_local) + everyone + vectors + 24 * n


def _products(spread: SpreadRows, kernel: Kernel, keep: Keep, gathered: bool, tiles: Tiles | None) -> KernelProducts:
    """Products over ranks: by a halo if K is cut and it fits; otherwise all rows are gathered, or pass in a ring."""
    comm = spread.comm
    if tiles is not None and comm.size > 1:
        borrowing = Borrowing.of(spread.counts, tiles, comm.rank)
        if borrows(borrowing, spread.X.shape[0], gathered, comm):
            return NearProducts(spread, kernel, keep, tiles, borrowing)
    return KernelProducts(spread, kernel, keep, ring=not gathered, tiles=tiles)


class Systems:
    """Solver of the systems, one sigma after the other.

    Parameters
    ----------
    options : RidgeOptions
    shape : tuple of int
        Number of rows on all ranks, of rows on this rank, and of targets, in the largest system.
    scratch : Scratch or None

    Attributes
    ----------
    solutions : list of dict
        Entry of the report for each solution.
    """

    def __init__(self, options: RidgeOptions, shape: tuple[int, int, int], scratch: Scratch | None = None) -> None:
        self.options, self.shape, self.scratch = options, shape, scratch
        self.solutions: list[dict[str, Any]] = []

    def solve(
        self, wanted: RidgeProblem, criteria: StoppingCriteria, comm: Communicator
    ) -> tuple[NDArray[np.float64], CGSolution]:  # fmt: skip
        """Alpha of this rank's rows for every lambda and target, shape (L t, m), and the solution; collective."""
        if self.options.near:
            alpha, solution, facts = solve_islands(self.solve_one, wanted, criteria, comm)
        else:
            alpha, solution, facts = self.solve_one(wanted, criteria, comm)
        self.solutions.append(facts)
        return alpha, solution

    def solve_one(self, wanted: RidgeProblem, criteria: StoppingCriteria, comm: Communicator) -> Solved:
        """Solve one system: as :meth:`solve`, with its entry of the report; collective."""
        options, X, kernel, lams = self.options, wanted.X, wanted.kernel, wanted.lams
        within = wanted.within
        with comm.phase("partition"):
            weight = None if within is None else within.weight
            spread = SpreadRows(X, wanted.number, kernel, comm, wanted.weights, weight)
            total = int(comm.allreduce(np.array([nbytes(X)], np.int64))[0])
        each = total / max(1, spread.n)
        ridges = np.repeat(np.array(lams) * (spread.n if within is None else within.n), wanted.y.shape[1])
        limit = options.memory_limit
        room = limit - needed(self.shape, each, len(lams), limit, comm)
        room -= self._blocks_bytes(X.shape[0], len(set(lams)), room, comm)
        begun, on_file = working_time(), self.scratch.end if self.scratch is not None else 0
        factor = self._factor(spread, wanted, ridges, room)
        blocks = self._blocks(spread, kernel, factor)
        preconditioner = Preconditioner(factor, blocks, ridges, comm)
        taken = 8 * preconditioner.rank**2 * (2 + len(lams))
        if factor is not None and factor.scratch is None:
            taken += factor.rows.nbytes
        least = comm.allreduce(np.array([max(0, int(0.9 * (room - taken)))]), "min")[0]
        built = working_time() - begun
        with comm.phase("partition"):
            keep, gathered = Keep(int(least), self.scratch), gathers(comm, int(each * self.shape[0]), limit)
            tiles = None if within is None else within.tiles
            products = _products(spread, kernel, keep, gathered, tiles)
        largest = float(comm.allreduce(np.array([spread.diagonal(kernel).max(initial=0.0)]), "max")[0])
        B = spread.scaled(np.ascontiguousarray(np.tile(wanted.y.T, (len(lams), 1))))
        advance = options.progress(f"conjugate gradients ({wanted.name})", cost.TYPICAL)
        begun, before = working_time(), int(comm.sent("train")[0].sum())
        solution = solve(products, preconditioner, B, criteria, largest, options.checkpoint, wanted.piece, advance)
        with comm.uncounted():
            sent = comm.allreduce(np.array([int(comm.sent("train")[0].sum()) - before], np.int64))[0]
        facts = {
            "what": wanted.name, "preconditioner": options.preconditioner, "rank": preconditioner.rank,
            "iterations": solution.iterations.tolist(), "residual": solution.residual.tolist(),
            "stopped": solution.stopped, "products": solution.products,
            "values": "single, refined in double" if products.single else "double",
            "kept": keep.share, "rows": products.rows,
            "seconds_factor": built, "seconds_iterations": working_time() - begun,
            "bytes": {"sent": int(sent), "predicted": solution.sent},
            **({"scratch_gbps": self.scratch.rate / 1e9} if self.scratch is not None and self.scratch.read else {}),
        }  # fmt: skip
        keep.forget()
        if self.scratch is not None:
            del factor, preconditioner, blocks, products  # the factor may be in the scratch file
            self.scratch.free(on_file)
        return spread.scaled(solution.x), solution, facts

    def _factor(
        self, spread: SpreadRows, wanted: RidgeProblem, ridges_of_sides: NDArray[np.float64], room: int
    ) -> Factor | None:  # fmt: skip
        """The low-rank factor, if the preconditioner has one: of the requested rank, or of the most economical one."""
        options, comm, kernel, piece = self.options, spread.comm, wanted.kernel, wanted.piece
        if options.preconditioner == "local":
            return None
        mu, ridges = float(ridges_of_sides.min()), len(np.unique(ridges_of_sides))
        dtype = spread.factor_dtype(kernel, mu)
        half = room // 2 * 4 // dtype.itemsize
        fits = int(comm.allreduce(np.array([cost.largest_rank(half, spread.X.shape[0], ridges)], np.int64), "min")[0])
        max_rank, on_disk = min(fits, spread.n), False
        if options.rank is not None and min(options.rank, spread.n) > max_rank:
            on_disk = self.scratch is not None
            if not on_disk:
                with comm.agreed():
                    raise InputError(
                        f"rank {options.rank}: a factor of {spread.n:,} x {options.rank:,} does not fit into "
                        f"{options.memory_limit / memory.GIB:.3g} GiB per rank; the largest that fits is {max_rank:,}: "
                        "use that, more ranks, a larger --memory-limit, or --scratch DIR"
                    )
            with comm.agreed():
                need = 8 * options.rank**2 * (2 + ridges)
                what = f"storing the {options.rank:,} x {options.rank:,} cores of a factor"
                memory.require(need, room, what, "use a smaller --rank, fewer lambdas, or a larger --memory-limit")
        share = 1.0 if wanted.within is None else wanted.within.share
        work = cost.Work(spread.n, spread.X.shape[1], cost.sides(ridges_of_sides), max(mu, 1e-300), options.tol, share)

        def enough(traces: NDArray[np.float64]) -> bool:
            if options.rank is not None:
                return False
            with comm.uncounted():  # the ranks' traces may differ in the last bit
                return bool(comm.bcast(np.array([cost.enough(work, traces)], np.uint8))[0])

        def computed() -> Kept:
            pivoted: Pivoted = pivoted_cholesky(
                spread, kernel, max_rank if options.rank is None else min(options.rank, spread.n), options.seed,
                enough, dtype, options.preconditioner == "nystrom",
                self.scratch.array if on_disk and self.scratch is not None else np.empty,
            )  # fmt: skip
            return {"rows": pivoted.rows, "traces": pivoted.traces}

        with comm.phase("train"):
            # A factor in a scratch file is not copied to the checkpoint.
            rows = (
                computed()["rows"]
                if on_disk
                else remembered(options.checkpoint, f"{piece}-factor", computed, comm)["rows"]
            )
        return Factor(rows, self.scratch if on_disk else None) if len(rows) else None

    def _blocks_bytes(self, n_local: int, ridges: int, room: int, comm: Communicator) -> int:
        """Bytes that :meth:`_blocks` takes; raises a MemoryLimitError if `room` is less; collective."""
        if self.options.preconditioner not in ("local", "two-level"):
            return 0
        need = 8 * n_local * PART * (1 + ridges)
        with comm.agreed():
            remedy = "use --preconditioner pivoted, or more ranks"
            memory.require(need, room, "storing the blocks of the preconditioner", remedy)
        return need

    def _blocks(self, spread: SpreadRows, kernel: Kernel, factor: Factor | None) -> ResidualBlocks | None:
        """Blocks of about `PART` of this rank's rows each, if the preconditioner has blocks."""
        if self.options.preconditioner not in ("local", "two-level"):
            return None
        n_local = spread.X.shape[0]
        P = max(1, -(-n_local // PART))
        parts: list[NDArray[np.int64]] = []
        if n_local:
            labels = divide("kbalance", P, spread.X, Communicator(), self.options.seed).labels
            parts = [np.flatnonzero(labels == p) for p in range(P)]
        with spread.comm.phase("train"):
            return residual_blocks(spread, kernel, factor, [part for part in parts if len(part)])


Solved = tuple[NDArray[np.float64], CGSolution, dict[str, Any]]  # alpha, the solution, and the report's entry
Solver = Callable[[RidgeProblem, StoppingCriteria, Communicator], Solved]


def solve_islands(solve_one: Solver, wanted: RidgeProblem, criteria: StoppingCriteria, comm: Communicator) -> Solved:
    """Cut K by a bound, and solve each island by `solve_one`; collective.

    Notes
    -----
    Rows first move so that few near ones are on different ranks, once, and the solution travels back. The bound takes
    `SHARE` of the tolerance at most. The islands are solved one after the other, each on all ranks, so
    each has all of the memory for its factor and its kernel values.
    """
    begun, lams = working_time(), len(wanted.lams)
    with comm.phase("partition"):
        n = int(comm.allreduce(np.array([float(wanted.X.shape[0])]))[0])
        allowed = (
            SHARE * criteria.tol * min(wanted.lams) * n
        )  # norm of what is left out, if no weight is above the mean
        wanted, routed = _moved(wanted, allowed, comm)
        m = wanted.X.shape[0]
        w = np.ones(m) if wanted.weights is None else wanted.weights
        weight = float(comm.allreduce(np.array([w.sum()]))[0]) / n
        largest = float(comm.allreduce(np.array([w.max(initial=0.0)]), "max")[0]) / weight  # of S^2
        systems, cut = islands(dense(wanted.X), wanted.kernel, allowed / largest, comm)
        cut = KernelCut(cut.squared, cut.bound * largest, cut.allowed * largest, cut.share)
        squares = np.tile(_squared_norms(wanted.y.T * np.sqrt(w / weight), comm), lams)
    t = len(squares)
    alpha, x, squared_residual = np.zeros((t, m)), np.zeros((t, m)), np.zeros(t)
    iterations, stopped, sent = np.zeros(t, np.int64), ["residual"] * t, 0
    products: Counter[str] = Counter()
    facts: list[dict[str, Any]] = []
    for number, island in enumerate(systems):
        rows = island.rows
        weights = None if wanted.weights is None else wanted.weights[rows]
        seconds = criteria.max_time - (working_time() - begun)
        if not comm.all(seconds > 0):  # its solution stays 0
            scales = np.ones(len(rows)) if weights is None else weights / weight
            with comm.phase("partition"):
                squared_residual += np.tile(_squared_norms(wanted.y[rows].T * np.sqrt(scales), comm), lams)
            stopped = ["time"] * t
            continue
        count = sum(int(ends[-1]) for ends in island.tiles.ends)
        problem = replace(
            wanted, X=np.ascontiguousarray(dense(wanted.X)[rows][:, island.features]), number=wanted.number[rows],
            y=wanted.y[rows], weights=weights,
            within=Within(n, weight, island.tiles, island.tiles.pairs / count**2),
            name=f"{wanted.name}, island {number + 1} of {len(systems)}",
            piece=f"{wanted.piece}-island-{number:06d}",
        )  # fmt: skip
        # The bound, at most SHARE of the tolerance but for rounding, is added to the residual.
        stricter = replace(criteria, tol=(1.0 - 1.1 * SHARE) * criteria.tol, max_time=seconds)
        alpha[:, rows], solution, entry = solve_one(problem, stricter, comm)
        x[:, rows] = solution.x
        squared_residual += np.square(solution.residual * solution.size)
        iterations = np.maximum(iterations, solution.iterations)
        stopped = [new if old == "residual" else old for old, new in zip(stopped, solution.stopped, strict=True)]
        products.update(solution.products)
        sent += solution.sent
        facts.append({**entry, "n": count, "features": len(island.features)})
    with comm.phase("partition"):
        norms = np.sqrt(_squared_norms(x, comm))
        if routed is not None:  # back to the ranks that the rows came from
            alpha, x = (np.ascontiguousarray(routed.home(np.ascontiguousarray(V.T)).T) for V in (alpha, x))
    size = np.sqrt(np.where(squares > 0, squares, 1.0))
    residual = (np.sqrt(squared_residual) + cut.bound * norms) / size
    together = CGSolution(x, residual, iterations, stopped, size, dict(products), sent)
    return alpha, together, _entry(wanted.name, facts, cut, len(systems), together)


def _moved(wanted: RidgeProblem, allowed: float, comm: Communicator) -> tuple[RidgeProblem, Routed | None]:
    """The problem, with its rows on the ranks that :func:`owners` chooses, and their way; collective."""
    if comm.size == 1:
        return wanted, None
    X, t = dense(wanted.X), wanted.y.shape[1]
    w = np.zeros((len(X), 0)) if wanted.weights is None else wanted.weights[:, None]
    packed = np.column_stack([wanted.number, wanted.y, w, X])  # a number below 2^53 is exact as a float64
    routed = Routed.to(packed, owners(X, wanted.kernel, allowed, comm), comm)
    number, y, w, rows = np.split(routed.rows, np.cumsum([1, t, w.shape[1]]), axis=1)
    moved = replace(
        wanted, X=np.ascontiguousarray(rows, X.dtype), number=number[:, 0].astype(np.int64), y=y.copy(),
        weights=None if wanted.weights is None else w[:, 0].copy(),
    )  # fmt: skip
    return moved, routed


def _squared_norms(V: NDArray[np.float64], comm: Communicator) -> NDArray[np.float64]:
    """Squared norms of the rows of `V`, shape (t, m), over all ranks; the same bits on all ranks."""
    return comm.bcast(comm.allreduce(np.einsum("ij,ij->i", V, V)))


def _entry(
    name: str, facts: list[dict[str, Any]], cut: KernelCut, systems: int, solution: CGSolution
) -> dict[str, Any]:  # fmt: skip
    """The report's entry: that of one system, and the islands' figures."""
    entry = {key: value for key, value in facts[0].items() if key not in ("n", "features")} if facts else {}
    work = np.array([fact["n"] ** 2 for fact in facts], np.float64)
    return entry | {
        "what": name, "rank": max((fact["rank"] for fact in facts), default=0),
        "iterations": solution.iterations.tolist(), "residual": solution.residual.tolist(),
        "stopped": solution.stopped, "products": solution.products,
        "values": max((fact["values"] for fact in facts), key=lambda words: words.startswith("double"), default=""),
        "kept": float(work @ [fact["kept"] for fact in facts] / max(1.0, work.sum())),
        "seconds_factor": sum(fact["seconds_factor"] for fact in facts),
        "seconds_iterations": sum(fact["seconds_iterations"] for fact in facts),
        "bytes": {key: sum(fact["bytes"][key] for fact in facts) for key in ("sent", "predicted")},
        "near": {
            "radius": math.sqrt(cut.squared) if math.isfinite(cut.squared) else None, "bound": cut.bound,
            "allowed": cut.allowed, "share": cut.share, "islands": systems,
            "rows": [fact["n"] for fact in facts], "features": [fact["features"] for fact in facts],
            "ranks": [fact["rank"] for fact in facts], "iterations": [max(fact["iterations"]) for fact in facts],
        },
    }  # fmt: skip
