"""Training in parts: partition, choose sigma and lambda, solve every part. The frame of every method but the exact."""

from __future__ import annotations

import math
import time
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.metric import SAMPLE, Root, best_round, change, check_features, mapped
from cacore.data.rows import Rows, nbytes
from cacore.data.standardize import Standardizer
from cacore.data.stored import StoredRows, some
from cacore.errors import InputError
from cacore.io.checkpoint import remembered
from cacore.kernels.gradients import moments, stacked
from cacore.machine import memory
from cakrr.fit import Fit
from cakrr.grid_search import larger_lambda, least, next_widths
from cakrr.method import Method
from cakrr.methods.choose import Choice
from cakrr.methods.prepare import Prepared, prepare, scalings
from cakrr.model import KRRModel, PartModel
from cakrr.options import CoarseGrid, Options, Width
from cakrr.rules import LENGTHS
from cakrr.solver import refine
from cakrr.solver.coarse import Candidates, CoarseModel
from cakrr.solver.local import Workspace
from cakrr.solver.system import ridge_system
from partition.divide import divide, hand_out, order_of
from partition.redistribute import Parts, assign_owners

_COPIES = 3  # of the rows of a part that is read from a file: shifted ones, and what products make of them
_COLUMN_BYTES = 48  # in memory, of a row in a file: its target, what is left of it, its place and coefficient


def fit(method: Method, train: Dataset, options: Options, comm: Communicator, test: Dataset | None = None) -> Fit:
    """Train one model a part (Algorithms 8, 10 and 11); a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

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
    firsts = [_Run.begin(method, options, scaled, comm) for scaled in scalings(prepared, options, comm)]
    ways: list[list[_Run]] = [list(starts) for starts in zip(*firsts, strict=True)]
    # Lines 8 and 13 to 23: for every pair of sigma and lambda, train, predict, one reduction of the errors; the best.
    run, errors, notes = best_round(ways, options.rounds, comm)
    # Lines 9 to 12, at the pair that was chosen, with all rows; of other divisions the same.
    del firsts, ways
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
        _check_memory(division.sizes, rows.X, comm.size, options.memory_limit, not method.coarse)
    return hand_out(rows, division, owners, options.seed, comm, consume=not options.keeps_rows)


class _Run(Choice):
    """One training, or one round of it: what its steps share, and the model and its report, which they fill in."""

    def __init__(
        self, method: Method, options: Options, prepared: Prepared, parts: Parts, comm: Communicator,
        root: Root | None = None, last: _Run | None = None, workspace: Workspace | None = None,
    ) -> None:  # fmt: skip
        self.method, self.options, self.prepared, self.parts, self.comm = method, options, prepared, parts, comm
        self.root = root
        self.number: int = last.number + 1 if last else 0
        self.division = 0
        self.stretch: float | None = None  # of distances by the next round's metric, where that is known
        largest = int(np.diff(parts.bounds).max(initial=0))
        known = last.workspace if last else workspace
        self.workspace: Workspace = known or Workspace(largest, parts.X.dtype, options.memory_limit)
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
    def begin(cls, method: Method, options: Options, prepared: Prepared, comm: Communicator) -> list[_Run]:
        """The first round, or the only one, of each way (:meth:`Options.ways`), on the same parts; collective."""
        with comm.phase("partition"):
            if options.metric != "none":
                with comm.agreed():
                    check_features(options.metric, prepared.rows.X.shape[1], options.memory_limit)
            if options.compares:
                prepared.rows.columns["order"] = order_of(prepared.rows, options.seed, comm)
            parts = _divide(method, prepared, None, options, comm)
        first, *others = options.ways()
        runs = [cls(method, first, prepared, parts, comm)]
        return runs + [cls(method, way, prepared, parts, comm, workspace=runs[0].workspace) for way in others]

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
        other = copy(self)
        other.division, other.parts, other.y = number, parts, parts.columns["y"].astype(np.float64)
        other.model = replace(self.model, centers=parts.centers, sizes=parts.sizes, owners=parts.owners, parts={})
        other.fitted = Fit(other.model, parts.sizes, seconds=np.zeros(len(parts.sizes)))
        return other

    def _whole_grid(self) -> tuple[tuple[Width, ...], CoarseGrid]:
        """Widths of the parts' models, and the coarse models, that the first round tries."""
        n, d = int(self.parts.sizes.sum()), self.parts.centers.shape[1]
        coarse = self.options.coarse_grid(n, d) if self.method.coarse else []
        return self.options.widths(self.method, d), coarse

    def nearby(self) -> tuple[tuple[Width, ...], CoarseGrid]:
        """What the next round tries: what was best in this one, and what is beside it; collective."""
        if self.stretch is not None:
            return Width(self.model.like, self.model.sigma * self.stretch).nearby(), []
        with self.comm.uncounted():  # the ranks' errors may differ in the last bit
            errors = self.comm.bcast(self.errors)
        widths = next_widths(self.widths, least(errors, 1))
        if self.tried is None:
            return widths, []
        settings, each = self.tried.settings, least(errors, 0)
        if len(settings) == 1:
            return widths, self.coarse
        M, _, lam = settings[int(np.argmin(each))]
        tried = next_widths(tuple(width for _, width, _ in settings), each)
        return widths, [(one, [M], (lam,)) for one in tried]

    def moments(self) -> NDArray[np.float64]:
        """The sum of grad f grad f^T, or its diagonal: of the parts' models from their learning rows, at some of these.

        m^3/3 flops a part, and the gradients'; one Allreduce of d x d numbers, or d. Of length scales: their squares.
        """
        if self.options.metric == LENGTHS:
            from cakrr.methods.lengths import scales

            factors = scales(self, self.model.sigma, self.model.lam)
            weights = factors if self.root is None else factors * self.root
            self.stretch = math.sqrt(len(weights) / np.square(weights).sum())  # the metric's trace will be d
            return np.asarray(np.square(factors))
        comm, parts, d = self.comm, self.parts, self.parts.X.shape[1]
        diagonal = self.options.metric == "diagonal"
        coarse = None if self.tried is None else self.tried.chosen(self.candidate, learned=True)
        scale = self.prepared.scale

        def work(part: int, rows: slice) -> NDArray[np.float64]:
            learn = slice(rows.start + int(self.held[rows].sum()), rows.stop)
            X, targets = parts.X[learn], self.targets[learn, self.candidate]
            width, lam = self._setting(part)
            kernel = width.kernel

            def found() -> dict[str, NDArray[Any]]:
                weights = parts.columns["weight"][learn] if "weight" in parts.columns else None
                alphas, _ = ridge_system(X, self.workspace, kernel, weights).solve(kernel, (lam,), targets.T)
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
        if model.coarse is not None and self.options.refine and not self.division:  # other divisions take it over
            model.coarse = self._refined(model.coarse)
        residual, failed = np.zeros(len(parts.sizes)), -1
        advance = self.options.progress("training", len(parts.parts))

        def train(part: int, rows: slice) -> dict[str, NDArray[Any]]:
            def work() -> dict[str, NDArray[Any]]:
                begun = time.perf_counter()
                X, y = parts.X[rows], self.y[rows]
                if model.coarse is not None:
                    y = y - model.coarse.predict(X)
                weights = parts.columns["weight"][rows] if "weight" in parts.columns else None
                system = ridge_system(X, self.workspace, model.like, weights)
                kernel, lam = model.kernel_of(part), model.lam_of(part)
                if mixed:
                    alpha, left = refine.solve_part(system, kernel, lam, y)
                    solved = left <= refine.ACCEPTED
                else:
                    alphas, good = system.solve(kernel, (lam,), y.reshape(len(y), -1).T)
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
                weights = parts.columns.get("weight")
                if model.classes is not None and self.options.probability is None:
                    weights = None  # of no use afterwards
                weights = None if weights is None else weights[rows]
                model.parts[part] = PartModel(some(parts.X, rows), done["alpha"], weights)
                fitted.seconds[part] += done["seconds"]
                residual[part] = done["residual"]
                failed = failed if done["solved"] else part
        comm.wait()
        with comm.phase("predict"), comm.agreed():
            if failed >= 0:
                raise InputError(not_definite(f"part {failed} ({parts.sizes[failed]:,} rows)", model, failed))
        if mixed:
            with comm.uncounted():
                fitted.residual = comm.allreduce(residual)
        return fitted

    def _refined(self, coarse: CoarseModel) -> CoarseModel:
        """The coarse model after some iterations, of a lambda that the held-out rows choose if there was a choice."""
        from cakrr.methods.refined import chosen_lambda, refined

        lam: float | None = coarse.lam
        several = self.tried is not None and len({lam for *_, lam in self.tried.settings}) > 1
        if self.tried is not None and several and self.options.select != "test":
            learned = self.tried.chosen(self.candidate, learned=True)
            lam = chosen_lambda(learned, self.parts, self.held, self.prepared.scale, self.options, self.comm)
        if lam is None:
            self.fitted.reasons.append("refine: on the validation rows the coarse model errs less than the refined one")
            return coarse
        self.fitted.params["coarse_lambda"] = lam
        return refined(replace(coarse, lam=lam), self.parts, self.options, self.comm)


