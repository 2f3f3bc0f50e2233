"""The SVM commands: a file in; a report, a model, LIBSVM's files and predictions out; bad input ends in one line."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import inodes, names, near
from helpers.commands import check_metrics, check_report, flat, read, reported, run
from helpers.data import changed, split_rows, write_hdf5

from casvm import SVMModel

SOLVER = {"iterations", "n_support", "objective", "gap", "seconds", "kernel_rows", "kernel_values", "busy_seconds",
          "imbalance"}  # fmt: skip
PARAMS = {"C", "kernel", "tol", "cache_gib", "route", "balanced", "standardize", "dtype", "seed", "solver"}
COMMANDS = {  # some options of each method, and what they add to "params"
    "casvm": (["--route", "all"], {"gamma", "soft_k", "soft_t", "initial"}),
    "cpsvm": (["--kernel", "polynomial", "--gamma", "0.5", "--coef0", "1"], {"gamma", "degree", "coef0", "ratio"}),
    "bkmsvm": (["--kernel", "linear", "--dtype", "float32"], {"ratio"}),
    "fcfssvm": (["--route", "soft", "--standardize", "--gamma", "auto"], {"gamma", "soft_k", "soft_t", "ratio"}),
}


methods = pytest.mark.parametrize("method", COMMANDS)


@methods
def test_report(method, inputs, tmp_path, capsys):
    """Three classes, three parts, each method with other options."""
    words, more = COMMANDS[method]
    words = [inputs / "three.h5", "--partitions", "3", "--threads", "2", "--seed", "5", "--C", "1", *words]
    run(f"casvm.{method}", [*words, "--report", tmp_path / "r.json", "--model", tmp_path / "m.h5"])
    shown, err = capsys.readouterr()
    assert err == ""
    assert "150 training, 40 test, 3 features" in shown
    assert names(tmp_path) == ["m.h5", "r.json"]

    made = read(tmp_path / "r.json")
    check_report(made, f"casvm.{method}", inputs / "three.h5", more={"volume"})
    assert (made["threads_per_rank"], made["partitions"], made["grid"]) == (2, 3, [])
    assert sum(made["partition_sizes"]) == 150
    assert set(made["params"]) == PARAMS | more

    solver = made["solver"]
    assert set(solver) == SOLVER
    for name in SOLVER - {"busy_seconds", "imbalance"}:
        assert len(solver[name]) == 3
    assert all(isinstance(n, int) and n > 0 for name in ("iterations", "n_support") for n in solver[name])
    assert all(0 <= gap < 1e-3 for gap in solver["gap"])
    assert all(value > 0 for value in solver["objective"])
    assert all(s > 0 for s in solver["seconds"])
    assert (len(solver["busy_seconds"]), solver["imbalance"]) == (1, 1.0)
    model = SVMModel.load(tmp_path / "m.h5")
    assert [len(part.rows) for part in model.parts.values()] == solver["n_support"]
    assert model.sizes.tolist() == made["partition_sizes"]

    X, y = split_rows("test", 3)
    check_metrics(made["metrics"], y, model.predict(X.astype(model.dtype)))
    assert made["metrics"]["accuracy"] > 0.6


def test_as_a_program(python, inputs, tmp_path):
    """Training and prediction as a user starts them."""
    done = python("-W", "error", "-m", "casvm.casvm", inputs / "good.h5", "--partitions", "2", "--model", "m.h5",
                  "--report", "r.json", cwd=tmp_path)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "accuracy" in flat(done.stdout)
    done = python("-W", "error", "-m", "casvm.predict", "m.h5", inputs / "good.h5", "-o", "p.csv", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert names(tmp_path) == ["m.h5", "p.csv", "r.json"]


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("P", [1, 3])
def test_libsvm(P, inputs, tmp_path):
    """A file a part, with its support vectors and its bias."""
    words = [inputs / "three.h5", "--partitions", P, "--libsvm", tmp_path / "l.model", "--model", tmp_path / "m.h5"]
    made = reported("casvm.bkmsvm", words, tmp_path)
    exported = ["l.model"] if P == 1 else [f"l.{p:06d}.model" for p in range(P)]
    assert names(tmp_path) == sorted([*exported, "m.h5", "r.json"])
    model = SVMModel.load(tmp_path / "m.h5")
    for p, name in enumerate(exported):
        lines = (tmp_path / name).read_text().splitlines()
        stop = lines.index("SV")
        assert f"total_sv {made['solver']['n_support'][p]}" in lines[:stop]
        assert len(lines) - stop - 1 == made["solver"]["n_support"][p]
        (rho,) = [line.split()[1:] for line in lines[:stop] if line.startswith("rho")]
        np.testing.assert_array_equal(-np.array(rho, float), model.parts[p].b)


@methods
def test_routes(method, inputs, tmp_path):
    """Other answers by the same parts; the default is nearest, and all for random parts."""
    metrics, coefficients, decisions = {}, {}, {}
    X, _ = split_rows("test", 3)
    for route in (None, "nearest", "soft", "all"):
        words = [inputs / "three.h5", "--partitions", "4", "--model", tmp_path / "m.h5"]
        made = reported(f"casvm.{method}", words + ([] if route is None else ["--route", route]), tmp_path)
        usual = "all" if method == "casvm" else "nearest"
        assert made["params"]["route"] == (route or usual)
        metrics[route] = made["metrics"]
        model = SVMModel.load(tmp_path / "m.h5")
        coefficients[route] = np.concatenate([part.coef.ravel() for part in model.parts.values()])
        decisions[route] = model.decision_function(X)
    assert metrics[None] == metrics[usual]
    for route in ("soft", "all"):
        np.testing.assert_array_equal(coefficients[route], coefficients["nearest"])
        assert (decisions[route] != decisions["nearest"]).any()


def test_initial_root(inputs, tmp_path):
    """Rank 0 deals the rows out in another order: the same problem where there is one part."""
    made = {}
    for initial in ("local", "root"):
        words = [inputs / "three.h5", "--C", "1", "--initial", initial, "--tol", "1e-6"]
        words += ["--model", tmp_path / f"{initial}.h5"]
        made[initial] = reported("casvm.casvm", words, tmp_path)
        assert made[initial]["params"]["initial"] == initial
        assert made[initial]["comm"]["train"]["bytes"] == 0
    assert made["root"]["metrics"] == made["local"]["metrics"]
    X = split_rows("test", 3)[0]
    one, other = (SVMModel.load(tmp_path / f"{initial}.h5").decision_function(X) for initial in made)
    near(one, other, 1e-5)
    parted = reported("casvm.casvm", [inputs / "three.h5", "--initial", "root", "--partitions", "3"], tmp_path)
    assert parted["partition_sizes"] == [50, 50, 50]


def test_initial_root_without_test_rows(inputs, tmp_path):
    made = reported("casvm.casvm", [inputs / "train.h5", "--initial", "root"], tmp_path)
    assert (made["data"]["n_train"], made["data"]["n_test"], made["metrics"]) == (150, 0, {})


@pytest.mark.parametrize("method", ["fcfssvm", "bkmsvm"])
def test_ratio(method, tmp_path):
    """One class in six, to one side: every part gets its share of it, and has a model of two classes."""
    y = (np.arange(120) % 6 == 0).astype(float)
    write_hdf5(tmp_path / "in.h5", train=(np.random.default_rng(0).normal(size=(120, 3)) + 3 * y[:, None], y))
    held = {}
    for ratio in ([], ["--ratio"]):
        words = [tmp_path / "in.h5", "--partitions", "5", *ratio, "--model", tmp_path / "m.h5"]
        made = reported(f"casvm.{method}", words, tmp_path)
        assert made["params"]["ratio"] == bool(ratio)
        held[bool(ratio)] = [len(part.classes) for part in SVMModel.load(tmp_path / "m.h5").parts.values()]
    assert held[True] == [2] * 5
    assert min(held[False]) == 1


def test_checkpoint(inputs, tmp_path, forbidden):
    """The second time nothing is solved, no file is written, and the model is the same, bit for bit."""
    words = [inputs / "three.h5", "--C", "1", "--partitions", "3", "--checkpoint", tmp_path / "kept", "--model"]
    first = reported("casvm.cpsvm", [*words, tmp_path / "first.h5"], tmp_path)
    before = inodes(tmp_path / "kept")
    assert sorted(before) == ["lock", "part-000000.npz", "part-000001.npz", "part-000002.npz", "run.json"]
    with forbidden("casvm.tasks.fit_part"):
        second = reported("casvm.cpsvm", [*words, tmp_path / "second.h5"], tmp_path)
    assert inodes(tmp_path / "kept") == before
    assert (tmp_path / "first.h5").read_bytes() == (tmp_path / "second.h5").read_bytes()
    assert second["metrics"] == first["metrics"]
    for name in ("iterations", "n_support", "objective", "gap", "seconds"):
        assert second["solver"][name] == first["solver"][name]
    (tmp_path / "kept" / "part-000001.npz").unlink()  # as if killed before
    third = reported("casvm.cpsvm", [*words, tmp_path / "third.h5"], tmp_path)
    assert (tmp_path / "first.h5").read_bytes() == (tmp_path / "third.h5").read_bytes()
    assert third["metrics"] == first["metrics"]


def test_checkpoint_of_a_sparse_run(inputs, tmp_path, capsys):
    words = [inputs / "train", "--partitions", "3", "--checkpoint", tmp_path / "kept", "--model"]
    for name in ("first.h5", "second.h5"):
        run("casvm.fcfssvm", [*words, tmp_path / name, "--report", tmp_path / f"{name}.json"])
        resumed, out = read(tmp_path / f"{name}.json").get("resumed"), capsys.readouterr().out
        assert resumed == (None if name == "first.h5" else {"parts": 3, "search": 6})
        line = f"resumed: 3 of 3 parts, 6 pieces of the search, from {tmp_path / 'kept'}\n"
        assert (line in out) == (resumed is not None)
    assert (tmp_path / "first.h5").read_bytes() == (tmp_path / "second.h5").read_bytes()
    run("casvm.fcfssvm", [*words, tmp_path / "third.h5", "--quiet"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("partitions", "where"), [("1", "the solver stopped after 1 "), ("3", "3 of 3 parts stopped after 3 ")]
)
def test_limit_is_noted(partitions, where, inputs, tmp_path, capsys):
    run(
        "casvm.casvm",
        [inputs / "good.h5", "--partitions", partitions, "--max-iter", "1", "--report", tmp_path / "r.json"],
    )
    made = read(tmp_path / "r.json")
    shown = flat(capsys.readouterr().out)
    assert f"{where}iterations at a violation of {max(made['solver']['gap']):.3g}, above tol = 0.001" in shown
    run("casvm.casvm", [inputs / "good.h5", "--max-time", "1e-9"])
    assert "stopped after" in capsys.readouterr().out


def test_notes(inputs, capsys):
    data = [inputs / "good.h5", "--partitions", "3"]
    run("casvm.casvm", [*data, "--route", "nearest"])
    assert "--route all" in capsys.readouterr().out
    run("casvm.casvm", data)
    assert "more accurate" not in capsys.readouterr().out
    run("casvm.cpsvm", data)
    assert "--route" not in capsys.readouterr().out
    run("casvm.cpsvm", [*data, "--quiet"])
    assert capsys.readouterr().out == ""
    run("casvm.cpsvm", [*data, "--verbose"])
    assert capsys.readouterr().out.count("support vectors") == 3


def test_memory_is_asked_for_what_parts_need(inputs, tmp_path):
    """A cache of 1 GiB, the default, is not asked for where the parts' kernel matrices are smaller."""
    limited = reported("casvm.cpsvm", [inputs / "three.h5", "--memory-limit", "0.25"], tmp_path)
    assert limited["metrics"] == reported("casvm.cpsvm", [inputs / "three.h5"], tmp_path)["metrics"]


