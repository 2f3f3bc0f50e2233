"""Assertions that many tests share."""

from __future__ import annotations

import os
import warnings
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from cacore.errors import InputError
from cacore.linalg import scalapack
from helpers.data import dense


def near(got, expected, atol):
    """Off by `atol` at most."""
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol)


def close(got, expected, tolerance=1e-8):
    """Off by `tolerance` of the largest number at most."""
    assert np.shape(got) == np.shape(expected)
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def close_in_norm(got, expected, tolerance):
    assert np.linalg.norm(got - expected) <= tolerance * np.linalg.norm(expected)


def equal_fields(got, expected, *names):
    """The same arrays or numbers under these names, bit by bit."""
    for name in names:
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=name)


def same_rows(got, expected):
    """The same numbers in the same form: dense or CSR, and the type of number."""
    assert (got.shape, got.dtype, sp.issparse(got)) == (expected.shape, expected.dtype, sp.issparse(expected))
    np.testing.assert_array_equal(dense(got), dense(expected))


def same_content(got, expected):
    """Assert that two models are equal down to every array: dataclasses, dicts, arrays and plain values."""
    if is_dataclass(expected):
        for field in fields(expected):
            if field.compare:
                same_content(getattr(got, field.name), getattr(expected, field.name))
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key, value in expected.items():
            same_content(got[key], value)
    elif isinstance(expected, np.ndarray) or sp.issparse(expected):
        same_rows(got, expected)
    else:
        assert got == expected


def same_part(got, expected, atol=0.0):
    """Assert that two parts' SVMs have the same support vectors, and coefficients that differ by `atol` at most."""
    equal_fields(got, expected, "classes", "n_support", "rows")
    same_rows(got.X, expected.X)
    near(got.coef, expected.coef, atol)
    near(got.b, expected.b, atol)


def refusal(call, *args, match="", error=InputError):
    """The message of the error (a ValueError) that a call ends with: one line that contains `match`."""
    with pytest.raises(error) as caught:
        call(*args)
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert message
    assert "\n" not in message
    assert match in message
    return message


def limit_warning(fit):
    """The text of the one warning of a call of `fit`: a line, said to come from where `fit` was written."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    assert [w.category for w in caught] == [ConvergenceWarning]
    assert caught[0].filename == fit.__code__.co_filename
    message = str(caught[0].message)
    assert "\n" not in message
    return message


def scalapack_is_missing():
    """True if exact kernel ridge regression cannot run on several ranks here."""
    return not os.environ.get(scalapack.VARIABLE) and not scalapack._files("mkl")


# -- folders -----------------------------------------------------------------------------------


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def inodes(folder, pattern="*"):
    """Inodes of the files in a folder, by name: a rewritten file has another one."""
    return {path.name: path.stat().st_ino for path in folder.glob(pattern)}


def contents(folder):
    """Every byte below a folder."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
