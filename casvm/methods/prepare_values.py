"""What regression and one class begin with on all ranks: what is solved, the rows, the kernel, options as numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import Rows, check_alike, is_sparse
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.dual import Dual, Solution
from cacore.svm.problem import numeric_gamma
from cacore.tuning.results import Results
from casvm.methods.prepare import open_checkpoint, present, ready
from casvm.model.svr import SVRModel
from casvm.solver.nu import solve_regression
from casvm.solver.smo import solve_part
from casvm.value_options import NU, SCALE, SCALED, Method, Options


@dataclass(frozen=True)
class Problem:
    """What is solved for rows with the columns target "y" and "weight".

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
            return Dual.regression(rows["y"], self.params["C"] * rows["weight"], self.params["epsilon"])
        sums = comm.allgather(np.array([rows["weight"].sum()]))
        before, after = float(sums[: comm.rank].sum()), float(sums[comm.rank + 1 :].sum())
        return Dual.one_class(rows["weight"], self.params["nu"], before, after)

    def solve(self, rows: Samples, kernel: Kernel, limits: Limits, cache_bytes: int) -> Solution:
        """The solution for some rows alone."""
        if self.svm_type == "nu_svr":
            bound = self.params["C"] * rows["weight"]
            return solve_regression(rows.X, kernel, rows["y"], bound, self.params["nu"], limits, cache_bytes)
        return solve_part(rows.X, kernel, self.dual(rows, Communicator()), limits, cache_bytes)


@dataclass
class Prepared:
    """What both ways begin with.

    Attributes
    ----------
    rows : Samples
        This rank's, standardised if that was asked for, with the columns target "y", "weight" and global number
        "row".
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

    def settled(self, found: Results | None, X: Rows, comm: Communicator) -> Prepared:
        """With the setting that a search among this rank's rows X has found, or "scale" without one; collective."""
        chosen: dict[str, Any] = dict.fromkeys(("C", "epsilon", "gamma"), SCALE) if found is None else found.chosen
        options = replace(self.options, cv=None, quick=False, **{"gamma": SCALE, **chosen})
        kernel = options.kernel_with(numeric_gamma(X, options.gamma, comm, options.kernel))
        return replace(self, options=options, problem=regression(options, self.unit), kernel=kernel)

    def model(self, method: Method, **more: Any) -> SVRModel:
        """A model of such rows; `more` says where its parts are, and what they are."""
        X = self.rows.X  # also where the rows are given away
        return SVRModel(
            method=method.name, svm_type=self.problem.svm_type, kernel=self.kernel, standardizer=self.standardizer,
            params=self.problem.params, dtype=str(X.dtype), source={"sparse": is_sparse(X)}, **more,
        )  # fmt: skip


def prepare(method: Method, train: Dataset, options: Options, comm: Communicator) -> Prepared:
    """Check what is given, on all ranks alike, and take the rows; collective.

    Raises
    ------
    InputError
        On all ranks: see :func:`casvm.methods.values.fit`.
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
            problem = regression(replace(options, C=SCALE, epsilon=SCALE) if options.searches else options, unit)
        open_checkpoint(method, train, weights, P, options, comm)
        first, _ = comm.offset(len(y))
        columns = {"y": y, "weight": weights, "row": np.arange(first, first + len(y))}
        rows, given = present(Samples(train.give(), columns), train.weights)
        n = comm.offset(len(rows))[1]
        with comm.agreed():
            if not n:
                raise InputError("sample_weight: every weight is zero; at least one row is needed to train on")
            if n < P:
                raise InputError(f"{P:,} parts of {n:,} rows: every part needs a row; ask for fewer")
        standardizer, kernel = ready(rows, given, options, comm)
    return Prepared(rows, n, P, problem, kernel, standardizer, options, unit)


def regression(options: Options, unit: float) -> Problem:
    """The regression of one setting, in the targets' own units."""
    named = {"C": options.C} | ({"epsilon": options.epsilon} if options.nu is None else {})
    params = {name: float(SCALED[name] * unit if value == SCALE else value) for name, value in named.items()}
    if options.nu is not None:
        return Problem("nu_svr", params | {"nu": float(options.nu)})
    return Problem("epsilon_svr", params)


def _deviation(y: NDArray[np.float64], weights: NDArray[np.float64], comm: Communicator) -> float:
    """Of all ranks' targets, those of weight 0 aside; 1 where they are all the same. Allreduces of 1 and 3 numbers.

    Raises
    ------
    InputError
        On all ranks: their range is no number of double precision.
    """
    y = y[weights > 0]
    shift = comm.bcast(y[:1] if comm.rank == 0 and len(y) else np.zeros(1))[0]
    with np.errstate(over="ignore"):
        about = y - shift
    largest = float(comm.allreduce(np.array([np.abs(about).max(initial=0.0)]), "max")[0])
    if not largest:
        return 1.0
    if not np.isfinite(largest):
        raise InputError("the targets are so large that their deviation is no number of double precision; scale them")
    about = about / largest  # its squares are neither too large nor too small
    n, total, square = comm.allreduce(np.array([len(y), about.sum(), about @ about]))
    return largest * float(np.sqrt(max(square / n - (total / n) ** 2, 0.0))) or 1.0
