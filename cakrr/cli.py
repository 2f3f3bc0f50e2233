"""The command line that all methods of the family share."""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

from cacore import grid, report
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.files import check_writable
from cacore.io import Dataset, load
from cacore.io.dataset import count_overlap
from cacore.launch import Parser, add_common_options, run, start
from cacore.progress import bar
from cacore.rows import row_hashes
from cakrr.model import ROUTES
from cakrr.training import SELECTIONS, Fit, Method, Options, fit

LAMBDA = "1e-7:1e-3:5"


def parser(method: Method, rank: int) -> argparse.ArgumentParser:
    """Options of one method's command."""
    p = Parser(
        prog=f"python -m cakrr.{method.name}", description=f"{method.name.upper()}: {method.summary}.", rank=rank
    )
    add_common_options(p, standardize=True, routes=ROUTES, route=method.route)
    p.add_argument(
        "--sigma", metavar="GRID", help="number, comma list or lo:hi:COUNT (default: 5 around sqrt(features))"
    )
    p.add_argument("--lambda", dest="lam", metavar="GRID", default=LAMBDA, help="number, comma list or lo:hi:COUNT")
    p.add_argument("--select", choices=SELECTIONS, default="validation", help="rows that judge the grid; test leaks")
    p.add_argument("--validation-fraction", metavar="F", type=float, default=0.1, help="of each part's rows")
    return p


def main(method: Method, argv: list[str] | None = None) -> None:
    """``python -m cakrr.METHOD``."""
    run(lambda comm: command(method, comm, argv), f"cakrr.{method.name}")


def command(method: Method, comm: Communicator, argv: list[str] | None) -> None:
    """Read, train, test, save, report."""
    with comm.agreed():
        args = parser(method, comm.rank).parse_args(argv)
        for path in (args.model, args.report):
            if path is not None and comm.rank == 0:
                check_writable(path)
        sigma = None if args.sigma is None else grid.parse(args.sigma, "--sigma")
        lam = grid.parse(args.lam, "--lambda")
    limit = start(args, comm)
    warm_up(method, args.dtype, comm)
    with bar(comm.rank == 0 and not args.quiet) as progress:
        train, test = read(args, comm, limit)
        d = train.X.shape[1]
        options = Options(
            partitions=args.partitions,
            sigma=sigma or tuple(grid.spaced(math.sqrt(d) / 4, math.sqrt(d) * 4, 5)),
            lam=lam,
            select=args.select,
            validation_fraction=args.validation_fraction,
            route=args.route,
            standardize=args.standardize,
            seed=args.seed,
            memory_limit=limit,
            progress=progress,
        )
        n_train, base = train.n, train.base
        result = fit(method, train, options, comm, test)
        result.model.source = {"target": args.target, "base": base}
        metrics: dict[str, Any] = {}
        if test is not None:
            predicted = result.model.predict(test.X, comm)
            with comm.phase("predict"):
                metrics = report.regression_metrics(test.target(), predicted, comm)
    made = _report(method, result, args, comm, metrics, n_train, test)
    if args.model is not None:
        result.model.save(args.model, comm)
    if comm.rank == 0:
        if args.report is not None:
            report.write(args.report, made)
        if not args.quiet:
            report.show(made, _notes(args, result, test))
            if args.verbose:
                _print_details(made)


def warm_up(method: Method, dtype: str, comm: Communicator) -> None:
    """Compile, or load what was compiled, before anything is timed.

    numba's cache is on disk, often a shared one, and ranks that all fill it at once do the same work and
    race for the files: so rank 0 goes first, then one rank of each other machine, then the rest.
    """
    with comm.phase("compile"):
        first_here = comm.node().rank == 0  # collective: every rank asks
        turn = 0 if comm.rank == 0 else 1 if first_here else 2
        for now in range(3):
            if now == turn:
                X = np.random.default_rng(0).normal(size=(12, 3)).astype(dtype)
                row_hashes(X, X[:, 0])
                train = Dataset(X, X[:, 0].astype(np.float64), len(X), "warm-up")
                fit(method, train, Options(partitions=2), Communicator()).model.predict(X[:1])
            comm.barrier()


