"""Text and NPZ files that cannot be used: the message names the file, the line and the column."""

import bz2
import gzip
import io
import lzma
import os
import re
import sys
import zipfile

import numpy as np
import pytest
from helpers.commands import run

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import load, stream, text
from cacore.io.table import RowsRequest

PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def read(path, target, binarize):
    if binarize is None:
        load(path, Communicator(), target=target)
    else:
        text.parse(path, RowsRequest(target=target, binarize=binarize))["train"].checked()


@pytest.fixture
def refused(tmp_path):
    """Write a file; loading it must fail with a message about it."""

    def check(name, content, message, target=None, binarize=None):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(InputError, match=re.escape(str(path)) + r".*?\W" + message):
            read(path, target, binarize)

    return check


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("  \n\n", "empty"),
        ("# only\n# words\n", ""),
        (gzip.compress(b"", mtime=0), "empty"),
        (b"\x00\x01\x02\x03", "not HDF5, NPZ, NPY, Parquet, Arrow, nor CSV, TSV or LIBSVM"),
        (b"\x93NUMPY\x01\x00", "cannot be read, it may be damaged"),
        ("1,2\n".encode("utf-16"), "in UTF-8"),
        (gzip.compress(b"\x89HDF\r\n\x1a\n..."), "decompress it"),
    ],
    ids=["nothing", "blank", "comments", "compressed nothing", "binary", "npy", "utf-16", "compressed hdf5"],
)
def test_not_data(refused, content, message):
    refused("rows", content, message)


