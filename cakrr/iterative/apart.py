"""Solution island by island: rows beyond reach of all others are a system of their own, with its own iterations.

What is left out of K changes the residual of the whole system by at most bound |x| / |b|. The report's residual has
this bound added to it, so it bounds the residual of the system without a cut.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import dense
from cacore.machine.clock import working_time
from cacore.near.halo import Routed
from cakrr.iterative.islands import SHARE, Island, KernelCut, islands, owners
from cakrr.iterative.problem import RidgeProblem, Within
from cakrr.iterative.solver import CGSolution, Rules

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
        self.alpha, self.x, self.left = np.zeros((t, m)), np.zeros((t, m)), np.zeros(t)
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
        residual = (np.sqrt(self.left) + self.cut.bound * x) / size
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
                self.left += np.tile(self._norms(wanted.y[rows].T * np.sqrt(weights)), len(wanted.lams))
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
        self.left += np.square(solution.residual * solution.size)
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
        work = np.array([one["n"] ** 2 for one in each], np.float64)
        return entry | {
            "what": self.wanted.name, "rank": max((one["rank"] for one in each), default=0),
            "iterations": solution.iterations.tolist(), "residual": solution.residual.tolist(),
            "stopped": solution.stopped, "products": solution.products,
            "values": max((one["values"] for one in each), key=lambda words: words.startswith("double"), default=""),
            "kept": float(work @ [one["kept"] for one in each] / max(1.0, work.sum())),
            "seconds_factor": sum(one["seconds_factor"] for one in each),
            "seconds_iterations": sum(one["seconds_iterations"] for one in each),
            "bytes": {name: sum(one["bytes"][name] for one in each) for name in ("sent", "predicted")},
            "near": {
                "radius": math.sqrt(cut.squared) if math.isfinite(cut.squared) else None, "bound": cut.bound,
                "allowed": cut.allowed, "share": cut.share, "islands": len(self.islands),
                "rows": [one["n"] for one in each], "features": [one["features"] for one in each],
                "ranks": [one["rank"] for one in each], "iterations": [max(one["iterations"]) for one in each],
            },
        }  # fmt: skip
