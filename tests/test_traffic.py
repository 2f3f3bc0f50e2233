"""Traffic: collected, saved, read, made a matrix, and drawn."""

from __future__ import annotations

import re
import sys
import warnings

import numpy as np
import pytest
from helpers.commands import run

from cacore import traffic
from cacore.comm import PHASES, Communicator
from cacore.errors import InputError
from cacore.traffic import Traffic

R = 3


@pytest.fixture
def ran():
    """Three ranks: what each sends in training is 10 times as much as in partitioning."""
    part = np.array([[0, 20, 30, 4], [50, 0, 70, 8], [0, 0, 0, 0]])
    seconds = np.array([[1.0, 1.0, 1.0], [2.0, 4.0, 6.0], [8.0, 8.0, 8.0]])
    return Traffic(
        "cpsvm", ("read", "partition", "train"), np.array([0 * part, part, 10 * part]), np.array([part * 0] * R),
        seconds, seconds / 8,
    )  # fmt: skip


def same(one, other):
    assert (one.method, one.phases) == (other.method, other.phases)
    for name in ("bytes", "messages", "seconds", "mpi_seconds"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), strict=True)


# -- collected, saved and read -----------------------------------------------------------------


def test_one_process_sends_nothing():
    comm = Communicator()
    with comm.phase("train"), comm.phase("a phase of its own"):
        comm.allreduce(np.ones(3))
    got = traffic.collect(comm, "bkrr2")
    assert (got.method, got.phases) == ("bkrr2", (*PHASES, "a phase of its own", "other"))
    assert (got.bytes.shape, got.messages.shape) == ((6, 1, 2), (6, 1, 2))
    assert (got.seconds.shape, got.mpi_seconds.shape) == ((6, 1), (6, 1))
    assert not got.bytes.any()
    assert not got.messages.any()
    assert not got.mpi_seconds.any()
    assert got.seconds[got.phases.index("train")] > 0
    assert got.seconds[0] == 0
    assert traffic.pattern(got).tolist() == [[0.0]]


def test_saved_and_read(ran, tmp_path):
    for name in ("a.npz", "no ending"):  # numpy would append one
        ran.save(tmp_path / name)
        same(traffic.load(tmp_path / name), ran)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "no ending"]


def test_recorded(tmp_path):
    traffic.collect(Communicator(), "dkrr").save(tmp_path / "t.npz")
    assert traffic.load(tmp_path / "t.npz").method == "dkrr"


def test_saved_whole_or_not_at_all(ran, tmp_path, monkeypatch):
    (tmp_path / "a.npz").write_text("old")
    monkeypatch.setattr(np, "savez_compressed", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ran.save(tmp_path / "a.npz")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_no_such_file(tmp_path):
    for path in (tmp_path, tmp_path / "none.npz"):
        with pytest.raises(InputError, match="no such file"):
            traffic.load(path)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04", b"\x80\x04pickle", b"\x93NUMPY\x01\x00"], ids=repr)
def test_foreign_file(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.npz: not a file of --comm-matrix, or damaged$"):
        traffic.load(tmp_path / "a.npz")


def test_foreign_npz_and_npy(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.ones(3))
    np.save(tmp_path / "a.npy", np.ones(3))
    for name in ("a.npz", "a.npy"):
        with pytest.raises(InputError, match="not a file of --comm-matrix"):
            traffic.load(tmp_path / name)


def test_damaged_anywhere(ran, tmp_path):
    """Cut off, or a byte changed: refused, or the same numbers (some bytes of a zip file mean nothing)."""
    path = tmp_path / "a.npz"
    ran.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 100):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.integers(8)
        for content in (whole[:place], bytes(flipped)):
            path.write_bytes(content)
            try:
                same(traffic.load(path), ran)
            except InputError as error:
                assert str(path) in str(error)  # noqa: PT017


def altered(ran, path, **changes):
    fields = {"schema": traffic.SCHEMA, **vars(ran), **changes}
    np.savez(path, **{name: value for name, value in fields.items() if value is not None})


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("schema", lambda _: "cakernels-traffic/2"),
        ("phases", lambda v: v[:2]),
        ("phases", lambda v: ("read", "read", "train")),
        ("phases", lambda v: np.arange(3)),
        ("bytes", lambda v: v[:, :, :-1]),
        ("bytes", lambda v: v - 5),
        ("bytes", lambda v: v.astype(float)),
        ("messages", lambda v: v[0]),
        ("messages", lambda v: np.array([{}], object)),
        ("seconds", lambda v: v[:, :2]),
        ("seconds", lambda v: np.float64(3.0)),
        ("seconds", lambda v: np.where(v > 5, np.nan, v)),
        ("mpi_seconds", lambda v: -v),
        ("mpi_seconds", lambda _: None),
    ],
)
def test_wrong_contents(ran, tmp_path, field, change):
    altered(ran, tmp_path / "a.npz", **{field: change(getattr(ran, field, None))})
    with pytest.raises(InputError, match=r"a\.npz: (its layout|damaged|not a file)") as caught:
        traffic.load(tmp_path / "a.npz")
    assert "\n" not in str(caught.value)


