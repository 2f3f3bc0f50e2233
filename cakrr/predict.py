"""``python -m cakrr.predict MODEL DATA``: predictions of a saved model, on any number of ranks or none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cacore import report
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.files import check_writable, replacing
from cacore.io import load
from cacore.launch import Parser, add_run_options, run, start
from cakrr.cli import warm_up
from cakrr.model import KRRModel


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    run(lambda comm: command(comm, argv), "cakrr.predict")


def command(comm: Communicator, argv: list[str] | None) -> None:
    """Load, read, predict, write."""
    parser = Parser(prog="python -m cakrr.predict", description="Predict with a saved model.", rank=comm.rank)
    parser.add_argument("model", metavar="MODEL", type=Path)
    parser.add_argument("data", metavar="DATA", type=Path, help="its test rows, if it has some, or all rows")
    parser.add_argument("--target", metavar="COLUMN", help="target column of CSV files that have one")
    parser.add_argument("-o", "--output", metavar="OUT.csv", type=Path, help="write the predictions, a line a row")
    add_run_options(parser)
    with comm.agreed():
        args = parser.parse_args(argv)
        for path in (args.output, args.report):
            if path is not None and comm.rank == 0:
                check_writable(path)
    limit = start(args, comm)
    model = KRRModel.load(args.model, comm)
    warm_up(model.dtype, comm)
    d, source = model.centers.shape[1], model.source
    splits = load(args.data, comm, model.dtype, args.target, d, source.get("target"), limit)
    rows = splits["test"] if "test" in splits else splits["train"]
    with comm.agreed():
        if None not in (rows.base, source.get("base")) and rows.base != source["base"]:
            raise InputError(
                f"{rows.where}: the features start at {rows.base}, and at {source['base']} in the training rows: "
                "convert both files together, with cacore.io convert --test"
            )
        if rows.X.shape[1] != model.centers.shape[1]:
            raise InputError(
                f"{rows.where}: {rows.X.shape[1]} features, the model {args.model} has {model.centers.shape[1]}"
            )
    predicted = model.predict(rows.X, comm)
    with comm.phase("predict"):
        metrics = {} if rows.y is None else report.regression_metrics(rows.y, predicted, comm)
    made = report.build(
        "predict",
        comm,
        data={"path": str(args.data), "n_train": 0, "n_test": rows.n, "n_features": rows.X.shape[1]},
        partition_sizes=model.sizes,
        params={"model": str(args.model), "method": model.method, "sigma": model.sigma, "lambda": model.lam},
        metrics=metrics,
    )
    with comm.phase("write"):
        everything = None if args.output is None else comm.gather(predicted)
    if comm.rank == 0:
        if everything is not None:
            write_predictions(args.output, everything)
        if args.report is not None:
            report.write(args.report, made)
        if not args.quiet:
            report.show(made, [] if args.output else ["give -o OUT.csv to keep the predictions"])


def write_predictions(path: Path, values: NDArray[np.floating]) -> None:
    """One column, ``prediction``, in the order of the rows."""
    with replacing(path) as temporary:
        np.savetxt(
            temporary, values, fmt="%.17g" if values.dtype == np.float64 else "%.9g", header="prediction", comments=""
        )


if __name__ == "__main__":
    main()
