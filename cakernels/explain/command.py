"""``[mpiexec -n R] python -m cakernels explain MODEL DATA``: Shapley values of the rows of a file, by any model.

Pictures show a dot per row and feature, or the bars of one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from cacore import checks
from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Keys
from cacore.data.rows import in_memory
from cacore.errors import InputError
from cacore.explain import ABSENT
from cacore.explain.explanation import Explanation
from cacore.files import printing
from cacore.io.words import counted, number
from cacore.learn.method import flags, same_command
from cacore.learn.options import add_options, argument, from_arguments, option
from cacore.run.command import check_files
from cacore.run.launch import Job, Parser, Predicting, compiled_ahead, may_compile, parsed, run, start
from cacore.terminal import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PROG = "cakernels explain"
_SHOWN = 15  # features in the table


@dataclass(frozen=True, kw_only=True)
class Explaining(Job):
    """Options of the command."""

    model: Path = argument("model", "saved model of any family but kriging, and no blend of several classifiers",
                           checks.path)  # fmt: skip
    data: Path = argument("data", "rows to explain: the file's test rows, if it has any, or all its rows", checks.path)
    output: Path | None = option(
        None, "write the values, a column per feature: CSV, or Parquet or HDF5 if the name ends with .parquet or .h5",
        checks.path, short="-o", metavar="OUT.csv",
    )  # fmt: skip
    background: Path | None = option(
        None, "rows over which the answer without a feature is averaged, up to 100 of them (default: training "
        "rows that the model's file holds, or else of DATA); absent: "
        "the kernel's factor of a feature that is absent is 1", checks.path, metavar="DATA",
    )  # fmt: skip
    groups: str | None = option(
        None, "features that enter together, such as the columns of one category: names, or numbers from 0, separated "
        "by commas; groups separated by semicolons", metavar="A,B;C,D",
    )  # fmt: skip
    interactions: bool = option(
        False, "also write the interaction of each pair of features, half of which is in the value of either",
        checks.yes_or_no, action="store_true",
    )  # fmt: skip
    target: str | None = option(None, "target column, which is not explained, if the table has one", metavar="COLUMN")
    key: str | None = option(
        None, "column of DATA that is kept beside the values (default: the one that training was given, if there)",
        checks.column_name, flag="--id", metavar="COLUMN",
    )  # fmt: skip
    plot: Path | None = option(
        None, "draw the values of each feature, a dot per row, or the bars of a single row", checks.path,
        metavar="OUT.png",
    )  # fmt: skip
    ignore_extra_columns: bool = option(
        False, "ignore columns that the model does not know", checks.yes_or_no, action="store_true"
    )  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Run the command, and end the process."""
    run(lambda comm: _explain(comm, argv), PROG, argv=argv)


def _explain(comm: Communicator, argv: list[str] | None) -> None:
    parser = Parser(
        prog=PROG, description="What each feature adds to a model's answers, by exact Shapley values.", rank=comm.rank,
        epilog="example: cakernels explain train.model.h5 new.csv -o values.csv --plot values.png",
    )  # fmt: skip
    add_options(parser, (Explaining,), lambda name: True)
    args = parsed(parser, argv, comm)
    with comm.agreed():
        job = from_arguments(Explaining, args)
    same_command(PROG, flags(job), comm, {"MODEL": job.model, "DATA": job.data})
    with comm.agreed():
        _check(job, comm)
    limit = start(job, comm)
    from cacore.run import report

    explanation, model, rows = _explained(job, limit, comm)
    n = rows.n
    importances = _importances(explanation, comm)
    _write(job, explanation, importances, rows.keys, comm)
    data = {"path": str(job.data), "n_train": 0, "n_test": n, "n_features": model.n_features}
    shares = dict(zip(explanation.players, importances.mean(axis=1).tolist(), strict=True))
    about = {"outputs": list(explanation.outputs), "importances": shares}
    params = {"model": str(job.model), **model.described(), **about}
    document = report.build("explain", comm, data, model.sizes, {"params": params, "metrics": {}})
    with comm.agreed():
        if comm.rank == 0:
            if job.report is not None:
                report.write(job.report, document)
            if not job.quiet:
                with printing():
                    say(*_table(explanation.players, importances.mean(axis=1), n))


def _check(job: Explaining, comm: Communicator) -> None:
    """Refuse files that cannot be written, before any work."""
    from cacore.io import predictions

    _groups(job.groups)
    inputs = {"MODEL": job.model, "DATA": job.data}
    if job.background is not None and job.background != Path(ABSENT):
        inputs["--background"] = job.background
    check_files({"--output": job.output, "--report": job.report, "--plot": job.plot}, dict(inputs), comm)
    if job.output is not None:
        predictions.check(job.output)
    if job.plot is not None and comm.rank == 0:
        from cacore.run import figures

        figures.check(job.plot)


