"""SVMs whose answer is a number a row, on all ranks: one problem of all rows (Dis-SMO), or one a part.

They are regression, epsilon-SVR and nu-SVR, and one class. Training parts sends nothing.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import check_alike, check_range, is_sparse, nbytes
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.io.checkpoint import remembered
from cacore.io.fingerprints import fingerprint
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.machine import memory, threads
from cacore.svm.dual import Dual, Solution
from cacore.svm.problem import numeric_gamma
from cacore.tuning.results import Results
from casvm.methods.divide import deal
from casvm.methods.parts import gathered
from casvm.methods.problems import STATISTICS, check_memory, named, not_met, predicted_cost
from casvm.model.svr import PartSVR, SVRModel
from casvm.search.pieces import ROWS, WHOLE
from casvm.search.regression import search
from casvm.solver import distributed
from casvm.solver.nu import solve_regression
from casvm.solver.smo import solve_part
from casvm.value_options import NU, PARTITIONERS, SCALE, SCALED, Fit, Method, Options
from partition.divide import divide, hand_out
from partition.redistribute import Parts, assign_owners
from partition.routing import SOFT, gap

_CONVERGED = len(STATISTICS)  # the place behind them


@dataclass(frozen=True)
class Problem:
    """What is solved for rows with the columns target "y" and bound "C" of |beta|.

    Attributes
    ----------
    svm_type : {"epsilon_svr", "nu_svr", "one_class"}
    params : dict of str to float
        Those of C, epsilon and nu that this type has.
    """

    svm_type: str
    params: dict[str, float]

    def dual(self, rows: Samples, comm: Communicator) -> Dual:
        """The dual of these rows, of which each rank has some; collective."""
        if self.svm_type != "one_class":
            return Dual.regression(rows["y"], rows["C"], self.params["epsilon"])
        sums = comm.allgather(np.array([rows["C"].sum()]))
        return Dual.one_class(
            rows["C"], self.params["nu"], float(sums[: comm.rank].sum()), float(sums[comm.rank + 1 :].sum())
        )

    def solve(self, rows: Samples, kernel: Kernel, limits: Limits, cache_bytes: int) -> Solution:
        """The solution for some rows alone."""
        if self.svm_type == "nu_svr":
            return solve_regression(rows.X, kernel, rows["y"], rows["C"], self.params["nu"], limits, cache_bytes)
        return solve_part(rows.X, kernel, self.dual(rows, Communicator()), limits, cache_bytes)


@dataclass
class Prepared:
    """What both ways begin with.

    Attributes
    ----------
    rows : Samples
        This rank's, standardised if that was asked for, with the columns target "y", bound "C" of |beta| and global
        number "row".
    n : int
        Rows of all ranks.
    P : int
        Parts.
    problem : Problem
    kernel : Kernel
    standardizer : Standardizer or None
    options : Options
        With `tol` as a number.
    unit : float
        The targets' deviation, where that is needed.
    """

    rows: Samples
    n: int
    P: int
    problem: Problem
    kernel: Kernel
    standardizer: Standardizer | None
    options: Options
    unit: float

    def settled(self, rows: Samples, comm: Communicator) -> Prepared:
        """With these rows' bounds, and the kernel, of the options' one setting; collective."""
        options = self.options
        problem = _problem(options, self.unit)
        rows.columns["C"] = rows["C"] * problem.params["C"]
        kernel = options.kernel_with(numeric_gamma(rows.X, options.gamma, comm, options.kernel))
        return replace(self, problem=problem, kernel=kernel)

    def model(self, method: Method, **more: Any) -> SVRModel:
        """A model of such rows; `more` says where its parts are, and what they are."""
        X = self.rows.X  # also where the rows are given away
        return SVRModel(
            method=method.name, svm_type=self.problem.svm_type, kernel=self.kernel, standardizer=self.standardizer,
            params=self.problem.params, dtype=str(X.dtype), source={"sparse": is_sparse(X)}, **more,
        )  # fmt: skip


def fit(method: Method, train: Dataset, options: Options, comm: Communicator, test: Dataset | None = None) -> Fit:
    """Train, in parts or exactly; a collective call.

    Arguments and result are those of :meth:`cacore.run.method.Method.__call__`.

    Raises
    ------
    InputError
        On all ranks: options that make no sense, rows that do not fit together or cannot be used, more parts than rows,
        memory that does not suffice, a checkpoint of another run.

    Notes
    -----
    Exactly: see :func:`casvm.solver.distributed.solve`, and on one rank without a working set
    :func:`casvm.solver.smo.solve`; the model stays in pieces. A part costs what the latter does; this rank's rows, and
    the kernel caches. Training parts sends nothing; partitioning sends nothing for "random".
    """
    prepared = prepare(method, train, options, comm)
    return (of_all_rows if options.exact else in_parts)(method, prepared, comm)


def prepare(method: Method, train: Dataset, options: Options, comm: Communicator) -> Prepared:
    """Check what is given, on all ranks alike, and take the rows; collective.

    Raises
    ------
    InputError
        On all ranks: see :func:`fit`.
    """
    with comm.agreed():
        P = options.checked(method, comm.size)
    with comm.phase("read"):
        check_alike(train.X, comm)
        comm.require_equal({"sample_weight given (1) or not (0)": int(train.weights is not None)})
        y, weights = train.target(), train.row_weights()
        in_deviations = not method.one_class and (
            options.searches or SCALE in (options.C, options.epsilon, options.tol)
        )
        unit = _deviation(y, weights, comm) if in_deviations else 1.0
        if options.tol == SCALE:
            options = replace(options, tol=SCALED["tol"] * unit)
        if method.one_class:
            problem = Problem("one_class", {"nu": float(NU if options.nu is None else options.nu)})
        else:
            problem = _problem(replace(options, C=1.0, epsilon=0.0) if options.searches else options, unit)
        bound = problem.params.get("C", 1.0) * weights  # of settings that are compared: for C = 1
        if options.checkpoint is not None:
            _open_checkpoint(method, train, bound, P, options, comm)
        first, _ = comm.offset(len(y))
        rows = Samples(train.give(), {"y": y, "C": bound, "row": np.arange(first, first + len(y))})
        if train.weights is not None:  # rows of weight 0 count as absent
            kept = np.flatnonzero(weights)
            rows, weights = rows.take(kept), weights[kept]
        n = comm.offset(len(rows))[1]
        with comm.agreed():
            if not n:
                raise InputError("sample_weight: every weight is zero; at least one row is needed to train on")
            if n < P:
                raise InputError(f"{P:,} parts of {n:,} rows: every part needs a row; ask for fewer")
        standardizer = None
        if options.standardize:
            standardizer = Standardizer.fit(rows.X, comm, None if train.weights is None else weights)
            rows.X = standardizer.apply(rows.X)
        with comm.uncounted(), comm.agreed():
            check_range(rows.X, "the training rows")
        gamma = 1.0 if options.searches else numeric_gamma(rows.X, options.gamma, comm, options.kernel)
    return Prepared(rows, n, P, problem, options.kernel_with(gamma), standardizer, options, unit)


def _problem(options: Options, unit: float) -> Problem:
    """The regression of one setting, in the targets' own units."""
    named = {"C": options.C} | ({"epsilon": options.epsilon} if options.nu is None else {})
    params = {name: float(SCALED[name] * unit if value == SCALE else value) for name, value in named.items()}
    if options.nu is not None:
        return Problem("nu_svr", params | {"nu": float(options.nu)})
    return Problem("epsilon_svr", params)


