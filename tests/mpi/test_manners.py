"""The library is a guest: it never ends its host's job, and leaves the host's communicator as it was."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.distributed import RANK, WORLD
from helpers.failing import SIZE, every_rank_raises, failing, rows
from mpi4py import MPI

from cacore.comm import collective
from cacore.comm.communicator import Transport
from cacore.errors import InputError, RankError
from cacore.linalg import scalapack
from cacore.linalg.scalapack import BlockCyclic
from cakrr import BKRR2, DKRR, TwoLevelKRR
from casvm import CASVC, CascadeSVC, DisSMOSVC
from partition import KBalance

LAST = SIZE - 1


pytestmark = pytest.mark.mpi(min_size=2)


no_library = not os.environ.get(scalapack.VARIABLE) and not scalapack._files("mkl")
needs_library = pytest.mark.skipif(no_library, reason="no ScaLAPACK: the mkl package is not installed")


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """Every test leaves COMM_WORLD without a message on its way, and usable."""
    yield
    WORLD.Barrier()
    pending = WORLD.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
    WORLD.Barrier()
    assert not pending


FEW = {"sigma": [1.0, 2.0], "lam": [1e-3, 1e-2]}  # a search, but not that of the default grid
ESTIMATORS = {
    "bkrr2": (lambda comm: BKRR2(n_parts=SIZE, **FEW, random_state=0, comm=comm), 1),
    "twolevel": (lambda comm: TwoLevelKRR(n_parts=SIZE, centers=20, **FEW, random_state=0, comm=comm), 1),
    "dkrr": (lambda comm: DKRR(**FEW, random_state=0, comm=comm), 1),
    "casvm": (lambda comm: CASVC(n_parts=SIZE, partitioner="random", random_state=0, comm=comm), 2),
    "cpsvm": (lambda comm: CASVC(n_parts=SIZE, partitioner="kmeans", random_state=0, comm=comm), 2),
    "cascade": (lambda comm: CascadeSVC(n_parts=SIZE, random_state=0, comm=comm), 2),
    "dissmo": (lambda comm: DisSMOSVC(comm=comm), 2),
}
of_all_kinds = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_library if name == "dkrr" else ()) for name in ESTIMATORS]
)


@of_all_kinds
def test_bad_rows_on_one_rank(name):
    make, target = ESTIMATORS[name]
    comm, given = WORLD.Dup(), rows()
    bad = given[0].copy()
    bad[5, 1] = np.nan if RANK == LAST else bad[5, 1]
    message = every_rank_raises(InputError, lambda: make(comm).fit(bad, given[target]))
    assert message.startswith(f"rank {LAST}: X, column 1: row 5 is NaN")
    model = make(comm).fit(given[0], given[target])
    message = every_rank_raises(InputError, lambda: model.predict(bad))
    assert message.startswith(f"rank {LAST}: X, column 1: row 5 is NaN")
    assert len(model.predict(given[0])) == 60
    comm.Free()


@of_all_kinds
@pytest.mark.parametrize("error", [ZeroDivisionError("in the middle"), MemoryError(), InputError("rank-local refusal")])
def test_one_rank_fails_in_the_middle_of_training(name, error, monkeypatch):
    make, target = ESTIMATORS[name]
    given = rows()
    model = make(WORLD).fit(given[0], given[target])
    expected = model.predict(given[0])
    if RANK == LAST:
        monkeypatch.setattr("cacore.kernels.values.Points.__init__", failing(error))
        monkeypatch.setattr("cacore.kernels.panels.Panels.__init__", failing(error))
    kind = InputError if isinstance(error, InputError) else RankError
    message = every_rank_raises(kind, lambda: make(WORLD).fit(given[0], given[target]))
    assert str(error) in message
    assert kind is InputError or f"rank {LAST}: {type(error).__name__}" in message
    monkeypatch.undo()
    np.testing.assert_array_equal(make(WORLD).fit(given[0], given[target]).predict(given[0]), expected)


@of_all_kinds
@pytest.mark.parametrize("rank", [0, LAST])
def test_one_rank_fails_before_any_of_its_calls(name, rank, monkeypatch):
    """At places all over training and prediction: the first call, the last, and some between."""
    make, target = ESTIMATORS[name]
    given, calls, last = rows(), [], None
    call = Transport.call

    def counted(self, *args, **options):
        calls.append(args[0])
        if len(calls) == last:
            raise ZeroDivisionError(f"before call {last}")
        call(self, *args, **options)

    def work():
        calls.clear()
        return make(WORLD).fit(given[0], given[target]).predict(given[0])

    monkeypatch.setattr(Transport, "call", counted)
    expected = work()
    made = WORLD.bcast(len(calls), rank)
    for place in np.unique(np.linspace(1, made, 4).astype(int)).tolist():
        last = place if rank == RANK else None
        assert every_rank_raises(RankError, work) == f"rank {rank}: ZeroDivisionError: before call {place}"
    last = None
    np.testing.assert_array_equal(work(), expected)


@pytest.mark.parametrize("name", ["bkrr2", "casvm", "kbalance"])
def test_columns_have_other_names_on_one_rank(name):
    pandas = pytest.importorskip("pandas")
    comm, given = WORLD.Dup(), rows()
    frame = pandas.DataFrame(given[0], columns=["x", "height" if RANK == LAST else "y", "z"])
    if name == "kbalance":
        message = every_rank_raises(InputError, lambda: KBalance(n_parts=SIZE).fit(frame, comm=comm))
    else:
        make, target = ESTIMATORS[name]
        message = every_rank_raises(InputError, lambda: make(comm).fit(frame, given[target]))
    assert message.startswith(f"X, column 1: 'height' on rank {LAST}, 'y' on rank 0")
    comm.Free()


@pytest.mark.parametrize("name", ["bkrr2", "casvm", "kbalance"])
@pytest.mark.parametrize("what", ["features", "format"])
def test_rows_of_one_rank_are_not_like_the_others(what, name):
    """Not a hang, and not an error of MPI."""
    given = rows()
    X = given[0]
    if RANK == LAST:
        X = X[:, :2] if what == "features" else sp.csr_matrix(X)
    if name == "kbalance":
        every_rank_raises(InputError, lambda: KBalance(n_parts=SIZE).fit(X, comm=WORLD))
    else:
        make, target = ESTIMATORS[name]
        every_rank_raises(InputError, lambda: make(WORLD).fit(X, given[target]))


def test_a_partitioner_fails_on_one_rank():
    X = rows()[0]
    X[0, 0] = np.inf if RANK == 0 else 0.0
    assert "infinity" in every_rank_raises(InputError, lambda: KBalance(n_parts=4).fit(X, comm=WORLD))


def test_finished_rank_learns_of_a_failure():
    def work():
        with collective(WORLD):
            if RANK == 0:
                raise ZeroDivisionError("late")

    assert every_rank_raises(RankError, work) == "rank 0: ZeroDivisionError: late"


def test_communicators_are_freed(few_communicators):
    """After errors that all ranks agree on as well."""
    for turn in range(20):
        with contextlib.suppress(InputError), collective(WORLD) as ranks:
            ranks.node()
            with ranks.agreed():
                if turn % 2 and RANK == 0:
                    raise InputError("odd")


@needs_library
@pytest.mark.parametrize("place", ["before the factorisation", "before the solution", "after it", "on entry"])
def test_scalapack(place):
    def fails(here):
        if here == place and RANK == LAST:
            raise ZeroDivisionError(here)

    def work():
        with collective(WORLD) as ranks:
            fails("on entry")
            with BlockCyclic(40, ranks, block=8) as matrix:
                matrix.local[:] = np.equal.outer(matrix.columns, matrix.rows)
                fails("before the factorisation")
                assert matrix.cholesky() == 0
                fails("before the solution")
                matrix.solve(np.ones(40))
                fails("after it")

    assert every_rank_raises(RankError, work) == f"rank {LAST}: ZeroDivisionError: {place}"
    place = "nowhere"
    work()


@needs_library
def test_scalapack_gives_its_communicators_back(few_communicators):
    """After errors that all ranks agree on as well."""
    for turn in range(20):
        refused = contextlib.suppress(InputError)
        with refused, collective(WORLD) as ranks, BlockCyclic(9, ranks, block=2), ranks.agreed():
            if turn % 2 and RANK == 0:
                raise InputError("odd")
