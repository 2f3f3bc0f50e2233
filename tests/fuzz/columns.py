"""Files whose columns have other names, another order, more or fewer columns or an index than the training rows have.

Right: the predictions of an estimator fitted to the same numbers with the columns in order, from the report of
``cakrr.predict`` or of ``--test``, to 1e-6; or one line with status 2. Where all names are plain words, only what the
pages on data promise is right: another order is answered; a missing or an unexpected column is refused, and so is a
native file in which a target and a feature have changed places: its rows and targets lie apart.
"""

from __future__ import annotations

import contextlib
import functools
import io
import shutil

import h5py
import numpy as np
import pandas as pd

from cakrr import DKRR

from . import commands

FORMS = ("csv", "tsv", "parquet", "feather", "h5")
GOOD = ("refused", "right")
ODD = ("", " ", "a", "a", "2019", "2020", "1e3", "nan", "x,y", "x\ty", '"q"', "it's", "#1", "é", "\N{SNOWMAN}", " b ",
       "b", "__index_level_0__", "index", "target", "label", "y", "true", "inf", "a/b", "-", "--test",
       "\u00a0", "A")  # fmt: skip
PLAIN = ("age", "height", "weight", "price", "size", "depth", "width", "speed")
CHANGES = ("order", "order", "missing", "extra", "extra ignored", "renamed", "target moved", "target renamed", "none")
INDEX = ("range", "from 7", "named", "unnamed", "two levels", "a feature")
SIGMA, LAM = 2.0, 1e-3


def case(form, number, seed, folder):
    """A model of a file of one format, and rows to predict in a file of the form's."""
    rng = np.random.default_rng([seed, number, FORMS.index(form)])
    place = folder / "columns"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    plain = rng.random() < 0.5
    names = _drawn(plain, rng)
    table, rows = rng.normal(size=(24, 4)).round(4), rng.normal(size=(9, 4)).round(4)
    first, change = str(rng.choice(FORMS)), str(rng.choice(CHANGES))
    index = str(rng.choice(INDEX)) if form in ("parquet", "feather") and rng.random() < 0.5 else ""
    train, test = place / f"train.{first}", place / f"test.{form}"
    write(train, names, table)
    changed, taken = _changed(change, names, rng)
    extra = rng.normal(size=(9, 1)).round(4)
    write(test, changed, np.hstack([rows, extra])[:, taken], index, rng)
    if index == "a feature" and changed[0] == "surplus":
        change = "none"  # pandas stores the extra column as the index, which is no feature
    words = ["--ignore-extra-columns"] * (change == "extra ignored")
    shown = f"{first} {names}, {change} {index}: {changed}"
    together = rng.random() < 0.4 and 3 in taken
    swapped = form == "h5" and change == "target moved" and changed[3] != names[3]
    told = _answers(place, train, test, words, together)
    if isinstance(told, str):
        if not told.startswith("status 2: "):
            return f"{told}: {shown}"
        meant = not plain or swapped or change in ("missing", "extra", "renamed", "target renamed")
        meant = meant or index == "a feature"
        return "refused" if meant else f"{told}, which is right: {shown}"
    if plain and (swapped or change in ("missing", "extra", "renamed")):
        return f"answered: {shown}"
    exact = DKRR(sigma=SIGMA, lam=LAM).fit(table[:, :3], table[:, 3])
    kept = [j for j, name in enumerate(changed) if _flat(name) != _flat(names[3])]
    same_place = [_flat(changed[j]) for j in kept] == [_flat(name) for name in names[:3]]  # also if two are the same
    columns = [taken[j] for j in kept] if same_place else [0, 1, 2]
    expected = exact.predict(np.hstack([rows, extra])[:, columns])
    if together:  # the root mean squared error stands for them
        expected = [np.sqrt(np.mean((expected - rows[:, 3]) ** 2))]
    return "right" if np.allclose(told, expected, atol=1e-6) else f"answers {told[:3]}, not {expected[:3]}: {shown}"


def _flat(name):
    """A name as files of text have it: without quotes, # and surplus blanks."""
    return " ".join(name.replace('"', "").replace("#", "").split())


