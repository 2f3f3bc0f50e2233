"""Regression and one class by command: report, model and predictions; the same on more ranks; what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import names, near
from helpers.commands import check_report, flat, read, reported, run
from helpers.data import changed, write_csv, write_hdf5
from sklearn.metrics import confusion_matrix, mean_squared_error, precision_score, r2_score, recall_score
from sklearn.svm import SVR, NuSVR, OneClassSVM

from casvm import SVRModel
from partition import KBalance

N, TESTED, P = 157, 60, 3
SOLVER = {"iterations", "n_support", "objective", "gap", "seconds", "kernel_rows", "kernel_values", "converged",
          "busy_seconds", "imbalance"}  # fmt: skip
PARAMS = {"svm_type", "tol", "kernel", "gamma", "cache_gib", "standardize", "seed", "exact", "route", "dtype"}
# Of each machine, its command and options, LIBSVM's with them, and what they add to "params".
MACHINES = {
    "epsilon": ("casvm.svr", ["--C", "20", "--epsilon", "1"], SVR(C=20, epsilon=1.0), {"C", "epsilon"}),
    "nu": ("casvm.svr", ["--C", "20", "--nu", "0.4"], NuSVR(C=20, nu=0.4), {"C", "nu"}),
    "one class": ("casvm.oneclass", ["--nu", "0.1"], OneClassSVM(nu=0.1), {"nu"}),
}
machines = pytest.mark.parametrize("machine", MACHINES)
COMMON = ["--gamma", "0.5", "--tol", "1e-7"]


def rows(split):
    """Features, targets, and labels of which one in ten is an outlier."""
    n = {"train": N, "test": TESTED}[split]
    rng = np.random.default_rng(n)
    X, labels = rng.normal(size=(n, 3)), np.where(np.arange(n) % 10, 1.0, -1.0)
    X[labels < 0] *= 4
    return X, 300 + 10 * np.sin(2 * X.sum(axis=1)) + rng.normal(size=n), labels


def data_of(machine, folder):
    return folder / ("one.h5" if machine == "one class" else "reg.h5")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("values")
    (X, y, _), (T, u, told) = rows("train"), rows("test")
    write_hdf5(folder / "reg.h5", train=(X, y), test=(T, u))
    write_hdf5(folder / "one.h5", train=(X, None), test=(T, told))
    write_csv(folder / "train.csv", X, y)
    write_csv(folder / "unlabelled.csv", X)
    write_csv(folder / "labelled.csv", T, told)
    changed(folder / "constant.h5", folder / "reg.h5", "train/y", slice(None), 3.5)
    (folder / "words.csv").write_text("a,b,label\n1,2,spam\n3,4,ham\n")
    return folder


def check_metrics(made, machine, values):
    """Those of these values of the test rows, by scikit-learn."""
    _, u, told = rows("test")
    if machine != "one class":
        mse = mean_squared_error(u, values)
        expected = {"mse": mse, "rmse": np.sqrt(mse), "r2": r2_score(u, values)}
        assert made == pytest.approx(expected)
        return
    labels = np.where(values >= 0, 1, -1)
    assert made.pop("confusion") == confusion_matrix(told, labels).tolist()
    recalls = [recall_score(told, labels, pos_label=label) for label in (-1, 1)]
    assert made == pytest.approx({
        "outliers": (labels < 0).mean(), "accuracy": (labels == told).mean(), "balanced_accuracy": np.mean(recalls),
        "precision": precision_score(told, labels, pos_label=-1), "recall": recalls[0],
    })  # fmt: skip


@machines
def test_each_part_is_libsvms(machine, files, tmp_path, capsys):
    """The report, and the model: the nearest centre's machine of balanced parts."""
    program, words, theirs, more = MACHINES[machine]
    data = data_of(machine, files)
    words = [data, "--partitions", P, "--seed", 3, *COMMON, *words, "--model", tmp_path / "m.h5"]
    run(program, [*words, "--report", tmp_path / "r.json", "--libsvm", tmp_path / "l.model", "--verbose"])
    shown, err = capsys.readouterr()
    assert err == ""
    assert "part 2: " in shown
    assert names(tmp_path) == [*(f"l.{p:06d}.model" for p in range(P)), "m.h5", "r.json"]

    made = read(tmp_path / "r.json")
    check_report(made, program, data, (N, TESTED, 3))
    assert set(made["params"]) == PARAMS | more | {"partitioner"}
    assert (made["params"]["partitioner"], made["params"]["route"]) == ("kbalance", "nearest")
    assert set(made["solver"]) == SOLVER
    assert made["solver"]["converged"] == [True] * P
    model = SVRModel.load(tmp_path / "m.h5")
    assert [len(part.rows) for part in model.parts.values()] == made["solver"]["n_support"]

    (X, y, _), (T, _, _) = rows("train"), rows("test")
    parts = KBalance(P, random_state=3).fit(X)
    near(model.centers, parts.centers_, 1e-12)
    assert made["partition_sizes"] == parts.sizes_.tolist()
    asked, values = parts.predict(T), model.decision_function(T)
    for part in range(P):
        own = parts.labels_ == part
        expected = theirs.set_params(gamma=0.5, tol=1e-8).fit(X[own], y[own])
        rule = expected.decision_function if machine == "one class" else expected.predict
        scale = N / P / own.sum() if machine == "one class" else 1.0
        near(values[asked == part], scale * rule(T[asked == part]), 1e-4)
    check_metrics(made["metrics"], machine, values)


