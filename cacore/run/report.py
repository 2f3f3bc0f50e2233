"""Report of a run: a JSON file, written atomically by rank 0, read back and checked, and a table on the terminal.

If one output file of a run cannot be written, the others still are.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.comm import PHASES, Communicator
from cacore.errors import InputError
from cacore.files import replacing
from cacore.io.words import counted, number, percent, printable
from cacore.machine import memory, threads
from cacore.machine.threads import cpu_name
from cacore.metrics import recalls
from cacore.terminal import CellLines, say_wrapped, show_table

Report: TypeAlias = dict[str, Any]  # a report, or some of its fields, by name

_FIELDS = {
    "method": str, "command": list, "data": dict, "ranks": int, "threads_per_rank": int, "partitions": int,
    "partition_sizes": list, "params": dict, "grid": list, "metrics": dict, "seconds": dict, "comm": dict,
    "solver": dict, "memory": dict, "environment": dict,
}  # fmt: skip
_REMEDY = "name a file that --report wrote"


def read(path: Path) -> Report:
    """The report in a file.

    Raises
    ------
    InputError
        There is no such file, or it is not a report, or it is damaged.
    """
    parsed = _parsed(path)
    if not isinstance(parsed, dict) or parsed.get("schema") != SCHEMA:
        raise InputError(f"{path}: is not a report of this version ({SCHEMA}); {_REMEDY}")
    report: Report = parsed
    for name, kind in _FIELDS.items():
        if not isinstance(report.get(name), kind):
            raise InputError(f"{path}: damaged: field {name} is missing or has the wrong type; repeat the run")
    wanted = ("seconds", (*PHASES, "total")), ("comm", PHASES), ("data", ("path", "n_features"))
    missing = [f"{name}.{key}" for name, keys in wanted for key in keys if report[name].get(key) is None]
    if missing:
        raise InputError(f"{path}: damaged: field {missing[0]} is missing; repeat the run")
    return report


def _parsed(path: Path) -> object:
    """The contents of the file, parsed as JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {_REMEDY}") from error
    except (ValueError, RecursionError) as error:  # no text, no JSON, or brackets within brackets
        raise InputError(f"{path}: is not a report, or damaged: not valid JSON; {_REMEDY}") from error


SCHEMA = "cakernels-report/1"
# What fits into a terminal of 80 columns and a screen; tried, not measured.
_MATRIX, _RECALLS = 4, 50  # most classes of which the table shows the confusion matrix, and the recall of each
_NAME, _LINE = 12, 40  # characters of a class's name, and of a line of recalls
_RANKS = 64  # most ranks whose seconds are reported one by one


def build(
    method: str, comm: Communicator, data: Mapping[str, object], sizes: NDArray[np.int64], fields: Mapping[str, Any]
) -> Report:  # fmt: skip
    """Assemble the report; collective, and its own messages are not counted.

    Parameters
    ----------
    method : str
    comm : Communicator
    data : mapping
        The field `data`.
    sizes : ndarray of int64, shape (P,)
        Rows of each part.
    fields : mapping
        All other fields that the run knows, by name; empty ones are left out. Of these, `busy` (seconds of each rank at
        work) becomes part of `solver`, and `library_bytes` part of `comm`.
    """
    counted, _ = comm.totals()
    inside = np.array([comm.mpi_seconds.get(phase, 0.0) for phase in counted])
    with comm.uncounted():
        inside = comm.allreduce(inside) / comm.size
        peaks = comm.allgather(np.array([memory.peak_rss_mib()]))
        counts = comm.allgather(np.array([threads.current()]))
        library = int(comm.allreduce(np.array([fields.get("library_bytes", 0)]))[0])
    traffic: dict[str, dict[str, float]] = {
        phase: {**sent, "seconds": float(mean)} for (phase, sent), mean in zip(counted.items(), inside, strict=True)
    }
    if library:  # bytes sent by a library itself, estimated by a formula
        traffic["train"]["library_bytes_predicted"] = library
    further = {name: value for name, value in fields.items() if name not in _PLACED and value}
    document: Report = {
        "schema": SCHEMA,
        "method": method,
        "command": sys.argv,
        "data": data,
        "ranks": comm.size,
        "threads_per_rank": int(counts.max()),
        "partitions": len(sizes),
        "partition_sizes": [int(m) for m in sizes],
        "params": fields["params"],
        "grid": fields.get("grid") or [],
        **further,
        "metrics": fields["metrics"],
    }
    if fields.get("metrics_without_overlap"):
        document["metrics_without_overlap"] = fields["metrics_without_overlap"]
    clock(document, comm)
    document["comm"] = traffic
    if fields.get("volume"):
        measured = traffic["partition"]["bytes"] + traffic["train"]["bytes"]
        document["volume"] = {**fields["volume"], "measured_bytes": measured}
    empty: dict[str, object] = {"iterations": [], "n_support": [], "objective": [], "gap": [], "seconds": []}
    balance = _balance(fields["busy"]) if "busy" in fields else {}
    return document | {
        "solver": {**empty, **fields.get("solver", {}), **balance},
        "memory": {"peak_rss_mib": [round(float(peak), 1) for peak in peaks]},
        "environment": environment(comm),
        "notes": [],
    }


