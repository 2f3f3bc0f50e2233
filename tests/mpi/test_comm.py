"""Every call of the communicator against mpi4py's own, and the counters against the class' docstring."""

from __future__ import annotations

import contextlib
import gc
import weakref

import numpy as np
import pytest
from mpi4py import MPI

from cacore import traffic as traffic_module
from cacore.comm import PHASES, Communicator, communicator
from cacore.comm.failure import wait
from cacore.comm.ranks import team
from cacore.errors import InputError, RankError

pytestmark = pytest.mark.mpi(min_size=1)

WORLD = MPI.COMM_WORLD
R, RANK = WORLD.size, WORLD.rank
OTHERS = [r for r in range(R) if r != RANK]

many = pytest.mark.parametrize("chunk", [64, 1 << 30])  # bytes of a message: many rounds, and one


def numbers(*shape, dtype=np.float64, seed=RANK):
    return (1000 * np.random.default_rng(seed).random(shape)).astype(dtype)


@many
@pytest.mark.parametrize("shape", [(0,), (1,), (37,), (3, 0), (7, 3), (2, 3, 5)])
@pytest.mark.parametrize("root", range(R))
def test_bcast(chunk, shape, root):
    for code in "bBhHiIqQfd?":
        array = numbers(*shape, dtype=code)
        got = Communicator(WORLD, chunk).bcast(array if root == RANK else None, root)
        expected = WORLD.bcast(array, root)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected, strict=True)


@many
@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(0,), (1,), (29, 3)])
def test_allreduce(chunk, dtype, shape):
    array = numbers(*shape, dtype=np.int8 if dtype == np.int8 else dtype) // (8 * R)
    before = array.copy()
    for op, reference in (("sum", np.sum), ("min", np.min), ("max", np.max)):
        got = Communicator(WORLD, chunk).allreduce(array, op)
        expected = reference(WORLD.allgather(array), axis=0).astype(dtype)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(got, expected, rtol=4 * np.finfo(dtype).eps if got.dtype.kind == "f" else 0)
    np.testing.assert_array_equal(array, before)


LENGTHS = {"uneven": (5, 0, 23, 1), "empty": (0, 0, 0, 0), "one rank": (0, 11, 0, 0)}
shaped = pytest.mark.parametrize("width", [(), (3,), (40,), (0,), (2, 2)])
lengths = pytest.mark.parametrize("rows", LENGTHS.values(), ids=LENGTHS)


@many
@shaped
@lengths
def test_gathers(chunk, width, rows):
    comm, array = Communicator(WORLD, chunk), numbers(rows[RANK], *width, dtype=np.float32)
    expected = np.concatenate(WORLD.allgather(array))
    np.testing.assert_array_equal(comm.allgather(array), expected, strict=True)
    for known in (None, np.array(rows[:R], np.int64)):
        got, counts = comm.allgather_parts(array, known)
        np.testing.assert_array_equal(got, expected, strict=True)
        assert counts.tolist() == list(rows[:R])
        np.testing.assert_array_equal(comm.allgather(array, known), expected, strict=True)
    gathered = [comm.gather(array, root) for root in range(R)]
    np.testing.assert_array_equal(gathered[RANK], expected, strict=True)
    assert all(gathered[r] is None for r in OTHERS)


@pytest.mark.parametrize("counts", [[2] * R, [1] * (R + 1), []], ids=str)
def test_counts_that_are_wrong(counts):
    with pytest.raises(ValueError, match="has 1 rows"):
        Communicator(WORLD).allgather(numbers(1), np.array(counts, np.int64))


@many
@shaped
@lengths
def test_scatter(chunk, width, rows):
    comm, counts = Communicator(WORLD, chunk), np.array(rows[:R])
    everything = numbers(counts.sum(), *width, seed=7)
    expected = np.split(everything, np.cumsum(counts)[:-1])[RANK]
    for root in range(R):
        got = comm.scatter(everything if root == RANK else None, counts, root)
        np.testing.assert_array_equal(got, expected, strict=True)


