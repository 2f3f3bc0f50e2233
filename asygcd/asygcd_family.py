"""The family's hooks for the commands: checks, compilation, progress, and the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from asygcd.asygcd_model import AsyGCDModel
from asygcd.options import AsyGCDFit, AsyGCDMethod, AsyGCDOptions
from asygcd.training import described
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.learn.options import reported
from cacore.progress import spinner
from cacore.run.family import Classifiers, Run
from cacore.run.report import Report

AsyGCDRun = Run[AsyGCDMethod, AsyGCDOptions]


class AsyGCDFamily(Classifiers[AsyGCDMethod, AsyGCDOptions, AsyGCDFit, AsyGCDModel]):
    """The kernel SVM without a bias, on the threads of one process."""

    kind = AsyGCDModel

    def check(self, run: AsyGCDRun) -> dict[str, Path]:
        """Refuse to run on more than one rank; there are no output files to check."""
        if run.comm.size > 1:
            raise InputError(
                f"asygcd runs in the shared memory of one process, but there are {run.comm.size} ranks: start it "
                "without mpiexec, or use python -m casvm.casvm --solver asygcd"
            )
        return {}

    def warm_up_prediction(self, dtype: str) -> None:
        """Compile what prediction needs; training takes much longer to compile."""
        X = np.random.default_rng(0).normal(size=(24, 3)).astype(dtype)
        AsyGCDModel(np.arange(2), "ovr", Kernel(), 1.0, X, np.arange(24), np.ones((24, 1)), None, dtype).predict(X)

    @contextmanager
    def progress(self, shown: bool) -> Iterator[dict[str, object]]:
        """Show a line about the problem that is being solved."""
        with spinner(shown, "reading") as tell:
            yield {"watch": lambda progress: tell(described(progress))}

    def report(self, run: AsyGCDRun, fitted: AsyGCDFit) -> Report:
        """The report's sections on the kernel's parameters and on the solver: per problem, and per thread."""
        model, solutions = fitted.model, fitted.solutions
        per_thread = ("steps", "hits", "misses")  # one entry per problem and thread
        return {
            "params": {**self.params(model, run.options), **reported(run.options, run.method.has)},
            "solver": {
                "iterations": [solution.iterations for solution in solutions],
                "n_support": [int(np.count_nonzero(solution.alpha)) for solution in solutions],
                "objective": [-solution.objective for solution in solutions],
                **{
                    name: [getattr(solution, name) for solution in solutions]
                    for name in ("gap", "seconds", "kernel_values", *per_thread)
                },
            },
        }

    def notes(self, run: AsyGCDRun, fitted: AsyGCDFit) -> list[str]:
        """Warn if a problem stopped at a limit."""
        return [] if fitted.note is None else [fitted.note]

    def details(self, report: Report) -> Iterator[str]:
        """Lines about each problem, and about each thread's updates and kernel columns."""
        solver = report["solver"]
        for number, (support, gap, seconds) in enumerate(
            zip(solver["n_support"], solver["gap"], solver["seconds"], strict=True)
        ):
            yield f"problem {number}: {support:,} support vectors, violation {gap:.2g}, {seconds:.3f} s"
            threads = zip(solver["steps"][number], solver["hits"][number], solver["misses"][number], strict=True)
            for thread, (steps, hits, misses) in enumerate(threads):
                yield f"  thread {thread}: {steps:,} updates, {hits:,} columns from its cache, {misses:,} computed"
