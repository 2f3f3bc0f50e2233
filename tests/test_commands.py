"""Behaviour that the commands of all families share: labels and formats of classes, overlap, help, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import refusal
from helpers.commands import flat, one_by_one, predicted, read, reported, run, without_names
from helpers.data import changed, split_rows, write_hdf5, write_rare_class
from helpers.families import model_of, predict
from sklearn.metrics import confusion_matrix

from cacore.run.launch import Parser

CLASSIFY = ["casvm.casvm", "casvm.cpsvm", "casvm.dcsvm", "casvm.dissmo", "asygcd"]


classify = pytest.mark.parametrize("program", CLASSIFY)


TRAIN = [*CLASSIFY, "cakrr.bkrr2", "cakrr.dkrr"]


# -- labels, as they are in files ----------------------------------------------------------------

FORMATS = {"csv": ["train.csv", "--test", "test.csv", "--target", "label"], "libsvm": ["train", "--test", "test"],
           "two hdf5": ["train.h5", "--test", "test.csv"]}  # fmt: skip


@pytest.mark.parametrize("program", ["casvm.bkmsvm", "casvm.dcsvm", "asygcd"])
@pytest.mark.parametrize("form", FORMATS)
def test_formats(form, program, inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(inputs)
    more, sparse = [] if program == "asygcd" else ["--partitions", "3"], form == "libsvm"
    made = reported(program, [*FORMATS[form], *more, "--standardize", "--model", tmp_path / "m.h5"], tmp_path)
    sizes = {"n_train": 150, "n_test": 40, "n_features": 12 if sparse else 3, "overlap": 0}
    assert without_names(made["data"]) == {"path": FORMATS[form][0], **sizes}
    assert made["metrics"]["accuracy"] > 0.6
    model = model_of(program, tmp_path / "m.h5")
    assert model.classes.tolist() == ([-1, 1, 4] if sparse else [-1, 1])
    assert model.classes.dtype == np.int64
    parts = [model] if program == "asygcd" else model.parts.values()
    assert all(sp.issparse(part.X) == sparse for part in parts)
    assert (np.abs(model.standardizer.mean).max() == 0) == sparse
    run(predict(program), [tmp_path / "m.h5", FORMATS[form][2], "-o", tmp_path / "p.csv", "--quiet"])
    y = split_rows("test", 3 if sparse else 2)[1]
    assert confusion_matrix(y, predicted(tmp_path / "p.csv")).tolist() == made["metrics"]["confusion"]


@classify
@pytest.mark.parametrize("label", [9, 2.5, 0.5])
def test_labels_that_were_not_trained(label, program, inputs, tmp_path):
    """Test rows of a class that the training rows lack are mistakes, and have a line of the confusion matrix."""
    changed(tmp_path / "in.h5", inputs / "good.h5", "test/y", slice(0, 8), label)
    more = ["--partitions", "2"] if program == "casvm.cpsvm" else []
    made = reported(program, [tmp_path / "in.h5", "--model", tmp_path / "m.h5", *more], tmp_path)["metrics"]
    X, y = split_rows("test")
    y[:8] = label
    classes = np.array(sorted({-1.0, 1.0, label}))
    got = model_of(program, tmp_path / "m.h5").predict(X)
    expected = confusion_matrix(*(np.searchsorted(classes, labels) for labels in (y, got)), labels=[0, 1, 2])
    assert made["confusion"] == expected.tolist()
    assert made["accuracy"] == pytest.approx((got == y).mean())


@classify
def test_broken_labels(program, inputs, tmp_path):
    """Labels that are not whole are labels all the same."""
    reported(program, [inputs / "halves.h5", "--model", tmp_path / "m.h5"], tmp_path)
    assert model_of(program, tmp_path / "m.h5").classes.tolist() == [-0.5, 0.5]
    run(predict(program), [tmp_path / "m.h5", inputs / "features.csv", "-o", tmp_path / "p.csv", "--quiet"])
    assert set((tmp_path / "p.csv").read_text().split()) == {"prediction", "-0.5", "0.5"}


@pytest.mark.parametrize(
    ("program", "more"), [("casvm.casvm", ["--partitions", "2"]), *((name, []) for name in CLASSIFY[1:])]
)
def test_balanced(program, more, tmp_path):
    """A rare class among the other's rows is found more often, at the price of the other."""
    write_rare_class(tmp_path / "in.h5")
    words = [tmp_path / "in.h5", "--C", "1", *more]
    plain, balanced = (reported(program, [*words, *option], tmp_path) for option in ([], ["--balanced"]))
    assert (plain["params"]["balanced"], balanced["params"]["balanced"]) == (False, True)
    assert balanced["metrics"]["balanced_accuracy"] > plain["metrics"]["balanced_accuracy"] + 0.1


