"""The task of support vector regression (epsilon-SVR and nu-SVR) and one-class SVMs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.rows import LARGEST_TARGET, AnyRows, check_targets, is_sparse, nbytes
from cacore.data.stored import in_memory
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.machine import memory
from cacore.machine.clock import working_time
from cacore.svm.dual import Dual, Solution
from cacore.svm.problem import numeric_gamma
from cacore.svm.solvers import DEFAULT, part_solver
from cacore.tuning.results import Results
from casvm.fit import SVMFit
from casvm.methods.problems import STATISTICS, check_parts, named, not_met
from casvm.model.svr import PartSVR, SVRModel
from casvm.search.regression import search
from casvm.solver.nu import solve_regression
from casvm.solver.quantiles import solve_quantiles
from casvm.tasks.task import SVMTask
from casvm.value_options import NU, PARTITIONERS, SCALE, SCALED, ValueMethod, ValueOptions
from partition.base import Algorithm, Division
from partition.divide import order_of
from partition.overlap import overlapping
from partition.redistribute import Parts
from partition.routing import Soft

if TYPE_CHECKING:
    from cacore.io.checkpoint import Kept

_ADDED = "added"  # column: True for rows of other parts, if parts overlap


@dataclass(frozen=True)
class Problem:
    """The dual problem of rows with the columns target "y" and "weight".

    Attributes
    ----------
    svm_type : {"epsilon_svr", "nu_svr", "quantile_svr", "one_class"}
    params : dict of str to float
        The ones of C, epsilon and nu that this type has.
    levels : tuple of float
        Levels of the quantiles, ascending; each is a dual of its own.
    """

    svm_type: str
    params: dict[str, float]
    levels: tuple[float, ...] = ()

    @classmethod
    def regression(cls, options: ValueOptions, unit: float) -> Problem:
        """The regression problem with these options, in the targets' own units."""
        alone = options.nu is not None or options.quantile is not None
        named = {"C": options.C} | ({} if alone else {"epsilon": options.epsilon})
        params = {name: float(SCALED[name] * unit if value == SCALE else value) for name, value in named.items()}
        if options.nu is not None:
            return cls("nu_svr", params | {"nu": float(options.nu)})
        return cls("quantile_svr" if options.levels else "epsilon_svr", params, options.levels)

    def duals(self, rows: Samples, comm: Communicator) -> list[Dual]:
        """The duals of these rows, which are distributed over the ranks: one, or one per level; collective."""
        if self.svm_type != "one_class":
            C = self.params["C"] * rows["weight"]
            if self.levels:
                return [Dual.quantile(rows["y"], C, level) for level in self.levels]
            return [Dual.regression(rows["y"], C, self.params["epsilon"])]
        sums = comm.allgather(np.array([rows["weight"].sum()]))
        before, after = float(sums[: comm.rank].sum()), float(sums[comm.rank + 1 :].sum())
        return [Dual.one_class(rows["weight"], self.params["nu"], before, after)]

    def solve(
        self, rows: Samples, kernel: Kernel, limits: Limits, cache_bytes: int, solver: str = DEFAULT
    ) -> list[Solution]:  # fmt: skip
        """Solve the duals of these rows on this rank alone, by the solver of this name; nu-SVR always by SMO."""
        X = in_memory(rows.X)
        if self.svm_type == "nu_svr":
            bound = self.params["C"] * rows["weight"]
            return [solve_regression(X, kernel, rows["y"], bound, self.params["nu"], limits, cache_bytes)]
        duals = self.duals(rows, Communicator())
        if self.levels:
            return solve_quantiles(X, kernel, duals, limits, cache_bytes, solver)
        return [part_solver(solver)(X, kernel, dual, limits, cache_bytes) for dual in duals]


