"""Checks of user input by scikit-learn, which is loaded only if the input is not an array that can be used directly.

If scikit-learn refuses a value without its position, the position is looked up, and the message adds a remedy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.checks import columns_file
from cacore.comm import Communicator
from cacore.data.containers import (
    arrow_table,
    column_of,
    column_types,
    is_missing,
    other_type,
    plain,
    table_with_words,
    unmasked,
)
from cacore.data.encoding import Columns, Encoding, clean, learned
from cacore.data.kinds import NO_OVERRIDES, Overrides
from cacore.data.resolution import check_whole_numbers, rounded_columns
from cacore.data.rows import AnyRows, Rows, RowsLike, check_range, first_nonfinite, is_sparse
from cacore.data.standardize import Standardizer
from cacore.data.stored import StoredRows, is_stored
from cacore.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    from sklearn.base import BaseEstimator


# The user's word on columns, or a file of it; or the columns of an array's features.
ColumnsLike: TypeAlias = Mapping[str, object] | str | Path | Columns | None
ENCODE = "encode it with scikit-learn's ColumnTransformer and TargetEncoder or OneHotEncoder"
FILL = "fill the gap with scikit-learn's SimpleImputer, or leave the row out"
_LETTERS = {"int": "i", "uint": "u", "bool": "b", "boolean": "b"}  # numpy's for types of columns; others count as "f"
# Type names of text and categories in pandas, polars and Arrow.
_TEXT = r"categor|enum|str$|string|large_string|utf8|dictionary"


def checked_rows(X: RowsLike | StoredRows, dtypes: tuple[str, ...], order: str | None = None) -> AnyRows:
    """Rows of finite numbers, dense or CSR, of one of `dtypes`; other input is converted to the first of these.

    `order` is "C" or None and applies to dense rows. If the conversion fails, an InputError quotes ``check_array``.
    Rows in a file are not checked again.
    """
    X = X if is_stored(X) else plain(X)
    if _usable(X, dtypes, order):
        return X
    from sklearn.utils.validation import check_array

    try:
        rows: Rows = check_array(X, accept_sparse="csr", dtype=dtypes, order=order, ensure_min_samples=0)
    except (ValueError, TypeError) as error:
        _refuse(error, X)
    _check_columns(X)
    return rows


def _usable(X: Any, dtypes: tuple[str, ...], order: str | None) -> bool:
    if is_stored(X):
        return X.dtype in dtypes
    if is_sparse(X):
        form = X.format == "csr"
    else:
        form = type(X) is np.ndarray and X.ndim == 2 and (order is None or X.flags.c_contiguous)
    return bool(form and X.dtype in dtypes and X.shape[1] > 0 and first_nonfinite(X) is None)


def rows_to_predict(
    X: RowsLike | StoredRows, dtype: str, n_features: int, standardizer: Standardizer | None, source: dict[str, Any],
    what: str = "the rows to predict",
) -> AnyRows:  # fmt: skip
    """Rows to predict, converted to the model's dtype, checked, and standardised like the training rows.

    Raises an InputError for another number of features, for other names of them than in the model's `source`, for
    numbers that are not finite, and for numbers whose squares overflow, which calls the rows `what`.
    """
    X = features_of(X, source)
    check_names(X, source)
    rows = checked_rows(X, (dtype,), "C")
    if rows.shape[1] != n_features:
        raise InputError(f"{rows.shape[1]} features in {what}, {n_features} in the model")
    if standardizer is not None:
        rows = standardizer.apply(rows)
    check_range(rows, what)
    return rows


def features_of(X: RowsLike | StoredRows, source: dict[str, object]) -> RowsLike | StoredRows:
    """The features of a DataFrame's rows for a model that was trained on a table with words; other rows as they are."""
    if column_types(X) is None or (table := Columns.of_source(source).table) is None:
        return X
    features: NDArray[np.float64] = table.apply(arrow_table(X))
    return features


