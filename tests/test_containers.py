"""Containers of rows, targets and weights: the same numbers, or one line that says what is wrong."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers.checks import refusal as one_line

from asygcd import AsyGCDSVC
from cacore.data.containers import sound
from cacore.data.validation import checked_rows, checked_weights
from cakrr import BKRR2, DKRR
from casvm import CASVC, CASVR, DCSVC, SMOSVC, SMOSVR, CascadeSVC, SMOOneClassSVM
from partition import KMeans

rng = np.random.default_rng(0)
X = rng.integers(-4, 5, (24, 3)).astype(float)
y = np.where(X[:, 0] + X[:, 1] > 0, 1.0, -1.0)
DATES, SPANS = X.astype("M8[D]"), X.astype("m8[s]")
WRITE_DATES, WRITE_SPANS = "write dates as numbers", "write durations as numbers"


def refusal(call, *args, match):
    """A call that ends with one line, which this pattern matches."""
    message = one_line(call, *args)
    assert re.search(match, message), message


class Lazy:
    """Rows that are there only when numpy asks for them, as those of dask and of torch."""

    def __init__(self, rows):
        self.rows = rows

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.rows, dtype)


def read_only(rows):
    rows = rows.copy()
    rows.flags.writeable = False
    return rows


def frame(column, dtype=None):
    """Three columns, of which "b" is of another type."""
    made = pd.DataFrame(X, columns=list("abc"))
    made["b"] = column if dtype is None else pd.Series(column, dtype=dtype)
    return made


SAME = {
    "array": lambda: X, "float32": lambda: X.astype("f4"), "float16": lambda: X.astype("f2"),
    "longdouble": lambda: X.astype("g"), "int8": lambda: X.astype("i1"), "objects": lambda: X.astype(object),
    "big-endian": lambda: X.astype(">f8"), "columns first": lambda: np.asfortranarray(X),
    "read-only": lambda: read_only(X),
    "strides": lambda: np.repeat(X, 2, axis=1)[:, ::2], "backwards": lambda: X[::-1, ::-1].copy()[::-1, ::-1],
    "text of numbers": lambda: X.astype(str), "bytes of numbers": lambda: X.astype("S"),
    "memmap": lambda: X.view(np.memmap),
    "lists": X.tolist, "tuples": lambda: tuple(map(tuple, X.tolist())), "list of arrays": lambda: list(X),
    "lazy": lambda: Lazy(X), "nothing masked": lambda: np.ma.array(X),
    "list of nothing masked": lambda: list(np.ma.array(X)),
    "frame": lambda: frame(X[:, 1]), "frame of objects": lambda: frame(X[:, 1]).astype(object),
    "Int64": lambda: frame(X[:, 1].astype(int), "Int64"),
    "decimals": lambda: frame([Decimal(value) for value in X[:, 1]]),
    "Arrow-backed": lambda: frame(X[:, 1]).convert_dtypes(dtype_backend="pyarrow"),
    "sparse columns": lambda: frame(X[:, 1]).astype(pd.SparseDtype(float, 0.0)),
    **{kind: (lambda kind=kind: getattr(sp, kind)(X)) for kind in ("csr_matrix", "csr_array", "csc_matrix", "coo_array",
        "lil_matrix", "dok_matrix", "bsr_matrix", "dia_array")},
}  # fmt: skip

REFUSED = {
    "masked": (lambda: np.ma.masked_equal(X, X[2, 1]), "row .* is masked: fill masked cells"),
    "list of masked": (lambda: list(np.ma.masked_equal(X, X[2, 1])), "row .* is masked"),
    "masked cell": (lambda: [[1.0, np.ma.masked]], "X, column 1: row 0 is"),
    "dates": (lambda: DATES, f"X: of type datetime64.*{WRITE_DATES}"),
    "durations": (lambda: SPANS, f"X: of type timedelta64.*{WRITE_SPANS}"),
    "lazy dates": (lambda: Lazy(DATES), WRITE_DATES),
    "list of dates": (lambda: [[1.0, np.datetime64("2020-01-01")]], f"column 1: row 0 is 2020-01-01, .*{WRITE_DATES}"),
    "objects, dates": (lambda: DATES.astype(object), f"X, column 0: row 0 is .*{WRITE_DATES}"),
    "objects, durations": (lambda: SPANS.astype(object), f"X, column 0: row 0 is .*{WRITE_SPANS}"),
    "complex": (lambda: X + 1j, "X: of type complex128"),
    "records": (lambda: np.zeros(3, "f8, f8"), "X: records of f0, f1"),
    "3-d": (lambda: X[None], "dim 3"), "1-d": (lambda: X[0], "1D array"), "0-d": (lambda: np.array(1.0), "scalar"),
    "series": (lambda: frame(X[:, 1])["a"], "2-dimensional"), "ragged": (lambda: [[1.0, 2.0], [1.0]], "sequence"),
    "column of dates": (lambda: frame(pd.date_range("2020", periods=24)), f"column 'b': .*{WRITE_DATES}"),
    "column of dates there": (lambda: frame(pd.date_range("2020", periods=24, tz="UTC")), f"column 'b'.*{WRITE_DATES}"),
    "column of periods": (lambda: frame(pd.period_range("2020", periods=24, freq="D")), f"column 'b'.*{WRITE_DATES}"),
    "column of durations": (lambda: frame(pd.to_timedelta(range(24), unit="s")), f"column 'b': .*{WRITE_SPANS}"),
    "column of intervals": (lambda: frame(pd.interval_range(0, 24)), "column 'b': of type interval.*two columns"),
    "column of objects": (lambda: frame([datetime.date(2020, 1, 1)] * 24), f"column 'b': row 0 .*{WRITE_DATES}"),
    "column of numpy dates": (lambda: frame(pd.Series([*DATES[:, 1]], dtype=object)), f"'b': row 0 .*{WRITE_DATES}"),
    "objects, huge": (lambda: np.array([[1.0, -(10**400)]], object), "X, column 1: row 0 has 401 digits"),
    "fraction, huge": (lambda: [[Fraction(10**400, 3), 1]], "X, column 0: row 0 has 400 digits"),
    "column of huge": (lambda: frame([10**400] * 24, object), "column 'b': row 0 has 401 digits"),
    "column of complex": (lambda: frame(X[:, 1] + 1j), "column 'b': of type complex128"),
    "Arrow's dates": (lambda: frame([None] * 24, "timestamp[ns][pyarrow]"), "column 'b': of type time"),
    "Int64 missing": (lambda: frame([None, *range(23)], "Int64"), "column 'b': row 0 is NaN"),
    "boolean missing": (lambda: frame([None, *[True] * 23], "boolean"), "column 'b': row 0 is NaN"),
    "strings": (lambda: frame(X[:, 1].astype(int).astype(str), "string"), "column 'b': of type str"),
    "categories": (lambda: frame(pd.Categorical(X[:, 1])), "column 'b': of type categor"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*matrix subclass")
@pytest.mark.parametrize("what", SAME)
def test_the_same_numbers(what):
    given = SAME[what]()
    rows = checked_rows(given, ("float64", "float32"))
    np.testing.assert_array_equal(rows.toarray() if sp.issparse(rows) else rows, X)


# Estimators make features of these columns of a DataFrame; models take numbers.
TABLES = (
    "column of dates", "column of dates there", "column of periods", "column of objects", "column of numpy dates",
    "Arrow's dates", "Int64 missing", "boolean missing", "strings", "categories",
)  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused_in_one_line(what):
    make, match = REFUSED[what]
    refusal(checked_rows, make(), ("float64", "float32"), match=match)
    if what not in TABLES:
        refusal(SMOSVR(gamma=0.1).fit, make(), y, match=match)


@pytest.mark.parametrize("what", TABLES)
def test_columns_of_a_data_frame_become_features(what):
    table = REFUSED[what][0]()
    model = SMOSVR(gamma=0.1).fit(table, y)
    kinds = {column.name: column.kind for column in model.encoding_.columns}
    dates = "date" if "date" in what or "objects" in what or "periods" in what else kinds["b"]
    assert kinds["b"] == ("constant" if what in ("Arrow's dates", "column of objects") else dates)
    assert np.isfinite(model.predict(table)).all()


MODELS = {
    "SMOSVC": SMOSVC(gamma=0.1), "CASVC": CASVC(n_parts=2, gamma=0.1), "CascadeSVC": CascadeSVC(n_parts=2, gamma=0.1),
    "DCSVC": DCSVC(n_parts=2, gamma=0.1), "AsyGCDSVC": AsyGCDSVC(gamma=0.1, threads=1), "SMOSVR": SMOSVR(gamma=0.1),
    "CASVR": CASVR(n_parts=2, gamma=0.1), "SMOOneClassSVM": SMOOneClassSVM(gamma=0.1),
    "DKRR": DKRR(sigma=2.0, lam=0.1), "BKRR2": BKRR2(n_parts=2, sigma=2.0, lam=0.1), "KMeans": KMeans(n_parts=2),
}  # fmt: skip


def damaged(what, form="csr_matrix"):
    """A sparse matrix whose index arrays have been changed after scipy had looked at them."""
    rows = getattr(sp, form)(np.where(X == 0, 1.0, X))
    if what in ("-1", "3", "2147483647"):
        rows.indices[1] = int(what)
    elif what == "descending":
        rows.indptr[2] = rows.indptr[3] + 1
    elif what == "first":
        rows.indptr[0] = 1
    elif what == "last":
        rows.indptr[-1] = 10**6
    elif what == "too short":
        rows.indptr = rows.indptr[:-1]
    elif what == "too long":
        rows.indptr = np.append(rows.indptr, rows.indptr[-1])
    elif what == "few values":
        rows.data = rows.data[:-5]
    elif what == "no integers":
        rows.indices = rows.indices.astype(float)
    return rows


DAMAGED = ("-1", "2147483647", "descending", "first", "last", "too short", "too long", "few values", "no integers")


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array"])
@pytest.mark.parametrize("what", DAMAGED)
def test_index_arrays_out_of_range(what, form):
    if (what, form) == ("descending", "csc_array"):
        what = "first"  # of three columns there are not enough
    refusal(checked_rows, damaged(what, form), ("float64",), match="build the matrix again")


@pytest.mark.parametrize("form", ["coo_matrix", "lil_matrix", "bsr_matrix"])
def test_other_sparse_forms_out_of_range(form):
    rows = getattr(sp, form)(X)
    if form == "coo_matrix":
        rows.col[0] = 9
    elif form == "lil_matrix":
        rows.rows[0], rows.data[0] = [0, 9], [1.0, 1.0]
    else:
        rows.indices[0] = 9
    refusal(checked_rows, rows, ("float64",), match="the column number 9, and columns are 0 to")


@pytest.mark.parametrize("name", MODELS)
def test_column_numbers_out_of_range_in_every_estimator(name):
    """Compiled code reads and writes where they point: five estimators ended with a segmentation fault."""
    model = MODELS[name]
    for what in ("-1", "3", "2147483647"):
        refusal(model.fit, damaged(what), y, match="an entry has the column number")
    model.fit(sp.csr_matrix(X), y)
    for method in ("predict", "decision_function", "predict_proba"):
        if hasattr(model, method):
            refusal(getattr(model, method), damaged("3"), match="the column number 3, and columns are 0 to 2")
    if hasattr(model, "model_"):
        refusal(model.model_.predict, damaged("3"), match="the column number 3")


@pytest.mark.parametrize("name", ["SMOSVC", "DKRR", "KMeans", "AsyGCDSVC"])
def test_masks_and_dates_in_every_family(name):
    model = MODELS[name]
    for what in ("masked", "dates", "column of durations"):
        make, match = REFUSED[what]
        refusal(model.fit, make(), y, match=match)
    model.fit(X, y)
    refusal(model.predict, REFUSED["masked"][0](), match="is masked")
    if name != "KMeans":
        refusal(model.fit, X, np.ma.array(y, mask=y > 0), match="y: row .* is masked")
        refusal(model.fit, X, y, np.ma.array(y > 0, mask=y > 0), match="sample_weight: row .* is masked")


def test_targets_and_weights_that_are_no_numbers():
    for model in (SMOSVR(gamma=0.1), DKRR(sigma=1.0, lam=0.1)):
        for dates in (DATES[:, 0], DATES[:, 0].tolist(), list(DATES[:, 0]), pd.Series(DATES[:, 0].astype("M8[s]"))):
            refusal(model.fit, X, dates, match=f"y.*{WRITE_DATES}")
        refusal(model.fit, X, [10**400] * 24, match="y: row 0 has 401 digits")
        refusal(model.fit, X, y, [10**400] * 24, match="sample_weight: row 0 has 401 digits")
    refusal(checked_weights, SPANS[:, 0], 24, match=f"sample_weight.*{WRITE_SPANS}")


def test_duplicate_entries_are_summed_and_spare_ones_left_out():
    data, indices, indptr = np.array([1.0, 2.0, 4.0, np.nan]), np.array([2, 0, 2, 77]), np.array([0, 3, 3])
    given = sp.csr_matrix((2, 3))
    given.data, given.indices, given.indptr = data, indices, indptr
    rows = checked_rows(given, ("float64",))
    np.testing.assert_array_equal(rows.toarray(), [[2.0, 0.0, 5.0], [0.0, 0.0, 0.0]])
    assert (given.data is data, given.indices.tolist(), rows.indices.dtype) == (True, [2, 0, 2, 77], np.int32)


def test_duplicate_entries_in_an_estimator():
    doubled = sp.csr_matrix(
        (np.repeat(X.ravel() / 2, 2), np.tile([0, 0, 1, 1, 2, 2], 24), np.arange(0, 145, 6)), X.shape
    )
    expected = SMOSVC(gamma=0.1).fit(X, y)
    model = SMOSVC(gamma=0.1).fit(doubled, y)
    np.testing.assert_allclose(model.decision_function(doubled), expected.decision_function(X), atol=1e-9)


def test_column_numbers_of_64_bits():
    rows = sp.csr_matrix(X)
    rows.indices, rows.indptr = rows.indices.astype(np.int64), rows.indptr.astype(np.int64)
    assert SMOSVC(gamma=0.1).fit(rows, y).score(rows, y) > 0.9


def test_sound_rows_are_not_copied():
    rows = sp.csr_matrix(X)
    assert sound(rows) is rows
    line = sp.coo_array(np.ones(3))
    assert sound(line).ndim == line.ndim  # one where scipy has such arrays, which are scikit-learn's to refuse
