"""The three methods against their listings, put together from scikit-learn's KernelRidge."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.checks import close
from helpers.data import as_csr, formats, waves
from helpers.references import ridge
from scipy.spatial.distance import cdist
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from cacore.comm import Communicator
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError, MemoryLimitError
from cacore.io import Dataset, load
from cakrr import KRRModel, bkrr2, dckrr, kkrr2
from cakrr.methods.prepare import default_parts
from cakrr.options import RidgeOptions
from partition import KBalance, KMeans, RandomPartition

METHODS = {"bkrr2": bkrr2.METHOD, "kkrr2": kkrr2.METHOD, "dckrr": dckrr.METHOD}
PARTITIONERS = {"bkrr2": KBalance, "kkrr2": KMeans, "dckrr": RandomPartition}
methods = pytest.mark.parametrize("name", METHODS)


def train(name, X, y, options, test=None, weights=None):
    return METHODS[name](Dataset(X.copy(), y, weights=weights), options, test=None if test is None else Dataset(*test))


def local(Z, y, sigma, lam):
    return ridge(sigma, lam * len(y)).fit(Z, y)


def by_listing(name, part, models, Z):
    """Lines 13 to 15 of Algorithm 8; lines 14 to 19 of Algorithm 10."""
    if name == "dckrr":
        return np.mean([model.predict(Z) for model in models], axis=0)
    owner = cdist(Z, part.centers_).argmin(axis=1)
    return np.array([models[j].predict(z[None])[0] for j, z in zip(owner, Z, strict=True)])


@methods
@pytest.mark.parametrize("standardize", [True, False])
def test_one_part_is_kernel_ridge(name, standardize):
    (X, y), (T, _) = waves(), waves(50, 1)
    scaler = StandardScaler(with_mean=standardize, with_std=standardize).fit(X)
    sigma = 1.3 if standardize else 15.0
    model = train(name, X, y, RidgeOptions(partitions=1, sigma=(sigma,), lam=(1e-4,), standardize=standardize)).model
    reference = local(scaler.transform(X), y - y.mean(), sigma, 1e-4)
    close(model.predict(T), reference.predict(scaler.transform(T)) + y.mean())


@methods
@pytest.mark.parametrize("P", [2, 7])
@pytest.mark.parametrize("seed", [0, 3])
def test_parts(name, P, seed):
    (X, y), (T, _) = waves(), waves(50, 1)
    model = train(name, X, y, RidgeOptions(partitions=P, sigma=(1.3,), lam=(1e-4,), seed=seed)).model
    scaler = StandardScaler().fit(X)
    Z, part = scaler.transform(X), PARTITIONERS[name](P, random_state=seed)
    labels = part.fit(Z).labels_
    models = [local(Z[labels == j], y[labels == j] - y.mean(), 1.3, 1e-4) for j in range(P)]
    close(model.predict(T), by_listing(name, part, models, scaler.transform(T)) + y.mean())
    assert model.sizes.tolist() == np.bincount(labels).tolist()


@methods
def test_other_route(name):
    (X, y), (T, _) = waves(), waves(50, 1)
    other = "nearest" if name == "dckrr" else "all"
    model = train(name, X, y, RidgeOptions(partitions=4, sigma=(1.3,), lam=(1e-4,), route=other)).model
    scaler = StandardScaler().fit(X)
    Z, part = scaler.transform(X), PARTITIONERS[name](4, random_state=0)
    labels = part.fit(Z).labels_
    models = [local(Z[labels == j], y[labels == j] - y.mean(), 1.3, 1e-4) for j in range(4)]
    close(model.predict(T), by_listing("dckrr" if other == "all" else "", part, models, scaler.transform(T)) + y.mean())


def test_weighted_parts():
    """Weights count in the mean, the scaling and every part's solution."""
    (X, y), (T, _) = waves(), waves(50, 1)
    w = np.random.default_rng(2).uniform(0.5, 3, len(y))
    model = train("bkrr2", X, y, RidgeOptions(partitions=3, sigma=(1.3,), lam=(1e-3,)), weights=w).model
    scaler = StandardScaler().fit(X, sample_weight=w)
    Z, mean = scaler.transform(X), np.average(y, weights=w)
    part = KBalance(3, random_state=0).fit(Z)
    models = []
    for j in range(3):
        own = part.labels_ == j
        models.append(ridge(1.3, 1e-3 * w[own].sum()).fit(Z[own], y[own] - mean, sample_weight=w[own]))
    close(model.predict(T), by_listing("bkrr2", part, models, scaler.transform(T)) + mean)


# -- the grid ----------------------------------------------------------------------------------

