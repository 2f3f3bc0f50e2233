"""The page of a run: one file, whole, escaped, without a network, for every family and for several runs."""

from __future__ import annotations

import copy
import html
import json
import re
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.commands import run
from helpers.data import saddle, write_csv, write_hdf5

from cacore.errors import InputError
from cacore.run import figures, page
from cacore.run import page as sections
from cacore.run import report as saved_report
from cacore.run.page import Markup, element
from cakernels import RunPage

to_rgba = pytest.importorskip("matplotlib.colors").to_rgba
VOID = {"meta"}
LINKS = {"src", "href", "xlink:href", "srcset", "data", "action"}


class Page(HTMLParser):
    """Checks that every element is closed in its turn; keeps titles, headings, texts and links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.links: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        named = [value for name, value in attributes if name in LINKS]
        self.links += [value for value in named if not value.startswith(("#", "data:image/png;"))]
        assert not any(name.startswith("on") for name, _ in attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def checked(file: Path) -> Page:
    """A page that is whole, small and without a network; images are in it."""
    text = file.read_text()
    assert len(text.encode()) < 1_500_000
    assert re.findall(r"url\((?!#)", text) == []
    assert "@import" not in text
    words = re.sub('"data:image/png;base64,[^"]*"', '""', text).replace('"', " ").split()
    assert {word for word in words if "//" in word} <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "default-src &#x27;none&#x27;" in text
    found = Page(text)
    assert found.links == []
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    return found


def test_all_but_markup_is_escaped():
    made = element("p", "<b>", Markup("<i>x</i>"), title='"a" & b', cls="one", y=0.5, none=None, font_size=3)
    assert made == '<p title="&quot;a&quot; &amp; b" class="one" y="0.5" font-size="3">&lt;b&gt;<i>x</i></p>'


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A folder with the report and the page of a run of each family."""
    folder = tmp_path_factory.mktemp("pages")
    X, y = saddle(160)
    names = ["<script>alert(1)</script>", 'b"', "&amp;"]
    write_csv(folder / "values.csv", X, y, names=names, target="y")
    write_hdf5(folder / "classes.h5", train=(X[:120], y[:120] > 0), test=(X[120:], y[120:] > 0))
    commands = {
        "krr": ("cakrr.bkrr2", "values.csv", "--partitions 3 --sigma 1,2 --lambda 1e-3,1e-2 --metric diagonal "
                "--metric-rounds 1"),
        "svm": ("casvm.cpsvm", "classes.h5", "--partitions 2 --C 1,10 --gamma 0.1,1 --cv 2 --probability"),
        "gcd": ("asygcd", "classes.h5", "--C 1 --gamma 0.5 --threads 1"),
    }  # fmt: skip
    for name, (program, data, words) in commands.items():
        outputs = ["--report", folder / f"{name}.json", "--html", folder / f"{name}.html", "--quiet"]
        run(program, [folder / data, *words.split(), *outputs])
    return folder


@pytest.mark.parametrize(("name", "sections"), [
    ("krr", ["Summary", "Warnings and remedies", "Settings compared", "Parts", "Time", "Features", "Environment"]),
    ("svm", ["Summary", "Predictions", "Warnings and remedies", "Settings compared", "Parts", "Time", "Environment"]),
    ("gcd", ["Summary", "Predictions", "Time", "Environment"]),
])  # fmt: skip
def test_page_of_a_family(name, sections, pages):
    found = checked(pages / f"{name}.html")
    assert [one for one in found.texts["h2"] if one != "Warnings and remedies"] == [
        one for one in sections if one != "Warnings and remedies"
    ]
    report = json.loads((pages / f"{name}.json").read_text())
    notes = found.texts.get("li", [])
    assert notes == report["notes"]
    assert found.texts["h1"] == [f"{report['method']} on {Path(report['data']['path']).name}"]


