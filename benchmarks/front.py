"""``cakernels fit``, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cacore.comm import Communicator
from cakernels.families import load


def fitted(data: Path, threads: int, *options: str) -> tuple[Any, dict[str, Any]]:
    """The model that the command trains in a process of its own, and its report.

    Parameters
    ----------
    data : Path
        The rows; model and report are written beside them.
    threads : int
    *options : str
        More words of the command line.
    """
    model, report = data.with_suffix(".model.h5"), data.with_suffix(".json")
    files = ["--model", str(model), "--report", str(report)]
    command = [sys.executable, "-m", "cakernels", "fit", str(data), "--threads", str(threads), "--quiet"]
    subprocess.run([*command, *files, *options], check=True)
    return load(model, Communicator()), json.loads(report.read_text())
