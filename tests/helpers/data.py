"""Rows and labels to learn from, and files that hold them. The same arguments give the same numbers, always."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

from cacore.io.stream import seal

formats = pytest.mark.parametrize("csr", [False, True], ids=["dense", "csr"])
# Dense and CSR rows, in double and in single precision.
FORMS = {"dense": (False, np.float64), "csr": (True, np.float64), "dense float32": (False, np.float32),
         "csr float32": (True, np.float32)}  # fmt: skip
forms = pytest.mark.parametrize(("csr", "dtype"), FORMS.values(), ids=FORMS)
# Ways in which a caller's rows may lie in memory.
LAYOUTS = {"C": np.array, "F": np.asfortranarray, "float32": np.float32, "csr": sp.csr_matrix}


# -- forms of rows -----------------------------------------------------------------------------


def dense(X):
    return X.toarray() if sp.issparse(X) else X


def as_csr(X, csr, least=0.0):
    """The rows themselves, or as CSR without the entries that are smaller than `least`."""
    return sp.csr_matrix(np.where(np.abs(X) < least, 0, X)) if csr else X


def unsorted(S):
    """The same rows with the entries of each in reverse order."""
    odd = sp.csr_matrix((S.data.copy(), S.indices.copy(), S.indptr.copy()), shape=S.shape)
    for lo, hi in zip(S.indptr[:-1], S.indptr[1:], strict=True):
        odd.data[lo:hi], odd.indices[lo:hi] = S.data[lo:hi][::-1], S.indices[lo:hi][::-1]
    odd.has_sorted_indices = False
    return odd


def read_only(*arrays):
    """Refuse every change of these arrays, and of those that CSR rows consist of."""
    for array in arrays:
        for part in (array.data, array.indices, array.indptr) if sp.issparse(array) else (array,):
            part.setflags(write=False)


# -- classes -----------------------------------------------------------------------------------


def clouds(n=150, seed=0, k=2, csr=False, d=4):
    """Classes in turn, whose clouds overlap: some support vectors are bound and some free. CSR has an empty row."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % k
    X = rng.normal(size=(n, d)) + 1.2 * np.eye(d)[y % d]
    if csr:
        X[np.abs(X) < 0.5] = 0
        X[7] = 0
    return (sp.csr_matrix(X) if csr else X), y


def drawn_clouds(n=157, seed=0, k=2, csr=False, dtype=np.float64):
    """Classes at random, whose clouds overlap. 157 is no multiple of the ranks or parts that are tried."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    X = (rng.normal(size=(n, 4)) + 1.5 * np.eye(4)[y]).astype(dtype)
    if csr:
        X[np.abs(X) < 0.6] = 0
        return sp.csr_matrix(X), y
    return X, y


def flat_clouds(n=150, k=2):
    """Clouds that overlap, of three features."""
    return clouds(n, k=k, d=3)


def separate_clouds(n=60, k=2):
    """Classes in turn and far apart: K-means finds one part a class."""
    y = np.arange(n) % k
    return np.random.default_rng(0).normal(size=(n, 2)) + 100.0 * np.c_[y, y**2], y


def first_classes(rows, k):
    """The rows of the classes below k."""
    X, y = rows
    return X[y < k], y[y < k]


@cache
def curved(n, seed=0, dtype=np.float64):
    """Signs with a curved border, 5 in 100 of them wrong; zeros in the rows, so that CSR is something else."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(dtype).astype(np.float64)
    y = np.where(np.sin(2 * X[:, 0]) + X[:, 1] > 0, 1.0, -1.0)
    y[rng.random(n) < 0.05] *= -1
    X[np.abs(X) < 0.2] = 0
    read_only(X, y)
    return X, y


SIZE = {"train": 150, "test": 40}


def split_rows(split, k=2):
    """Rows and labels of the files in the fixture `inputs`: 3 features, labels -1, 1 and 4, overlapping clusters."""
    rng = np.random.default_rng(len(split))
    y = rng.integers(0, k, SIZE[split])
    return rng.normal(size=(SIZE[split], 3)) + 2 * np.eye(3)[y], np.array([-1.0, 1.0, 4.0])[y]


def write_rare_class(path):
    """One row in twelve is of a class that lies among the other's rows."""
    rng, splits = np.random.default_rng(0), {}
    for split, n in (("train", 400), ("test", 200)):
        y = (np.arange(n) % 12 == 0).astype(float)
        splits[split] = rng.normal(size=(n, 3)) + 1.2 * y[:, None], y
    write_hdf5(path, **splits)


# -- targets -----------------------------------------------------------------------------------


def smooth(n=157, seed=0, csr=False, far=100, least=0.7):
    """Features of different scale, one of them `far` from 0; CSR without the entries smaller than `least`."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)) * [1, 5, 1, 0.1] + [0, far, 0, 3]
    return as_csr(X, csr, least), 10 + np.sin(X[:, 0]) + np.cos(X[:, 1]) * X[:, 2]


def waves(n=160, seed=0):
    """Three features, which a standardisation brings to one scale."""
    X = np.random.default_rng(seed).normal(size=(n, 3)) * [1, 20, 0.1] + [0, 500, 2]
    return X, 30 + np.sin(2 * X[:, 0]) + np.cos(X[:, 1] / 20) + 3 * X[:, 2]


def saddle(n=120, seed=0, zeros=0.0):
    """No two rows are equal, also where most of the other features are 0."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    X[:, 1:][rng.random((n, 2)) < zeros] = 0
    return X, np.sin(X[:, 0]) + X[:, 1] * X[:, 2]


