"""Simple readers of data files, in a few lines each, without any code of the package."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma

import h5py
import numpy as np

MISSING = ("na", "n/a", "nan", "nat", "none", "null")


def content(path):
    """The bytes, decompressed."""
    raw = path.read_bytes()
    for magic, module in ((b"\x1f\x8b", gzip), (b"BZh", bz2), (b"\xfd7zXZ\x00", lzma)):
        if raw.startswith(magic):
            return module.decompress(raw)
    return raw


def number(word):
    try:
        return float(word)
    except ValueError:
        return None


def header(rows):
    """True for a first row without numbers, and for one of words over numbers whose own numbers are like years."""
    words = [word.strip() for word in rows[0] if number(word) is None]
    counts = [word.strip() for word in rows[0] if number(word) is not None]
    if not words or not counts:
        return not counts
    below = next((row for row in rows[1:] if len(row) > 1 or "".join(row).strip()), [])
    return (
        len(below) == len(rows[0])
        and all(number(b) is not None for word, b in zip(rows[0], below, strict=True) if number(word) is None)
        and all(one.isascii() and one.isdigit() and len(one) < 19 for one in counts)
        and counts in (sorted(set(counts), key=int), sorted(set(counts), key=int, reverse=True))
        and len(set(words)) == len(words)
        and all((word[:1].isalpha() or word[:1] == "_") and word.lower() not in MISSING for word in words)
    )


def delimited(path, delimiter):
    """Rows of numbers, the last column the target; the first row may be a header."""
    text = content(path).decode("utf-8-sig", "replace")
    rows = [row for row in csv.reader(io.StringIO(text, newline=None), delimiter=delimiter) if row]
    while rows and len(rows[0]) == 1 and not rows[0][0].strip():
        rows.pop(0)
    if header(rows):
        rows.pop(0)
    while rows and len(rows[0]) == 1 and not rows[0][0].strip():
        rows.pop(0)
    table = np.array([[float(word) for word in row] for row in rows])
    return {"train": (table[:, :-1], table[:, -1])}


def libsvm(path):
    """Targets and index:value; counted from 1 if no index is 0."""
    y, entries = [], []
    for line in content(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        words = line.split(b"#")[0].split()
        if words:
            entries += [(len(y), *word.split(b":")) for word in words[1:] if not word.startswith(b"qid:")]
            y.append(float(words[0]))
    base = int(bool(entries) and min(int(index) for _, index, _ in entries) > 0)
    X = np.zeros((len(y), max([1 + int(index) for _, index, _ in entries], default=1) - base))
    for row, index, value in entries:
        X[row, int(index) - base] = float(value)
    return {"train": (X, np.array(y))}


def npz(path):
    """x and y, or x_train, y_train, x_test and y_test."""
    with np.load(io.BytesIO(content(path)), allow_pickle=False) as file:
        names = {name.lower(): name for name in file.files}
        splits = {}
        for split, end in (("train", "_train"), ("test", "_test"), ("train", "")):
            if f"x{end}" in names and split not in splits:
                X = file[names[f"x{end}"]].astype(float)
                y = file[names[f"y{end}"]].astype(float).ravel() if f"y{end}" in names else None
                splits[split] = X.reshape(len(X), -1), y
    return splits


def hdf5(path):
    """/train/X and /train/y, /test/X and /test/y, or /X and /y; X dense or CSR; a single target is a vector."""
    splits = {}
    with h5py.File(path) as file:
        for split, place in (("train", "train"), ("test", "test"), ("train", "/")):
            if place in file and "X" in file[place] and split not in splits:
                group = file[place]
                X = group["X"]
                if isinstance(X, h5py.Group):
                    X = _csr(*(X[name][()] for name in ("data", "indices", "indptr")), X.attrs["shape"])
                y = np.asarray(group["y"], float) if "y" in group else None
                single = y is not None and y.ndim == 2 and y.shape[1] == 1
                splits[split] = np.asarray(X, float), y[:, 0] if single else y
    return splits


def _csr(data, indices, indptr, shape):
    X = np.zeros(shape)
    for row in range(shape[0]):
        for k in range(indptr[row], indptr[row + 1]):
            X[row, indices[k]] += data[k]
    return X


READERS = {
    "csv": lambda path: delimited(path, ","), "tsv": lambda path: delimited(path, "\t"), "libsvm": libsvm, "npz": npz,
    "hdf5": hdf5,
}  # fmt: skip
