"""The tasks of kernel SVMs, which are trained in parts: classes, regression and one class, and quantiles.

:class:`SVMTask`, their base, checks, standardises and divides rows, and makes models in pieces.
:class:`ClassesTask` trains one SVM per pair of classes in each part, with probabilities if requested;
:class:`ValuesTask` trains support vector regression (epsilon-SVR and nu-SVR) and one-class SVMs; and
:class:`QuantilesTask` trains support vector quantile regression, with intervals around it if requested.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.labels import all_classes, class_factors, require_classes
from cacore.data.resolution import check_resolved
from cacore.data.rows import (
    LARGEST_TARGET,
    AnyRows,
    check_squares,
    check_targets,
    in_blocks,
    in_memory,
    is_sparse,
    nbytes,
    take_rows,
)
from cacore.data.standardize import Standardizer
from cacore.data.stored import is_stored
from cacore.errors import InputError
from cacore.io.checkpoint import Kept, remembered
from cacore.io.fingerprints import fingerprint
from cacore.kernels import Kernel
from cacore.machine import memory, threads
from cacore.machine.clock import working_time
from cacore.probability.calibrator import Calibrator
from cacore.probability.conformal import check_held_out, set_aside
from cacore.probability.left_out import LeftOutDecisions, folds_to_leave_out, pairs_of
from cacore.svm.dual import Solution
from cacore.svm.problem import numeric_gamma
from cacore.tuning import Results
from casvm.methods.probability import left_out
from casvm.model.part_svm import PartSVM, placed
from casvm.model.quantile_model import QuantileModel
from casvm.model.svm_model import SVMModel, own_settings
from casvm.model.svr_model import PartSVR, SVRModel
from casvm.options import PARTITIONERS, SCALE, SCALED, SVMMethod, SVMOptions, ValueMethod, ValueOptions
from casvm.search.classes import search_classes
from casvm.search.regression import search_values
from casvm.solver.problems import Problem, problem_of
from casvm.solver.smo import PartTraining, fit_part
from casvm.svm_fit import STATISTICS, SVMFit, check_parts, check_parts_at_a_time, named, not_met, predicted_cost, terms
from partition.algorithms import divide
from partition.base import Algorithm, Division
from partition.in_parts import Part, PartTask, SolvedPart, Trained, in_parts
from partition.parts_model import SOFT, Soft, double_variance, gap
from partition.redistribute import Parts, assign_owners, deal, hand_out, order_of, overlapping

# SVMOptions that do not affect the result.
_APART = ("progress", "checkpoint", "memory_limit", "cache_gib", "initial", "out_of_core", "scratch")

Owners = Callable[[NDArray[np.int64], int], NDArray[np.int64]]


def _balanced(sizes: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """Owners of parts, balanced by predicted cost."""
    return assign_owners(sizes, ranks, predicted_cost)


@dataclass(kw_only=True)
class SVMTask(PartTask[Part, Trained, SVMFit[Trained]]):
    """A kernel SVM task on this rank's rows.

    Attributes
    ----------
    method : SVMMethod
    options : SVMOptions
        The options; after a search, with the chosen setting.
    rows : Samples
        This rank's rows, standardised if requested, with their global number as column "row". The last division takes
        the rows, so that they are not held twice.
    kernel : Kernel
    standardizer : Standardizer or None
    ratio : bool
        True if the partitioner balances every class as well as the sizes of the parts.
    search : Results or None
        Scores of the settings, if several were compared.
    n_iter : int
        Number of K-means rounds.
    """

    bound: ClassVar[str]  # column to which the bound of a row's coefficient is proportional

    method: SVMMethod | ValueMethod
    options: SVMOptions | ValueOptions
    rows: Samples = field(init=False)
    kernel: Kernel = field(init=False)
    standardizer: Standardizer | None = field(init=False)
    ratio: bool = False
    search: Results | None = None
    n_iter: int = 0
    statistics: int = len(STATISTICS) + 1

    @classmethod
    def prepared(cls, method: Any, train: Dataset, options: Any, comm: Communicator) -> Self:
        """Check the input, with the same result on all ranks, and take the rows; collective.

        Raises
        ------
        InputError
            On all ranks: invalid options, rows or targets, fewer parts than ranks, or a checkpoint of another run.
        """
        with comm.agreed():
            P = options.checked(method, comm.size)
        task = cls(
            method=method, options=options, P=P, route=options.route_of(method) if P > 1 else "nearest",
            searches=options.searches, checkpoint=options.checkpoint, progress=options.progress,
        )  # fmt: skip
        with comm.phase("read"):
            task._read(train, comm)
        return task

    @classmethod
    def train(cls, method: Any, train: Dataset, options: Any, comm: Communicator) -> SVMFit[Trained]:
        """Train one model per part (Algorithm 5 and its clustered relatives); a collective call.

        Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

        Raises
        ------
        InputError
            On all ranks: invalid options, rows or targets, more parts than rows, insufficient memory, or a checkpoint
            of another run.

        Notes
        -----
        A search for settings comes first, if requested. Each part then costs what :func:`casvm.solver.smo.solve` does.
        Memory holds this rank's rows and the kernel caches. Training sends nothing; partitioning sends nothing for
        random parts.
        """
        return in_parts(cls.prepared(method, train, options, comm), comm)

    def _read(self, train: Dataset, comm: Communicator) -> None:
        columns = self.columns(train.target(), train.row_weights(), comm)
        self._open_checkpoint(train, columns[self.bound], comm)
        rows, weights = Samples(train.give(), columns), train.weights
        if weights is not None:  # rows of weight 0 count as absent
            present = np.flatnonzero(weights > 0)
            rows, weights = rows.take(present), weights[present]
        self.rows = rows
        self.check_rows(comm)
        self.standardizer = None
        if self.options.standardize:
            self.standardizer = Standardizer.fit(rows.X, comm, weights)
            rows.X = self.standardizer.apply(rows.X)
        else:
            check_resolved(rows.X, rows.X.dtype, comm)
        check_squares(rows.X, comm)
        # A search replaces this gamma of 1.
        gamma = 1.0 if self.searches else numeric_gamma(rows.X, self.options.gamma, comm, self.options.kernel)
        self.kernel = self.options.kernel_with(gamma).suited(rows.X.shape[1])
        self.measure(comm)

    @abstractmethod
    def columns(self, y: NDArray[Any], weights: NDArray[np.float64], comm: Communicator) -> dict[str, NDArray[Any]]:
        """The columns stored with the rows, from targets and weights; collective."""

    def check_rows(self, comm: Communicator) -> None:
        """Refuse rows that cannot be trained on; collective."""

    def measure(self, comm: Communicator) -> None:
        """Compute the statistics of the rows that the report needs; collective."""

    def facts(self) -> dict[str, object]:
        """Facts besides the options that affect the result; a checkpoint compares them."""
        return {}

    def _open_checkpoint(self, train: Dataset, weights: NDArray[np.float64], comm: Communicator) -> None:
        """Resume the run in the checkpoint's directory, or begin one."""
        if self.checkpoint is None:
            return
        facts: dict[str, Any] = {"method": self.method.name}
        facts |= {name: value for name, value in vars(self.options).items() if name not in _APART}
        facts |= {
            "ranks": comm.size, "package": __version__, "features": train.X.shape[1],
            "dtype": str(train.X.dtype), "partitions": self.P, **self.facts(),
            "training rows": fingerprint(train.X, train.target(), weights, comm),
        }  # fmt: skip
        self.checkpoint.open(facts, comm, {"parts": self.P})

    @property
    @abstractmethod
    def partitioner(self) -> str | Algorithm:
        """The partitioner; if empty, each rank deals its rows to its own parts at random."""

    def divided(self, number: int, comm: Communicator, assign: Owners = _balanced) -> Parts:
        """This rank's parts of the division with this number; collective.

        The task keeps its rows only if there are several divisions. ``assign(sizes, ranks)`` returns the owner of each
        part that a partitioner made.
        """
        options, seed = self.options, (self.options.seed + number) % 2**32
        rows = self.rows.give()
        if self.divisions > 1:
            self.rows = Samples(rows.X, dict(rows.columns))
        if not self.partitioner or self.P == 1:  # a single part keeps the order of the rows, without a copy
            return deal(rows, self.P, seed, comm)
        division = divide(self.partitioner, self.P, rows.X, comm, seed, rows.columns.get("code"), self.ratio)
        rows, division = self.widened(rows, division, comm)
        parts = hand_out(rows, division, assign(division.sizes, comm.size), options.seed, comm)
        self.n_iter = parts.n_iter
        return parts

    def widened(self, rows: Samples, division: Division, comm: Communicator) -> tuple[Samples, Division]:
        """The rows and their division after adding overlapping rows to the parts; collective."""
        return rows, division

    def soft(self, parts: Parts, centers: NDArray[np.float64], comm: Communicator) -> Soft | None:
        """Parameters of the route "soft", or None; collective."""
        return SOFT.scaled(gap(parts.X, centers, comm), len(centers)) if self.route == "soft" else None

    def model_in_pieces(self, piece: Part, support: int, comm: Communicator) -> Trained:
        """One model of which every rank holds a piece, here with `support` support vectors; collective."""
        with comm.phase("predict"):
            sizes = comm.allgather(np.array([support]))
        return self.model(
            route="sum", centers=np.zeros((0, self.rows.X.shape[1])), sizes=sizes, owners=np.arange(comm.size),
            parts={comm.rank: piece},
        )  # fmt: skip


