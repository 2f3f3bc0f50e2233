"""Rules of the house that are counted: sizes of modules, names of classes, first words of docstrings, clocks."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("asygcd", "cacore", "cakernels", "cakriging", "cakrr", "casvm", "partition")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
ALL = SOURCES + sorted(path for name in ("benchmarks", "tests") for path in (ROOT / name).rglob("*.py"))
ORPHANED = re.compile(r"(Of|Those|What|Which|Whether|As|Likewise|Theirs|Anything)\b")


@pytest.fixture(scope="module")
def nodes():
    """Definitions of the packages with the files that they stand in."""
    assert len(SOURCES) > 400
    return [(path.relative_to(ROOT), node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))]


def test_modules_have_one_idea():
    assert {str(path.relative_to(ROOT)): n for path in ALL if (n := len(path.read_text().splitlines())) > 800} == {}


def test_a_class_name_is_borne_by_one_class(nodes):
    found = defaultdict(list)
    for path, node in nodes:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found[node.name].append(str(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_shapes_and_records_have_types():
    words = re.compile(r"\bAny\b")
    assert sum(bool(words.search(line)) for path in SOURCES for line in path.read_text().splitlines()) <= 900


def test_docstrings_begin_with_what_a_thing_is(nodes):
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    texts = [(str(path), text) for path, node in nodes if isinstance(node, kinds) and (text := ast.get_docstring(node))]
    assert len(texts) > 3000
    assert [(path, text.splitlines()[0]) for path, text in texts if ORPHANED.match(text)] == []


def test_seconds_of_solvers_stand_still_while_numba_compiles():
    """The one file that may read another clock asks how long ago it wrote a checkpoint."""
    solvers = [
        path
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] in ("asygcd", "cakriging", "cakrr", "casvm", "partition")
    ]
    other = re.compile(r"\b(perf_counter|monotonic|time)\(")
    found = [str(path.relative_to(ROOT)) for path in solvers if other.search(path.read_text())]
    assert found == ["cakrr/iterative/solver.py"]