# Fields of a run that have a place of their own in the report; all others follow its grid.
_PLACED = ("params", "metrics", "metrics_without_overlap", "grid", "solver", "busy", "library_bytes", "volume")


def clock(report: Report, comm: Communicator) -> None:
    """Write the seconds so far into the report, by phase and by rank; collective."""
    report["seconds"], report["seconds_by_rank"] = seconds(comm), seconds_by_rank(comm)


def seconds(comm: Communicator) -> dict[str, float]:
    """Seconds of the slowest rank so far, by phase and in all; collective, and its own messages are not counted."""
    _, by_phase = comm.totals()
    with comm.uncounted():
        by_phase["total"] = float(comm.allreduce(np.array([sum(comm.seconds.values())]), "max")[0])
    return by_phase


def seconds_by_rank(comm: Communicator) -> dict[str, list[float]]:
    """Seconds of each rank by phase, and the `ranks` themselves: all, or 64 spread evenly; collective, not counted."""
    clock = comm.clock()
    with comm.uncounted():
        spent = comm.allgather(np.array([list(clock.values())]))
    chosen = np.unique(np.linspace(0, comm.size - 1, min(comm.size, _RANKS)).astype(np.int64))
    return {"ranks": chosen.tolist(), **dict(zip(clock, spent[chosen].T.round(6).tolist(), strict=True))}


def _balance(busy: NDArray[np.float64]) -> dict[str, object]:
    """Seconds that each rank worked on its parts, and the load imbalance: the maximum over the mean."""
    return {"busy_seconds": busy, "imbalance": float(busy.max() / busy.mean()) if busy.mean() > 0 else 1.0}


def environment(comm: Communicator) -> dict[str, str]:
    """Versions and hardware that the run used."""
    from threadpoolctl import threadpool_info

    blas = [f"{lib['internal_api']} {lib['version']}" for lib in threadpool_info() if lib["user_api"] == "blas"]
    return {
        "python": platform.python_version(),
        "mpi": mpi_version() if comm.size > 1 else "none",
        "numpy": np.__version__,
        "blas": ", ".join(dict.fromkeys(blas)),
        "cpu": cpu_name(),
        "package": f"cakernels {__version__}",
    }


def mpi_version() -> str:
    """Name and version of the MPI library that mpi4py has loaded."""
    from mpi4py import MPI

    return MPI.Get_library_version().splitlines()[0].strip("\0 ")