@machines
def test_all_rows_are_one_problem(machine, files, tmp_path):
    program, words, theirs, _ = MACHINES[machine]
    words = [data_of(machine, files), "--exact", *COMMON, *words, "--model", tmp_path / "m.h5"]
    made = reported(program, words, tmp_path)
    assert (made["partition_sizes"], made["params"]["route"]) == ([N], "sum")
    (X, y, _), (T, _, _) = rows("train"), rows("test")
    theirs.set_params(gamma=0.5, tol=1e-8).fit(X, y)
    expected = theirs.decision_function(T) if machine == "one class" else theirs.predict(T)
    near(SVRModel.load(tmp_path / "m.h5").decision_function(T), expected, 1e-4)


def test_the_scale_of_the_targets_does_not_matter(files, tmp_path):
    """The defaults are in units of their deviation."""
    X, y, _ = rows("train")
    write_hdf5(tmp_path / "far.h5", train=(X, 1e6 * y))
    values = []
    for name in (files / "reg.h5", tmp_path / "far.h5"):
        made = reported("casvm.svr", [name, "--partitions", "2", "--model", tmp_path / "m.h5"], tmp_path)
        values.append(SVRModel.load(tmp_path / "m.h5").predict(X))
    assert made["params"]["C"] == pytest.approx(1e6 * np.std(y))
    near(values[1] / 1e6, values[0], 1e-2)


@pytest.mark.parametrize("machine", ["epsilon", "one class"])
@pytest.mark.parametrize("more", [["--partitions", "4", "--route", "soft"], ["--exact"]], ids=["parts", "exact"])
def test_ranks(machine, more, files, tmp_path, in_one_job):
    """Two and three come to the model and the report of one; and train parts without a byte."""
    program, words, _, _ = MACHINES[machine]
    words = [data_of(machine, files), *COMMON, *words, *more]
    alone = reported(program, [*words, "--model", tmp_path / "m.h5"], tmp_path)
    T = rows("test")[0]
    expected = SVRModel.load(tmp_path / "m.h5").decision_function(T)
    for ranks in (2, 3):
        out = ["--quiet", "--model", "m.h5", "--report", "r.json"]
        predict = ["casvm.predict", "m.h5", data_of(machine, files), "--report", "p.json", "--quiet"]
        in_one_job(ranks, [program, *words, *out], predict)
        made = read(tmp_path / "r.json")
        assert made["ranks"] == ranks
        near(SVRModel.load(tmp_path / "m.h5").decision_function(T), expected, 1e-4)
        assert made["params"] == pytest.approx(alone["params"])
        for told in (made, read(tmp_path / "p.json")):
            assert set(told["metrics"]) == set(alone["metrics"])
            for name, value in told["metrics"].items():
                np.testing.assert_allclose(value, alone["metrics"][name], rtol=1e-4)
        sent = made["comm"]["train"]
        assert (sent["bytes"] > 0, sent["messages"] > 0) == (("--exact" in more),) * 2


