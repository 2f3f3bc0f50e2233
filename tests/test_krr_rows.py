"""KRR on rows of another form, weight or file than those that it was trained on."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from cacore.errors import InputError
from cakrr import BKRR2, DCKRR, KRRModel, bkrr2, predict

RNG = np.random.default_rng(0)
X = RNG.random((300, 4)) + 1
Y = X.sum(axis=1) + np.sin(4 * X[:, 0])


@pytest.mark.parametrize("make", [BKRR2, DCKRR])
def test_sparse_rows_on_a_model_of_dense_ones(make):
    """The training rows were shifted to their mean: so are rows that come as CSR."""
    model = make(3, random_state=0).fit(X, Y)
    np.testing.assert_allclose(model.predict(sp.csr_matrix(X)), model.predict(X), rtol=1e-10)


def test_validation_is_weighted():
    """Rows of hardly any weight have no say in the choice: wild targets there choose as their absence does."""
    wild = np.concatenate([Y, RNG.normal(0, 1e3, 300)])
    rows, weights = np.concatenate([X, X + 0.01]), np.repeat([1.0, 1e-9], 300)
    grid = {"sigma": [0.01, 2.0], "lam": [1e-6, 1e-3], "random_state": 0}
    model = BKRR2(1, **grid).fit(rows, wild, weights)
    assert model.sigma_ == BKRR2(1, **grid).fit(X, Y).sigma_ == 2.0


def test_integers_into_a_loaded_model(tmp_path):
    BKRR2(2, random_state=0).fit(X, Y).model_.save(tmp_path / "m.h5")
    model = KRRModel.load(tmp_path / "m.h5")
    whole = np.ones((3, 4), int)
    np.testing.assert_array_equal(model.predict(whole), model.predict(whole.astype(float)))
    with pytest.raises(InputError, match="NaN"):
        model.predict(np.full((1, 4), np.nan))


def test_a_model_knows_its_target_column(tmp_path):
    """Rows with the target where it was, and rows without one, get the same answers."""
    with_target, without = tmp_path / "a.csv", tmp_path / "b.csv"
    np.savetxt(with_target, np.column_stack([Y, X]), delimiter=",")
    np.savetxt(without, X, delimiter=",")
    words = ["--target", "0", "--sigma", "1", "--lambda", "1e-4", "--quiet", "--model", str(tmp_path / "m.h5")]
    bkrr2.METHOD.main([str(with_target), *words])
    outs = []
    for data in (with_target, without):
        out = tmp_path / f"{data.stem}.out.csv"
        predict.main([str(tmp_path / "m.h5"), str(data), "--quiet", "-o", str(out)])
        outs.append(out.read_text())
    assert outs[0] == outs[1]
