"""LIBSVM, CSV, TSV and NPZ: what was written is what is read, and what is wrong is named."""

import bz2
import gzip
import io
import lzma
import re

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import load, text
from cacore.io.names import Expected
from cacore.io.table import LABELS, RowsRequest

OPENERS = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
numbers = st.floats(allow_nan=False, allow_infinity=False)
many = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


@pytest.fixture
def put(tmp_path):
    """Write a file; its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def parse(path, target=None, n_features=None, binarize=None, **more):
    return text.parse(path, RowsRequest(target=target, n_features=n_features, binarize=binarize, **more))["train"]


def dense(X):
    return X.toarray() if sp.issparse(X) else X


# -- round trips -------------------------------------------------------------------------------


@st.composite
def libsvm_text(draw):
    first = draw(st.integers(0, 1))
    lines = []
    for _ in range(draw(st.integers(1, 8))):
        indices = sorted(draw(st.sets(st.integers(first, 40), max_size=6)))
        tokens = [repr(draw(numbers)), *(f"{i}:{draw(numbers)!r}" for i in indices)]
        lines.append(" ".join(tokens) + draw(st.sampled_from(["", " ", "  # 3:4 said", "\n", "\n# nothing"])))
    lines.insert(draw(st.integers(0, len(lines))), "0.5 7:1.25")
    return "\n".join(lines) + "\n"


@many
@given(content=libsvm_text(), end=st.sampled_from(sorted(OPENERS)))
def test_libsvm_is_what_scikit_learn_reads(folder, content, end):
    path = folder / f"rows.txt{end}"
    with OPENERS[end](path, "wt") as file:
        file.write(content)
    X, y = load_svmlight_file(io.BytesIO(content.encode()), dtype=np.float64)
    table = parse(path)
    np.testing.assert_array_equal(dense(table.X), X.toarray())
    np.testing.assert_array_equal(table.y, y)


@many
@given(
    rows=st.integers(2, 5).flatmap(
        lambda d: st.lists(st.lists(numbers, min_size=d, max_size=d), min_size=1, max_size=8)
    ),
    header=st.booleans(),
    form=st.sampled_from(["csv", "tsv"]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    end=st.sampled_from(sorted(OPENERS)),
    place=st.integers(-2, 1),
)
def test_csv_is_the_numbers_written(folder, rows, header, form, line_end, end, place):
    delimiter = {"csv": ",", "tsv": "\t"}[form]
    lines = [delimiter.join(f"c{j}" for j in range(len(rows[0])))] * header
    lines += [delimiter.join(map(repr, row)) for row in rows]
    path = folder / f"rows.{form}{end}"
    with OPENERS[end](path, "wb") as file:
        file.write((line_end.join(lines) + line_end).encode())
    table = parse(path, target=f"c{place % len(rows[0])}" if header else str(place))
    want = np.array(rows)
    np.testing.assert_array_equal(table.y, want[:, place])
    np.testing.assert_array_equal(table.X, np.delete(want, place, axis=1))


@pytest.mark.parametrize("line", ["2019,2020,y", "2020, 2019 ,y", '"0","1","y"', "\n7,8,y"])
def test_csv_header_with_numbers(put, line):
    """Years, or the places of columns; words over numbers say that the line is no row."""
    rows = "".join(f"{i},{i + 1},{i % 2}\n" for i in range(5))
    table = parse(put("rows.csv", f"{line}\n\n{rows}".encode()), target="y")
    np.testing.assert_array_equal(np.c_[table.X, table.y], np.loadtxt(io.StringIO(rows), delimiter=","))
    assert [int(name) for name in table.names] == [int(word.strip(' "')) for word in line.split(",")[:2]]


@pytest.mark.parametrize("labels", ["A7B7", "A79A", "A777777B"])
def test_a_first_row_of_numbers_and_a_label(put, labels):
    """Its label is no name where any row below has a word in its place."""
    rows = "".join(f"{i},{i + 1},{label}\n" for i, label in enumerate(labels, 1)).encode()
    table = parse(put("rows.csv", rows), wanted=LABELS)
    assert (table.y.tolist(), table.X[0].tolist(), table.names) == (list(labels), [1, 2], ())


def test_numeric_header_is_reported(put):
    said = []
    path = put("rows.csv", b"2019,2020,y\n1,2,3\n")
    load(path, Communicator(), expected=Expected(tell=said.append))
    load(put("other.csv", b"a,b,y\n1,2,3\n"), Communicator(), expected=Expected(tell=said.append))
    assert said == [f"note: {path}: the first line is taken for names of the columns: 2019, 2020, y"]


def test_csv_of_labels_has_no_header(put):
    table = parse(put("rows.csv", b"1,2,spam\n3,4,ham\n"), binarize="spam")
    np.testing.assert_array_equal(np.c_[table.X, table.y], [[1, 2, 1], [3, 4, -1]])


@pytest.mark.parametrize("end", OPENERS)
def test_npz(put, end):
    X, y = np.arange(24).reshape(4, 2, 3).astype(np.uint8), np.array(["a", "b", "a", "c"])
    stream = io.BytesIO()
    np.savez(stream, x_train=X, Y_train=y, x_test=X[:1], y_test=y[:1])
    pack = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[end]
    tables = text.parse(put(f"rows.npz{end}", pack(stream.getvalue())))
    assert sorted(tables) == ["test", "train"]
    np.testing.assert_array_equal(tables["train"].X, X.reshape(4, 6))
    np.testing.assert_array_equal(tables["train"].y, y)
    np.testing.assert_array_equal(tables["test"].X, X[:1].reshape(1, 6))


@pytest.mark.parametrize(("share", "kept_sparse"), [(0.1, True), (0.9, False)])
def test_mostly_zeros_stay_sparse(put, share, kept_sparse):
    lines = [f"1 10:1 {'' if i > share * 20 else ' '.join(f'{j}:1' for j in range(11, 21))}" for i in range(20)]
    assert sp.issparse(parse(put("rows", "\n".join(lines))).X) == kept_sparse


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("rows", "1 1:2 3:4\n", "libsvm"),
        ("rows", "# a comment\n\n1 1:2\n", "libsvm"),
        ("rows.gz", gzip.compress(b"1,2,3\n", mtime=0), "csv"),
        ("rows.txt", "1\t2\t3\n", "tsv"),
        ("named.gz.but.plain", "1,2\n", "csv"),
        ("plain", lzma.compress(b"-1 qid:3 1:2\n"), "libsvm"),
        ("rows.csv.bz2", bz2.compress(b"1:2,2\n"), "csv"),
        ("rows", b"\x89HDF\r\n\x1a\n...", "hdf5"),
    ],
)
def test_format_is_detected_from_bytes(put, name, content, kind):
    assert text.kind(put(name, content)) == kind


@pytest.mark.parametrize(
    ("content", "target", "want"),
    [
        ('"a b", c\n1,2\n', "a b", 1.0),
        ("a,b\n1,2\n", "0", 1.0),
        ("a,b\n1,2\n", None, 2.0),
        ("\ufeffa,b\n1,2\n", "a", 1.0),
        ('a,b\n"1","2"\n', "a", 1.0),
        ('"height, cm",weight,age\n180,75,30\n', "weight", 75.0),
        ('"height, cm",weight,age\n180,75,30\n', "height, cm", 180.0),
        ('"height\nin cm","a ""b"""\n\n180,75\n', "height in cm", 180.0),
        ('"height\r\nin cm",b\r\n180,75\r\n', "height\nin cm", 180.0),
        ("a,b,a\n1,2,3\n", "2", 3.0),
        ('1,"2\n"\n', None, 2.0),
    ],
    ids=[
        "quoted name",
        "number",
        "last",
        "byte order mark",
        "quoted cells",
        "comma in a name",
        "name with a comma",
        "line end in a name",
        "its target",
        "two of a name",
        "line end in a cell",
    ],
)
def test_target_column(put, content, target, want):
    assert parse(put("rows.csv", content), target).y.tolist() == [want]


