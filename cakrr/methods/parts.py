"""Training in parts: partition, choose sigma and lambda, solve every part. The frame of every method but the exact."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import Rows, nbytes
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError
from cacore.io.checkpoint import remembered
from cacore.machine import memory
from cakrr.grid_search import Judges, Search, best, hold_out, left_out
from cakrr.methods.prepare import Prepared, prepare
from cakrr.model import KRRModel, PartModel
from cakrr.options import Fit, Method, Options
from cakrr.solver import refine
from cakrr.solver.coarse import Candidates, CoarseModel, candidates
from cakrr.solver.local import Workspace
from cakrr.solver.system import ridge_system
from partition.divide import divide
from partition.redistribute import Parts, assign_owners, redistribute
from partition.routing import Soft, gap

# Soft routes, with t in units of the mean gap d_2^2 - d_1^2 between the two nearest centres: the one under which
# sigma and lambda are chosen, and those that are tried then.
SOFT = Soft(4, 0.35)
SOFT_TRIED = (Soft(1, 1.0), *(Soft(k, t) for k in (3, 8) for t in (0.1, 0.2, 0.4, 0.8)))


def fit(method: Method, train: Dataset, options: Options, comm: Communicator, test: Dataset | None = None) -> Fit:
    """Train one model a part (Algorithms 8, 10 and 11); a collective call.

    Arguments and result are those of :meth:`cacore.run.method.Method.__call__`.

    Raises
    ------
    InputError
        On all ranks: options that make no sense, more parts than rows, a matrix that cannot fit, one
        that is not positive definite, a checkpoint of another run.

    Notes
    -----
    m^2 d flops a part and sigma, and m^3/3 a lambda, or 4/3 m^3 for many lambdas; this rank's rows, and
    one matrix of its largest part. Training sends nothing but a coarse model's one Allreduce; the
    grid's errors are one reduction, counted under "predict".
    """
    prepared = prepare(method, train, options, comm, test)
    # Algorithm 10, lines 1 to 7 (Algorithm 8, lines 1 to 5): divide the rows.
    with comm.phase("partition"):
        parts = _divide(method, prepared, options, comm)
    largest = int(np.diff(parts.bounds).max(initial=0))
    workspace = Workspace(largest, parts.X.dtype, options.memory_limit)
    run = _Run(method, options, prepared, parts, workspace, comm)
    # Lines 8 and 13 to 23: for every pair of sigma and lambda, train, predict, one reduction of the errors; the best.
    choice = run.choose()
    model = KRRModel(
        method=method.name, route=run.route, sigma=choice.sigma, lam=choice.lam, offset=prepared.offset,
        centers=parts.centers, sizes=parts.sizes, owners=parts.owners, standardizer=prepared.standardizer,
        dtype=str(workspace.dtype), soft=choice.soft, coarse=choice.coarse, like=run.kernel,
    )  # fmt: skip
    # Lines 9 to 12, at the pair that was chosen, with all rows.
    residual = run.train(model)
    with comm.uncounted():
        seconds = comm.allreduce(run.seconds)
        busy = comm.allgather(np.array([run.busy()]))
    fitted = Fit(model, parts.sizes, choice.table, choice.params(), seconds, busy, notes=choice.notes)
    if residual is not None:
        fitted.residual = residual
    return fitted


def _divide(method: Method, prepared: Prepared, options: Options, comm: Communicator) -> Parts:
    """Partition the rows and send them to the owners of their parts."""
    rows = prepared.rows.give()
    first, n = comm.offset(len(rows))
    division = divide(method.partitioner, prepared.partitions, rows.X, comm, options.seed)
    owners = assign_owners(division.sizes, comm.size)
    with comm.agreed():
        _check_memory(division.sizes, rows.X.dtype.itemsize, nbytes(rows.X), options.memory_limit)
    # The rows of a part lie in shuffled order, so that its first ones are a random sample.
    rows.columns["order"] = Shuffle(n, options.seed).position(np.arange(first, first + len(rows)))
    parts = redistribute(rows, division.labels, owners, comm, order="order", consume=True)
    parts.centers, parts.sizes = division.centers, division.sizes
    return parts


@dataclass
class _Choice:
    """The setting that training goes on with."""

    sigma: float
    lam: float
    candidate: int
    coarse: CoarseModel | None
    soft: Soft | None
    table: list[dict[str, Any]]
    notes: list[str]

    def params(self) -> dict[str, Any]:
        """For the report."""
        facts: dict[str, Any] = {}
        if self.coarse is not None:
            facts |= {
                "centers": self.coarse.centers.shape[0],
                "coarse_sigma": self.coarse.sigma,
                "coarse_lambda": self.coarse.lam,
            }
        return facts if self.soft is None else {**facts, "soft_k": self.soft.k, "soft_t": self.soft.t}


class _Run:
    """One training: what its steps share."""

    def __init__(
        self, method: Method, options: Options, prepared: Prepared, parts: Parts, workspace: Workspace,
        comm: Communicator,
    ) -> None:  # fmt: skip
        self.method, self.options, self.prepared = method, options, prepared
        self.parts, self.workspace, self.comm = parts, workspace, comm
        self.route = options.route or method.route
        if self.route == "soft" and len(parts.sizes) == 1:
            self.route = "nearest"  # there is one model to ask
        d = parts.centers.shape[1]
        self.kernel = options.like()
        self.sigmas = options.widths(method.sigmas(d) if method.coarse else (math.sqrt(d),))
        self.lams = options.lam
        self.pairs = len(self.sigmas) * len(self.lams)
        self.seconds = np.zeros(len(parts.sizes))
        self.begun = comm.seconds["train"]
        self.y = self.parts.columns["y"].astype(np.float64)

    def busy(self) -> float:
        """Seconds that this rank worked on its parts."""
        return self.comm.seconds["train"] - self.begun

    def choose(self) -> _Choice:
        """Sigma, lambda, and what else there is to choose: the loop of Algorithm 10 around lines 9 to 22."""
        options, soft = self.options, self.route == "soft"
        validated = options.select != "test" and (self.pairs > 1 or soft or self.method.coarse)
        with self.comm.agreed():
            if validated and self.parts.sizes.max() < 2:
                n = int(self.parts.sizes.sum())
                remedy = "ask for fewer parts" if n > 1 else "n_samples = 1, and a choice needs 2"
                raise InputError(f"parts of one row leave no rows to validate on; {remedy}")
        held = hold_out(self.parts, options.validation_fraction if validated else 0.0)
        tried = self._coarse(held) if self.method.coarse else None
        settings = self.pairs * (1 if tried is None else len(tried.settings))
        choice = _Choice(self.sigmas[0], self.lams[0], 0, None, None, [], [])
        if settings > 1 or soft:
            targets, judging = self._judging(held, tried)
            unit = self._unit(judging.X) if soft else 1.0
            if settings > 1:
                self._grid(choice, targets, held, judging, tried, [Soft(SOFT.k, SOFT.t * unit)])
            if soft:
                P = len(self.parts.sizes)
                shares = dict.fromkeys(Soft(min(one.k, P), one.t * unit) for one in SOFT_TRIED)
                self._soften(choice, targets, held, judging, list(shares))
        if tried is not None:
            choice.coarse = tried.chosen(choice.candidate)
        return choice

    def _coarse(self, held: NDArray[np.bool_]) -> Candidates:
        options, n = self.options, int(self.parts.sizes.sum())
        sets = options.coarse_grid(n, self.parts.X.shape[1])
        return candidates(self.parts, held, self.kernel, sets, options.memory_limit, options.checkpoint, self.comm)

    def _judging(self, held: NDArray[np.bool_], tried: Candidates | None) -> tuple[NDArray[np.float64], Samples]:
        """What the parts learn, a column a candidate of the coarse model; and the rows that judge, likewise."""
        if self.options.select == "test":
            X, y, weights = self.prepared.test_rows()
        else:
            X, y = self.parts.X[held], self.y[held]
            weights = self.parts.columns.get("weight", np.ones(len(held)))[held]
        targets, y = self.y[:, None], y[:, None]
        if tried is not None:
            with self.comm.phase("train"):
                targets, y = targets - tried.predictions(self.parts.X), y - tried.predictions(X)
        return targets, Samples(X, {"y": y, "weight": weights})

    def _unit(self, X: Rows) -> float:
        """Mean gap d_2^2 - d_1^2 of the judging rows: the unit of soft routing's t."""
        with self.comm.phase("partition"):
            return gap(X, self.parts.centers, self.comm)

    def _grid(
        self, choice: _Choice, targets: NDArray[np.float64], held: NDArray[np.bool_], judging: Samples,
        tried: Candidates | None, shares: list[Soft],
    ) -> None:  # fmt: skip
        """Choose sigma, lambda and the coarse candidate."""
        loo = self.options.select == "loo"
        search = self._search("grid", targets, np.zeros_like(held) if loo else held, self.sigmas, self.lams)
        if loo:
            errors, failed = search.left_out_errors(self.comm)
        else:
            errors, failed = search.errors(self._judges(judging, shares), self.comm)
        with self.comm.phase("predict"):
            choice.candidate, s, ell = best(errors, self.sigmas, self.lams, self.comm)
        choice.sigma, choice.lam = self.sigmas[s], self.lams[ell]
        choice.table = self._table(errors, tried)
        note = left_out(failed, self.sigmas, self.lams)
        choice.notes += [note] if note else []

    def _soften(
        self, choice: _Choice, targets: NDArray[np.float64], held: NDArray[np.bool_], judging: Samples,
        shares: list[Soft],
    ) -> None:  # fmt: skip
        """Choose k and t of soft routing, at the chosen pair."""
        column = [choice.candidate]
        search = self._search("soft", targets[:, column], held, (choice.sigma,), (choice.lam,))
        judges = self._judges(Samples(judging.X, {**judging.columns, "y": judging["y"][:, column]}), shares)
        errors, _ = search.errors(judges, self.comm, len(shares))
        with self.comm.phase("predict"):
            choice.soft = shares[best(errors, (choice.sigma,), (choice.lam,), self.comm)[0]]

    def _judges(self, judging: Samples, shares: list[Soft]) -> Judges:
        parts = self.parts
        with self.comm.phase("predict" if self.options.select == "test" else "partition"):
            return Judges.routed(judging, self.route, shares, parts.centers, parts.owners, self.comm)

    def _search(
        self, name: str, targets: NDArray[np.float64], held: NDArray[np.bool_], sigmas: tuple[float, ...],
        lams: tuple[float, ...],
    ) -> Search:  # fmt: skip
        what = "choosing sigma and lambda" if name == "grid" else "choosing the soft route"
        return Search(
            self.parts, targets, held, self.kernel, sigmas, lams, self.workspace, self.options.checkpoint, name,
            self.seconds, self.options.progress(what, len(self.parts.parts)),
        )  # fmt: skip

    def train(self, model: KRRModel) -> NDArray[np.float64] | None:
        """Solve every part at the chosen setting: lines 9 to 12 of Algorithm 10. Sends nothing.

        Returns the parts' relative residuals where they were refined.
        """
        comm, parts = self.comm, self.parts
        mixed = self.workspace.dtype == np.float32
        residual, failed = np.zeros(len(self.seconds)), -1
        advance = self.options.progress("training", len(parts.parts))

        def train(part: int, rows: slice) -> dict[str, NDArray[Any]]:
            def work() -> dict[str, NDArray[Any]]:
                begun = time.perf_counter()
                y = self.y[rows]
                if model.coarse is not None:
                    y = y - model.coarse.predict(parts.X[rows])
                weights = parts.columns["weight"][rows] if "weight" in parts.columns else None
                system = ridge_system(parts.X[rows], self.workspace, self.kernel, weights)
                if mixed:
                    alpha, left = refine.solve_part(system, model.kernel, model.lam, y)
                    solved = left <= refine.ACCEPTED
                else:
                    alphas, good = system.solve(model.kernel, (model.lam,), y[None, :])
                    alpha, left, solved = alphas[0, 0], 0.0, good[0]
                return {
                    "alpha": alpha, "residual": np.array(left), "solved": np.array(solved),
                    "seconds": np.array(time.perf_counter() - begun),
                }  # fmt: skip

            done = remembered(self.options.checkpoint, f"part-{part:06d}", work)
            advance()
            return done

        with comm.phase("train"):
            for (part, rows), done in self.workspace.over_parts(train, parts):
                model.parts[part] = PartModel(parts.X[rows], done["alpha"])
                self.seconds[part] += done["seconds"]
                residual[part] = done["residual"]
                failed = failed if done["solved"] else part
        comm.wait()
        with comm.phase("predict"), comm.agreed():
            if failed >= 0:
                raise InputError(not_definite(f"part {failed} ({self.parts.sizes[failed]:,} rows)", model))
        with comm.uncounted():
            return comm.allreduce(residual) if mixed else None

    def _table(self, errors: NDArray[np.float64], tried: Candidates | None) -> list[dict[str, Any]]:
        """The report's grid."""
        rows: list[dict[str, Any]] = []
        for c, of_candidate in enumerate(errors):
            facts = {}
            if tried is not None:
                facts = dict(zip(("centers", "coarse_sigma", "coarse_lambda"), tried.settings[c], strict=True))
            rows += [{**facts, **row} for row in table(of_candidate, self.sigmas, self.lams, self.options.select)]
        return rows