# -- matrices ----------------------------------------------------------------------------------


def test_pattern(ran):
    part = np.array([[0, 22, 32], [54, 0, 74], [0, 0, 0]])
    np.testing.assert_array_equal(traffic.pattern(ran), 11.0 * part)
    np.testing.assert_array_equal(traffic.pattern(ran, ["train", "train"]), 10.0 * part)
    np.testing.assert_array_equal(traffic.pattern(ran, ["read"]), np.zeros((R, R)))
    assert traffic.pattern(ran).sum() == ran.bytes.sum()
    with pytest.raises(InputError, match="phase 'predict': cpsvm has only the phases read, partition, train"):
        traffic.pattern(ran, ["predict"])


def test_ratio(ran):
    assert traffic.ratio(ran) == (1.5, 10.5)
    assert traffic.ratio(ran, ["partition"]) == (0.5, 3.5)


# -- figures -----------------------------------------------------------------------------------


@pytest.fixture
def matplotlib():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what importing old releases warns about is not ours
        pytest.importorskip("matplotlib.figure", reason="no matplotlib: pip install 'cakernels[plot]'")
        import matplotlib.backends.backend_agg
    return matplotlib


@pytest.fixture
def files(ran, tmp_path):
    """One run of three ranks, another of one method, and one of one process."""
    silent = Traffic("casvm", ran.phases, 0 * ran.bytes, 0 * ran.messages, ran.seconds, 0 * ran.seconds)
    for name, one in {"a": ran, "again": ran, "silent": silent}.items():
        one.save(tmp_path / f"{name}.npz")
    traffic.collect(Communicator(), "bkrr2").save(tmp_path / "alone.npz")
    return [str(tmp_path / f"{name}.npz") for name in ("a", "again", "silent", "alone")]


@pytest.fixture
def drawn(recorded, matplotlib):
    """Figures as they were when they were saved."""
    return recorded(traffic.figures, "save", lambda _, figure, path: figure)


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG")


def test_draws_patterns(files, drawn, matplotlib, tmp_path):
    before = dict(matplotlib.rcParams)
    traffic.main(["pattern", *files, "-o", str(tmp_path / "out.png")])
    assert is_png(tmp_path / "out.png")
    panels = [axes for axes in drawn[0].axes if axes.images]
    # Two files of one method go by their own names.
    assert [p.get_title() for p in panels] == ["a: 0.002 MB", "again: 0.002 MB", "casvm: 0 MB", "bkrr2: 0 MB"]
    assert {p.images[0].get_clim() for p in panels} == {(0.0, 11 * 74 / 1e6)}
    shown = panels[0].images[0].get_array()
    assert shown[1, 0] == 11 * 22 / 1e6  # the receiver is a row of the picture
    assert shown.mask.sum() == 5
    assert "814 B" in {text.get_text() for text in panels[0].texts}
    assert (panels[0].get_xlabel(), panels[0].get_ylabel()) == ("sending rank", "receiving rank")
    assert drawn[0].get_suptitle() == "Bytes sent in partition + train"
    assert "spread evenly" in drawn[0].get_supxlabel()
    assert drawn[0].canvas.manager is None  # pyplot knows nothing of it
    assert dict(matplotlib.rcParams) == before


