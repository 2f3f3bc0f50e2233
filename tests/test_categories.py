"""Words and gaps in arrays are refused with their place and what to do; columns of DataFrames become features."""

import builtins
import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone, is_classifier

from asygcd import AsyGCDSVC
from cacore.errors import InputError
from cakrr import BKRR2, DKRR, BKRR2Classifier
from casvm import CASVC
from partition import KBalance

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "categories.py"
N = 30
rng = np.random.default_rng(0)
GOOD = rng.normal(size=(N, 2))
y, labels = GOOD.sum(axis=1), np.where(GOOD[:, 0] > 0, 1, -1)
ENCODE = "ColumnTransformer and TargetEncoder or OneHotEncoder"
FILL = "fill the gap with scikit-learn's SimpleImputer"

learners = pytest.mark.parametrize(
    ("estimator", "target"), [(BKRR2(n_parts=1), y), (CASVC(n_parts=1), labels), (AsyGCDSVC(), labels)],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
estimators = pytest.mark.parametrize(
    ("estimator", "target"),
    [(BKRR2(n_parts=1), y), (CASVC(n_parts=1), labels), (AsyGCDSVC(), labels), (KBalance(n_parts=2), None)],
    ids=lambda one: type(one).__name__,
)


def cells(row, column, value, dtype=object):
    X = GOOD.astype(dtype)
    X[row, column] = value
    return X


BAD = {
    "words": (cells(4, 1, "Oslo"), rf"X, column 1: row 4 is 'Oslo', not a number: .*{ENCODE}"),
    "a list": (cells(4, 1, "Oslo").tolist(), rf"X, column 1: row 4 is 'Oslo', not a number: .*{ENCODE}"),
    "strings": (cells(4, 1, "Oslo").astype(str), rf"X, column 1: row 4 is 'Oslo', not a number: .*{ENCODE}"),
    "a question mark": (cells(3, 0, "?"), rf"X, column 0: row 3 is NaN \('\?'\): {FILL}"),
    "nothing": (cells(3, 0, None), rf"X, column 0: row 3 is NaN .*{FILL}"),
    "nan": (cells(7, 1, np.nan, float), rf"X, column 1: row 7 is NaN: {FILL}"),
    "nan in CSR": (csr_matrix(cells(7, 1, np.nan, float)), rf"X, column 1: row 7 is NaN: {FILL}"),
    "infinity": (cells(7, 1, -np.inf, float), "X, column 1: row 7 is -infinity: leave"),
}


def refused(work, *args, message):
    with pytest.raises(InputError, match=f"^{message}") as caught:
        work(*args)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", BAD)
@estimators
def test_arrays(estimator, target, what):
    X, message = BAD[what]
    refused(estimator.fit, X, *(() if target is None else (target,)), message=message)


def test_rows_to_predict():
    model = BKRR2(n_parts=1).fit(GOOD, y)
    for X, message in (BAD["words"], BAD["nan"]):
        refused(model.predict, X, message=message)


def test_targets_that_are_words():
    words = np.array(["low", "high"] * (N // 2), object)
    refused(BKRR2(n_parts=1).fit, GOOD, words, message="y: .*'low'; the targets of a regression are numbers")


def test_what_is_not_a_value_is_told_as_before():
    with pytest.raises(TypeError, match="number"):
        BKRR2(n_parts=1).fit(cells(0, 0, {"a": 1}), y)
    refused(BKRR2(n_parts=1).fit, GOOD[:, 0], y, message="Expected 2D array")
    refused(BKRR2(n_parts=1, dtype="float32").fit, cells(0, 0, 1e300, float), y, message=".*too large for dtype")


def test_partitioners_take_words_in_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(GOOD, columns=["a", "b"]).assign(town=["Oslo", "Rome"] * (N // 2))
    division = KBalance(n_parts=2, random_state=0).fit(frame)
    assert division.centers_.shape == (2, 4)
    features = np.column_stack([GOOD, np.arange(N) % 2 == 0, np.arange(N) % 2 == 1]).astype(float)
    np.testing.assert_array_equal(division.labels_, KBalance(n_parts=2, random_state=0).fit(features).labels_)


def frames(columns):
    """The same columns by pandas, Arrow and polars, as far as they are installed."""
    made = {name: pytest.importorskip(name) for name in ("pandas", "pyarrow", "polars") if find_spec(name)}
    make = {"pandas": "DataFrame", "pyarrow": "table", "polars": "DataFrame"}
    return {name: getattr(module, make[name])(columns) for name, module in made.items()}


@estimators
def test_names_of_columns(estimator, target):
    """They are kept, and compared with those of later rows by scikit-learn's rules; booleans are numbers."""
    columns = {"a": GOOD[:, 0], "b": GOOD[:, 1] > 0, "c": rng.integers(0, 9, N)}
    rest = () if target is None else (target,)
    plain = np.column_stack(list(columns.values()))
    expected = clone(estimator).set_params(random_state=0).fit(plain, *rest).predict(plain)
    for frame in frames(columns).values():
        model = clone(estimator).set_params(random_state=0).fit(frame, *rest)
        assert model.feature_names_in_.tolist() == ["a", "b", "c"]
        np.testing.assert_array_equal(model.predict(frame), expected)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        model.predict(plain)
    for others in ("abz", "bac"):
        for frame in frames(dict(zip(others, columns.values(), strict=True))).values():
            refused(model.predict, frame, message="The feature names should match those that were passed during fit")


@learners
def test_columns_of_text_are_categories_unless_all_words_are_numbers(estimator, target):
    words = {"Oslo": ["Oslo", "Rome"] * (N // 2), "1": ["1", "2"] * (N // 2)}
    for first, town in words.items():
        made = frames({"a": GOOD[:, 0], "town": town})
        made |= {f"{name} category": categories(name, frame) for name, frame in made.items()}
        if "pandas" in made:
            made["object"] = made["pandas"].astype({"town": object})
        for name, frame in made.items():
            model = clone(estimator).fit(frame, target)
            kinds = {column.name: column.kind for column in model.encoding_.columns}
            assert kinds == {"a": "number", "town": "number" if first == "1" and "category" not in name else "category"}
            assert (model.n_features_in_, model.feature_names_in_.tolist()) == (2, ["a", "town"])
            np.testing.assert_array_equal(model.model_.predict(frame), model.predict(frame))


@pytest.mark.parametrize("estimator", [BKRR2(n_parts=1), DKRR(), BKRR2Classifier(n_parts=1)])
def test_indicators_of_a_column_count_as_one_feature(estimator):
    town = np.array(["Oslo", "Rome", "Bonn"])[np.arange(N) % 3]
    frame = frames({"a": GOOD[:, 0], "town": town})["pyarrow"]
    target = GOOD[:, 1] > 0 if is_classifier(estimator) else GOOD[:, 1]
    fitted = {scaling: clone(estimator).set_params(scaling=scaling).fit(frame, target).model_.standardizer
              for scaling in ("deviation", "categories")}  # fmt: skip
    deviation = np.sqrt((1 / 3) * (2 / 3))
    np.testing.assert_allclose(fitted["deviation"].scale, [GOOD[:, 0].std(), *[deviation] * 3], rtol=1e-12)
    np.testing.assert_allclose(fitted["categories"].scale, [GOOD[:, 0].std(), *[3**0.5 * deviation] * 3], rtol=1e-12)
    with pytest.raises(InputError, match="scaling categories: no column of words is known; leave it out"):
        clone(estimator).set_params(scaling="categories").fit(GOOD, target)


def categories(name, frame):
    """With the column town as categories."""
    if name == "pandas":
        return frame.astype({"town": "category"})
    if name == "polars":
        return frame.with_columns(frame["town"].cast(pytest.importorskip("polars").Categorical))
    return frame.set_column(1, "town", frame["town"].dictionary_encode())


def run_example(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["categories.py", *map(str, words)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    out = capsys.readouterr().out
    assert re.match(r"(without encoding: X, column .*: row \d+ is NaN|the table as it is: R\^2 0\.)", out)
    return float(re.search(r"R\^2 (\S+) on", out)[1])


def without_pandas(name, *args, found=builtins.__import__):
    if name == "pandas":
        raise ImportError(name)
    return found(name, *args)


@pytest.mark.parametrize("pandas", ["with pandas", "without pandas"])
def test_example(monkeypatch, capsys, tmp_path, pandas):
    if pandas == "with pandas":
        pytest.importorskip("pandas")
    else:
        monkeypatch.setattr(builtins, "__import__", without_pandas)
    assert run_example(monkeypatch, capsys, "--rows", 600, "--data", tmp_path) > 0.7


def test_example_on_real_data(monkeypatch, capsys, data):
    assert run_example(monkeypatch, capsys, "--rows", 1500, "--data", data) > 0.6
