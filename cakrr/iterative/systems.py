"""Solution of all systems of one sigma at once, for every lambda and target: factor, preconditioner and report."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import nbytes
from cacore.errors import InputError
from cacore.io.checkpoint import Kept, remembered
from cacore.kernels import Kernel
from cacore.linalg.pivoted import Pivoted, pivoted_cholesky
from cacore.machine import memory, threads
from cacore.machine.clock import working_time
from cacore.machine.scratch import Scratch
from cakrr.iterative import plan
from cakrr.iterative.apart import solve_islands
from cakrr.iterative.islands import Tiles
from cakrr.iterative.keep import Keep
from cakrr.iterative.near_products import Borrowing, NearProducts, borrows
from cakrr.iterative.preconditioner import Factor, Preconditioner, ResidualBlocks, residual_blocks
from cakrr.iterative.problem import RidgeProblem
from cakrr.iterative.products import KernelProducts, gathers
from cakrr.iterative.solver import CGSolution, Rules, solve
from cakrr.iterative.spread import SpreadRows
from cakrr.options import RidgeOptions
from partition.divide import divide

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
        advance = options.progress(f"conjugate gradients ({wanted.name})", plan.TYPICAL)
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
        self, spread: SpreadRows, wanted: RidgeProblem, every: NDArray[np.float64], room: int
    ) -> Factor | None:  # fmt: skip
        """The low-rank factor, if the preconditioner has one: of the requested rank, or of the most economical one."""
        options, comm, kernel, piece = self.options, self.comm, wanted.kernel, wanted.piece
        if options.preconditioner == "local":
            return None
        mu, ridges = float(every.min()), len(np.unique(every))
        dtype = spread.factor_dtype(kernel, mu)
        half = room // 2 * 4 // dtype.itemsize
        fits = int(comm.allreduce(np.array([plan.largest_rank(half, spread.X.shape[0], ridges)], np.int64), "min")[0])
        most, on_disk = min(fits, spread.n), False
        if options.rank is not None and min(options.rank, spread.n) > most:
            on_disk = self.scratch is not None
            if not on_disk:
                with comm.agreed():
                    raise InputError(
                        f"rank {options.rank}: a factor of {spread.n:,} x {options.rank:,} does not fit into "
                        f"{options.memory_limit / memory.GIB:.3g} GiB per rank; the largest that fits is {most:,}: "
                        "use that, more ranks, a larger --memory-limit, or --scratch DIR"
                    )
            with comm.agreed():
                need = 8 * options.rank**2 * (2 + ridges)
                what = f"storing the {options.rank:,} x {options.rank:,} cores of a factor"
                memory.require(need, room, what, "use a smaller --rank, fewer lambdas, or a larger --memory-limit")
        share = 1.0 if wanted.within is None else wanted.within.share
        work = plan.Work(spread.n, spread.X.shape[1], plan.sides(every), max(mu, 1e-300), options.tol, share)

        def enough(traces: NDArray[np.float64]) -> bool:
            if options.rank is not None:
                return False
            with comm.uncounted():  # the ranks' traces may differ in the last bit
                return bool(comm.bcast(np.array([plan.enough(work, traces)], np.uint8))[0])

        def made() -> Kept:
            found: Pivoted = pivoted_cholesky(
                spread, kernel, most if options.rank is None else min(options.rank, spread.n), options.seed, enough,
                dtype, options.preconditioner == "nystrom",
                self.scratch.array if on_disk and self.scratch is not None else np.empty,
            )  # fmt: skip
            return {"rows": found.rows, "traces": found.traces}

        with comm.phase("train"):
            # A factor in a scratch file is not copied to the checkpoint.
            rows = made()["rows"] if on_disk else remembered(options.checkpoint, f"{piece}-factor", made, comm)["rows"]
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