def with_overlap(inputs, folder):
    """Files with five test rows that are training rows, and without them."""
    rows = {split: split_rows(split) for split in ("train", "test")}
    some = {split: (X[:5], y[:5]) for split, (X, y) in rows.items()}
    both = tuple(np.concatenate([rows["test"][i], some["train"][i]]) for i in range(2))
    write_hdf5(folder / "overlap.h5", train=rows["train"], test=both)
    return folder / "overlap.h5", inputs / "good.h5"


def both_metrics(program, words, data, folder):
    some, none = (reported(program, [path, *words], folder) for path in data)
    assert (some["data"]["overlap"], none["data"]["overlap"]) == (5, 0)
    assert "metrics_without_overlap" not in none
    return some["metrics"], some["metrics_without_overlap"], none["metrics"]


@pytest.mark.parametrize("program", [*TRAIN, "cakrr.twolevel", "cakrr.bkrr3"])
def test_rows_to_learn_and_to_test(program, inputs, tmp_path, capsys):
    """All test rows count in `metrics`, and those that are no training rows are judged by themselves as well."""
    data = with_overlap(inputs, tmp_path)
    if program == "asygcd":
        words = ["--threads", "1"]
    else:
        words = [] if program.endswith(("dissmo", "dkrr")) else ["--partitions", "2"]
        words += [] if program.startswith("casvm") else ["--sigma", "2", "--lambda", "1e-3"]
    found, rest, expected = both_metrics(program, words, data, tmp_path)
    assert capsys.readouterr() == ("", "")
    assert set(found) == set(rest) == set(expected)
    score = "mse" if program.startswith("cakrr") else "confusion"
    np.testing.assert_allclose(rest[score], expected[score], rtol=1e-9)
    assert np.sum(found[score]) == pytest.approx(45) if score == "confusion" else found[score] != rest[score]
    made = reported(program, [data[0], "--allow-overlap", *words], tmp_path)
    assert "overlap" not in made["data"]
    assert "metrics_without_overlap" not in made
    assert made["metrics"][score] == found[score]


def test_warning_about_overlap(inputs, tmp_path, capsys):
    path = with_overlap(inputs, tmp_path)[0]
    run("casvm.casvm", [path])
    out, err = capsys.readouterr()
    what = "5 of 45 test rows are training rows too"
    assert err.startswith(f"warning: {path} (test): {what} (first: row 40)")
    assert err.count("\n") == 1
    assert what in flat(out)
    assert "accuracy without overlap" in flat(out)


def test_nothing_but_overlap(inputs, tmp_path):
    made = reported("cakrr.bkrr2", [inputs / "train.h5", "--test", inputs / "train.csv", "--sigma", "1"], tmp_path)
    assert made["data"]["overlap"] == made["data"]["n_test"] == 150
    assert "metrics_without_overlap" not in made


def test_overlap_on_ranks(inputs, tmp_path, in_one_job):
    data, commands = with_overlap(inputs, tmp_path), []
    methods = [
        ["cakrr.bkrr2", "--sigma", "2", "--lambda", "1e-3"],
        ["casvm.casvm", "--initial", "root"],
        ["casvm.dissmo"],
    ]
    for number, (program, *words) in enumerate(methods):
        for path in data:
            out = ["--report", f"{path.stem}{number}.json", "--quiet"]
            commands.append([program, path, *words, *out])
    in_one_job(3, *commands)
    for number in range(len(methods)):
        some, none = (read(tmp_path / f"{path.stem}{number}.json") for path in data)
        assert some["data"]["overlap"] == 5
        score = "confusion" if number else "mse"
        np.testing.assert_allclose(some["metrics_without_overlap"][score], none["metrics"][score], rtol=1e-9)


def test_a_name_is_no_markup(inputs, tmp_path, monkeypatch, capsys):
    name = "[/bold]:bear:.csv"
    (tmp_path / "[").mkdir()
    (tmp_path / name).write_bytes((inputs / "train.csv").read_bytes())
    monkeypatch.chdir(tmp_path)
    run("casvm.casvm", [name])
    assert f"casvm on {name}" in flat(capsys.readouterr().out)


