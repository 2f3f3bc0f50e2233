"""Commands with odd options, files and numbers of parts: each does its work, or ends with one line and status 2."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import runpy
import shutil
import sys
import warnings
from unittest import mock

import h5py
import numpy as np

TRAIN = (
    "casvm.casvm", "casvm.cpsvm", "casvm.bkmsvm", "casvm.fcfssvm", "casvm.cascade", "casvm.dcsvm", "casvm.dcfilter",
    "casvm.dissmo", "cakrr.dkrr", "cakrr.dckrr", "cakrr.kkrr", "cakrr.kkrr2", "cakrr.bkrr", "cakrr.bkrr2",
    "cakrr.subset", "cakrr.twolevel", "casvm.svr", "casvm.oneclass", "asygcd",
)  # fmt: skip
OTHERS = ("casvm.predict", "cakrr.predict", "asygcd.predict", "cacore.io", "cacore.traffic")
FORMS = [*TRAIN, *OTHERS]
GOOD = ("refused", "done")
WORDS = (
    "0", "1", "2", "3", "-1", "0.5", "1e300", "1e-300", "nan", "inf", "-inf", "1e400", "9" * 40, "", " ", "x", "é",
    "0x10", "1_0", "1:2:3", "1:0:3", "1:2:1000000000", ",", "1,,2", "1,2", "gaussian", "linear", "polynomial",
    "sigmoid", "soft", "all", "nearest", "smo", "asygcd", "float32", "float16", "in.h5", "svm.h5", "krr.h5",
    "asygcd.h5", "none", "train.csv", "out", "folder", "folder/out", "none/out", "/dev/null", "label", "a" * 300, "--",
    "-", "--help", "[1]", "\N{SNOWMAN}", "laplacian", "matern32", "l1", "rational", "auto", "diagonal", "full",
    "out.png", "a,label", "wendland2_product",
)  # fmt: skip
LIKELY = (
    "0.5", "1", "2", "3", "1,2", "out", "gaussian", "polynomial", "soft", "float32", "label", "train.csv", "diagonal",
    "full", "l1", "auto",
)  # fmt: skip
LIMIT = 256 << 20  # of memory: less than any --memory-limit among the words that is not refused
LISTED = {"cacore.io": ["convert", "info"], "cacore.traffic": ["pattern", "ratio"]}


def case(form, number, seed, folder):
    """One command line, in a folder that has one good file of each kind."""
    rng = np.random.default_rng([seed, number, FORMS.index(form)])
    place = folder / "place"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(_made(folder), place)
    before = _contents(place)
    words = [str(word) for word in _words(form, rng)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(place), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = _run(form, words)
    after, shown = _contents(place), " ".join(words)
    lost = [name for name in before if after.get(name) != before[name]]
    if lost and not set(lost) <= set(words):
        return f"changed {lost}: {shown}"
    if {"in.h5", "train.csv"} & set(lost) and words[0] in lost:
        return f"replaced what it reads: {shown}"
    if code == 0:
        return "done"
    told = err.getvalue()
    if code == 1 and "max-iter" in told:
        return "done"
    new = {name for name in set(after) - set(before) if not name.startswith(tuple(words))}
    errors = [line for line in told.splitlines() if not line.startswith("warning: ")]
    if code != 2 or len(errors) != 1 or new:
        return f"status {code}, left {sorted(new)}: {shown}: {told[-300:]}"
    return "refused"


def _words(form, rng):
    """A command's arguments: files where they belong, mostly, and one to three of its options with words or none."""
    first = rng.choice(WORDS) if rng.random() < 0.1 else rng.choice(["in.h5", "in.h5", "train.csv"])
    if form in LISTED:
        words = [rng.choice(LISTED[form]), first, *(["out.h5"] if rng.random() < 0.6 else [])]
    elif form.endswith("predict"):
        model = {"casvm": "svm.h5", "cakrr": "krr.h5", "asygcd": "asygcd.h5"}[form.split(".")[0]]
        words = [rng.choice([model, model, model, *WORDS[:40]]), first]
    else:
        words = [first]
    flags = _flags(form, *words[: form in LISTED])
    for flag in rng.choice(sorted(flags), min(len(flags), rng.integers(1, 4)), replace=False):
        takes = flags[flag] != (rng.random() < 0.02)
        words += [flag, *([rng.choice(LIKELY if rng.random() < 0.7 else WORDS)] if takes else [])]
    return [*words, *(["--max-time", "1"] if "--max-time" in flags and "--max-time" not in words else [])]


@functools.cache
def _flags(program, *words):
    """The options of a command, and whether they take a word, from its help."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        _run(program, [*words, "--help"])
    lines = re.findall(r"^ +(?:-\w[ A-Z.\w]*, )?(--[a-z][a-z0-9-]*)(.*)", shown.getvalue(), re.MULTILINE)
    return {flag: bool(re.match(r" [A-Z{]", rest)) for flag, rest in lines}


def _run(program, words):
    """The exit status."""
    with mock.patch.object(sys, "argv", [program, *words]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
        try:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            return ended.code or 0
    return 0


def _made(folder):
    """A folder with data, a text file, a model of each family, and a folder."""
    good = folder / "good"
    if not good.exists():
        (good / "folder").mkdir(parents=True)
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(60, 3)), np.where(np.arange(60) % 2, 1.0, -1.0)
        with h5py.File(good / "in.h5", "w") as file:
            file["train/X"], file["train/y"] = X[:40], y[:40]
            file["test/X"], file["test/y"] = X[40:], y[40:]
        lines = [",".join(f"{value:.6g}" for value in row) for row in np.column_stack([X, y])]
        (good / "train.csv").write_text("\n".join(["a,b,c,label", *lines]) + "\n")
        (good / "columns.json").write_text('{"gaps": "fill"}')
        for program, name in (("casvm.cpsvm", "svm"), ("cakrr.bkrr2", "krr"), ("asygcd", "asygcd")):
            words = [str(good / "in.h5"), "--model", str(good / f"{name}.h5"), "--quiet"]
            assert _run(program, words) == 0
        words = [
            str(good / "in.h5"),
            "--metric",
            "diagonal",
            "--metric-rounds",
            "1",
            "--model",
            str(good / "metric.h5"),
        ]
        assert _run("cakrr.bkrr2", [*words, "--quiet"]) == 0
    return good


def _contents(place):
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