def write(path: Path, report: Mapping[str, object]) -> None:
    """Write the report; NaN and infinity become null."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(plain(report), indent=1) + "\n")


def plain(value: object) -> Any:
    """The value as JSON knows it: arrays as lists, NaN and infinity as None."""
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def show(report: Report, lines: Iterable[tuple[str, str]] = (), trained: Report | None = None) -> None:
    """Print the verdict, then a short table of the report, with a family's own lines, and its notes below.

    `trained` is what the model's file says of its training.
    """
    say_wrapped(verdict(report, trained or {}))
    notes = (("note", note) for note in report["notes"])
    show_rows(f"{report['method']} on {printable(report['data']['path'])}", [*rows(report, lines), *notes])


def verdict(report: Report, trained: Report) -> str:
    """The error in one line, beside that of a constant, and the rows that it is an error of."""
    if report["metrics"]:
        repeated = report["data"].get("overlap", 0)
        remark = f", of which {repeated:,} trained the model" if repeated else ""
        return scores_text(report["metrics"], f"{report['data']['n_test']:,} test rows{remark}")
    if "error" in trained:
        where = "DATA has no targets" if report["method"] == "predict" else "there are no test rows"
        return f"{score_text(trained['error'])}; {where}"
    return "error unknown: there are no rows with targets to test the model on"


def score_text(error: Report) -> str:
    """Text of the `score` and `value` of a model's error in its file; a mean squared error as its root."""
    name, value = error["score"].replace("_", " "), float(error["value"])
    if name.startswith(_SQUARED):
        name, value = f"rmse{name.removeprefix(_SQUARED)}", math.sqrt(max(value, 0.0))
    first, _, rest = name.partition(" on ")
    text = percent(value) if first.endswith("accuracy") else number(value)
    return f"{first} {text}" + (f" on {rest}" if rest else "")


_SQUARED = "mean squared error"


def scores_text(metrics: Report, rows: str) -> str:
    """Text of the most important metric, on these `rows`, beside that of the mean or the most frequent class."""
    if metrics.get("rmse") is not None:
        text, r2 = f"rmse {number(metrics['rmse'])} on {rows}", metrics.get("r2")
        if r2 is None or not math.isfinite(r2):
            return text
        # Of several targets, rmse and R^2 are means, which do not tell the error of the mean.
        single = r2 < 1.0 and math.isclose(metrics["rmse"] ** 2, metrics["mse"], rel_tol=1e-12)
        mean = f"; rmse of the mean: {number(metrics['rmse'] / math.sqrt(1.0 - r2))}" if single else ""
        return f"{text}; R^2 {number(r2)}{mean}"
    if "confusion" in metrics:
        counts = [sum(row) for row in metrics["confusion"]]
        frequent = percent(max(counts, default=0) / max(1, sum(counts)))
        return f"accuracy {percent(metrics['accuracy'])} on {rows}; the most frequent class alone: {frequent}"
    numbers = [(name, value) for name, value in metrics.items() if isinstance(value, float)]
    return "; ".join(f"{name.replace('_', ' ')} {number(value)} on {rows}" for name, value in numbers[:1])


def rows(report: Report, lines: Iterable[tuple[str, str]] = ()) -> Iterator[tuple[str, str]]:
    """Names and texts of the printed table, with a family's own `lines`, without the notes."""
    sizes = report["partition_sizes"]
    yield from _data(report["data"])
    yield (
        "parts",
        f"{len(sizes)} of {min(sizes):,} to {max(sizes):,} rows; "
        f"{counted(report['ranks'], 'rank')} of {counted(report['threads_per_rank'], 'thread')}",
    )
    yield "parameters", _listed(report["params"])
    yield from _errors(report)
    yield "seconds", _listed(report["seconds"])
    for title, key in (("bytes sent", "bytes"), ("messages", "messages")):
        yield title, _listed({phase: report["comm"][phase][key] for phase in PHASES})
    yield from lines
    if report["ranks"] > 1 and "imbalance" in report["solver"]:
        yield "imbalance", f"{report['solver']['imbalance']:.3f}: the busiest rank's seconds over the mean"
    yield "peak memory", f"{max(report['memory']['peak_rss_mib']):,.0f} MiB per rank"


