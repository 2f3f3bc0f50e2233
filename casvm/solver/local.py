"""The solvers of one problem of two classes, by name.

"smo" is this family's own. Any other stands in a package that knows nothing of this one, has a function ``solve``
(see :func:`asygcd.part.solve`), and is loaded when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.kernels import Kernel
from cacore.svm.problem import precision
from casvm.solver.gram import Gram, KernelRows, Precomputed
from casvm.solver.smo import Limits, Progress, Solution, feasible, solve

LOCAL = {"smo": "casvm.solver.smo", "asygcd": "asygcd.part"}

Vector = NDArray[np.float64]


@dataclass
class Learning:
    """What a part is told.

    Attributes
    ----------
    kernel : Kernel or None
        None: the rows are kernel values.
    limits : Limits
    cache_bytes : int
    watch : callable or None
    solver : str
        One of :data:`LOCAL`.
    """

    kernel: Kernel | None
    limits: Limits
    cache_bytes: int
    watch: Callable[[Progress], None] | None = None
    solver: str = "smo"

    def solve(self, X: Rows, y: Vector, C: Vector, start: Vector | None) -> Solution:
        """Solve the problem of these rows, beginning with `start`, made feasible first, if it is given."""
        if self.solver != "smo":
            return self._elsewhere(X, y, C, start)
        begin = None if start is None else feasible(start, y, C)
        return solve(self.gram(X, C), y, C, self.limits, begin, self.watch)

    def gram(self, X: Rows, C: Vector) -> Gram:
        """Kernel values of these rows, in single precision where that does not show."""
        if self.kernel is None:
            return Precomputed(np.asarray(X))
        sample = X[:: max(1, X.shape[0] // 1000)]
        dtype = precision(X.shape[0], sample, self.kernel, float(C.max()), self.limits.tol)
        return KernelRows(X, self.kernel, dtype, self.cache_bytes)

    def _elsewhere(self, X: Rows, y: Vector, C: Vector, start: Vector | None) -> Solution:
        given = {"tol": self.limits.tol, "max_iter": self.limits.max_iter, "max_time": self.limits.max_time}
        made = import_module(LOCAL[self.solver]).solve(X, self.kernel, y, C, self.cache_bytes, start=start, **given)
        return Solution(
            made.alpha, 0.0, made.iterations, 0, -made.objective, made.gap, made.converged, int(made.misses.sum()),
            made.kernel_values, 0, made.seconds, y * (made.gradient + 1.0),
        )  # fmt: skip