def shared_seed(random_state: int | np.random.RandomState | None, comm: Communicator) -> int:
    """A seed that is the same on all ranks, even if `random_state` is None."""
    try:
        if isinstance(random_state, Integral):
            state = np.random.RandomState(int(random_state))
        else:
            from sklearn.utils import check_random_state

            state = check_random_state(random_state)
    except (TypeError, ValueError) as error:  # scikit-learn 1.6 cannot print a tuple
        need = "an int from 0 to 4294967295, a numpy.random.RandomState or None"
        raise InputError(f"random_state = {random_state!r}: give {need}") from error
    return int(comm.bcast(np.array([state.randint(2**31 - 1)], np.int64))[0])


def validated(estimator: BaseEstimator, *args: Any, **kwargs: Any) -> Any:
    """scikit-learn's ``validate_data`` for an estimator, with InputErrors that name the position of a wrong value.

    For a DataFrame, column names are stored or compared with the stored ones. One with words, dates or gaps has been
    replaced by :func:`with_features`, and rows to predict are replaced here.
    """
    reset = kwargs.get("reset", True)
    if reset:
        vars(estimator).pop("encoding_", None)
        if isinstance(args[0], EncodedRows):
            return _validated_table(estimator, *args, **kwargs)
    elif "encoding_" in vars(estimator):
        return _of_table(estimator, args[0], **kwargs)
    if _needs_nothing(estimator, *args, **kwargs):
        return args if len(args) > 1 else args[0]
    from sklearn.base import is_regressor
    from sklearn.utils.validation import validate_data

    if not kwargs.get("skip_check_array"):
        readers = (plain, plain if is_regressor(estimator) else unmasked)
        args = tuple(read(argument, name) for argument, name, read in zip(args, "Xy", readers, strict=False))
        if kwargs.get("reset", True):
            for array, name in zip(args if is_regressor(estimator) else args[:1], "Xy", strict=False):
                check_whole_columns(array, name)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # validate_data sums all numbers, which may overflow
            checked = validate_data(estimator, *args, **kwargs)
    except (ValueError, TypeError) as error:
        _refuse(error, *args)
    _check_columns(args[0])
    return checked


@dataclass(frozen=True)
class EncodedRows:
    """Features of a DataFrame with words, dates or gaps, in its place until they are checked.

    Attributes
    ----------
    features : ndarray of float64, shape (n_local, d)
    encoding : Encoding
    names : list of str
        Names of the DataFrame's columns.
    """

    features: NDArray[np.float64]
    encoding: Encoding
    names: list[str]


def with_features(
    estimator: BaseEstimator, X: Any, y: Any, sample_weight: ArrayLike | None, comm: Communicator | None = None
) -> Any:  # fmt: skip
    """`X`, or its features if it is a table with words, dates or gaps on any rank; collective.

    Rank 0 learns the encoding from the rows of all ranks, in their order, so that the number of ranks changes no bit.
    It holds the whole table meanwhile; each rank sends it its rows, and receives their features. The estimator's
    `columns` say what the cells of columns are, as ``--columns`` does. Without `comm` the rows are those of one
    process; an estimator that has a `comm` of its own has called this with it before.

    Raises
    ------
    InputError
        On all ranks: `X` is no table on some of them, or has other columns; a column that cannot be encoded.
    """
    from sklearn.base import is_classifier

    if isinstance(X, EncodedRows) or (comm is None and getattr(estimator, "comm", None) is not None):
        return X
    comm = comm or Communicator()
    with comm.agreed(own_rows=True):
        columns = getattr(estimator, "columns", None)
        overridden = columns is not None and not isinstance(columns, Columns)
        overrides = Overrides.of(columns_file(columns, "columns =")) if overridden else NO_OVERRIDES
        if overrides.weight:
            raise InputError("columns = weight: pass the weights of the rows as sample_weight")
        if overrides.any and column_types(X) is None:
            raise InputError("columns = names columns of a table, and X is none: give a DataFrame or an Arrow table")
        table = table_with_words(X) if overrides.gaps == "fill" else None
        table = arrow_table(X) if table is None and overrides.any else table
    if comm.all(table is None):
        return X
    with comm.agreed(own_rows=True):
        if column_types(X) is None:
            raise InputError("X is no table, and that of another rank has words, dates or gaps: give all ranks tables")
        table = (arrow_table(X) if table is None else table).replace_schema_metadata(None)
        weights = None if sample_weight is None else checked_weights(sample_weight, table.num_rows)
    names = [str(name) for name in table.column_names]
    _check_same(names, comm)
    targets = _targets_of_means(y, table.num_rows, is_classifier(estimator))
    features, encoding = np.zeros((0, 0)), np.zeros(0, np.uint8)
    with comm.phase("read"):
        rows = GatheredRows(table, targets, weights).on_root(comm)
        counts = comm.allgather(np.array([table.num_rows], np.int64))
        with comm.agreed():
            if rows is not None:
                learned_encoding, features = rows.learned(overrides)
                encoding = np.frombuffer(json.dumps(learned_encoding.described()).encode(), np.uint8)
        features = comm.scatter(features if rows is not None else None, counts)
        described = json.loads(comm.bcast(encoding).tobytes())
    return EncodedRows(features, Encoding.of(described), names)