def _drawn(plain, rng):
    """Names of three features and the target; a file of text needs a word among them, so that the first row is one."""
    names = rng.choice(PLAIN, 4, replace=False) if plain else [ODD[j] for j in rng.integers(len(ODD), size=4)]
    names = [str(name) for name in names]
    return names if plain or any(name[:1].isalpha() for name in names) else ["first", *names[1:]]


def _changed(change, names, rng):
    """Names of the columns of the second file, and for each its number in the first one; 4 is a new column."""
    order = [0, 1, 2, 3]
    if change == "order":
        order = [*rng.permutation(3).tolist(), 3]
    elif change == "target moved":
        order = rng.permutation(4).tolist()
    elif change == "missing":
        order.remove(int(rng.integers(3)))
    elif change.startswith("extra"):
        order.insert(int(rng.integers(4)), 4)
    found = [*names, "surplus"]
    if change == "renamed":
        found[rng.integers(3)] = "other"
    elif change == "target renamed":
        found[3] = "other"
    return [found[j] for j in order], order


def _answers(place, train, test, words, together):
    """Predictions of the second file's rows, or their error where --test has it; or the status and what was said."""
    common = ["--quiet", "--sigma", str(SIGMA), "--lambda", str(LAM)]
    if together:
        report = place / "r.json"
        told = _ran("cakrr.dkrr", [train, *common, *words, "--test", test, "--allow-overlap", "--report", report])
        return told or [pd.read_json(report, typ="series")["metrics"]["rmse"]]
    told = _ran("cakrr.dkrr", [train, *common, "--model", place / "m.h5"])
    told = told or _ran("cakrr.predict", [place / "m.h5", test, *words, "--quiet", "-o", place / "p.csv"])
    return told or pd.read_csv(place / "p.csv").iloc[:, 0].to_numpy()


def _ran(program, words):
    """Nothing, or the status and lines of a command that did not end well."""
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        code = commands._run(program, [str(word) for word in words])
    lines = [line for line in err.getvalue().splitlines() if not line.startswith(("warning: ", "note: "))]
    if code == 0 and not lines:
        return None
    return f"status {code}: {lines[0][:300]}" if len(lines) == 1 else f"status {code}, {len(lines)} lines: {lines[-3:]}"


def write(path, names, table, index="", rng=None):
    """A file of these columns, in the format that its name tells; with an index it is written by pandas."""
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["train/X"], file["train/y"] = table[:, :-1], table[:, -1]
            file["train/names"], file["train/target_names"] = _bytes(names[:-1]), _bytes(names[-1:])
    elif path.suffix in (".parquet", ".feather"):
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyarrow import feather

        made = pa.table(list(table.T), names=names)
        if index and len(set(names)) == len(names):
            made = pa.Table.from_pandas(_indexed(pd.DataFrame(table, columns=names), index, rng))
        pq.write_table(made, path) if path.suffix == ".parquet" else feather.write_feather(made, str(path))
    else:
        between = "," if path.suffix == ".csv" else "\t"
        quoted = [_quoted(name, between) for name in names]
        lines = [between.join(map(repr, row)) for row in table.tolist()]
        path.write_text("\n".join([between.join(quoted), *lines]) + "\n")


def _indexed(frame, index, rng):
    """The same columns with an index of pandas."""
    n = len(frame)
    if index == "from 7":
        return frame.set_index(pd.RangeIndex(7, 7 + n))
    if index in ("named", "unnamed"):
        return frame.set_index(pd.Index(rng.permutation(n), name="id" if index == "named" else None))
    if index == "two levels":
        return frame.set_index(pd.MultiIndex.from_arrays([np.arange(n) % 2, np.arange(n)], names=["k", None]))
    return frame.set_index(frame.columns[0]) if index == "a feature" else frame


def _bytes(names):
    return np.array([name.encode() for name in names], dtype="S32")


@functools.cache
def _quoted(name, between):
    return '"' + name.replace('"', '""') + '"' if between in name or '"' in name else name
