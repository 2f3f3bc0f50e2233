"""The library is a guest: it never ends its host's job, and leaves the host's communicator as it was."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.distributed import RANK, WORLD, R, some
from mpi4py import MPI

from cacore.comm import Communicator, collective, mpi
from cacore.comm.mpi import Transport
from cacore.errors import InputError, MemoryLimitError, RankError
from cacore.linalg import scalapack
from cacore.linalg.scalapack import BlockCyclic
from cakrr import BKRR2, DKRR, TwoLevelKRR
from casvm import CASVC, CascadeSVC, DisSMOSVC
from partition import KBalance

SIZE = R
LAST = SIZE - 1
LARGE = 1 << 20  # numbers: no library hands them on before the receiver asks for them

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


def failing(error):
    """Something that raises `error` whatever it is called with."""

    def call(*args, **options):
        raise error

    return call


ESTIMATORS = {
    "bkrr2": (lambda comm: BKRR2(n_parts=SIZE, random_state=0, comm=comm), 1),
    "twolevel": (lambda comm: TwoLevelKRR(n_parts=SIZE, centers=20, random_state=0, comm=comm), 1),
    "dkrr": (lambda comm: DKRR(random_state=0, comm=comm), 1),
    "casvm": (lambda comm: CASVC(n_parts=SIZE, random_state=0, comm=comm), 2),
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
    assert "NaN" in every_rank_raises(InputError, lambda: make(comm).fit(bad, given[target]))
    model = make(comm).fit(given[0], given[target])
    assert "NaN" in every_rank_raises(InputError, lambda: model.predict(bad))
    assert len(model.predict(given[0])) == 60
    comm.Free()


@of_all_kinds
@pytest.mark.parametrize(
    "error", some([ZeroDivisionError("in the middle"), MemoryError(), InputError("rank-local refusal")])
)
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
@pytest.mark.parametrize("rank", some([0, LAST]))
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
    for place in np.unique(np.linspace(1, made, 5).astype(int)).tolist():
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


def test_a_rank_that_is_done_hears_of_another_that_fails():
    def work():
        with collective(WORLD):
            if RANK == 0:
                raise ZeroDivisionError("late")

    assert every_rank_raises(RankError, work) == "rank 0: ZeroDivisionError: late"


def test_communicators_are_freed(few_communicators):
    """After errors that all ranks agree on as well."""
    for turn in range(60):
        with contextlib.suppress(InputError), collective(WORLD) as ranks:
            ranks.node()
            with ranks.agreed():
                if turn % 2 and RANK == 0:
                    raise InputError("odd")


# -- where the others are when a rank fails ----------------------------------------------------

ONES = np.ones(SIZE, np.int64)
WAITING = {
    "barrier": lambda c: c.barrier(),
    "bcast": lambda c: c.bcast(np.ones(3), LAST),
    "bcast, large": lambda c: c.bcast(np.ones(LARGE) if RANK == 0 else None, 0),
    "allreduce": lambda c: c.allreduce(np.ones(3)),
    "allreduce, large": lambda c: c.allreduce(np.ones(LARGE)),
    "allgather": lambda c: c.allgather(np.ones(3)),
    "gather": lambda c: c.gather(np.ones(3)),
    "scatter": lambda c: c.scatter(np.ones(SIZE) if RANK == 0 else None, ONES),
    "alltoall": lambda c: c.alltoall(np.ones(SIZE), ONES),
    "recv": lambda c: c.recv(LAST),
    "send, large": lambda c: c.send(np.ones(LARGE), LAST),
    "node": lambda c: c.node(),
    "totals": lambda c: c.totals(),
    "require_equal": lambda c: c.require_equal({"seed": 1}),
    "nothing": lambda c: None,
}


@pytest.mark.parametrize("call", WAITING)
def test_others_wait(call):
    def work():
        with collective(WORLD) as ranks:
            if RANK == LAST:
                raise ZeroDivisionError(call)
            WAITING[call](ranks)

    for _ in range(3):
        assert every_rank_raises(RankError, work) == f"rank {LAST}: ZeroDivisionError: {call}"


def test_others_wait_in_checks():
    """A check of one rank fails with an error that is not one of those that ranks agree on."""

    def work():
        with collective(WORLD) as ranks, ranks.agreed():
            if RANK == LAST:
                raise ZeroDivisionError("in a check")

    assert every_rank_raises(RankError, work) == f"rank {LAST}: ZeroDivisionError: in a check"


def test_others_wait_on_their_machine():
    """The ranks of one machine have a communicator of their own, and hear of it all the same."""

    def work():
        with collective(WORLD) as ranks:
            node = ranks.node()
            if RANK == LAST:
                raise ZeroDivisionError("alone")
            node.allgather(np.ones(3))

    assert every_rank_raises(RankError, work) == f"rank {LAST}: ZeroDivisionError: alone"


def test_others_are_at_different_places():
    def work():
        with collective(WORLD) as ranks:
            if RANK == LAST:
                raise ZeroDivisionError("somewhere")
            list(WAITING.values())[RANK % 5](ranks)
            ranks.recv(LAST)

    assert every_rank_raises(RankError, work) == f"rank {LAST}: ZeroDivisionError: somewhere"


def test_several_ranks_fail_at_once():
    """Each with an error of its own: all raise that of the lowest rank."""

    def work():
        with collective(WORLD) as ranks:
            if RANK:
                raise (InputError if RANK == 1 else ZeroDivisionError)(f"of rank {RANK}")
            ranks.barrier()

    for _ in range(20):
        assert every_rank_raises(InputError, work) == "of rank 1"


def test_all_ranks_fail_at_once():
    def work():
        with collective(WORLD):
            raise MemoryError(f"of rank {RANK}")

    for _ in range(20):
        assert every_rank_raises(RankError, work) == "rank 0: MemoryError: of rank 0"


def test_a_refusal_keeps_its_kind():
    def work(check):
        with collective(WORLD) as ranks, ranks.agreed() if check else contextlib.nullcontext():
            if RANK == LAST:
                raise MemoryLimitError("too much")

    for check in (False, True):
        assert every_rank_raises(MemoryLimitError, lambda check=check: work(check)) == "too much"


@pytest.mark.parametrize("length", [0, 10_000, 3_000_000])
def test_messages_of_any_length(length):
    def work():
        with collective(WORLD) as ranks:
            if RANK == LAST:
                raise ValueError("σ" * length)
            ranks.barrier()

    assert every_rank_raises(RankError, work) == f"rank {LAST}: ValueError: {'σ' * length}"


def test_an_interruption_stays_one():
    """On the rank that the user has interrupted; the others hear of it."""
    with pytest.raises(KeyboardInterrupt if RANK == LAST else RankError) as caught, collective(WORLD) as ranks:  # noqa: PT012
        if RANK == LAST:
            raise KeyboardInterrupt
        ranks.barrier()
    assert RANK == LAST or str(caught.value) == f"rank {LAST}: KeyboardInterrupt: "


@pytest.mark.parametrize("failure", [False, True])
def test_an_interruption_of_a_rank_that_is_done(failure, monkeypatch):
    """It waits until the others are done, who have nobody to hear of it, or have failed."""
    if RANK == LAST:
        wait = iter([failing(KeyboardInterrupt()), failing(KeyboardInterrupt()), mpi.wait])
        monkeypatch.setattr(mpi, "wait", lambda *args: next(wait)(*args))
    expected = RankError if failure else KeyboardInterrupt if RANK == LAST else None
    with pytest.raises(expected) if expected else contextlib.nullcontext(), collective(WORLD):
        if failure and RANK == 0:
            raise ZeroDivisionError("still at work")
    assert WORLD.allreduce(1) == SIZE


def test_calls_after_a_failure_raise_it_again():
    """What is written in a `finally` may be a call: it must not wait for ranks that have gone."""
    again = []

    def work():
        with collective(WORLD) as ranks:
            try:
                if RANK == LAST:
                    raise ZeroDivisionError("first")
                ranks.barrier()
            finally:
                if RANK != LAST:
                    with pytest.raises(RankError, match="first") as caught:
                        ranks.allreduce(np.ones(1))
                    again.append(caught.value)

    assert every_rank_raises(RankError, work) == f"rank {LAST}: ZeroDivisionError: first"
    assert len(again) == (RANK != LAST)


def test_what_one_rank_agrees_on_with_itself():
    """A part of the work on rows of one rank, with checks of its own: its failure is one of this rank alone."""

    def work():
        with collective(WORLD) as ranks:
            if RANK == LAST:
                with Communicator().agreed():
                    raise InputError("of one rank's rows")
            ranks.barrier()

    assert every_rank_raises(InputError, work) == "of one rank's rows"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_calls_within_calls(depth):
    """A library call that makes others on the same ranks; the communicator that counts is the caller's."""

    def work(ranks, depth):
        with collective(ranks) as inner:
            assert inner is ranks
            if depth > 1:
                work(inner, depth - 1)
            elif RANK == 0:
                raise ZeroDivisionError("inside")

    with_messages = WORLD.Dup()  # which keeps what is pending, as the host's own must not
    assert every_rank_raises(RankError, lambda: work(Communicator(with_messages), depth)).endswith("inside")


def test_messages_of_the_host_stay_its_own():
    """On its way while the library works, with the tags that the library uses."""
    ahead, behind, given = (RANK + 1) % SIZE, (RANK - 1) % SIZE, rows()
    requests = [WORLD.isend(("for", ahead, tag), ahead, tag) for tag in (0, 32767)]
    BKRR2(n_parts=SIZE, random_state=0, comm=WORLD).fit(given[0], given[1]).predict(given[0])
    with pytest.raises(RankError), collective(WORLD) as ranks:  # noqa: PT012
        if RANK == 0:
            raise ZeroDivisionError
        ranks.barrier()
    for tag in (0, 32767):
        assert WORLD.recv(source=behind, tag=tag) == ("for", RANK, tag)
    MPI.Request.waitall(requests)


# -- ScaLAPACK, which waits without hearing ----------------------------------------------------


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
    for turn in range(120):
        refused = contextlib.suppress(InputError)
        with refused, collective(WORLD) as ranks, BlockCyclic(9, ranks, block=2), ranks.agreed():
            if turn % 2 and RANK == 0:
                raise InputError("odd")
