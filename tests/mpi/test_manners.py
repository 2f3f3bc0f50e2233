"""The library is a guest: it never ends its host's job, and leaves the host's communicator as it was."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from cacore.comm import collective
from cacore.errors import InputError, RankError
from cakrr import BKRR2, DKRR
from casvm import CASVC, CascadeSVC, DisSMOSVC
from partition import KBalance

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size

pytestmark = pytest.mark.mpi(min_size=2)


def rows(n=60, d=3):
    """This rank's rows, targets and labels."""
    rng = np.random.default_rng(RANK)
    X = rng.normal(size=(n, d))
    return X, X[:, 0] ** 2, np.where(X.sum(axis=1) > 0, 1, -1)


def every_rank_raises(kind, work):
    """The message, which all ranks raise as an error of the same kind; the host's communicator works afterwards."""
    with pytest.raises(kind) as caught:
        work()
    assert type(caught.value) is kind
    messages = WORLD.allgather(str(caught.value))
    assert len(set(messages)) == 1
    assert WORLD.allreduce(1) == SIZE
    return messages[0]


ESTIMATORS = {
    "bkrr2": (lambda comm: BKRR2(n_parts=SIZE, comm=comm), 1),
    "dkrr": (lambda comm: DKRR(comm=comm), 1),
    "casvm": (lambda comm: CASVC(n_parts=SIZE, comm=comm), 2),
    "cpsvm": (lambda comm: CASVC(n_parts=SIZE, partitioner="kmeans", comm=comm), 2),
    "cascade": (lambda comm: CascadeSVC(n_parts=SIZE, comm=comm), 2),
    "dissmo": (lambda comm: DisSMOSVC(comm=comm), 2),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_bad_rows_on_one_rank(name):
    make, target = ESTIMATORS[name]
    if name == "dkrr":
        pytest.importorskip("mkl")
    comm, given = WORLD.Dup(), rows()
    bad = given[0].copy()
    bad[5, 1] = np.nan if RANK == SIZE - 1 else bad[5, 1]
    assert "NaN" in every_rank_raises(InputError, lambda: make(comm).fit(bad, given[target]))
    model = make(comm).fit(given[0], given[target])
    assert "NaN" in every_rank_raises(InputError, lambda: model.predict(bad))
    assert len(model.predict(given[0])) == 60
    comm.Free()


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "dkrr"])
@pytest.mark.parametrize("error", [ZeroDivisionError("in the middle"), MemoryError(), InputError("rank-local refusal")])
def test_one_rank_fails_in_the_middle_of_training(name, error, monkeypatch):
    make, target = ESTIMATORS[name]
    given = rows()
    model = make(WORLD).fit(given[0], given[target])
    expected = model.predict(given[0])
    if RANK == SIZE - 1:

        def failing(*args, **options):
            raise error

        monkeypatch.setattr("cacore.kernels.values.Points.__init__", failing)
        monkeypatch.setattr("cacore.kernels.panels.Panels.__init__", failing)
    kind = InputError if isinstance(error, InputError) else RankError
    message = every_rank_raises(kind, lambda: make(WORLD).fit(given[0], given[target]))
    assert str(error) in message
    assert kind is InputError or f"rank {SIZE - 1}: {type(error).__name__}" in message
    monkeypatch.undo()
    np.testing.assert_array_equal(make(WORLD).fit(given[0], given[target]).predict(given[0]), expected)


def test_a_partitioner_fails_on_one_rank():
    X = rows()[0]
    X[0, 0] = np.inf if RANK == 0 else 0.0
    assert "infinity" in every_rank_raises(InputError, lambda: KBalance(n_parts=4).fit(X, comm=WORLD))


def test_a_rank_that_is_done_hears_of_another_that_fails():
    def work():
        with collective(WORLD):
            if RANK == 0:
                raise ZeroDivisionError("late")

    assert every_rank_raises(RankError, work) == "rank 0: ZeroDivisionError: late"


def test_communicators_are_freed():
    for _ in range(3000):  # MPICH has about 2,000
        with collective(WORLD) as ranks:
            ranks.node()
