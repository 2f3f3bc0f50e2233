"""Models with arrays or attributes changed at random: each is refused in one line, or answers, and none crashes."""

from __future__ import annotations

import collections

import pytest

# In a process of its own: a file that makes compiled code read where nothing is would end it.
PROGRAM = """
import json, shutil, sys, warnings
import h5py, numpy as np, scipy.sparse as sp
from pathlib import Path
from asygcd import AsyGCDModel, AsyGCDSVC
from cacore.errors import InputError
from cacore.io.seal import seal
from cakrr import BKRR2, KRRModel
from casvm import CASVC, SVMModel

warnings.simplefilter("error")
family, form, folder, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
rng = np.random.default_rng(0)
y = np.arange(90) % 3
X = rng.normal(size=(90, 4)) * (rng.random((90, 4)) < 0.8) + 2.0 * np.eye(4)[y]
rows = sp.csr_matrix(X) if form == "csr" else X
made = {
    "svm": lambda: CASVC(3, partitioner="kmeans", standardize=True, random_state=0).fit(rows, y),
    "asygcd": lambda: AsyGCDSVC(threads=1, standardize=True).fit(rows, y),
    "krr": lambda: BKRR2(3, sigma=1.0, lam=1e-3, random_state=0).fit(rows, X[:, 0]),
}[family]()
load = {"svm": SVMModel, "asygcd": AsyGCDModel, "krr": KRRModel}[family].load
made.model_.save(f"{folder}/good.h5")
bad = f"{folder}/bad.h5"
ODD = [0, 1, -1, 2, 5, 1 << 20, 1 << 40, -(1 << 40), 0.5, np.nan, np.inf, -np.inf, 1e308, -1e-308]
JSON = [None, True, 0, 1, -1, 1e300, "", "soft", "all", "none", [], [1], {}, {"k": 1}, [[0, 1]], "float32"]


def change(rng):
    with h5py.File(bad, "r+") as file:
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


for seed in range(count):
    rng = np.random.default_rng(seed)
    shutil.copy(f"{folder}/good.h5", bad)
    print(seed, end=" ", flush=True)
    change(rng)
    seal(Path(bad))
    try:
        with np.errstate(all="ignore"):  # numbers near the largest there are
            answers = load(bad).predict(rows)
    except InputError as error:
        print("refused" if "\\n" not in str(error) else f"lines {error}", flush=True)
    except Exception as error:
        print(f"{type(error).__name__} {error}", flush=True)
    else:
        print("answered" if answers.shape == (90,) and np.isfinite(answers).all() else f"wrong {answers}", flush=True)
"""


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("family", ["svm", "asygcd", "krr"])
def test_changed_at_random(family, form, python, tmp_path):
    done = python("-c", PROGRAM, family, form, tmp_path, 120)
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert (done.returncode, done.stderr, len(told)) == (0, "", 120), done.stdout[-200:] + done.stderr[-2000:]
    counts = collections.Counter(told.values())
    assert set(counts) == {"refused", "answered"}, {seed: what for seed, what in told.items() if " " in what}
    assert min(counts.values()) >= 10  # both were tried