@dataclass(kw_only=True)
class ValuesTask(SVMTask[PartSVR, SVRModel]):
    """A regression or one-class task: one real output per row.

    Attributes
    ----------
    options : ValueOptions
        The options, with `tol` as a number.
    rows : Samples
        Columns: target "y", "weight" and global number "row".
    n : int
        Number of rows on all ranks.
    problem : Problem
    unit : float
        Standard deviation of the targets; 1 if it is not needed.
    """

    bound = "weight"

    method: ValueMethod
    options: ValueOptions
    n: int = 0
    problem: Problem = field(init=False)
    unit: float = 1.0

    def __post_init__(self) -> None:
        self.divisions = self.options.divisions if self.P > 1 else 1

    def columns(self, y: NDArray[Any], weights: NDArray[np.float64], comm: Communicator) -> dict[str, NDArray[Any]]:
        """Target, weight and global number of each row; sets the problem, and `tol` as a number. Collective."""
        options, one_class = self.options, self.method.one_class
        if not one_class:
            check_targets(np.where(weights > 0, y, 0.0), "the training rows", LARGEST_TARGET, comm)
        if not one_class and (self.searches or SCALE in (options.C, options.epsilon, options.tol)):
            self.unit = deviation(y, weights, comm)
        if options.tol == SCALE:
            options = self.options = replace(options, tol=SCALED["tol"] * self.unit)
        if one_class:
            self.problem = Problem("one_class", {"nu": float(NU if options.nu is None else options.nu)})
        else:
            self.problem = Problem.regression(options.with_setting(None), self.unit)  # until a search has chosen
        begin, _ = comm.offset(len(y))
        return {"y": y, "weight": weights, "row": np.arange(begin, begin + len(y))}

    def check_rows(self, comm: Communicator) -> None:
        """Refuse fewer rows than parts; collective."""
        self.n = comm.offset(len(self.rows))[1]
        with comm.agreed():
            if not self.n:
                raise InputError("sample_weight: every weight is zero; at least one row is needed to train on")
            if self.n < self.P:
                raise InputError(f"{self.P:,} parts of {self.n:,} rows: every part needs a row; ask for fewer")

    @property
    def partitioner(self) -> str | Algorithm:
        """The requested partitioner; empty for random parts."""
        chosen: str | Algorithm = self.options.partitioner or PARTITIONERS[0]
        return "" if chosen == "random" else chosen

    def widened(self, rows: Samples, division: Division, comm: Communicator) -> tuple[Samples, Division]:
        """Add to each part the closest rows of other parts, if parts overlap; collective."""
        options = self.options
        if not options.overlap:
            return rows, division
        n = len(rows)
        places, division = overlapping(rows.X, division, options.overlap, comm)
        with comm.agreed():
            needed = int(nbytes(rows.X) * (1 + 2 * len(places) / max(1, n)))
            remedy = "use more ranks, or a smaller overlap"
            memory.require(needed, options.memory_limit, "storing a rank's rows and overlaps", remedy)
        rows.columns["order"] = order_of(rows, options.seed, comm)
        rows = rows.take(places)
        rows.columns[_ADDED] = np.arange(len(places)) >= n
        return rows, division

    def check_memory(self, parts: Parts, comm: Communicator) -> None:
        """Refuse parts, and rows kept for further divisions, that do not fit beside the kernel cache."""
        check_parts(parts, nbytes(parts.X) + nbytes(self.rows.X), self.options)

    def choose(self, parts: Parts, comm: Communicator) -> None:
        """Choose C, epsilon and gamma, at the cost of :func:`casvm.search.regression.search`; collective."""
        self.settle(search(parts, self.n, self.P, self.unit, self.options, comm), parts.X, comm)

    def settle(self, found: Results | None, X: AnyRows, comm: Communicator) -> None:
        """Use the setting that a search `found`, or "scale" if it is None; `X` are this rank's rows. Collective.

        Of the problem, only what the search has chosen changes: a task may have set the rest.
        """
        options, chosen = self.options.with_setting(found), self.options.several
        self.kernel = options.kernel_with(numeric_gamma(X, options.gamma, comm, options.kernel))
        params = {
            name: value for name, value in Problem.regression(options, self.unit).params.items() if name in chosen
        }
        self.problem = replace(self.problem, params={**self.problem.params, **params})
        self.found, self.options = found, options

    def solve(self, number: int, rows: Samples, side_by_side: int) -> Kept:
        """Solve a part: about 2 s m nnz flops for m rows of nnz nonzeros and s support vectors."""
        begun, options = working_time(), self.options
        cache_bytes = options.cache_bytes // side_by_side
        solutions = self.problem.solve(rows, self.kernel, options.limits, cache_bytes, options.solver)
        # One-class coefficients of a part of m rows add up to nu m; scaling makes parts of different sizes comparable.
        scale = self.n / self.P / len(rows) if self.problem.svm_type == "one_class" else 1.0
        return merged([kept_of(one, begun, scale) for one in solutions])

    def part(self, rows: Samples, kept: Kept) -> PartSVR:
        """The part's model, with its support vectors in the order of all rows."""
        numbers = rows["row"][kept["places"]]
        order = np.argsort(numbers)
        beta = kept["beta"][order]
        return PartSVR(
            rows.X[kept["places"][order]], numbers[order], beta if self.problem.levels else beta[:, 0], kept["b"].copy()
        )  # fmt: skip

    def soft(self, parts: Parts, centers: NDArray[np.float64], comm: Communicator) -> Soft | None:
        """Parameters of the route "soft", or None, from each part without the rows added to it; collective."""
        own = replace(parts, X=parts.X[~parts[_ADDED]]) if _ADDED in parts.columns and self.route == "soft" else parts
        return super().soft(own, centers, comm)

    def model(self, **where: Any) -> SVRModel:
        """The model with these parts."""
        return SVRModel(**self.described(), **where)

    def described(self) -> dict[str, Any]:
        """Fields of the model that do not depend on its parts."""
        X = self.rows.X  # also where the rows are given away
        return {
            "method": self.method.name, "svm_type": self.problem.svm_type, "kernel": self.kernel,
            "standardizer": self.standardizer, "params": self.problem.params, "dtype": str(X.dtype),
            "source": {"sparse": is_sparse(X)},
        }  # fmt: skip

    def fit(
        self, model: SVRModel, numbers: NDArray[np.float64], busy: NDArray[np.float64],
        sizes: NDArray[np.int64] | None = None,
    ) -> SVMFit[SVRModel]:  # fmt: skip
        """The result of training; `sizes` are the rows of each part, by default the model's."""
        sizes, tol = model.sizes if sizes is None else sizes, self.options.limits.tol
        solver = {**named(numbers), "converged": numbers[:, len(STATISTICS)] > 0}
        notes = not_met(numbers, tol, "parts")
        return SVMFit(model, sizes, solver, busy, float(self.options.tol), notes=notes, search=self.found)


