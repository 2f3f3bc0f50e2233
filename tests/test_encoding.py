"""Features of the columns of tables with words, gaps and dates, beside pandas and scikit-learn's encoders."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers.columns import random_table
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from cacore.data.containers import arrow_table
from cacore.data.encoding import MISSING, OTHER, Encoding, learned
from cacore.data.kinds import Overrides
from cacore.errors import InputError


def encoded(columns, y=None, **overrides):
    """The columns of the encoding by name, and the features by theirs."""
    table = arrow_table(pd.DataFrame(columns))
    encoding, X = learned(table, y, Overrides(**overrides))
    names = encoding.features.features
    assert X.shape == (table.num_rows, len(names)) == (table.num_rows, len(encoding.column_of))
    assert np.isfinite(X).all()
    return {column.name: column for column in encoding.columns}, dict(zip(names, X.T, strict=True)), encoding


def check_numbers(column, rows, X, features, fitted):
    """Gaps are scikit-learn's medians, and marked by pandas' mask."""
    values = rows[[column.name]].astype(float)
    np.testing.assert_array_equal(X[:, features.index(column.name)], fitted.transform(values)[:, 0])
    if column.indicator:
        np.testing.assert_array_equal(X[:, features.index(f"{column.name} missing")], values[column.name].isna())


def check_levels(column, rows, X, features):
    """The indicators are those of scikit-learn's encoder, and each row has exactly one."""
    words = [level for level in column.levels if level not in (MISSING, OTHER)]
    if not words:
        return
    cells = rows[[column.name]].astype(object).where(rows[[column.name]].notna(), "")
    hot = OneHotEncoder(categories=[words], handle_unknown="ignore", sparse_output=False)
    expected = ColumnTransformer([("hot", hot, [column.name])]).fit(cells).transform(cells)
    np.testing.assert_array_equal(X[:, [features.index(f"{column.name} = {word}") for word in words]], expected)
    places = [features.index(f"{column.name} = {level}") for level in column.levels]
    if OTHER in column.levels:
        others = np.where(rows[column.name].isna(), MISSING not in column.levels, ~rows[column.name].isin(words))
        np.testing.assert_array_equal(X[:, features.index(f"{column.name} = {OTHER}")], others)
        assert (X[:, places].sum(axis=1) == 1).all()


@pytest.mark.parametrize("seed", range(100))
def test_random_tables_have_the_features_of_scikit_learns_column_transformer(seed):
    rng = np.random.default_rng(seed)
    train, test = random_table(rng), random_table(rng)
    test = test.reindex(columns=train.columns)  # a column that is not there is a gap
    try:
        encoding, X = learned(arrow_table(train), None)
    except InputError:
        assert all(train[name].nunique() < 2 or train[name].nunique() >= 0.9 * len(train) for name in train)
        return
    Z = encoding.apply(arrow_table(test))
    for column in encoding.columns:
        for rows, features in ((train, X), (test, Z)):
            if column.kind == "number":
                fitted = SimpleImputer(strategy="median").fit(train[[column.name]].astype(float))
                check_numbers(column, rows, features, encoding.features.features, fitted)
            elif column.kind == "category":
                check_levels(column, rows, features, encoding.features.features)
    stored = Encoding.of(json.loads(json.dumps(encoding.described())))
    assert stored == encoding
    np.testing.assert_array_equal(stored.apply(arrow_table(test)), Z)


def test_kinds():
    n = 60
    rng = np.random.default_rng(0)
    columns, features, encoding = encoded({
        "row": np.arange(1, n + 1), "year": np.arange(1961, 1961 + n), "key": [f"k{j}" for j in range(n)],
        "same": np.full(n, 3.0), "nothing": [None] * n, "size": rng.normal(size=n), "truth": rng.random(n) < 0.5,
        "word": rng.choice(["a", "b"], n), "zip": rng.choice(["01234", "98765"], n),
        "gap": np.where(np.arange(n) < 3, np.nan, 1.0),
    })  # fmt: skip
    assert {name: column.kind for name, column in columns.items()} == {
        "row": "identifier", "year": "number", "key": "identifier", "same": "constant", "nothing": "constant",
        "size": "number", "truth": "number", "word": "category", "zip": "category", "gap": "number",
    }  # fmt: skip
    assert columns["word"].levels == ("a", "b") or columns["word"].levels == ("b", "a")
    assert features["gap missing"].sum() == 3
    assert any("identifiers: row, key" in note for note in encoding.notes)


