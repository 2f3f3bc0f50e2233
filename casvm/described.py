"""Parts of the report that all SVMs share: LIBSVM's files, results of the solver and the search, a line per part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels.registry import declaration
from cacore.run.job import Training
from casvm.fit import SVMFit
from casvm.options import SVMOptions
from casvm.value_options import ValueOptions
from partition.model import InParts


def check_libsvm(job: Training, options: SVMOptions | ValueOptions, comm: Communicator) -> dict[str, Path]:
    """The output file of ``--libsvm``, if given; refuses several ranks, and kernels and metrics that LIBSVM lacks.

    Raises
    ------
    InputError
    """
    if job.libsvm is None:
        return {}
    if comm.size > 1:
        raise InputError("--libsvm: only one process can write the parts; save --model, and convert it on one rank")
    if declaration(options.kernel).libsvm is None:
        raise InputError(f"--libsvm: LIBSVM has no {options.kernel} kernel; save --model instead")
    if options.metric != "none":
        raise InputError("--libsvm: LIBSVM's format has no metric; leave out --libsvm or --metric")
    return {"--libsvm": job.libsvm}


def soft_fields(model: InParts) -> dict[str, object]:
    """Parameters of soft routing, for the report's params."""
    return {} if model.soft is None else {"soft_k": model.soft.k, "soft_t": model.soft.t}


def fields(fitted: SVMFit[Any], params: dict[str, Any]) -> dict[str, Any]:
    """Fields of the report: `params`, the solver's statistics, and the results of the search."""
    return {
        "params": params,
        "solver": {**fitted.solver, **fitted.more},
        "grid": [] if fitted.search is None else fitted.search.rows(),
        "cv": None if fitted.search is None else fitted.search.described(),
        "at_grid_end": {} if fitted.search is None else fitted.search.at_grid_end,
        "busy": fitted.busy,
    }


def part_lines(made: dict[str, Any]) -> Iterator[str]:
    """Yield a line per part, from the report."""
    solver = made["solver"]
    yield from problem_lines(
        "part", solver, made["partition_sizes"] if len(solver["seconds"]) > 1 else [made["data"]["n_train"]]
    )


def problem_lines(what: str, solver: dict[str, Any], rows: object) -> Iterator[str]:
    """Yield a line per problem; `rows` has the number of rows of each."""
    columns = (rows, *(solver[name] for name in ("n_support", "iterations", "gap", "seconds")))
    for number, (m, support, iterations, gap, seconds) in enumerate(zip(*columns, strict=True)):
        yield (
            f"{what} {number}: {m:,} rows, {support:,} support vectors, {iterations:,} iterations, "
            f"violation {gap:.2g}, {seconds:.3f} s"
        )
