"""The options of Asy-GCD, its method record, and the result of training."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from asygcd.solver import UPDATES
from cacore import checks
from cacore.learn import options
from cacore.learn.method import Method
from cacore.learn.options import KERNEL, SOLVER, option
from cacore.svm.options import DualOptions

if TYPE_CHECKING:
    from asygcd.asygcd_model import AsyGCDModel
    from asygcd.solver.asygcd import AsyGCDProgress, AsyGCDSolution

MULTI_CLASS = ("ovr", "ovo")


@dataclass(frozen=True)
class AsyGCDOptions(DualOptions):
    """Options of a training run, in addition to those of the dual problem; each option's help describes it.

    `threads` None uses all cores available to the process. `start` holds initial coefficients alpha y of each decision,
    shape (n, m). `watch` is called with the progress of each problem.
    """

    multi_class: str = option(
        "ovr", "several classes: each against the rest, or pairs of classes", checks.one_of(*MULTI_CLASS), report=True,
        group=KERNEL, choices=MULTI_CLASS,
    )  # fmt: skip
    update: str = option(
        "owned", "how threads update the gradient: each row by the thread that owns it (owned), by atomic additions "
        "(atomic; the thesis' Algorithm 14), or at random coordinates (stochastic; PSCD)", checks.one_of(*UPDATES),
        report=True, group=SOLVER, choices=UPDATES,
    )  # fmt: skip
    probability: str | None = options.probability()
    threads: int | None = option(None, "", checks.whole(1, 4096), flag="")
    start: NDArray[np.float64] | None = None
    watch: Callable[[AsyGCDProgress], None] | None = None


@dataclass
class AsyGCDFit:
    """Result of training.

    Attributes
    ----------
    model : AsyGCDModel
    solutions : list of AsyGCDSolution
        One per decision of the model.
    sizes : ndarray of int64, shape (T,)
        Number of rows of each thread's block; with "ovo", in the last pair.
    factors : ndarray, shape (k,)
        Weights of the classes.
    """

    model: AsyGCDModel
    solutions: list[AsyGCDSolution]
    sizes: NDArray[np.int64]
    factors: NDArray[np.float64]

    @property
    def note(self) -> str | None:
        """Warning in one line if a problem stopped at a limit, otherwise None."""
        late = [solution for solution in self.solutions if not solution.converged]
        if not late:
            return None
        worst = max(late, key=lambda solution: solution.gap)
        of = "" if len(self.solutions) == 1 else f" ({len(late)} of {len(self.solutions)} problems)"
        return (
            f"the solver stopped after {worst.iterations:,} updates at a violation of {worst.gap:.3g}, above the "
            f"tolerance{of}: raise max_iter or max_time, or scale the features"
        )


@dataclass(frozen=True, kw_only=True)
class AsyGCDMethod(Method):
    """The only method of this family."""

    package: ClassVar[str] = "asygcd"
    options: ClassVar[type] = AsyGCDOptions

    @property
    def prog(self) -> str:
        """Name of the command."""
        return self.package

    @property
    def without(self) -> Collection[str]:
        """Common options that this command lacks, since it runs in one process and searches no grid."""
        return "comm_matrix", "libsvm", "plot"

    @property
    def example(self) -> str:
        """A command that a user can type, for ``--help``."""
        return "python -m asygcd DATA.h5 --C 10 --gamma 0.5 --model MODEL.h5"


METHOD = AsyGCDMethod(
    name="asygcd", summary="asynchronous greedy coordinate descent, without a bias", trainer="asygcd.training:fit"
)
