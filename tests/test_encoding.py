"""Features of the columns of tables with words, gaps and dates, beside pandas and scikit-learn's encoders."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from cacore.data.containers import arrow_table
from cacore.data.encoding import MISSING, OTHER, Encoding, Overrides, learned
from cacore.errors import InputError


def encoded(columns, y=None, **overrides):
    """The columns of the encoding by name, and the features by theirs."""
    table = arrow_table(pd.DataFrame(columns))
    encoding, X = learned(table, y, Overrides(**overrides))
    names = encoding.features.features
    assert X.shape == (table.num_rows, len(names)) == (table.num_rows, len(encoding.column_of))
    assert np.isfinite(X).all()
    return {column.name: column for column in encoding.columns}, dict(zip(names, X.T, strict=True)), encoding


def random_table(rng):
    """A random table of numbers and words."""
    n = int(rng.integers(1, 400))
    numbers, categories = {}, {}
    for j in range(rng.integers(1, 5)):
        values = rng.normal(size=n) * 10.0 ** rng.integers(-3, 6)
        values[rng.random(n) < rng.choice([0.0, 0.0, 0.3])] = np.nan
        numbers[f"number {j}"] = values
    for j in range(rng.integers(1, 5)):
        levels = [f"{'äß€x'[k % 4]}{k}" for k in range(int(rng.choice([1, 2, 5, 29, 300])))]
        values = rng.choice(levels, n).astype(object)
        values[rng.random(n) < rng.choice([0.0, 0.0, 0.2])] = None
        categories[f"word {j}"] = values
    names = [*numbers, *categories]
    rng.shuffle(names)
    return pd.DataFrame({**numbers, **categories})[names]


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
    assert set(columns) == {"a", "b"}
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
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_entries_are_refused(damage):
    with pytest.raises(InputError, match="not those of a table"):
        Encoding.of(damage)
