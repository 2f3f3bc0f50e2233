"""The command line that all methods of the family share."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from cacore import traffic
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.files import check_writable
from cacore.io import Dataset
from cacore.io.checkpoint import Checkpoint
from cacore.io.fingerprints import row_hashes
from cacore.run import grid, report
from cacore.run.launch import Parser, add_common_options, compiled, read, run, start
from cacore.run.progress import bar
from cakrr.bkrr2 import METHOD as BKRR2
from cakrr.methods.parts import fit
from cakrr.model import KRRModel
from cakrr.options import ROUTES, SELECTIONS, Fit, Method, Options, Trainer
from cakrr.solver import refine
from cakrr.solver.coarse import ALONE, CENTERS, LAMS, Settings
from cakrr.solver.local import BAND_FROM


def parser(method: Method, rank: int) -> argparse.ArgumentParser:
    """Options of one method's command."""
    p = Parser(
        prog=f"python -m cakrr.{method.name}", description=f"{method.name.upper()}: {method.summary}.", rank=rank
    )
    add_common_options(p, standardize=True, routes=tuple(dict.fromkeys([method.route, *ROUTES])), route=method.route)
    first = "4 from 1/8 of" if method.coarse else "5 around"
    p.add_argument(
        "--sigma", metavar="GRID", help=f"number, comma list or lo:hi:COUNT (default: {first} sqrt(features))"
    )
    values = f"number, comma list or lo:hi:COUNT (default: {_listed(method.lams)})"
    p.add_argument("--lambda", dest="lam", metavar="GRID", help=values)
    p.add_argument(
        "--select", choices=SELECTIONS, default="validation",
        help="what judges the grid: rows held out, rows left out one by one, or the test rows, which leaks",
    )  # fmt: skip
    p.add_argument("--validation-fraction", metavar="F", type=float, default=0.1, help="of each part's rows")
    if method.coarse:
        p.add_argument("--centers", metavar="M", help=f"of the coarse model, or a list (default: {_listed(CENTERS)})")
        p.add_argument("--coarse-sigma", metavar="GRID", help="as --sigma (default: 1/2 and 2 of sqrt(features))")
        p.add_argument("--coarse-lambda", metavar="GRID", help=f"as --lambda (default: {_listed(LAMS)})")
    return p


def main(method: Method, argv: list[str] | None = None, trainer: Trainer = fit) -> None:
    """``python -m cakrr.METHOD``."""
    run(lambda comm: command(method, comm, argv, trainer), f"cakrr.{method.name}")


def command(method: Method, comm: Communicator, argv: list[str] | None, trainer: Trainer = fit) -> None:
    """Read, train, test, save, report."""
    with comm.agreed():
        args = parser(method, comm.rank).parse_args(argv)
        for path in (args.model, args.report, args.comm_matrix):
            if path is not None and comm.rank == 0:
                check_writable(path)
        if method.oracle and args.model is not None:
            raise InputError(
                f"--model: {method.name} is an oracle, a bound that looks at the answers: it saves no model"
            )
        sigma, lam = _grid(args.sigma, "--sigma"), _grid(args.lam, "--lambda")
        coarse = _coarse(args) if method.coarse else Settings()
        checkpoint = None if args.checkpoint is None else Checkpoint(args.checkpoint)
    limit = start(args, comm)
    warm_up(args.dtype, comm)
    with bar(comm.rank == 0 and not args.quiet) as progress:
        train, test = read(args, comm, limit)
        d = train.X.shape[1]
        options = Options(
            partitions=args.partitions,
            sigma=sigma or method.sigmas(d),
            lam=lam or method.lams,
            coarse=coarse,
            select=args.select,
            validation_fraction=args.validation_fraction,
            route=args.route,
            standardize=args.standardize,
            seed=args.seed,
            memory_limit=limit,
            checkpoint=checkpoint,
            progress=progress,
        )
        n_train, base = train.n, train.base
        result = trainer(method, train, options, comm, test)
        result.model.source = {"target": args.target, "base": base}
        metrics = {} if test is None else tested(result.model, test, comm)
    made = _report(method, result, args, comm, metrics, n_train, test)
    traffic.record(args.comm_matrix, method.name, comm)
    if args.model is not None:
        result.model.save(args.model, comm)
    if comm.rank == 0:
        if args.report is not None:
            report.write(args.report, made)
        if not args.quiet:
            report.show(made, _notes(method, args, result, test))
            if args.verbose:
                _print_details(made)


