"""Least squares on M points: fold the rows of every width, choose the setting, solve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.comm import Communicator
from cacore.comm.alike import canonical
from cacore.data.dataset import Dataset
from cacore.data.rows import Rows, dense, nbytes
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.io.checkpoint import remembered
from cacore.kernels import Kernel
from cacore.kernels.registry import named
from cacore.linalg import tsqr
from cacore.machine import memory
from cacore.tuning import choose
from cakrr.grid_search import larger_lambda
from cakrr.methods.points import GivenRows, Source, TrainingRows, UserRows, checked_points, picked
from cakrr.methods.prepare import prepare
from cakrr.options import RidgeMethod, SubsetOptions, Width
from cakrr.ridge_model import KRRModel, RidgeFit
from cakrr.ridge_predictor import Offset, PartModel
from cakrr.solver.coarse import CoarseModel, factor_of
from cakrr.solver.nystrom import PointSystem, RidgePath, memory_bytes, unit_of

ERROR = {"loo": "loo_mse", "gcv": "gcv_mse"}  # keys of the grid


@dataclass
class Task:
    """A fit on M points: the rows, the points, and the settings to compare.

    Attributes
    ----------
    source : Source
    centers : ndarray or CSR, shape (M, d)
        The points; a smaller number of them means the first ones.
    numbers : list of int
    widths : tuple of Width
    scale : ndarray, shape (t,)
        Units of the targets; squared errors in these units add up.
    options : SubsetOptions
    comm : Communicator
        The ranks; they are not stored.
    """

    source: Source
    centers: Rows
    numbers: list[int]
    widths: tuple[Width, ...]
    scale: NDArray[np.float64]
    options: SubsetOptions
    comm: InitVar[Communicator]

    def __post_init__(self, comm: Communicator) -> None:
        passes = 1 + (self.compares and self.options.select == "loo")
        own_leaves = int((tsqr.owners(self.source.leaves, comm.size) == comm.rank).sum())
        self.advance = self.options.progress("folding rows", own_leaves * passes * len(self.widths))

    @property
    def compares(self) -> bool:
        """True if there are several settings."""
        return len(self.widths) * len(self.numbers) * len(self.options.lam) > 1

    def system(self, s: int, comm: Communicator) -> PointSystem:
        """The least-squares problem of the s-th width; collective, 2 n M^2 flops."""
        kernel, M = self.widths[s].kernel, self.centers.shape[0]
        piece = f"triangle-{s:04d}-{self.widths[s].like.kind}-{self.widths[s].sigma!r}"
        triangle = tsqr.tsqr(
            lambda leaf, skipped: self._blocks(kernel, leaf, skipped), M, self.source.targets + 1,
            self.source.leaves, comm, checkpoint=self.options.checkpoint, piece=piece,
        )  # fmt: skip
        return PointSystem.of(triangle, factor_of(self.centers, kernel))

    def _blocks(self, kernel: Kernel, leaf: int, skipped: int) -> Iterator[NDArray[np.float64]]:
        """Blocks of a leaf; the progress bar advances at the end."""
        yield from self.source.problem(kernel, self.centers, leaf, skipped)
        self.advance()

    def left_out(self, s: int, paths: list[RidgePath], comm: Communicator) -> NDArray[np.float64]:
        """Mean squared errors of rows left out, shape (len(paths), L); collective, a pass over the rows."""
        leaves, lams = self.source.leaves, len(self.options.lam)
        kernel, t = self.widths[s].kernel, self.source.targets
        # One row of sums per leaf, each by one rank: their sum does not depend on the number of ranks.
        sums = np.zeros((leaves, len(paths), lams))
        with comm.agreed():
            for leaf in np.flatnonzero(tsqr.owners(leaves, comm.size) == comm.rank).tolist():
                for block in self._again(leaf, kernel, comm):
                    for i, path in enumerate(paths):
                        A = np.ascontiguousarray(block[:, : len(path.C)])
                        errors = path.left_out(A, block[:, -t - 1 : -1]) / self.scale
                        sums[leaf, i] += np.square(errors).sum(axis=(1, 2))
        return np.asarray(comm.allreduce(sums).sum(axis=0) / paths[0].system.weight)

    def _again(self, leaf: int, kernel: Kernel, comm: Communicator) -> Iterator[NDArray[np.float64]]:
        """Blocks of a leaf, for the second time."""
        try:
            yield from self._blocks(kernel, leaf, 0)
        except InputError:
            raise
        except Exception as error:
            raise tsqr.named(error, f"rows, share {leaf}, second pass (rank {comm.rank})") from error

    def errors(self, s: int, system: PointSystem, comm: Communicator) -> NDArray[np.float64]:
        """Errors of all numbers of points and all lambdas at the s-th width, shape (len(numbers), L); collective."""
        paths = [system.leading(M).path(self.options.lam) for M in self.numbers]
        if self.options.select == "gcv":
            return np.stack([(path.generalized() / self.scale**2).sum(axis=1) for path in paths])
        name = f"errors-{s:04d}-{self.widths[s].like.kind}-{self.widths[s].sigma!r}"
        return remembered(self.options.checkpoint, name, lambda: {"errors": self.left_out(s, paths, comm)}, comm)[
            "errors"
        ]


@dataclass
class ChosenSystem:
    """The chosen setting and its system."""

    width: Width
    lam: float
    system: PointSystem
    grid: list[dict[str, Any]]


def fit(
    method: RidgeMethod, train: Dataset, options: SubsetOptions, comm: Communicator, test: Dataset | None = None
) -> RidgeFit:
    """Least squares on M points; a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        On all ranks: invalid options, more points than rows, points that coincide, memory that does not suffice, or no
        lambda with a solution.

    Notes
    -----
    2 n M^2 flops per sigma, shared by the ranks, 3 n M^2 for leave-one-out errors, and about 12 M^3 per sigma and
    number of points on every rank. Training sends what :func:`cacore.linalg.tsqr.sent_bytes` says per sigma.
    """
    prepared = prepare(method, train, options, comm, test)
    samples = prepared.samples
    n, d = comm.offset(len(samples))[1], samples.X.shape[1]
    with comm.agreed():
        numbers = options.numbers(n)
        _check_memory(numbers[-1], tsqr.leaves_of(n, numbers[-1] + 2), nbytes(samples.X), options, comm)
    widths = options.widths(method, d)
    with comm.phase("partition"):
        if options.points is None:
            centers = picked(options.pick, samples, numbers[-1], widths[len(widths) // 2].kernel, options.seed, comm)
        else:
            with comm.agreed():
                standardizer = prepared.standardizer
                centers = checked_points(options.points, d if standardizer is None else standardizer.n_features)
                if standardizer is not None:
                    centers = standardizer.apply(centers)
        notes = _fewer(numbers, centers.shape[0]) if options.centers else []
        numbers = [min(M, centers.shape[0]) for M in numbers]
        source = TrainingRows(samples.give(), centers.shape[0], comm)
    task = Task(source, centers, numbers, widths, prepared.scale, options, comm)
    fitted = solved(method, task, prepared.offset, prepared.standardizer, str(source.dtype), comm, prepared.classes)
    fitted.notes += notes
    return fitted


def fit_observed(
    method: RidgeMethod, rows: UserRows, shares: int, options: SubsetOptions, comm: Communicator
) -> RidgeFit:  # fmt: skip
    """Least squares on the points `options.points`, of observations that the user generates; a collective call.

    Parameters
    ----------
    method : RidgeMethod
    rows, shares : see :class:`cakrr.methods.points.GivenRows`
    options : SubsetOptions
    comm : Communicator

    Raises
    ------
    InputError
        On all ranks: an error of `rows` on any rank, whose line names rank, share and block; blocks that do not fit
        together; or what :func:`fit` raises. With a checkpoint, the blocks before are not lost.

    Notes
    -----
    The cost is that of :func:`fit`, and nothing but triangles is sent. Neither rows nor targets are shifted or scaled.
    """
    with comm.agreed():
        options.checked(method)
        if options.points is None:
            raise InputError("rows: give the centers as an array, shape (M, d); M alone would need training rows")
        if options.sigma is None and not options.without_width:
            raise InputError("rows: give sigma; rows of your own are not scaled, so there is no natural width")
        points = checked_points(options.points)
        _check_memory(points.shape[0], shares, 0, options, comm)
    widths = options.widths(method, points.shape[1])
    if options.checkpoint is not None:
        options.checkpoint.open(_facts(method, options, points, shares, comm), comm)
    source = GivenRows(rows, shares, comm)
    task = Task(source, points, [points.shape[0]], widths, np.ones(source.targets), options, comm)
    with comm.agreed():
        if source.once and (len(widths) > 1 or (task.compares and options.select == "loo")):
            raise InputError(
                "rows: an iterator is read once, which allows one sigma and select='gcv'; give a callable, or a list"
            )
    offset = 0.0 if source.targets == 1 else np.zeros(source.targets)
    return solved(method, task, offset, None, "float64", comm)


def _facts(
    method: RidgeMethod, options: SubsetOptions, points: Rows, shares: int, comm: Communicator
) -> dict[str, object]:  # fmt: skip
    """Facts that identify a run on observations that the user generates."""
    return {
        "method": method.name, "kernel": named(options.kernel), "degree": options.degree, "coef0": options.coef0,
        "sigma": options.sigma, "lam": options.lam, "select": options.select, "shares": shares, "ranks": comm.size,
        "centers": canonical(dense(points)), "package": __version__,
    }  # fmt: skip


def solved(
    method: RidgeMethod, task: Task, offset: Offset, standardizer: Standardizer | None, dtype: str,
    comm: Communicator, classes: NDArray[np.generic] | None = None,
) -> RidgeFit:  # fmt: skip
    """Choose the setting, solve, and build the model; collective."""
    begun = comm.seconds["train"]
    with comm.phase("train"):
        chosen = _chosen(task, comm)
        beta, C = chosen.system.solve(chosen.lam)
        with comm.agreed():
            if not np.isfinite(beta).all():
                raise InputError(_unsolved(chosen.width, chosen.lam, dtype))
        unit = unit_of(chosen.system, beta, C)
    many, M = np.ndim(offset) > 0, len(beta)
    coarse = CoarseModel(
        task.centers[:M].copy(), beta if many else beta[:, 0].copy(), chosen.width.sigma, chosen.lam, chosen.width.like,
        factor=tsqr.packed(C), unit=unit, weight=chosen.system.weight, rows=chosen.system.rows,
    )  # fmt: skip
    d = task.centers.shape[1]
    model = KRRModel(
        method=method.name, route="sum", like=chosen.width.like, sigma=chosen.width.sigma, lam=chosen.lam,
        coarse=coarse, offset=offset, centers=np.zeros((0, d)), sizes=np.ones(1, np.int64),
        owners=np.zeros(1, np.int64), standardizer=standardizer, dtype=dtype, classes=classes,
    )  # fmt: skip
    if comm.rank == 0:  # the points are all of the model: its one part is a row whose coefficients are 0
        model.parts[0] = PartModel(np.zeros((1, d), dtype), np.zeros((1, *beta.shape[1:]) if many else 1, dtype))
    with comm.uncounted():
        busy = comm.allgather(np.array([comm.seconds["train"] - begun]))
    params = {"centers": M, "leaves": task.source.leaves, "condition": _condition(chosen.system)}
    return RidgeFit(
        model, np.array([chosen.system.rows]), chosen.grid, params, seconds=np.array([busy.max()]), busy=busy
    )


def _chosen(task: Task, comm: Communicator) -> ChosenSystem:
    """The setting with the smallest error; collective."""
    options = task.options
    if not task.compares:
        return ChosenSystem(task.widths[0], options.lam[0], task.system(0, comm), [])
    grid: list[dict[str, Any]] = []
    errors: list[NDArray[np.float64]] = []
    best_system: PointSystem | None = None  # the others' memory is freed
    for s, width in enumerate(task.widths):
        system = task.system(s, comm)
        errors.append(comm.bcast(task.errors(s, system, comm)))  # ranks may round the decomposition differently
        grid += _rows_of_grid(task, width, errors[s])
        setting = choose(np.array(errors))
        if setting is not None and setting[0] == s:
            best_system = system
    with comm.agreed():
        if setting is None or best_system is None:
            raise InputError(_unsolved(task.widths[-1], max(options.lam), "float64"))
    s, i, ell = setting
    return ChosenSystem(task.widths[s], options.lam[ell], best_system.leading(task.numbers[i]), grid)


def _rows_of_grid(task: Task, width: Width, errors: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Entries of the report, one per number of points and lambda."""
    name, options = ERROR[task.options.select], task.options
    several = {"centers": task.numbers} if len(task.numbers) > 1 else {}
    kernel = {"kernel": width.like.kind} if options.chooses_kernel else {}
    return [
        {**{key: values[i] for key, values in several.items()}, **kernel, "sigma": width.sigma, "lambda": lam,
         name: float(errors[i, ell]) if np.isfinite(errors[i, ell]) else None}
        for i in range(len(task.numbers)) for ell, lam in enumerate(options.lam)
    ]  # fmt: skip


