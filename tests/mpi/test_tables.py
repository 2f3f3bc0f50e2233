"""Tables with words, gaps and dates on ranks: columns, bits and predictions of one process, from frames and files."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.columns import random_table
from helpers.distributed import RANK, WORLD, R, refused_by_all

from cacore.comm import Communicator
from cacore.data.containers import arrow_table
from cacore.data.encoding import learned
from cacore.data.validation import EncodedRows, with_features
from cacore.errors import InputError
from cacore.io import load
from cacore.io.table import Targets
from cakernels import AutoKernelRegressor
from cakriging import Kriging
from cakrr import BKRR2, DKRR, BKRR2Classifier
from casvm import CASVC, CASVR
from partition import KBalance

pytestmark = pytest.mark.mpi(min_size=1)


def frame(n=160, seed=0):
    """Rows with a number, words, a category of many levels, a date and gaps."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({
        "size": rng.normal(size=n).round(3), "town": rng.choice(["Oslo", "Rome", "Paris, Texas"], n),
        "many": rng.choice([f"t{j}" for j in range(45)], n), "day": pd.date_range("2020-01-01", periods=n, freq="9D"),
    })  # fmt: skip
    table.loc[rng.random(n) < 0.1, "size"] = np.nan
    table.loc[rng.random(n) < 0.1, "town"] = None
    y = table["size"].fillna(0) + 2 * (table.town == "Rome") + 0.05 * rng.normal(size=n)
    return table, y.to_numpy()


def test_random_data_frames_have_the_bits_of_one_process(mine, everywhere):
    """A hundred tables; each number of ranks has a quarter of them."""
    comm = Communicator(WORLD)
    for seed in range(R % 4, 100, 4):
        rng = np.random.default_rng(seed)
        table = random_table(rng)
        y, weights = rng.normal(size=len(table)), rng.integers(0, 3, len(table)).astype(float)
        rows = mine(len(table))
        weights[0] = 1.0
        there = weights > 0
        try:
            encoding, X = learned(arrow_table(table[there]), y[there], weights=weights[there])
        except InputError:
            refused_by_all(
                with_features, DKRR(), table.iloc[rows], y[rows], weights[rows], comm, match="no column with"
            )
            continue
        encoded = with_features(DKRR(), table.iloc[rows], y[rows], weights[rows], comm)
        if isinstance(encoded, EncodedRows):  # others are numbers without gaps
            assert encoded.encoding == encoding
            np.testing.assert_array_equal(everywhere(encoded.features)[there], X)


ESTIMATORS = (
    DKRR(sigma=3.0, lam=1e-3), BKRR2(n_parts=4, sigma=3.0, lam=1e-3, random_state=0, dtype="float32"),
    CASVR(n_parts=4, partitioner="bkm", C=1.0, gamma=0.1, random_state=0, tol=1e-6),
    Kriging(range=5.0, sill=1.0, nugget=0.1),
    AutoKernelRegressor(max_time=None, max_candidates=1, random_state=0),
)  # fmt: skip


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
def test_estimators_are_fitted_to_data_frames_on_ranks(estimator, mine, everywhere):
    table, y = frame()
    new = frame(40, seed=1)[0]
    rows, ask = mine(len(y)), mine(40)
    alone = type(estimator)(**estimator.get_params()).fit(table, y)
    together = type(estimator)(**{**estimator.get_params(), "comm": WORLD}).fit(table.iloc[rows], y[rows])
    assert together.encoding_ == alone.encoding_
    assert together.encoding_.columns[2].means
    close = (
        {"rtol": 1e-3, "atol": 1e-3} if getattr(estimator, "dtype", "") == "float32" else {"rtol": 1e-4, "atol": 1e-5}
    )
    np.testing.assert_allclose(everywhere(together.predict(new.iloc[ask])), alone.predict(new), **close)


@pytest.mark.parametrize("estimator", [CASVC(n_parts=4, partitioner="bkm", C=1.0, gamma=0.1, random_state=0),
                                       BKRR2Classifier(n_parts=4, sigma=3.0, lam=1e-3, random_state=0)],
                         ids=lambda estimator: type(estimator).__name__)  # fmt: skip
def test_classes_and_weights_count_in_means_on_ranks(estimator, mine, everywhere):
    table, y = frame()
    labels, weights = np.where(y > 0, "high", "low"), np.arange(len(y)) % 3.0
    rows = mine(len(y))
    alone = type(estimator)(**estimator.get_params()).fit(table, labels, weights)
    ranks = type(estimator)(**{**estimator.get_params(), "comm": WORLD})
    ranks.fit(table.iloc[rows], labels[rows], weights[rows])
    assert ranks.encoding_ == alone.encoding_
    there = weights > 0
    assert alone.encoding_ == learned(arrow_table(table[there]), labels[there], weights=weights[there])[0]
    np.testing.assert_array_equal(everywhere(ranks.predict(table.iloc[rows])), alone.predict(table))


def test_partitioners_take_tables(mine, everywhere):
    table, _ = frame()
    rows = mine(len(table))
    alone = KBalance(n_parts=4, random_state=0).fit(table)
    together = KBalance(n_parts=4, random_state=0).fit(table.iloc[rows], comm=WORLD)
    np.testing.assert_array_equal(everywhere(together.labels_), alone.labels_)
    np.testing.assert_array_equal(together.predict(table), alone.predict(table))
    assert together.n_features_in_ == table.shape[1]
    assert together.transform(table).shape == (len(table), 4)


def test_columns_that_differ_are_refused_on_all_ranks():
    table, y = frame()
    model = DKRR(sigma=3.0, lam=1e-3, comm=WORLD)
    if R > 1:
        other = table.rename(columns={"town": "city"}) if RANK else table
        refused_by_all(model.fit, other, y, match="X, column 1: 'city' on rank 1, 'town' on rank 0; give all ranks")
        refused_by_all(
            model.fit, np.ones((len(y), 4)) if RANK else table, y, match="X is no table, and that of another"
        )
        other = table.assign(size="a") if RANK else table
        refused_by_all(model.fit, other, y, match="X has columns of other types on other ranks .*: convert them to one")
    refused_by_all(model.fit, table.assign(size=[[1]] * len(y)), y, match="X: column size of type .*convert or drop it")


@pytest.mark.parametrize("end", ["csv", "csv.gz", "parquet", "arrow"])
def test_files_have_the_bits_of_one_process_and_of_their_frame(end, folder, mine, everywhere):
    comm = Communicator(WORLD)
    for seed in range(4):
        table = random_table(np.random.default_rng(100 + seed))
        table["y"] = np.arange(len(table)) / 7.0
        path = folder / f"{seed}.{end}"
        if RANK == 0:
            if end.startswith("csv"):
                table.to_csv(path, index=False)
            else:
                (table.to_parquet if end == "parquet" else table.to_feather)(path)
        WORLD.Barrier()
        try:
            encoding, X = learned(arrow_table(table.drop(columns="y")), table.y.to_numpy())
        except InputError:
            continue
        rows = load(path, comm, wanted=Targets(), training=True)["train"]
        if rows.columns.table is not None:
            assert rows.columns.table == encoding
            np.testing.assert_array_equal(everywhere(rows.X), X)