@many
@shaped
@pytest.mark.parametrize("most", [0, 1, 9])
def test_alltoall(chunk, width, most):
    counts = np.random.default_rng(RANK).integers(0, most + 1, R)
    array = numbers(counts.sum(), *width, dtype=np.int64)
    got, arrived = Communicator(WORLD, chunk).alltoall(array, counts)
    pieces = WORLD.alltoall(np.split(array, np.cumsum(counts)[:-1]))
    assert arrived.tolist() == [len(piece) for piece in pieces]
    np.testing.assert_array_equal(got, np.concatenate(pieces), strict=True)


@pytest.mark.mpi(min_size=2)
def test_rows_move_without_pauses(monkeypatch, tuned):
    """MPICH moves a few KiB of an Ialltoallv each time it is asked: with pauses between, 8 MB took 1.2 s for 2 ms."""
    asked, pauses = [], []
    monkeypatch.setattr(
        communicator, "wait", lambda done, meanwhile, may, what: (asked.append(may), wait(done, meanwhile, may))
    )
    tuned(pause=lambda seconds: pauses.append(asked[-1]))
    Communicator(WORLD).alltoall(np.zeros(R << 17), np.full(R, 1 << 17))
    assert asked == [True, True, False]  # the numbers of rows, the most of them, the rows
    assert False not in pauses


@many
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("shape", [(0,), (50,), (4, 3, 2)])
def test_send(chunk, shape):
    comm = Communicator(WORLD, chunk)
    if RANK == R - 1:
        comm.send(numbers(*shape, dtype=np.float32, seed=3), 0)
    if RANK == 0:
        np.testing.assert_array_equal(comm.recv(R - 1), numbers(*shape, dtype=np.float32, seed=3), strict=True)


def test_offset_and_node():
    comm = Communicator(WORLD)
    assert comm.offset(3 * RANK + 1) == (sum(3 * r + 1 for r in range(RANK)), sum(3 * r + 1 for r in range(R)))
    assert comm.node().size == WORLD.Split_type(MPI.COMM_TYPE_SHARED).size


def test_team():
    """Sums within the even and the odd ranks, counted as traffic of all ranks, and no communicator stays behind."""
    comm = Communicator(WORLD)
    mates = [r for r in range(R) if r % 2 == RANK % 2]
    with comm.phase("train"), team(comm, RANK % 2) as some:
        assert (some.rank, some.size) == (mates.index(RANK), len(mates))
        assert some.allreduce(np.array([RANK]))[0] == sum(mates)
        some.alltoall(np.zeros(len(mates)), np.ones(len(mates), np.int64))
    sent = comm.sent("train")
    assert np.flatnonzero(sent[1, :R]).tolist() == [r for r in mates if r != RANK]
    assert (sent[0, R] >= 8) == (len(mates) > 1)


@pytest.mark.mpi(min_size=3)
def test_failure_in_a_team():
    """A rank that fails in its team is noticed by the ranks of the others."""
    comm = Communicator(WORLD.Dup())

    def work():
        with comm.guard(), team(comm, RANK % 2) as some:
            if RANK == 1:
                raise ValueError("lost")
            some.barrier()

    with pytest.raises(RankError, match="rank 1: ValueError: lost"):
        work()


# -- counters ----------------------------------------------------------------------------------

HEAD = 64  # dtype, dimensions and shape, before a broadcast or a message
LENGTH = 8  # of each rank's contribution, or what goes to one rank


def each(value):
    """To each other rank."""
    return dict.fromkeys(OTHERS, value)