def test_cache_does_not_matter(inputs, tmp_path):
    """Nor do threads: the same model."""
    metrics = [
        reported("casvm.cpsvm", [inputs / "three.h5", "--tol", "1e-6", *words], tmp_path)["solver"]["objective"]
        for words in ([], ["--cache-gib", "0"], ["--threads", "1"])
    ]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-8)
    assert metrics[0] == pytest.approx(metrics[2], rel=1e-8)


# -- what is refused: the method, its arguments, and what the line on stderr must say --------------

BAD = {
    "missing file at root": ("casvm", ["nosuch.h5", "--initial", "root"], "nosuch.h5: no such file"),
    "truncated at root": ("casvm", ["truncated.h5", "--initial", "root"], "truncated.h5"),
    "nan at root": ("casvm", ["nan.h5", "--initial", "root"], "row 7, feature 2 is nan"),
    "nan in parts": ("bkmsvm", ["nan.h5", "--partitions", "3"], "row 7, feature 2 is nan"),
    "one class in parts": ("fcfssvm", ["one.h5", "--partitions", "3"], "one class only, 1"),
    "memory": ("casvm", ["good.h5", "--memory-limit", "1e-4"], "--cache-gib"),
    "route": ("casvm", ["good.h5", "--route", "oracle"], "--route"),
    "ratio of random parts": ("casvm", ["good.h5", "--ratio"], "--ratio"),
    "ratio of k-means": ("cpsvm", ["good.h5", "--ratio"], "does not balance classes"),
    "root of others": ("cpsvm", ["good.h5", "--initial", "root"], "--initial"),
    "parts 0": ("casvm", ["good.h5", "--partitions", "0"], "--partitions 0"),
    "parts": ("casvm", ["good.h5", "--partitions", "151"], "151 parts of the 150 rows"),
    "parts of k-means": ("cpsvm", ["good.h5", "--partitions", "151"], "151 parts of 150 rows"),
    "parts of bkm": ("bkmsvm", ["good.h5", "--partitions", "151"], "151 parts of 150 rows"),
    "parts of fcfs": ("fcfssvm", ["good.h5", "--partitions", "151"], "151 parts of 150 rows"),
    "libsvm": ("casvm", ["good.h5", "--libsvm", "nosuch/l.model"], "directory"),
    "checkpoint is a file": ("casvm", ["good.h5", "--checkpoint", "file"], "file: is a file"),
    "shortened option": ("casvm", ["good.h5", "--part", "3"], "--part"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_refused(what, inputs, refuses):
    # Outputs that could be written must not be, either.
    method, words, message = BAD[what]
    outputs = {"--report": "out.json", "--model": "out.h5", "--libsvm": "out.model"}
    out = [word for pair in outputs.items() if pair[0] not in words for word in pair]
    refuses(f"casvm.{method}", [*words, *out], message, inputs)


def test_libsvm_of_broken_labels(inputs, tmp_path, refuses):
    words = ["--libsvm", "out.model", "--model", "out.h5", "--report", "out.json"]
    refuses("casvm.casvm", [inputs / "halves.h5", *words], "whole numbers", tmp_path)


OTHER = {
    "seed": (["--seed", "1"], "seed was 0 there and is 1 here"),
    "C": (["--C", "2"], "C was 1.0 there and is 2.0 here"),
    "kernel": (["--kernel", "linear"], 'kernel was "gaussian" there and is "linear" here'),
    "tol": (["--tol", "1e-4"], "tol was"),
    "balanced": (["--balanced"], "class_weight was"),
    "dtype": (["--dtype", "float32"], "dtype was"),
    "partitions": (["--partitions", "2"], "partitions was"),
}


@pytest.fixture(scope="module")
def kept(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "kept"
    run("casvm.cpsvm", [inputs / "good.h5", "--C", "1", "--checkpoint", folder, "--quiet"])
    return folder


@pytest.mark.parametrize("what", OTHER)
def test_checkpoint_of_another_run(what, kept, inputs, refuses):
    words, message = OTHER[what]
    refuses("casvm.cpsvm", [inputs / "good.h5", "--C", "1", "--checkpoint", kept, *words], message, kept)


def test_checkpoint_of_other_rows_or_another_method(kept, inputs, tmp_path, refuses):
    y = split_rows("train")[1]
    changed(tmp_path / "other.h5", inputs / "good.h5", "train/y", 0, -y[0])
    others = [
        ("cpsvm", tmp_path / "other.h5", "training rows was"),
        ("casvm", inputs / "good.h5", 'method was "cpsvm" there and is "casvm" here'),
    ]
    for method, path, message in others:
        refuses(f"casvm.{method}", [path, "--C", "1", "--checkpoint", kept], message, kept)


def test_damaged_piece_of_a_checkpoint(inputs, tmp_path, refuses):
    words = [inputs / "good.h5", "--checkpoint", tmp_path / "kept"]
    run("casvm.cpsvm", [*words, "--quiet"])
    piece = tmp_path / "kept" / "part-000000.npz"
    piece.write_bytes(piece.read_bytes()[:100])
    refuses("casvm.cpsvm", words, "part-000000.npz: damaged", tmp_path)
