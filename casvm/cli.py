"""The command line that all methods of the family share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from cacore import traffic
from cacore.comm import Communicator
from cacore.data import labels
from cacore.data.rows import row_hashes, scatter_rows
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError
from cacore.files import check_writable
from cacore.io import Dataset
from cacore.io.checkpoint import Checkpoint
from cacore.run import report
from cacore.run.launch import Parser, add_common_options, compiled, read, run, start
from cacore.run.progress import bar
from cacore.svm.problem import add_problem_options, cache_option, described, gamma_option
from cacore.svm.solvers import solver_names
from casvm.casvm import METHOD as CASVM
from casvm.methods import parts as training
from casvm.methods.prepare import Labelled
from casvm.model.libsvm import export_libsvm
from casvm.options import INITIAL, ROUTES, Fit, Method, Options
from casvm.solver.smo import Limits
from casvm.volume import predicted


def parser(method: Method, rank: int) -> argparse.ArgumentParser:
    """Options of one method's command."""
    p = Parser(prog=f"python -m casvm.{method.name}", description=f"{method.name}: {method.summary}.", rank=rank)
    add_common_options(p, standardize=False, routes=("nearest",) if method.one_model else ROUTES, route="nearest")
    add_problem_options(p)
    if method.partitioner is None:
        p.add_argument(
            "--initial", choices=INITIAL, default="local",
            help="who reads the rows: each rank its own, or rank 0, which deals them out",
        )  # fmt: skip
    else:
        p.add_argument("--ratio", action="store_true", help="balance every class as well as the parts' sizes")
    if method.merge == "support":
        told = "most passes, made while the objective changes"
        p.add_argument("--passes", metavar="N", type=int, default=method.passes, help=told)
    if not method.whole:
        p.add_argument(
            "--solver", choices=solver_names(), default="smo",
            help="of each part: exact, or asynchronous and without a bias",
        )  # fmt: skip
    if method.whole:
        p.add_argument(
            "--working-set", metavar="Q", type=int, help="rows of a round (default: the solver's; 2: the textbook's)"
        )
    p.add_argument("--libsvm", metavar="OUT.model", help="write each part's model in LIBSVM's text format as well")
    return p


Trainer = Callable[[Method, Labelled, Options, Communicator], Fit]


def main(method: Method, argv: list[str] | None = None, trainer: Trainer = training.fit) -> None:
    """``python -m casvm.METHOD``."""
    run(lambda comm: command(method, comm, argv, trainer), f"casvm.{method.name}")


def command(method: Method, comm: Communicator, argv: list[str] | None, trainer: Trainer = training.fit) -> None:
    """Read, train, test, save, report."""
    with comm.agreed():
        args = parser(method, comm.rank).parse_args(argv)
        for path in (args.model, args.report, args.libsvm, args.comm_matrix):
            if path is not None and comm.rank == 0:
                check_writable(path)
        if args.libsvm is not None and comm.size > 1:
            raise InputError("--libsvm: one process writes the parts; save --model, and convert it on one rank")
        options = _options(args)
    limit = start(args, comm)
    warm_up(args.dtype, comm)
    with bar(comm.rank == 0 and not args.quiet) as progress:
        whole = getattr(args, "initial", "local") == "root"
        train, test = _read_at_root(args, comm, limit) if whole else read(args, comm, limit)
        options = Options(**{**vars(options), "memory_limit": limit, "progress": progress})
        n_train, d = train.n, train.X.shape[1]
        rows = Labelled(train.X, labels.from_file(train, comm))
        _check_export(args, rows, comm)
        base, train.X = train.base, train.X[:0].copy()  # a view would keep all rows
        result = trainer(method, rows, options, comm)
        result.model.source |= {"target": args.target, "base": base}
        metrics = (
            {} if test is None else labels.tested(result.model.classes, test, result.model.predict(test.X, comm), comm)
        )
    made = _report(method, result, args, comm, metrics, (n_train, 0 if test is None else test.n, d))
    traffic.record(args.comm_matrix, method.name, comm)
    if args.model is not None:
        result.model.save(args.model, comm)
    if args.libsvm is not None:
        export_libsvm(result.model, args.libsvm)
    if comm.rank == 0:
        if args.report is not None:
            report.write(args.report, made)
        if not args.quiet:
            report.show(made, _notes(method, args, result, test))
            if args.verbose:
                _print_parts(made)


def _options(args: argparse.Namespace) -> Options:
    return Options(
        partitions=args.partitions, C=args.C, kind=args.kernel, gamma=gamma_option(args), degree=args.degree,
        coef0=args.coef0, class_weight="balanced" if args.balanced else None,
        limits=Limits(args.tol, args.max_iter, args.max_time), cache_bytes=cache_option(args),
        route=args.route, ratio=getattr(args, "ratio", False), standardize=args.standardize, seed=args.seed,
        passes=getattr(args, "passes", 1), solver=getattr(args, "solver", "smo"),
        working_set=getattr(args, "working_set", None),
        checkpoint=None if args.checkpoint is None else Checkpoint(args.checkpoint),
    ).checked()  # fmt: skip