def _explained(job: Explaining, limit: int, comm: Communicator) -> tuple[Explanation, Any, Dataset]:
    """The explanation of this rank's rows, the model, and the rows; collective."""
    from cacore.explain.shapley import warm_up
    from cacore.io.training_rows import sampled
    from cacore.run import reading
    from cakernels.families import load_with_family

    model, family = load_with_family(job.model, comm)
    targets = family.targets(model)
    with comm.agreed():
        if not hasattr(model, "explain"):
            raise InputError(f"{job.model}: a {model.method} model has no Shapley values; those of ridge and SVM do")

    def read(path: Path) -> Dataset:
        asked = Predicting(model=job.model, data=path, target=job.target, ignore_extra_columns=job.ignore_extra_columns)
        if path == job.data:
            asked = replace(asked, key=job.key, output=job.output)
        return reading.read_to_predict(asked, comm, model, limit, *targets)

    compiled_ahead(warm_up, comm, not job.quiet)
    with may_compile(comm, not job.quiet):
        rows = read(job.data)
        background: Any = ABSENT if job.background == Path(ABSENT) else None
        if job.background is not None and background is None:
            background = sampled(read(job.background).X, comm)
        with comm.phase("predict"):
            explanation = model.explain(in_memory(rows.X), background, _groups(job.groups), comm, job.interactions)
    return explanation, model, rows


def _write(
    job: Explaining, explanation: Explanation, importances: NDArray[np.float64], keys: Mapping[str, Keys],
    comm: Communicator,
) -> None:  # fmt: skip
    """Write the values, beside the keys, and the picture; collective."""
    from cacore.io import predictions

    with comm.phase("write"):
        if job.output is not None:
            with comm.agreed():
                columns = _columns(explanation)
            predictions.write(job.output, columns, comm, keys)
        if job.plot is not None:
            from cacore.run import figures

            sample = gathered(explanation, comm)
            with comm.agreed():
                if comm.rank == 0:
                    figures.save(drawn(sample, importances), job.plot)


def _groups(text: str | None) -> list[list[int | str]] | None:
    """The groups that are written as names or numbers."""
    if text is None:
        return None
    groups: list[list[int | str]] = []
    for group in text.split(";"):
        groups.append([name.strip() for name in group.split(",") if name.strip()])
    if not all(groups):
        raise InputError(f"--groups {text}: a group is empty; write names or numbers, such as a,b;c,d")
    return groups


def _columns(explanation: Explanation) -> Mapping[str, NDArray[np.float64]]:
    """A column per player and per pair of them, and per output if there are several, and the base of each output."""
    names, values = [*explanation.players], [explanation.values]
    if explanation.interactions is not None:
        first, second = np.triu_indices(len(names), 1)
        names += [f"{names[j]}:{names[k]}" for j, k in zip(first.tolist(), second.tolist(), strict=True)]
        values.append(2.0 * explanation.interactions[:, first, second])
    all_values = np.concatenate(values, axis=1)
    twice = [name for name, count in Counter([*names, "base"]).items() if count > 1]
    if twice:
        raise InputError(
            f"--output: two columns would be called {twice[0]}; rename the feature, or put it into a group"
        )
    if all_values.ndim == 2:
        return dict(zip(names, all_values.T, strict=True)) | {"base": explanation.base}
    columns: dict[str, NDArray[np.float64]] = {}
    for k, output in enumerate(explanation.outputs):
        columns |= {f"{output}: {name}": all_values[:, j, k] for j, name in enumerate(names)}
        columns[f"{output}: base"] = explanation.base[:, k]
    return columns


def _importances(explanation: Explanation, comm: Communicator) -> NDArray[np.float64]:
    """Mean of |value| over all ranks' rows, shape (g, q); collective."""
    sums = np.abs(explanation.values).sum(axis=0).reshape(len(explanation.players), -1)
    with comm.uncounted():
        total = comm.allreduce(np.append(sums.ravel(), len(explanation.values)))
    return np.asarray(total[:-1].reshape(sums.shape) / max(total[-1], 1.0))


def _table(names: tuple[str, ...], importances: NDArray[np.float64], n: int) -> list[str]:
    """Lines with the mean |value| of the most important features."""
    order = np.argsort(-importances, kind="stable")[:_SHOWN]
    width = max(len(names[j]) for j in order)
    lines = [f"mean |value| over {counted(n, 'row')}"]
    lines += [f"  {names[j]:<{width}}  {number(importances[j])}" for j in order]
    if len(names) > len(order):
        lines.append(f"  and {len(names) - len(order)} further features, of less importance")
    return lines