@pytest.mark.parametrize("program", TRAIN)
def test_no_test_rows(program, inputs, capsys):
    run(program, [inputs / "train.h5"])
    assert "no test rows: give --test" in flat(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("program", "words"), [("asygcd", ["--update", "--multi-class", "--cache-gib"]),
                           ("casvm.cpsvm", ["--partitions", "--gamma"]), ("cakrr.bkrr2", ["--sigma", "--lambda"]),
                           ("asygcd.predict", ["--decisions"])],
)  # fmt: skip
def test_help(program, words, capsys):
    with pytest.raises(SystemExit) as ended:
        run(program, ["--help"])
    out, err = capsys.readouterr()
    assert (ended.value.code or 0, err) == (0, "")
    assert all(word in out for word in words)


# -- what is refused: the arguments, and what the line on stderr must say ----------------------------

BAD = {
    "missing file": (["nosuch.h5"], "nosuch.h5: no such file"),
    "directory": (["."], "cannot be read"),
    "truncated": (["truncated.h5"], "truncated.h5"),
    "empty": (["empty.csv"], "empty.csv: the file is empty"),
    "token": (["token"], "token: line 2: '2;3'"),
    "word in csv": (["word.csv"], "word.csv: line 6, column 2 (c): 'two' is not a number"),
    "nan": (["nan.h5"], "nan.h5 (train): row 7, feature 2 is nan"),
    "nan in csv": (["nan.csv", "--gaps", "refuse"], "nan.csv: row 4 (line 6), feature 1 (b) is nan"),
    "test rows alone": (["rest.h5"], "rest.h5: test rows alone"),
    "no target": (["no-target.h5"], "no target"),
    "no such target": (["train.csv", "--target", "nosuch"], "no target column 'nosuch'"),
    "test features": (["train.h5", "--test", "wide.h5"], "6 features, but 3"),
    "two tests": (["good.h5", "--test", "test.csv"], "drop --test"),
    "overlap": (["train.h5", "--test", "train.csv", "--strict"], "150 of 150 test rows are training rows too"),
    "strict and not": (["good.h5", "--strict", "--allow-overlap"], "--strict, --allow-overlap: "),
    "memory 0": (["good.h5", "--memory-limit", "0"], "--memory-limit 0"),
    "seed": (["good.h5", "--seed", "-1"], "--seed -1"),
    "large seed": (["good.h5", "--seed", "5000000000"], "--seed 5000000000"),
    "dtype": (["good.h5", "--dtype", "float16"], "--dtype"),
    "threads 0": (["good.h5", "--threads", "0"], "--threads 0: it must be a whole number of at least 1"),
    "threads negative": (["good.h5", "--threads", "-2"], "--threads -2: it must be a whole number of at least 1"),
    "threads 1.5": (["good.h5", "--threads", "1.5"], "--threads"),
    "report place": (["good.h5", "--report", "nosuch/r.json"], "nosuch/r.json: the directory nosuch does not exist"),
    "model place": (["good.h5", "--model", "nosuch/m.h5"], "nosuch/m.h5: the directory nosuch does not exist"),
    "model is a directory": (["good.h5", "--model", "."], "is a directory"),
    "unknown option": (["good.h5", "--colour", "red"], "--colour"),
    "shortened option": (["good.h5", "--thre", "2"], "--thre"),
    "loud and quiet": (["good.h5", "--quiet", "--verbose"], "--verbose"),
    "no file": ([], "DATA"),
}  # fmt: skip
BAD_VALUES = {"words": (["text.csv"], "text.csv")}
BAD_CLASSES = {
    "one class": (["one.h5"], "the labels must be of at least 2 classes; there is one class only, 1"),
    "C 0": (["good.h5", "--C", "0"], "--C 0: it must be a positive number"),
    "C negative": (["good.h5", "--C", "-1"], "--C -1: it must be a positive number"),
    "C nan": (["good.h5", "--C", "nan"], "--C nan: it must be a positive number"),
    "C text": (["good.h5", "--C", "x"], "--C"),
    "gamma 0": (["good.h5", "--gamma", "0"], "--gamma 0: it must be a positive number"),
    "gamma x": (["good.h5", "--gamma", "x"], "--gamma x: it must be a positive number, scale"),
    "gamma nan": (["good.h5", "--gamma", "nan"], "--gamma nan: it must be a positive number"),
    "tol 0": (["good.h5", "--tol", "0"], "--tol 0: it must be a positive number"),
    "tol nan": (["good.h5", "--tol", "nan"], "--tol nan: it must be a positive number"),
    "time 0": (["good.h5", "--max-time", "0"], "--max-time 0: it must be a positive number"),
    "max-iter": (["good.h5", "--max-iter", "many"], "--max-iter"),
    "cache": (["good.h5", "--cache-gib", "-1"], "--cache-gib -1"),
    "cache inf": (["good.h5", "--cache-gib", "inf"], "--cache-gib inf"),
    "degree": (["good.h5", "--kernel", "polynomial", "--degree", "-1"], "--degree -1"),
    "coef0": (["good.h5", "--kernel", "sigmoid", "--coef0", "inf"], "--coef0 inf"),
    "kernel": (["good.h5", "--kernel", "rbf"], "--kernel"),
}
REFUSED = [
    (program, what) for program in TRAIN for what in {**BAD, **(BAD_CLASSES if program in CLASSIFY else BAD_VALUES)}
]


