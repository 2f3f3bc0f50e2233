"""Models with numbers, arrays, attributes or bytes changed: each is refused in one line, or answers with numbers.

Where the checksum is written anew the checks of the content are tried, and otherwise the checksum.
"""

from __future__ import annotations

import functools
import json
import shutil
import warnings

import h5py
import numpy as np
import scipy.sparse as sp

from asygcd import AsyGCDModel, AsyGCDSVC
from cacore.errors import InputError
from cacore.io.stream import seal
from cakrr import BKRR2, KRRModel, TwoLevelKRR
from casvm import CASVC, SMOSVC, SVMModel

from . import mutations

FAMILIES = {
    "svm": (SVMModel, lambda: CASVC(3, partitioner="kmeans", standardize=True, random_state=0)),
    "soft": (SVMModel, lambda: CASVC(3, partitioner="kmeans", route="soft", random_state=0)),
    "smo": (SVMModel, lambda: SMOSVC(kernel="polynomial")),
    "asygcd": (AsyGCDModel, lambda: AsyGCDSVC(threads=1, standardize=True)),
    "krr": (KRRModel, lambda: BKRR2(3, sigma=1.0, lam=1e-3, random_state=0)),
    "twolevel": (KRRModel, lambda: TwoLevelKRR(3, sigma=1.0, lam=1e-3, random_state=0)),
    "metric": (KRRModel, lambda: BKRR2(3, sigma=1.0, lam=1e-3, metric="full", metric_rounds=1, random_state=0)),
    "weights": (
        SVMModel,
        lambda: CASVC(3, partitioner="kmeans", metric="diagonal", metric_rounds=1, standardize=True, random_state=0),
    ),
}
FORMS = [f"{family} {rows}{kind}" for family in FAMILIES for rows in ("dense", "csr") for kind in ("", " bytes")]
GOOD = ("refused", "answered")
LIMIT = 64 << 20
ODD = [0, 1, -1, 2, 5, 1 << 20, 1 << 40, -(1 << 40), 0.5, np.nan, np.inf, -np.inf, 1e308, -1e-308]
JSON = [None, True, 0, 1, -1, 1e300, "", "soft", "all", "none", [], [1], {}, {"k": 1}, [[0, 1]], "float32",
        "[" * 5000]  # fmt: skip


def case(form, number, seed, folder):
    """One changed model."""
    family, rows, *kind = form.split()
    good, X, expected = _good(family, rows, folder)
    rng, bad = np.random.default_rng([seed, number, FORMS.index(form)]), folder / "bad.h5"
    shutil.copy(good, bad)
    if kind:
        bad.write_bytes(mutations.mutated(good.read_bytes(), rng))
    else:
        with h5py.File(bad, "r+") as file:
            change(file, rng)
        seal(bad)
    try:
        with warnings.catch_warnings():  # numbers near the largest there are
            warnings.simplefilter("ignore", RuntimeWarning)
            answers = FAMILIES[family][0].load(bad).predict(X)
    except InputError as error:  # of the file, or of rows that an odd standardisation has made too large
        named = str(bad) in str(error) or str(error).startswith("the rows to predict: row ")
        return "refused" if "\n" not in str(error) and named else f"a message {str(error)!r}"
    if kind and not np.array_equal(answers, expected):
        return "other answers"
    return "answered" if answers.shape == expected.shape and np.isfinite(answers).all() else f"answers {answers}"


@functools.cache
def _good(family, rows, folder):
    """A model's file, rows, and its answers for them."""
    rng, y = np.random.default_rng(0), np.arange(90) % 3
    X = rng.normal(size=(90, 4)) * (rng.random((90, 4)) < 0.8) + 2.0 * np.eye(4)[y]
    X = sp.csr_matrix(X) if rows == "csr" else X
    estimator, path = FAMILIES[family][1](), folder / f"{family}-{rows}.h5"
    estimator.fit(X, y if hasattr(estimator, "decision_function") else np.asarray(X[:, [0]].sum(axis=1)).ravel())
    estimator.model_.save(path)
    return path, X, estimator.predict(X)


def change(file, rng):
    """Change an attribute, a number, a shape or a type, or take something away."""
    if rng.random() < 0.25:
        told = json.loads(file.attrs["attributes"])
        told[str(rng.choice(sorted(told)))] = JSON[rng.integers(len(JSON))]
        file.attrs["attributes"] = json.dumps(told)
        return
    found = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    name = str(rng.choice(found))
    values, what = file[name][()], rng.integers(5)
    if what == 0 and values.size:
        with np.errstate(all="ignore"):
            odd = np.array(ODD[rng.integers(len(ODD))]).astype(values.dtype)
        values.reshape(-1)[rng.integers(values.size)] = odd
    elif what == 1:
        values = values[: rng.integers(0, len(values) + 1)]
    elif what == 2:
        values = np.concatenate([values, values[:1]])
    elif what == 3:
        values = values.reshape(*values.shape, 1) if rng.random() < 0.5 else values.reshape(-1)
    else:
        values = values.astype([np.float32, np.int8, np.int64, np.uint64, np.complex128][rng.integers(5)])
    del file[name]
    if rng.random() > 0.1:
        file[name] = values
