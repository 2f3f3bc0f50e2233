"""Checkpoints: a directory of one run's facts, and pieces that are whole or absent."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from helpers.checks import names
from helpers.checks import refusal as refused

from cacore.comm import Communicator
from cacore.io import checkpoint as module
from cacore.io.checkpoint import Checkpoint, remembered

FACTS = {"method": "bkrr2", "seed": 3, "sigma": (0.5, 2.0), "nothing": None, "rows": "90 rows, 0123"}


def begun(path, facts=FACTS):
    kept = Checkpoint(path)
    kept.open(facts, Communicator())
    return kept


# -- the directory -----------------------------------------------------------------------------


def test_directories_are_made(tmp_path):
    begun(tmp_path / "deep" / "er")
    assert names(tmp_path / "deep" / "er") == ["lock", "run.json"]
    begun(tmp_path / "deep" / "er")  # and taken up again
    (tmp_path / "empty").mkdir()
    begun(tmp_path / "empty")


@pytest.mark.parametrize("name", [*FACTS, "schema"])
def test_the_fact_that_differs_is_named(name, tmp_path):
    begun(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    message = refused(begun, tmp_path, {**FACTS, name: "else"})
    assert f"a checkpoint of another run: {name} was " in message
    assert message.startswith(f"{tmp_path}: ")
    assert '"else" here' in message
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize("more", [{}, {"partitions": 2}])
def test_another_number_of_ranks_is_told_from_another_run(more, tmp_path):
    """Pieces belong to ranks, and the remedy is not another command; the number of parts may follow that of ranks."""
    begun(tmp_path, {**FACTS, "ranks": 4, "partitions": 4})
    message = refused(begun, tmp_path, {**FACTS, "ranks": 2, "partitions": 4, **more})
    assert message == (
        f"{tmp_path}: a checkpoint of 4 ranks, and this run has 2; run the same command on 4 ranks, also with "
        "--partitions, or name another directory"
    )
    assert "another run: seed was 3" in refused(begun, tmp_path, {**FACTS, "seed": 4, "ranks": 4, "partitions": 4})


def test_missing_or_new_facts_mean_another_run(tmp_path):
    begun(tmp_path)
    assert "more was null there and is 1 here" in refused(begun, tmp_path, {**FACTS, "more": 1})
    assert "seed was 3 there and is null here" in refused(begun, tmp_path, {k: FACTS[k] for k in FACTS if k != "seed"})


def test_long_facts_are_cut_short(tmp_path):
    begun(tmp_path, {"sigma": list(range(1000))})
    assert len(refused(begun, tmp_path, {"sigma": list(range(999))})) < len(str(tmp_path)) + 300


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "needs a directory" in refused(begun, tmp_path / "file")
    assert "cannot make this directory" in refused(begun, tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_of_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    assert "not empty, and not a checkpoint" in refused(begun, tmp_path)
    assert names(tmp_path) == ["thesis.tex"]


def test_a_directory_of_something_else_keeps_its_files(tmp_path):
    for name in ("thesis.tex", ".thesis.tex.part"):
        (tmp_path / name).write_text("mine")
    refused(begun, tmp_path)
    assert names(tmp_path) == [".thesis.tex.part", "thesis.tex"]


@pytest.mark.parametrize("text", ["", "{", '{"schema": "cake', "\x00\xff\x00", "{}", '{"schema": "other/9"}'])
def test_damaged_facts(text, tmp_path):
    begun(tmp_path)
    (tmp_path / "run.json").write_bytes(text.encode("latin-1"))
    message = refused(begun, tmp_path)
    assert "not a checkpoint of this package, or a damaged one" in message or "schema was" in message


@pytest.mark.parametrize("text", ["[1, 2]", "3", "null", '"text"'])
def test_facts_that_are_no_object(text, tmp_path):
    (tmp_path / "run.json").write_text(text)
    assert "not a checkpoint of this package, or a damaged one" in refused(begun, tmp_path)


def test_leftovers_of_killed_runs_are_removed(tmp_path):
    """Half-written pieces go; whole ones stay; half-written facts are no facts."""
    kept = begun(tmp_path)
    kept.put("part-000000", alpha=np.ones(3))
    for name in (".part-000001.npz.k3_x.part", ".run.json.ab.part"):
        (tmp_path / name).write_bytes(b"half")
    begun(tmp_path)
    assert names(tmp_path) == ["lock", "part-000000.npz", "run.json"]
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".run.json.ab.part").write_bytes(b"half")
    begun(tmp_path / "new")
    assert names(tmp_path / "new") == ["lock", "run.json"]


def test_matching_checkpoint_is_resumed(tmp_path):
    """Finished pieces by kind, those of ranks only if all ranks have theirs; nothing of a run that begins."""
    kept = begun(tmp_path)
    assert kept.resumed is None
    said = []

    def again():
        other = Checkpoint(tmp_path)
        other.tell = said.append
        other.open(FACTS, Communicator(), {"parts": 8, "settings": 25})
        return other.resumed

    assert again() == {}
    for name in ("part-000000", "part-000007", "fold-1-grid-000003", "pair-0001-0002-rank000000", "alpha-rank000000",
                 "pair-000001-rank000000", "pair-000002-unfinished-0-rank000000"):  # fmt: skip
        kept.put(name, x=np.ones(2))
    assert again() == {"parts": 2, "settings": 1, "search": 1, "other": 2}
    assert Checkpoint(tmp_path)._finished(ranks=2) == {"parts": 2, "search": 1}
    assert said == [
        f"resumed: nothing is finished in {tmp_path}",
        f"resumed: 2 of 8 parts, 1 of 25 settings, 1 piece of the search, 2 other pieces, from {tmp_path}",
    ]


def test_nested_runs_are_resumed_with_their_own_line(tmp_path):
    for _ in range(2):
        kept, said = Checkpoint(tmp_path), []
        kept.tell = said.append
        for name in ("search", "trained"):
            inner = kept.within(name)
            inner.open(FACTS, Communicator(), {"parts": 2})
            inner.put(f"part-00000{len(name) % 2}", x=np.ones(2))
    assert said == [f"resumed: 1 of 2 parts, from {tmp_path / name}" for name in ("search", "trained")]
    assert kept.resumed == {"parts": 2}


# -- pieces ------------------------------------------------------------------------------------


def test_arrays_come_back_bit_for_bit(tmp_path):
    kept = begun(tmp_path)
    given = {
        "doubles": np.array([np.pi, -0.0, np.nan, np.inf, 5e-324]), "single": np.float32([[1.1, 2.2]]),
        "solved": np.array(False), "none": np.empty((0, 4)), "whole": np.arange(3),
    }  # fmt: skip
    kept.put("part-000007", **given)
    back = Checkpoint(tmp_path).get("part-000007")
    assert list(back) == list(given)
    for name, array in given.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()
    assert kept.get("part-000008") is None


def test_put_is_all_or_nothing(tmp_path, monkeypatch):
    kept = begun(tmp_path)
    kept.put("old", alpha=np.ones(3))

    def torn(file, **_):
        file.write(b"PK half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.np, "savez", torn)
        for name in ("new", "old"):
            with pytest.raises(KeyboardInterrupt):
                kept.put(name, alpha=np.zeros(3))
    assert names(tmp_path) == ["lock", "old.npz", "run.json"]
    np.testing.assert_array_equal(kept.get("old")["alpha"], np.ones(3))
    kept.put("old", alpha=np.zeros(3))
    np.testing.assert_array_equal(kept.get("old")["alpha"], np.zeros(3))


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_truncated_piece(share, tmp_path):
    kept = begun(tmp_path)
    kept.put("part-000000", alpha=np.arange(100.0))
    path = tmp_path / "part-000000.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    message = refused(kept.get, "part-000000")
    gc.collect()  # a file left open would say so here
    assert message == f"{path}: damaged; remove it, and it will be computed again"


def test_empty_piece(tmp_path):
    kept = begun(tmp_path)
    (tmp_path / "part-000000.npz").touch()
    assert "damaged" in refused(kept.get, "part-000000")


def test_changed_byte(tmp_path):
    kept = begun(tmp_path)
    kept.put("part-000000", alpha=np.arange(100.0))
    path = tmp_path / "part-000000.npz"
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    assert "damaged" in refused(kept.get, "part-000000")


def test_no_pickle_is_read(tmp_path):
    kept = begun(tmp_path)
    np.savez(tmp_path / "part-000000.npz", alpha=np.array([{"a": 1}], object))
    assert "damaged" in refused(kept.get, "part-000000")


def test_remembered(tmp_path):
    kept, calls = begun(tmp_path), []

    def work():
        calls.append(1)
        return {"x": np.array([len(calls)])}

    for _ in range(2):
        assert remembered(None, "a", work)["x"] == len(calls)
    assert len(calls) == 2  # nothing is remembered without a checkpoint
    assert [int(remembered(kept, name, work)["x"][0]) for name in "aabab"] == [3, 3, 4, 3, 4]
    assert int(remembered(kept, "a", work, Communicator())["x"][0]) == 5  # a rank's own
    assert int(remembered(kept, "a", work, Communicator())["x"][0]) == 5
    assert names(tmp_path) == ["a-rank000000.npz", "a.npz", "b.npz", "lock", "run.json"]
    with pytest.raises(ZeroDivisionError):
        remembered(kept, "c", lambda: 1 / 0)
    assert kept.get("c") is None