GRID = RidgeOptions(partitions=4, sigma=(0.5, 1.5, 5.0), lam=(1e-6, 1e-3, 1.0), seed=1)


@methods
@pytest.mark.parametrize("select", ["validation", "test"])
def test_grid(name, select):
    """Every pair's error, and the choice; the chosen pair is fitted on all rows."""
    (X, y), (T, t) = waves(), waves(50, 1)
    result = train(name, X, y, replace(GRID, select=select), (T, t))
    scaler = StandardScaler().fit(X)
    Z, part = scaler.transform(X), PARTITIONERS[name](4, random_state=1)
    labels, place = part.fit(Z).labels_, Shuffle(len(y), 1).position(np.arange(len(y)))
    held = np.zeros(len(y), bool)
    for j in range(4):
        own = np.flatnonzero(labels == j)
        kept = min(len(own) - 1, max(1, round(0.1 * len(own))))
        held[own[np.argsort(place[own])][:kept]] = select == "validation"
    judge, truth = (Z[held], y[held]) if select == "validation" else (scaler.transform(T), t)
    expected = {}
    for sigma in GRID.sigma:
        for lam in GRID.lam:
            learn = [(labels == j) & ~held for j in range(4)]
            models = [local(Z[rows], y[rows] - y.mean(), sigma, lam) for rows in learn]
            expected[sigma, lam] = np.mean((by_listing(name, part, models, judge) + y.mean() - truth) ** 2)
    got = {(row["sigma"], row["lambda"]): row[f"{select}_mse"] for row in result.grid}
    assert list(got) == list(expected)
    np.testing.assert_allclose(list(got.values()), list(expected.values()), rtol=1e-6)
    assert all(row["test_mse" if select == "validation" else "validation_mse"] is None for row in result.grid)
    assert (result.model.sigma, result.model.lam) == min(expected, key=expected.get)
    alone = replace(GRID, sigma=(result.model.sigma,), lam=(result.model.lam,))
    np.testing.assert_array_equal(result.model.predict(T), train(name, X, y, alone).model.predict(T))


def test_validation_does_not_look_at_test_rows():
    (X, y), (T, t) = waves(), waves(50, 1)
    first = train("bkrr2", X, y, GRID, (T, t))
    assert train("bkrr2", X, y, GRID, (T, 100 * t)).grid == train("bkrr2", X, y, GRID).grid == first.grid


def test_equal_errors_choose_the_smoothest():
    X, _ = waves()
    result = train("bkrr2", X, np.full(len(X), 3.0), GRID)  # every pair predicts the constant
    assert (result.model.sigma, result.model.lam) == (5.0, 1.0)


@methods
def test_failing_pairs(name):
    """A lambda too small for the rounding is named, left out, and the others go on."""
    X, y = waves(60)
    X, y = np.tile(X, (3, 1)), np.tile(y, 3)
    result = train(name, X, y, replace(GRID, partitions=2, lam=(1e-25, 1e-2)))
    bad = [row for row in result.grid if row["lambda"] == 1e-25]
    assert [row["validation_mse"] for row in bad] == [None] * 3
    assert all(np.isfinite(row["validation_mse"]) for row in result.grid if row["lambda"] == 1e-2)
    assert result.model.lam == 1e-2
    (note,) = result.notes
    assert "not positive definite" in note
    for sigma in GRID.sigma:
        assert re.search(rf"sigma {sigma:g} lambda 1e-25 \(part \d\)", note)


@methods
@pytest.mark.parametrize("lam", [(1e-25,), (1e-26, 1e-25)])
def test_nothing_can_be_solved(name, lam):
    X, y = waves(60)
    with pytest.raises(InputError, match=r"positive definite|no pair of the grid") as caught:
        train(name, np.tile(X, (3, 1)), np.tile(y, 3), replace(GRID, sigma=(1.0,), partitions=2, lam=lam))
    assert str(caught.value).endswith("; use a larger lambda")  # the rows are in double precision


# -- refusals and defaults ---------------------------------------------------------------------

BAD = {
    "parts": ({"partitions": 161}, "161 parts of 160 rows"),
    "no parts": ({"partitions": 0}, "partitions = 0"),
    "sigma": ({"sigma": (0.0,)}, "sigma 0"),
    "lambda": ({"lam": (1e-3, -1.0)}, "lam -1"),
    "nan": ({"lam": (np.nan,)}, "lam nan"),
    "no values": ({"lam": ()}, "lam: give at least one value"),
    "fraction": ({"validation_fraction": 1.0}, "fraction = 1"),
    "select": ({"select": "luck"}, "luck"),
    "route": ({"route": "scenic"}, "scenic"),
    "no test rows": ({"select": "test", "lam": (1.0, 2.0)}, "no test rows"),
    "no validation rows": ({"partitions": 160, "lam": (1.0, 2.0)}, "no rows to validate"),
}