@dataclass(frozen=True)
class GatheredRows:
    """Rows of a table with what their encoding is learned from: targets, if they can be used, and weights, if any."""

    table: pa.Table
    targets: NDArray[np.generic] | None
    weights: NDArray[np.float64] | None

    def on_root(self, comm: Communicator) -> GatheredRows | None:
        """The rows of all ranks, in their order, on rank 0; None elsewhere. Collective."""
        import pyarrow as pa

        if comm.size == 1:
            return self
        d, n = self.table.num_columns, self.table.num_rows
        width = -1 if self.targets is None else self.targets[:1].size or -2
        widths = comm.allgather(np.array([width], np.int64))  # of ranks without rows -2
        beside: list[Any] = []
        if widths.min() != -1 and len(used := np.unique(widths[widths > 0])) == 1 and self.targets is not None:
            beside = [pa.array(column) for column in self.targets.reshape(n, int(used[0])).T]
        weighted = not comm.all(self.weights is None)
        if weighted:
            beside.append(pa.array(np.ones(n) if self.weights is None else self.weights))
        numbered = pa.Table.from_arrays([*self.table.columns, *beside], list(map(str, range(d + len(beside)))))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, numbered.schema) as stream:
            stream.write_table(numbered)
        sent = np.frombuffer(sink.getvalue(), np.uint8)
        lengths, texts = comm.gather(np.array([len(sent)], np.int64)), comm.gather(sent)
        with comm.agreed():
            if lengths is None or texts is None:
                return None
            pieces = np.split(texts, np.cumsum(lengths)[:-1])
            tables = [pa.ipc.open_stream(pa.py_buffer(piece)).read_all() for piece in pieces]
            try:
                whole = pa.concat_tables(tables, promote_options="permissive")
            except pa.ArrowException as error:
                what = f"X has columns of other types on other ranks ({' '.join(str(error).split())[:120]})"
                raise InputError(f"{what}: convert them to one type") from error
            extra = [column.to_numpy() for column in whole.columns[d:]]
            weights = extra.pop() if weighted else None
            targets = np.stack(extra, axis=1) if extra else None
            if targets is not None and targets.dtype.kind == "O":
                targets = targets[:, 0].astype(np.str_)
            return GatheredRows(whole.select(range(d)).rename_columns(self.table.column_names), targets, weights)

    def learned(self, overrides: Overrides) -> tuple[Encoding, NDArray[np.float64]]:
        """The encoding, of rows with a positive weight; the features of all rows, 0 for others."""
        there = np.flatnonzero(np.ones(self.table.num_rows) if self.weights is None else self.weights)
        table, targets, weights = self.table, self.targets, self.weights
        if 0 < len(there) < table.num_rows and weights is not None:
            table, weights = table.take(there), weights[there]
            targets = None if targets is None else targets[there]
        weights = None if weights is None or not weights.any() else weights  # refused later
        try:
            encoding, X = learned(table, targets, overrides, weights=weights)
        except InputError as error:
            raise InputError(f"X: {error}") from error
        if len(X) == self.table.num_rows:
            return encoding, X
        features = np.zeros((self.table.num_rows, X.shape[1]))
        features[there] = X
        return encoding, features


