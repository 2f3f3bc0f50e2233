"""Everything that the pages name exists: files, definitions, modules that are run; and their Python examples work."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import run
from helpers.data import write_hdf5

import asygcd.model as asygcd_model
import cakernels
import cakrr.part as cakrr_part
import casvm.model.model as casvm_model
import casvm.model.part as casvm_part
import casvm.model.quantiles as casvm_quantiles
import casvm.model.svr as casvm_svr
from cacore.io import layout
from cacore.probability.calibrator import CALIBRATOR
from partition.model import SHARED

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
METHODS = sorted(ROOT.glob("docs/methods/*.md"))
# Pages also name what make puts into build, which a fresh clone lacks.
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build"}
SUFFIXES = {".cff", ".md", ".py", ".sh", ".slurm", ".svg", ".toml", ".yaml"}


def each(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda path: path.name)


page = each(PAGES)

# The rows that the examples of methods' pages begin with.
ROWS = """
import numpy as np

X = np.random.default_rng(0).normal(size=(400, 3))
y, labels = X.sum(axis=1), X[:, 0] > 0
"""

# Searches for a time try one candidate here, instead of as many as there is time for.
ONE_CANDIDATE = {r"--within \w+": "--within 1h --max-candidates 1", r"max_time=\d+": "max_time=3600, max_candidates=1"}


def code(text):
    """Every word of a page's code: inline, in blocks, and indented."""
    blocks = re.findall(r"```.*?\n(.*?)```", text, re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    indented = re.findall(r"^    (.*)$", text, re.MULTILINE)
    return [word.strip(",;:()'\"") for part in (*blocks, *inline, *indented) for word in part.split()]


def named_files(path):
    """Files and folders of the repository that a page names in code or links to, as (name, where it should be)."""
    text = path.read_text()
    for word in code(text):
        name = word.split("::")[0]
        if ("/" in name and name.split("/")[0] in FOLDERS) or ("/" not in name and Path(name).suffix in SUFFIXES):
            yield word, ROOT / name
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        yield target, path.parent / target


def definitions(path):
    """Names that a module defines, if it exists; those of a class' body as Class.name."""
    names = set()
    if not path.exists():
        return names
    for node in ast.parse(path.read_text()).body:
        inside = [(f"{node.name}.", one) for one in node.body] if isinstance(node, ast.ClassDef) else []
        for prefix, one in [("", node), *inside]:
            if isinstance(one, ast.FunctionDef | ast.ClassDef):
                names.add(prefix + one.name)
            elif isinstance(one, ast.Assign | ast.AnnAssign):
                targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                names |= {prefix + target.id for target in targets if isinstance(target, ast.Name)}
    return names


@page
def test_files_exist(page):
    assert {word for word, path in named_files(page) if not path.exists()} == set()


@page
def test_definitions_exist(page):
    named = {tuple(word.split("::")) for word in code(page.read_text()) if "::" in word}
    assert {f"{file}::{name}" for file, name in named if name not in definitions(ROOT / file)} == set()


@page
def test_commands_exist(page, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    named = re.findall(r"python -m ([\w.]+)", page.read_text())
    for cell in re.findall(r"^\|([^|]*)\|", page.read_text(), re.MULTILINE):  # tables of commands
        named += re.findall(r"`((?:cakrr|casvm)\.\w+)`", cell)

    def exists(module):
        found = importlib.util.find_spec(module)
        return found and (not found.submodule_search_locations or importlib.util.find_spec(f"{module}.__main__"))

    assert {module for module in named if not exists(module)} == set()


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


def test_examples_of_classes_run(docs):
    """The example on the page of each estimator, after the rows that they share."""
    examples = importlib.import_module("class_examples")
    assert set(examples.EXAMPLES) == {
        name for name in cakernels.__all__ if hasattr(getattr(cakernels, name), "get_params")
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* end of (its|the) grid")
        for name, text in examples.EXAMPLES.items():
            names = {name: getattr(cakernels, name)}
            exec(examples.ROWS, names)
            exec(text.replace("max_time=60", "max_candidates=1"), names)
            assert "model" in names or "parts" in names


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


@each(METHODS)
def test_methods_are_described_alike(page):
    text = page.read_text()
    told = ("flops", "memory", "bytes sent", "Source", "one" if page.stem == "partitioners" else "When to use it")
    assert [word for word in told if word not in text] == []


def test_every_method_has_a_page():
    modules = [*ROOT.glob("cakrr/*.py"), *ROOT.glob("casvm/*.py")]
    methods = {path.stem for path in modules if path.stem != "predict" and "main(METHOD)" in path.read_text()}
    assert {page.stem for page in METHODS} == methods | {"asygcd", "smo", "partitioners"}
    text = (ROOT / "docs" / "methods.md").read_text()
    assert [page.stem for page in METHODS if f"methods/{page.stem}.md" not in text] == ["partitioners"]


def test_every_array_of_a_model_file_is_documented():
    text = (ROOT / "docs" / "architecture.md").read_text()
    layouts = [(SHARED, ""), (casvm_model.OWN, ""), (CALIBRATOR, ""), (casvm_part.PART, "parts/NNNNNN/"),
               (casvm_svr.PART, "parts/NNNNNN/"), (casvm_quantiles.ARRAYS, ""),
               (casvm_quantiles.QUANTILE_PART, "parts/NNNNNN/"),
               (cakrr_part.PART, "parts/NNNNNN/"), (cakrr_part.ARRAYS, ""),
               (asygcd_model.PART, "parts/000000/")]  # fmt: skip
    lines = [line for arrays, folder in layouts for line in layout.rows(arrays, folder)]
    assert len(lines) > 15
    for line in lines:
        assert line.removeprefix("| ") in text
