"""The help of every command: what it costs, and how it is arranged."""

from __future__ import annotations

from importlib import import_module

import pytest
from helpers.commands import run
from helpers.methods import METHODS, method_of, of_every_command

import casvm.casvm
import casvm.command
from cacore.learn.options import GROUPS, declared
from cacore.run import launch

COUNTED = """
import contextlib, io, runpy, sys
sys.argv = [sys.argv[1], "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
heavy = {"numba", "scipy", "sklearn", "h5py", "mpi4py.MPI"} & set(sys.modules)
print(len(sys.modules), "usage:" in shown.getvalue(), *sorted(heavy))
"""


@pytest.mark.parametrize(
    "program",
    [*METHODS, "cakrr.predict", "casvm.predict", "asygcd.predict", "cakriging.predict", "cacore.io", "cacore.traffic"],
)
def test_modules_that_help_loads(program, python):
    done = python("-c", COUNTED, program)
    assert (done.returncode, done.stderr) == (0, "")
    count, usage, *heavy = done.stdout.split()
    assert (usage, heavy) == ("True", [])
    assert int(count) <= 500


@of_every_command
def test_help_is_in_groups(program, capsys):
    """The options that most people need first come first; every other one is in a group; an example ends the help."""
    method = method_of(program)
    kinds = launch.Training, method.options
    shown = [known for kind in kinds for one, known in declared(kind) if known.flag and method.has(one.name)]
    assert {known.group for known in shown} <= {"", *GROUPS}
    assert len([known for known in shown if not known.group]) <= 12
    with pytest.raises(SystemExit):
        import_module(f"{program.split('.')[0]}.command").main(method, ["--help"])
    text = capsys.readouterr().out
    places = [text.index(f"\n{title}:") for title in ("common options", *GROUPS) if f"\n{title}:" in text]
    assert places == sorted(places)
    assert len(places) > 5
    assert text.index("\n  DATA") < text.index("\n  --test")
    assert f"example: {method.example}".split() == text[text.index("example:") :].split()


@of_every_command
def test_a_dry_run_checks_words_and_files_and_does_no_more(program, tmp_path, monkeypatch, capsys):
    """No row is read, not even of a damaged file; nothing is written; a misspelt word is refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("1,2,3\nx,5\n")
    run(program, ["rows.csv", "--dry-run", "--html", "page.html", "--report", "r.json"])
    assert capsys.readouterr().out.startswith(f"{program}: options and files are accepted; no row was read")
    assert [file.name for file in tmp_path.iterdir()] == ["rows.csv"]
    for words, message in (
        (["rows.csv", "--reprot", "r.json"], "--reprot r.json"),
        (["no.csv"], "no.csv: no such file"),
    ):
        with pytest.raises(SystemExit) as ended:
            run(program, [*words, "--dry-run"])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("program", "words", "message"), [
    ("cakrr.bkrr2", ["--keep-factors", "--classify"], "classes have no standard deviations"),
    ("cakrr.dkrr", ["--probability", "sigmoid"], "classify"),
    ("casvm.svr", ["--quantile", "0.5", "--nu", "0.2"], "nu"),
])  # fmt: skip
def test_a_dry_run_refuses_options_that_do_not_go_together(program, words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("1,2,1\n3,4,2\n")
    with pytest.raises(SystemExit) as ended:
        run(program, ["rows.csv", *words, "--dry-run"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_dry_run_loads_no_mpi(python, tmp_path):
    (tmp_path / "rows.csv").write_text("1,2,3\n")
    done = python("-c", COUNTED.replace('"--help"', '"rows.csv", "--dry-run"'), "cakrr.bkrr2", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mpi4py.MPI" not in done.stdout.split()


def test_a_default_of_zero_is_shown(capsys):
    with pytest.raises(SystemExit):
        casvm.command.main(casvm.casvm.METHOD, ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "seed of the random number generator (default: 0)" in text
    assert "constant term of the polynomial and sigmoid kernels (default: 0.0)" in text
