"""The classification task: one SVM per pair of classes in each part, with probabilities if requested."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.labels import all_classes, class_factors, require_classes
from cacore.data.rows import in_blocks, is_sparse, nbytes
from cacore.data.stored import in_memory, is_stored, some
from cacore.io.checkpoint import Kept, remembered
from cacore.kernels import Kernel
from cacore.machine import threads
from cacore.machine.clock import working_time
from cacore.probability.calibrator import Calibrator
from cacore.probability.left_out import LeftOutDecisions, folds_to_leave_out, pairs_of
from cacore.svm.dual import Solution
from cacore.svm.problem import numeric_gamma
from casvm.fit import SVMFit
from casvm.methods.left_out import PartTraining, left_out
from casvm.methods.problems import check_parts, check_parts_at_a_time, named, not_met, terms
from casvm.model.model import SVMModel, own_settings
from casvm.model.part import PartSVM, placed
from casvm.options import SVMMethod, SVMOptions
from casvm.search.choose import search
from casvm.solver.part import fit_part
from casvm.tasks.task import SVMTask
from partition.base import Algorithm
from partition.redistribute import Parts
from partition.routing import Soft, double_variance
from partition.task import SolvedPart


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
        own: str | Algorithm = self.method.partitioner
        return own

    def check_memory(self, parts: Parts, comm: Communicator) -> None:
        """Refuse parts that do not fit beside the kernel cache; with rows in a file, those solved side by side."""
        if is_stored(parts.X):
            check_parts_at_a_time(parts, self.options)
        else:
            check_parts(parts, nbytes(parts.X), self.options, comm.size)

    def choose(self, parts: Parts, comm: Communicator) -> None:
        """Choose C and gamma, and bound each row's alpha by the C of its part; collective.

        With `per_part`, `options` and `kernel` become those of the part with the median C.

        Notes
        -----
        The cost is that of :func:`casvm.search.choose.search`, plus an Allreduce of 3 numbers for gamma = "scale".
        """
        found = self.found = search(parts, self.classes, self.P, self.options, comm)
        if found is None or not self.options.per_part:
            options = self.options = self.options.with_setting(found)
            self.kernel = options.kernel_with(numeric_gamma(parts.X, options.gamma, comm, options.kernel))
            parts.columns["C"] = parts["C"] * options.C
            return
        Cs, gammas = found.chosen["C"], found.chosen.get("gamma")
        self.kernels = {
            p: self.kernel if gammas is None else replace(self.kernel, gamma=float(gammas[p])) for p in range(self.P)
        }
        parts.columns["C"] = parts["C"] * np.repeat(Cs[parts.parts], np.diff(parts.bounds))
        # The model has one C besides the parts' own: that of the part with the median C.
        middle = int(np.argsort(Cs, kind="stable")[len(Cs) // 2])
        self.kernel = self.kernels[middle]
        self.options = replace(self.options, C=float(Cs[middle]), gamma="scale", cv=None)

    def solve(self, number: int, rows: Samples, side_by_side: int) -> Kept:
        """Solve all pairs of classes, starting from the column "coef", alpha y of shape (m, k - 1), if there is one.

        About 2 s m nnz flops for m rows of nnz nonzeros and s support vectors.
        """
        X, begun, options = in_memory(rows.X), working_time(), self.options
        start = rows.columns.get("coef")
        part, solutions = fit_part(
            X, rows["code"], rows["C"], rows["row"], self.kernels.get(number, self.kernel), options.limits,
            options.cache_bytes // side_by_side, options.solver, None if start is None or not start.any() else start.T,
        )  # fmt: skip
        kept = {key: value for key, value in vars(part).items() if key != "X" and value is not None}
        numbers = _statistics(part, solutions, working_time() - begun)
        return {**kept, "places": placed(part.rows, rows["row"]), "statistics": numbers}

    def part(self, rows: Samples, kept: Kept) -> PartSVM:
        """The part's model; support vectors from rows in a file are read from there."""
        fields = {key: value for key, value in kept.items() if key not in ("places", "statistics")}
        return PartSVM(X=some(rows.X, kept["places"]), **fields)

    def completed(
        self, parts: Parts, solved: dict[int, SolvedPart[PartSVM]], comm: Communicator
    ) -> dict[int, SolvedPart[PartSVM]]:
        """The solved parts in order, with the sigmoids of their probabilities if requested; collective.

        Probabilities cost what :func:`casvm.methods.left_out.left_out` does, and about ten Allreduces of 6 numbers per
        pair of classes.
        """
        made = {number: solved[number] for number, _ in parts}
        if self.options.probability is None:
            return made
        self.calibrator, judged = self._calibrated(parts, comm)
        if len(parts.sizes) > 1 and self.route != "all":
            # The same decision may mean a different probability in each part, so each part gets its own sigmoids.
            for number, one in made.items():
                own = self.calibrator.of_part(judged[number])
                if own is not None:
                    A, B = (values[pairs_of(one.part.classes, len(self.classes))] for values in own)
                    made[number] = replace(one, part=replace(one.part, slopes=A, shifts=B))
        return made

    def _calibrated(self, parts: Parts, comm: Communicator) -> tuple[Calibrator, dict[int, LeftOutDecisions]]:
        """Calibrator of all parts, and each part's decisions on left-out rows; collective, sends no rows."""
        options, k = self.options, len(self.classes)
        counts = comm.allreduce(np.bincount(parts["code"], minlength=k).astype(np.int64))
        folds, side_by_side = folds_to_leave_out(counts), max(1, min(threads.current(), len(parts.parts)))
        advance = options.progress("probabilities", len(parts.parts))

        def of_part(number: int, rows: slice) -> LeftOutDecisions:
            kernel, cache_bytes = self.kernels.get(number, self.kernel), options.cache_bytes // side_by_side
            training = PartTraining(kernel, options.limits, cache_bytes, options.solver)

            def work() -> Kept:
                return vars(left_out(parts.take(rows), k, folds, training))

            return LeftOutDecisions(**remembered(options.checkpoint, f"left-out-{number:06d}", work))

        held, found = list(parts), {}
        with threads.in_order(of_part, held, parallel=len(held) >= 2 * threads.current()) as every:
            for (number, _), one in zip(held, every, strict=True):
                found[number] = one
                advance()
        comm.wait()
        assert options.probability is not None
        together = LeftOutDecisions.stacked(list(found.values()))
        return Calibrator.fit(options.probability, together, k * (k - 1) // 2, comm), found

    def soft(self, parts: Parts, centers: NDArray[np.float64], comm: Communicator) -> Soft | None:
        """Parameters of the route "soft", and of "all" with more than two classes; collective."""
        if self.route == "all" and len(self.classes) > 2:
            # Two classes keep the plain mean. With more, a distant part may be as confident as a near one.
            return Soft(len(centers), double_variance(parts.X, centers, comm))
        return super().soft(parts, centers, comm)

    def model(self, **where: Any) -> SVMModel:
        """The classifier with these parts."""
        X = self.rows.X  # also where the rows are given away
        own: dict[str, Any] = {} if self.found is None else own_settings(self.found.chosen)
        return SVMModel(
            method=self.method.name, classes=self.classes, kernel=self.kernel, C=self.options.C,
            standardizer=self.standardizer, dtype=str(X.dtype), source={"sparse": is_sparse(X)},
            calibrator=self.calibrator, **own, **where,
        )  # fmt: skip

    def fit(
        self, model: SVMModel, numbers: NDArray[np.float64], busy: NDArray[np.float64],
        sizes: NDArray[np.int64] | None = None,
    ) -> SVMFit[SVMModel]:  # fmt: skip
        """The result of training; `sizes` are the rows of each part, by default the model's."""
        sizes, solver, tol = model.sizes if sizes is None else sizes, named(numbers), self.options.limits.tol
        measured = terms(sizes, self.nonzeros, self.n_iter, solver)
        return SVMFit(model, sizes, solver, busy, tol, measured, not_met(numbers, tol, "parts"), search=self.found)


def _statistics(part: PartSVM, solutions: list[Solution], seconds: float) -> NDArray[np.float64]:
    """The line of a part's pairs: see :data:`casvm.methods.problems.STATISTICS`."""

    def total(name: str) -> float:
        return float(sum(getattr(one, name) for one in solutions))

    worst = max((one.gap for one in solutions), default=0.0)
    met = all(one.converged for one in solutions)
    counts = (total("kernel_rows"), total("kernel_values"))
    return np.array([total("iterations"), len(part.rows), total("objective"), worst, seconds, *counts, met])
