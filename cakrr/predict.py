"""``python -m cakrr.predict MODEL DATA``: predictions of a saved model, on any number of ranks or none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.files import check_writable, replacing
from cacore.run import report
from cacore.run.launch import Parser, add_predict_options, read_to_predict, run, start
from cakrr.cli import warm_up
from cakrr.model import KRRModel


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    run(lambda comm: command(comm, argv), "cakrr.predict")


def command(comm: Communicator, argv: list[str] | None) -> None:
    """Load, read, predict, write."""
    parser = Parser(prog="python -m cakrr.predict", description="Predict with a saved model.", rank=comm.rank)
    add_predict_options(parser)
    with comm.agreed():
        args = parser.parse_args(argv)
        for path in (args.output, args.report):
            if path is not None and comm.rank == 0:
                check_writable(path)
    limit = start(args, comm)
    model = KRRModel.load(args.model, comm)
    warm_up(model.dtype, comm)
    rows = read_to_predict(args, comm, model.centers.shape[1], model.dtype, model.source, limit)
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
