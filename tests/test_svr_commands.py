"""Regression and one class by command: report, model and predictions; the same on more ranks; what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import names, near
from helpers.commands import check_report, flat, read, reported, run
from helpers.data import changed, sines, write_csv, write_hdf5
from sklearn.metrics import confusion_matrix, mean_squared_error, precision_score, r2_score, recall_score
from sklearn.svm import SVR, NuSVR, OneClassSVM

from casvm import SVRModel
from partition import KBalance

N, TESTED, P = 157, 60, 3
SOLVER = {"iterations", "n_support", "objective", "gap", "seconds", "kernel_rows", "kernel_values", "converged",
          "busy_seconds", "imbalance"}  # fmt: skip
PARAMS = {"svm_type", "tol", "kernel", "gamma", "cache_gib", "standardize", "seed", "exact", "divisions", "route",
          "dtype"}  # fmt: skip
# Of each machine, its command and options, LIBSVM's with them, and what they add to "params".
MACHINES = {
    "epsilon": ("casvm.svr", ["--C", "20", "--epsilon", "1"], SVR(C=20, epsilon=1.0), {"C", "epsilon", "overlap"}),
    "nu": ("casvm.svr", ["--C", "20", "--nu", "0.4"], NuSVR(C=20, nu=0.4), {"C", "nu", "overlap"}),
    "one class": ("casvm.oneclass", ["--nu", "0.1"], OneClassSVM(nu=0.1), {"nu"}),
}
machines = pytest.mark.parametrize("machine", MACHINES)
COMMON = ["--gamma", "0.5", "--tol", "1e-7"]


def data_of(machine, folder):
    return folder / ("one.h5" if machine == "one class" else "reg.h5")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("values")
    (X, y, _), (T, u, told) = sines(N), sines(TESTED)
    write_hdf5(folder / "reg.h5", train=(X, y), test=(T, u))
    write_hdf5(folder / "one.h5", train=(X, None), test=(T, told))
    write_csv(folder / "train.csv", X, y)
    write_csv(folder / "unlabelled.csv", X)
    write_csv(folder / "labelled.csv", T, told)
    changed(folder / "constant.h5", folder / "reg.h5", "train/y", slice(None), 3.5)
    (folder / "words.csv").write_text("a,b,label\n1,2,spam\n3,4,ham\n")
    return folder


def check_metrics(made, machine, values):
    """Check the metrics of these predictions for the test rows against scikit-learn."""
    _, u, told = sines(TESTED)
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
    assert set(made["params"]) == PARAMS | more | {"partitioner", "solver"}
    assert (made["params"]["partitioner"], made["params"]["route"]) == ("kbalance", "nearest")
    assert set(made["solver"]) == SOLVER
    assert made["solver"]["converged"] == [True] * P
    model = SVRModel.load(tmp_path / "m.h5")
    assert [len(part.rows) for part in model.parts.values()] == made["solver"]["n_support"]

    (X, y, _), (T, _, _) = sines(N), sines(TESTED)
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
    (X, y, _), (T, _, _) = sines(N), sines(TESTED)
    theirs.set_params(gamma=0.5, tol=1e-8).fit(X, y)
    expected = theirs.decision_function(T) if machine == "one class" else theirs.predict(T)
    near(SVRModel.load(tmp_path / "m.h5").decision_function(T), expected, 1e-4)


@pytest.mark.parametrize("times", [1e6, 1e-100])
def test_the_scale_of_the_targets_does_not_matter(times, files, tmp_path):
    """The defaults are in units of their deviation."""
    X, y, _ = sines(N)
    write_hdf5(tmp_path / "far.h5", train=(X, times * y))
    values = []
    for name in (files / "reg.h5", tmp_path / "far.h5"):
        made = reported("casvm.svr", [name, "--C", "scale", "--model", tmp_path / "m.h5"], tmp_path)
        values.append(SVRModel.load(tmp_path / "m.h5").predict(X))
    assert made["params"]["C"] == pytest.approx(times * np.std(y), rel=1e-9, abs=0)
    near(values[1] / times, values[0], 1e-2)


@pytest.mark.parametrize(
    ("ranks", "kinds"),
    [(2, {"epsilon": "exact", "one class": "parts"}), (3, {"epsilon": "parts", "one class": "exact"})],
)
def test_ranks(ranks, kinds, files, tmp_path, in_one_job):
    """They come to the model and the report of one; and train parts without a byte."""
    more, commands, expected = {"parts": ["--partitions", "4", "--route", "soft"], "exact": ["--exact"]}, [], {}
    T = sines(TESTED)[0]
    for machine, kind in kinds.items():
        program, words, _, _ = MACHINES[machine]
        words, folder = [data_of(machine, files), *COMMON, *words, *more[kind]], tmp_path / kind
        folder.mkdir()
        alone = reported(program, [*words, "--model", folder / "1.h5"], folder)
        expected[kind] = alone, SVRModel.load(folder / "1.h5").decision_function(T)
        commands.append([program, *words, "--quiet", "--model", f"{kind}/m.h5", "--report", f"{kind}/r.json"])
        report = ["--report", f"{kind}/p.json", "--quiet"]
        commands.append(["casvm.predict", f"{kind}/m.h5", data_of(machine, files), *report])
    in_one_job(ranks, *commands)
    for kind, (alone, decisions) in expected.items():
        made = read(tmp_path / kind / "r.json")
        assert made["ranks"] == ranks
        near(SVRModel.load(tmp_path / kind / "m.h5").decision_function(T), decisions, 1e-4)
        assert made["params"] == pytest.approx(alone["params"])
        for told in (made, read(tmp_path / kind / "p.json")):
            assert set(told["metrics"]) == set(alone["metrics"])
            for name, value in told["metrics"].items():
                np.testing.assert_allclose(value, alone["metrics"][name], rtol=1e-4)
        sent = made["comm"]["train"]
        assert (sent["bytes"] > 0, sent["messages"] > 0) == ((kind == "exact"),) * 2


@pytest.mark.parametrize("more", [["--partitions", "3"], ["--exact"]], ids=["parts", "exact"])
def test_resumed_to_the_same_bits(more, files, tmp_path, refuses):
    words = [files / "reg.h5", *more, "--C", "20", "--checkpoint", tmp_path / "kept"]
    run("casvm.svr", [*words, "--model", tmp_path / "1.h5", "--quiet"])
    pieces = sorted((tmp_path / "kept").glob("*.npz"))
    assert len(pieces) == (1 if "--exact" in more else 3)
    pieces[-1].unlink()
    run("casvm.svr", [*words, "--model", tmp_path / "2.h5", "--quiet"])
    assert (tmp_path / "2.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()
    refuses("casvm.svr", [*words, "--tol", "1"], "a checkpoint of another run: tol was", tmp_path)


@pytest.mark.parametrize("machine", ["epsilon", "one class"])
def test_predictions(machine, files, tmp_path, capsys):
    """One command predicts with both kinds of models."""
    data, head = data_of(machine, files), "prediction,decision" if machine == "one class" else "prediction"
    words = [data, "--partitions", "2", "--gamma", "0.5", "--model", tmp_path / "m.h5"]
    made = reported(MACHINES[machine][0], words, tmp_path)
    out = ["-o", tmp_path / "p.csv", "--report", tmp_path / "p.json", "--quiet"]
    run("casvm.predict", [tmp_path / "m.h5", data, *out, *(["--decisions"] if machine == "one class" else [])])
    assert read(tmp_path / "p.json")["metrics"] == made["metrics"]
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == head
    model, table = SVRModel.load(tmp_path / "m.h5"), np.array([line.split(",") for line in lines[1:]], float)
    np.testing.assert_array_equal(table[:, 0], model.predict(sines(TESTED)[0]))
    np.testing.assert_array_equal(table[:, -1], model.decision_function(sines(TESTED)[0]))
    assert capsys.readouterr() == ("", "")


def test_what_classes_alone_have(files, tmp_path, refuses):
    model = tmp_path / "m.h5"
    run("casvm.svr", [files / "reg.h5", "--C", "1", "--gamma", "1", "--model", model, "--quiet"])
    predict = ("casvm.predict", [model, files / "reg.h5"])
    for option, message in (
        ("--probability", "the model has no classes"),
        ("--decisions", "the model is a regression's"),
    ):
        refuses(predict[0], [*predict[1], option], f"{option}: {message}", tmp_path)


def test_one_class_needs_no_labels(files, tmp_path):
    """A file without them says so; test rows may have some."""
    words = [files / "unlabelled.csv", "--target", "none", "--model", tmp_path / "m.h5"]
    made = reported("casvm.oneclass", [*words, "--test", files / "labelled.csv"], tmp_path)
    assert made["data"]["n_features"] == 3
    expected = made["metrics"]
    run("casvm.predict", [tmp_path / "m.h5", files / "labelled.csv", "--report", tmp_path / "p.json", "--quiet"])
    assert read(tmp_path / "p.json")["metrics"] == expected
    (X, _, _), (T, _, _) = sines(N), sines(TESTED)
    write_csv(tmp_path / "both.csv", np.concatenate([T, X[:20]]))
    both = reported("casvm.oneclass", [*words, "--test", tmp_path / "both.csv"], tmp_path)
    assert (both["data"]["overlap"], both["data"]["n_test"]) == (20, TESTED + 20)
    assert set(both["metrics"]) == {"outliers"}
    assert both["metrics_without_overlap"] == {"outliers": expected["outliers"]}


@pytest.mark.parametrize("route", ["nearest", "soft"])
def test_the_mean_of_divisions(route, files, tmp_path):
    """Each is that of its seed; with the sizes of all parts in the report, and a piece a part in a checkpoint."""
    T, values = sines(TESTED)[0], []
    words = [files / "reg.h5", "--partitions", P, "--C", "20", *COMMON, "--route", route]
    for seed in (3, 4):
        reported("casvm.svr", [*words, "--seed", seed, "--model", tmp_path / "m.h5"], tmp_path)
        values.append(SVRModel.load(tmp_path / "m.h5"))
    units = {model.soft and model.soft.t for model in values}
    both = ["--seed", "3", "--divisions", "2", "--checkpoint", tmp_path / "kept", "--model", tmp_path / "m.h5"]
    made = reported("casvm.svr", [*words, *both], tmp_path)
    assert (made["partitions"], sum(made["partition_sizes"]), made["params"]["divisions"]) == (2 * P, 2 * N, 2)
    assert len(made["solver"]["n_support"]) == 2 * P
    model = SVRModel.load(tmp_path / "m.h5")
    values[1].soft = values[0].soft  # the unit of distances is the first division's
    near(model.predict(T), np.mean([one.predict(T) for one in values], axis=0), 1e-4)
    assert len(units) == (2 if route == "soft" else 1)
    assert len(list((tmp_path / "kept").glob("*.npz"))) == 2 * P


# -- C, epsilon and gamma --------------------------------------------------------------------------


def test_no_options_choose_a_good_model(files, tmp_path, capsys):
    """48 settings, of which the best one by the rows left out is used, and is better than the usual one."""
    words = [files / "reg.h5", "--partitions", "2", "--plot", tmp_path / "p.png", "--report", tmp_path / "r.json"]
    run("casvm.svr", words)
    assert "best settings" in capsys.readouterr().out
    made = read(tmp_path / "r.json")
    check_report(made, "casvm.svr", files / "reg.h5", (N, TESTED, 3), {"cv"})
    best = max(made["grid"], key=lambda row: row["cv_r2"])
    assert len(made["grid"]) == 48
    assert (made["cv"]["folds"], made["cv"]["solved"], made["cv"]["score"]) == (5, 480, best["cv_r2"])
    assert {name: made["params"][name] for name in ("C", "epsilon", "gamma")} == {
        name: best[name] for name in ("C", "epsilon", "gamma")
    }
    usual = reported("casvm.svr", [files / "reg.h5", "--partitions", "2", "--C", "scale"], tmp_path)
    assert made["metrics"]["r2"] > usual["metrics"]["r2"] + 0.1
    assert len(reported("casvm.svr", [files / "reg.h5", "--quick"], tmp_path)["grid"]) == 12


CHOICE = {kind: [*more, "--C", "2,20", "--epsilon", "0.5,2", "--gamma", "0.3,1", "--cv", "3"]
          for kind, more in {"parts": ["--partitions", "4"], "exact": ["--exact"]}.items()}  # fmt: skip


def test_choice_on_ranks(files, tmp_path, in_one_job):
    """Three ranks compare as one does, and send nothing but sums."""
    data = files / "reg.h5"
    in_one_job(3, *(["casvm.svr", data, *CHOICE[kind], "--quiet", "--report", f"{kind}.json"] for kind in CHOICE))
    for kind, words in CHOICE.items():
        alone, made = reported("casvm.svr", [data, *words], tmp_path), read(tmp_path / f"{kind}.json")
        scores = [[row["cv_r2"] for row in one["grid"]] for one in (made, alone)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-6)
        assert made["params"] == pytest.approx(alone["params"])
        assert made["comm"]["search"]["bytes"] < 10_000


@pytest.mark.parametrize("kind", CHOICE)
def test_a_search_goes_on_from_its_pieces(kind, files, tmp_path, forbidden):
    words = [files / "reg.h5", *CHOICE[kind], "--checkpoint", tmp_path / "kept", "--quiet", "--model"]
    run("casvm.svr", [*words, tmp_path / "1.h5"])
    pieces = sorted((tmp_path / "kept").glob("search-*.npz"))
    assert len(pieces) == (4 if kind == "parts" else 1)
    with forbidden("casvm.search.regression.judge"):
        run("casvm.svr", [*words, tmp_path / "2.h5"])
    assert (tmp_path / "2.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()


def test_too_few_rows_to_choose(tmp_path, capsys):
    write_hdf5(tmp_path / "few.h5", train=(np.eye(3), np.arange(3.0)))
    run("casvm.svr", [tmp_path / "few.h5", "--partitions", "3"])
    assert "too few rows to compare settings" in flat(capsys.readouterr().out)


def test_random_parts_and_their_route(files, capsys):
    words = [files / "reg.h5", "--C", "1", "--partitions", "2", "--partitioner", "random"]
    run("casvm.svr", [*words, "--route", "nearest"])
    assert "random parts: --route all" in flat(capsys.readouterr().out)
    run("casvm.svr", words)
    assert "more accurate" not in flat(capsys.readouterr().out)


REFUSED = {
    "epsilon": ("svr", ["--epsilon", "-1"], "--epsilon -1: it must be a number of at least 0, or scale, a comma list"),
    "C": ("svr", ["--C", "0"], "--C 0: it must be a positive number, or scale"),
    "nu": ("svr", ["--nu", "0"], "--nu 0: it must be a number above 0 and at most 1"),
    "nu of one class": ("oneclass", ["--nu", "1.5"], "--nu 1.5: it must be a number above 0 and at most 1"),
    "both": ("svr", ["--nu", "0.5", "--epsilon", "1"], "nu, epsilon: nu determines epsilon; give one of"),
    "route": ("svr", ["--route", "best"], "--route: invalid choice: 'best'"),
    "partitioner": ("svr", ["--partitioner", "spectral"], "--partitioner: invalid choice: 'spectral'"),
    "both ways": ("svr", ["--partitioner", "fcfs", "--exact"], "--exact: not allowed with argument --partitioner"),
    "route of all": ("svr", ["--exact", "--route", "soft"], "route = soft: it applies to parts, and exact solves one"),
    "parts of all": ("svr", ["--exact", "--partitions", "2"], "partitions = 2: it applies to parts, and exact"),
    "divisions of all": ("svr", ["--exact", "--divisions", "2"], "divisions = 2: it applies to parts, and exact"),
    "overlap of all": ("svr", ["--exact", "--overlap", "1"], "overlap = 1.0: it applies to parts, and exact"),
    "overlap": ("svr", ["--overlap", "-1"], "--overlap -1: it must be a number from 0 to 100"),
    "overlap of random parts": ("svr", ["--partitioner", "random", "--overlap", "1"], "overlap: random parts have"),
    "overlap of one class": ("oneclass", ["--overlap", "1"], "unrecognized arguments: --overlap 1"),
    "rounds of nu": ("svr", ["--nu", "0.5", "--exact", "--working-set", "4"], "nu, working_set: nu-SVR is not solved"),
    "rounds of parts": ("svr", ["--working-set", "4"], "working_set: it only applies to --exact"),
    "parts": ("svr", ["--partitions", "158"], "158 parts of 157 rows: every part needs a row"),
    "C of one class": ("oneclass", ["--C", "1"], "unrecognized arguments: --C 1"),
    "grid of nu": ("svr", ["--nu", "0.5", "--C", "1,2"], "nu: several settings can only be compared with eps"),
    "gammas of one class": ("oneclass", ["--gamma", "1,2"], "gamma: without targets, several values cannot be"),
    "folds": ("svr", ["--cv", "158"], "cv = 158: there are only 157 rows; ask for fewer folds"),
    "gammas of none": ("svr", ["--kernel", "linear", "--gamma", "1,2"], "gamma: several values are given, but this"),
    "quick": ("svr", ["--C", "1", "--quick"], "quick: it shortens a default grid, and neither C, epsilon nor"),
    "libsvm": ("svr", ["--kernel", "l1", "--libsvm", "l.model"], "--libsvm: LIBSVM has no l1 kernel"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what, files, refuses):
    method, words, message = REFUSED[what]
    refuses(f"casvm.{method}", ["reg.h5", *words], message, files)


def test_targets_that_cannot_be(files, refuses):
    message = "constant.h5 (train): all 157 targets are 3.5; there is nothing to learn"
    refuses("casvm.svr", ["constant.h5"], message, files)
    refuses("casvm.svr", ["words.csv"], "for class labels, use python -m casvm.casvm", files)
    refuses("casvm.svr", ["one.h5"], "one.h5 (train): there is no target y in it", files)