@pytest.mark.parametrize(("program", "what"), REFUSED, ids=[" ".join(one) for one in REFUSED])
def test_refused(program, what, inputs, refuses):
    words, message = {**BAD, **BAD_VALUES, **BAD_CLASSES}[what]
    outputs = {"--report": "out.json", "--model": "out.h5"}  # what could be written must not be, either
    out = [word for pair in outputs.items() if pair[0] not in words for word in pair]
    refuses(program, [*words, *out], message, inputs)


@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        ("asygcd", ["nosuch.h5"], "nosuch.h5: no such file"),
        ("cakrr.bkrr2", ["train.h5", "--test", "nosuch"], "nosuch: no such file"),
        ("casvm.predict", ["svm.h5", "nosuch"], "nosuch: no such file"),
        ("casvm.cpsvm", ["svm.h5"], "svm.h5: a model that this package saved; name a file that holds rows"),
        ("casvm.cpsvm", [""], "DATA '': it must be the name of a file"),
        ("casvm.cpsvm", ["good.h5", "--model", "-"], "--model '-': it must be the name of a file"),
        ("casvm.predict", ["svm.h5", "test.csv", "--report", "-"], "--report '-': it must be the name of a file"),
        ("cacore.traffic", ["ratio", "c.npz", "-o", "-"], "argument -o/--output: '-': it must be the name of a file"),
        ("cacore.io", ["convert", "good.h5", ""], "argument DST.h5: '': it must be the name of a file"),
        ("cacore.io", ["info", "train.csv", "--target", " "], "--target ' ': give the name or the number of a column"),
    ],
)
def test_refused_at_once(program, words, message, inputs, refuses, forbidden):
    """Nothing is compiled, which takes minutes on a new machine, before it is known that there are rows."""
    with forbidden("cacore.run.command.compiled_ahead"):
        refuses(program, words, message, inputs)


def test_usage_errors_are_input_errors():
    refusal(Parser(prog="x").parse_args, ["--nonsense"], match="unrecognized arguments: --nonsense")


TRAINED = {"cakrr.bkrr2": ["--sigma", "2"], "casvm.cpsvm": [], "asygcd": [],
           "cakriging": ["--range", "1", "--sill", "1", "--nugget", "0.1"]}  # fmt: skip


@pytest.mark.parametrize(
    ("programs", "modules"),
    [(["cakriging"], ["sklearn", "pandas", "scipy.stats"]),
     (["cakrr.bkrr2", "casvm.cpsvm", "asygcd"], ["sklearn", "pandas", "scipy.stats", "scipy.spatial"])],
    ids=["kriging", "others"],
)  # fmt: skip
def test_commands_load_what_they_need(programs, modules, inputs, python, tmp_path):
    """scikit-learn, which estimators alone need, takes longer to import than all else that a small run does."""
    commands = []
    for program in programs:
        model = tmp_path / f"{program}.h5"
        commands.append([program, inputs / "good.h5", *TRAINED[program], "--model", model, "--quiet"])
        commands.append([predict(program), model, inputs / "good.h5", "--quiet"])
    flag, code, words = one_by_one(commands)
    done = python(flag, code + f"print(*{set(modules)} & set(sys.modules))", words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
