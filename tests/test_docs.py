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


# -- sizes of pages, and charts ----------------------------------------------------------------

# Pages of evidence: their numbers are what they are for.
EVIDENCE = {"records", "reproduced", "measurements", "kriging-evidence"}
MOST_WORDS, MOST_NUMBERS, MOST_TABLES = 2500, 150, 3
# Pages that are still larger: their words, numbers and tables before the first picture; these only fall.
LARGER = {
    "architecture": (5840, 150, 0),
    "data": (3940, 190, 11),
    "dropin": (1040, 80, 5),
    "intervals": (3640, 368, 0),
    "methods/smo": (1200, 45, 5),
    "methods/subset": (1990, 327, 9),
    "options": (5700, 259, 19),
    "probabilities": (1540, 151, 0),
    "quantiles": (1400, 225, 6),
    "scaling": (3190, 565, 11),
    "startup": (1410, 115, 4),
}


def sizes(path):
    """Words, numbers, and tables before the first picture of a page, without its blocks of code."""
    text = path.read_text()
    before = re.split(r"!\[|^```\{image\}", text, flags=re.MULTILINE)[0]
    prose = re.sub(r"^```.*?^```|^    [^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    plain = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", prose)
    numbers = re.findall(r"(?<![\w.])\.?\d[\d,.]*", plain)
    return len(prose.split()), len(numbers), len(re.findall(r"^\|[-| :]+\|$", before, re.MULTILINE))


def test_pages_are_short():
    pages = {str(path.relative_to(ROOT / "docs").with_suffix("")): path for path in ROOT.glob("docs/**/*.md")}
    assert set(LARGER) | EVIDENCE <= set(pages)
    larger = {}
    for name, path in pages.items():
        usual = (MOST_WORDS, MOST_NUMBERS, MOST_TABLES)
        limits = tuple(map(max, LARGER.get(name, usual), usual))
        if name not in EVIDENCE and any(size > limit for size, limit in zip(sizes(path), limits, strict=True)):
            larger[name] = (sizes(path), limits)
    assert not larger, f"words, numbers, tables before the first picture, and their limits: shorten or divide {larger}"
    small = [name for name, limits in LARGER.items() if all(
        size <= limit for size, limit in zip(sizes(pages[name]), (MOST_WORDS, MOST_NUMBERS, MOST_TABLES), strict=True)
    )]  # fmt: skip
    assert not small, f"take these pages, which are short enough now, out of LARGER: {small}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 900


@pytest.fixture
def draw_charts(monkeypatch):
    """The program that draws the charts of the benchmarks' page."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("draw_charts")


def test_charts_are_drawn_from_the_recorded_figures(draw_charts):
    page = " ".join((ROOT / "docs" / "benchmarks.md").read_text().split())
    for name, draw in draw_charts.KINDS.items():
        record = draw_charts.record(name)
        drawn = (draw_charts.FOLDER / f"{name}.svg").read_text()
        assert drawn == draw(record), f"run python docs/draw_charts.py: {name}.svg is not that of its figures"
        missing = [record[fact] for fact in ("date", "machine", "command") if record[fact] not in page]
        assert not missing, f"name these facts of {name}.json below its chart in docs/benchmarks.md: {missing}"


def test_charts_have_figures_of_the_tables(draw_charts):
    """Each recorded figure stands in the table that a chart's caption leads to."""
    docs = ROOT / "docs"
    tables = {"error": docs / "measurements.md", "svc": docs / "records.md", "weak": docs / "scaling.md"}
    for name, path in tables.items():
        lines = "\n".join(line for line in path.read_text().splitlines() if line.startswith("|"))
        table = set(re.findall(r"(?<![\d.])\d*\.?\d+", lines.replace(" 0.", " .")))
        written = {float(word) for word in table}
        record = draw_charts.record(name)
        lists = [figures for row in record["rows"] for figures in row.values() if isinstance(figures, list)]
        figures = [figure for figures in lists for figure in figures if figure is not None]
        assert len(figures) >= 20
        missing = [figure for figure in figures if figure not in written]
        assert not missing, f"{name}.json has figures that {path.name} has not: {missing}"
