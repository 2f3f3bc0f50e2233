"""Full disks, quotas and folders that are deleted: what there is room for is written, the rest is told."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from helpers.checks import contents, names
from helpers.commands import predicted, read, run
from helpers.data import clouds

from cacore.errors import OutputError
from cacore.io.checkpoint import Checkpoint
from casvm import CASVC, SVMModel

TRAIN = {"casvm.cpsvm": ["--partitions", "2"], "cakrr.bkrr2": ["--partitions", "2", "--sigma", "2"], "asygcd": []}
trains = pytest.mark.parametrize("program", TRAIN)


@pytest.fixture
def full(monkeypatch):
    """Folders that are full: what is written there does not reach the disk."""
    folders, sync = set(), os.fsync

    def synced(handle):
        if folders & set(Path(os.readlink(f"/proc/self/fd/{handle}")).parents):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    return folders


def fails(program, words, capsys, lines=1):
    """The lines, usually one, of a run that ends with status 1."""
    with pytest.raises(SystemExit) as ended:
        run(program, [*words, "--quiet"])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (1, "", lines)
    return err


@trains
def test_the_model_is_saved_elsewhere(program, inputs, tmp_path, full, capsys, monkeypatch, tuned):
    """A model may be hours of work: where its disk is full it is saved in the folder of submission, or elsewhere."""
    places = {place: tmp_path / place for place in ("full", "submitted", "started", "temporary")}
    for place in places.values():
        place.mkdir()
    tuned(temporary_folder=str(tmp_path / "temporary"))
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(tmp_path / "submitted"))
    monkeypatch.chdir(tmp_path / "started")
    room = {"casvm.cpsvm": "submitted", "cakrr.bkrr2": "started", "asygcd": "temporary"}[program]
    full.update(set(places.values()) - {places[room]})
    words = [inputs / "good.h5", *TRAIN[program], "--model"]
    err = fails(program, [*words, tmp_path / "full" / "m.h5", "--report", tmp_path / "r.json"], capsys)
    told = re.search(r"m\.h5: cannot be written \(No space left on device\); the model was saved as (.*) instead", err)
    assert told
    assert Path(told[1]).parent.parent == tmp_path / room
    assert {
        place: names(tmp_path / place) for place in ("full", "submitted", "started", "temporary") if place != room
    } == {place: [] for place in ("full", "submitted", "started", "temporary") if place != room}
    run(program, [*words, tmp_path / "m.h5", "--quiet"])
    predict = f"{program.split('.')[0]}.predict"
    for name, model in (("here", tmp_path / "m.h5"), ("there", told[1])):
        run(predict, [model, inputs / "test.csv", "-o", tmp_path / name, "--quiet"])
    np.testing.assert_array_equal(predicted(tmp_path / "there"), predicted(tmp_path / "here"))
    assert read(tmp_path / "r.json")["metrics"]  # the rest is written too
    assert names(tmp_path / "full") == []


def test_no_room_anywhere(inputs, tmp_path, full, capsys, monkeypatch, tuned):
    """One line per file, and nothing is left."""
    tuned(temporary_folder=str(tmp_path))
    monkeypatch.chdir(tmp_path)
    full.add(tmp_path)
    words = [inputs / "good.h5", "--model", tmp_path / "m.h5", "--report", tmp_path / "r.json", "--html", "p.html"]
    err = fails("casvm.cpsvm", words, capsys, 3)
    reason = "cannot be written (No space left on device)"
    files = (tmp_path / "m.h5", tmp_path / "r.json", "p.html")
    assert err.splitlines() == [f"casvm.cpsvm: {name}: {reason}" for name in files]
    assert names(tmp_path) == []


def test_no_room_for_checkpoint_and_model(inputs, tmp_path, full, capsys, monkeypatch):
    """The first error does not hide where the model is."""
    for place in ("full", "submitted"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "submitted")
    words = [inputs / "good.h5", "--C", "1", "--checkpoint", tmp_path / "full" / "kept", "--model"]
    run("casvm.cpsvm", [*words, "first.h5", "--quiet"])
    for piece in (tmp_path / "full" / "kept").glob("part*"):
        piece.unlink()
    full.add(tmp_path / "full")
    err = fails("casvm.cpsvm", [*words, tmp_path / "full" / "m.h5"], capsys, 2)
    assert "kept/" in err.splitlines()[0]
    assert f"the model was saved as {tmp_path / 'submitted' / 'cakernels-'}" in err.splitlines()[1]


def test_a_folder_that_is_deleted_during_the_run(inputs, tmp_path, capsys, monkeypatch, tuned):
    tuned(temporary_folder=str(tmp_path))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path)
    save = SVMModel.save

    def late(model, path, comm=None):
        shutil.rmtree(tmp_path / "gone", ignore_errors=True)
        save(model, path, comm)

    monkeypatch.setattr(SVMModel, "save", late)
    err = fails("casvm.cpsvm", [inputs / "good.h5", "--model", "gone/m.h5"], capsys)
    told = re.search(r"gone does not exist; create it first; the model was saved as (.*) instead", err)
    assert SVMModel.load(told[1]).classes.size == 2


@pytest.mark.parametrize("what", ["--comm-matrix", "--report", "--libsvm"])
def test_other_outputs_are_written_if_one_fails(what, inputs, tmp_path, full, capsys):
    (tmp_path / "full").mkdir()
    full.add(tmp_path / "full")
    options = {"--model": "m", "--comm-matrix": "c", "--report": "r", "--libsvm": "l"}
    places = {flag: tmp_path / ("full" if flag == what else ".") / name for flag, name in options.items()}
    words = [inputs / "good.h5", *(word for pair in places.items() for word in pair)]
    assert f"full/{options[what]}: cannot be written" in fails("casvm.cpsvm", words, capsys)
    assert names(tmp_path) == sorted({"full", *options.values()} - {options[what]})
    assert names(tmp_path / "full") == []


def test_no_room_for_a_checkpoint(inputs, tmp_path, full, capsys):
    """The run goes on and saves its model; what could not be kept is told at the end."""
    words = [inputs / "good.h5", *TRAIN["casvm.cpsvm"], "--C", "1", "--checkpoint", tmp_path / "kept"]
    words.append("--model")
    Checkpoint(tmp_path / "kept")
    full.add(tmp_path / "kept")
    err = fails("casvm.cpsvm", [*words, tmp_path / "1.h5"], capsys)
    assert "kept/run.json: cannot be written (No space left on device)" in err  # nothing is lost yet
    full.clear()
    run("casvm.cpsvm", [*words, tmp_path / "2.h5", "--quiet"])
    pieces = sorted(set(names(tmp_path / "kept")) - {"lock", "run.json"})
    for name in pieces:
        (tmp_path / "kept" / name).unlink()
    full.add(tmp_path / "kept")
    assert len(pieces) == 2
    assert "kept/part-00000" in fails("casvm.cpsvm", [*words, tmp_path / "3.h5"], capsys)
    T = np.random.default_rng(0).normal(size=(20, 3))
    one, other = (SVMModel.load(tmp_path / name).decision_function(T) for name in ("2.h5", "3.h5"))
    np.testing.assert_array_equal(one, other)


PRINT = {
    "help": ("cakrr.bkrr2", ["--help"]),
    "info": ("cacore.io", ["info", "test.csv"]),
    "train": ("casvm.cpsvm", ["good.h5", "--report", "REPORT", "--verbose"]),
    "predict": ("casvm.predict", ["svm.h5", "test.csv", "--report", "REPORT"]),
}


@pytest.mark.parametrize("what", PRINT)
def test_full_stdout_is_reported(what, inputs, tmp_path, capsys, monkeypatch):
    """One line; and none where a pipe is closed, as by head. Nothing is left for the interpreter's end."""
    monkeypatch.chdir(inputs)
    program, words = PRINT[what]
    words = [tmp_path / "r.json" if word == "REPORT" else word for word in words]
    with open("/dev/full", "w") as disk:
        monkeypatch.setattr(sys, "stdout", disk)
        with pytest.raises(SystemExit) as ended:
            run(program, words)
    line = f"{program}: standard output: cannot be written (No space left on device)\n"
    assert (ended.value.code, capsys.readouterr().err) == (1, line)
    assert ("REPORT" in PRINT[what][1]) == (tmp_path / "r.json").exists()
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) if what == "help" else nullcontext():
            run(program, words)
    assert capsys.readouterr().err == ""