@pytest.mark.parametrize("more", [["--partitions", "3"], ["--exact"]], ids=["parts", "exact"])
def test_resumed_to_the_same_bits(more, files, tmp_path, refuses):
    words = [files / "reg.h5", *more, "--checkpoint", tmp_path / "kept"]
    run("casvm.svr", [*words, "--model", tmp_path / "1.h5", "--quiet"])
    pieces = sorted((tmp_path / "kept").glob("*.npz"))
    assert len(pieces) == (1 if "--exact" in more else 3)
    pieces[-1].unlink()
    run("casvm.svr", [*words, "--model", tmp_path / "2.h5", "--quiet"])
    assert (tmp_path / "2.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()
    refuses("casvm.svr", [*words, "--C", "3"], "a checkpoint of another run: C was", tmp_path)


@pytest.mark.parametrize("machine", ["epsilon", "one class"])
def test_predictions(machine, files, tmp_path, capsys):
    """Of both kinds of models, by the one command."""
    data, head = data_of(machine, files), "prediction,decision" if machine == "one class" else "prediction"
    words = [data, "--partitions", "2", "--model", tmp_path / "m.h5"]
    made = reported(MACHINES[machine][0], words, tmp_path)
    out = ["-o", tmp_path / "p.csv", "--report", tmp_path / "p.json", "--decisions", "--quiet"]
    run("casvm.predict", [tmp_path / "m.h5", data, *out])
    assert read(tmp_path / "p.json")["metrics"] == made["metrics"]
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == head
    model, table = SVRModel.load(tmp_path / "m.h5"), np.array([line.split(",") for line in lines[1:]], float)
    np.testing.assert_array_equal(table[:, 0], model.predict(rows("test")[0]))
    np.testing.assert_array_equal(table[:, -1], model.decision_function(rows("test")[0]))
    assert capsys.readouterr() == ("", "")


def test_one_class_needs_no_labels(files, tmp_path):
    """A file without them says so; test rows may have some."""
    words = [files / "unlabelled.csv", "--target", "none", "--model", tmp_path / "m.h5"]
    made = reported("casvm.oneclass", [*words, "--test", files / "labelled.csv"], tmp_path)
    assert made["data"]["n_features"] == 3
    expected = made["metrics"]
    run("casvm.predict", [tmp_path / "m.h5", files / "labelled.csv", "--report", tmp_path / "p.json", "--quiet"])
    assert read(tmp_path / "p.json")["metrics"] == expected
    alone = reported("casvm.oneclass", [*words, "--test", files / "unlabelled.csv"], tmp_path)
    assert set(alone["metrics"]) == {"outliers"}
    assert (alone["data"]["overlap"], alone["data"]["n_test"]) == (N, N)
    assert alone["metrics"]["outliers"] <= 0.5


def test_random_parts_and_their_route(files, capsys):
    run("casvm.svr", [files / "reg.h5", "--partitions", "2", "--partitioner", "random"])
    assert "random parts: --route all" in flat(capsys.readouterr().out)


REFUSED = {
    "epsilon": ("svr", ["--epsilon", "-1"], "--epsilon -1: it must be a number of at least 0, or scale"),
    "C": ("svr", ["--C", "0"], "--C 0: it must be a positive number, or scale"),
    "nu": ("svr", ["--nu", "0"], "--nu 0: it must be a number above 0 and at most 1"),
    "nu of one class": ("oneclass", ["--nu", "1.5"], "--nu 1.5: it must be a number above 0 and at most 1"),
    "both": ("svr", ["--nu", "0.5", "--epsilon", "1"], "nu, epsilon: nu finds epsilon; give one of them"),
    "route": ("svr", ["--route", "best"], "--route: invalid choice: 'best'"),
    "partitioner": ("svr", ["--partitioner", "spectral"], "--partitioner: invalid choice: 'spectral'"),
    "both ways": ("svr", ["--partitioner", "fcfs", "--exact"], "--exact: not allowed with argument --partitioner"),
    "route of all": ("svr", ["--exact", "--route", "soft"], "route = soft: exact is one problem of all rows"),
    "parts of all": ("svr", ["--exact", "--partitions", "2"], "partitions = 2: exact is one problem of all rows"),
    "rounds of parts": ("svr", ["--working-set", "4"], "working_set: parts are solved each by one rank"),
    "parts": ("svr", ["--partitions", "158"], "158 parts of 157 rows: every part needs a row"),
    "C of one class": ("oneclass", ["--C", "1"], "unrecognized arguments: --C 1"),
    "libsvm": ("svr", ["--kernel", "l1", "--libsvm", "l.model"], "--libsvm: LIBSVM has no l1 kernel"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what, files, refuses):
    method, words, message = REFUSED[what]
    refuses(f"casvm.{method}", ["reg.h5", *words], message, files)


def test_targets_that_cannot_be(files, refuses):
    message = "constant.h5 (train): all 157 targets are 3.5; there is nothing to learn"
    refuses("casvm.svr", ["constant.h5"], message, files)
    refuses("casvm.svr", ["words.csv"], "python -m casvm.casvm and its relatives learn classes", files)
    refuses("casvm.svr", ["one.h5"], "one.h5 (train): there is no target y in it", files)


def test_nu_on_ranks(files, mpiexec):
    words = ["-m", "casvm.svr", files / "reg.h5", "--exact", "--nu", "0.5", "--quiet"]
    done = mpiexec(2, *words)
    assert done.returncode == 2
    assert "casvm.svr: nu: rows on many ranks keep one sum, and not one of each sign" in done.stderr