def table(root):
    """Call, then payload and lengths that this rank sends: {receiver, or R where it is unknown: [messages' bytes]}."""
    rows = RANK + 1
    counts = np.arange(R)
    whole = numbers(counts.sum(), 3)
    return {
        "bcast": (lambda c: c.bcast(numbers(10), root), each([HEAD, 80]) if root == RANK else {}),
        "allreduce": (lambda c: c.allreduce(numbers(10)), {R: [80]}),
        "allgather": (lambda c: c.allgather(numbers(rows, 3)), {R: [LENGTH, 24 * rows]}),
        "allgather of nothing": (lambda c: c.allgather(numbers(0, 3)), {R: [LENGTH]}),
        "allgather of known lengths": (lambda c: c.allgather(numbers(rows, 3), np.arange(1, R + 1)), {R: [24 * rows]}),
        "alltoall": (
            lambda c: c.alltoall(whole, counts),
            {R: [LENGTH], **{r: [LENGTH, 24 * r] if r else [LENGTH] for r in OTHERS}},
        ),
        "gather": (
            lambda c: c.gather(numbers(rows, 3), root),
            {R: [LENGTH], **each([LENGTH]), **({} if root == RANK else {root: [LENGTH, 24 * rows]})},
        ),
        "scatter": (
            lambda c: c.scatter(whole if root == RANK else None, counts, root),
            {
                R: [LENGTH],
                **{r: [LENGTH] + ([HEAD] + [24 * r] * (r > 0) if root == RANK else []) for r in OTHERS},
            },
        ),
    }  # fmt: skip


@pytest.mark.parametrize("root", sorted({0, R - 1}))
@pytest.mark.parametrize("call", table(0))
def test_counts(call, root):
    comm = Communicator(WORLD)
    with comm.phase("train"):
        work, expected = table(root)[call]
        work(comm)
    nbytes, messages = comm.sent("train")
    expected = expected if R > 1 else {}
    assert nbytes.tolist() == [sum(expected.get(r, [])) for r in range(R + 1)]
    assert messages.tolist() == [len(expected.get(r, [])) for r in range(R + 1)]
    assert all(comm.sent(phase)[0].sum() == 0 for phase in PHASES if phase != "train")


@pytest.mark.mpi(min_size=2)
def test_counts_of_send():
    comm = Communicator(WORLD)
    if RANK == 1:
        comm.send(numbers(10), 0)
    elif RANK == 0:
        comm.recv(1)
    assert comm.sent("other")[0].tolist() == [(HEAD + 80) * (RANK == 1)] + [0] * R
    assert comm.sent("other")[1].tolist() == [2 * (RANK == 1)] + [0] * R


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("call", table(0))
def test_rounds_add_messages_not_bytes(call):
    one, rounds = Communicator(WORLD), Communicator(WORLD, chunk_bytes=64)
    table(0)[call][0](one)
    table(0)[call][0](rounds)
    # A message of a reduction or broadcast is at most 64 bytes; rows, shared over the ranks, are at least one.
    assert rounds.sent("other")[0].tolist() == one.sent("other")[0].tolist()
    longest = max((max(sizes) for sizes in table(0)[call][1].values()), default=0)
    if longest > 64:
        assert rounds.sent("other")[1].sum() > one.sent("other")[1].sum()


def test_totals():
    comm = Communicator(WORLD)
    with comm.phase("predict"):
        comm.allgather(numbers(RANK + 1, 3))
    with comm.uncounted():
        comm.allreduce(numbers(100))
    for _ in range(2):  # adding up is not counted itself
        traffic, seconds = comm.totals()
        sent = sum(8 + 24 * (r + 1) for r in range(R)) if R > 1 else 0
        assert traffic["predict"] == {"bytes": sent, "messages": 2 * R if R > 1 else 0}
        assert all(traffic[phase] == {"bytes": 0, "messages": 0} for phase in PHASES if phase != "predict")
    assert set(seconds) >= set(PHASES)


