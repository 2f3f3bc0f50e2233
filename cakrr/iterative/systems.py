"""Solution of all systems of one sigma at once, for every lambda and target, whole or island by island.

The systems of one kernel: rows, targets and lambdas.

Solution of all systems of one sigma at once, for every lambda and target: factor, preconditioner and report.

Solution island by island: rows beyond reach of all others are a system of their own, with its own iterations.

What is left out of K changes the residual of the whole system by at most bound |x| / |b|. The report's residual has
this bound added to it, so it bounds the residual of the system without a cut.
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
from cakrr.iterative.islands import SHARE, Island, KernelCut, Tiles, islands, owners
from cakrr.iterative.near_products import Borrowing, NearProducts, borrows
from cakrr.iterative.preconditioner import Factor, Preconditioner, ResidualBlocks, SpreadRows, residual_blocks
from cakrr.iterative.products import Keep, KernelProducts, gathers
from cakrr.iterative.solver import CGSolution, Rules, solve
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


PART = 768  # rows of a block of the preconditioners local and two-level


def needed(shape: tuple[int, int, int], row_bytes: float, lams: int, limit: int, comm: Communicator) -> int:
    """Bytes that this rank needs for its rows in both precisions, the other ranks' rows, and all vectors.

    `shape` holds the number of rows on all ranks, of rows on this rank, and of targets.
    """
    n, n_local, targets = shape
    sides = lams * targets
    everyone = int(1.5 * row_bytes * n) if gathers(comm, int(row_bytes * n), limit) else int(4 * row_bytes * n_local)
    vectors: int = 8 * sides * (12 * n_local + (2 * threads.current() + 2) * n // 2)
    return int(3 * row_bytes * n_local) + everyone + vectors + 24 * n


def _products(
    spread: SpreadRows, kernel: Kernel, keep: Keep, gathered: bool, tiles: Tiles | None
) -> KernelProducts:  # fmt: skip
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
    comm : Communicator
    scratch : Scratch or None

    Attributes
    ----------
    solutions : list of dict
        Entry of the report for each solution.
    """

    def __init__(
        self, options: RidgeOptions, shape: tuple[int, int, int], comm: Communicator, scratch: Scratch | None = None
    ) -> None:
        self.options, self.shape, self.comm, self.scratch = options, shape, comm, scratch
        self.solutions: list[dict[str, Any]] = []

    def solve(self, wanted: RidgeProblem, rules: Rules) -> tuple[NDArray[np.float64], CGSolution]:
        """Alpha of this rank's rows for every lambda and target, shape (L t, m), and the solution; collective."""
        if self.options.near:
            alpha, solution, facts = solve_islands(self.solve_one, wanted, rules, self.comm)
        else:
            alpha, solution, facts = self.solve_one(wanted, rules)
        self.solutions.append(facts)
        return alpha, solution

    def solve_one(
        self, wanted: RidgeProblem, rules: Rules
    ) -> tuple[NDArray[np.float64], CGSolution, dict[str, Any]]:  # fmt: skip
        """Solve one system: as :meth:`solve`, with its entry of the report; collective."""
        comm, options, X, kernel, lams = self.comm, self.options, wanted.X, wanted.kernel, wanted.lams
        within = wanted.within
        with comm.phase("partition"):
            weight = None if within is None else within.weight
            spread = SpreadRows(X, wanted.number, kernel, comm, wanted.weights, weight)
            total = int(comm.allreduce(np.array([nbytes(X)], np.int64))[0])
        each = total / max(1, spread.n)
        ridges = np.repeat(np.array(lams) * (spread.n if within is None else within.n), wanted.y.shape[1])
        limit = options.memory_limit
        room = limit - needed(self.shape, each, len(lams), limit, comm)
        room -= self._blocks_bytes(X.shape[0], len(set(lams)), room)
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
        solution = solve(products, preconditioner, B, rules, largest, options.checkpoint, wanted.piece, advance)
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
        options, comm, kernel, piece = self.options, self.comm, wanted.kernel, wanted.piece
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

    def _blocks_bytes(self, n_local: int, ridges: int, room: int) -> int:
        """Bytes that :meth:`_blocks` takes; raises a MemoryLimitError if `room` is less; collective."""
        if self.options.preconditioner not in ("local", "two-level"):
            return 0
        need = 8 * n_local * PART * (1 + ridges)
        with self.comm.agreed():
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
        with self.comm.phase("train"):
            return residual_blocks(spread, kernel, factor, [part for part in parts if len(part)])


