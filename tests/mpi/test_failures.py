"""When a rank fails, the others hear of it wherever they are, and the host's communicator stays as it was."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from helpers.distributed import RANK, WORLD
from helpers.failing import SIZE, every_rank_raises, failing, rows
from mpi4py import MPI

from cacore.comm import Communicator, collective, communicator, require_same
from cacore.errors import InputError, MemoryLimitError, RankError
from cakrr import BKRR2

LAST = SIZE - 1
LARGE = 1 << 20  # numbers: no library hands them on before the receiver asks for them


pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """Every test leaves COMM_WORLD without a message on its way, and usable."""
    yield
    WORLD.Barrier()
    pending = WORLD.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
    WORLD.Barrier()
    assert not pending


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
    "require_same": lambda c: require_same({"seed": 1}, c),
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


def test_failure_reaches_ranks_at_different_calls():
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


@pytest.mark.parametrize("length", [0, 10_000, 300_000])
def test_messages_of_any_length(length):
    def work():
        with collective(WORLD) as ranks:
            if RANK == LAST:
                raise ValueError("σ" * length)
            ranks.barrier()

    assert every_rank_raises(RankError, work) == f"rank {LAST}: ValueError: {'σ' * length}"


def test_interrupts_are_not_turned_into_errors():
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
        wait = iter([failing(KeyboardInterrupt()), failing(KeyboardInterrupt()), communicator.wait])
        monkeypatch.setattr(communicator, "wait", lambda *args: next(wait)(*args))
    expected = RankError if failure else KeyboardInterrupt if RANK == LAST else None
    with pytest.raises(expected) if expected else contextlib.nullcontext(), collective(WORLD):
        if failure and RANK == 0:
            raise ZeroDivisionError("still at work")
    assert WORLD.allreduce(1) == SIZE


def test_calls_after_a_failure_raise_it_again():
    """A `finally` block may contain calls: they must not wait for ranks that have failed."""
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


def test_agreement_on_one_rank_stays_on_that_rank():
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