_FEATURES = 12  # most important features shown
_DOTS = 2000  # rows shown, spread over all
_UP, _DOWN = "#d95f02", "#2166ac"


def gathered(explanation: Explanation, comm: Communicator) -> Explanation:
    """Up to 2,000 rows of all ranks, on every rank; collective."""
    with comm.uncounted():
        n = int(comm.allreduce(np.array([len(explanation.values)]))[0])
        step = max(1, -(-n // _DOTS))
        values, base, data = (comm.allgather(np.ascontiguousarray(array[::step]))
                              for array in (explanation.values, explanation.base, explanation.data))  # fmt: skip
    return Explanation(values, base, data, explanation.players, explanation.members, explanation.outputs)


def drawn(explanation: Explanation, importances: NDArray[np.float64]) -> Figure:
    """One panel per output, at most four; `importances`, shape (g, q), choose and order the features."""
    from cacore.run import figures

    values, base = explanation.values, explanation.base
    if values.ndim == 2:
        values, base = values[:, :, None], base[:, None]
    outputs = range(min(values.shape[2], 4))
    order = np.argsort(-importances.mean(axis=1), kind="stable")[:_FEATURES][::-1]
    figure = figures.blank(1.5 + 5.0 * len(outputs), 1.6 + 0.36 * len(order))
    panels = figure.subplots(1, len(outputs), sharey=True, squeeze=False)[0]
    for k, axes in zip(outputs, panels, strict=True):
        axes.axvline(0.0, color="0.7", lw=1, zorder=0)
        if len(values) == 1:
            _bars(axes, values[0, order, k])
        else:
            _swarm(axes, values[:, order, k], _levels(explanation, order))
        axes.set_yticks(range(len(order)), [explanation.players[j] for j in order], fontsize=11)
        start = f", from {number(base[0, k])}" if len(values) == 1 else ""
        axes.set_xlabel(f"what the feature adds to {explanation.outputs[k]}{start}", fontsize=11)
        figures.plain(axes.xaxis)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False)
    figure.suptitle(f"Shapley values; {counted(len(values), 'row')}", x=0.02, ha="left", fontsize=12)
    if len(values) > 1:
        _legend(figure)
    return figure


def _levels(explanation: Explanation, order: NDArray[np.intp]) -> NDArray[np.float64]:
    """Rank of each row by the feature, from 0 to 1, shape (n, features); of a group, its first feature."""
    firsts = [explanation.members[j][0] for j in order]
    ranks = rankdata(explanation.data[:, firsts], "average", axis=0) - 1.0
    return np.asarray(ranks / max(1, len(ranks) - 1))


def _swarm(axes: Axes, values: NDArray[np.float64], levels: NDArray[np.float64]) -> None:
    for line, (x, level) in enumerate(zip(values.T, levels.T, strict=True)):
        axes.scatter(x, line + 0.38 * _heights(x), c=level, cmap="viridis", s=9, lw=0, alpha=0.8, rasterized=True)


def _heights(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Heights from -1 to 1 that fan out the dots where they are dense."""
    if np.ptp(x) <= 1e-12 * np.abs(x).max():
        return np.linspace(-1.0, 1.0, len(x))
    counts, edges = np.histogram(x, 60)
    cell = np.clip(np.searchsorted(edges, x, "right") - 1, 0, len(counts) - 1)
    place = np.zeros(len(x))
    for cell_number in np.unique(cell):
        here = np.flatnonzero(cell == cell_number)
        place[here] = np.linspace(-1.0, 1.0, len(here)) if len(here) > 1 else 0.0
    return np.asarray(place * np.sqrt(counts[cell] / counts.max()))


def _bars(axes: Axes, values: NDArray[np.float64]) -> None:
    axes.barh(range(len(values)), values, color=[_UP if amount > 0 else _DOWN for amount in values], height=0.6)
    for line, value in enumerate(values):
        style: dict[str, Any] = {"va": "center", "ha": "left" if value > 0 else "right", "fontsize": 10}
        axes.annotate(
            f"{'+' if value > 0 else ''}{number(value)}",
            (value, line),
            (4 if value > 0 else -4, 0),
            textcoords="offset points",
            **style,
        )
    axes.margins(x=0.2)


def _legend(figure: Figure) -> None:
    from matplotlib.cm import ScalarMappable

    bar = figure.colorbar(ScalarMappable(cmap="viridis"), ax=figure.axes, shrink=0.6, aspect=30, pad=0.02)
    bar.set_ticks([0.0, 1.0], labels=["low", "high"])
    bar.set_label("feature value", fontsize=10, labelpad=-12)
    bar.outline.set_visible(False)