Solved = tuple[NDArray[np.float64], CGSolution, dict[str, Any]]  # alpha, the solution, and the report's entry
Solver = Callable[[RidgeProblem, Rules], Solved]


def solve_islands(solve_one: Solver, wanted: RidgeProblem, rules: Rules, comm: Communicator) -> Solved:
    """Cut K by a bound, and solve each island by `solve_one`; collective.

    Notes
    -----
    Rows first move so that few near ones are on different ranks, once, and the solution travels back. The bound takes
    `SHARE` of the tolerance at most. The islands are solved one after the other, each on all ranks, so
    each has all of the memory for its factor and its kernel values.
    """
    return _Archipelago(wanted, rules, comm).solve(solve_one)


class _Archipelago:
    """One call of :func:`solve_islands`."""

    def __init__(self, wanted: RidgeProblem, rules: Rules, comm: Communicator) -> None:
        self.rules, self.comm, self.begun = rules, comm, working_time()
        self.routed: Routed | None = None
        with comm.phase("partition"):
            n = float(comm.allreduce(np.array([float(wanted.X.shape[0])]))[0])
            wanted = self._moved(wanted, int(n))
            self.wanted, m = wanted, wanted.X.shape[0]
            w = np.ones(m) if wanted.weights is None else wanted.weights
            self.weight = float(comm.allreduce(np.array([w.sum()]))[0]) / n
            largest = float(comm.allreduce(np.array([w.max(initial=0.0)]), "max")[0]) / self.weight  # of S^2
            self.n = int(n)
            allowed = self._allowed(wanted, self.n) / largest
            self.islands, cut = islands(dense(wanted.X), wanted.kernel, allowed, comm)
            self.cut = KernelCut(cut.squared, cut.bound * largest, cut.allowed * largest, cut.share)
            self.squares = np.tile(self._norms(wanted.y.T * np.sqrt(w / self.weight)), len(wanted.lams))
        t = len(self.squares)
        self.alpha, self.x, self.squared_residual = np.zeros((t, m)), np.zeros((t, m)), np.zeros(t)
        self.iterations, self.stopped = np.zeros(t, np.int64), ["residual"] * t
        self.products: Counter[str] = Counter()
        self.facts: list[dict[str, Any]] = []
        self.sent = 0

    def _allowed(self, wanted: RidgeProblem, n: int) -> float:
        """Norm of what may be left out of K, if no weight is above the mean."""
        return SHARE * self.rules.tol * min(wanted.lams) * n

    def _moved(self, wanted: RidgeProblem, n: int) -> RidgeProblem:
        """The problem, with its rows on the ranks that :func:`owners` chooses; collective."""
        if self.comm.size == 1:
            return wanted
        X, t = dense(wanted.X), wanted.y.shape[1]
        w = np.zeros((len(X), 0)) if wanted.weights is None else wanted.weights[:, None]
        packed = np.column_stack([wanted.number, wanted.y, w, X])  # a number below 2^53 is exact as a float64
        toward = owners(X, wanted.kernel, self._allowed(wanted, n), self.comm)
        self.routed = Routed.to(packed, toward, self.comm)
        number, y, w, rows = np.split(self.routed.rows, np.cumsum([1, t, w.shape[1]]), axis=1)
        return replace(
            wanted, X=np.ascontiguousarray(rows, X.dtype), number=number[:, 0].astype(np.int64), y=y.copy(),
            weights=None if wanted.weights is None else w[:, 0].copy(),
        )  # fmt: skip

    def _home(self, V: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows of `V`, shape (t, m), for the rows that this rank gave; collective."""
        if self.routed is None:
            return V
        return np.ascontiguousarray(self.routed.home(np.ascontiguousarray(V.T)).T)

    def _norms(self, V: NDArray[np.float64]) -> NDArray[np.float64]:
        """Squared norms of the rows of `V`, shape (t, m), over all ranks; the same bits on all ranks."""
        return self.comm.bcast(self.comm.allreduce(np.einsum("ij,ij->i", V, V)))

    def solve(self, solve_one: Solver) -> Solved:
        """Solve the islands, and put the solutions together."""
        for number, island in enumerate(self.islands):
            self._solve(solve_one, number, island)
        with self.comm.phase("partition"):
            x = np.sqrt(self._norms(self.x))
            alpha, solved = self._home(self.alpha), self._home(self.x)
        size = np.sqrt(np.where(self.squares > 0, self.squares, 1.0))
        residual = (np.sqrt(self.squared_residual) + self.cut.bound * x) / size
        solution = CGSolution(
            solved, residual, self.iterations, self.stopped, size, dict(self.products), self.sent
        )  # fmt: skip
        return alpha, solution, self._entry(solution)

    def _solve(self, solve_one: Solver, number: int, island: Island) -> None:
        """Solve one island, unless the time is over, and add it to the sums."""
        wanted, rows = self.wanted, island.rows
        seconds = self.rules.max_time - (working_time() - self.begun)
        if not self.comm.all(seconds > 0):
            weights = np.ones(len(rows)) if wanted.weights is None else wanted.weights[rows] / self.weight
            with self.comm.phase("partition"):
                self.squared_residual += np.tile(self._norms(wanted.y[rows].T * np.sqrt(weights)), len(wanted.lams))
            self.stopped = ["time"] * len(self.stopped)
            return
        count = sum(int(ends[-1]) for ends in island.tiles.ends)
        within = Within(self.n, self.weight, island.tiles, island.tiles.pairs / count**2)
        problem = replace(
            wanted, X=np.ascontiguousarray(dense(wanted.X)[rows][:, island.features]), number=wanted.number[rows],
            y=wanted.y[rows], weights=None if wanted.weights is None else wanted.weights[rows], within=within,
            name=f"{wanted.name}, island {number + 1} of {len(self.islands)}",
            piece=f"{wanted.piece}-island-{number:06d}",
        )  # fmt: skip
        # The bound, at most SHARE of the tolerance but for rounding, is added to the residual.
        rules = replace(self.rules, tol=(1.0 - 1.1 * SHARE) * self.rules.tol, max_time=seconds)
        alpha, solution, facts = solve_one(problem, rules)
        self.alpha[:, rows], self.x[:, rows] = alpha, solution.x
        self.squared_residual += np.square(solution.residual * solution.size)
        self.iterations = np.maximum(self.iterations, solution.iterations)
        self.stopped = [
            new if old == "residual" else old for old, new in zip(self.stopped, solution.stopped, strict=True)
        ]
        self.products.update(solution.products)
        self.sent += solution.sent
        self.facts.append({**facts, "n": count, "features": len(island.features)})

    def _entry(self, solution: CGSolution) -> dict[str, Any]:
        """The report's entry: that of one system, and the islands' figures."""
        each, cut = self.facts, self.cut
        entry = dict(each[0]) if each else {}
        for name in ("n", "features"):
            entry.pop(name, None)
        work = np.array([fact["n"] ** 2 for fact in each], np.float64)
        return entry | {
            "what": self.wanted.name, "rank": max((fact["rank"] for fact in each), default=0),
            "iterations": solution.iterations.tolist(), "residual": solution.residual.tolist(),
            "stopped": solution.stopped, "products": solution.products,
            "values": max((fact["values"] for fact in each), key=lambda words: words.startswith("double"), default=""),
            "kept": float(work @ [fact["kept"] for fact in each] / max(1.0, work.sum())),
            "seconds_factor": sum(fact["seconds_factor"] for fact in each),
            "seconds_iterations": sum(fact["seconds_iterations"] for fact in each),
            "bytes": {name: sum(fact["bytes"][name] for fact in each) for name in ("sent", "predicted")},
            "near": {
                "radius": math.sqrt(cut.squared) if math.isfinite(cut.squared) else None, "bound": cut.bound,
                "allowed": cut.allowed, "share": cut.share, "islands": len(self.islands),
                "rows": [fact["n"] for fact in each], "features": [fact["features"] for fact in each],
                "ranks": [fact["rank"] for fact in each], "iterations": [max(fact["iterations"]) for fact in each],
            },
        }  # fmt: skip