def read(args: argparse.Namespace, comm: Communicator, limit: int) -> tuple[Dataset, Dataset | None]:
    """Training rows, and test rows if there are any, which must match and must not be training rows."""
    splits = load(args.data, comm, args.dtype, args.target, limit=limit)
    with comm.agreed():
        if "train" not in splits:
            raise InputError(f"{args.data}: test rows alone; there is nothing to learn from")
    train, test = splits["train"], splits.get("test")
    with comm.phase("read"):
        with comm.agreed():
            train.target()
            if args.test is not None and test is not None:
                raise InputError(f"{args.data}: has test rows of its own; drop --test")
        if args.test is not None:
            others = load(args.test, comm, args.dtype, args.target, train.X.shape[1], limit=limit)
            test = others.get("test", others.get("train"))
        comm.wait()
        if test is None:
            return train, None
        with comm.agreed():
            test.target()
            if None not in (train.base, test.base) and train.base != test.base:
                raise InputError(
                    f"{test.where}: the features start at {test.base}, and at {train.base} in {train.where}: "
                    "convert both files together, with cacore.io convert --test"
                )
            if test.X.shape[1] != train.X.shape[1]:
                raise InputError(f"{test.where}: {test.X.shape[1]} features, and {train.X.shape[1]} in {train.where}")
        count, first = (0, -1) if args.allow_overlap else count_overlap(train, test, comm)
        with comm.agreed():
            if count:
                raise InputError(
                    f"{test.where}: {count:,} of {test.n:,} test rows are training rows too (first: row {first}), "
                    "which flatters the error: remove them (convert --drop-duplicates) or pass --allow-overlap"
                )
    return train, test


def _report(
    method: Method, result: Fit, args: argparse.Namespace, comm: Communicator, metrics: dict[str, Any],
    n_train: int, test: Dataset | None,
) -> dict[str, Any]:  # fmt: skip
    model = result.model
    return report.build(
        method.name,
        comm,
        data={
            "path": str(args.data), "n_train": n_train, "n_test": 0 if test is None else test.n,
            "n_features": model.centers.shape[1],
        },
        partition_sizes=model.sizes,
        params={
            "sigma": model.sigma, "lambda": model.lam, "route": model.route, "select": args.select,
            "standardize": args.standardize, "dtype": model.dtype, "seed": args.seed,
        },
        grid=result.grid,
        metrics=metrics,
        solver={"n_support": model.sizes, "seconds": result.seconds},
    )  # fmt: skip


def _notes(args: argparse.Namespace, result: Fit, test: Dataset | None) -> list[str]:
    notes = list(result.notes)
    if test is None:
        notes.append("no test rows: give --test, or convert the data with --split")
    if args.select == "test" and result.grid:
        notes.append("sigma and lambda were chosen by the test error, so it is too low; --select validation is honest")
    chosen = result.model.sigma, result.model.lam
    for name, value in zip(("sigma", "lambda"), chosen, strict=True):
        values = sorted({float(np.float64(row[name])) for row in result.grid})
        if len(values) > 2 and value in (values[0], values[-1]):
            notes.append(f"the chosen {name} {value:g} is the end of its grid: a wider one may be better")
    return notes


def _print_details(made: dict[str, Any]) -> None:
    for row in made["grid"]:
        errors = [row[name] for name in ("validation_mse", "test_mse") if row[name] is not None]
        shown = f"{errors[0]:.6g}" if errors else "not positive definite"
        print(f"sigma {row['sigma']:<10.4g} lambda {row['lambda']:<10.4g} mse {shown}")
    for part, (m, seconds) in enumerate(zip(made["partition_sizes"], made["solver"]["seconds"], strict=True)):
        print(f"part {part}: {m:,} rows, {seconds:.3f} s")
