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

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()
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


def offline(lines, folder, n):
    """The lines with a table of n rows like that of the diamonds in place of the download."""
    path = folder / "downloaded.csv"
    rng = np.random.default_rng(0)
    carat, cut, color = rng.lognormal(-0.4, 0.5, n).round(2), rng.choice(["Fair", "Ideal"], n), rng.choice([*"DEF"], n)
    price = np.rint(4_000 * carat**1.7 * np.where(cut == "Fair", 0.8, 1.0) + 1.0)
    rows = zip(range(1, n + 1), carat, cut, color, price.astype(int), (6.4 * carat ** (1 / 3)).round(2), strict=True)
    path.write_text("rownames,carat,cut,color,price,x\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    example = "import sys; sys.path.insert(0, 'examples'); import diamonds"
    line = f'python -c "{example}; diamonds.URL = {path.as_uri()!r}; diamonds.main()"'
    return [line if command == DOWNLOAD else command for command in lines]


DOWNLOAD = "python examples/diamonds.py"
MADE = {"diamonds.model.h5", "search.png", "predictions.csv", "model.h5", "report.json", "svm.h5"}


def test_lines_that_do_not_run_are_there():
    assert set(ELSEWHERE) - set(commands()) == set()


def test_substitutions_are_needed():
    assert [old for old in FEWER if not re.search(old, "\n".join(commands()))] == []


@pytest.mark.skipif("CAKERNELS_PAGES" not in os.environ, reason="examples of pages run in: make pages-test")
def test_every_line_runs_on_few_rows(elsewhere):
    for name in ("examples", "jobs"):
        (elsewhere / name).symlink_to(ROOT / name)
    lines = offline([line for line in commands() if line not in ELSEWHERE], elsewhere, 300)
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
    """On two cores, with the README's Python after its commands, and without the download."""
    repository, environment = tmp_path / "cakernels", tmp_path / "venv"
    ignored = shutil.ignore_patterns(".venv*", ".git", "build", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, repository, ignore=ignored)
    venv.create(environment, with_pip=True)
    lines = offline([line for line in commands() if ELSEWHERE.get(line, (True,))[0]], tmp_path, 20_000)
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
def diamonds(elsewhere, monkeypatch):
    """The example, in an empty folder."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import diamonds

    return diamonds


def test_new_diamonds_have_no_price(diamonds, elsewhere, monkeypatch):
    offline([], elsewhere, 2 * diamonds.NEW + 5)
    monkeypatch.setattr(diamonds, "URL", (elsewhere / "downloaded.csv").as_uri())
    diamonds.main()
    whole, rows, new = (
        (elsewhere / name).read_text().splitlines() for name in ("downloaded.csv", "diamonds.csv", "new_diamonds.csv")
    )
    assert rows == [whole[0], *whole[2:201:2], *whole[201:]]
    assert new == [",".join(line.split(",")[:4] + line.split(",")[5:]) for line in [whole[0], *whole[1:201:2]]]


def test_diamonds_without_a_network(diamonds, elsewhere, monkeypatch):
    monkeypatch.setattr(diamonds, "URL", (elsewhere / "nowhere.csv").as_uri())
    with pytest.raises(SystemExit, match=r"cannot be downloaded .*; take any CSV file with a target"):
        diamonds.main()