def show_rows(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print a table of names and texts."""
    show_table(rows, title)


def _errors(report: Report) -> Iterator[tuple[str, str]]:
    """Lines about the metric that was learned, the errors, intervals and probabilities."""
    if "metric" in report:
        yield "metric", _metric(report["metric"])
    yield from _metrics(report["metrics"])
    if "intervals" in report:
        yield "intervals", _intervals(report["intervals"])
    if "probability" in report:
        yield "probabilities", _probability(report["probability"])
    for name, value in _metrics(report.get("metrics_without_overlap", {})):
        yield f"{name} without overlap", value


def _metrics(metrics: Report) -> Iterator[tuple[str, str]]:
    for name, value in metrics.items():
        if name == "confusion":
            yield from confusion_rows(metrics)
        elif name != "classes":
            yield name.replace("_", " "), as_text(value)


def class_names(metrics: Report) -> list[str]:
    """Names of the classes of a confusion matrix: the labels; -1 and 1 of outliers; or numbers from 1."""
    unnamed = (-1, 1) if "outliers" in metrics else range(1, len(metrics["confusion"]) + 1)
    return [printable(name) for name in metrics.get("classes") or unnamed]


def confusion_rows(metrics: Report) -> Iterator[tuple[str, str]]:
    """Names and texts of the rows for a confusion matrix, of few classes, and for recalls, in 80 columns."""
    matrix, names = metrics["confusion"], [name[:_NAME] for name in class_names(metrics)]
    if len(matrix) <= _MATRIX:
        cut = [name[: _LINE // (len(matrix) + 1) - 1] for name in names]
        lines = [["true\\as", *cut], *([name, *map(str, row)] for name, row in zip(cut, matrix, strict=True))]
        wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
        yield (
            "confusion",
            CellLines(
                " ".join([first.ljust(wide[0]), *(word.rjust(most) for word, most in zip(rest, wide[1:], strict=True))])
                for first, *rest in lines
            ),
        )
    shares = [(name, share) for name, share in zip(names, recalls(matrix), strict=True) if share is not None]
    if len(matrix) > _RECALLS:
        numbers = [share for _, share in shares] or [math.nan]
        lowest = ", ".join(name for name, _ in sorted(shares, key=lambda pair: pair[1])[:3])
        text = f"{min(numbers):.3f} to {max(numbers):.3f}, median {np.median(numbers):.3f}"
        yield "recalls", CellLines([f"{len(matrix):,} classes: {text}", f"lowest: {lowest}"])
        return
    words = ", ".join(f"{name} {share:.3f}".replace(" ", "\u00a0") for name, share in shares)
    yield "recalls", CellLines(line.replace("\u00a0", " ") for line in textwrap.wrap(words, _LINE))


def _data(data: Report) -> Iterator[tuple[str, str]]:
    """Lines about the rows, and about the target column if the user named none."""
    rows = f"{data['n_train']:,} training" if data.get("n_train") else ""
    rows += f"{', ' if rows else ''}{data['n_test']:,} test" if data.get("n_test") else ""
    yield "rows", f"{rows}, {data['n_features']} features"
    if "target" in data:
        yield "target", target_text(data["target"])


def target_text(target: Report) -> str:
    """The target column that the user did not name, with its classes or its range, and how to choose another."""
    values = f"{target['classes']:,} classes" if "classes" in target else "{:g} to {:g}".format(*target["range"])
    if "values" in target:
        values += f", {counted(target['values'], 'value')}"
    return f"{printable(target['column'])}: {values}; --target names another"


def _metric(metric: Report) -> str:
    shares = metric["importances"]
    first = sorted(range(len(shares)), key=lambda k: -shares[k])[:5]
    names = metric.get("names", range(len(shares)))
    important = ", ".join(f"{names[k]} ({number(shares[k])})" for k in first)
    rounds = f"the best of rounds 0 to {len(metric['errors']) - 1} by validation error"
    return f"{metric['form']}, of round {metric['round']}, {rounds}; most important features: {important}"


def _intervals(facts: Report) -> str:
    held = f", and {100 * facts['coverage']:.2f} % held" if "coverage" in facts else ""
    width, rows = f"mean width {as_text(facts['mean_width'])}", f"{facts['calibration_rows']:,} rows {facts['rows']}"
    shared = facts.get("parts_sharing_a_width")
    few = f"; {shared:,} parts with few of them share a width" if shared else ""
    return f"{100 * facts['asked']:g} % asked{held}; {width}; from {rows}{few}"


def _probability(facts: Report) -> str:
    origin = f", from {facts['left_out']:,} decisions on held-out rows" if facts["left_out"] else ""
    return f"{facts['form']}{origin}"


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {as_text(value)}" for name, value in values.items())


def as_text(value: object) -> str:
    """A number or another value as tables show it."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list):
        return ", ".join(map(as_text, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
