"""Containers and types of numbers given to every estimator: the answer of the same numbers as an array, or one line.

Right: predictions as from scikit-learn's `check_array` view of the same container, where that has one; what hides a
mask, dates or durations must be refused in one line.
"""

from __future__ import annotations

import datetime
import functools
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.utils import check_array

from cacore.errors import InputError

from . import estimators

FORMS = list(estimators.MADE)
GOOD = ("refused", "right")
SPARSE = ("csr_matrix", "csr_array", "csc_matrix", "csc_array", "coo_matrix", "coo_array", "lil_matrix", "dok_array",
          "bsr_matrix", "dia_array")  # fmt: skip
TYPES = ("f2", "f4", "f8", "g", "i1", "i2", "i8", "u1", "u8", "?", ">f8", ">i4", "O", "U", "S", "c16", "M8[D]", "m8[s]")
CELLS = (None, np.nan, np.inf, "x", "1", "", b"2", True, Decimal(1), Fraction(1, 2), 1j, datetime.date(2020, 1, 1),
         pd.NA, pd.NaT, np.ma.masked, np.timedelta64(1, "s"), [1.0], 10**400, 2**70, 1e300)  # fmt: skip
COLUMNS = ("Int64", "Float32", "boolean", "category", "string", "float16", "Sparse[float]", "datetime64[s]", "object",
           "int64[pyarrow]", "double[pyarrow]")  # fmt: skip


def case(form, number, seed, folder):
    """One fit and one prediction, with containers of which one, two or none is odd; every second far from 0."""
    rng = np.random.default_rng([seed, number, FORMS.index(form)])
    X, y = _numbers(7.0 * (number % 2))
    labels = estimators.target(form, y)
    odd = rng.permutation(["X", "y", "weights", "new"])[: rng.integers(1, 3)]
    told, given = [], {"X": X, "y": labels, "weights": None, "new": X}
    for name in given:
        if name in odd:
            base = {"y": labels, "weights": np.ones(len(X))}.get(name, X)
            given[name], what = (rows if base.ndim == 2 else column)(base, rng)
            told.append(f"{name} {what}")
    shown = ", ".join(told)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # feature names that only one of fit and predict has, sparse columns
        seen = {name: one if one is None else _seen(one) for name, one in given.items()}
        try:
            made = estimators.MADE[form]().fit(given["X"], given["y"], given["weights"])
            got = estimators.answers(form, made, given["new"])
        except (InputError, ValueError, TypeError) as error:
            lines = str(error).splitlines()
            own = isinstance(error, InputError) or str(error).startswith(("Unknown label type", "The feature names"))
            return "refused" if len(lines) == 1 or own else f"{type(error).__name__} of {len(lines)} lines: {shown}"
        hidden = {name: one for name, one in seen.items() if isinstance(one, str)}
        if form == "SMOOneClassSVM":
            hidden.pop("y", None)  # it does not look at it
            seen["y"] = None
        if estimators.classifies(form) and hidden.keys() == {"y"}:
            return "right"  # classes may be anything that has an order, such as words
        if hidden:
            return f"answered, where {hidden}: {shown}"
        made = estimators.MADE[form]().fit(seen["X"], seen["y"], seen["weights"])
        expected = estimators.answers(form, made, seen["new"])
    if got.dtype.kind not in "biuf":
        return "right" if estimators.classifies(form) else f"answers of type {got.dtype}: {shown}"
    if got.shape != expected.shape or not np.isfinite(got).all():
        return f"answers {got[:5]}, not {expected[:5]}: {shown}"
    # Models of one class, of sparse rows and of the same dense ones, agree to the solver's tolerance of 1e-3.
    near = 1e-2 if form == "SMOOneClassSVM" else 1e-3
    same = np.mean(np.abs(got - expected) <= near * max(1.0, np.abs(expected).max()))
    return "right" if same > 0.95 else f"other answers in {1 - same:.0%} of the rows: {shown}"


@functools.cache
def _numbers(offset):
    rng = np.random.default_rng(0)
    X = rng.integers(-4, 5, (36, 3)).astype(float)
    return X + offset, X[:, 0] + 0.5 * X[:, 1]


def _seen(given):
    """The numbers of a container as scikit-learn has them, in double precision; a word where it hides something."""
    cells = given if isinstance(given, np.ma.MaskedArray) else None
    if cells is not None and np.ma.is_masked(cells):
        return "masked"
    if sp.issparse(given) and given.format == "csr" and given.ndim == 2 and not _sound(given):
        return "damaged"
    kinds = [getattr(given, "dtype", None), *(given.dtypes if isinstance(given, pd.DataFrame) else [])]
    if any(getattr(kind, "kind", "") in "Mmc" and getattr(kind, "kind", "") for kind in kinds):
        return "dates or complex"
    try:
        if getattr(given, "ndim", 2) == 1 or (
            isinstance(given, list | tuple) and (np.ndim(given[0]) == 0 or isinstance(given[0], str | bytes))
        ):
            return check_array(given, ensure_2d=False, dtype=float)
        found = check_array(given, accept_sparse="csr", dtype=float)
        return found.toarray() if sp.issparse(found) else found
    except (ValueError, TypeError, OverflowError) as error:
        return f"refused by scikit-learn ({str(error)[:80]})"


