"""The examples of pages, methods and classes, and the notebooks run as a reader would run them: `make pages-test`."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import run
from helpers.data import write_hdf5

pytestmark = pytest.mark.skipif("CAKERNELS_PAGES" not in os.environ, reason="examples of pages run in: make pages-test")
ROOT = Path(__file__).resolve().parent.parent.parent
METHODS, NOTEBOOKS = sorted(ROOT.glob("docs/methods/*.md")), sorted(ROOT.glob("examples/*.ipynb"))

# The rows that the examples of methods' pages begin with.
ROWS = """
import numpy as np

X = np.random.default_rng(0).normal(size=(400, 3))
y, labels = X.sum(axis=1), X[:, 0] > 0
"""

# Searches for a time try one candidate here, instead of as many as there is time for.
ONE_CANDIDATE = {r"--within \w+": "--within 1h --max-candidates 1", r"max_time=\d+": "max_time=3600, max_candidates=1"}


def each(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda path: path.name)


def blocks(page, kinds):
    """Its fenced blocks of these kinds, in order, as (kind, text)."""
    return re.findall(rf"^```({kinds})\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@each(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(
            ROOT / "docs" / f"{name}.md"
            for name in (
                "index",
                "tutorial",
                "front",
                "intervals",
                "onnx",
                "dropin",
                "explain",
                "quantiles",
                "kriging",
                "coming-from-sklearn",
                "coming-from-gpu",
                "coming-from-lightgbm",
            )
        ),
    ]
)
def test_examples_run(page, tmp_path):
    """A reader who goes through the page: what a block has defined or written is there in the next one."""
    lines = ["import subprocess"]
    for kind, text in blocks(page, "python|sh"):
        for found, one in ONE_CANDIDATE.items():
            text = re.sub(found, one, text)
        lines.append(text if kind == "python" else f"subprocess.run(['bash', '-euc', {text!r}], check=True)")
    assert len(lines) > 1
    file = tmp_path / "page.py"
    file.write_text("\n".join(lines))
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths, "PATH": programs},
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["python", "py"])
def test_rows_on_ranks_run(kind, mpiexec, tmp_path):
    """The page's program on two ranks; its blocks of kind `py` need packages that the tests do not install."""
    if kind == "py":
        for name in ("dask.array", "zarr"):
            pytest.importorskip(name)
    found = blocks(ROOT / "docs" / "rows-on-ranks.md", "python|py")
    wanted = [text for block, text in found if block == "python"][: None if kind == "python" else 1]
    wanted += [text for block, text in found if block == "py" == kind]
    assert len(wanted) == 3
    (tmp_path / "program.py").write_text("\n".join(wanted))
    done = mpiexec(2, tmp_path / "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def docs(monkeypatch):
    """The modules beside the pages can be imported."""
    monkeypatch.syspath_prepend(ROOT / "docs")


def test_pages_of_classes_are_whole(docs):
    """Each parameter of each estimator has a type or a text on its page, and none leads to another class."""
    pytest.importorskip("sphinx")
    pages = importlib.import_module("class_pages")
    for name in pages.estimators():
        shown = {one: entry for found in pages.grouped(name).values() for one, entry in found.items()}
        assert set(shown) == set(pages.estimators()[name]._get_param_names())
        for one, (kind, text) in shown.items():
            assert kind or "".join(text).strip(), f"{name}: {one}"
            assert not pages._is_reference(" ".join(text)), f"{name}: {one}"


def test_a_shared_description_stands_once(docs):
    """Parameters that a docstring describes together are together on the page, too."""
    pytest.importorskip("sphinx")
    pages = importlib.import_module("class_pages")
    kriging = pages.estimators()["Kriging"]
    lines = inspect.cleandoc(kriging.__doc__).splitlines()
    pages.whole(None, "class", "cakernels.Kriging", kriging, None, lines)
    page = "\n".join(lines)
    assert "range, sill, nugget : float or None, default None" in page
    assert page.count("variance of independent noise") == 1


@each(METHODS)
def test_methods_run(page, tmp_path, monkeypatch):
    """The commands and the Python of a method's page, on small files of the names that they use."""
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(ROWS, names)
    X, y, labels = names["X"], names["y"], names["labels"]
    for name, target in (("cadata.h5", y), ("ijcnn1.h5", np.where(labels, 1.0, -1.0))):
        write_hdf5(tmp_path / name, train=(X[:300], target[:300]), test=(X[300:], target[300:]))
    commands = re.findall(r"^    (?:mpiexec -n \d+ )?python -m ([\w.]+) (.*)$", page.read_text(), re.MULTILINE)
    python = blocks(page, "python")
    assert python or page.stem in ("bkrr3", "kkrr3")
    assert commands or page.stem == "partitioners"
    for program, words in commands:
        run(program, words.replace("--partitions 16", "--partitions 4").split())
    for _, text in python:
        exec(text, names)


@each(NOTEBOOKS)
def test_notebooks_run(page, python, tmp_path, monkeypatch):
    """In one process and in order, as a kernel would, but for what cells show; plain Python, so no kernel is needed."""
    cells = ["".join(one["source"]) for one in json.loads(page.read_text())["cells"] if one["cell_type"] == "code"]
    for text in cells:
        ast.parse(text)  # no magics
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # other tests run beside this one, and its matrices are small
    script = tmp_path / "notebook.py"
    # Agg shows nothing, and says so.
    quiet = ["import warnings", "warnings.filterwarnings('ignore', 'FigureCanvasAgg is non-interactive')"]
    script.write_text("\n\n".join([*quiet, *cells]))
    done = python(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
