"""``python -m PACKAGE.predict MODEL DATA``: labels by a saved classifier, on any number of ranks or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data import labels
from cacore.data.rows import Rows
from cacore.files import check_writable
from cacore.run import report
from cacore.run.launch import Parser, add_predict_options, read_to_predict, start


class Classifier(Protocol):
    """What the command asks of a model."""

    classes: NDArray[Any]
    dtype: str
    source: dict[str, Any]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Of its parts."""

    @property
    def n_features(self) -> int:
        """Of a row."""

    def told(self) -> dict[str, Any]:
        """What the report says about it."""

    def scores(self, X: Rows, comm: Any = None) -> NDArray[np.float64]:
        """Decisions of this rank's rows; collective."""

    def labels(self, scores: NDArray[np.float64]) -> NDArray[Any]:
        """Labels of rows of these scores."""


def command(
    prog: str, load: Callable[[Path, Communicator], Classifier], warm_up: Callable[[str, Communicator], None],
    comm: Communicator, argv: list[str] | None,
) -> None:  # fmt: skip
    """Load, read, predict, write."""
    parser = Parser(prog=f"python -m {prog}", description="Predict labels with a saved model.", rank=comm.rank)
    add_predict_options(parser)
    parser.add_argument("--decisions", action="store_true", help="write the decisions beside the labels")
    with comm.agreed():
        args = parser.parse_args(argv)
        for path in (args.output, args.report):
            if path is not None and comm.rank == 0:
                check_writable(path)
    limit = start(args, comm)
    model = load(args.model, comm)
    warm_up(model.dtype, comm)
    rows = read_to_predict(args, comm, model.n_features, model.dtype, model.source, limit)
    with comm.phase("predict"):
        scores = model.scores(rows.X, comm)
    predicted = model.labels(scores)
    metrics: dict[str, Any] = {} if rows.y is None else labels.tested(model.classes, rows, predicted, comm)
    made = report.build(
        "predict",
        comm,
        data={"path": str(args.data), "n_train": 0, "n_test": rows.n, "n_features": rows.X.shape[1]},
        partition_sizes=model.sizes,
        params={"model": str(args.model), **model.told()},
        metrics=metrics,
    )
    with comm.phase("write"):
        codes = np.searchsorted(model.classes, predicted).astype(np.int64)
        everything = None if args.output is None else comm.gather(codes)
        values = comm.gather(scores) if args.output is not None and args.decisions else None
    if comm.rank == 0:
        if everything is not None:
            labels.write(args.output, model.classes, everything, values)
        if args.report is not None:
            report.write(args.report, made)
        if not args.quiet:
            report.show(made, [] if args.output else ["give -o OUT.csv to keep the predictions"])
