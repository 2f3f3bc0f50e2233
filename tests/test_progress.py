"""Progress on a terminal and elsewhere, and what is said and charged while numba compiles."""

import io
import re
import threading
import time

import numba
import numpy as np
import pytest
from helpers.commands import run
from helpers.data import write_csv
from numba.core import event

from cacore import progress
from cacore.comm import Communicator
from cacore.machine.clock import telling_of_compiling
from cacore.run import launch
from cacore.run.launch import Job


class Terminal(io.StringIO):
    def isatty(self):
        return True


def steps(enabled):
    with progress.bar(enabled) as begin:
        step = begin("grid points", 3)
        for _ in range(3):
            step()


def terminal(monkeypatch):
    """Stderr as a terminal of 60 columns, from here on."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    return shown


def words(shown):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())


def test_bar_on_a_terminal(monkeypatch, capsys):
    shown = terminal(monkeypatch)
    with progress.bar(True) as begin:
        step = begin("grid points", 4)
        step()
        step(label="grid points: the best of many words that do not fit into a line")
    text = words(shown)
    assert "grid points" in text
    assert {"many", "words", "line"} <= set(text.split())  # wrapped
    assert re.search(r"50% [-0-9]:[-0-9]{2}:[-0-9]{2}", text)  # the time left stays
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("enabled", "stream"), [(True, io.StringIO), (False, Terminal)])
def test_no_bar(monkeypatch, capsys, enabled, stream):
    shown = stream()
    monkeypatch.setattr("sys.stderr", shown)
    steps(enabled)
    assert shown.getvalue() == capsys.readouterr().out == ""


@pytest.mark.parametrize("enabled", [True, False])
def test_lines_where_there_is_no_terminal(enabled, capsys, monkeypatch):
    """The newest label, and not more often than once in the time between two lines."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.bar(enabled) as begin:
        advance = begin("training", 3)
        for second, label in ((1, "first"), (61, "second"), (62, "third"), (130, None), (131, "fourth")):
            now[0] = float(second)
            advance(0, label)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == ("second\nfourth\n" if enabled else "")


# -- compiling ---------------------------------------------------------------------------------


def compile_something():
    assert numba.njit(lambda x: x + 1)(1) == 2


def compile_until(done):
    """Pretend that numba compiles, until `done()` or for 20 s: a terminal is written to some times a second."""
    end = time.monotonic() + 20
    with event.trigger_event("numba:compile"):
        while not done() and time.monotonic() < end:
            time.sleep(0.01)


def says(shown):
    return "compiling: once for this" in words(shown)


def test_telling_of_compiling():
    told, early = [], numba.njit(lambda x: x + 1)
    with telling_of_compiling(told.append):
        early(1)
        early(2)  # compiled already
        early(1.0)
    early(1j)
    assert told == [True, False] * 2


@pytest.mark.parametrize("context", [progress.bar, progress.spinner, progress.line_while_compiling])
def test_compilation_is_announced_on_a_terminal(context, monkeypatch):
    shown = terminal(monkeypatch)
    with context(True):
        assert not says(shown)
        compile_until(lambda: says(shown))
    assert says(shown)


@pytest.mark.parametrize("context", [progress.bar, progress.spinner, progress.line_while_compiling])
def test_no_word_of_compiling_where_there_is_no_terminal(context, capsys):
    with context(True):
        compile_something()
    assert capsys.readouterr() == ("", "")


def test_the_spinner_goes_back_to_its_text(monkeypatch):
    shown = terminal(monkeypatch)
    with progress.spinner(True, "first") as change:
        change("second")
        compile_until(lambda: says(shown))
        assert says(shown)
        end = time.monotonic() + 20
        while not words(shown).endswith("second") and time.monotonic() < end:
            time.sleep(0.01)
        assert words(shown).endswith("second")


def test_a_new_text_waits_while_code_is_compiled(monkeypatch):
    """Other threads solve on, and tell how far they are."""
    shown = terminal(monkeypatch)

    def done():
        change("10 updates")
        return says(shown)

    with progress.spinner(True) as change:
        compile_until(done)
        assert says(shown)
        assert "10 updates" not in words(shown)


def test_lines_that_were_printed_stay(monkeypatch):
    """On a narrow terminal the line about compiling is two lines, which are taken back before anything is printed."""
    shown = terminal(monkeypatch)
    with progress.line_while_compiling(True):
        compile_something()
        before = len(shown.getvalue())
        print("a trial", file=shown)
        compile_something()
    after = shown.getvalue()[before:]
    assert after.startswith("a trial\n")
    assert 0 < after.find("compiling") < after.find("\x1b[1A")  # no line up before the next two are there


def test_output_during_compilation_reaches_stdout(monkeypatch, capsys):
    terminal(monkeypatch)
    with progress.line_while_compiling(True), event.trigger_event("numba:compile"):
        print("a table")
    assert capsys.readouterr().out == "a table\n"


def test_no_line_for_a_thread_that_still_compiles_at_the_end(monkeypatch):
    shown, started, ended = terminal(monkeypatch), threading.Event(), threading.Event()

    def compile_late():
        with event.trigger_event("numba:compile"):
            started.set()
            ended.wait()

    apart = threading.Thread(target=compile_late)
    with progress.line_while_compiling(True):
        apart.start()
        started.wait()
    before = len(shown.getvalue())
    ended.set()
    apart.join()
    compile_something()
    assert len(shown.getvalue()) == before


def test_compiling_is_charged_apart_from_the_start_of_a_command():
    comm = Communicator()
    launch.start(Job(quiet=True), comm)
    compile_something()
    assert comm.clock()["compile"] > 0


@pytest.mark.parametrize(("ranks", "ahead"), [(1, []), (2, [1])])
def test_several_ranks_compile_ahead(ranks, ahead, monkeypatch):
    """One of them does, for all; a single rank compiles what it turns out to need."""
    done, comm = [], Communicator()
    comm.size = ranks
    monkeypatch.setattr(launch, "compiled", lambda work, *_: work())
    launch.compiled_ahead(lambda: done.append(1), comm)
    assert done == ahead


def test_a_single_rank_warms_nothing_up(tmp_path, forbidden):
    X = np.linspace(0.0, 2.0, 20)[:, np.newaxis]
    write_csv(tmp_path / "rows.csv", X, X[:, 0])
    with forbidden("cakrr.ridge_family.Ridge.warm_up_prediction"):
        run("cakrr.bkrr2", [tmp_path / "rows.csv", "--quiet", "--model", tmp_path / "m.h5"])
        run("cakrr.predict", [tmp_path / "m.h5", tmp_path / "rows.csv", "--quiet"])
