"""Everything that the pages name exists: files, definitions, modules that are run; and their Python examples work."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

import asygcd.asygcd_model as asygcd_model
import cakrr.ridge_predictor as cakrr_part
import casvm.model.part_svm as casvm_part
import casvm.model.quantile_model as casvm_quantiles
import casvm.model.svm_model as casvm_model
import casvm.model.svr_model as casvm_svr
from cacore.io import model_file
from cacore.probability.calibrator import CALIBRATOR
from partition.parts_model import SHARED

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
METHODS = sorted(ROOT.glob("docs/methods/*.md"))
# Pages also name what make puts into build, which a fresh clone lacks.
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build"}
SUFFIXES = {".cff", ".md", ".py", ".sh", ".slurm", ".svg", ".toml", ".yaml"}


def each(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda path: path.name)


page = each(PAGES)


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
    missing = {word for word, path in named_files(page) if not path.exists()}
    assert not missing, f"{page.name} names files that are not there; say where they are now: {missing}"


@page
def test_definitions_exist(page):
    named = {tuple(word.split("::")) for word in code(page.read_text()) if "::" in word}
    missing = {f"{file}::{name}" for file, name in named if name not in definitions(ROOT / file)}
    assert not missing, f"{page.name} names what those files do not define; say where it is now: {missing}"


@page
def test_commands_exist(page, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    named = re.findall(r"python -m ([\w.]+)", page.read_text())
    for cell in re.findall(r"^\|([^|]*)\|", page.read_text(), re.MULTILINE):  # tables of commands
        named += re.findall(r"`((?:cakrr|casvm)\.\w+)`", cell)

    def exists(module):
        found = importlib.util.find_spec(module)
        return found and (not found.submodule_search_locations or importlib.util.find_spec(f"{module}.__main__"))

    missing = {module for module in named if not exists(module)}
    assert not missing, f"{page.name} runs modules that are not there; give their names of today: {missing}"


@each(METHODS)
def test_methods_are_described_alike(page):
    text = page.read_text()
    told = ("flops", "memory", "bytes sent", "Source", "one" if page.stem == "partitioners" else "When to use it")
    missing = [word for word in told if word not in text]
    assert not missing, f"{page.name}: say these of the method as well, as the other pages do: {missing}"


def test_every_method_has_a_page():
    modules = [*ROOT.glob("cakrr/*.py"), *ROOT.glob("casvm/*.py")]
    methods = {path.stem for path in modules if path.stem != "predict" and "main(METHOD)" in path.read_text()}
    different = {page.stem for page in METHODS} ^ (methods | {"asygcd", "smo", "partitioners"})
    assert not different, f"write docs/methods/NAME.md for each method, and remove pages of none: {different}"
    text = (ROOT / "docs" / "methods.md").read_text()
    unlisted = {page.stem for page in METHODS if f"methods/{page.stem}.md" not in text} - {"partitioners"}
    assert not unlisted, f"link these pages in docs/methods.md: {unlisted}"


def test_every_array_of_a_model_file_is_documented():
    text = (ROOT / "docs" / "architecture.md").read_text()
    layouts = [(SHARED, ""), (casvm_model.OWN, ""), (CALIBRATOR, ""), (casvm_part.PART, "parts/NNNNNN/"),
               (casvm_svr.PART, "parts/NNNNNN/"), (casvm_quantiles.ARRAYS, ""),
               (casvm_quantiles.QUANTILE_PART, "parts/NNNNNN/"),
               (cakrr_part.PART, "parts/NNNNNN/"), (cakrr_part.ARRAYS, ""),
               (asygcd_model.PART, "parts/000000/")]  # fmt: skip
    lines = [line for arrays, folder in layouts for line in model_file.rows(arrays, folder)]
    assert len(lines) > 15
    missing = [line for line in lines if line.removeprefix("| ") not in text]
    assert not missing, f"put these rows into the table of a model file in docs/architecture.md: {missing}"