def test_a_comma_in_a_name_moves_no_column(put):
    table = parse(put("rows.csv", '"height, cm",weight,age,label\n180,75,30,1\n'), "weight")
    assert (table.X.tolist(), table.names) == ([[180, 30, 1]], ("height, cm", "age", "label"))


def test_libsvm_with_a_byte_order_mark(put):
    assert parse(put("rows", "\ufeff1 1:2 3:4\n")).X.tolist() == [[2, 0, 4]]


def test_libsvm_in_blocks(put, tuned):
    """Blocks end where lines do; each may begin with another feature."""
    tuned(text_block=7)
    rows = parse(put("rows", "1 3:1\n# words\n\n-1 2:2 4:3\n0\n2 1:5 9:1\n"))
    np.testing.assert_array_equal(
        rows.X.toarray(), [[0, 0, 1, *[0] * 6], [0, 2, 0, 3, *[0] * 5], [0] * 9, [5, *[0] * 7, 1]]
    )
    assert (rows.y.tolist(), rows.base, [rows.line_of(i) for i in range(4)]) == ([1, -1, 0, 2], 1, [1, 4, 5, 6])


ODD = ["<f2", ">f4", ">f8", "longdouble", ">i4", "uint64", "bool"]


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", ODD)
def test_npz_of_any_numbers(put, dtype, order):
    X = np.asarray(np.arange(12).reshape(4, 3) % 2, dtype, order)
    stream = io.BytesIO()
    np.savez_compressed(stream, x=X, y=X[:, 0], names=np.array([None, "an array that is not read"]))
    rows = load(put("rows.npz", stream.getvalue()), Communicator(), "float32")["train"]
    np.testing.assert_array_equal(rows.X, X)
    assert (rows.X.dtype, rows.y.dtype, rows.X.flags.c_contiguous) == (np.float32, np.float64, True)


