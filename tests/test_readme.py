"""Every line of the README's commands runs, in order, as a reader would type it.

`make pages-test` runs them on few rows, in the environment of the tests. `make readme` runs them as they are printed,
in a copy of the repository and with a new virtual environment that has only what the README installs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from sklearn.datasets import make_friedman1

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()
HOUSING = Path(os.environ.get("CAKERNELS_DATA") or ROOT.parent / "shared" / "data") / "cal_housing.csv.bz2"
COLUMNS = "longitude,latitude,age,rooms,bedrooms,population,households,income,value"
VARIABLES = ("PYTHON", "VIRTUAL_ENV", "NUMBA_", "OMP_", "OPENBLAS_", "MPI_", "OMPI_", "PMI", "CAKERNELS_")

# Lines that do not run, and why; those with True run from scratch.
ELSEWHERE = {
    "pip install '.[mpi,plot]'": (True, "it installs: needs the network"),
    "make demo": (True, "it installs: needs the network"),
    "mpiexec -n 2 python -m cacore.info": (True, "it measures the machine; tests/test_info.py runs it"),
    "make test": (False, "it runs these tests"),
    "jobs/submit.sh --nodes 64 --time 04:00:00 large RUN casvm.cpsvm classes.h5 --C 32 --gamma 0.5": (
        False, "it needs a queue; tests/test_jobs.py submits to stand-ins"
    ),
}  # fmt: skip
# What replaces parts of a line where it runs on few rows.
FEWER = {
    "python examples/housing.py": ":",  # which downloads; the test has put generated files there
    r"--within \w+": "--within 1h --max-candidates 1",  # one candidate, instead of as many as there is time for
    "python examples/rows.py": "python examples/rows.py --rows 500",
    "--split 18000": "--split 400",
    "--partitions 16": "--partitions 4",
}


def commands():
    """Lines of the indented blocks, without comments; those that go on in the next line in one."""
    plain = re.sub(r"^```.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE).replace(" \\\n", " ")
    lines = re.findall(r"^ {4}(\S.*)$", plain, re.MULTILINE)
    return [re.sub(r"  +", " ", re.sub(r"\s+#.*", "", line)) for line in lines]


def script(lines):
    """Text for bash, which shows each line and ends at the first one that fails."""
    return "\n".join(["set -eux", *lines])


def left(folder):
    """Names of the files that a reader has at the end."""
    return {path.name for path in folder.iterdir() if path.is_file()}


MADE = {"cal_housing.model.h5", "search.png", "predictions.csv", "model.h5", "report.json", "svm.h5"}


def test_lines_that_do_not_run_are_there():
    assert set(ELSEWHERE) - set(commands()) == set()


def test_substitutions_are_needed():
    assert [old for old in FEWER if not re.search(old, "\n".join(commands()))] == []


@pytest.mark.skipif("CAKERNELS_PAGES" not in os.environ, reason="examples of pages run in: make pages-test")
def test_every_line_runs_on_few_rows(elsewhere):
    for name in ("examples", "jobs"):
        (elsewhere / name).symlink_to(ROOT / name)
    X, y = make_friedman1(200, n_features=8, random_state=0)
    for name, table in (("cal_housing.csv.bz2", np.c_[X, y]), ("new_houses.csv", X[:20])):
        names = ",".join(COLUMNS.split(",")[: table.shape[1]])
        np.savetxt(name, table, delimiter=",", header=names, comments="")
    lines = [line for line in commands() if line not in ELSEWHERE]
    assert len(lines) >= 10
    for old, new in FEWER.items():
        lines = [re.sub(old, new, line) for line in lines]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script(lines)], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=1200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert left(elsewhere) >= MADE
    assert len((elsewhere / "predictions.csv").read_text().splitlines()) == 101


@pytest.mark.skipif("CAKERNELS_README" not in os.environ, reason="it installs, and takes minutes: make readme does it")
def test_every_line_runs_from_scratch(tmp_path):
    """On two cores, with the README's Python after its commands; real data are copied where they are there."""
    repository, environment = tmp_path / "cakernels", tmp_path / "venv"
    ignored = shutil.ignore_patterns(".venv*", ".git", "build", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, repository, ignore=ignored)
    venv.create(environment, with_pip=True)
    lines = [line for line in commands() if ELSEWHERE.get(line, (True,))[0]]
    if HOUSING.exists():
        at = lines.index("python examples/housing.py")
        lines[at] = f"cp {HOUSING} . && bzcat {HOUSING.name} | head -101 | cut -d, -f1-8 > new_houses.csv"
    python = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    lines.append(f"python - <<'END'\n{''.join(python)}\nEND")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
    others = [folder for folder in kept["PATH"].split(os.pathsep) if folder != str(Path(sys.executable).parent)]
    path = os.pathsep.join([str(environment / "bin"), *others])
    cores = sorted(os.sched_getaffinity(0))[:2]
    done = subprocess.run(
        ["taskset", "-c", ",".join(map(str, cores)), "bash", "-c", script(lines)], cwd=repository,
        env={**kept, "PATH": path}, capture_output=True, text=True, timeout=3600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert left(repository) >= MADE


@pytest.fixture
def housing(elsewhere, monkeypatch):
    """The example, in an empty folder."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import housing

    return housing


def test_housing_is_the_original(housing, monkeypatch):
    """scikit-learn's averages, turned back into the counts that they come from; new rows lack the value."""
    rng, n = np.random.default_rng(0), 2 * housing.NEW
    place, counts = rng.uniform(30, 40, (n, 2)).round(2), rng.integers(1, 9_000, (n, 5)).astype(float)
    income, value = rng.uniform(0, 15, n).round(4), rng.integers(14_999, 500_001, n).astype(float)
    (longitude, latitude), (age, rooms, bedrooms, population, households) = place.T, counts.T
    averages = [income, age, rooms / households, bedrooms / households, population, population / households]
    X = np.column_stack([*averages, latitude, longitude])
    monkeypatch.setattr(housing, "fetch_california_housing", lambda return_X_y: (X, value / 1e5))
    housing.main()
    table = np.column_stack([place, counts, income, value])
    np.testing.assert_array_equal(np.loadtxt("cal_housing.csv.bz2", delimiter=",", skiprows=1), table)
    np.testing.assert_array_equal(np.loadtxt("new_houses.csv", delimiter=",", skiprows=1), table[::2, :-1])


def test_housing_without_a_network(housing, monkeypatch):
    def fetch(return_X_y):
        raise URLError("no route to host")

    monkeypatch.setattr(housing, "fetch_california_housing", fetch)
    with pytest.raises(SystemExit, match=r"cannot be downloaded .*no route to host"):
        housing.main()
