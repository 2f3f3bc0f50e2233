"""Reports, and files that are written whole or not at all."""

import json
import math
import os
import re
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn.metrics import mean_squared_error, r2_score

from cacore import files
from cacore import metrics as errors
from cacore.comm import PHASES, Communicator
from cacore.errors import InputError
from cacore.io.words import number
from cacore.run import report

COMM = Communicator()
RNG = np.random.default_rng(0)


# -- metrics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 2000.0, 1e7])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_regression_metrics(dtype, offset):
    y = (RNG.standard_normal(500) * 10 + offset).astype(dtype)
    predicted = y + RNG.standard_normal(500)
    before = y.copy(), predicted.copy()
    got = errors.regression_metrics(y, predicted, COMM)
    mse = mean_squared_error(y.astype(float), predicted)
    want = {"mse": mse, "rmse": math.sqrt(mse), "r2": r2_score(y.astype(float), predicted)}
    assert got == pytest.approx(want, rel=1e-9)
    np.testing.assert_array_equal(y, before[0])
    np.testing.assert_array_equal(predicted, before[1])


def test_r2_of_a_constant_is_unknown():
    got = errors.regression_metrics(np.full(7, 0.1), np.zeros(7), COMM)
    assert got == {"mse": pytest.approx(0.01), "rmse": pytest.approx(0.1), "r2": None}


def test_errors_of_huge_targets_are_infinite():
    """Errors of rows to predict may be infinite; training on such targets is refused."""
    got = errors.regression_metrics(np.array([0.0, 1e160]), np.zeros(2), COMM)
    assert got == {"mse": math.inf, "rmse": math.inf, "r2": None}


# -- the report --------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr("sys.argv", ["prog", "data.h5"])
    comm = Communicator()
    with comm.phase("train"):
        pass
    data = {"path": "data.h5", "n_train": 18432, "n_test": 2208, "n_features": 8}
    fields = {
        "params": {"sigma": np.float64(0.5), "lambda": 1e-4}, "metrics": {"mse": np.float32(0.25), "r2": math.nan},
        "grid": [{"sigma": 1.0, "validation_mse": math.inf}], "solver": {"seconds": [1.0, 2.0]},
    }  # fmt: skip
    return report.build("bkrr2", comm, data, np.array([10, 12]), fields)


def test_fields(made):
    assert set(made) == {
        "schema", "method", "command", "data", "ranks", "threads_per_rank", "partitions", "partition_sizes", "params",
        "grid", "metrics", "seconds", "seconds_by_rank", "comm", "solver", "memory", "environment", "notes",
    }  # fmt: skip
    assert (made["schema"], made["method"], made["command"]) == ("cakernels-report/1", "bkrr2", ["prog", "data.h5"])
    assert (made["ranks"], made["partitions"], made["partition_sizes"]) == (1, 2, [10, 12])
    assert made["comm"] == {phase: {"bytes": 0, "messages": 0, "seconds": 0} for phase in PHASES}
    assert set(made["seconds"]) == {*PHASES, "other", "total"}
    assert made["seconds"]["total"] == pytest.approx(sum(made["seconds"][p] for p in (*PHASES, "other")))
    assert made["solver"] == {"iterations": [], "n_support": [], "objective": [], "gap": [], "seconds": [1.0, 2.0]}
    assert len(made["memory"]["peak_rss_mib"]) == 1
    assert made["memory"]["peak_rss_mib"][0] > 10
    assert made["environment"]["numpy"] == np.__version__
    assert made["environment"]["mpi"] == "none"
    assert all(made["environment"][name] for name in ("python", "blas", "cpu", "package"))


def test_written_as_plain_json(made, tmp_path):
    def unknown(word):
        raise AssertionError(f"{word} is not JSON")

    report.write(tmp_path / "r.json", made)
    got = json.loads((tmp_path / "r.json").read_text(), parse_constant=unknown)
    assert got["metrics"] == {"mse": 0.25, "r2": None}
    assert got["grid"] == [{"sigma": 1.0, "validation_mse": None}]
    assert got["params"] == {"sigma": 0.5, "lambda": 1e-4}
    assert got["seconds"] == made["seconds"]


STARTS = """
import json
import time
time.sleep(0.2)
from cacore.run.launch import run
for _ in range(2):
    run(lambda comm: print(json.dumps(comm.totals()[1])), "test", argv=[])
"""


