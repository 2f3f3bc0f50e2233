"""Rules of CONTRIBUTING, under "Style", that are counted: sizes, names, signatures, imports, docstrings, clocks."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from helpers.tuned import CONSTANTS
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from benchmarks.code_size import PACKAGES, code_lines

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
ALL = SOURCES + sorted(path for name in ("benchmarks", "tests") for path in (ROOT / name).rglob("*.py"))
ORPHANED = re.compile(r"(Of|Those|What|Which|Whether|As|Likewise|Theirs|Anything)\b")


# Limits of today: each may be lowered, and none is raised.
CODE_LINES = 45_105
ANY_LINES = 660
LONG_SIGNATURES = 4  # functions outside classes with more than 8 parameters
PATCHES = 96  # in tests

BARE = {"one", "found", "some", "own", "told", "kept", "given", "judged", "left", "known"}

SHARED = {"__init__", "__main__", "command", "options", "estimators", "predict"}  # names of files that packages share


@pytest.fixture(scope="module")
def nodes():
    """Definitions of the packages with the files that they stand in."""
    return [(path.relative_to(ROOT), node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))]


def named(paths):
    """Paths below the root, as text."""
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def test_a_module_has_at_most_800_lines():
    lengths = {path: len(path.read_text().splitlines()) for path in ALL}
    too_long = named(path for path, lines in lengths.items() if lines > 800)
    assert not too_long, f"split off what is an idea of its own: {too_long}"


def test_packages_have_few_files():
    assert 250 < len(SOURCES) <= 320, f"{len(SOURCES)} files: put a new idea into one file, or into one that is there"


def test_packages_have_few_lines_of_code():
    lines = sum(code_lines(path.read_text()) for path in SOURCES)
    assert lines <= CODE_LINES, (
        f"{lines:,} lines, and {CODE_LINES:,} are allowed: look for what is written twice, for layers that only pass "
        "on, and for what a library does (python -m benchmarks.code_size)"
    )


def test_file_names_are_unique():
    paths = defaultdict(list)
    for path in SOURCES:
        paths[path.stem].append(path)
    shared = {name: named(same) for name, same in paths.items() if len(same) > 1 and name not in SHARED}
    # Commands have the names of their methods, and stand at the top of their package.
    shared = {name: same for name, same in shared.items() if sum(path.count("/") > 1 for path in same) > 1}
    assert not shared, f"name one of them by what it holds: {shared}"


def test_a_class_name_belongs_to_one_class(nodes):
    places = defaultdict(list)
    for path, node in nodes:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            places[node.name].append(str(path))
    shared = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert not shared, f"name one of them by what it holds: {shared}"


def test_functions_have_few_parameters(nodes):
    """Outside classes, and outside compiled code, which takes arrays one by one."""
    methods = {id(inner) for _, node in nodes if isinstance(node, ast.ClassDef) for inner in node.body}
    long = []
    for path, node in nodes:
        if isinstance(node, ast.FunctionDef) and id(node) not in methods:
            parameters = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
            compiled = any("njit" in ast.unparse(decorator) for decorator in node.decorator_list)
            if parameters > 8 and not compiled:
                long.append(f"{path}:{node.lineno} {node.name} {parameters}")
    assert len(long) <= LONG_SIGNATURES, f"pass what belongs together as one record: {long}"


def attributes(node):
    """Names of a class' fields and of what its methods set on `self`; fitted ones end with an underscore."""
    fields = {inner.target.id for inner in node.body if isinstance(inner, ast.AnnAssign)}
    assigned = {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self"
    }
    return {name for name in fields | assigned if not name.endswith("_")}


def test_classes_have_at_most_25_attributes(nodes):
    sizes = {
        f"{path}:{node.lineno} {node.name}": len(attributes(node))
        for path, node in nodes
        if isinstance(node, ast.ClassDef)
    }
    large = {name: size for name, size in sizes.items() if size > 25}
    assert not large, f"make a class of those that are used together: {large}"


