"""Output files of commands: never overwriting input, complete up to the available space, and whole."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.checks import contents, names, refusal

from asygcd import AsyGCDModel
from cacore import files, traffic
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.io.stream import BLOCK, check_seal, seal
from cakrr import KRRModel
from casvm import SVMModel

TRAIN = {"casvm.cpsvm": ["--partitions", "2"], "cakrr.bkrr2": ["--partitions", "2", "--sigma", "2"], "asygcd": []}
trains = pytest.mark.parametrize("program", TRAIN)


# -- never over what is read -----------------------------------------------------------------------

CLASHES = {
    "model is data": ["in.h5", "--model", "in.h5"],
    "report is data": ["in.h5", "--report", "./in.h5"],
    "report is model": ["in.h5", "--report", "out", "--model", "out"],
    "model is test": ["train.h5", "--test", "test.csv", "--model", "test.csv"],
    "report is data by a link": ["in.h5", "--report", "link"],
}


@trains
@pytest.mark.parametrize("what", CLASHES)
def test_same_path_for_two_outputs_is_refused(what, program, inputs, tmp_path, refuses):
    for name, source in (("in.h5", "good.h5"), ("train.h5", "train.h5"), ("test.csv", "test.csv")):
        (tmp_path / name).write_bytes((inputs / source).read_bytes())
    (tmp_path / "link").symlink_to("in.h5")
    refuses(program, [*CLASHES[what], *TRAIN[program]], "which it would replace; name another", tmp_path)


def test_comm_matrix_and_libsvm_are_files_too(inputs, tmp_path, refuses):
    words = [inputs / "good.h5", "--model", "m.h5"]
    refuses("casvm.cpsvm", [*words, "--comm-matrix", "m.h5"], "--comm-matrix m.h5: is also the file of", tmp_path)
    refuses("casvm.cpsvm", [*words, "--libsvm", "m.h5"], "--libsvm m.h5: is also the file of --model", tmp_path)
    refuses("casvm.cpsvm", [*words, "--checkpoint", "m.h5"], "--model m.h5: is also the file of --checkpoint", tmp_path)


@pytest.mark.parametrize("words", [["-o", "svm.h5"], ["-o", "test.csv"], ["--report", "svm.h5"],
                                   ["-o", "out", "--report", "out"]])  # fmt: skip
def test_predictions_replace_nothing_that_is_read(words, inputs, refuses):
    refuses("casvm.predict", ["svm.h5", "test.csv", *words], "which it would replace; name another", inputs)


@pytest.mark.parametrize("words", [["in.h5", "in.h5"], ["train.csv", "out.h5", "--test", "out.h5"]])
def test_a_conversion_replaces_no_source(words, inputs, tmp_path, refuses):
    for name in ("in.h5", "out.h5"):
        (tmp_path / name).write_bytes((inputs / "good.h5").read_bytes())
    (tmp_path / "train.csv").write_bytes((inputs / "train.csv").read_bytes())
    refuses("cacore.io", ["convert", *words], "which it would replace; name another", tmp_path)


# -- names -------------------------------------------------------------------------------------------


def test_symbolic_link_is_written_through(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_text("old")
    (tmp_path / "link").symlink_to("deep/file")
    with files.replacing(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert ((tmp_path / "deep" / "file").read_text(), names(tmp_path / "deep")) == ("new", ["file"])
    (tmp_path / "dangling").symlink_to("deep/other")
    with files.replacing(tmp_path / "dangling") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "deep" / "other").read_text() == "new"


def test_a_device_is_written_to(tmp_path, capfd, tuned):
    tuned(temporary_folder=str(tmp_path))
    for name in ("/dev/null", "/dev/stdout"):
        with files.replacing(name) as temporary:
            temporary.write_text("told\n")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert (capfd.readouterr().out, names(tmp_path)) == ("told\n", [])


def test_other_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert "fifo: is not a regular file; name another" in refusal(files.check_writable, tmp_path / "fifo")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    refusal(files.check_writable, loop / "file")


@pytest.mark.parametrize("letter", ["a", "é", "龍"])
def test_long_names(letter, tmp_path):
    longest = letter * (255 // len(letter.encode()))
    with files.replacing(tmp_path / longest, suffix=".part") as temporary:
        temporary.write_text("x")
        assert temporary.name.endswith(".part")
    assert names(tmp_path) == [longest]
    for name in (longest + "aaa", "x/" * 3000 + "y"):
        refusal(files.check_writable, tmp_path / name)
        files.check_apart([("--model", tmp_path / name)], [("DATA", tmp_path / name / "x")])
        assert Checkpoint(tmp_path / name).fact("rows") is None
        for use in (SVMModel.load, traffic.load, lambda path: Checkpoint(path).open({}, Communicator())):
            assert "\n" not in refusal(use, tmp_path / name)


LEFT = """
import os, signal, sys
from cacore import files, traffic
with files.replacing(sys.argv[1]) as temporary:
    temporary.write_text("half")
    print("written", flush=True)
    sys.stdin.read()