def _validated_table(estimator: BaseEstimator, rows: EncodedRows, *y: Any, **kwargs: Any) -> Any:
    """Result of ``validate_data`` for the features of a table's rows and the targets; sets `encoding_`."""
    checked = validated(estimator, rows.features, *y, **kwargs)
    estimator.encoding_ = rows.encoding
    estimator.n_features_in_ = len(rows.names)
    estimator.feature_names_in_ = np.array(rows.names, object)
    return checked


def _targets_of_means(y: object, n: int, classes: bool) -> NDArray[np.generic] | None:
    """Targets of which levels have means: numbers, or classes as words; None for what ``validate_data`` refuses."""
    if y is None:
        return None
    targets = np.asarray(y)
    if len(targets) != n or targets.ndim > 2:
        return None
    try:
        if classes:
            return targets.astype(str).reshape(n, -1)[:, 0] if n else np.zeros(0, np.str_)
        numbers = targets.astype(np.float64)
    except (TypeError, ValueError):
        return None
    return numbers if np.isfinite(numbers).all() else None


def _of_table(estimator: BaseEstimator, X: Any, *, ensure_min_samples: int = 1, **kwargs: Any) -> Any:
    """The features of rows to predict, for an estimator that was fitted to a table with words."""
    if column_types(X) is None:
        names = ", ".join(estimator.encoding_.names[:8])
        raise InputError(
            f"X: this {type(estimator).__name__} was fitted to a table; give one with its columns: {names}"
        )
    kwargs.pop("skip_check_array", None)
    try:
        features = estimator.encoding_.apply(arrow_table(X))
    except InputError as error:
        raise InputError(f"X: {error}") from error
    if len(features) < ensure_min_samples:
        raise InputError(
            f"Found array with {len(features)} sample(s) while a minimum of {ensure_min_samples} is required."
        )
    dtype = kwargs.get("dtype", "float64")
    return features.astype(dtype if isinstance(dtype, str) else dtype[0], copy=False)


def _needs_nothing(
    estimator: BaseEstimator, X: Any, *y: Any, dtype: str | tuple[str, ...] = (), reset: bool = True,
    ensure_min_samples: int = 1, order: str | None = None, accept_sparse: str = "", accept_large_sparse: bool = False,
    **others: Any,
) -> bool:  # fmt: skip
    """True for arrays that ``validate_data`` would return as they are; stores `n_features_in_` as it does.

    Costs one pass over `X`, where ``validate_data`` takes as long as a whole fit to a hundred rows.
    """
    dtypes = (dtype,) if isinstance(dtype, str) else dtype
    is_plain = _is_number_column if others.pop("y_numeric", False) else is_plain_column
    if others or type(X) is not np.ndarray or not _usable(X, dtypes, order) or len(X) < ensure_min_samples:
        return False
    attributes = vars(estimator)
    if "feature_names_in_" in attributes or (not reset and attributes.get("n_features_in_") != X.shape[1]):
        return False
    if not all(is_plain(target) and len(target) == len(X) for target in y):
        return False
    if reset:
        estimator.n_features_in_ = X.shape[1]
    return True


def _is_number_column(y: object) -> bool:
    """True for an array of one finite number per row in double precision, which needs no check by itself."""
    return type(y) is np.ndarray and y.ndim == 1 and y.dtype == np.float64 and first_nonfinite(y[:, None]) is None


def is_plain_column(y: object) -> bool:
    """True for an array of one whole number, truth value or text per row, which needs no check by itself."""
    if type(y) is not np.ndarray or y.ndim != 1:
        return False
    if y.dtype == np.float64:  # labels are often floats
        return bool((y == np.rint(y)).all() and np.abs(y).max(initial=0.0) < 2**31)
    return y.dtype.kind in "biuU"