def _deviation(y: NDArray[np.float64], weights: NDArray[np.float64], comm: Communicator) -> float:
    """Of all ranks' targets, those of weight 0 aside; 1 where they are all the same."""
    y = y[weights > 0]
    shift = comm.bcast(y[:1] if comm.rank == 0 and len(y) else np.zeros(1))[0]
    about = y - shift
    n, total, square = comm.allreduce(np.array([len(y), about.sum(), about @ about]))
    variance = square / n - (total / n) ** 2 if n else 0.0
    return float(np.sqrt(variance)) if variance > 1e-28 * square / max(n, 1) else 1.0


def _open_checkpoint(
    method: Method, train: Dataset, bound: NDArray[np.float64], P: int, options: Options, comm: Communicator
) -> None:
    """Take up the run that is kept in the checkpoint's directory, or begin it."""
    assert options.checkpoint is not None
    apart = ("progress", "checkpoint", "memory_limit", "cache_gib")
    facts = {name: value for name, value in vars(options).items() if name not in apart}
    facts |= {
        "method": method.name, "ranks": comm.size, "package": __version__, "features": train.X.shape[1],
        "dtype": str(train.X.dtype), "partitions": P,
        "training rows": fingerprint(train.X, train.target(), bound, comm),
    }  # fmt: skip
    options.checkpoint.open(facts, comm)