def test_times_of_the_day_are_minutes_since_midnight():
    rng = np.random.default_rng(0)
    at = rng.integers(0, 1440, 300)
    hours, rest = at // 60, at % 60
    columns, features, encoding = encoded({
        "hhmm": 100 * hours + rest, "words": [f"{h}:{m:02d}" for h, m in zip(hours, rest, strict=True)],
        "seconds": [f"{h:02d}:{m:02d}:30" for h, m in zip(hours, rest, strict=True)],
        "typed": [datetime.time(int(h), int(m)) for h, m in zip(hours, rest, strict=True)],
        "x": rng.normal(size=300),
    })  # fmt: skip
    assert [column.kind for column in columns.values()] == ["clock", "copy", "clock", "copy", "number"]
    np.testing.assert_array_equal(features["hhmm"], at)
    np.testing.assert_array_equal(features["seconds"], at + 0.5)
    assert [note for note in encoding.notes if "--number hhmm" in note]
    assert not [note for note in encoding.notes if "--number seconds" in note]  # of words there is no doubt
    new = encoding.apply(arrow_table(pd.DataFrame({"hhmm": [5, 1999], "seconds": ["", "23:59:30"], "x": [0.0, 0.0]})))
    np.testing.assert_allclose(new, [[5.0, columns["seconds"].fill, 0.0], [19 * 60 + 99, 1439.5, 0.0]])
    as_numbers = encoded({"hhmm": 100 * hours + rest, "x": rng.normal(size=300)}, kinds={"hhmm": "number"})
    np.testing.assert_array_equal(as_numbers[1]["hhmm"], 100 * hours + rest)
    assert encoded({"gap": np.where(at < 9, np.nan, 100 * hours + rest)})[0]["gap"].fill == np.median(at[at >= 9])


@pytest.mark.parametrize(
    "values",
    [
        range(1900, 2020), range(2400), [50 * k for k in range(49)], [2000 + k for k in range(60)],
        [100 * h + m for h in range(24) for m in (0, 15, 30, 45)], [100.5 * k for k in range(24)],
        [-100 * h - m for h in range(24) for m in range(60)], [100 * h + m for h in range(30) for m in range(0, 60, 2)],
    ],
)  # fmt: skip
def test_other_numbers_are_no_times(values):
    columns, features, _ = encoded({"x": list(values), "y": np.arange(len(values)) % 7})
    assert columns["x"].kind == "number" or list(values) == list(range(2400))  # numbers of rows are left out
    assert "x" not in features or list(features["x"]) == list(values)


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (["1", " 2.5 ", "-3e2", "?"], [1.0, 2.5, -300.0, 1.0]),
        (["1,234", "12", "1,000,000.5"], [1234.0, 12.0, 1000000.5]),
        (["1,5", "2", "1.234,25"], [1.5, 2.0, 1234.25]),
    ],
)
def test_words_of_numbers(words, numbers):
    _, features, _ = encoded({"x": words})
    np.testing.assert_array_equal(features["x"], numbers)


@pytest.mark.parametrize(
    "form", ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%b %d %Y", "%d-%b-%Y"]
)
def test_dates_as_people_write_them(form):
    days = pd.date_range("2019-03-30", periods=900, freq="D")
    columns, features, _ = encoded({"when": days.strftime(form)})
    np.testing.assert_array_equal(features["when"], (days - pd.Timestamp(0)).days)
    assert columns["when"].circles == ("year", "week")
    typed = encoded({"when": days})[1]
    assert typed.keys() == features.keys()
    np.testing.assert_allclose(typed["when cos of week"], features["when cos of week"], atol=1e-12)
    assert np.ptp(typed["when cos of week"][::7]) < 1e-9  # a weekday has one place on its circle


def test_hours_are_a_circle():
    hours = pd.date_range("2020-01-01", periods=50, freq="h", tz="UTC")
    columns, features, _ = encoded({"when": hours})
    assert columns["when"].circles == ("day",)
    np.testing.assert_allclose(features["when cos of day"], np.cos(2 * np.pi * hours.hour / 24), atol=1e-9)


def test_a_copy_is_left_out():
    rng = np.random.default_rng(0)
    word = rng.choice(["a", "b", "c"], 50)
    columns, features, _ = encoded(
        {"word": word, "name": [{"a": "x", "b": "y", "c": "z"}[w] for w in word], "x": rng.normal(size=50)}
    )
    assert (columns["name"].kind, columns["name"].original) == ("copy", "word")
    assert len(features) == 4