def _check_export(args: argparse.Namespace, rows: Labelled, comm: Communicator) -> None:
    with comm.agreed():
        if args.libsvm is not None and rows.y.dtype.kind != "i":
            raise InputError("--libsvm: LIBSVM's labels are whole numbers, and some of these are not")


def _read_at_root(args: argparse.Namespace, comm: Communicator, limit: int) -> tuple[Dataset, Dataset | None]:
    """casvm1: rank 0 reads everything and deals the training rows out in shuffled order."""
    alone: tuple[Dataset | None, Dataset | None] = None, None
    with comm.phase("read"), comm.agreed():
        if comm.rank == 0:
            alone = read(args, Communicator(), limit)
    train, test = alone
    with comm.phase("read"):
        has_test = bool(comm.bcast(np.array([test is not None], np.int64))[0])
    with comm.phase("partition"):
        mixed = _dealt(train, comm, args.seed)
    if not has_test:
        return mixed, None
    with comm.phase("read"):
        return mixed, _dealt(test, comm, None)


def _dealt(data: Dataset | None, comm: Communicator, seed: int | None) -> Dataset:
    """Each rank's even share of rank 0's rows."""
    facts = np.array([0, -1], np.int64)
    X = y = None
    if data is not None:
        n = data.n
        place = np.arange(n) if seed is None else np.argsort(Shuffle(n, seed).position(np.arange(n)))
        X, y = data.X[place], data.target()[place].reshape(-1, 1)
        facts[:] = n, -1 if data.base is None else data.base
    n, base = comm.bcast(facts).tolist()
    rows = scatter_rows(X, n, comm)
    labels = np.asarray(scatter_rows(y, n, comm), np.float64).ravel()
    return Dataset(rows, labels, n, "rank 0's rows", None if base < 0 else base)


def warm_up(dtype: str, comm: Communicator) -> None:
    """Compile, or load what was compiled, before anything is timed."""

    def work() -> None:
        X = np.random.default_rng(0).normal(size=(24, 3)).astype(dtype)
        row_hashes(X, X[:, 0])
        rows = Labelled(X, (np.arange(24) % 2).astype(np.int64))
        limits = Limits(max_iter=50)
        training.fit(CASVM, rows, Options(limits=limits), Communicator()).model.predict(X[:2])

    compiled(work, comm)


def _report(
    method: Method, result: Fit, args: argparse.Namespace, comm: Communicator, metrics: dict[str, Any],
    shape: tuple[int, int, int],
) -> dict[str, Any]:  # fmt: skip
    model, kernel = result.model, result.model.kernel
    assert kernel is not None
    extra = {
        name: getattr(args, name)
        for name in ("initial", "ratio", "passes", "solver", "working_set")
        if hasattr(args, name)
    }
    soft = {} if model.soft is None else {"soft_k": model.soft.k, "soft_t": model.soft.t}
    return report.build(
        method.name,
        comm,
        data={"path": str(args.data), **dict(zip(("n_train", "n_test", "n_features"), shape, strict=True))},
        partition_sizes=result.sizes,
        params={
            **described(model.C, kernel), "tol": args.tol, "cache_gib": args.cache_gib, "route": model.route,
            **soft, **extra,
            "balanced": args.balanced, "standardize": args.standardize, "dtype": model.dtype, "seed": args.seed,
        },
        metrics=metrics,
        solver={**result.solver, **result.more},
        busy=result.busy,
        volume=_volume(method, args, result),
    )  # fmt: skip


def _volume(method: Method, args: argparse.Namespace, result: Fit) -> dict[str, Any]:
    """What theory predicts, where it speaks of what was done: rows that rank 0 deals out, it does not."""
    if getattr(args, "initial", "local") == "root":
        return {}
    told = predicted(method.name, result.terms)
    return {**told, "formula": f"{told['formula']}, one pass"} if result.more.get("passes", 1) > 1 else told


def _notes(method: Method, args: argparse.Namespace, result: Fit, test: Dataset | None) -> list[str]:
    notes = list(result.notes)
    if test is None:
        notes.append("no test rows: give --test, or convert the data with --split")
    if method.partitioner is None and not method.one_model and len(result.sizes) > 1 and args.route == "nearest":
        notes.append("random parts: --route all, the mean of all models' decisions, is usually more accurate")
    return notes


def _print_parts(made: dict[str, Any]) -> None:
    solver = made["solver"]
    if "layers" in solver:
        for layer in solver["layers"]:
            where = f"pass {layer['pass']}, layer {layer['layer']}"
            print(f"{where}: {layer['layer_seconds']:.3f} s on {layer['ranks']} ranks")
            _print_problems("problem", layer, layer["rows"])
        return
    _print_problems(
        "part", solver, made["partition_sizes"] if len(solver["seconds"]) > 1 else [made["data"]["n_train"]]
    )


def _print_problems(what: str, told: dict[str, Any], rows: Any) -> None:
    columns = (rows, *(told[k] for k in ("n_support", "iterations", "gap", "seconds")))
    for number, (m, support, iterations, gap, seconds) in enumerate(zip(*columns, strict=True)):
        print(
            f"{what} {number}: {m:,} rows, {support:,} support vectors, {iterations:,} iterations, "
            f"violation {gap:.2g}, {seconds:.3f} s"
        )
