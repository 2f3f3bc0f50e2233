"""What is printed: control characters as escapes, any encoding of the terminal, and streams that are closed."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.commands import run

from cacore.errors import InputError, OutputError
from cacore.terminal import CellLines, escaped, put, say, show_table

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("asygcd", "cacore", "cakernels", "cakriging", "cakrr", "casvm", "partition")
NASTY = {
    "title": "a\x1b]0;mine\x07", "colour": "b\x1b[31m", "C1": "c\x9b2J", "bidi": "d\u202ecba", "tag": "e\U000e0041",
    "separator": "f\u2028g", "no text": "h\udcff",
}  # fmt: skip


def table_of(path, features, target):
    """A Parquet file of 60 rows."""
    random = np.random.default_rng(5)
    columns = [pa.array(random.normal(size=60)) for _ in features]
    names = [*features, target]
    pq.write_table(pa.table([*columns, pa.array(columns[0].to_numpy() * 2 + 1)], names=names), path)
    return path


def is_harmless(text):
    """True if a terminal only shows the text: its lines hold no control characters."""
    return bool(text) and all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("name", NASTY.values(), ids=NASTY)
def test_control_characters_are_escaped(name, capsys):
    say(name, f"second {name}\n", error=True)
    show_table([("name", name)], title=name, header=("what", name))
    out, err = capsys.readouterr()
    assert is_harmless(out)
    assert is_harmless(err)
    assert err.count("\n") == 2  # a line break in a name begins no line
    assert is_harmless(str(InputError(name)))
    assert is_harmless(str(OutputError(name)))
    assert escaped(escaped(name)) == escaped(name) != name


def test_only_the_breaks_of_a_cell_of_several_lines_remain(capsys):
    show_table([("lines", CellLines(["first", "second\nforged"]))])
    assert capsys.readouterr().out.count("\n") == 2
    assert escaped("größe 日本") == "größe 日本"


COMMANDS = [
    ["cakernels", "info", "TABLE"],
    ["cakernels", "convert", "TABLE", "out.h5"],
    ["cakrr.bkrr2", "TABLE", "--partitions", "2", "--sigma", "1", "--lambda", "1e-3", "--metric", "diagonal"],
    ["casvm.svr", "TABLE", "--C", "1", "--verbose"],
    ["cakernels", "predict", "MODEL", "TABLE", "-o", "out.csv"],
    ["cakernels", "explain", "MODEL", "TABLE"],
    ["cakernels", "export", "MODEL", "out\x1b[5m.onnx"],
    ["cakrr.dkrr", "TABLE", "--target", "no\x1b[5mne"],
    ["cakrr.dkrr", "no\x1b[5mne.csv"],
    ["cakernels", "fi\x1b[5mt"],
]  # fmt: skip


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
    """A table and a model of it, whose names, and those of the columns, hold control characters."""
    folder = tmp_path_factory.mktemp("nasty")
    names = list(NASTY.values())[:-1]
    table = table_of(folder / "t\x1b[5m\nforged\u202e.parquet", names, "y\x1b[7m\x07")
    model = folder / "m\x1b[5m.h5"
    run("cakrr.dkrr", [table, "--sigma", "2", "--lambda", "1e-3", "--model", model, "--quiet"])
    return {"TABLE": table, "MODEL": model}


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]).replace("\x1b", "ESC"))
def test_commands_print_no_control_characters(words, nasty, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    program, *rest = [nasty.get(word, word) for word in words]
    with suppress(SystemExit):
        run(program, rest)
    out, err = capfd.readouterr()
    assert is_harmless(out + err)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16", "utf-8"])
def test_unencodable_characters_are_escaped(encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    put("β and 日\n", stream)
    text = stream.buffer.getvalue().decode(encoding)
    assert text == ("β and 日\n" if encoding.startswith("utf") else "\\u03b2 and \\u65e5\n")


WORDS = [["cacore.io", "info", "größe.parquet"], ["cakrr.dkrr", "größe.parquet", "--sigma", "1", "--lambda", "1e-3"]]


@pytest.mark.parametrize("words", WORDS)
def test_an_ascii_terminal(words, python, tmp_path):
    table_of(tmp_path / "größe.parquet", ["α", "β"], "γ")
    ended = python("-m", *words, cwd=tmp_path, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.isascii()


CLOSED = ">&-", ">&- 2>&- <&-"


@pytest.mark.parametrize("closed", CLOSED)
def test_standard_streams_that_are_closed(closed, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    table_of(tmp_path / "rows.parquet", ["a", "b"], "y")
    command = f"{sys.executable} -m cakrr.dkrr rows.parquet --sigma 1 --lambda 1e-3 --model m.h5 --report r.json"
    ended = subprocess.run(["sh", "-c", f"{command} {closed}"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    run("cakernels", ["predict", "m.h5", "rows.parquet", "-o", "out.csv", "--quiet"])


def test_one_module_prints():
    """Whatever else calls print does not escape what it prints: use `say` of cacore/terminal.py."""
    found = {}
    for path in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                found.setdefault(str(path.relative_to(ROOT)), []).append(node.lineno)
    assert found == {}