def _condition(system: PointSystem) -> float:
    """Estimate of the condition number of the weighted rows; the largest double instead of infinity, for the report."""
    condition = tsqr.Triangle(system.R, system.q, np.zeros((0, 0)), system.rows).condition()
    return min(condition, float(np.finfo(np.float64).max))


def _check_memory(M: int, leaves: int, rows: int, options: SubsetOptions, comm: Communicator) -> None:
    """Refuse points whose squares do not fit beside the rows and their copy on the owners of leaves."""
    need = 2 * rows + memory_bytes(M, leaves, comm.size)
    memory.require(need, options.memory_limit, f"least squares on {M:,} points", "use fewer --centers, or more memory")


def _fewer(numbers: list[int], M: int) -> list[str]:
    """A note if there are fewer distinct points than asked for; `numbers` are then cut."""
    if numbers[-1] <= M:
        return []
    wanted = numbers[-1]
    numbers[:] = sorted({min(number, M) for number in numbers})
    return [f"centers = {wanted:,}: only {M:,} of the rows are distinct enough to be centers"]


def _unsolved(width: Width, lam: float, dtype: str) -> str:
    return (
        f"least squares on M points have no solution at sigma {width.sigma:g}, lambda {lam:g}; use "
        f"{larger_lambda(dtype)}, or fewer centers"
    )
