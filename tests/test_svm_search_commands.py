"""The commands of SVMs that search C and gamma: grids, test rows, checkpoints, refusals."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.checks import names
from helpers.commands import FIELDS, flat, read, reported, run
from helpers.data import clouds, curved, split_rows, write_hdf5

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from casvm import cpsvm
from casvm.options import SVMOptions
from casvm.search import classes

CS, GAMMAS = (0.5, 2.0, 20.0), (0.05, 0.5, 3.0)


@pytest.mark.parametrize("method", ["cpsvm", "dissmo", "cascade"])
def test_command(method, inputs, tmp_path, capsys):
    words = [inputs / "three.h5", "--C", "0.5:50:3", "--gamma", "0.1,1", "--cv", "3", "--threads", "2"]
    run(f"casvm.{method}", [*words, "--report", tmp_path / "r.json", "--plot", tmp_path / "p.png", "--verbose"])
    shown, err = capsys.readouterr()
    assert err == ""
    made = read(tmp_path / "r.json")
    assert set(made) - {"volume", "at_grid_end"} == FIELDS | {"cv"}
    ends = {"C": made["params"]["C"]} if made["params"]["C"] != pytest.approx(5) else {}  # gamma has two values only
    assert made.get("at_grid_end", {}) == ends
    assert flat(shown).count("is the end of its grid") == len(ends)
    assert [row["C"] for row in made["grid"]] == pytest.approx([0.5, 0.5, 5, 5, 50, 50])
    assert (made["cv"]["folds"], made["cv"]["settings"], made["cv"]["scoring"]) == (3, 6, "accuracy")
    best = max((row for row in made["grid"] if not row["ended"]), key=lambda row: row["cv_accuracy"])
    assert (made["params"]["C"], made["params"]["gamma"]) == (best["C"], best["gamma"])
    assert made["cv"]["score"] == best["cv_accuracy"]
    assert "best settings" in shown
    assert "accuracy of 3 folds, 6 settings" in flat(shown)
    assert shown.count(" folds") >= 6
    assert made["comm"]["train"]["bytes"] == 0
    assert names(tmp_path) == ["p.png", "r.json"]


def test_command_without_options(tmp_path):
    """Rows whose classes are spirals: the default of old, C = 1 and gamma = scale, knows next to nothing of them."""
    t = np.random.default_rng(0).uniform(1, 4, 600)
    y = np.arange(600) % 2
    angle = 2 * np.pi * t + np.pi * y
    X = np.c_[t * np.cos(angle), t * np.sin(angle)]
    write_hdf5(tmp_path / "in.h5", train=(X[:400], y[:400]), test=(X[400:], y[400:]))
    made = reported("casvm.cpsvm", [tmp_path / "in.h5"], tmp_path)
    old = reported("casvm.cpsvm", [tmp_path / "in.h5", "--C", "1", "--gamma", "scale"], tmp_path)
    assert (len(made["grid"]), len(old["grid"])) == (100, 0)
    assert made["metrics"]["accuracy"] > 0.98
    assert old["metrics"]["accuracy"] < 0.8
    assert "cv" not in old
    assert len(reported("casvm.cpsvm", [tmp_path / "in.h5", "--quick"], tmp_path)["grid"]) == 25


def test_nothing_to_draw(tmp_path, capsys):
    """A class of one row has no folds: the command trains as it would without a grid, and says so."""
    X, _ = curved(60)
    write_hdf5(tmp_path / "in.h5", train=(X, np.r_[7.0, np.ones(30), np.zeros(29)]))
    run("casvm.cpsvm", [tmp_path / "in.h5", "--plot", tmp_path / "p.png", "--report", tmp_path / "r.json"])
    made = read(tmp_path / "r.json")
    assert (made["grid"], made["params"]["C"]) == ([], 1.0)
    assert "--plot: no settings were compared, so there is nothing to draw" in flat(capsys.readouterr().out)
    assert not (tmp_path / "p.png").exists()


def test_test_rows_are_not_used_to_choose(tmp_path):
    """Poisoned test labels change the metrics, and nothing else."""
    X, y = split_rows("train")
    T, t = split_rows("test")
    for name, labels in (("good.h5", t), ("bad.h5", -t)):
        write_hdf5(tmp_path / name, train=(X, y), test=(T, labels))
    words = ["--C", "0.1,1,10", "--gamma", "grid", "--partitions", "2"]
    good, bad = (reported("casvm.cpsvm", [tmp_path / name, *words], tmp_path) for name in ("good.h5", "bad.h5"))
    assert bad["grid"] == good["grid"]
    assert bad["params"] == good["params"]
    assert bad["metrics"]["accuracy"] == pytest.approx(1 - good["metrics"]["accuracy"])


def test_resumed(inputs, tmp_path, tuned, recorded):
    """A search that was killed goes on to the same choice and the same model, without what was finished."""
    tuned(telling_rows=0)  # three rounds
    words = [inputs / "three.h5", "--partitions", "3", "--C", "0.1,1,10", "--gamma", "0.1,1", "--checkpoint"]
    first = reported("casvm.cpsvm", [*words, tmp_path / "kept", "--model", tmp_path / "1.h5"], tmp_path)
    pieces = sorted((tmp_path / "kept").glob("search-*.npz"))
    assert len(pieces) == 9
    for path in [*pieces[5:], *(tmp_path / "kept").glob("part-*.npz")]:
        path.unlink()
    calls = recorded(classes, "judge")
    second = reported("casvm.cpsvm", [*words, tmp_path / "kept", "--model", tmp_path / "2.h5"], tmp_path)
    assert len(calls) == 4
    assert second["grid"] == first["grid"]
    assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "2.h5").read_bytes()


def test_resumed_in_one_model(inputs, tmp_path):
    words = [inputs / "three.h5", "--C", "0.1,1,10", "--checkpoint", tmp_path / "kept", "--model"]
    first, second = (reported("casvm.dissmo", [*words, tmp_path / name], tmp_path) for name in ("1.h5", "2.h5"))
    assert second["grid"] == first["grid"]
    assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "2.h5").read_bytes()
    assert names(tmp_path / "kept") == ["search", "trained"]


@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        ("casvm.cpsvm", ["--C", "1:2"], "--C 1:2: give a number, a comma list, or lo:hi:COUNT"),
        ("casvm.cpsvm", ["--C", "abc"], "--C abc: it must be a positive number, a comma list, lo:hi:COUNT or grid"),
        ("casvm.cpsvm", ["--C", "default"], "--C default: it must be a positive number"),
        ("casvm.cpsvm", ["--C", "1", "--scoring", "f1"], "scoring = f1: there is one value of C and of gamma; give"),
        (
            "casvm.cpsvm",
            ["--C", "1,2", "--quick"],
            "quick: it shortens a default grid, and neither C nor gamma is grid; leave it out",
        ),
        ("casvm.dissmo", ["--quick"], "quick: it shortens a default grid, and neither C nor gamma is grid; leave it"),
        ("casvm.cpsvm", ["--gamma", "0,1"], "--gamma 0: it must be a positive number"),
        ("casvm.cpsvm", ["--scoring", "neg_log_loss"], "--scoring neg_log_loss: it must be a score that adds up"),
        (
            "casvm.cpsvm",
            ["--kernel", "linear", "--C", "1,9", "--gamma", "0.1,1"],
            "gamma: several values are given, but",
        ),
        ("casvm.cpsvm", ["--cv", "1"], "--cv 1: it must be a whole number of at least 2"),
        ("casvm.cpsvm", ["--cv", "200"], "cv = 200: class "),
        ("casvm.dissmo", ["--C", "1", "--gamma", "1", "--plot", "p.png"], "or the settings that were compared"),
        ("casvm.cpsvm", ["--C", "1", "--gamma", "1", "--per-part"], "per_part: there is one value of C and of gamma"),
    ],
)
def test_commands_refuse(program, words, message, inputs, refuses):
    refuses(program, [inputs / "good.h5", *words], message, inputs)


def test_a_metric_is_learned_at_the_chosen_setting(inputs, tmp_path):
    words = [inputs / "good.h5", "--C", "0.5,5", "--gamma", "0.3", "--metric", "diagonal", "--metric-rounds", "1"]
    made = reported("casvm.cpsvm", words, tmp_path)
    assert len(made["grid"]) == 2
    assert made["params"]["C"] in (0.5, 5.0)
    assert made["metric"]["form"] == "diagonal"


def test_sparse_rows_in_a_checkpoint_of_their_own(tmp_path):
    X, y = clouds(120, csr=True)
    options = SVMOptions(partitions=2, C=CS, gamma=0.5, checkpoint=Checkpoint(tmp_path / "kept"))
    fitted = cpsvm.METHOD(Dataset(X, y), options, Communicator())
    dense = cpsvm.METHOD(Dataset(X.toarray(), y), replace(options, checkpoint=None), Communicator())
    assert fitted.search.chosen == dense.search.chosen
    with pytest.raises(InputError, match="another run"):
        cpsvm.METHOD(Dataset(X, y), replace(options, C=(1.0, 2.0)), Communicator())


@pytest.mark.parametrize(
    ("C", "gamma", "made"),
    [(None, None, ("grid", "grid")), (None, 2.0, (1.0, 2.0)), (3.0, None, (3.0, "scale")),
     (None, "grid", (1.0, "grid")), (1.0, "scale", (1.0, "scale"))],
)  # fmt: skip
def test_what_is_compared_where_a_command_names_nothing(C, gamma, made):
    """Settings compared for each combination of given options: one option alone has the default of the other."""
    options = SVMOptions(C=C, gamma=gamma)
    assert (options.C, options.gamma) == made
    assert SVMOptions().searches is False