"""


def test_stale_temporary_files_are_removed(tmp_path):
    """When the same file is written again; not while the process lives, and nothing of other files."""
    path = tmp_path / "out [1]"
    (tmp_path / ".out.0123abcd").write_text("mine")
    first = subprocess.Popen(
        [sys.executable, "-c", LEFT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with first:
        assert first.stdout.readline() == "written\n"
        with files.replacing(path) as temporary:
            temporary.write_text("other")
        assert len(names(tmp_path)) == 3
        first.kill()
    with files.replacing(path) as temporary:
        temporary.write_text("new")
    assert names(tmp_path) == [".out.0123abcd", "out [1]"]
    assert path.read_text() == "new"


# -- two jobs in one directory -----------------------------------------------------------------------

HOLD = """
import sys
from cacore.comm import Communicator
from cacore.io.checkpoint import Checkpoint
kept = Checkpoint(sys.argv[1])
kept.open({"method": "x"}, Communicator())
print("held", flush=True)
sys.stdin.read()
"""


def test_a_checkpoint_in_use(tmp_path):
    """A second job is refused, and changes nothing; when the first one is gone, killed or not, it may go on."""
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "kept"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with first:
        assert first.stdout.readline() == "held\n"
        (tmp_path / "kept" / ".part-000000.npz.ab.part").write_bytes(b"half")
        before = contents(tmp_path)
        with pytest.raises(InputError, match=f"in use by another run .process {first.pid} on .*; wait for its end"):
            Checkpoint(tmp_path / "kept").open({"method": "x"}, Communicator())
        assert contents(tmp_path) == before
        first.kill()
    second = Checkpoint(tmp_path / "kept")
    second.open({"method": "x"}, Communicator())
    assert names(tmp_path / "kept") == ["lock", "run.json"]


def test_a_folder_where_the_facts_belong(tmp_path):
    (tmp_path / "run.json").mkdir()
    assert "not a checkpoint of this package, or a damaged one" in refusal(
        Checkpoint(tmp_path).open, {"method": "x"}, Communicator()
    )


# -- checksums -----------------------------------------------------------------------------------------


def test_every_change_of_a_sealed_file_shows(tmp_path):
    path = tmp_path / "file"
    content = bytes(BLOCK) + bytes(range(256)) * 3
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + content)
    check_seal(path)  # it never was
    path.write_bytes(content)
    assert "not a model file of this package" in refusal(check_seal, path)
    seal(path)
    sealed = path.read_bytes()
    assert (len(sealed), sealed[BLOCK:]) == (len(content), content[BLOCK:])
    check_seal(path)
    for place in range(20, len(sealed), 7):
        path.write_bytes(sealed[:place] + bytes([sealed[place] ^ 16]) + sealed[place + 1 :])
        assert "it has changed since it was written" in refusal(check_seal, path)
    for damaged in (sealed[:-1], sealed + b"\0", sealed[:BLOCK], sealed[: BLOCK - 1]):
        path.write_bytes(damaged)
        refusal(check_seal, path)


MODELS = {"svm": SVMModel, "krr": KRRModel, "asygcd": AsyGCDModel}


@pytest.mark.parametrize("family", MODELS)
def test_flipped_bits_of_models(family, inputs, tmp_path):
    """A model with one bit changed is refused in one line, or that bit does not matter."""
    whole, path = (inputs / f"{family}.h5").read_bytes(), tmp_path / "m.h5"
    load = MODELS[family].load
    T = np.random.default_rng(0).normal(size=(5, 3))
    path.write_bytes(whole)
    expected = load(path).predict(T)
    rng = np.random.default_rng(1)
    for place in rng.integers(0, len(whole), 40).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << int(rng.integers(8)))]) + whole[place + 1 :])
        try:
            answers = load(path).predict(T)
        except InputError as error:
            told = str(error)
        else:
            told, _ = f"{path}: ", np.testing.assert_array_equal(answers, expected)
        assert told.startswith(f"{path}: ")
        assert "\n" not in told


def test_old_models_have_no_checksum(inputs, tmp_path):
    path = Path(tmp_path / "m.h5")
    path.write_bytes((inputs / "svm.h5").read_bytes()[BLOCK:])
    T = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_array_equal(SVMModel.load(path).predict(T), SVMModel.load(inputs / "svm.h5").predict(T))