def table(
    errors: NDArray[np.float64], sigmas: tuple[float, ...], lams: tuple[float, ...], select: str
) -> list[dict[str, Any]]:
    """The report's grid: errors of shape (S, L), in the column of the rows that judged them."""
    columns = [f"{name}_mse" for name in ("validation", "test", *(["loo"] if select == "loo" else []))]
    return [
        {
            "sigma": sigma, "lambda": lam, **dict.fromkeys(columns),
            f"{select}_mse": float(mse) if np.isfinite(mse) else None,
        }
        for sigma, line in zip(sigmas, errors, strict=True)
        for lam, mse in zip(lams, line, strict=True)
    ]  # fmt: skip


def not_definite(where: str, model: KRRModel) -> str:
    """One line about a system without a solution."""
    remedy = "a larger --lambda" + (" or --dtype float64" if model.dtype == "float32" else "")
    return (
        f"{where}: K + lambda m I is not positive definite at sigma {model.sigma:g}, lambda {model.lam:g}; use {remedy}"
    )


def _check_memory(sizes: NDArray[np.int64], itemsize: int, rows: int, limit: int) -> None:
    """Refuse parts whose largest matrix does not fit beside this rank's rows."""
    largest, even = int(sizes.max()), sizes.sum() / len(sizes)
    remedy = "--dtype float32, more ranks or a larger --memory-limit"
    if limit > rows + itemsize:
        # Parts that are uneven now are taken to be as uneven when there are more of them.
        enough = math.ceil(sizes.sum() * (largest / even) / math.isqrt((limit - rows) // itemsize))
        remedy = f"more --partitions (about {enough}), {remedy}"
    what = f"the matrix of a part of {largest:,} rows, beside a rank's rows,"
    memory.require(largest * largest * itemsize + rows, limit, what, f"use {remedy}")