def test_total_begins_with_the_process():
    """Seconds before the ranks met are a phase of the first command, and of no other one in the same process."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI_", "SLURM_"))}
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", STARTS], env=kept, capture_output=True, text=True, check=True)
    first, second = map(json.loads, done.stdout.splitlines())
    assert 0.2 < first["start"] < sum(first.values()) < time.monotonic() - begun + 0.02
    assert "start" not in second


def test_not_written_leaves_the_old_one(tmp_path):
    (tmp_path / "r.json").write_text("old")
    with pytest.raises(TypeError):
        report.write(tmp_path / "r.json", {"a": object()})
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_arrays_and_numpy_numbers(tmp_path):
    report.write(tmp_path / "r", {1: np.array([[1, 2]]), "b": np.bool_(True), "f": np.float32(np.inf), "t": (1,)})
    assert json.loads((tmp_path / "r").read_text()) == {"1": [[1, 2]], "b": True, "f": None, "t": [1]}


def test_table(made, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    report.show({**made, "notes": ["an oracle"]})
    out = capsys.readouterr().out
    for words in (
        "bkrr2 on data.h5", "18,432 training, 2,208 test, 8 features", "2 of 10 to 12 rows", "sigma 0.5",
        "lambda 0.0001", "0.25", "nan", "an oracle",
    ):  # fmt: skip
        assert words in out


@pytest.mark.parametrize("metrics", ["metrics", "metrics_without_overlap"])
@pytest.mark.parametrize(("matrix", "classes", "said"), [
    ([[7, 1], [0, 90]], ["no", "perhaps yes"],
     ["true\\as no perhaps yes", "no 7 1", "perhaps yes 0 90", "no 0.875, perhaps yes 1.000"]),
    ([[98765432] * 4] * 4, None,
     ["true\\as 1 2 3 4", *[f"{k} 98765432 98765432 98765432 98765432" for k in (1, 2, 3, 4)],
      "1 0.250, 2 0.250, 3 0.250, 4 0.250"]),
    ((np.eye(10, dtype=int) * 987 + 13).tolist(), None,
     ["1 0.895, 2 0.895, 3 0.895, 4 0.895,", "5 0.895, 6 0.895, 7 0.895, 8 0.895,", "9 0.895, 10 0.895"]),
    ([[0] * 6, *[[k % 2, 0, 2, 0, 0, 1] for k in range(5)]], list("abcdef"),
     ["b 0.000, c 0.500, d 0.000, e 0.000,", "f 0.333"]),
    ((np.eye(300, dtype=int) * 5 + np.eye(300, dtype=int)[::-1] * (np.arange(300) == 7)).tolist(), None,
     ["300 classes: 0.833 to 1.000, median 1.000", "lowest: 293, 1, 2"]),
])  # fmt: skip
def test_a_confusion_matrix_in_80_columns(matrix, classes, said, metrics, made, capsys, monkeypatch):
    """Few classes: the matrix, a row per line; more: the recalls. No line is broken in two."""
    monkeypatch.setenv("COLUMNS", "80")
    report.show({**made, metrics: {"accuracy": 0.9, "confusion": matrix, "classes": classes}})
    lines = capsys.readouterr().out.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith(("confusion", "recalls")))
    begin = len(re.match(r"(confusion|recalls)( without overlap)? +", lines[first])[0])
    assert max(map(len, lines)) <= 80
    assert [" ".join(line[begin:].split()) for line in lines[first : first + len(said)] if line[begin:]] == said
    assert lines[first + len(said)][0] != " "  # the next line is another row


def test_classes_of_outliers_are_their_labels():
    """A one-class SVM reports no names: its labels are -1 and 1, not the numbers of the classes."""
    counts = {"confusion": [[3, 1], [2, 9]]}
    assert report.class_names(counts | {"outliers": 0.3}) == ["-1", "1"]
    assert report.class_names(counts) == ["1", "2"]
    assert report.class_names(counts | {"classes": ["no", "yes"]}) == ["no", "yes"]


@pytest.mark.parametrize(("value", "text"), [
    (0.045, "0.045"), (51_480.0, "51,500"), (96_310_000.0, "9.63e7"), (3.2e-5, "3.2e-5"), (1e-7, "1e-7"),
    (999.6, "1,000"),
    (-68_540.0, "-68,500"), (0.9862, "0.9862"), (0.99997, "0.99997"), (12.0, "12"), (0.0, "0"), (math.nan, "nan"),
])  # fmt: skip
def test_one_form_of_numbers(value, text):
    """Three significant digits, thousands separators, plain numbers before powers; more digits of a share near 1."""
    assert number(value) == text


# -- files -------------------------------------------------------------------------------------


def test_file_takes_its_place_at_the_end(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")
    with files.replacing(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == path.parent
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", [None, "old"])
def test_nothing_is_left_of_a_failure(tmp_path, error, old):
    path = tmp_path / "out.txt"
    if old:
        path.write_text(old)

    def write():
        with files.replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert [p.read_text() for p in tmp_path.iterdir()] == [old] * bool(old)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_permissions_are_those_of_a_new_file(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        with files.replacing(tmp_path / "out") as temporary:
            temporary.write_text("x")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == mode


def test_places_where_no_file_can_be(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="is a directory"):
        files.check_writable(tmp_path)
    with pytest.raises(InputError, match=r"none does not exist; create it"):
        files.check_writable(tmp_path / "none" / "out")
    files.check_writable(tmp_path / "out")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write anywhere
    with pytest.raises(InputError, match="cannot be written to"):
        files.check_writable(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
