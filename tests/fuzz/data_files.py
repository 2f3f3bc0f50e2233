"""Data files changed at random, through ``load`` and ``convert``: read as the simple readers read them, or refused.

What else may happen is bad: another answer, a warning, a traceback, more than one line, something left behind.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import tempfile
import warnings
from pathlib import Path

import h5py
import numpy as np
import pyarrow.csv  # noqa: F401 - loaded here, they do not count as memory of a case
import sklearn.datasets  # noqa: F401

from . import mutations
from .readers import READERS

LIMIT = 64 << 20  # of memory, for reading
PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
DTYPES = ["f2", ">f4", "f8", "longdouble", "i1", "u8", "?", "c16", "M8[s]", "S3", "U3", "O", "V4"]
ODD = [0, 1, -1, 2, 1 << 20, 1 << 40, -(1 << 40), 0.5, np.nan, np.inf, 1e39, 1e308]


def rows(rng):
    """Small numbers with zeros, so that the text is short and CSR makes sense."""
    n, d = rng.integers(4, 12), rng.integers(2, 6)
    X = np.where(rng.random((n, d)) < 0.6, rng.integers(-99, 99, (n, d)) / 8, 0)
    return X, rng.integers(-1, 2, n).astype(float)


# -- the forms: (name of the file, its content) ------------------------------------------------------


def csv_text(rng, delimiter):
    X, y = rows(rng)
    header = delimiter.join(['"a, b"' if j == 1 else f"c{j}" for j in range(X.shape[1] + 1)]) + "\n"
    lines = [delimiter.join(f"{v:g}" for v in row) + "\n" for row in np.column_stack([X, y])]
    return (header * int(rng.integers(2)) + "".join(lines)).encode()


def libsvm_text(rng):
    X, y = rows(rng)
    base = rng.integers(2)
    return "".join(
        " ".join([f"{t:g}", *(f"{j + base}:{v:g}" for j, v in enumerate(row) if v)]) + "\n"
        for row, t in zip(X, y, strict=True)
    ).encode()


def npz_bytes(rng):
    """Bytes of an .npz file, in which an array may be missing, or have another type or shape."""
    (X, y), (T, t) = rows(rng), rows(rng)
    arrays = {"x": X, "y": y} if rng.random() < 0.6 else {"x_train": X, "y_train": y, "x_test": T, "y_test": t}
    if rng.random() < 0.5:
        odd_array(arrays, str(rng.choice(list(arrays))), rng)
    stream = io.BytesIO()
    [np.savez, np.savez_compressed][rng.integers(2)](stream, **arrays)
    return stream.getvalue()


def odd_array(arrays, name, rng):
    values, what = arrays.pop(name), rng.integers(6)
    if what == 0 and values.size:
        with contextlib.suppress(ValueError, OverflowError):  # an index is never infinite
            values.reshape(-1)[rng.integers(values.size)] = ODD[rng.integers(len(ODD))]
    elif what == 1:
        values = values[: rng.integers(len(values) + 1)]
    elif what == 2:
        values = values[..., None] if rng.random() < 0.5 else values.reshape(-1)
    elif what == 3:
        values = np.asfortranarray(values).astype(DTYPES[rng.integers(len(DTYPES))])
    elif what == 4:
        name = name.upper()
    if what < 5:
        arrays[name] = values


def hdf5_bytes(rng, sparse, native):
    """Bytes of an HDF5 file as others or ``convert`` write it; one item may be odd."""
    from scipy.sparse import csr_matrix

    from cacore.io import Table
    from cacore.io.native import write

    splits = {"train": rows(rng), **({"test": rows(rng)} if rng.random() < 0.5 else {})}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        if native:
            tables = {s: Table(csr_matrix(X) if sparse else X, y, "") for s, (X, y) in splits.items()}
            write(path, tables, np.dtype(np.float64))
        else:
            with h5py.File(path, "w") as file:
                file.attrs["note"] = "written by others"
                for split, (X, y) in splits.items():
                    items = {f"{split}/y": y, f"{split}/X": X}
                    if sparse:
                        S = csr_matrix(items.pop(f"{split}/X"))
                        items |= {f"{split}/X/{name}": getattr(S, name) for name in ("data", "indices", "indptr")}
                        file.create_group(f"{split}/X").attrs["shape"] = X.shape
                    if rng.random() < 0.3:
                        odd_array(items, str(rng.choice(list(items))), rng)
                    for name, values in items.items():
                        with contextlib.suppress(TypeError):  # what HDF5 has no type for
                            file.create_dataset(name, data=values, chunks=(True if rng.random() < 0.3 else None))
        return path.read_bytes()


TEXT = {"libsvm": libsvm_text, "csv": lambda rng: csv_text(rng, ","), "tsv": lambda rng: csv_text(rng, "\t")}
HDF5 = {f"{who} {form}": (form == "csr", who == "native") for who in ("native", "others") for form in ("dense", "csr")}
GOOD = ("refused", "accepted")
FORMS = [*TEXT, *(f"{form}{end}" for form in TEXT for end in PACK), "npz", "npz.gz", *HDF5]


def made(form, rng):
    """The content of a file of this form, changed somewhere."""
    stem, _, end = form.partition(".")
    if form in HDF5:
        whole = hdf5_bytes(rng, *HDF5[form])
        return mutations.mutated(whole, rng) if rng.random() < 0.8 else whole
    whole = npz_bytes(rng) if stem == "npz" else TEXT[stem](rng)
    inside, pack = rng.random() < 0.5 or not end, PACK.get(f".{end}", bytes)
    if inside and stem != "npz":
        return pack(mutations.mutated(whole, rng, mutations.OF_TEXT))
    if rng.random() < 0.3:
        return pack(whole)
    return pack(mutations.mutated(whole, rng)) if inside else mutations.mutated(pack(whole), rng)


# -- one case ----------------------------------------------------------------------------------------


def dense(X):
    return X.toarray() if hasattr(X, "toarray") else X


def same(found, expected, dtype):
    """True if the result of reading equals that of the simple reader."""
    if set(found) != set(expected):
        return f"splits {sorted(found)}, not {sorted(expected)}"
    for split, (X, y) in expected.items():
        if not np.array_equal(dense(found[split].X), X.astype(dtype)):
            return f"{split}: other rows"
        if (y is None) != (found[split].y is None) or (y is not None and not np.array_equal(found[split].y, y)):
            return f"{split}: other targets"
    return ""


def judged(path, dtype):
    """Say "refused", "accepted", or what is bad."""
    from cacore.comm import Communicator
    from cacore.errors import InputError
    from cacore.io import load, text

    try:
        found = load(path, Communicator(), dtype, limit=LIMIT)
    except InputError as error:
        line = str(error)
        return "refused" if "\n" not in line and str(path) in line else f"a message {line!r}"
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = READERS[text.kind(path)](path)
        return same(found, expected, dtype) or "accepted"


def converted(path, out, dtype, how):
    """Fault in converting a file that ``load`` has refused or accepted; empty if there is none."""
    from cacore.comm import Communicator
    from cacore.errors import InputError
    from cacore.io import load
    from cacore.io.__main__ import main

    shown, told = io.StringIO(), io.StringIO()
    words = ["convert", str(path), str(out), "--dtype", dtype, "--memory-limit", str(LIMIT / (1 << 30))]
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(told):
            main(words)
    except SystemExit as ended:
        left = sorted(one.name for one in path.parent.iterdir() if one != path)
        good = ended.code == 2 and told.getvalue().count("\n") == 1 and not shown.getvalue() and not left
        return "" if good and how == "refused" else f"convert: {ended.code}, {told.getvalue()!r}, left {left}"
    found = load(out, Communicator(), dtype)
    out.unlink()
    try:  # as a training command does, which takes words and gaps
        expected = load(path, Communicator(), dtype, limit=LIMIT, training=how == "refused")
    except InputError as error:
        return f"convert takes what load refuses: {error}"
    return same(found, {split: (dense(one.X), one.y) for split, one in expected.items()}, dtype)


def case(form, number, seed, folder):
    """One file, through ``load`` and ``convert``."""
    rng = np.random.default_rng([seed, number, FORMS.index(form)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what numpy says about odd arrays
        content = made(form, rng)
    stem = form.partition(".")[0]
    path = folder / f"file{f'.{stem}' if stem in ('csv', 'tsv') else ''}"
    path.write_bytes(content)
    dtype = ["float64", "float32"][rng.integers(2)]
    try:
        how = judged(path, dtype)
        good = how in ("refused", "accepted")
        return (good and converted(path, folder / "out.h5", dtype, how)) or how
    finally:
        path.unlink()
