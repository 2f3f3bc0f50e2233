"""The built pages and pages of runs: `make pages-test`, or by hand, after `make docs`,

CAKERNELS_PAGES=build/docs python -m pytest tests/pages
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from helpers.commands import run
from helpers.data import saddle, write_csv, write_hdf5

pytestmark = pytest.mark.skipif("CAKERNELS_PAGES" not in os.environ, reason="no built pages: make pages-test")
FOLDER = Path(os.environ.get("CAKERNELS_PAGES", ".")).resolve()
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_browser = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="no browser: install chromium and pip install playwright",
)


class Links(HTMLParser):
    """Targets, identifiers, and what a browser loads, of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()
        self.without_text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.names |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and "href" in found:
            self.targets.append(found["href"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(found["href"])
        elif tag in ("img", "script", "iframe", "source") and found.get("src"):
            self.loaded.append(found["src"])
        decorative = "_thumb" in (found.get("src") or "")  # of the gallery, beside their titles
        if tag == "img" and not (found.get("alt") or (decorative and "alt" in found)):
            self.without_text.append(str(found.get("src")))

    handle_startendtag = handle_starttag


@cache
def parsed(file: Path) -> Links:
    return Links(file.read_text(encoding="utf-8"))


def pages() -> list[Path]:
    found = sorted(page for page in FOLDER.rglob("*.html") if "_static" not in page.parts)
    assert len(found) > 50
    return found


def test_links_lead_somewhere():
    wrong = []
    for page in pages():
        for target in parsed(page).targets:
            parts = urlsplit(target)
            if parts.scheme or target == "#":
                continue
            file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not file.exists() or (
                parts.fragment and file.suffix == ".html" and unquote(parts.fragment) not in parsed(file).names
            ):
                wrong.append(f"{page.relative_to(FOLDER)}: {target}")
    assert wrong == []


def test_everything_that_is_loaded_is_beside_the_pages():
    wrong = []
    for page in pages():
        for target in parsed(page).loaded:
            parts = urlsplit(target)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc or not (page.parent / unquote(parts.path)).exists():
                wrong.append(f"{page.relative_to(FOLDER)}: {target}")
    assert wrong == []


def test_pictures_have_texts():
    assert [f"{page.name}: {one}" for page in pages() for one in parsed(page).without_text] == []


@pytest.mark.parametrize("target", [
    "tutorial.html", "options.html#c-and-gamma", "hpc.html#queues", "options.html#checkpoints", "intervals.html",
    "contributing.html#add-a-kernel-one-file", "methods/bkrr2.html",
])  # fmt: skip
def test_common_questions_are_one_click_away(target):
    """From the landing page: a CSV file, tuning, Slurm, resuming, intervals, a kernel, what BKRR2 sends."""
    assert target in parsed(FOLDER / "index.html").targets


def test_pages_are_small():
    sizes = {str(page.relative_to(FOLDER)): page.stat().st_size for page in pages()}
    assert {name: size for name, size in sizes.items() if size > 1_000_000} == {}


def test_the_gallery_is_whole():
    """Each script has its page, which ends in a picture."""
    scripts = sorted((Path(__file__).resolve().parents[2] / "examples" / "gallery").glob("plot_*.py"))
    assert len(scripts) >= 15
    made = {script.stem: FOLDER / "gallery" / f"{script.stem}.html" for script in scripts}
    assert [name for name, page in made.items() if f"sphx_glr_{name}_001.png" not in page.read_text()] == []


@pytest.mark.parametrize("word", ["overfit", "hyperparamet", "regular", "bandwidth", "limit"])
def test_the_search_finds_a_page(word):
    """Words as the search knows them, without their endings; guides are found, and pages of evidence are not."""
    index = json.loads(
        (FOLDER / "searchindex.js").read_text().removeprefix("Search.setIndex(").rstrip().removesuffix(")")
    )
    places = index["terms"][word]
    names = {index["docnames"][place] for place in ([places] if isinstance(places, int) else places)}
    assert names & {"tips", "limits"}
    assert not names & {"architecture", "changelog", "measurements", "records"}


# -- in a browser ------------------------------------------------------------------------------


def looked_at(python, files):
    """Faults that a browser finds, by page; pages without faults are left out."""
    done = python(Path(__file__).with_name("look.py"), CHROMIUM, *map(str, files))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == len(files)
    return {page: wrong for page, wrong in found.items() if wrong}


@in_browser
def test_pages_in_a_browser(python):
    assert looked_at(python, pages()) == {}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Pages of runs of the three families on one rank and on four, and of all of them side by side."""
    folder = tmp_path_factory.mktemp("runs")
    X, y = saddle(240)
    write_csv(folder / "values.csv", X, y)
    write_hdf5(folder / "classes.h5", train=(X[:200], y[:200] > 0), test=(X[200:], y[200:] > 0))
    commands = {
        "krr": ["cakrr.bkrr2", "values.csv", "--partitions", "4", "--sigma", "1,2", "--lambda", "1e-4,1e-2", "--metric",
                "diagonal", "--metric-rounds", "1"],
        "svm": ["casvm.cpsvm", "classes.h5", "--partitions", "4", "--C", "1,10", "--gamma", "0.1,1", "--probability"],
        "gcd": ["asygcd", "classes.h5", "--C", "1", "--gamma", "0.5", "--threads", "1"],
    }  # fmt: skip
    return folder, commands


@in_browser
def test_pages_of_runs_in_a_browser(runs, python, mpiexec, monkeypatch):
    folder, commands = runs
    monkeypatch.chdir(folder)
    names = []
    for name, (program, data, *words) in commands.items():
        for ranks in (1, 4) if name != "gcd" else (1,):
            made = f"{name}{ranks}"
            output = [data, *words, "--quiet", "--report", f"{made}.json", "--html", f"{made}.html"]
            if ranks == 1:
                run(program, output)
            else:
                done = mpiexec(ranks, "-m", program, *output)
                assert done.returncode == 0, done.stderr
            names.append(made)
    run("cakernels", ["report", *(f"{name}.json" for name in names), "-o", "all.html"])
    files = [folder / f"{name}.html" for name in (*names, "all")]
    assert looked_at(python, files) == {}
    assert max(file.stat().st_size for file in files) < 1_500_000