LIMITED = """
import resource, runpy, sys
try:
    from mpi4py import MPI  # whose own files may be larger
except ImportError:
    pass
sys.dont_write_bytecode = True  # Python would leave half a .pyc, on which every later import ends
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(("program", "size"), [*zip(TRAIN, itertools.cycle([3000, 6000]), strict=False)])
def test_a_quota(program, size, python, inputs, tmp_path):
    """If a quota stops libhdf5 at any point of writing, the error is one line."""
    words = [inputs / "good.h5", *TRAIN[program], "--model", tmp_path / "m.h5", "--quiet"]
    done = python("-c", LIMITED, size, program, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{program}: {tmp_path / 'm.h5'}: cannot be written (File too large)\n"
    assert names(tmp_path) == []


def test_errors_of_files_are_the_same_on_all_ranks_and_in_notebooks(tmp_path, full):
    X, y = clouds(60)
    model = CASVC(2, random_state=0).fit(X, y).model_
    full.add(tmp_path)
    with pytest.raises(OutputError, match=re.escape(f"{tmp_path / 'm.h5'}: cannot be written")):
        model.save(tmp_path / "m.h5")
    with pytest.raises(OSError, match="No space left"):
        model.save(tmp_path / "m.h5")
    assert contents(tmp_path) == {}