def imported(path, modules):
    """Modules of the packages that a module imports, for annotations and inside functions as well."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            whole = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            names |= {full if full in modules else node.module for full in whole.values()}
    return names & modules


def test_imports_go_in_no_circle():
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES}
    names = sorted(paths)
    number = {name: i for i, name in enumerate(names)}
    pairs = [(number[a], number[b]) for a in names for b in imported(paths[a], set(names)) if a != b]
    graph = csr_matrix((np.ones(len(pairs)), np.transpose(pairs)), shape=(len(names), len(names)))
    _, labels = connected_components(graph, connection="strong")
    members = [[names[i] for i in np.flatnonzero(labels == label)] for label in np.unique(labels)]
    circles = [group for group in members if len(group) > 1]
    assert not circles, f"move what both need to the one that the other imports: {circles}"


def test_shapes_and_records_have_types():
    words = re.compile(r"\bAny\b")
    lines = sum(bool(words.search(line)) for path in SOURCES for line in path.read_text().splitlines())
    assert lines <= ANY_LINES, f"{lines} lines with Any: name the type, or use object where nothing is assumed"


def test_docstrings_begin_with_what_a_thing_is(nodes):
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    texts = [(str(path), text) for path, node in nodes if isinstance(node, kinds) and (text := ast.get_docstring(node))]
    assert len(texts) > 3000
    orphaned = [(path, text.splitlines()[0]) for path, text in texts if ORPHANED.match(text)]
    assert not orphaned, f"begin with a noun phrase, or with a verb that says what is done: {orphaned}"


def bound(node):
    """Name that a node gives to a function, a parameter or a variable, without underscores at its ends; or ""."""
    if isinstance(node, ast.FunctionDef):
        name = node.name
    elif isinstance(node, ast.arg):
        name = node.arg
    else:
        name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""
    return name.strip("_")


def test_names_are_nouns_that_say_what_they_hold(nodes):
    bare = [f"{path}:{node.lineno} {bound(node)}" for path, node in nodes if bound(node) in BARE]
    assert not bare, f"name by a noun what these hold (solution, results, own_rows): {bare}"


def test_seconds_of_solvers_stand_still_while_numba_compiles():
    """The one file that may read another clock asks how long ago it wrote a checkpoint."""
    families = ("asygcd", "cakriging", "cakrr", "casvm", "partition")
    solvers = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in families]
    other = re.compile(r"\b(perf_counter|monotonic|time)\(")
    clocks = named(path for path in solvers if other.search(path.read_text()))
    assert not clocks, f"use cacore.machine.clock.working_time: {clocks}"


def test_few_tests_patch_the_packages():
    call = "monkeypatch." + "setattr"
    patches = [
        path for path in (ROOT / "tests").rglob("*.py") for line in path.read_text().splitlines() if call in line
    ]
    assert len(patches) <= PATCHES, (
        f"{len(patches)} lines with {call}, and {PATCHES} are allowed: use data or a parameter that reaches the code, "
        "a field that shows it, or the fixtures tuned, recorded and forbidden of tests/conftest.py"
    )


def test_constants_that_tests_set_exist():
    """Where `tests/helpers/tuned.py` says that they are: the name is assigned, or defined, in that module."""
    gone = []
    for name, path in CONSTANTS.items():
        parts = path.split(".")
        files = [ROOT.joinpath(*parts[:length]).with_suffix(".py") for length in range(1, len(parts))]
        files = [file for file in files if file.is_file()]
        word = parts[len(files[-1].relative_to(ROOT).parts)] if files else ""
        defined = re.compile(rf"^(?:def |class |.*, )?{word}\b|^(?:from .* )?import .*\b{word}\b", re.MULTILINE)
        if parts[0] in PACKAGES and not (files and defined.search(files[-1].read_text())):
            gone.append(f"{name}: {path}")
    assert not gone, f"say in tests/helpers/tuned.py where these are now: {gone}"
