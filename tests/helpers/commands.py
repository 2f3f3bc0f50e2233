"""Commands in this process, and what they leave behind."""

from __future__ import annotations

import json
import runpy
import sys
import warnings
from unittest import mock

import numpy as np

# Of every report.
FIELDS = {"schema", "method", "command", "data", "ranks", "threads_per_rank", "partitions", "partition_sizes", "params",
          "grid", "metrics", "seconds", "comm", "solver", "memory", "environment"}  # fmt: skip
PHASES = {"read", "partition", "train", "predict"}


def run(program, words):
    """As ``python -m PROGRAM WORDS`` would."""
    with mock.patch.object(sys, "argv", [program, *map(str, words)]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)  # it has been imported before
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def read(path):
    return json.loads(path.read_text())


def reported(program, words, folder):
    """The report of a quiet run."""
    run(program, [*words, "--report", folder / "r.json", "--quiet"])
    return read(folder / "r.json")


def predicted(path):
    """The first column that a prediction command wrote."""
    lines = path.read_text().splitlines()
    return np.array([line.split(",")[0] for line in lines[1:]], float)


def flat(text):
    """What a table says, without its frame and its line breaks."""
    return " ".join(text.replace("│", " ").split())