def test_draws_ratios(files, drawn, tmp_path):
    traffic.main(["ratio", *files[1:3], "-o", str(tmp_path / "out.png"), "--phases", "train"])
    assert is_png(tmp_path / "out.png")
    panel = drawn[0].axes[0]
    inside, outside = ([bar.get_width() for bar in bars] for bars in panel.containers)
    assert (inside, outside) == ([1.0, 0.0], [7.0, 8.0])
    assert [label.get_text() for label in panel.get_yticklabels()] == ["cpsvm", "casvm"]
    assert [text.get_text().strip() for text in panel.texts] == ["8 s, 12.5% in MPI", "8 s, 0.0% in MPI"]


def test_many_ranks(drawn, tmp_path):
    sent = np.arange(1, 2 * 40 * 41 + 1).reshape(2, 40, 41)
    run = Traffic("dissmo", ("partition", "train"), sent, sent, np.ones((2, 40)), np.ones((2, 40)))
    run.save(tmp_path / "a.npz")
    traffic.main(["pattern", str(tmp_path / "a.npz"), "-o", str(tmp_path / "out.svg")])
    assert (tmp_path / "out.svg").read_text().startswith("<?xml")
    panel = drawn[0].axes[0]
    assert len(panel.get_xticks()) <= 8
    assert not panel.texts


# -- the command line --------------------------------------------------------------------------


def refused(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        traffic.main(list(map(str, words)))
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert re.fullmatch(r"cacore\.traffic: [^\n]+\n", err)
    return err


@pytest.mark.parametrize("command", ["pattern", "ratio"])
def test_refused(files, capsys, matplotlib, tmp_path, command):
    assert "ends with one of" in refused(capsys, command, files[0], "-o", tmp_path / "out.txt")
    assert "does not exist; create it" in refused(capsys, command, files[0], "-o", tmp_path / "none" / "out.png")
    assert "no such file" in refused(capsys, command, tmp_path / "none.npz", "-o", tmp_path / "out.png")
    assert "phase 'trian'" in refused(capsys, command, files[0], "-o", tmp_path / "out.png", "--phases", "trian")
    assert "--output" in refused(capsys, command, files[0])
    assert not list(tmp_path.glob("out.*"))


def test_no_command(capsys):
    assert "command" in refused(capsys)


def test_without_matplotlib(files, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    for command in ("pattern", "ratio"):
        assert "pip install 'cakernels[plot]'" in refused(capsys, command, files[0], "-o", tmp_path / "out.png")


def test_as_a_module(files, matplotlib, python, tmp_path):
    done = python("-m", "cacore.traffic", "pattern", *files, "-o", tmp_path / "out.png")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert is_png(tmp_path / "out.png")


@pytest.mark.parametrize("method", ["cakrr.bkrr2", "casvm.cpsvm"])
def test_option_of_training_commands(method, tmp_path, capfd):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    np.savetxt(tmp_path / "a.csv", np.column_stack([X, X[:, 0] > 0]), "%.9g", ",")
    words = [tmp_path / "a.csv", "--partitions", 2, "--threads", 1, "--quiet"]
    run(method, [*words, "--comm-matrix", tmp_path / "t.npz"])
    assert capfd.readouterr() == ("", "")
    got = traffic.load(tmp_path / "t.npz")
    assert got.method == method.split(".")[1]
    assert got.phases[:4] == PHASES
    assert not got.bytes.any()
    with pytest.raises(SystemExit) as ended:
        run(method, [*words, "--comm-matrix", tmp_path / "none" / "t.npz"])
    out, err = capfd.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert "does not exist; create it first" in err
