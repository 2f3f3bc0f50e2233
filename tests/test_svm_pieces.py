"""One SVM's model in pieces: joined, they are the whole, and their decisions add up."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import near, same_part
from helpers.data import drawn_clouds, forms
from helpers.trees import C, train

from cacore.comm import Communicator
from casvm import SVMModel
from casvm.model.part_svm import PartSVM, deal, join, piece


def whole_and_pieces(count, k=2, csr=False, dtype=np.float64):
    """A model, and its support vectors dealt out at random; a piece may be empty."""
    X, y = drawn_clouds(k=k, csr=csr, dtype=dtype)
    model = train("cascade", X, y, partitions=1).model  # whose rows lie in their order
    (whole,) = model.parts.values()
    codes = whole.classes.repeat(whole.n_support)
    of = np.random.default_rng(k).integers(0, count, len(codes))
    of[of == count // 2] = 0  # that one gets nothing
    made = []
    for number in range(count):
        here = np.random.default_rng(number).permutation(np.flatnonzero(of == number))
        b = whole.b if number == count - 1 else np.zeros_like(whole.b)
        made.append(piece(whole.X[here], codes[here], whole.rows[here], whole.coef[:, here], b))
    return model, whole, made


@forms
@pytest.mark.parametrize("k", [2, 3])
def test_pieces_joined_are_the_whole(csr, dtype, k):
    _, whole, made = whole_and_pieces(4, k, csr, dtype)
    assert [len(one.rows) == 0 for one in made] == [False, False, True, False]
    for one in made:
        assert one.classes.tolist() == list(range(k))
        assert (one.n_support.sum(), one.coef.shape) == (len(one.rows), (k - 1, len(one.rows)))
    same_part(join(made), whole)
    assert join([whole]) is whole


@forms
@pytest.mark.parametrize("k", [2, 3])
def test_decisions_of_pieces_add_up(csr, dtype, k, tmp_path):
    """In memory, and from the file, where they are one piece again."""
    model, whole, made = whole_and_pieces(4, k, csr, dtype)
    T = drawn_clouds(41, 1, k, csr, dtype)[0]
    sizes = np.array([len(one.rows) for one in made])
    pieces = SVMModel(
        method="dcsvm", route="sum", classes=model.classes, kernel=model.kernel, C=C, centers=np.zeros((0, 4)),
        sizes=sizes, owners=np.zeros(4, np.int64), standardizer=None, dtype=model.dtype, parts=dict(enumerate(made)),
        comm=Communicator(),
    )  # fmt: skip
    expected = model.decision_function(T)
    tolerance = 1e-12 if model.dtype == "float64" else 1e-5
    near(pieces.decision_function(T), expected, tolerance)
    np.testing.assert_array_equal(pieces.intercepts(), whole.b)
    np.testing.assert_array_equal(model.intercepts(), whole.b)
    pieces.save(tmp_path / "m.h5")
    loaded = SVMModel.load(tmp_path / "m.h5")
    assert (loaded.route, list(loaded.parts), loaded.sizes.tolist()) == ("sum", [0], [len(whole.rows)])
    same_part(loaded.parts[0], whole)
    np.testing.assert_array_equal(loaded.decision_function(T), expected)
    np.testing.assert_array_equal(loaded.intercepts(), whole.b)
    np.testing.assert_array_equal(loaded.predict(T), model.predict(T))


def test_one_rank_keeps_the_whole():
    _, whole, _ = whole_and_pieces(2)
    assert deal(whole, 2, 0, Communicator()) is whole


def test_a_model_without_support_vectors():
    """If the solver was allowed no step, b alone decides."""
    X, y = drawn_clouds()
    model = train("dcsvm", X, y, tol=1e-3, max_iter=0).model
    (whole,) = model.parts.values()
    assert isinstance(whole, PartSVM)
    assert len(whole.rows) == 0
    np.testing.assert_array_equal(model.decision_function(X), np.full(157, -whole.b[0]))