def tested(model: KRRModel, test: Dataset, comm: Communicator) -> dict[str, Any]:
    """Metrics on the test rows; with soft routing those of the nearest model alone as well. Collective."""
    y = test.target()
    if model.route == "oracle":
        routes = {"oracle": y + model.oracle(test.X, y, comm)}
    else:
        routes = model.predict_routes(test.X, comm)
    with comm.phase("predict"):
        metrics = {route: report.regression_metrics(y, predicted, comm) for route, predicted in routes.items()}
    others = {
        f"{route}_{name}": value for route in metrics if route != model.route for name, value in metrics[route].items()
    }
    return {**metrics[model.route], **others}


def _grid(text: str | None, option: str) -> tuple[float, ...] | None:
    return None if text is None else grid.parse(text, option)


def _coarse(args: argparse.Namespace) -> Settings:
    centers = _grid(args.centers, "--centers")
    return Settings(
        None if centers is None else grid.whole(centers, "--centers"),
        _grid(args.coarse_sigma, "--coarse-sigma"),
        _grid(args.coarse_lambda, "--coarse-lambda"),
    )


def _listed(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)


def warm_up(dtype: str, comm: Communicator) -> None:
    """Compile, or load what was compiled, before anything is timed."""

    def work() -> None:
        X = np.random.default_rng(0).normal(size=(12, 3)).astype(dtype)
        row_hashes(X, X[:, 0])
        train = Dataset(X, X[:, 0].astype(np.float64), len(X), "warm-up")
        options = Options(partitions=2, sigma=(1.0, 2.0), lam=tuple(np.geomspace(0.1, 1.0, BAND_FROM)))
        fit(BKRR2, train, options, Communicator()).model.predict(X[:1])

    compiled(work, comm)


def _report(
    method: Method, result: Fit, args: argparse.Namespace, comm: Communicator, metrics: dict[str, Any],
    n_train: int, test: Dataset | None,
) -> dict[str, Any]:  # fmt: skip
    model, oracle = result.model, {"oracle": True} if method.oracle else {}
    return report.build(
        method.name,
        comm,
        data={
            "path": str(args.data), "n_train": n_train, "n_test": 0 if test is None else test.n,
            "n_features": model.centers.shape[1],
        },
        partition_sizes=result.sizes,
        params={
            "sigma": model.sigma, "lambda": model.lam, **result.params, **oracle, "route": model.route,
            "select": args.select, "standardize": args.standardize, "dtype": model.dtype, "seed": args.seed,
        },
        grid=result.grid,
        metrics=metrics,
        solver={
            "n_support": result.sizes, "seconds": result.seconds,
            **({"residual": result.residual} if result.residual.size else {}),
        },
        busy=result.busy,
        library_bytes=result.library_bytes,
    )  # fmt: skip


def _notes(method: Method, args: argparse.Namespace, result: Fit, test: Dataset | None) -> list[str]:
    notes = list(result.notes)
    if test is None:
        notes.append("no test rows: give --test, or convert the data with --split")
    if method.oracle:
        notes.insert(0, "oracle: each test row's best model, chosen with the true answer: a bound, not a prediction")
    if result.residual.size:
        notes.append(refine.note(float(result.residual.max())))
    if args.select == "test" and result.grid:
        notes.append("sigma and lambda were chosen by the test error, so it is too low; --select validation is honest")
    if method.coarse and result.model.lam == ALONE:
        notes.append(f"lambda {ALONE:g}: the parts' models add next to nothing to the coarse model")
    chosen = result.model.sigma, result.model.lam
    for name, value in zip(("sigma", "lambda"), chosen, strict=True):
        apart = {ALONE} if method.coarse and name == "lambda" else set()
        values = sorted({row[name] for row in result.grid} - apart)
        if len(values) > 2 and value in (values[0], values[-1]):
            notes.append(f"the chosen {name} {value:g} is the end of its grid: a wider one may be better")
    return notes


def _print_details(made: dict[str, Any]) -> None:
    for row in made["grid"]:
        errors = [value for name, value in row.items() if name.endswith("_mse") and value is not None]
        shown = f"{errors[0]:.6g}" if errors else "not positive definite"
        coarse = f"centers {row['centers']:<6} coarse sigma {row['coarse_sigma']:<8.4g} " if "centers" in row else ""
        coarse += f"coarse lambda {row['coarse_lambda']:<8.4g} " if coarse else ""
        print(f"{coarse}sigma {row['sigma']:<10.4g} lambda {row['lambda']:<10.4g} mse {shown}")
    for part, (m, seconds) in enumerate(zip(made["partition_sizes"], made["solver"]["seconds"], strict=True)):
        print(f"part {part}: {m:,} rows, {seconds:.3f} s")
