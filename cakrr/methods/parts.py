"""Training in parts: partition, choose sigma and lambda, solve every part. The frame of every method but the exact."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.metric import SAMPLE, Root, best_round, change, check_features, mapped
from cacore.data.rows import nbytes
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.io.checkpoint import remembered
from cacore.kernels.gradients import moments, stacked
from cacore.machine import memory
from cakrr.grid_search import Judges, Search, best, hold_out, larger_lambda, least, left_out, next_widths
from cakrr.methods.prepare import Prepared, prepare, scalings
from cakrr.model import KRRModel, PartModel
from cakrr.options import CoarseGrid, Fit, Method, Options, Width
from cakrr.solver import refine
from cakrr.solver.coarse import Candidates, candidates
from cakrr.solver.local import Workspace
from cakrr.solver.system import ridge_system
from partition.divide import divide, hand_out, order_of
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
    begun = comm.seconds["train"]
    # Algorithm 10, lines 1 to 7 (Algorithm 8, lines 1 to 5): divide the rows.
    starts = [_Run.begin(method, options, scaled, comm) for scaled in scalings(prepared, options, comm)]
    # Lines 8 and 13 to 23: for every pair of sigma and lambda, train, predict, one reduction of the errors; the best.
    run, errors, notes = best_round(starts, options.rounds, comm)
    # Lines 9 to 12, at the pair that was chosen, with all rows; of other divisions the same.
    del starts
    fitted = run.train()
    for number in range(1, options.divisions if len(run.parts.sizes) > 1 else 1):
        fitted.add(run.divided_anew(number).train())
    fitted.errors = errors
    fitted.notes += notes
    if options.scaling == "auto":
        fitted.params["scaling"] = run.prepared.scaling
    with comm.uncounted():
        fitted.seconds = comm.allreduce(fitted.seconds)
        fitted.busy = comm.allgather(np.array([comm.seconds["train"] - begun]))
    return fitted


def _divide(
    method: Method, prepared: Prepared, root: Root | None, options: Options, comm: Communicator, number: int = 0
) -> Parts:
    """Partition the rows, in their metric, for the n-th time, and send them to the owners of their parts."""
    if not options.keeps_rows:
        rows = prepared.rows.give()
    else:  # they stay, for the next round, or the next division
        rows = Samples(mapped(prepared.rows.X, root), dict(prepared.rows.columns))
    division = divide(method.partitioner, prepared.partitions, rows.X, comm, (options.seed + number) % 2**32)
    owners = assign_owners(division.sizes, comm.size)
    with comm.agreed():
        _check_memory(division.sizes, rows.X.dtype.itemsize, nbytes(rows.X), options.memory_limit)
    return hand_out(rows, division, owners, options.seed, comm, consume=not options.keeps_rows)


class _Run:
    """One training, or one round of it: what its steps share, and the model and its report, which they fill in."""

    def __init__(
        self, method: Method, options: Options, prepared: Prepared, parts: Parts, comm: Communicator,
        root: Root | None = None, last: _Run | None = None,
    ) -> None:  # fmt: skip
        self.method, self.options, self.prepared, self.parts, self.comm = method, options, prepared, parts, comm
        self.root = root
        self.number: int = last.number + 1 if last else 0
        self.division = 0
        largest = int(np.diff(parts.bounds).max(initial=0))
        self.workspace: Workspace = last.workspace if last else Workspace(largest, parts.X.dtype, options.memory_limit)
        self.route = options.route or method.route
        if self.route == "soft" and len(parts.sizes) == 1:
            self.route = "nearest"  # there is one model to ask
        self.widths, self.coarse = last.nearby() if last else self._whole_grid()
        self.lams = options.lam
        self.y = self.parts.columns["y"].astype(np.float64)
        self.held = np.zeros(len(self.y), np.bool_)
        self.targets: NDArray[np.float64] = self.y[:, None]
        self.tried: Candidates | None = None
        self.candidate, self.error = 0, math.inf
        self.errors = np.zeros((1, 1, 1))
        self.standardizer = Standardizer.with_root(prepared.standardizer, root)
        self.model = KRRModel(
            method=method.name, route=self.route, sigma=self.widths[0].sigma, lam=self.lams[0], offset=prepared.offset,
            centers=parts.centers, sizes=parts.sizes, owners=parts.owners, standardizer=self.standardizer,
            dtype=str(parts.X.dtype), like=self.widths[0].like, classes=prepared.classes,
        )  # fmt: skip
        self.fitted = Fit(self.model, parts.sizes, seconds=np.zeros(len(parts.sizes)))

    @classmethod
    def begin(cls, method: Method, options: Options, prepared: Prepared, comm: Communicator) -> _Run:
        """The first round, or the only one; collective."""
        with comm.phase("partition"):
            with comm.agreed():
                check_features(options.metric, prepared.rows.X.shape[1], options.memory_limit)
            if options.compares:
                prepared.rows.columns["order"] = order_of(prepared.rows, options.seed, comm)
            parts = _divide(method, prepared, None, options, comm)
        return cls(method, options, prepared, parts, comm)

    def again(self, root: Root) -> _Run:
        """The next round: parts made anew in this metric, unless they are random; collective."""
        if self.method.partitioner == "random":
            step = change(self.root, root)
            parts = replace(self.parts, X=mapped(self.parts.X, step), centers=mapped(self.parts.centers, step))
        else:
            with self.comm.phase("partition"):
                parts = _divide(self.method, self.prepared, root, self.options, self.comm)
        return _Run(self.method, self.options, self.prepared, parts, self.comm, root, self)

    def divided_anew(self, number: int) -> _Run:
        """The setting that was chosen, for the n-th division of the rows; collective."""
        with self.comm.phase("partition"):
            parts = _divide(self.method, self.prepared, self.root, self.options, self.comm, number)
        other = _Run(self.method, self.options, self.prepared, parts, self.comm, self.root, self)
        other.division = number
        chosen = ("sigma", "lam", "like", "soft", "coarse")
        other.model = replace(other.model, **{name: getattr(self.model, name) for name in chosen})
        other.fitted.model = other.model
        return other

    def _whole_grid(self) -> tuple[tuple[Width, ...], CoarseGrid]:
        """Widths of the parts' models, and the coarse models, that the first round tries."""
        n, d = int(self.parts.sizes.sum()), self.parts.centers.shape[1]
        coarse = self.options.coarse_grid(n, d) if self.method.coarse else []
        return self.options.widths(self.method, d), coarse

    def nearby(self) -> tuple[tuple[Width, ...], CoarseGrid]:
        """What the next round tries: what was best in this one, and what is beside it; collective."""
        with self.comm.uncounted():  # the ranks' errors may differ in the last bit
            errors = self.comm.bcast(self.errors)
        widths = next_widths(self.widths, least(errors, 1))
        if self.tried is None:
            return widths, []
        settings, each = self.tried.settings, least(errors, 0)
        if len(settings) == 1:
            return widths, self.coarse
        worst_first = (settings[c] for c in np.argsort(-each))
        best = {width.like: (M, lam) for M, width, lam in worst_first}  # of each kernel the last one stays
        tried = next_widths(tuple(width for _, width, _ in settings), each)
        return widths, [(one, [best[one.like][0]], (best[one.like][1],)) for one in tried]

    def choose(self) -> None:
        """Sigma, lambda, and what else there is to choose: the loop of Algorithm 10 around lines 9 to 22."""
        options, parts, soft = self.options, self.parts, self.route == "soft"
        pairs, compares = len(self.widths) * len(self.lams), options.compares
        validated = options.select != "test" and (pairs > 1 or soft or self.method.coarse or compares)
        n = int(parts.sizes.sum())
        with self.comm.agreed():
            if validated and parts.sizes.max() < 2:
                remedy = "ask for fewer parts" if n > 1 else "n_samples = 1, and a choice needs 2"
                raise InputError(f"parts of one row leave no rows to validate on; {remedy}")
        fraction = options.validation_fraction if validated else 0.0
        self.held = self._held_out(fraction, n)
        if self.method.coarse:
            self.tried = candidates(
                parts, self.held, self.coarse, options.memory_limit, options.checkpoint, self.comm,
                self._piece("coarse"),
            )  # fmt: skip
        settings = pairs * (1 if self.tried is None else len(self.tried.settings))
        if settings > 1 or soft or compares:
            self.targets, judging = self._judging(self.held, self.tried)
            unit = 1.0
            if soft:
                with self.comm.phase("partition"):
                    unit = gap(judging.X, parts.centers, self.comm)
            if settings > 1 or not soft:
                self._grid(judging, [SOFT.scaled(unit, len(parts.sizes))])
            if soft:
                routes = dict.fromkeys(one.scaled(unit, len(parts.sizes)) for one in SOFT_TRIED)
                self._soften(judging, list(routes))
        if self.tried is not None:
            self.model.coarse = self.tried.chosen(self.candidate)
            self.fitted.params |= self.tried.facts(self.candidate, options.chooses_kernel)
        if self.model.soft is not None:
            self.fitted.params |= {"soft_k": self.model.soft.k, "soft_t": self.model.soft.t}

    def _held_out(self, fraction: float, n: int) -> NDArray[np.bool_]:
        """Validation rows; the same ones in all that is compared, unless each is all that its part has."""
        parts, comm = self.parts, self.comm
        if not self.options.compares:
            return hold_out(parts, fraction)
        held = hold_out(parts, fraction, parts["order"] < fraction * n)
        if parts.sizes.min() < 2:
            with comm.uncounted():
                if not comm.allreduce(np.array([np.count_nonzero(held)]))[0]:
                    return hold_out(parts, fraction)
        return held

    def _piece(self, name: str) -> str:
        """The name of a piece of this round in the checkpoint."""
        name = f"{self.prepared.scaling}-{name}" if self.options.scaling == "auto" else name
        return f"round-{self.number}-{name}" if self.number else name

    def _judging(self, held: NDArray[np.bool_], tried: Candidates | None) -> tuple[NDArray[np.float64], Samples]:
        """What the parts learn, shape (n_local, C, t), for each candidate of the coarse model; and the rows that judge.

        Each target is in units of `Prepared.scale`, so that squared errors add up.
        """
        if self.options.select == "test":
            X, y, weights = self.prepared.test_rows(self.standardizer)
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

    def _grid(self, judging: Samples, routes: list[Soft]) -> None:
        """Choose sigma and lambda, and the candidate of the coarse model that goes with them."""
        loo = self.options.select == "loo"
        held = np.zeros_like(self.held) if loo else self.held
        search = self._search("grid", self.targets, held, self.widths, self.lams)
        if loo:
            errors, failed = search.left_out_errors(self.comm)
        else:
            errors, failed = search.errors(self._judges(judging, routes), self.comm)
        with self.comm.phase("predict"):
            self.candidate, s, ell = best(errors, self.widths, self.lams, self.workspace.dtype, self.comm)
        self.error, self.errors = float(errors[self.candidate, s, ell]), errors
        self.model.like, self.model.sigma = self.widths[s].like, self.widths[s].sigma
        self.model.lam = self.lams[ell]
        self.fitted.grid = table(errors, self.widths, self.lams, self.options, self.tried)
        self.fitted.notes += left_out(failed, self.widths, self.lams)

    def _soften(self, judging: Samples, routes: list[Soft]) -> None:
        """Choose k and t of soft routing, at the chosen pair."""
        width, lam, c = (Width(self.model.like, self.model.sigma),), (self.model.lam,), [self.candidate]
        search = self._search("soft", self.targets[:, c], self.held, width, lam)
        judges = self._judges(Samples(judging.X, {**judging.columns, "y": judging["y"][:, c]}), routes)
        errors, _ = search.errors(judges, self.comm, len(routes))
        with self.comm.phase("predict"):
            chosen = best(errors, width, lam, self.workspace.dtype, self.comm)[0]
        self.model.soft, self.error = routes[chosen], float(errors[chosen, 0, 0])

    def _judges(self, judging: Samples, routes: list[Soft]) -> Judges:
        parts = self.parts
        with self.comm.phase("predict" if self.options.select == "test" else "partition"):
            return Judges.routed(judging, self.route, routes, parts.centers, parts.owners, self.comm)

    def _search(
        self, name: str, targets: NDArray[np.float64], held: NDArray[np.bool_], widths: tuple[Width, ...],
        lams: tuple[float, ...],
    ) -> Search:  # fmt: skip
        what = "choosing sigma and lambda" if name == "grid" else "choosing the soft route"
        return Search(
            self.parts, targets, held, widths, lams, self.workspace, self.options.checkpoint,
            self._piece(name), self.fitted.seconds, self.options.progress(what, len(self.parts.parts)),
        )  # fmt: skip

    def moments(self) -> NDArray[np.float64]:
        """The sum of grad f grad f^T, or its diagonal: of the parts' models from their learning rows, at some of these.

        m^3/3 flops a part, and the gradients'; one Allreduce of d x d numbers, or d.
        """
        comm, parts, d = self.comm, self.parts, self.parts.X.shape[1]
        kernel, diagonal = self.model.kernel, self.options.metric == "diagonal"
        coarse = None if self.tried is None else self.tried.chosen(self.candidate, learned=True)
        scale = self.prepared.scale

        def work(part: int, rows: slice) -> NDArray[np.float64]:
            learn = slice(rows.start + int(self.held[rows].sum()), rows.stop)
            X, targets = parts.X[learn], self.targets[learn, self.candidate]

            def found() -> dict[str, NDArray[Any]]:
                weights = parts.columns["weight"][learn] if "weight" in parts.columns else None
                alphas, _ = ridge_system(X, self.workspace, kernel, weights).solve(kernel, (self.model.lam,), targets.T)
                sample, base = X[:SAMPLE], None
                if coarse is not None:
                    wide = coarse.kernel.with_sigma(coarse.sigma)
                    beta = coarse.beta.reshape(len(coarse.beta), -1).T / scale[:, None]
                    base = stacked(wide, sample, coarse.centers, beta)
                share = X.shape[0] / max(1, sample.shape[0])
                return {"moments": share * moments(kernel, sample, X, alphas[0], diagonal, base)}

            return remembered(self.options.checkpoint, self._piece(f"moments-{part:06d}"), found)["moments"]

        with comm.phase("train"):
            total = np.zeros(d if diagonal else (d, d))
            for _, one in self.workspace.over_parts(work, parts):
                total += one
            return comm.allreduce(total)

    def train(self) -> Fit:
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
                system = ridge_system(parts.X[rows], self.workspace, model.like, weights)
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

            name = f"division-{self.division}-" if self.division else ""
            done = remembered(self.options.checkpoint, f"{name}part-{part:06d}", work)
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
        return fitted


def table(
    errors: NDArray[np.float64], widths: tuple[Width, ...], lams: tuple[float, ...], options: Options,
    tried: Candidates | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The report's grid: errors, shape (C, S, L), in the column of the rows that judged them."""
    select, several = options.select, options.chooses_kernel
    columns = [f"{name}_mse" for name in ("validation", "test", *(["loo"] if select == "loo" else []))]
    return [
        {
            **({} if tried is None else tried.facts(c, several)),
            **({"kernel": widths[s].like.kind} if several else {}),
            "sigma": widths[s].sigma, "lambda": lams[ell],
            **dict.fromkeys(columns), f"{select}_mse": float(mse) if np.isfinite(mse) else None,
        }
        for (c, s, ell), mse in np.ndenumerate(errors)
    ]  # fmt: skip


def not_definite(where: str, model: KRRModel) -> str:
    """One line about a system without a solution."""
    pair = f"sigma {model.sigma:g}, lambda {model.lam:g}"
    return f"{where}: K + lambda m I is not positive definite at {pair}; use {larger_lambda(model.dtype)}"


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
