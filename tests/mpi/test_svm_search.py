"""C and gamma chosen by ranks together: the choice of one process, to the last count."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import names
from helpers.data import curved, drawn_clouds
from helpers.distributed import WORLD, R, by_one, even, labelled, refused_by_all, sent

from cacore.io.checkpoint import Checkpoint
from casvm import CASVC, casvm, cpsvm, dcfilter, dissmo
from casvm.options import SVMOptions

pytestmark = pytest.mark.mpi(min_size=1)

METHODS = {"cpsvm": cpsvm.METHOD, "dissmo": dissmo.METHOD, "dcfilter": dcfilter.METHOD}
N = 157
SETTINGS = SVMOptions(C=(0.5, 2.0, 20.0), gamma=(0.05, 0.5, 3.0), tol=1e-6)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("name", METHODS)
def test_choice_of_one_process(name, k, tuned):
    """The counts are whole numbers, so that their sums, and what is ended for them, are the same on any ranks."""
    tuned(search_rows=60, search_whole=60)
    X, y = drawn_clouds(k=k)
    options = SVMOptions(**{**vars(SETTINGS), "partitions": 5 if name == "cpsvm" else None, "seed": 2})
    one = SVMOptions(**{**vars(options), "partitions": R if name == "dcfilter" else options.partitions})
    found = METHODS[name](labelled(X, y, even(N)), options, WORLD).search
    serial = by_one(METHODS[name], labelled(X, y), one).search
    np.testing.assert_array_equal(found.scores, serial.scores)
    assert found.axes == serial.axes
    assert (found.chosen, found.chosen_score) == (serial.chosen, serial.chosen_score)
    assert (found.solved, found.stopped.tolist()) == (serial.solved, serial.stopped.tolist())


def test_grid_that_is_made_up():
    """The median distance is that of all parts, whichever rank has them."""
    X, y = drawn_clouds(k=2)
    options = SVMOptions(partitions=5, C="grid", gamma="grid", quick=True)
    found = cpsvm.METHOD(labelled(X, y, even(N)), options, WORLD).search
    serial = by_one(cpsvm.METHOD, labelled(X, y), options).search
    for name in ("C", "gamma"):
        np.testing.assert_allclose(found.axes[name], serial.axes[name], rtol=1e-12)
    assert found.chosen["C"] == serial.chosen["C"]
    assert len(found.scores) == 25


def test_every_part_its_own(everywhere):
    X, y = curved(N)
    given = {"n_parts": 5, "partitioner": "kmeans", "C": [0.5, 20.0], "gamma": [0.05, 3.0], "per_part": True}
    mine = even(N)
    own = CASVC(**given, random_state=0, comm=WORLD).fit(X[mine], y[mine])
    alone = by_one(CASVC(**given, random_state=0).fit, X, y)
    for name in ("C", "gamma"):
        np.testing.assert_array_equal(own.best_params_[name], alone.best_params_[name])
    assert own.best_score_ == alone.best_score_
    np.testing.assert_array_equal(everywhere(own.predict(X[mine])), alone.predict(X))


def test_no_row_travels():
    """A CA-SVM sends nothing before it predicts, but in a search the parts' sizes, once, and counts, three times."""
    X, y = drawn_clouds(k=2)
    options = SVMOptions(**{**vars(SETTINGS), "partitions": 2 * R})

    def work(comm):
        casvm.METHOD(labelled(X, y, even(N)), options, comm)

    for phase in ("partition", "train"):
        assert sent(work, phase)["bytes"] == 0
    if R == 1:
        return
    # Counts of the classes, sizes of 2 R parts, the most rows of a piece; 9 settings, 5 folds, 3 numbers of each class;
    # three agreements. 8 bytes each.
    assert sent(work, "search")["bytes"] == 8 * R * (2 + 2 * R + 1 + 9 * 5 * 3 * 2 + 3)


def test_resumed(folder):
    """Ranks go on from the pieces that any of them has finished."""
    X, y = drawn_clouds(k=2)

    def fit():
        options = SVMOptions(**{**vars(SETTINGS), "partitions": 5, "checkpoint": Checkpoint(folder / "kept")})
        return cpsvm.METHOD(labelled(X, y, even(N)), options, WORLD).search

    first = fit()
    WORLD.barrier()
    if WORLD.rank == 0:
        pieces = [name for name in names(folder / "kept") if name.startswith("search-")]
        assert len(pieces) == 10  # five parts, two rounds
        for name in pieces[4:]:
            (folder / "kept" / name).unlink()
    WORLD.barrier()
    second = fit()
    np.testing.assert_array_equal(second.scores, first.scores)
    assert second.chosen == first.chosen


def test_refused_by_all():
    """Only one rank has the rare class."""
    X, y = drawn_clouds(k=2)
    y = np.where(np.arange(N) < 3, 1, 0)
    options = SVMOptions(C=(1.0, 2.0), partitions=5, cv=5)
    refused_by_all(lambda: cpsvm.METHOD(labelled(X, y, even(N)), options, WORLD), match="class 1 has 3 rows")
