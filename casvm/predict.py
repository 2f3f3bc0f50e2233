"""``python -m casvm.predict MODEL DATA``: labels by a saved model, on any number of ranks or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import report
from cacore.comm import Communicator
from cacore.files import check_writable, replacing
from cacore.launch import Parser, add_predict_options, read_to_predict, run, start
from casvm.cli import tested, warm_up
from casvm.model import SVMModel


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    run(lambda comm: command(comm, argv), "casvm.predict")


def command(comm: Communicator, argv: list[str] | None) -> None:
    """Load, read, predict, write."""
    parser = Parser(prog="python -m casvm.predict", description="Predict labels with a saved model.", rank=comm.rank)
    add_predict_options(parser)
    parser.add_argument("--decisions", action="store_true", help="write the decisions beside the labels")
    with comm.agreed():
        args = parser.parse_args(argv)
        for path in (args.output, args.report):
            if path is not None and comm.rank == 0:
                check_writable(path)
    limit = start(args, comm)
    model = SVMModel.load(args.model, comm)
    warm_up(model.dtype, comm)
    rows = read_to_predict(args, comm, model.centers.shape[1], model.dtype, model.source, limit)
    scores = model.scores(rows.X, comm)
    predicted = model.labels(scores)
    metrics: dict[str, Any] = {} if rows.y is None else tested(model, rows, predicted, comm)
    made = report.build(
        "predict",
        comm,
        data={"path": str(args.data), "n_train": 0, "n_test": rows.n, "n_features": rows.X.shape[1]},
        partition_sizes=model.sizes,
        params={"model": str(args.model), "method": model.method, "C": model.C, "route": model.route},
        metrics=metrics,
    )
    with comm.phase("write"):
        codes = np.searchsorted(model.classes, predicted).astype(np.int64)
        everything = None if args.output is None else comm.gather(codes)
        values = comm.gather(scores) if args.output is not None and args.decisions else None
    if comm.rank == 0:
        if everything is not None:
            write_labels(args.output, model.classes, everything, values)
        if args.report is not None:
            report.write(args.report, made)
        if not args.quiet:
            report.show(made, [] if args.output else ["give -o OUT.csv to keep the predictions"])


def write_labels(
    path: Path, classes: NDArray[Any], codes: NDArray[np.int64], decisions: NDArray[np.float64] | None
) -> None:
    """Column ``prediction``, and one or more of decisions, in the order of the rows."""
    names = [str(label) for label in classes]
    heads = [] if decisions is None else ["decision"] if decisions.shape[1] == 1 else [f"decision {n}" for n in names]
    with replacing(path) as temporary, temporary.open("w") as file:
        file.write(",".join(["prediction", *heads]) + "\n")
        for i, code in enumerate(codes):
            told = [] if decisions is None else [f"{value:.17g}" for value in decisions[i]]
            file.write(",".join([names[code], *told]) + "\n")


if __name__ == "__main__":
    main()
