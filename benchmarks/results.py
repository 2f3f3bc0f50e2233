"""Results of a benchmark: records in a JSON file, tables, and comparison of two files."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cacore import __version__
from cacore.errors import InputError
from cacore.files import replacing
from cacore.machine import threads
from cacore.machine.threads import cpu_name

SLOWER = 1.1  # ratio of seconds from which a measurement counts as slower
Record = dict[str, Any]
_recording: ContextVar[Results | None] = ContextVar("recording", default=None)


def machine() -> Record:
    """Description of this machine."""
    return {"cores": len(threads.cores()), "processor": cpu_name(), "python": platform.python_version()}


@dataclass
class Results:
    """Records of one benchmark.

    Attributes
    ----------
    name : str
    records : list of dict
        Fields that identify a record are text or integers; measurements are floats.
    about : dict
        Facts about all records: options, data, the machine.
    """

    name: str
    records: list[Record] = field(default_factory=list)
    about: Record = field(default_factory=dict)

    def add(self, **record: Any) -> None:
        """Add a record."""
        self.records.append(record)

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        whole = {"benchmark": self.name, "version": __version__, **machine(), **self.about, "records": self.records}
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(whole, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file that :meth:`save` wrote.

        Raises
        ------
        InputError
            The file is missing, or has other content.
        """
        try:
            whole = json.loads(path.read_text())
            return cls(whole.pop("benchmark"), whole.pop("records"), whole)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: no results of python -m benchmarks ({error})") from error


@contextmanager
def recording(name: str) -> Iterator[Results]:
    """Collect the records that :func:`record` adds inside the block."""
    results = Results(name)
    token = _recording.set(results)
    try:
        yield results
    finally:
        _recording.reset(token)


def record(**found: Any) -> None:
    """Add a record to the results being collected, if any."""
    results = _recording.get()
    if results is not None:
        results.add(**found)


def about(**facts: Any) -> None:
    """Add facts about all records to the results being collected, if any."""
    results = _recording.get()
    if results is not None:
        results.about |= facts


def table(records: Iterable[Record], columns: dict[str, str]) -> str:
    """A Markdown table with a line per record; `columns` maps each heading to the format of its numbers."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for record in records:
        cells = [format(record[name], form) if record.get(name) is not None else "" for name, form in columns.items()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def key(record: Record) -> tuple[tuple[str, Any], ...]:
    """The fields that identify a record."""
    return tuple((name, value) for name, value in record.items() if isinstance(value, str | int))


def compared(before: Results, after: Results) -> list[Record]:
    """Timings that both results have, with the ratio after / before."""
    old = {key(record): record for record in before.records}
    found = []
    for record in after.records:
        was = old.get(key(record), {})
        for name, value in record.items():
            if isinstance(value, float) and "seconds" in name and was.get(name):
                label = ", ".join(str(part) for _, part in key(record))
                found.append(
                    {"what": f"{label}: {name}", "before": was[name], "after": value, "ratio": value / was[name]}
                )
    return found