def test_levels_that_stand_for_many_have_shrunken_means_without_the_rows_own_fold():
    rng = np.random.default_rng(0)
    level = rng.integers(0, 300, 3000)
    effect = rng.normal(size=300)
    y = effect[level] + 0.1 * rng.normal(size=3000)
    _, features, encoding = encoded({"city": [f"c{j}" for j in level]}, y)
    means = encoding.columns[0].means
    assert np.corrcoef([means[f"c{j}"][0] for j in range(300)], effect)[0, 1] > 0.99
    again = encoding.apply(pa.table({"city": [f"c{j}" for j in level]}))[:, -1]
    assert 0.001 < np.abs(features["city mean"] - again).max() < 1.5  # a row's own target is not in its feature
    noise = encoded({"city": [f"c{j}" for j in level]}, rng.normal(size=3000))[1]["city mean"]
    assert np.std(noise) < 0.15  # levels without an effect are near the mean of all rows
    unseen = encoding.apply(pa.table({"city": ["elsewhere", None]}))[:, -1]
    np.testing.assert_allclose(unseen, y.mean())


def test_classes_have_a_mean_for_each_but_the_last_of_two():
    words = [f"c{j % 100}" for j in range(1000)]
    two = np.arange(1000) % 2
    assert len(encoded({"city": words}, two)[2].columns[0].means[""]) == 1
    assert len(encoded({"city": words}, np.arange(1000) % 5)[2].columns[0].means[""]) == 5


def test_overrides():
    columns, _, _ = encoded(
        {"a": [1, 2, 3, 2] * 10, "b": ["1", "2", "x", "2"] * 10, "c": ["p", "q"] * 20},
        kinds={"a": "category"}, drop=("c",),
    )  # fmt: skip
    assert (columns["a"].kind, columns["a"].levels) == ("category", ("2", "1", "3"))
    assert (columns["c"].kind, columns["c"].features) == ("dropped", ())
    with pytest.raises(InputError, match="no feature column e, f; the columns are a"):
        encoded({"a": [1.0, 2.0]}, kinds={"e": "number"}, drop=("f",))
    with pytest.raises(InputError, match="column b, row 2: 'x' is no number, as --number says"):
        encoded({"b": ["1", "2", "x"]}, kinds={"b": "number"})
    with pytest.raises(InputError, match="column a, row 1: missing"):
        encoded({"a": [1.0, None, 2.0]}, gaps="refuse")


def test_a_wrong_cell_among_numbers_is_refused():
    words = [str(j / 7) for j in range(50)]
    words[17] = "12.x"
    with pytest.raises(InputError, match=r"column size, row 17: '12.x' is not a number, as 98 % .*--category size"):
        encoded({"size": words})


def test_rows_to_predict_must_have_the_columns_and_kinds_of_the_training_rows():
    _, _, encoding = encoded(
        {"x": [1.0, 2.0, 4.0], "w": ["a", "b", "a"], "d": ["2020-01-01", "2020-02-01", "2021-05-05"]}
    )
    rows = {"x": ["3"], "w": ["7"], "d": ["03.02.2020"]}
    np.testing.assert_array_equal(encoding.apply(pa.table(rows))[:, :3], [[3.0, 0.0, 1.0]])
    with pytest.raises(InputError, match="no column w, which the training rows have"):
        encoding.apply(pa.table({"x": [1.0], "d": ["2020-01-01"]}))
    for name, cell, kind in (("x", "much", "number"), ("d", "soon", "date")):
        with pytest.raises(InputError, match=f"column {name}, row 0: '{cell}' is no {kind}"):
            encoding.apply(pa.table({**rows, name: [cell]}))


def test_nothing_to_learn_is_refused():
    with pytest.raises(InputError, match="no column with features"):
        encoded({"a": [1.0, 1.0], "b": ["x", "x"]})