def test_traffic_of_all_ranks():
    comm = Communicator(WORLD)
    with comm.phase("partition"):
        comm.bcast(numbers(10), R - 1)
    with comm.phase("train"):
        comm.allgather(numbers(RANK + 1, 3), np.arange(1, R + 1))
    with comm.phase("own"), comm.uncounted():
        comm.allreduce(numbers(100))
    for _ in range(2):  # collecting is not counted itself
        made = traffic_module.collect(comm, "cascade")
    assert (made is None) == (RANK > 0)
    if made is None:
        return
    assert (made.method, made.phases) == ("cascade", (*PHASES, "other", "own"))
    sent, messages = np.zeros((6, R, R + 1)), np.zeros((6, R, R + 1))
    if R > 1:
        sent[1, R - 1, : R - 1], messages[1, R - 1, : R - 1] = HEAD + 80, 2
        sent[2, :, R], messages[2, :, R] = 24 * np.arange(1, R + 1), 1
    np.testing.assert_array_equal(made.bytes, sent)
    np.testing.assert_array_equal(made.messages, messages)
    assert made.seconds.shape == made.mpi_seconds.shape == (6, R)
    assert (made.seconds[[1, 2, 4, 5]] > 0).all()
    inside = made.mpi_seconds > 0
    assert inside[[1, 2, 5]].all() == inside.any() == (R > 1)
    assert not inside[[0, 3]].any()
    matrix = traffic_module.pattern(made)
    assert matrix.sum() == pytest.approx(sent.sum())
    assert not np.diagonal(matrix).any()
    if R > 2:
        assert matrix[1].tolist() == pytest.approx([48 / (R - 1) * (r != 1) for r in range(R)])


def test_every_call_is_timed():
    comm, calls = Communicator(WORLD), []

    def spent(seconds):
        calls.append(seconds)
        comm._spent(seconds)

    if R > 1:
        comm._transport._spent = spent
    comm.barrier()
    assert (comm.mpi_seconds.get("other", 0.0) > 0) == (R > 1)
    comm.allreduce(numbers(3))
    comm.allgather(numbers(3), np.full(R, 3))
    comm.alltoall(numbers(R), np.ones(R, np.int64))  # lengths, the longest, and the rows
    assert len(calls) == (6 if R > 1 else 0)
    assert all(seconds >= 0 for seconds in calls)
    # One that fails is timed as well.
    if R > 1:
        with pytest.raises(TypeError):
            comm._transport.call("Ibcast")
        assert len(calls) == 7


def test_phases_nest(tuned):
    clock = iter(range(0, 1000, 1))
    tuned(phase_clock=lambda: float(next(clock)))
    comm = Communicator(WORLD)
    with comm.phase("train"):
        comm.allreduce(numbers(1))
        with comm.phase("predict"):
            comm.allreduce(numbers(2))
        with pytest.raises(ZeroDivisionError), comm.phase("partition"):
            raise ZeroDivisionError
        comm.allreduce(numbers(4))
    comm.allreduce(numbers(8))
    sent = {phase: int(comm.sent(phase)[0].sum()) for phase in (*PHASES, "other")}
    size = 8 if R > 1 else 0
    assert sent == {"train": 5 * size, "predict": 2 * size, "other": 8 * size, "read": 0, "partition": 0}
    # The clock is read when a phase changes: train is entered three times, the others once.
    assert comm.seconds == {"other": 1.0, "train": 3.0, "predict": 1.0, "partition": 1.0, "read": 0.0}


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [{r} for r in range(R)] + [set(range(R)), {R - 1, R // 2}], ids=str)
def test_agreed(failing):
    comm = Communicator(WORLD)
    with pytest.raises(InputError) as caught, comm.guard(), comm.agreed():  # noqa: PT012
        if RANK in failing:
            raise InputError(f"row {RANK} is bad:\n σ = −1")
    assert str(caught.value) == f"row {min(failing)} is bad: σ = −1"
    assert caught.value.agreed
    assert comm.allreduce(np.ones(1)) == R  # all ranks are still in step


def test_an_agreed_error_is_gone_once_it_is_handled():
    """Also on ranks that raise another rank's error: what its frames hold, as rows in a file, must not wait for gc."""
    comm, gone = Communicator(WORLD), []

    def fail():
        held = set()
        gone.append(weakref.ref(held))
        raise InputError(f"rank {RANK}")

    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(InputError), comm.agreed():
            fail()
        assert gone[0]() is None
    finally:
        gc.enable()


def test_agreed_without_error():
    comm = Communicator(WORLD)
    with comm.agreed():
        value = RANK
    assert comm.allreduce(np.array([value])) == R * (R - 1) // 2