@pytest.mark.parametrize("words", [True, False])
def test_page_of_a_search_leads_with_model_and_scores(words, tmp_path, monkeypatch):
    """Then residuals or confusion by name, of held-out or of test rows; no parts or bytes on one rank."""
    monkeypatch.chdir(tmp_path)
    X, y = saddle(160)
    y = np.where(y > 0, "<b>yes", "no") if words else y
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y)
    frame[:120].to_csv("train.csv", index=False)
    frame[120:].to_csv("test.csv", index=False)
    few = ["--max-candidates", "1", "--within", "1000h", "--quiet", "--html", "page.html", "--report", "r.json"]
    for test in ([], ["--test", "test.csv"]):
        run("cakernels", ["fit", "train.csv", *few, *test])
        found, report = checked(tmp_path / "page.html"), json.loads((tmp_path / "r.json").read_text())
        assert found.texts["h2"][:2] == ["Model", "Predictions"]
        assert not {"Parts", "Bytes sent"} & set(found.texts["h2"])
        assert "120" in found.texts["b"]
        assert "rows used of 120" in found.texts["div"]
        assert {"this model", report["baselines"]["name"], "a linear model", "boosted trees"} <= set(found.texts["td"])
        assert "cakernels predict train.model.h5 NEW_DATA" in found.texts["pre"]
        shown = report["predictions"]
        assert shown["of"] == ("test rows" if test else "held-out rows")
        if words:
            assert shown["classes"] == ["<b>yes", "no"]
            assert np.sum(shown["confusion"]) == (40 if test else 120)
            assert {"<b>yes", "no"} <= set(found.texts["text"]) & set(found.texts["td"])
        else:
            np.testing.assert_allclose(
                sorted(shown["true"]), sorted(y[120:] if test else y[:120]), rtol=1e-4, atol=1e-4
            )
            assert "Residuals" in found.texts["title"]


def test_names_of_columns_are_text(pages):
    """A column called <script> is on the page, and is no script."""
    assert "&lt;script&gt;alert" in (pages / "krr.html").read_text()
    found = checked(pages / "krr.html")
    assert any(text.startswith("<script>alert") for text in found.texts["text"])