def test_not_a_file(tmp_path, refuses):
    """Nothing waits for a pipe, or reads a device that has no end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "rows.csv").write_text("1,2\n")
    for name in (".", "pipe", "/dev/null", "/dev/zero"):
        for words in (["info", name], ["convert", "rows.csv", "out.h5", "--test", name]):
            line = refuses("cacore.io", words, "cannot be read; name a file that holds the rows", tmp_path)
            assert f" {name}: a {'directory' if name == '.' else 'pipe or a device'} cannot" in line
    refuses("cacore.io", ["info", "rows.csv/more"], "rows.csv/more: no such file", tmp_path)
    refuses("cacore.io", ["info", "a" * 300], "cannot be read", tmp_path)


def test_unreadable(tmp_path, refuses, monkeypatch):
    def closed(path):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "rows.csv").write_text("1,2\n")
    monkeypatch.setattr(stream, "_opener", closed)  # whoever runs the tests may be allowed everything
    refuses("cacore.io", ["info", "rows.csv"], "rows.csv: cannot be read ([Errno 13] Permission denied", tmp_path)


def test_name_that_is_not_utf8(tmp_path, refuses, monkeypatch):
    name = os.fsdecode(b"caf\xe9.csv")
    (tmp_path / name).write_text("1,2,2.5\n1,2\n")
    refuses("cacore.io", ["info", name], ".csv: line 2: 2 columns", tmp_path)
    (tmp_path / name).write_text("1,2\n")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "utf-8"))
    run("cacore.io", ["info", name])
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue().startswith(b"caf\\udce9.csv train: 1 rows")


@pytest.mark.parametrize("keep", [30, 0.5, 0.99], ids=["head", "half", "almost all"])
@pytest.mark.parametrize("form", ["csv", "libsvm"])
@pytest.mark.parametrize("pack", PACK)
def test_truncated(refused, pack, form, keep):
    X = np.random.default_rng(0).standard_normal((4000, 3))  # more than the 64 KiB that are looked at first
    line = "{},{},{}\n" if form == "csv" else "{} 1:{} 2:{}\n"
    whole = PACK[pack]("".join(line.format(*row) for row in X.tolist()).encode())
    refused(f"rows.{form}.{pack}", whole[: keep if keep > 1 else int(keep * len(whole))], "(cannot be read|truncated)")


@pytest.mark.parametrize("form", ["csv", "libsvm"])
@pytest.mark.parametrize("pack", PACK)
def test_damaged(refused, pack, form):
    line = "1,2,{}\n" if form == "csv" else "1 1:2 2:{}\n"
    whole = bytearray(PACK[pack]("".join(line.format(i) for i in range(20000)).encode()))
    whole[len(whole) // 2] ^= 0x55
    refused(f"rows.{form}.{pack}", bytes(whole), "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("+1 1:2\n-1 1:x\n", "line 2: '1:x' is not index:value"),
        ("+1 1:2\n-1 1:\n", "line 2: '1:' "),
        ("+1 1:2\n-1 1:2 7\n", "line 2: '7' "),
        ("+1 1:2\n-1 -3:1\n", "line 2: '-3:1' "),
        ("+1 1:2\nabc 1:1\n", "line 2: 'abc' is not the target, which must be a number"),
        ("+1 1:2\n\n# words\n-1 one:1\n", "line 4: 'one:1' "),
        ("+1 1:2\n-1 3:1 2:1\n", "line 2: '2:1': the indices must ascend"),
        ("+1 1:2\n-1 2:1 2:1\n", "line 2: '2:1': the indices must ascend"),
        ("+1 1:2 3\n-1 1:1\n", "line 1: '3' "),
        ("+1 1:2\n" * 3000 + "-1 1:?\n", r"line 3001: '1:\?' "),
        ("+1 1:2\n-1 1:nan\n", r"row 1 \(line 2\), feature 0 is nan"),
        ("+1 1:2\n-1 1:1 2:-inf 90:1\n", r"row 1 \(line 2\), feature 1 is -inf"),
        ("+1 1:2\nnan 1:1\n", r"row 1 \(line 2\), the target is nan"),
        ("# words\n+1 1:2\n\n-1 1:nan\n", r"row 1 \(line 4\), feature 0 is nan"),
        ("+1 1:2\n1,2 1:3\n", "line 2: '1,2' is not the target"),
        ("+1 1:2\n1 1_0:3\n", "line 2: '1_0:3' is not index:value"),
        ("+1 1:2\n1 1:3_0\n", "line 2: '1:3_0' is not index:value"),
        ("+1 1:2\n1 2147483648:3\n", "line 2: '2147483648:3': the largest index is 2147483647"),
        ("+1 1:2\n1 1" + "0" * 5000 + ":3\n", "line 2: '10*[.]{3}': the largest index is"),
        ("+1 1:2\n1 1:\xff3\n", "line 2: .* is not index:value"),
    ],
)
def test_libsvm(refused, content, message):
    refused("rows", content, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,y\n1,2,3\n1,oops,3\n", r"line 3, column 1 \(b\): 'oops' is not a number; encode .*TargetEncoder"),
        ("a,b,y\n1,2,3\n1,,3\n", r"line 3, column 1 \(b\): '' is not a number, but missing: .*SimpleImputer"),
        ("a,b,y\n1,2,3\n1, NA ,3\n", r"line 3, column 1 \(b\): ' NA ' is not a number, but missing: .*fill the gap"),
        ("1,2,3\n?,2,3\n", r"line 2, column 0: '\?' is not a number, but missing: remove the row or fill the gap"),
        ("a,b,y\n1,2,3\n1,nan,3\n", r"row 1 \(line 3\), feature 1 \(b\) is nan: .*fill the gap.*SimpleImputer"),
        ("a,b,y\n1,2,3\n1,2,\n", r"line 3, column 2 \(y\): '' is not a number, but missing: remove the row"),
        ("a,b,y\n1,2,spam\n1,2,ham\n", r"line 2, column 2 \(y\): 'spam' is not a number; .* --binarize CLASS"),
        ("1,2,3\n1,oops,3\n", "line 2, column 1: 'oops' is not a number"),
        ("5,oops,3,4\n1,2,3,4\n", "line 1, column 1: 'oops' is not a number"),
        ("1,2.o,3\n1,2,3\n", "line 1, column 1: '2.o' is not a number"),
        ("1,,3\n1,2,3\n", "line 1, column 1: '' is not a number, but missing"),
        ("1,na,3\n1,2,3\n", "line 1, column 1: 'na' is not a number, but missing"),
        ("1,nan,3\n1,2,3\n", r"row 0 \(line 1\), feature 1 is nan"),
        ("1.5,y\n1,2\n", "line 1, column 1: 'y' is not a number"),
        ("2019,2020,y\n1,2,3\n1,oops,3\n", r"line 3, column 1 \(2020\): 'oops'"),
        ("2019,y\n", "line 1, column 1: 'y' is not a number"),
        ("a,b,y\n\n1,2,3\n\n\n1,oops,3\n", r"line 6, column 1 \(b\): 'oops'"),
        ("1,2,3\n" * 70000 + "oops,2,3\n", "line 70001, column 0: 'oops'"),
        ("a,b,y\n1,2,3\n1,2\n", "line 3: 2 columns.* 3"),
        ("1,2,3\n1,2,3,4\n", "line 2: 4 columns.* 3"),
        ("1,2,3\n\n\n1,2\n", "line 4: 2 columns.* 3"),
        ("a,b,y\n1,2,3\n4,nan,6\n", r"row 1 \(line 3\), feature 1 \(b\) is nan"),
        ("1,2,3\n4,5,6\ninf,8,9\n", r"row 2 \(line 3\), feature 0 is inf"),
        ("a,b,y\n1,2,-inf\n", r"row 0 \(line 2\), the target is -inf"),
        ("a,b,y\n1,2,3\n\n4,nan,6\n", r"row 1 \(line 4\), feature 1 \(b\) is nan"),
        ("a,b,y\n", "a header and no rows"),
        ("1\n2\n", "no feature columns"),
        ("a,b\n1,2,3\n", "line 2: 3 columns, and the header has 2 names"),
        ("a,b,c,d\n\n1,2,3\n", "line 3: 3 columns, and the header has 4 names"),
        ('a,b\n1,2\n"3\n",x\n', r"line 4, column 1 \(b\): 'x' is not a number"),
        ('a,b\n"1\n",2\n3,inf\n', r"row 1 \(line 4\), the target is inf"),
        ('a,"b\n1,2\n', "a header and no rows"),
        ('a,"b\n' + "1,2\n" * 50000, "line 1: .* is a quote left open there"),
        ("1,2\n1,0x10\n", "line 2, column 1: '0x10' is not a number"),
        ("1,2\n1," + "x" * 5000 + "\n", r"line 2, column 1: 'x{59}\.\.\. is not a number"),
    ],
)
def test_csv(refused, content, message):
    refused("rows.csv", content, message)
    refused("rows.tsv", content.replace(",", "\t"), message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1,5;2,5\n3,5;4,5\n", "line 1: columns are separated by commas .*, not semicolons or spaces"),
        ("a;b;c\n1;2;3\n", "line 2: columns are separated by commas .*, not semicolons or spaces"),
        ("a;b\n1,5;2,5\n", "line 2: columns are separated by commas .*, not semicolons or spaces"),
        ("1 2 3\n", "line 1: columns are separated by commas"),
        ('"1,5",2\n', "line 1, column 0: '1,5' is not a number; write decimal points"),
    ],
)
def test_decimal_commas(refused, content, message):
    refused("rows.csv", content, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1,2,yes\n1,oops,no\n", "line 2, column 1: 'oops'"),
        ("1,2,yes\n1,yes\n", "line 2: 2 columns.* 3"),
        ("1,2,yes\n1,2,yes,4\n", "line 2: 4 columns.* 3"),
        ("1,2,yes\n1,nan,yes\n", r"row 1 \(line 2\), feature 1 is nan"),
        ("1,2,no\n1,2,no\n", "--binarize yes: no row has this class; the classes are no"),
    ],
)
def test_csv_with_a_class_to_choose(refused, content, message):
    refused("rows.csv", content, message, binarize="yes")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("price", "no target column 'price'; the columns are a, b, y"),
        ("A", "no target column 'A'"),
        ("3", "no target column 3; the file has 3"),
        ("-4", "no target column -4; the file has 3"),
        ("1.5", "no target column '1.5'"),
    ],
)
def test_unknown_target(refused, target, message):
    refused("rows.csv", "a,b,y\n1,2,3\n", message, target=target)


def test_names_with_commas(refused):
    refused("rows.csv", '"a, in m",b\n1,2\n', 'the columns are "a, in m", b', target="c")


def test_unknown_target_without_names(refused):
    refused("rows.csv", "1,2,3\n", "no target column 'y'; the file has no header, give a number below 3", target="y")


def test_two_columns_of_the_target_s_name(refused):
    message = "--target w: columns 0, 2 have this name; give the number of one"
    refused("rows.csv", "w,b,w\n1,2,3\n", message, target="w")


def npz(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def test_two_arrays_of_one_file_are_told_apart(tmp_path):
    (tmp_path / "rows.npz").write_bytes(npz(x_train=np.ones((4, 3)), x_test=np.ones((2, 2))))
    splits = load(tmp_path / "rows.npz", Communicator())
    assert [splits[name].where.rsplit("/")[-1] for name in splits] == ["rows.npz (x_train)", "rows.npz (x_test)"]


def members(**contents):
    """An archive of files that are not what numpy writes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, content in contents.items():
            file.writestr(f"{name}.npy", content)
    return stream.getvalue()