def of_all_rows(method: Method, prepared: Prepared, comm: Communicator) -> Fit:
    """Solve the one problem of all rows; collective. See :func:`fit`."""
    found = None
    if prepared.options.searches:
        prepared, found = settle_apart(prepared, comm)
    rows, options, problem = prepared.rows, prepared.options, prepared.problem
    with comm.agreed():
        cache_bytes = min(options.cache_bytes, 8 * prepared.n**2 + 2 * nbytes(rows.X))
        remedy = "use a smaller cache (--cache-gib), more ranks or --dtype float32"
        memory.require(nbytes(rows.X) + cache_bytes, options.memory_limit, "a rank's rows and its kernel cache", remedy)
    sizes = comm.allgather(np.array([len(rows)]))
    begun, advance = time.perf_counter(), options.progress("training", 1)

    def work() -> dict[str, NDArray[Any]]:
        if comm.size == 1 and options.working_set is None:
            return _kept(problem.solve(rows, prepared.kernel, options.limits, cache_bytes), begun)
        share = distributed.solve(
            rows.X, problem.dual(rows, comm), prepared.kernel, options.limits, cache_bytes, comm, options.working_set
        )  # fmt: skip
        kept = _kept(share, begun)
        for name in ("kernel_rows", "kernel_values"):
            place = STATISTICS.index(name)
            kept["statistics"][place] = comm.allreduce(kept["statistics"][place : place + 1])[0]
        return kept

    with comm.phase("train"):
        done = remembered(options.checkpoint, "solution", work, comm)
        advance()
    seconds = time.perf_counter() - begun
    part = _of_support(rows, done)
    if comm.rank:
        part.b = np.zeros(1)  # once in all pieces together
    with comm.phase("predict"):
        support = comm.allgather(np.array([len(part.rows)]))
    model = prepared.model(
        method, route="sum", centers=np.zeros((0, rows.X.shape[1])), sizes=support, owners=np.arange(comm.size),
        parts={comm.rank: part},
    )  # fmt: skip
    numbers = done["statistics"]
    numbers[STATISTICS.index("n_support")], numbers[STATISTICS.index("seconds")] = support.sum(), seconds
    with comm.uncounted():
        every = comm.allgather(np.array([seconds]))
        return _fitted(model, sizes, comm.bcast(numbers)[None], every, options, "", found)


def in_parts(method: Method, prepared: Prepared, comm: Communicator) -> Fit:
    """Train one machine a part (Algorithm 5 and its clustered relatives); collective. See :func:`fit`."""
    with comm.phase("partition"):
        parts = _divided(prepared, comm)
    with comm.agreed():
        largest = None if is_sparse(parts.X) else int(np.diff(parts.bounds).max(initial=0))
        check_memory(nbytes(parts.X), prepared.options, largest)
    found = None
    if prepared.options.searches:
        prepared, found = settle(prepared, parts, prepared.P, comm)
    options = prepared.options
    with comm.phase("train"):
        begun = time.perf_counter()
        solved = _solved(prepared, parts)
        busy = time.perf_counter() - begun
    comm.wait()
    with comm.phase("predict"):
        centers, sizes, owners = gathered(parts, comm)
        P = len(sizes)
        soft = SOFT.scaled(gap(parts.X, centers, comm), P) if options.route == "soft" and P > 1 else None
    model = prepared.model(
        method, route="nearest" if P == 1 else options.route, centers=centers, sizes=sizes, owners=owners, soft=soft,
        parts={number: part for number, (part, _) in solved.items()},
    )  # fmt: skip
    numbers = np.zeros((P, len(STATISTICS) + 1))
    for number, (_, line) in solved.items():
        numbers[number] = line
    with comm.uncounted():
        every = comm.allgather(np.array([busy]))
        return _fitted(model, sizes, comm.allreduce(numbers), every, options, "parts", found)


def settle(prepared: Prepared, parts: Parts, P: int, comm: Communicator) -> tuple[Prepared, Results | None]:
    """Choose C, epsilon and gamma in these parts, and bound the rows' |beta| by that C; collective."""
    found = search(parts, prepared.n, P, prepared.unit, prepared.options, comm)
    chosen: dict[str, Any] = dict.fromkeys(("C", "epsilon", "gamma"), SCALE) if found is None else found.chosen
    options = replace(prepared.options, cv=None, quick=False, **{"gamma": SCALE, **chosen})
    return replace(prepared, options=options).settled(parts, comm), found


