"""``python -m asygcd DATA``: train, test, save, report; one process and its threads."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from asygcd.solver.team import UPDATES, AsyGCD
from asygcd.training import MULTI_CLASS, Fit, Options, fit, told
from cacore.comm import Communicator
from cacore.data import labels
from cacore.data.labels import Labelled
from cacore.errors import InputError
from cacore.files import check_writable
from cacore.io.fingerprints import row_hashes
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.machine import threads
from cacore.run import report
from cacore.run.launch import Parser, add_data_options, add_run_options, compiled, read, run, start
from cacore.run.progress import spinner
from cacore.svm.problem import add_problem_options, cache_option, described, gamma_option


def parser(rank: int = 0) -> argparse.ArgumentParser:
    """Options of the command."""
    p = Parser(
        prog="python -m asygcd",
        description="asygcd: asynchronous greedy coordinate descent, without a bias.",
        rank=rank,
    )
    add_data_options(p, standardize=False)
    add_problem_options(p)
    p.add_argument("--multi-class", choices=MULTI_CLASS, default="ovr", help="each class against the rest, or pairs")
    p.add_argument(
        "--update", choices=UPDATES, default="owned",
        help="of the gradient: one writer a row and logs, atomic adds (Algorithm 14), or none kept (PSCD)",
    )  # fmt: skip
    add_run_options(p)
    return p


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    run(lambda comm: command(comm, argv), "asygcd")


def command(comm: Communicator, argv: list[str] | None) -> None:
    """Read, train, test, save, report."""
    with comm.agreed():
        args = parser(comm.rank).parse_args(argv)
        if comm.size > 1:
            raise InputError(
                f"asygcd works on the shared memory of one process, and these are {comm.size} ranks: start it without "
                "mpiexec, or use python -m casvm.casvm --solver asygcd"
            )
        for path in (args.model, args.report):
            if path is not None:
                check_writable(path)
        options = _options(args)
    limit = start(args, comm)
    warm_up(args.dtype, comm)
    train, test = read(args, comm, limit)
    with spinner(not args.quiet) as tell:
        options = replace(
            options, memory_limit=limit, threads=threads.current(), watch=lambda progress: tell(told(progress))
        )
        result = fit(Labelled(train.X, labels.from_file(train, comm)), options, comm=comm)
    result.model.source |= {"target": args.target, "base": train.base}
    metrics: dict[str, Any] = {}
    if test is not None:
        with comm.phase("predict"):
            predicted = result.model.predict(test.X)
        metrics = labels.tested(result.model.classes, test, predicted, comm)
    made = _report(result, args, comm, metrics, (train.n, 0 if test is None else test.n, train.X.shape[1]))
    if args.model is not None:
        result.model.save(args.model)
    if args.report is not None:
        report.write(args.report, made)
    if not args.quiet:
        notes = [] if result.note is None else [result.note]
        if test is None:
            notes.append("no test rows: give --test, or convert the data with --split")
        report.show(made, notes)
        if args.verbose:
            _print_threads(result)


def _options(args: argparse.Namespace) -> Options:
    return Options(
        C=args.C, kind=args.kernel, gamma=gamma_option(args), degree=args.degree, coef0=args.coef0,
        class_weight="balanced" if args.balanced else None, multi_class=args.multi_class, update=args.update,
        limits=Limits(args.tol, args.max_iter, args.max_time), cache_bytes=cache_option(args),
        standardize=args.standardize, seed=args.seed,
    ).checked()  # fmt: skip


def warm_up(dtype: str, comm: Communicator) -> None:
    """Compile, or load what was compiled, before anything is timed."""

    def work() -> None:
        X = np.random.default_rng(0).normal(size=(48, 3)).astype(dtype)
        row_hashes(X, X[:, 0])
        rows = Labelled(X, (np.arange(48) % 2).astype(np.int64))
        fit(rows, Options(limits=Limits(max_iter=50), threads=2)).model.predict(X[:2])
        # Large problems keep their kernel values in single precision.
        y = np.where(rows.y > 0, 1.0, -1.0)
        AsyGCD(X, Kernel(), 2, 1 << 20).solve(y, np.ones(48), Limits(max_iter=50))

    compiled(work, comm)


def _report(
    result: Fit, args: argparse.Namespace, comm: Communicator, metrics: dict[str, Any], shape: tuple[int, int, int]
) -> dict[str, Any]:
    model, solutions = result.model, result.solutions
    solver: dict[str, Any] = {
        "iterations": [one.iterations for one in solutions],
        "n_support": [int(np.count_nonzero(one.alpha)) for one in solutions],
        "objective": [-one.objective for one in solutions],
        **{name: [getattr(one, name) for one in solutions] for name in ("gap", "seconds", "kernel_values")},
        # Of each problem, an entry a thread.
        **{name: [getattr(one, name) for one in solutions] for name in ("steps", "hits", "misses")},
    }
    return report.build(
        "asygcd",
        comm,
        data={"path": str(args.data), **dict(zip(("n_train", "n_test", "n_features"), shape, strict=True))},
        partition_sizes=result.sizes,
        params={
            **described(model.C, model.kernel), "tol": args.tol, "cache_gib": args.cache_gib, "update": args.update,
            "multi_class": args.multi_class, "balanced": args.balanced, "standardize": args.standardize,
            "dtype": model.dtype, "seed": args.seed,
        },
        metrics=metrics,
        solver=solver,
    )  # fmt: skip


def _print_threads(result: Fit) -> None:
    for number, one in enumerate(result.solutions):
        print(
            f"problem {number}: {np.count_nonzero(one.alpha):,} support vectors, violation {one.gap:.2g}, "
            f"{one.seconds:.3f} s"
        )
        for thread, (steps, hits, misses) in enumerate(zip(one.steps, one.hits, one.misses, strict=True)):
            print(f"  thread {thread}: {steps:,} updates, {hits:,} columns from its cache, {misses:,} computed")