def header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def encrypted(archive):
    """With the bit set that says so, in both places."""
    bits = bytearray(archive)
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for found in re.finditer(re.escape(mark), archive):
            bits[found.start() + offset] |= 1
    return bytes(bits)


X, Y = np.ones((4, 3)), np.ones(4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npz(x=X.astype(object), y=Y), "Object arrays"),
        (npz(x=X, y=np.array([1, "a", None, 2], object)), "Object arrays"),
        (npz(images=X, y=Y), "no array x_train or x; the file has images, y"),
        (npz(x=X[0], y=Y), r"x has shape \(3,\)"),
        (npz(x=X.astype(str), y=Y), "x has shape .* type <U"),
        (npz(x=X, y=Y[:3]), "4 rows of features, but 3 targets"),
        (npz(x=X, y=np.ones((4, 2))), r"(y\b|target)"),
        (npz(x=X, y=np.float64(1)), r"(y\b|target)"),
        (npz(x=X[:0], y=Y[:0]), "0 rows of 3 features"),
        (npz(x=X, y=np.array(list("abcd"))), "the target is text; .*--binarize"),
        (npz(x=np.where(np.eye(4, 3) == 1, np.nan, X), y=Y), "row 0, feature 0 is nan"),
        (npz(x_train=X, y_train=Y, x_test=X * [1, np.inf, 1], y_test=Y), r"\(x_test\): row 0, feature 1 is inf"),
        (npz(x=X, y=Y)[:-40], "damaged or truncated"),
        (npz(x=X, y=Y)[:200], "damaged or truncated"),
        (npz(x=X, y=Y).replace(X.tobytes(), (X * 2).tobytes()), "damaged or truncated"),
        (npz(x=X[0, 0], y=Y), r"x has shape \(\)"),
        (npz(x=X.astype(complex), y=Y), "type complex128"),
        (npz(x=X.astype("M8[s]"), y=Y), "type datetime64"),
        (npz(x=X, y=Y.astype("m8[s]")), "y is of type timedelta64"),
        (npz(x=np.zeros((4, 3), [("a", "f8")]), y=Y), "type .*'a'"),
        (npz(x=X, y=np.full(4, b"a")), r"y is of type \|S1"),
        (npz(x=X, y=Y, X=X), "two arrays are called x"),
        (npz(**{"../x": X, "/y": Y}), "no array x_train or x; the file has ../x, /y"),
        (npz(x=np.full((4, 3), np.longdouble("1e4000")), y=Y), "row 0, feature 0 is inf"),
        (members(x=b"no array"), "x cannot be read, .*magic string"),
        (members(x=header("{'descr': '<f8', 'fortran_order': False, 'shape': (1 << 40, 2), }")), "x cannot be read"),
        (members(x=header("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 8), }")), "x cannot be"),
        (members(x=header("{'descr': '<f8', 'fortran_order': False, 'shape': (-4, 2), }")), "x cannot be read"),
        (members(x=header("(" * 5000)), "x cannot be read"),
        (members(x=header("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1), }") + bytes(9)), "more than its"),
        (encrypted(npz(x=X, y=Y)), "x cannot be read, .*encrypted"),
        (b"PK\x03\x04 and no more", "damaged or truncated"),
    ],
    ids=[
        "object x", "object y", "other names", "vector", "text x", "short y", "two targets", "no dimension", "no rows",
        "text y", "nan", "inf in the test rows", "truncated", "head", "changed bytes", "number", "complex", "dates",
        "times y", "structured", "bytes y", "two of a name", "paths", "beyond double", "no array", "no literal",
        "8 TiB", "negative", "brackets", "more bytes", "encrypted", "no archive",
    ],
)  # fmt: skip
def test_npz(refused, content, message):
    refused("rows.npz", content, message)


def test_large_numbers_are_finite(tmp_path):
    """Their sum is not, which must not count as bad."""
    path = tmp_path / "rows.csv"
    path.write_text("1.7e308,1.7e308,1\n" * 50)
    assert load(path, Communicator())["train"].n == 50