def _sound(X):
    """True if scipy can make a dense array of CSR rows without reading or writing elsewhere."""
    ends, used = X.indptr, int(X.indptr[-1])
    ascending = ends[0] == 0 and (np.diff(ends) >= 0).all() and used <= min(len(X.data), len(X.indices))
    return ascending and (used == 0 or (X.indices[:used].min() >= 0 and X.indices[:used].max() < X.shape[1]))


def rows(X, rng):
    """A container of the rows, and what it is."""
    what = rng.choice(["type", "layout", "sparse", "frame", "cell", "list", "masked", "damaged", "shape"])
    if what == "type":
        kind = str(rng.choice(TYPES))
        return X.astype(float).astype("i8").astype(kind) if kind[0] in "Mm" else X.astype(kind), f"as {kind}"
    if what == "layout":
        form = int(rng.integers(4))
        return [np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2], X[::-1, ::-1].copy()[::-1, ::-1],
                X.view(np.memmap)][form], f"layout {form}"  # fmt: skip
    if what == "sparse":
        kind, of = str(rng.choice(SPARSE)), str(rng.choice(["f4", "f8", "i4", "i8", "?", "c16"]))
        return getattr(sp, kind)(X.astype(of)), f"{kind} of {of}"
    if what == "damaged":
        made = sp.csr_matrix(X)
        name, value = str(rng.choice(["indices", "indptr"])), int(rng.choice([-1, 3, 50, 2**31 - 1, 0, 1]))
        getattr(made, name)[rng.integers(len(getattr(made, name)))] = value
        return made, f"CSR, {name} {value}"
    if what == "frame":
        frame, kind, j = pd.DataFrame(X, columns=list("abc")), str(rng.choice(COLUMNS)), int(rng.integers(3))
        frame = frame.astype({frame.columns[j]: "int64"}) if kind in ("datetime64[s]", "string", "Int64") else frame
        frame["abc"[j]] = (frame["abc"[j]] > 0).astype(kind) if kind == "boolean" else frame["abc"[j]].astype(kind)
        if rng.random() < 0.2:
            frame = frame.set_index(frame.index[::-1])
        return frame, f"frame with {kind}"
    if what == "cell":
        cells, value = X.astype(object), CELLS[rng.integers(len(CELLS))]
        cells[rng.integers(len(X)), rng.integers(3)] = value
        made = rng.integers(3)
        return [cells, cells.tolist(), pd.DataFrame(cells)][made], f"{value!r} in {['array', 'list', 'frame'][made]}"
    if what == "list":
        made = int(rng.integers(4))
        return [X.tolist(), tuple(map(tuple, X.tolist())), list(X), list(np.ma.array(X))][made], f"list {made}"
    if what == "masked":
        return np.ma.array(X, mask=rng.random(X.shape) < rng.choice([0, 0.05])), "masked array"
    shape = int(rng.integers(6))
    return [X[None], X[0], X[:0], X[:, :0], X[:1], X[:, 0]][shape], f"shape {shape}"


def column(y, rng):
    """A container of targets or weights, and what it is."""
    what = rng.choice(["type", "list", "series", "masked", "cell", "shape", "sparse"])
    if what == "type":
        kind = str(rng.choice(TYPES))
        return y.astype("i8").astype(kind) if kind[0] in "Mm" else np.abs(y).astype(kind), f"as {kind}"
    if what == "list":
        return (y.tolist(), "list") if rng.random() < 0.5 else (tuple(y), "tuple")
    if what == "series":
        kind = str(rng.choice(["float32", "object", "Float64", "double[pyarrow]"]))
        return pd.Series(y, index=np.arange(len(y))[::-1]).astype(kind), f"series of {kind}"
    if what == "masked":
        return np.ma.array(y, mask=rng.random(y.shape) < rng.choice([0, 0.1])), "masked array"
    if what == "cell":
        cells, value = y.astype(object), CELLS[rng.integers(len(CELLS))]
        cells[rng.integers(len(y))] = value
        return (cells, f"{value!r} in array") if rng.random() < 0.5 else (cells.tolist(), f"{value!r} in list")
    if what == "sparse":
        return sp.csr_matrix(y[:, None]), "CSR"
    shape = int(rng.integers(4))
    return [y[:, None], y[None], y[:-1], y[:0]][shape], f"shape {shape}"
