"""Training in parts: partition, choose sigma and lambda, solve every part. The frame of every method but the exact."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import nbytes
from cacore.errors import InputError
from cacore.io.checkpoint import remembered
from cacore.machine import memory
from cakrr.grid_search import Judges, Search, best, hold_out, left_out
from cakrr.methods.prepare import Prepared, prepare
from cakrr.model import KRRModel, PartModel
from cakrr.options import Fit, Method, Options
from cakrr.solver import refine
from cakrr.solver.coarse import Candidates, candidates
from cakrr.solver.local import Workspace
from cakrr.solver.system import ridge_system
from partition.divide import divide, hand_out
from partition.redistribute import Parts, assign_owners
from partition.routing import SOFT, Soft, gap

# Sigma and lambda are chosen under the soft route SOFT; then these are tried.
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
    run = _Run(method, options, prepared, parts, comm)
    # Lines 8 and 13 to 23: for every pair of sigma and lambda, train, predict, one reduction of the errors; the best.
    run.choose()
    # Lines 9 to 12, at the pair that was chosen, with all rows.
    run.train()
    fitted = run.fitted
    with comm.uncounted():
        fitted.seconds = comm.allreduce(fitted.seconds)
        fitted.busy = comm.allgather(np.array([comm.seconds["train"] - run.begun]))
    return fitted


def _divide(method: Method, prepared: Prepared, options: Options, comm: Communicator) -> Parts:
    """Partition the rows and send them to the owners of their parts."""
    rows = prepared.rows.give()
    division = divide(method.partitioner, prepared.partitions, rows.X, comm, options.seed)
    owners = assign_owners(division.sizes, comm.size)
    with comm.agreed():
        _check_memory(division.sizes, rows.X.dtype.itemsize, nbytes(rows.X), options.memory_limit)
    return hand_out(rows, division, owners, options.seed, comm, consume=True)


class _Run:
    """One training: what its steps share, and the model and its report, which they fill in."""

    def __init__(
        self, method: Method, options: Options, prepared: Prepared, parts: Parts, comm: Communicator
    ) -> None:  # fmt: skip
        self.method, self.options, self.prepared, self.parts, self.comm = method, options, prepared, parts, comm
        largest = int(np.diff(parts.bounds).max(initial=0))
        self.workspace = Workspace(largest, parts.X.dtype, options.memory_limit)
        self.route = options.route or method.route
        if self.route == "soft" and len(parts.sizes) == 1:
            self.route = "nearest"  # there is one model to ask
        d = parts.centers.shape[1]
        self.kernel = options.like()
        self.sigmas = options.widths(method.sigmas(d) if method.coarse else (math.sqrt(d),))
        self.lams = options.lam
        self.begun = comm.seconds["train"]
        self.y = self.parts.columns["y"].astype(np.float64)
        self.model = KRRModel(
            method=method.name, route=self.route, sigma=self.sigmas[0], lam=self.lams[0], offset=prepared.offset,
            centers=parts.centers, sizes=parts.sizes, owners=parts.owners, standardizer=prepared.standardizer,
            dtype=str(parts.X.dtype), like=self.kernel, classes=prepared.classes,
        )  # fmt: skip
        self.fitted = Fit(self.model, parts.sizes, seconds=np.zeros(len(parts.sizes)))

    def choose(self) -> None:
        """Sigma, lambda, and what else there is to choose: the loop of Algorithm 10 around lines 9 to 22."""
        options, parts, soft = self.options, self.parts, self.route == "soft"
        settings, candidate, tried = len(self.sigmas) * len(self.lams), 0, None
        validated = options.select != "test" and (settings > 1 or soft or self.method.coarse)
        n = int(parts.sizes.sum())
        with self.comm.agreed():
            if validated and parts.sizes.max() < 2:
                remedy = "ask for fewer parts" if n > 1 else "n_samples = 1, and a choice needs 2"
                raise InputError(f"parts of one row leave no rows to validate on; {remedy}")
        held = hold_out(parts, options.validation_fraction if validated else 0.0)
        if self.method.coarse:
            sets = options.coarse_grid(n, parts.X.shape[1])
            tried = candidates(parts, held, self.kernel, sets, options.memory_limit, options.checkpoint, self.comm)
            settings *= len(tried.settings)
        if settings > 1 or soft:
            targets, judging = self._judging(held, tried)
            unit = 1.0
            if soft:
                with self.comm.phase("partition"):
                    unit = gap(judging.X, parts.centers, self.comm)
            if settings > 1:
                candidate = self._grid(targets, held, judging, tried, [SOFT.scaled(unit, len(parts.sizes))])
            if soft:
                routes = dict.fromkeys(one.scaled(unit, len(parts.sizes)) for one in SOFT_TRIED)
                self._soften(targets[:, [candidate]], held, judging, candidate, list(routes))
        if tried is not None:
            self.model.coarse = tried.chosen(candidate)
            self.fitted.params |= tried.facts(candidate)
        if self.model.soft is not None:
            self.fitted.params |= {"soft_k": self.model.soft.k, "soft_t": self.model.soft.t}

    def _judging(self, held: NDArray[np.bool_], tried: Candidates | None) -> tuple[NDArray[np.float64], Samples]:
        """What the parts learn, shape (n_local, C, t), for each candidate of the coarse model; and the rows that judge.

        Each target is in units of `Prepared.scale`, so that squared errors add up.
        """
        if self.options.select == "test":
            X, y, weights = self.prepared.test_rows()
        else:
            X, y = self.parts.X[held], self.y[held]
            weights = self.parts.row_weights()[held]
        targets, y = self.y[:, None], y[:, None]
        if tried is not None:
            with self.comm.phase("train"):
                targets, y = targets - tried.predictions(self.parts.X), y - tried.predictions(X)
        scale = self.prepared.scale
        targets, y = (values.reshape(*values.shape[:2], len(scale)) / scale for values in (targets, y))
        return targets, Samples(X, {"y": y, "weight": weights})

    def _grid(
        self, targets: NDArray[np.float64], held: NDArray[np.bool_], judging: Samples, tried: Candidates | None,
        routes: list[Soft],
    ) -> int:  # fmt: skip
        """Choose sigma and lambda; the number of the coarse candidate that goes with them."""
        loo = self.options.select == "loo"
        search = self._search("grid", targets, np.zeros_like(held) if loo else held, self.sigmas, self.lams)
        if loo:
            errors, failed = search.left_out_errors(self.comm)
        else:
            errors, failed = search.errors(self._judges(judging, routes), self.comm)
        with self.comm.phase("predict"):
            candidate, s, ell = best(errors, self.sigmas, self.lams, self.comm)
        self.model.sigma, self.model.lam = self.sigmas[s], self.lams[ell]
        self.fitted.grid = table(errors, self.sigmas, self.lams, self.options.select, tried)
        self.fitted.notes += left_out(failed, self.sigmas, self.lams)
        return candidate

    def _soften(
        self, targets: NDArray[np.float64], held: NDArray[np.bool_], judging: Samples, candidate: int,
        routes: list[Soft],
    ) -> None:  # fmt: skip
        """Choose k and t of soft routing, at the chosen pair."""
        sigma, lam = (self.model.sigma,), (self.model.lam,)
        search = self._search("soft", targets, held, sigma, lam)
        judges = self._judges(Samples(judging.X, {**judging.columns, "y": judging["y"][:, [candidate]]}), routes)
        errors, _ = search.errors(judges, self.comm, len(routes))
        with self.comm.phase("predict"):
            self.model.soft = routes[best(errors, sigma, lam, self.comm)[0]]

    def _judges(self, judging: Samples, routes: list[Soft]) -> Judges:
        parts = self.parts
        with self.comm.phase("predict" if self.options.select == "test" else "partition"):
            return Judges.routed(judging, self.route, routes, parts.centers, parts.owners, self.comm)

    def _search(
        self, name: str, targets: NDArray[np.float64], held: NDArray[np.bool_], sigmas: tuple[float, ...],
        lams: tuple[float, ...],
    ) -> Search:  # fmt: skip
        what = "choosing sigma and lambda" if name == "grid" else "choosing the soft route"
        return Search(
            self.parts, targets, held, self.kernel, sigmas, lams, self.workspace, self.options.checkpoint, name,
            self.fitted.seconds, self.options.progress(what, len(self.parts.parts)),
        )  # fmt: skip

    def train(self) -> None:
        """Solve every part at the chosen setting: lines 9 to 12 of Algorithm 10. Sends nothing."""
        comm, parts, model, fitted = self.comm, self.parts, self.model, self.fitted
        mixed = self.workspace.dtype == np.float32
        residual, failed = np.zeros(len(parts.sizes)), -1
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
                    alphas, good = system.solve(model.kernel, (model.lam,), y.reshape(len(y), -1).T)
                    alpha, left, solved = np.ascontiguousarray(alphas[0].T).reshape(y.shape), 0.0, good[0]
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
                fitted.seconds[part] += done["seconds"]
                residual[part] = done["residual"]
                failed = failed if done["solved"] else part
        comm.wait()
        with comm.phase("predict"), comm.agreed():
            if failed >= 0:
                raise InputError(not_definite(f"part {failed} ({parts.sizes[failed]:,} rows)", model))
        if mixed:
            with comm.uncounted():
                fitted.residual = comm.allreduce(residual)


def table(
    errors: NDArray[np.float64], sigmas: tuple[float, ...], lams: tuple[float, ...], select: str,
    tried: Candidates | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The report's grid: errors, shape (C, S, L), in the column of the rows that judged them."""
    columns = [f"{name}_mse" for name in ("validation", "test", *(["loo"] if select == "loo" else []))]
    return [
        {
            **({} if tried is None else tried.facts(c)), "sigma": sigmas[s], "lambda": lams[ell],
            **dict.fromkeys(columns), f"{select}_mse": float(mse) if np.isfinite(mse) else None,
        }
        for (c, s, ell), mse in np.ndenumerate(errors)
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