def not_definite(where: str, model: KRRModel, part: int = 0) -> str:
    """One line about a system without a solution."""
    pair = f"sigma {model.sigma_of(part):g}, lambda {model.lam_of(part):g}"
    return f"{where}: K + lambda m I is not positive definite at {pair}; use {larger_lambda(model.dtype)}"


def _check_memory(sizes: NDArray[np.int64], X: Rows, ranks: int, limit: int, on_disk: bool) -> None:
    """Refuse parts whose largest matrix does not fit beside this rank's rows, or those of a part and all columns."""
    largest, even, itemsize = int(sizes.max()), sizes.sum() / len(sizes), X.dtype.itemsize
    rows, matrix, what = nbytes(X), largest * largest * itemsize, "a rank's rows"
    disk = enough = ""
    if isinstance(X, StoredRows):
        what = "its rows and what is in memory of the others"
        rows = _COPIES * largest * X.row_bytes + _COLUMN_BYTES * int(sizes.sum()) // ranks
    else:
        enough = memory.enough_ranks(ranks * rows, limit - matrix)
        disk = "--out-of-core, " if on_disk else ""
    remedy = f"{disk}--dtype float32, more ranks{enough} or a larger --memory-limit"
    if limit > rows + itemsize:
        # Parts that are uneven now are taken to be as uneven when there are more of them.
        parts = math.ceil(sizes.sum() * (largest / even) / math.isqrt((limit - rows) // itemsize))
        remedy = f"more --partitions (about {parts}), {remedy}"
    what = f"the matrix of a part of {largest:,} rows, beside {what},"
    memory.require(matrix + rows, limit, what, f"use {remedy}")