def columns_of(
    X: object, y: object = None, encoding: Encoding | None = None, columns: ColumnsLike = None
) -> Columns:  # fmt: skip
    """Names and types of the columns of a DataFrame with names of text, and of the target; none of other input.

    With the `encoding` of a table, those of the features that are made of its columns. `columns` are those of an array,
    if they are `Columns`: a search passes them to its candidates.
    """
    if encoding is None and isinstance(columns, Columns):
        return columns
    typed = column_types(X) or []
    if encoding is None and not (typed and all(isinstance(name, str) for name, _ in typed)):
        return Columns()
    target = [name for name, _ in column_types(y) or ()] or [getattr(y, "name", None)]
    named = all(isinstance(name, str) for name in target)
    if encoding is not None:
        return replace(encoding.features, target=tuple(clean(name) for name in target) if named else (), table=encoding)
    kinds = "".join(_LETTERS.get(kind.lower().lstrip("<>=").rstrip("0123456789"), "f") for _, kind in typed)
    return Columns(
        tuple(clean(name) for name, _ in typed), tuple(clean(name) for name in target) if named else (), kinds
    )


def check_names(X: object, source: dict[str, Any]) -> None:
    """Raise an InputError for a DataFrame with other columns, or in another order, than those of a model's `source`."""
    here, there = columns_of(X).features, Columns.of_source(source).features
    if not here or not there or here == there or len(here) != len(there):
        return
    j = next(j for j in range(len(here)) if here[j] != there[j])
    raise InputError(
        f"X, column {j}: {here[j]!r}, and {there[j]!r} in the model; give it the columns in source['columns'], in order"
    )


def check_same_names(estimator: BaseEstimator, comm: Communicator) -> None:
    """Raise an InputError on all ranks if DataFrame columns differ in name or order from rank 0's; collective."""
    _check_same([str(name) for name in getattr(estimator, "feature_names_in_", ())], comm)


def _check_same(names: list[str], comm: Communicator) -> None:
    """Raise an InputError on all ranks if these names differ from rank 0's; collective."""
    mine = np.frombuffer(json.dumps(names).encode(), np.uint8)
    with comm.uncounted():
        first = json.loads(comm.bcast(mine).tobytes())
    with comm.agreed():
        if names != first:
            pairs = zip_longest(names, first, fillvalue="no name")
            j, (name, first_name) = next((j, pair) for j, pair in enumerate(pairs) if pair[0] != pair[1])
            where = f"X, column {j}: {name!r} on rank {comm.rank}, {first_name!r} on rank 0"
            raise InputError(f"{where}; give all ranks the same columns")


def _check_columns(X: object) -> None:
    """Raise an InputError if a DataFrame has columns of text or categories, even if the text looks like numbers."""
    for j, (name, kind) in enumerate(column_types(X) or ()):
        column: Any = None
        if kind == "object":
            column = [value for value in column_of(X, j) if isinstance(value, str)]
        elif re.match(_TEXT, kind, re.IGNORECASE):
            column = column_of(X, j)
        if column is not None and len(column):
            raise InputError(f"X, column {name!r}: of type {kind[:60]}, as {str(column[0])[:60]!r}: {ENCODE}")


def check_whole_columns(data: Any, name: str) -> None:
    """Refuse training rows or targets with a column of whole numbers that double precision does not tell apart."""
    columns = column_types(data)
    if columns is not None:
        for j, (column, kind) in enumerate(columns):
            if re.match("u?int64|object", kind, re.IGNORECASE):
                check_whole_numbers(column_of(data, j), f"{name}, column {column!r}")
        return
    if data is None or is_stored(data) or isinstance(data, str):
        return
    for number, values in _whole_columns(data):
        check_whole_numbers(values, name if number is None else f"{name}, column {number}")