def kept_of(solution: Solution, begun: float, scale: float = 1.0) -> Kept:
    """Arrays of a solution for a checkpoint; coefficients, shape (s, 1), and b are multiplied by `scale`."""
    counts = solution.kernel_rows, solution.kernel_values, solution.converged
    support = np.flatnonzero(solution.beta)
    numbers = [solution.iterations, len(support), solution.objective, solution.gap, working_time() - begun]
    return {
        "places": support, "beta": scale * solution.beta[support, None], "b": np.array([scale * solution.b]),
        "statistics": np.array([*numbers, *counts], np.float64),
    }  # fmt: skip


def merged(kept: Sequence[Kept]) -> Kept:
    """Arrays of the solutions of t duals of the same rows as one: "beta" has shape (s, t), "b" (t,).

    The s rows are those with a coefficient in any solution. Counts and objectives are added up; violation and seconds
    are the largest ones.
    """
    if len(kept) == 1:
        return kept[0]
    places = np.unique(np.concatenate([one["places"] for one in kept]))
    beta = np.zeros((len(places), len(kept)))
    for column, one in zip(beta.T, kept, strict=True):
        column[np.searchsorted(places, one["places"])] = one["beta"][:, 0]
    table = np.array([one["statistics"] for one in kept])
    numbers = table.sum(axis=0)
    largest = [STATISTICS.index("gap"), STATISTICS.index("seconds")]
    numbers[largest], numbers[-1] = table[:, largest].max(axis=0), table[:, -1].min()
    numbers[STATISTICS.index("n_support")] = len(places)
    return {"places": places, "beta": beta, "b": np.concatenate([one["b"] for one in kept]), "statistics": numbers}


def deviation(y: NDArray[np.float64], weights: NDArray[np.float64], comm: Communicator) -> float:
    """Standard deviation of all ranks' targets with a weight above 0; 1 if they are all equal.

    Two Allreduces, of 1 and of 3 numbers.
    """
    y = y[weights > 0]
    shift = comm.bcast(y[:1] if comm.rank == 0 and len(y) else np.zeros(1))[0]
    about = y - shift
    largest = float(comm.allreduce(np.array([np.abs(about).max(initial=0.0)]), "max")[0])
    if not largest:
        return 1.0
    about = about / largest  # so that squares neither overflow nor vanish
    n, total, square = comm.allreduce(np.array([len(y), about.sum(), about @ about]))
    return largest * float(np.sqrt(max(square / n - (total / n) ** 2, 0.0))) or 1.0