def noisy_waves(n=150, seed=0):
    """Waves of standardised features, with as much noise as signal."""
    X, y = waves(n, seed)
    X = X / X.std(axis=0)
    return X - X.mean(axis=0), y + np.random.default_rng(seed).normal(size=n)


def fast_and_slow(n=240, seed=0):
    """A function of two of six features, one four times as fast as the other; the last is constant."""
    X = np.random.default_rng(seed).normal(size=(n, 6)) * [1, 10, 1, 1, 0.1, 0] + [0, 0, 5, 0, 0, 3]
    return X, np.sin(2 * X[:, 0]) + 0.05 * X[:, 1]


def ripples(n=157, seed=0, csr=False, constant=None):
    """A function of two of four features; the last is `constant` if given. CSR lacks the small entries, also for y."""
    X = np.random.default_rng(seed).normal(size=(n, 4))
    if constant is not None:
        X[:, 3] = constant
    if csr:
        X[np.abs(X) < 0.5] = 0
    return as_csr(X, csr), np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]


def moved(n=130, seed=0, csr=False, dtype="float64"):
    """Features around 2, and noise in the targets."""
    rng = np.random.default_rng(seed)
    X = rng.normal(2.0, 1.0, (n, 4))
    y = np.sin(2 * X[:, 0]) + X[:, 1] - X[:, 2] + rng.normal(0, 0.5, n)
    return as_csr(X, csr, 1.5).astype(dtype), y


# -- rows alone --------------------------------------------------------------------------------


def normal_rows(n=150, d=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def blobs(n=150, d=4, seed=0, apart=3.0):
    """Clouds at the corners of a cube."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) + apart * rng.integers(0, 2, size=(n, d))


def spotted(n, d=7, seed=0, dtype="float64", offset=0.0):
    """Rows with zeros, before they are moved by `offset`."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.6) + offset).astype(dtype)


# -- files -------------------------------------------------------------------------------------


def write_hdf5(path, csr=False, **splits):
    """A native file: ``write_hdf5(path, train=(X, y), test=(X, None))``; its path."""
    with h5py.File(path, "w") as file:
        for split, (X, y) in splits.items():
            if y is not None:
                file[f"{split}/y"] = y
            if not csr:
                file[f"{split}/X"] = X
                continue
            rows, group = sp.csr_matrix(X), file.create_group(f"{split}/X")
            group.attrs["shape"] = X.shape
            for name in ("data", "indices", "indptr"):
                group[name] = getattr(rows, name)
    return path


def write_csv(path, X, y=None, names="abcdefgh", target="label"):
    """A header, and the target in the last column, if there is one."""
    table = X if y is None else np.column_stack([X, y])
    header = [*names[: X.shape[1]], *([] if y is None else [target])]
    np.savetxt(path, table, delimiter=",", header=",".join(header), comments="", fmt="%.17g")


def write_libsvm(path, X, y, width=None, columns=None):
    """LIBSVM's text; with the features at `columns` of `width`, for a file with fewer zeros is read as dense rows."""
    if width is not None:
        wide = np.zeros((len(y), width))
        wide[:, columns] = dense(X)
        X = wide
    dump_svmlight_file(sp.csr_matrix(X), y, str(path), zero_based=False)


def changed(path, source, name, place, value):
    """A copy of an HDF5 file with other numbers in one place."""
    path.write_bytes(source.read_bytes())
    with h5py.File(path, "a") as file:
        file[name][place] = value


@contextmanager
def sealed(path):
    """A model's file, open for a change of which its checksum says nothing."""
    with h5py.File(path, "r+") as file:
        yield file
    seal(path)


def set_attribute(name, value):
    """A change of an open HDF5 file."""

    def change(file):
        file.attrs[name] = value

    return change


def remove(name):
    """A change of an open HDF5 file."""

    def change(file):
        del file[name]

    return change


def kinds(n, seed=0):
    """Rows of eight kinds, which the first features tell apart; within a kind, labels are curved."""
    rng = np.random.default_rng(seed)
    kind, inner = rng.integers(0, 8, n), rng.random((n, 2))
    y = np.where(np.sin(7 * inner[:, 0] + kind) > 2 * inner[:, 1] - 1, 1.0, -1.0)
    return np.column_stack([np.eye(8)[kind], inner]), y


def sines(n):
    """Features, targets that are a sine of their sum, and labels of which one in ten is an outlier."""
    rng = np.random.default_rng(n)
    X, labels = rng.normal(size=(n, 3)), np.where(np.arange(n) % 10, 1.0, -1.0)
    X[labels < 0] *= 4
    return X, 300 + 10 * np.sin(2 * X.sum(axis=1)) + rng.normal(size=n), labels
