"""Running commands and turning their reports into records."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Record
from cacore import traffic

PHASES = ("read", "partition", "train", "predict", "total")


def run(module: str, data: Path, words: Sequence[str], ranks: int, report: Path | None = None) -> dict[str, Any]:
    """Train under mpiexec and return the report, also written to `report`; "sent" has bytes by sender and receiver."""
    with tempfile.TemporaryDirectory() as folder:
        out, matrix = report or Path(folder) / "report.json", Path(folder) / "sent.npz"
        command = ["mpiexec", "-n", str(ranks), sys.executable, "-m", module, str(data), *words, "--quiet"]
        subprocess.run([*command, "--report", str(out), "--comm-matrix", str(matrix)], check=True)
        told: dict[str, Any] = json.loads(out.read_text())
        return told | {"sent": traffic.pattern(traffic.load(matrix)).tolist()}


def facts(told: dict[str, Any]) -> Record:
    """A report as a record: measured numbers are floats, and lists are left out."""
    seconds = told["seconds"]
    busy = told["solver"].get("busy_seconds")
    return {
        **{f"{phase}_seconds": float(seconds[phase]) for phase in PHASES},
        "seconds": float(seconds["partition"] + seconds["train"] + seconds.get("wait", 0.0) + seconds["predict"]),
        **{name: float(value) for name, value in told["metrics"].items() if isinstance(value, int | float)},
        "bytes": float(sum(told["comm"][phase]["bytes"] for phase in ("partition", "train"))),
        "peak_mib": float(max(told["memory"]["peak_rss_mib"])),
        "partition_sizes": told["partition_sizes"],
        **({} if busy is None else {"busy_seconds": busy}),
        **({"sent": told["sent"]} if "sent" in told else {}),
    }