@pytest.mark.parametrize("what", BAD)
def test_refused(what):
    given, message = BAD[what]
    with pytest.raises(InputError, match=message):
        train("bkrr2", *waves(), RidgeOptions(**given))


@pytest.mark.parametrize("limit", [100_000, 12_345])
def test_memory(limit):
    """The figures, and a remedy that works."""
    X, y = waves()
    with pytest.raises(MemoryLimitError, match="a part of 160 rows") as caught:
        train("bkrr2", X, y, RidgeOptions(partitions=1, memory_limit=limit))
    needed, allowed = (float(f) for f in re.findall(r"(\S+) GiB", str(caught.value)))
    assert needed == pytest.approx((8 * 160**2 + X.nbytes) / 2**30, rel=0.01)
    assert allowed == pytest.approx(limit / 2**30, rel=0.01)
    parts = int(re.search(r"--partitions \(about (\d+)\)", str(caught.value))[1])
    assert train("bkrr2", X, y, RidgeOptions(partitions=parts, memory_limit=limit)).model.sizes.sum() == 160


def test_default_parts():
    """The default keeps a part at 8,000 rows and its matrix within the limit, with at least one part per rank."""
    assert [default_parts(n, 8, 1 << 60, 1) for n in (1, 8000, 8001, 80001)] == [1, 1, 2, 11]
    assert default_parts(100, 8, 1 << 60, 7) == 7
    for limit in (8 * 500**2, 10**7, 10**8):
        largest = -(-10_000 // default_parts(10_000, 8, limit, 1))
        assert limit >= 8 * largest**2
    with pytest.raises(MemoryLimitError, match="a part of 500 rows"):
        default_parts(10_000, 8, 8 * 499**2, 1)


def test_same_seed():
    X, y = waves()
    first, again, other = (train("bkrr2", X, y, replace(GRID, seed=seed)) for seed in (1, 1, 2))
    assert first.grid == again.grid != other.grid
    assert first.model.predict(X).tobytes() == again.model.predict(X).tobytes()


@methods
@formats
@pytest.mark.parametrize("standardize", [True, False])
def test_model_file(name, csr, standardize, tmp_path):
    (X, y), (T, _) = waves(), waves(50, 1)
    X, T = as_csr(X, csr, 1), as_csr(T, csr, 1)
    model = train(name, X, y, RidgeOptions(partitions=5, sigma=(2.0,), standardize=standardize)).model
    model.save(tmp_path / "m.h5")
    back = KRRModel.load(tmp_path / "m.h5")
    assert (back.method, back.sigma, back.lam, back.route) == (name, model.sigma, model.lam, model.route)
    np.testing.assert_array_equal(back.predict(T), model.predict(T))
    assert list(tmp_path.iterdir()) == [tmp_path / "m.h5"]
    with pytest.raises(InputError, match="2 features"):
        back.predict(T[:, :2])


def test_real_rows(data):
    """MG, the thesis' split sizes: BKRR2 in 4 parts is within 10 % of the exact method, both at their best pair."""
    rows = load(data / "mg_scale", Communicator())["train"]
    X, T, y, t = train_test_split(rows.X, rows.y, train_size=1024, random_state=0)
    scaler = StandardScaler().fit(X)
    Z, S = scaler.transform(X), scaler.transform(T)
    pairs = [(sigma, lam) for sigma in (1.0, 2.0) for lam in (1e-4, 1e-3)]
    exact = min(np.mean((local(Z, y - y.mean(), *pair).predict(S) + y.mean() - t) ** 2) for pair in pairs)
    model = train("bkrr2", X, y, RidgeOptions(partitions=4, sigma=(1.0, 2.0), lam=(1e-4, 1e-3))).model
    assert np.mean((model.predict(T) - t) ** 2) < 1.1 * exact


@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize(("row", "column", "value", "message"), [
    (3, 1, np.nan, "X, column 1: row 3 is NaN"), (5, None, np.inf, "y: row 5 is infinity"),
])  # fmt: skip
def test_a_method_called_with_a_dataset_names_the_row_that_is_no_number(row, column, value, message, csr):
    X = np.random.default_rng(0).normal(size=(40, 3))
    y = X.sum(axis=1)
    if column is None:
        y[row] = value
    else:
        X[row, column] = value
    with pytest.raises(InputError, match=message):
        bkrr2.METHOD(Dataset(as_csr(X, csr), y), RidgeOptions(sigma=(1.0,), lam=(1e-3,)))