def settle_apart(prepared: Prepared, comm: Communicator) -> tuple[Prepared, Results | None]:
    """The same in parts of about 2,000 rows, or of all of few rows, that are made of a copy of the rows; collective."""
    rows, options = prepared.rows, prepared.options
    with comm.agreed():
        remedy = "use more ranks, or give one value of C, epsilon and gamma"
        needed = 3 * nbytes(rows.X)
        memory.require(needed, options.memory_limit, "a rank's rows, and two copies of them in the search", remedy)
    with comm.phase("partition"):
        copy = Samples(rows.X.copy(), dict(rows.columns))
        P = -(-prepared.n // ROWS) if prepared.n > WHOLE else 1
        division = divide(PARTITIONERS[0], P, copy.X, comm, options.seed)
        owners = assign_owners(division.sizes, comm.size, lambda m: m**2)
        parts = hand_out(copy, division, owners, options.seed, comm)
    del copy
    settled, found = settle(prepared, parts, P, comm)
    return replace(prepared, options=settled.options).settled(rows, comm), found


def _divided(prepared: Prepared, comm: Communicator) -> Parts:
    options, rows = prepared.options, prepared.rows.give()
    partitioner = options.partitioner or PARTITIONERS[0]
    if partitioner == "random":
        return deal(rows, prepared.P, options.seed, comm)
    division = divide(partitioner, prepared.P, rows.X, comm, options.seed)
    return hand_out(rows, division, assign_owners(division.sizes, comm.size, predicted_cost), options.seed, comm)


def _solved(prepared: Prepared, parts: Parts) -> dict[int, tuple[PartSVR, NDArray[np.float64]]]:
    """This rank's parts, the largest first and as many side by side as there are threads."""
    options, problem, held = prepared.options, prepared.problem, dict(parts)
    todo = sorted(held, key=lambda number: held[number].start - held[number].stop)
    cache_bytes = options.cache_bytes // max(1, min(threads.current(), len(todo)))
    advance, lock = options.progress("training", len(todo)), threading.Lock()
    even = prepared.n / prepared.P

    def solve(number: int) -> tuple[PartSVR, NDArray[np.float64]]:
        rows = parts.take(held[number])

        def work() -> dict[str, NDArray[Any]]:
            begun = time.perf_counter()
            solution = problem.solve(rows, prepared.kernel, options.limits, cache_bytes)
            # Coefficients of one class add up to nu m: of parts that are not of one size, densities are compared.
            scale = even / len(rows) if problem.svm_type == "one_class" else 1.0
            return _kept(solution, begun, scale)

        done = remembered(options.checkpoint, f"part-{number:06d}", work)
        with lock:
            advance()
        return _of_support(rows, done), done["statistics"]

    return dict(zip(todo, threads.in_order(solve, [(number,) for number in todo]), strict=True))


def _kept(solution: Solution, begun: float, scale: float = 1.0) -> dict[str, NDArray[Any]]:
    """What a checkpoint keeps of a solution, whose coefficients are multiplied by `scale`."""
    counts = solution.kernel_rows, solution.kernel_values, solution.converged
    support = np.flatnonzero(solution.beta)
    numbers = [solution.iterations, len(support), solution.objective, solution.gap, time.perf_counter() - begun]
    return {
        "places": support, "beta": scale * solution.beta[support], "b": np.array([scale * solution.b]),
        "statistics": np.array([*numbers, *counts], np.float64),
    }  # fmt: skip


def _of_support(rows: Samples, done: dict[str, NDArray[Any]]) -> PartSVR:
    """The part of these rows, with its support vectors in the order of all rows."""
    numbers = rows["row"][done["places"]]
    order = np.argsort(numbers)
    return PartSVR(rows.X[done["places"][order]], numbers[order], done["beta"][order], done["b"].copy())


def _fitted(
    model: SVRModel, sizes: NDArray[np.int64], numbers: NDArray[np.float64], busy: NDArray[np.float64],
    options: Options, what: str, found: Results | None,
) -> Fit:  # fmt: skip
    solver = {**named(numbers), "converged": numbers[:, _CONVERGED] > 0}
    return Fit(model, sizes, solver, busy, float(options.tol), not_met(numbers, options.limits.tol, what), found)
