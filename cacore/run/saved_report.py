"""Reports of ``--report``, read from their files and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cacore.comm import PHASES
from cacore.errors import InputError
from cacore.run.report import SCHEMA

_FIELDS = {
    "method": str, "command": list, "data": dict, "ranks": int, "threads_per_rank": int, "partitions": int,
    "partition_sizes": list, "params": dict, "grid": list, "metrics": dict, "seconds": dict, "comm": dict,
    "solver": dict, "memory": dict, "environment": dict,
}  # fmt: skip
_REMEDY = "name a file that --report wrote"


def read(path: Path) -> dict[str, Any]:
    """The report in a file.

    Raises
    ------
    InputError
        There is no such file, or it is not a report, or it is damaged.
    """
    found = _parsed(path)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise InputError(f"{path}: is not a report of this version ({SCHEMA}); {_REMEDY}")
    report: dict[str, Any] = found
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