DAMAGE = (
    [{}], [{"name": "a", "kind": "no such"}], "text", [3], [{"name": "a", "kind": "category", "levels": ["x"]}],
    [{"name": "a", "kind": "category", "means": {"x": [1.0]}}], [{"name": "a", "kind": "date", "circles": ["moon"]}],
    [{"name": "a", "kind": "number", "circles": ["x"]}], [{"name": "a", "kind": "number", "form": 3}],
    [{"name": "a", "kind": "number", "gaps": "x"}], [{"name": "a", "kind": "number", "distinct": None}],
    [{"name": "a", "kind": "number", "fill": float("nan")}], [{"name": 3, "kind": "number"}],
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_entries_are_refused(damage):
    with pytest.raises(InputError, match="not those of a table"):
        Encoding.of(damage)


def learned_and_applied(train, test):
    """The features that rows get from the encoding of others, by name."""
    encoding, _ = learned(arrow_table(pd.DataFrame({"x": train, "n": np.arange(len(train)) ** 2.0})))
    rows = encoding.apply(arrow_table(pd.DataFrame({"x": test, "n": [0.0] * len(test)})))
    return dict(zip(encoding.features.features, rows.T.tolist(), strict=True))


@pytest.mark.parametrize(
    ("train", "test", "feature", "expected"),
    [
        # Gaps of a category do not depend on the other rows: none and - are words there.
        (["none", "a", "none", None] * 2, ["none"], "x = none", [1.0]),
        (["-", "x"] * 4, ["-"], "x = -", [1.0]),
        (["True", "False", "Unknown"] * 3, [True, False], "x = True", [1.0, 0.0]),
        (pd.Categorical([True, False] * 4), [False, True], "x = False", [1.0, 0.0]),
        # One form for all cells of a column, whatever that of the training rows was.
        (["1,5", "2,25", "1"], ["1.5", "3.25"], "x", [1.5, 3.25]),
        (["1.5", "2.25", "1"], ["0,5", "2,25"], "x", [0.5, 2.25]),
        (["1,500", "2,250", "3"], ["1,5"], "x", [1.5]),
        (["0,125", "0,250", "0,375"], ["0,5"], "x", [0.5]),
        (pd.date_range("2020-01-01", periods=9), ["13/02/2020", "03/04/2020"], "x", [18305.0, 18355.0]),
        (["13/02/2020", "03/04/2020"] * 2, ["03/04/2020"], "x", [18355.0]),
        (["true", "false"] * 4, [True, False], "x", [1.0, 0.0]),
    ],
)
def test_the_same_cell_means_the_same_beside_any_other_rows(train, test, feature, expected):
    np.testing.assert_allclose(learned_and_applied(train, test)[feature], expected)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (
            ["01234", "0987A"] * 4,
            [1234, 987],
            "column x holds numbers such as 1234, .* words such as .*: read",
        ),
        ([1.0, 2.0, 3.0], pd.date_range("2020", periods=2), "column x holds dates, and numbers are needed"),
        (pd.date_range("2020", periods=3), [1.0, 2.0], "column x holds numbers, and dates are needed"),
        (pd.date_range("2020", periods=3), ["03/04/2020", "13/13/2020"], "column x, row 0: '03/04/2020' is no date"),
        (pd.date_range("2020", periods=3), pd.date_range("2020", periods=2, tz="UTC"), "a time zone, and .* none"),
        ([1.0, 2.0, 3.0], ["1", "many"], "column x, row 1: 'many' is no number"),
    ],
)
def test_other_kinds_of_cells_than_the_training_rows_have_are_refused(train, test, message):
    with pytest.raises(InputError, match=message):
        learned_and_applied(train, test)


def test_categories_of_words_take_dates_and_numbers_as_words():
    days = pd.date_range("2020-01-01", periods=3).date
    assert learned_and_applied(pd.Categorical(["2020-01-01", "b"] * 4), days[:1])["x = 2020-01-01"] == [1.0]
    columns, _, _ = encoded(
        {"x": [2**53, 2**53 + 1] * 4, "y": [0.0, -0.0] * 4}, kinds={"x": "category", "y": "category"}
    )
    assert columns["x"].levels == (str(2**53), str(2**53 + 1))
    assert columns["y"].kind == "constant"


def test_many_rare_levels_have_means_alone():
    level = np.repeat(np.arange(400), 10)
    effect = np.random.default_rng(0).normal(size=400)
    columns, features, _ = encoded({"city": [f"c{j}" for j in level]}, effect[level])
    assert (columns["city"].kind, list(features)) == ("category", ["city mean"])
    assert np.corrcoef(features["city mean"], effect[level])[0, 1] > 0.99


def test_whole_numbers_that_doubles_do_not_resolve_are_refused():
    for values in (2**60 + np.arange(30), [str(2**60 + j) for j in range(30)]):
        with pytest.raises(InputError, match=r"column x: its whole numbers near 1.15292e\+18 .* subtract the least"):
            encoded({"x": values})
    words = [str(2**53 - j) for j in range(30)]  # close, and exact in double precision
    np.testing.assert_array_equal(encoded({"x": words})[1]["x"], 2.0**53 - np.arange(30))


