"""Commands in this process, and what they leave behind."""

from __future__ import annotations

import json
import runpy
import sys
import warnings
from unittest import mock

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, confusion_matrix

# Of every report.
FIELDS = {"schema", "method", "command", "data", "ranks", "threads_per_rank", "partitions", "partition_sizes", "params",
          "grid", "metrics", "seconds", "seconds_by_rank", "comm", "solver", "memory", "environment",
          "notes"}  # fmt: skip
PHASES = {"read", "partition", "train", "predict"}


def run(program, words):
    """Run ``python -m PROGRAM WORDS`` in this process."""
    with mock.patch.object(sys, "argv", [program, *map(str, words)]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)  # it has been imported before
        runpy.run_module(program, run_name="__main__", alter_sys=True)


ONE_BY_ONE = """
import json, runpy, sys, warnings
warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)  # it has been imported before
for program, *words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    runpy.run_module(program, run_name="__main__")
"""


def one_by_one(commands):
    """Words for a ``python`` that runs all of these commands, ``[PROGRAM, *words]`` each, as ``python -m`` would."""
    return "-c", ONE_BY_ONE, json.dumps([[str(word) for word in command] for command in commands])


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
    """Text of a table without its frame and its line breaks."""
    return " ".join(text.replace("│", " ").split())


# -- what a report says ------------------------------------------------------------------------


def check_report(made, program, path, sizes=(150, 40, 3), more=()):
    """The fields of a report of one process: rows and features that were read, and that nothing was sent."""
    assert set(made) - {"at_grid_end"} == FIELDS | set(more)
    assert (made["schema"], made["method"], made["ranks"]) == ("cakernels-report/1", program.split(".")[-1], 1)
    told = {"path": str(path), **dict(zip(("n_train", "n_test", "n_features"), sizes, strict=True))}
    assert without_names(made["data"]) == told | ({"overlap": 0} if sizes[1] and made["method"] != "predict" else {})
    assert len(made["partition_sizes"]) == made["partitions"]
    assert set(made["comm"]) >= PHASES
    assert all(made["comm"][phase] == {"bytes": 0, "messages": 0, "seconds": 0} for phase in PHASES)
    assert set(made["seconds"]) >= PHASES | {"total"}
    assert made["seconds"]["total"] >= made["seconds"]["train"] > 0
    assert len(made["memory"]["peak_rss_mib"]) == 1
    assert made["memory"]["peak_rss_mib"][0] > 0
    assert set(made["environment"]) == {"python", "mpi", "numpy", "blas", "cpu", "package"}


def without_names(data):
    """The report's entry on the data, without names of columns and the chosen target, which only some files have."""
    return {key: value for key, value in data.items() if key not in ("columns", "target")}


def check_metrics(metrics, y, labels):
    """Check classification metrics against scikit-learn."""
    assert set(metrics) == {"accuracy", "balanced_accuracy", "confusion", "classes"}
    assert metrics["classes"] == np.union1d(y, labels).tolist()
    assert metrics["accuracy"] == pytest.approx((labels == y).mean())
    assert metrics["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, labels))
    assert metrics["confusion"] == confusion_matrix(y, labels).tolist()