@dataclass(kw_only=True)
class ClassesTask(SVMTask[PartSVM, SVMModel]):
    """A classification task: each part learns the classes of its rows.

    Attributes
    ----------
    rows : Samples
        Columns: "code" of the class, bound "C" of alpha, and global number "row". Before a search, "C" is the bound
        for C = 1.
    classes : ndarray, shape (k,)
    nonzeros : float
        Mean number of nonzeros per row, over all ranks.
    kernels : dict of int to Kernel
        Kernel of each part, if every part chose its own.
    calibrator : Calibrator or None
        Turns decisions of pairs of classes into probabilities, if these were requested.
    """

    bound = "C"

    method: SVMMethod
    options: SVMOptions
    classes: NDArray[Any] = field(init=False)
    nonzeros: float = field(init=False)
    kernels: dict[int, Kernel] = field(default_factory=dict)
    calibrator: Calibrator | None = None

    def __post_init__(self) -> None:
        self.ratio = self.options.ratio

    def columns(self, y: NDArray[Any], weights: NDArray[np.float64], comm: Communicator) -> dict[str, NDArray[Any]]:
        """Class code, bound of alpha and global number of each row; refuses a single class. Collective."""
        self.classes = all_classes(y[weights > 0], comm)
        with comm.agreed():
            require_classes(self.classes)
        first, _ = comm.offset(len(y))
        k = len(self.classes)
        codes = np.searchsorted(self.classes, y).astype(np.int64)
        codes[codes == k] = 0  # labels that only rows of weight 0 have
        factor = class_factors(self.options.class_weight, codes, weights, k, comm)
        C = 1.0 if self.searches else self.options.C
        return {"code": codes, "C": C * factor[codes] * weights, "row": np.arange(first, first + len(codes))}

    def facts(self) -> dict[str, object]:
        """Weights of the classes, as given by the user."""
        return {"class_weight": repr(self.options.class_weight)}

    def measure(self, comm: Communicator) -> None:
        """Count nonzeros; collective."""
        X = self.rows.X
        with comm.uncounted():
            count = X.nnz if is_sparse(X) else sum(np.count_nonzero(block) for block in in_blocks(X))
            total, n = comm.allreduce(np.array([count, len(self.rows)], np.int64)).tolist()
        self.nonzeros = total / n

    @property
    def partitioner(self) -> str | Algorithm:
        """The method's partitioner."""
        partitioner: str | Algorithm = self.method.partitioner
        return partitioner

    def check_memory(self, parts: Parts, comm: Communicator) -> None:
        """Refuse parts that do not fit beside the kernel cache; with rows in a file, those solved side by side."""
        with comm.agreed():
            if is_stored(parts.X):
                check_parts_at_a_time(parts, self.options)
            else:
                check_parts(parts, nbytes(parts.X), self.options, comm.size)

    def choose(self, parts: Parts, comm: Communicator) -> Parts:
        """Choose C and gamma, and bound each row's alpha by the C of its part; collective.

        With `per_part`, `options` and `kernel` become those of the part with the median C.

        Notes
        -----
        The cost is that of :func:`casvm.search.classes.search_classes`, plus an Allreduce of 3 numbers for gamma =
        "scale".
        """
        results = self.search = search_classes(parts, self.classes, self.P, self.options, comm)
        if results is None or not self.options.per_part:
            options = self.options = self.options.with_setting(results)
            self.kernel = options.kernel_with(numeric_gamma(parts.X, options.gamma, comm, options.kernel))
            parts.columns["C"] = parts["C"] * options.C
            return parts
        Cs, gammas = results.chosen["C"], results.chosen.get("gamma")
        self.kernels = {
            p: self.kernel if gammas is None else replace(self.kernel, gamma=float(gammas[p])) for p in range(self.P)
        }
        parts.columns["C"] = parts["C"] * np.repeat(Cs[parts.parts], np.diff(parts.bounds))
        # The model has one C besides the parts' own: that of the part with the median C.
        middle = int(np.argsort(Cs, kind="stable")[len(Cs) // 2])
        self.kernel = self.kernels[middle]
        self.options = replace(self.options, C=float(Cs[middle]), gamma="scale", cv=None)
        return parts

    def solve(self, number: int, rows: Samples, side_by_side: int) -> Kept:
        """Solve all pairs of classes, starting from the column "coef", alpha y of shape (m, k - 1), if there is one.

        About 2 s m nnz flops for m rows of nnz nonzeros and s support vectors.
        """
        X, begun = in_memory(rows.X), working_time()
        start = rows.columns.get("coef")
        part, solutions = fit_part(
            X, rows["code"], rows["C"], rows["row"], self._training(number, side_by_side),
            None if start is None or not start.any() else start.T,
        )  # fmt: skip
        arrays = {key: value for key, value in vars(part).items() if key != "X" and value is not None}
        numbers = _statistics(part, solutions, working_time() - begun)
        return {**arrays, "places": placed(part.rows, rows["row"]), "statistics": numbers}

    def _training(self, number: int, side_by_side: int) -> PartTraining:
        """Settings of the part with this number, if `side_by_side` parts share the cache."""
        options, kernel = self.options, self.kernels.get(number, self.kernel)
        return PartTraining(kernel, options.limits, options.cache_bytes // side_by_side, options.solver)

    def part(self, rows: Samples, arrays: Kept) -> PartSVM:
        """The part's model; support vectors from rows in a file are read from there."""
        fields = {key: value for key, value in arrays.items() if key not in ("places", "statistics")}
        return PartSVM(X=take_rows(rows.X, arrays["places"]), **fields)

    def completed(
        self, parts: Parts, solved: dict[int, SolvedPart[PartSVM]], comm: Communicator
    ) -> dict[int, SolvedPart[PartSVM]]:
        """The solved parts in order, with the sigmoids of their probabilities if requested; collective.

        Probabilities cost what :func:`casvm.methods.probability.left_out` does, and about ten Allreduces of 6 numbers
        per pair of classes.
        """
        ordered = {number: solved[number] for number, _ in parts}
        if self.options.probability is None:
            return ordered
        self.calibrator, held_out = self._calibrated(parts, comm)
        if len(parts.sizes) > 1 and self.route != "all":
            # The same decision may mean a different probability in each part, so each part gets its own sigmoids.
            for number, solution in ordered.items():
                sigmoids = self.calibrator.of_part(held_out[number])
                if sigmoids is not None:
                    A, B = (values[pairs_of(solution.part.classes, len(self.classes))] for values in sigmoids)
                    ordered[number] = replace(solution, part=replace(solution.part, slopes=A, shifts=B))
        return ordered

    def _calibrated(self, parts: Parts, comm: Communicator) -> tuple[Calibrator, dict[int, LeftOutDecisions]]:
        """Calibrator of all parts, and each part's decisions on left-out rows; collective, sends no rows."""
        options, k = self.options, len(self.classes)
        counts = comm.allreduce(np.bincount(parts["code"], minlength=k).astype(np.int64))
        folds, side_by_side = folds_to_leave_out(counts), max(1, min(threads.current(), len(parts.parts)))
        advance = options.progress("probabilities", len(parts.parts))

        def of_part(number: int, rows: slice) -> LeftOutDecisions:
            training = self._training(number, side_by_side)

            def work() -> Kept:
                return vars(left_out(parts.take(rows), k, folds, training))

            return LeftOutDecisions(**remembered(options.checkpoint, f"left-out-{number:06d}", work))

        held, decisions = list(parts), {}
        with threads.in_order(of_part, held, parallel=len(held) >= 2 * threads.current()) as results:
            for (number, _), part_decisions in zip(held, results, strict=True):
                decisions[number] = part_decisions
                advance()
        comm.wait()
        assert options.probability is not None
        together = LeftOutDecisions.stacked(list(decisions.values()))
        return Calibrator.fit(options.probability, together, k * (k - 1) // 2, comm), decisions

    def soft(self, parts: Parts, centers: NDArray[np.float64], comm: Communicator) -> Soft | None:
        """Parameters of the route "soft", and of "all" with more than two classes; collective."""
        if self.route == "all" and len(self.classes) > 2:
            # Two classes keep the plain mean. With more, a distant part may be as confident as a near one.
            return Soft(len(centers), double_variance(parts.X, centers, comm))
        return super().soft(parts, centers, comm)

    def model(self, **where: Any) -> SVMModel:
        """The classifier with these parts."""
        X = self.rows.X  # also where the rows are given away
        settings: dict[str, Any] = {} if self.search is None else own_settings(self.search.chosen)
        return SVMModel(
            method=self.method.name, classes=self.classes, kernel=self.kernel, C=self.options.C,
            standardizer=self.standardizer, dtype=str(X.dtype), source={"sparse": is_sparse(X)},
            calibrator=self.calibrator, **settings, **where,
        )  # fmt: skip

    def fit(
        self, model: SVMModel, numbers: NDArray[np.float64], busy: NDArray[np.float64],
        sizes: NDArray[np.int64] | None = None,
    ) -> SVMFit[SVMModel]:  # fmt: skip
        """The result of training; `sizes` are the rows of each part, by default the model's."""
        sizes, solver, tol = model.sizes if sizes is None else sizes, named(numbers), self.options.limits.tol
        measured = terms(sizes, self.nonzeros, self.n_iter, solver)
        return SVMFit(model, sizes, solver, busy, tol, measured, not_met(numbers, tol, "parts"), search=self.search)


def _statistics(part: PartSVM, solutions: list[Solution], seconds: float) -> NDArray[np.float64]:
    """The line of a part's pairs: see :data:`casvm.svm_fit.STATISTICS`."""

    def total(name: str) -> float:
        return float(sum(getattr(solution, name) for solution in solutions))

    worst = max((solution.gap for solution in solutions), default=0.0)
    met = all(solution.converged for solution in solutions)
    counts = (total("kernel_rows"), total("kernel_values"))
    return np.array([total("iterations"), len(part.rows), total("objective"), worst, seconds, *counts, met])


_ADDED = "added"  # column: True for rows of other parts, if parts overlap


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
        options, kind = self.options, problem_of(self.method, self.options)
        if kind.has_targets:
            check_targets(np.where(weights > 0, y, 0.0), "the training rows", LARGEST_TARGET, comm)
            if self.searches or SCALE in (options.C, options.epsilon, options.tol):
                self.unit = deviation(y, weights, comm)
        if options.tol == SCALE:
            options = self.options = replace(options, tol=SCALED["tol"] * self.unit)
        self.problem = kind.of(options.with_setting(None), self.unit)  # until a search has chosen
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
        with comm.agreed():
            check_parts(parts, nbytes(parts.X) + nbytes(self.rows.X), self.options)

    def choose(self, parts: Parts, comm: Communicator) -> Parts:
        """Choose C, epsilon and gamma, at the cost of :func:`casvm.search.regression.search_values`; collective."""
        self.use_setting(search_values(parts, self.n, self.P, self.unit, self.options, comm), parts.X, comm)
        return parts

    def use_setting(self, results: Results | None, X: AnyRows, comm: Communicator) -> None:
        """Use the setting of a search, or "scale" if `results` is None; `X` are this rank's rows. Collective.

        Of the problem, only what the search has chosen changes: a task may have set the rest.
        """
        options, chosen = self.options.with_setting(results), self.options.several
        self.kernel = options.kernel_with(numeric_gamma(X, options.gamma, comm, options.kernel))
        params = {name: value for name, value in self.problem.of(options, self.unit).params.items() if name in chosen}
        self.problem = replace(self.problem, params={**self.problem.params, **params})
        self.search, self.options = results, options

    def solve(self, number: int, rows: Samples, side_by_side: int) -> Kept:
        """Solve a part: about 2 s m nnz flops for m rows of nnz nonzeros and s support vectors."""
        begun, options = working_time(), self.options
        cache_bytes = options.cache_bytes // side_by_side
        training = PartTraining(self.kernel, options.limits, cache_bytes, options.solver)
        solutions = self.problem.solve(rows, training)
        scale = self.problem.share(len(rows), self.n / self.P)
        return merged([kept_of(solution, begun, scale) for solution in solutions])

    def part(self, rows: Samples, arrays: Kept) -> PartSVR:
        """The part's model, with its support vectors in the order of all rows."""
        numbers = rows["row"][arrays["places"]]
        order = np.argsort(numbers)
        beta = arrays["beta"][order]
        return PartSVR(
            rows.X[arrays["places"][order]], numbers[order], beta if self.problem.levels else beta[:, 0],
            arrays["b"].copy(),
        )  # fmt: skip

    def soft(self, parts: Parts, centers: NDArray[np.float64], comm: Communicator) -> Soft | None:
        """Parameters of the route "soft", or None, from each part without the rows added to it; collective."""
        own_parts = (
            replace(parts, X=parts.X[~parts[_ADDED]]) if _ADDED in parts.columns and self.route == "soft" else parts
        )
        return super().soft(own_parts, centers, comm)

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
        return SVMFit(model, sizes, solver, busy, float(self.options.tol), notes=notes, search=self.search)


def kept_of(solution: Solution, begun: float, scale: float = 1.0) -> Kept:
    """Arrays of a solution for a checkpoint; coefficients, shape (s, 1), and b are multiplied by `scale`."""
    counts = solution.kernel_rows, solution.kernel_values, solution.converged
    support = np.flatnonzero(solution.beta)
    numbers = [solution.iterations, len(support), solution.objective, solution.gap, working_time() - begun]
    return {
        "places": support, "beta": scale * solution.beta[support, None], "b": np.array([scale * solution.b]),
        "statistics": np.array([*numbers, *counts], np.float64),
    }  # fmt: skip


def merged(solutions: Sequence[Kept]) -> Kept:
    """Arrays of the solutions of t duals of the same rows as one: "beta" has shape (s, t), "b" (t,).

    The s rows are those with a coefficient in any solution. Counts and objectives are added up; violation and seconds
    are the largest ones.
    """
    if len(solutions) == 1:
        return solutions[0]
    places = np.unique(np.concatenate([solution["places"] for solution in solutions]))
    beta = np.zeros((len(places), len(solutions)))
    for column, solution in zip(beta.T, solutions, strict=True):
        column[np.searchsorted(places, solution["places"])] = solution["beta"][:, 0]
    table = np.array([solution["statistics"] for solution in solutions])
    numbers = table.sum(axis=0)
    largest = [STATISTICS.index("gap"), STATISTICS.index("seconds")]
    numbers[largest], numbers[-1] = table[:, largest].max(axis=0), table[:, -1].min()
    numbers[STATISTICS.index("n_support")] = len(places)
    return {
        "places": places,
        "beta": beta,
        "b": np.concatenate([solution["b"] for solution in solutions]),
        "statistics": numbers,
    }


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


Trainer = Callable[[ValueMethod, Dataset, ValueOptions, Communicator], SVMFit[SVRModel]]


@dataclass(kw_only=True)
class QuantilesTask(ValuesTask):
    """Quantiles of the target: one real output per row and level, which differ in the bounds of their duals only."""

    def model(self, **where: Any) -> QuantileModel:
        """The model with these parts."""
        quantile = self.options.quantile
        assert quantile is not None
        return QuantileModel(quantile=quantile, **self.described(), **where)


def calibrated(
    fit: Trainer, method: ValueMethod, train: Dataset, options: ValueOptions, comm: Communicator
) -> SVMFit[SVRModel]:
    """Train with `fit`, and calibrate intervals on a share of the rows that it never sees, if requested; collective.

    Held-out rows are used neither for the features' mean and deviation, nor for partitioning, the choice of C and
    gamma, or the model. So their scores are those of new rows. They cost a prediction, and 8 Allreduces of up to 256
    counts per stored score.
    """
    if options.calibrate is None:
        return fit(method, train, options, comm)
    with comm.agreed():
        options.checked(method, comm.size)
    train, aside = set_aside(train, options.calibrate, options.seed, comm)
    aside = aside.weighted()
    held_out = comm.offset(aside.X.shape[0])[1]
    with comm.agreed():
        check_held_out(options.levels, held_out)
    fitted = fit(method, train, replace(options, calibrate=None), comm)
    model = fitted.model
    assert isinstance(model, QuantileModel)
    values = model.decision_function(aside.X, comm)
    with comm.phase("train"):
        model.calibrate(values, aside.target().astype(float), comm)
    return fitted