def test_names_of_any_characters_are_shown(report):
    """Control characters as escapes, no formula from a $, and no warning of a letter that matplotlib's font lacks."""
    names = ["$x_1", "\u6f22 \U0001f600", "a\x1b[31m", "\udcff", "\\frac{"]
    report["metric"] = {"form": "diagonal", "importances": [0.2] * 5, "names": names, "errors": [1.0, 0.5], "round": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        texts = Page(page.built({"run": report})).texts["text"]
    assert {"$x_1", "\u6f22 \U0001f600", r"a\x1b[31m", r"\udcff", "\\frac{"} <= set(texts)


def test_several_runs_side_by_side(pages, monkeypatch):
    monkeypatch.chdir(pages)
    run_report(["krr.json", "svm.json", "gcd.json", "-o", "all.html"])
    found = checked(pages / "all.html")
    assert found.texts["h1"] == ["3 runs: krr, svm, gcd"]
    assert found.texts["h3"][:3] == ["krr", "svm", "gcd"]
    assert "nothing to show" in found.texts["p"]  # Asy-GCD compared no settings


def run_report(words):
    run("cakernels", ["report", *words])


def test_page_from_the_report_is_the_page_of_the_run(pages, tmp_path):
    run_report([pages / "svm.json", "-o", tmp_path / "page.html"])
    assert (tmp_path / "page.html").read_text() == (pages / "svm.html").read_text()


def test_page_in_a_notebook(pages, tmp_path):
    """A frame that holds the whole page, escaped; and the file that the command writes."""
    runs = RunPage(pages / "krr.json", str(pages / "gcd.json"))
    frame = Page(runs._repr_html_())
    assert frame.tags == ["iframe"]
    (inside,) = re.findall(r'srcdoc="([^"]*)"', runs._repr_html_())
    runs.write(tmp_path / "page.html")
    assert html.unescape(inside) == (tmp_path / "page.html").read_text()
    assert checked(tmp_path / "page.html").texts["h1"] == ["2 runs: krr, gcd"]
    with pytest.raises(InputError, match="RunPage: no report; name one or more files"):
        RunPage()


def test_phases_keep_their_colours():
    """Training has one colour, whatever other phases a run has."""
    for phases in (["train"], ["read", "search", "train"]):
        panel = figures.stacked(["a"], {phase: [1.0] for phase in phases}, str).axes[0]
        colours = {bars.get_label(): bars.patches[0].get_facecolor() for bars in panel.containers}
        assert colours["train"] == to_rgba("#2e8b6f")


def test_pictures_are_text_that_does_not_change(report):
    first, second = (page.built({"run": report}) for _ in range(2))
    assert first == second
    assert len(re.findall("<svg ", first)) >= 5
    assert "DOCTYPE svg" not in first


def test_without_matplotlib_a_page_is_refused_before_any_work(pages, monkeypatch, capsys):
    monkeypatch.chdir(pages)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    remedy = "drawing needs matplotlib: pip install 'cakernels[plot]'"
    with pytest.raises(SystemExit) as end:
        run("cakrr.bkrr2", ["values.csv", "--html", "new.html"])
    assert end.value.code == 2
    assert remedy in capsys.readouterr().err
    with pytest.raises(InputError, match="drawing needs matplotlib"):
        RunPage("krr.json")
    assert not (pages / "new.html").exists()


def test_maps_keep_their_colours_in_dark_mode():
    """The style sheet inverts all other pictures; a map's colours would run in the other direction."""
    drawn = {"map": figures.confusion(np.eye(2, dtype=np.int64), ["-1", "1"]), "": figures.numbered([1.0], "part", "s")}
    for kind, drawing in drawn.items():
        assert ('class="map"' in sections.figure(drawing, "title")) == bool(kind)
    style = (Path(sections.__file__).parent / "page.css").read_text()
    assert "svg.map { filter: none" in style


def test_commands_break_between_words(pages):
    texts = checked(pages / "krr.html").texts["span"]
    assert texts[:3] == ["python", "-m", "cakrr.bkrr2"]
    assert "--metric-rounds" in texts


# -- ranks, and sizes that do not fit one by one -----------------------------------------------


@pytest.fixture
def report(pages):
    return json.loads((pages / "svm.json").read_text())


def test_large_runs_are_summarised(report, tmp_path):
    """300 parts on 128 ranks, whose bytes are in 32 groups, and 900 settings."""
    rng = np.random.default_rng(0)
    report |= {
        "ranks": 128, "partitions": 300, "partition_sizes": rng.integers(1, 999, 300).tolist(),
        "seconds_by_rank": {"ranks": list(range(64)), "train": rng.random(64).tolist(), "novel": [0.5] * 64},
        "traffic": {"ranks_per_group": 4, "bytes": {"train": rng.integers(0, 1 << 40, (32, 33)).tolist()}},
        "grid": [{"C": c, "gamma": g, "cv_f1": float(rng.random()), "folds": 5, "ended": False}
                 for c in range(1, 31) for g in range(1, 31)],
    }  # fmt: skip
    report["solver"] |= {"seconds": rng.random(300).tolist(), "busy_seconds": rng.random(128).tolist(), "imbalance": 2}
    page.write(tmp_path / "page.html", {"many": report})
    found = checked(tmp_path / "page.html")
    assert "Bytes sent" in found.texts["h2"]
    assert any("first 200 of 300 parts" in text for text in found.texts["figcaption"])
    assert any("sending group of 4 ranks" in text for text in found.texts["text"])
    assert "the first 400 of 900 settings" in found.texts["summary"]


def test_a_report_of_before(report, tmp_path):
    """Without what later versions have added."""
    for field in ("seconds_by_rank", "notes"):
        del report[field]
    page.write(tmp_path / "page.html", {"old": report})
    assert "Time" in checked(tmp_path / "page.html").texts["h2"]


def test_scores_that_are_unknown(report):
    report["grid"] = [{"sigma": s, "lambda": t, "validation_mse": None} for s in (1, 2) for t in (1, 2)]
    assert "4 settings" in "".join(sections.settings(report))
    for row in report["grid"][1:]:
        row["validation_mse"] = 0.0
    assert "the best, 0, is marked" in "".join(sections.settings(report))


# -- refused -----------------------------------------------------------------------------------


def damaged(report, change):
    made = copy.deepcopy(report)
    change(made)
    return json.dumps(made)


@pytest.mark.parametrize(("change", "said"), [
    (lambda one: one.pop("grid"), "field grid is missing"),
    (lambda one: one.update(ranks="two"), "field ranks .* wrong type"),
    (lambda one: one["seconds"].pop("total"), "seconds.total is missing"),
    (lambda one: one.update(schema="cakernels-report/9"), "is not a report of this version"),
    (lambda one: one["memory"].clear(), "damaged: KeyError"),
    (lambda one: one.update(partition_sizes=[]), "damaged: ValueError"),
    (lambda one: one.update(metrics={"confusion": [3]}), "damaged: "),
])  # fmt: skip
def test_damaged_reports_are_refused(change, said, report, tmp_path):
    (tmp_path / "r.json").write_text(damaged(report, change))
    with pytest.raises(InputError, match=rf"r\.json: .*{said}") as error:
        RunPage(tmp_path / "r.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[]", "3", "\udcff"])
def test_files_that_are_no_reports(text, tmp_path):
    (tmp_path / "r.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match="is not a report"):
        saved_report.read(tmp_path / "r.json")


@pytest.mark.parametrize(("words", "said"), [
    (["none.json", "-o", "page.html"], "none.json: cannot be read (No such file or directory)"),
    (["svm.json"], "the following arguments are required: -o/--output"),
    (["svm.json", "-o", "svm.json"], "is also the file of RUN.json svm.json"),
    (["svm.json", "svm.json", "-o", "page.html"], "svm.json: is given twice"),
])  # fmt: skip
def test_words_that_are_refused(words, said, pages, monkeypatch, capsys):
    monkeypatch.chdir(pages)
    with pytest.raises(SystemExit) as end:
        run_report(words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err
    assert not (pages / "page.html").exists()