@pytest.mark.parametrize("cells", [[[1], [2]], [{"a": 1}, {"a": 2}], [b"\xff", b"\xfe"]])
def test_types_that_are_no_cells_are_refused(cells):
    with pytest.raises(InputError, match=r"^column x of type .*convert or drop it"):
        learned(pa.table({"x": cells}))


def test_names_are_compared_in_their_clean_form_and_must_differ():
    table = pa.table({"x  size ": [1.0, 2.0, 3.0]})
    encoding, X = learned(table)
    np.testing.assert_array_equal(encoding.apply(table), X)
    with pytest.raises(InputError, match="several columns are called x"):
        learned(pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], ["x", "x "]))


def test_periods_are_dates():
    columns, features, _ = encoded({"when": pd.period_range("2020-01", periods=3, freq="M")})
    assert (columns["when"].kind, features["when"].tolist()) == ("date", [18262.0, 18293.0, 18322.0])


@pytest.mark.parametrize(("words", "alone", "beside"), [
    (["1,234", "2,500", "12,000"], ("1,234", 1234.0), "1,5"),
    (["3,125", "4,5", "7,25"], ("3,125", 3.125), "1,234,567"),
    (["1.234", "2.5", "3.75"], ("1.234", 1.234), "1,5"),
    (["01/02/2020", "03/25/2020", "12/01/2020"], ("01/02/2020", 18263.0), "13/02/2020"),
])  # fmt: skip
def test_a_cell_reads_the_same_whatever_stands_beside_it(words, alone, beside):
    """A word that would make the others stand for something else is refused."""
    learning = pa.table({"a": words * 8, "b": np.arange(24.0) % 7})
    encoding, _ = learned(learning)
    word, value = alone
    assert encoding.apply(pa.table({"a": [word], "b": [1.0]}))[0, 0] == value
    with pytest.raises(InputError, match=f"row 1: '{beside}' is no"):
        encoding.apply(pa.table({"a": [word, beside], "b": [1.0, 1.0]}))


def test_other_forms_are_read_where_no_cell_is_ambiguous():
    grouped, _ = learned(pa.table({"a": ["1,234", "2,500", "12,000"] * 8, "b": np.arange(24.0) % 7}))
    assert grouped.apply(pa.table({"a": ["1234", "2e3"], "b": [1.0, 1.0]}))[:, 0].tolist() == [1234.0, 2000.0]
    american, _ = learned(pa.table({"a": ["01/02/2020", "03/25/2020", "12/01/2020"] * 8, "b": np.arange(24.0) % 7}))
    assert american.apply(pa.table({"a": ["2020-01-02"], "b": [1.0]}))[0, 0] == 18263.0


def test_unsigned_codes_of_a_category():
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 10, pa.uint32()), pa.array(["a", "b"]))
    encoding, X = learned(pa.table({"c": words, "b": np.arange(20.0) % 7}))
    assert (encoding.columns[0].levels, X[:2, 0].tolist()) == (("a", "b"), [1.0, 0.0])


@pytest.mark.parametrize("unit", [1e305, 5e-320])
def test_the_unit_of_weights_changes_nothing(unit):
    rows, weights = random_rows_of_levels(), np.arange(1.0, 61.0)
    ours, plain = (learned(rows, np.arange(60.0), weights=weights * scale) for scale in (unit, 1.0))
    np.testing.assert_allclose(ours[1], plain[1], rtol=1e-3 if unit < 1 else 1e-12)


def random_rows_of_levels():
    """Sixty rows of a category with 40 levels, which has means, and of a number with gaps."""
    rng = np.random.default_rng(0)
    number = rng.normal(size=60)
    number[::7] = np.nan
    return pa.table({"c": [f"level {k}" for k in rng.integers(0, 40, 60)], "n": pa.array(number, from_pandas=True)})


def test_a_wrong_cell_among_truth_values_is_named():
    encoding, _ = learned(pa.table({"a": ["true", "false"] * 12, "b": np.arange(24.0) % 7}))
    with pytest.raises(InputError, match="row 1: 'x' is no number"):
        encoding.apply(pa.table({"a": ["true", "x"], "b": [1.0, 1.0]}))


def test_categories_of_floats_keep_their_levels():
    floats = np.array([1e-7, 1e20, 2.5])
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2] * 8), pa.array(floats))
    encoding, X = learned(pa.table({"c": words, "b": np.arange(24.0) % 7}))
    np.testing.assert_array_equal(encoding.apply(pa.table({"c": floats, "b": [0.0, 1.0, 2.0]})), X[:3])
