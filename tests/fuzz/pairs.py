"""Every pair of options of every command, each with a value that is right alone and with one that is not.

Right: status 0 and the report and model that were asked for, or status 2 and one line. All pairs of a command are
shuffled once; a seed stands for the next `STRIDE` of them, so that following seeds try other pairs.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import shutil

import numpy as np

from . import commands

FORMS = commands.FORMS
GOOD = commands.GOOD
STRIDE = 40  # pairs of a command that belong to a seed
# A value of each option that takes one, which is right unless something else forbids it.
VALID = {
    "--adaptive": "std", "--binarize": "1", "--cache-gib": "0.1", "--calibrate": "0.3", "--centers": "10",
    "--category": "column 1", "--checkpoint": "kept", "--columns": "columns.json",
    "--coarse-lambda": "0.01", "--coarse-sigma": "1", "--coef0": "1",
    "--comm-matrix": "comm.npz", "--cv": "2", "--degree": "2", "--divisions": "2", "--drop": "column 0",
    "--dtype": "float32", "--gaps": "refuse", "--id": "a", "--number": "column 0", "--weight": "b",
    "--early": "0.1", "--epsilon": "0.2", "--exposure": "0", "--gamma": "0.5,1",
    "--html": "out.html", "--initial": "local",
    "--input": "train/X", "--interval": "0.8",
    "--kernel": "polynomial", "--lambda": "0.01,0.1", "--libsvm": "out.model", "--likelihood": "poisson",
    "--max-iter": "1000", "--max-time": "5",
    "--memory-limit": "1", "--metric": "diagonal", "--metric-rounds": "2", "--metric-init": "metric.h5",
    "--model": "other.h5",
    "--multi-class": "ovo", "--nu": "0.3", "--output": "p.csv", "--overlap": "0.2", "--partitioner": "kmeans",
    "--partitions": "2", "--passes": "1", "--phases": "train", "--plot": "out.png", "--preconditioner": "nystrom",
    "--pick": "pivots", "--probability": "sigmoid", "--quantile": "0.2,0.8",
    "--rank": "5", "--refine": "2", "--report": "own.json", "--route": "soft",
    "--scaling": "quantile", "--scoring": "balanced_accuracy", "--scratch": "folder", "--seed": "3", "--select": "loo",
    "--sigma": "1,2",
    "--solver": "asygcd", "--split": "30", "--target": "1", "--test": "train.csv", "--threads": "1", "--tol": "0.01",
    "--update": "atomic", "--validation-fraction": "0.2", "--working-set": "4", "-C": "1,10",
    "--C": "1,10",
}  # fmt: skip
OWN = {"cakrr.dkrr": {"--solver": "cg"}, "casvm.oneclass": {"--gamma": "0.5"}}
INVALID = ("-1", "nan", "x", "", "none/out", "1e400", "0")


def case(form, number, seed, folder):
    """One command line with two options."""
    rng = np.random.default_rng([seed, number, FORMS.index(form)])
    chosen = _pairs(form)[_order(form)[(seed * STRIDE + number) % len(_order(form))]]
    place = folder / "place"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(commands._made(folder), place)
    words, wanted = _words(form, chosen, rng)
    before, out, err = commands._contents(place), io.StringIO(), io.StringIO()
    with contextlib.chdir(place), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = commands._run(form, words)
    after, shown = commands._contents(place), " ".join(word if word else repr(word) for word in words)
    changed = [name for name in before if after.get(name) != before[name]]
    told = [line for line in err.getvalue().splitlines() if not line.startswith(("warning: ", "note: "))]
    if changed:
        return f"changed {changed}: {shown}"
    if code == 0 or (code == 1 and "max-iter" in err.getvalue()):
        lacking = [name for name in wanted if code == 0 and not (place / name).exists()]
        unread = [name for name in after if name.endswith(".json") and not _sound(after[name])]
        return f"lacks {lacking}, not JSON {unread}: {shown}" if lacking or unread else "done"
    left = sorted(set(after) - set(before))
    if code != 2 or len(told) != 1 or [name for name in left if not name.startswith("kept/")]:
        return f"status {code}, left {left}: {shown}: {err.getvalue()[-300:]}"
    return "refused"


def _words(form, chosen, rng):
    """The command's words, and files that it has to write if it succeeds."""
    word, flags = chosen[0], commands._flags(form, *chosen[:1] * (form in commands.LISTED))
    words, wanted = [word] if form in commands.LISTED else [], []
    if form.endswith("predict"):
        words.append({"casvm": "svm.h5", "cakrr": "krr.h5", "asygcd": "asygcd.h5"}[form.split(".")[0]])
    words.append("in.h5" if rng.random() < 0.7 or form == "cacore.traffic" else "train.csv")
    if word == "convert":
        words.append("out.h5")
        wanted.append("out.h5")
    given = set()
    for flag, valid in chosen[1]:
        value = valid_value(form, flag)
        if flags[flag] and value is None:
            raise LookupError(f"no valid value of {flag} is known here")
        given.add(flag)
        words += [flag, *([value if valid else str(rng.choice(INVALID))] if flags[flag] else [])]
    for flag, value in (("--report", "r.json"), ("--model", "m.h5"), ("--quiet", None)):
        if flag in flags and flag not in given and flag not in ("--help",):
            words += [flag, *([value] if value else [])]
            wanted += [value] if value else []
    return words, [] if given & {"--help", "--dry-run"} else wanted


def valid_value(form, flag):
    """A word that is right behind an option of this command; None if none is known."""
    return OWN.get(form, {}).get(flag) or VALID.get(flag)


@functools.cache
def _pairs(form):
    """A word of the command or "", and two of its options, each with True for a valid value."""
    made = []
    for word in commands.LISTED.get(form, [""]):
        flags = commands._flags(form, *([word] if word else []))
        for two in itertools.combinations(sorted(flags), 2):
            kinds = itertools.product(*([True, False] if flags[flag] else [True] for flag in two))
            made += [(word, tuple(zip(two, valid, strict=True))) for valid in kinds]
    return made


@functools.cache
def _order(form):
    return np.random.default_rng(FORMS.index(form)).permutation(len(_pairs(form)))


def _sound(content):
    try:
        json.loads(content)
    except ValueError:
        return False
    return True