def test_as_many_columns_as_the_model_has_features(put):
    path = put("rows.csv", "1,2,3\n")
    alone = parse(path, n_features=3)
    assert (alone.X.tolist(), alone.y) == ([[1, 2, 3]], None)
    assert parse(path, n_features=2).y.tolist() == [3]
    assert parse(put("rows", "1 2:5\n"), n_features=4).X.shape == (1, 4)


@pytest.mark.parametrize("positive", ["yes", "1", "1.0"])
def test_binarize(put, positive):
    cells = ["yes", "no", " yes"] if positive == "yes" else ["1", "2", "1.00"]
    path = put("rows.csv", "".join(f"5,{cell}\n" for cell in cells))
    assert parse(path, binarize=positive).y.tolist() == [1, -1, 1]
    with pytest.raises(InputError, match="--binarize 7: no row has this class; the classes are"):
        parse(path, binarize="7")


def test_a_class_with_a_semicolon(put):
    assert parse(put("rows.csv", "5,a;b\n6,c\n"), binarize="a;b").y.tolist() == [1, -1]


# -- real files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target", "n", "d"),
    [
        ("mg_scale", None, 1385, 6),
        ("space_ga_scale", None, 3107, 6),
        ("cal_housing.csv.bz2", None, 20640, 8),
        ("CASP.csv.xz", "RMSD", 45730, 9),
        ("YearPredictionMSD.1176rows.csv", "0", 1176, 90),
        ("usps.t.bz2", None, 2007, 256),
    ],
)
def test_real_data(data, name, target, n, d):
    rows = load(data / name, Communicator(), "float32", target)["train"]
    assert (rows.X.shape, rows.y.shape, rows.X.dtype) == ((n, d), (n,), np.float32)
    if name.startswith("Year"):
        assert 1922 <= rows.y.min() <= rows.y.max() <= 2011


def test_load_reads_text_and_npz_alike(put):
    stream = io.BytesIO()
    np.savez(stream, x=np.array([[1, 2], [3, 4]]), y=np.array([0, 1]))
    for path in (
        put("rows.npz", stream.getvalue()),
        put("rows.csv", "1,2,0\n3,4,1\n"),
        put("r", "0 1:1 2:2\n1 1:3 2:4"),
    ):
        rows = load(path, Communicator())["train"]
        assert (rows.X.tolist(), rows.y.tolist(), rows.n) == ([[1, 2], [3, 4]], [0, 1], 2)
        assert rows.X.dtype == rows.y.dtype == np.float64


@pytest.mark.parametrize("name", ["a", "a.csv"])
def test_missing_file(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: no such file$"):
        load(path, Communicator())