def _whole_columns(data: Any) -> Iterator[tuple[int | None, NDArray[Any]]]:
    """Yield the number and the values of each column that may be of large whole numbers; None for the only one."""
    if hasattr(data, "tocsc"):  # sparse, in any format
        if data.dtype.kind in "iu":
            rows, by_columns = data.tocsr(), data.tocsc()
            for j in np.flatnonzero(rounded_columns(rows)).tolist():
                yield j, by_columns[:, [j]].toarray().ravel()
        return
    try:
        cells = np.asarray(data)
        if cells.dtype.kind == "f" and not hasattr(data, "dtype") and np.abs(cells).max(initial=0) > 2**53:
            cells = np.array(data, object)  # whole numbers of a list, beside others
    except (ValueError, TypeError):
        return  # validate_data says what is wrong
    if cells.dtype.kind in "iuO" and cells.ndim in (1, 2):
        yield from enumerate(cells.T) if cells.ndim > 1 else [(None, cells)]


def _refuse(error: ValueError | TypeError, X: object, y: object = None) -> NoReturn:
    """Raise scikit-learn's error as an InputError, with the position in `X` if a value is wrong."""
    if re.search("NaN|infinity|could not convert|argument must be|DType", str(error)):
        place = place_in_rows(X)
        if place is not None:
            raise InputError(place) from error
        place = None if y is None else place_in_targets(y)
        if place is not None:
            raise InputError(place) from error
    if isinstance(error, TypeError):
        raise error
    if y is not None and "could not convert" in str(error):
        raise InputError(f"y: {error}; the targets of a regression are numbers") from error
    raise InputError(str(error)) from error


def place_in_targets(y: object) -> str | None:
    """Message on the first target that is NaN or infinite, with its row; None without one, or for other objects."""
    try:
        values = np.asarray(y, np.float64)
    except (TypeError, ValueError):
        return None
    bad = np.argwhere(~np.isfinite(values))
    if not len(bad) or values.ndim not in (1, 2):
        return None
    column = f", column {bad[0, 1]}" if values.ndim == 2 and values.shape[1] > 1 else ""
    value = values[tuple(bad[0])]
    what = "NaN" if np.isnan(value) else f"{'-' if value < 0 else ''}infinity"
    return f"y{column}: row {bad[0, 0]} is {what}: leave the row out"


def place_in_rows(X: Any) -> str | None:
    """Message on the first value of `X` that is not a finite number, with position and remedy; None without one."""
    if is_sparse(X):
        place = first_nonfinite(X)
        return None if place is None else f"X, column {place[1]}: row {place[0]} is {_what(place[2])}"
    columns = column_types(X)
    cells = X if columns is not None else np.asarray(X, None if isinstance(X, np.ndarray) else object)
    if len(np.shape(cells)) != 2:
        return None
    for j in range(np.shape(cells)[1]):
        column = column_of(cells, j)
        for i in np.flatnonzero(~np.isfinite(column)) if column.dtype.kind in "biuf" else range(len(column)):
            what = _what(column[i])
            if what is not None:
                return f"X, column {j if columns is None else repr(columns[j][0])}: row {i} is {what}"
    return None


def _what(value: Any) -> str | None:
    """Description of a value that is not a finite number, with a remedy; None for finite numbers and other objects."""
    text = str(value)[:60]
    try:
        number = float(value)
    except (ValueError, TypeError):
        if is_missing(text):
            return f"NaN ({text!r}): {FILL}"
        remedy = other_type(type(value).__name__)
        if remedy is not None:
            return f"{text}, not a number: {remedy}"
        return f"{text!r}, not a number: {ENCODE}" if isinstance(value, str | bytes) else None
    if np.isnan(number):
        return f"NaN: {FILL}"
    return f"{'-' * (number < 0)}infinity: leave the row out" if np.isinf(number) else None


def checked_weights(sample_weight: ArrayLike, n: int) -> NDArray[np.float64]:
    """Row weights, checked: one finite number per row, at least 0; all weights of a rank may be 0."""
    from sklearn.utils.validation import check_array

    sample_weight = plain(sample_weight, "sample_weight")
    try:
        weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, ensure_min_samples=0)
    except ValueError as error:
        raise InputError(f"sample_weight: {error}") from error
    if weights.shape != (n,):
        raise InputError(f"sample_weight has shape {weights.shape}; {n} rows need {n} weights")
    if (weights < 0).any():
        raise InputError("sample_weight: negative weights cannot be used")
    return np.asarray(weights)
