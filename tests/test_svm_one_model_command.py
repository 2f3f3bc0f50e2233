"""The commands that end in one model, in one process and in three: report, model, predictions, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import inodes, names
from helpers.commands import check_metrics, check_report, flat, predicted, read, reported, run
from helpers.data import SIZE, split_rows

from casvm import SMOSVC, SVMModel

# Of each method, some options of its own, and what they add to "params".
METHODS = {
    "cascade": (["--partitions", "5", "--passes", "3"], {"gamma", "passes", "initial"}),
    "dcsvm": (["--partitions", "5", "--kernel", "linear", "--dtype", "float32"], {"ratio"}),
    "dcfilter": (["--partitions", "5", "--standardize"], {"gamma", "passes", "ratio"}),
    "dissmo": (["--working-set", "8"], {"gamma", "working_set", "initial"}),
}
methods = pytest.mark.parametrize("method", METHODS)
PARAMS = {"C", "kernel", "tol", "cache_gib", "route", "balanced", "standardize", "dtype", "seed"}
STATISTICS = {"iterations", "n_support", "objective", "gap", "seconds", "kernel_rows", "kernel_values"}


@methods
def test_report(method, inputs, tmp_path, capsys):
    words, more = METHODS[method]
    words = [inputs / "three.h5", "--threads", "2", "--seed", "5", "--model", tmp_path / "m.h5", *words]
    run(f"casvm.{method}", [*words, "--report", tmp_path / "r.json", "--comm-matrix", tmp_path / "c.npz"])
    shown, err = capsys.readouterr()
    assert err == ""
    assert "150 training, 40 test, 3 features" in shown
    assert names(tmp_path) == ["c.npz", "m.h5", "r.json"]

    made, whole = read(tmp_path / "r.json"), method == "dissmo"
    check_report(made, f"casvm.{method}", inputs / "three.h5", more={"volume"})
    assert (made["threads_per_rank"], made["partitions"]) == (2, 1 if whole else 5)
    assert sum(made["partition_sizes"]) == 150
    assert set(made["params"]) == PARAMS | more | (set() if whole else {"solver"})
    assert made["params"]["route"] == "sum"

    solver = made["solver"]
    tree_alone = {"passes", "average_parallelism", "layers"}
    assert set(solver) == STATISTICS | {"busy_seconds", "imbalance"} | (set() if whole else tree_alone)
    lines = 1 if whole else 4 * solver["passes"]
    assert all(len(solver[name]) == lines for name in STATISTICS)
    assert all(0 <= gap < 1e-3 for gap in solver["gap"])
    if not whole:
        assert len(solver["layers"]) == lines
        assert 1 <= solver["passes"] <= made["params"].get("passes", 1)
        assert solver["average_parallelism"] == 1.0
        assert [len(layer["rows"]) for layer in solver["layers"][:4]] == [5, 2, 1, 1]
        assert solver["layers"][0]["rows"] == made["partition_sizes"]
        assert "busy on average" in shown
    model = SVMModel.load(tmp_path / "m.h5")
    assert model.sizes.tolist() == [len(model.parts[0].rows)] == [solver["n_support"][-1]]

    X, y = split_rows("test", 3)
    check_metrics(made["metrics"], y, model.predict(X.astype(model.dtype)))
    assert made["metrics"]["accuracy"] > 0.8


@methods
@pytest.mark.parametrize(("name", "k"), [("good.h5", 2), ("three.h5", 3)])
def test_predict(method, name, k, inputs, tmp_path, capsys):
    """The same accuracy and the same labels as in training, and those of the exact solver but for a few."""
    words = [inputs / name, "--gamma", "0.3", "--model", tmp_path / "m.h5"]
    trained = reported(f"casvm.{method}", [*words, *METHODS[method][0]], tmp_path)
    out = ["-o", tmp_path / "p.csv", "--report", tmp_path / "p.json", "--quiet"]
    run("casvm.predict", [tmp_path / "m.h5", inputs / name, *out])
    made = read(tmp_path / "p.json")
    assert (made["params"]["method"], made["params"]["route"], made["data"]["n_test"]) == (method, "sum", 40)
    assert made["metrics"] == trained["metrics"]
    assert capsys.readouterr() == ("", "")
    (X, y), (T, u) = (split_rows(split, k) for split in SIZE)
    got = predicted(tmp_path / "p.csv")
    np.testing.assert_array_equal(got, SVMModel.load(tmp_path / "m.h5").predict(T))
    assert (got == u).mean() == pytest.approx(trained["metrics"]["accuracy"])
    assert (got != SMOSVC(gamma=0.3).fit(X, y).predict(T)).sum() <= 2


@methods
def test_sparse_file(method, inputs, tmp_path):
    """Trained, kept, taken up again, and exported for LIBSVM."""
    words = [inputs / "train", "--checkpoint", tmp_path / "kept", *METHODS[method][0]]
    first = reported(f"casvm.{method}", [*words, "--model", tmp_path / "first.h5"], tmp_path)
    files = inodes(tmp_path / "kept")
    options = ["--model", tmp_path / "second.h5", "--libsvm", tmp_path / "l.model"]
    second = reported(f"casvm.{method}", [*words, *options], tmp_path)
    assert inodes(tmp_path / "kept") == files
    assert len(files) > 1
    assert (tmp_path / "first.h5").read_bytes() == (tmp_path / "second.h5").read_bytes()
    assert second["solver"]["objective"] == first["solver"]["objective"]
    support = first["solver"]["n_support"][-1]
    assert f"\ntotal_sv {support}\n" in (tmp_path / "l.model").read_text()
    assert sorted(p.name for p in tmp_path.glob("*.model")) == ["l.model"]


def test_read_at_the_root(inputs, tmp_path):
    """The same exact solution."""
    words = [inputs / "three.h5", "--tol", "1e-6", "--model", tmp_path / "m.h5"]
    found = [reported("casvm.dissmo", [*words, "--initial", initial], tmp_path) for initial in ("local", "root")]
    assert found[0]["solver"]["objective"] == pytest.approx(found[1]["solver"]["objective"], rel=1e-6)
    assert found[0]["metrics"] == found[1]["metrics"]


@methods
def test_notes(method, inputs, capsys):
    """Nothing about routes, of which there is but one; and that a limit was reached."""
    words = [inputs / "three.h5", *METHODS[method][0]]
    run(f"casvm.{method}", words)
    assert "--route" not in capsys.readouterr().out
    run(f"casvm.{method}", [*words, "--max-iter", "1", "--verbose"])
    shown = flat(capsys.readouterr().out)
    assert "above tol = 0.001" in shown
    assert shown.count(" support vectors, ") >= (1 if method == "dissmo" else 9)
    run(f"casvm.{method}", [*words, "--quiet"])
    assert capsys.readouterr().out == ""


# -- three ranks ---------------------------------------------------------------------------------------


def test_three_ranks(in_one_job, inputs, tmp_path):
    """All commands and their predictions."""
    commands, data = [], inputs / "three.h5"
    for name in METHODS:
        out = ["--model", f"{name}.h5", "--report", f"{name}.json", "--comm-matrix", f"{name}.npz"]
        share = ["--working-set", "8"] if name == "dissmo" else ["--partitions", "5"]
        commands.append([f"casvm.{name}", data, "--gamma", "0.3", "--tol", "1e-6", "--quiet", *share, *out])
        commands.append(["casvm.predict", f"{name}.h5", data, "-o", f"{name}.csv", "--quiet"])
    in_one_job(3, *commands)
    (X, y), (T, u) = (split_rows(split, 3) for split in SIZE)
    exact = SMOSVC(gamma=0.3, tol=1e-6).fit(X, y)
    for method in METHODS:
        made = read(tmp_path / f"{method}.json")
        solver, whole = made["solver"], method == "dissmo"
        assert (made["ranks"], made["partitions"]) == (3, 3 if whole else 5)
        assert made["partition_sizes"] == [50] * 3 or not whole
        assert sum(made["partition_sizes"]) == 150
        assert len(solver["busy_seconds"]) == 3
        assert made["comm"]["train"]["bytes"] > 0
        assert (made["comm"]["partition"]["bytes"] > 0) == (not whole)
        if not whole:
            layers = solver["layers"]
            total = sum(layer["layer_seconds"] for layer in layers)
            busy = sum(layer["layer_seconds"] * layer["ranks"] for layer in layers)
            assert [layer["ranks"] for layer in layers[:4]][::3] == [3, 1]
            assert solver["average_parallelism"] == pytest.approx(busy / total, rel=1e-9)
            assert 1 <= solver["average_parallelism"] < 3
        if method in ("dcsvm", "dissmo"):
            assert solver["objective"][-1] == pytest.approx(exact.objective_.sum(), rel=1e-6)
            # The prediction is of one part a rank.
            assert whole or made["volume"]["terms"]["m"] == 150
        model = SVMModel.load(tmp_path / f"{method}.h5")
        labels = predicted(tmp_path / f"{method}.csv")
        assert len(model.parts[0].rows) == solver["n_support"][-1]
        np.testing.assert_array_equal(labels, model.predict(T))  # three ranks answer as one does
        assert made["metrics"]["accuracy"] == pytest.approx((labels == u).mean())
        if method in ("dcsvm", "dissmo"):
            np.testing.assert_array_equal(labels, exact.predict(T))
        with np.load(tmp_path / f"{method}.npz") as file:
            place = file["phases"].tolist().index("train")
            assert file["bytes"][place].sum() == made["comm"]["train"]["bytes"]
            assert file["messages"][place].sum() == made["comm"]["train"]["messages"]
            if not whole:  # point to point, up the tree
                np.fill_diagonal(file["bytes"][place][:, :3], 0)
                assert file["bytes"][place][:, :3].any()


# -- what is refused -----------------------------------------------------------------------------------

BAD = {
    "passes 0": (["cascade", "dcfilter"], ["--passes", "0"], "--passes 0: it must be a whole number of at least 1"),
    "passes -1": (["cascade"], ["--passes", "-1"], "--passes -1"),
    "passes 1.5": (["cascade", "dcfilter"], ["--passes", "1.5"], "--passes"),
    "passes of all rows": (["dcsvm"], ["--passes", "2"], "--passes"),
    "passes of one problem": (["dissmo"], ["--passes", "2"], "--passes"),
    "working set 1": (["dissmo"], ["--working-set", "1"], "--working-set 1: it must be a whole number of at least 2"),
    "working set x": (["dissmo"], ["--working-set", "x"], "--working-set"),
    "working set of a tree": (["cascade", "dcsvm", "dcfilter"], ["--working-set", "8"], "--working-set"),
    "parts of one problem": (["dissmo"], ["--partitions", "3"], "partitions = 3 on 1 ranks: dissmo solves one problem"),
    "parts 0": (list(METHODS), ["--partitions", "0"], "--partitions 0"),
    "parts": (["cascade", "dcsvm", "dcfilter"], ["--partitions", "151"], "every part needs a row"),
    "soft route": (list(METHODS), ["--route", "soft"], "--route"),
    "all route": (list(METHODS), ["--route", "all"], "--route"),
    "ratio": (["cascade", "dissmo"], ["--ratio"], "--ratio"),
    "ratio of k-means": (["dcsvm", "dcfilter"], ["--ratio"], "does not balance classes"),
    "root of k-means": (["dcsvm", "dcfilter"], ["--initial", "root"], "--initial"),
    "C": (list(METHODS), ["--C", "0"], "--C 0"),
    "memory": (list(METHODS), ["--memory-limit", "0.5"], "--cache-gib"),
}  # fmt: skip
REFUSED = [(method, what) for what, (names, *_) in BAD.items() for method in names]


@pytest.mark.parametrize(("method", "what"), REFUSED, ids=[" ".join(pair) for pair in REFUSED])
def test_refused(method, what, inputs, tmp_path, refuses):
    _, words, message = BAD[what]
    words = [inputs / "three.h5", *words, "--report", "r.json", "--model", "m.h5"]
    refuses(f"casvm.{method}", words, message, tmp_path)


def test_checkpoint_of_other_passes(inputs, tmp_path, refuses):
    words = [inputs / "three.h5", "--partitions", "2", "--checkpoint", tmp_path / "kept", "--quiet"]
    run("casvm.cascade", words)
    for more, message in ((["--passes", "3"], "passes was 2 there and is 3 here"), (["--seed", "1"], "seed was")):
        refuses("casvm.cascade", [*words, *more], message, tmp_path)
