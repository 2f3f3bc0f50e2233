"""The communicator that stands in when there is no MPI."""

import contextlib
import copy

import numpy as np
import pytest

from cacore.comm import PHASES, Communicator, as_communicator, communicator, world
from cacore.errors import InputError
from cacore.io.model_file import load


class OneRank:
    """A stand-in for mpi4py's COMM_SELF; any call that it lacks raises an AttributeError."""

    def Get_size(self):  # noqa: N802
        return 1

    def Get_rank(self):  # noqa: N802
        return 0


@pytest.fixture(params=[None, OneRank()], ids=["none", "one rank"])
def comm(request):
    return Communicator(request.param)


X = np.arange(12.0).reshape(6, 2)
ONE = np.array([6], np.int64)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("bcast", ()),
        ("allreduce", ()),
        ("allreduce", ("min",)),
        ("allreduce", ("max",)),
        ("allgather", ()),
        ("gather", ()),
        ("scatter", (ONE,)),
    ],
)
def test_collectives_give_back_the_rows(comm, name, args):
    before = X.copy()
    np.testing.assert_array_equal(getattr(comm, name)(X, *args), before)
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_types_survive(comm, dtype):
    assert comm.allreduce(X.astype(dtype)).dtype == dtype
    assert comm.allgather(X.astype(dtype)).dtype == dtype


def test_allreduce_is_a_copy(comm):
    total = comm.allreduce(X)
    total += 1
    assert X[0, 0] == 0


def test_rows_to_oneself(comm):
    for call, args in ((comm.allgather_parts, ()), (comm.alltoall, (ONE,))):
        rows, counts = call(X, *args)
        np.testing.assert_array_equal(rows, X)
        np.testing.assert_array_equal(counts, ONE)


def test_place_in_the_job(comm):
    assert (comm.rank, comm.size, comm.node().size) == (0, 1, 1)
    assert comm.offset(7) == (0, 7)
    assert comm.barrier() is None


def test_nothing_is_sent(comm):
    with comm.phase("train"):
        comm.allreduce(X)
        comm.bcast(X)
        comm.alltoall(X, ONE)
    traffic, _ = comm.totals()
    assert traffic == {p: {"bytes": 0, "messages": 0} for p in PHASES}
    sent, messages = comm.sent("train")
    assert (sent.tolist(), messages.tolist()) == ([0, 0], [0, 0])


def test_seconds_go_to_the_innermost_phase(tuned):
    clock = [100.0]
    tuned(phase_clock=lambda: clock[0])
    comm = Communicator()
    clock[0] += 1
    with comm.phase("train"):
        clock[0] += 2
        with comm.phase("predict"):
            clock[0] += 4
        clock[0] += 8
        with contextlib.suppress(KeyError), comm.phase("extra"):
            clock[0] += 16
            raise KeyError
    clock[0] += 32
    _, seconds = comm.totals()
    assert seconds == {"read": 0.0, "partition": 0.0, "train": 10.0, "predict": 4.0, "extra": 16.0, "other": 33.0}


def test_counters_inside_a_phase(comm):
    """Counting itself, of a job of three ranks as seen from rank 0: own messages are free."""
    comm.size = 3
    with comm.phase("train"):
        for dest in (0, 1, 1, 2, None):
            comm._count(10, dest)
        with comm.uncounted():
            comm._count(99, 1)
    sent, messages = comm.sent("train")
    assert (sent.tolist(), messages.tolist()) == ([0, 20, 10, 10], [0, 2, 1, 1])
    assert comm.sent("predict")[0].sum() == 0


def test_agreed_raises_the_same_error(comm):
    with pytest.raises(InputError, match="row 3") as caught, comm.agreed():
        raise InputError("row 3")
    assert caught.value.agreed


def test_agreed_on_nothing_wrong(comm):
    with comm.agreed():
        done = True
    assert done


def test_agreed_lets_other_errors_through(comm):
    with pytest.raises(ZeroDivisionError), comm.agreed():
        raise ZeroDivisionError


@pytest.mark.parametrize("error", [InputError("bad"), ZeroDivisionError(), SystemExit(3)])
def test_guard_reraises_the_error(comm, error):
    with pytest.raises(type(error)) as caught, comm.guard():
        raise error
    assert caught.value is error


def test_input_error_is_one_line():
    error = InputError("  a file:\n line 3,\tbad \n")
    assert str(error) == "a file: line 3, bad"
    assert isinstance(error, ValueError)
    assert not error.agreed


def test_copies_are_the_same_communicator(comm):
    assert copy.deepcopy({"comm": comm})["comm"] is comm
    assert as_communicator(comm) is comm
    assert as_communicator(None).size == 1


def test_collective_reading_without_mpi(comm, tmp_path):
    with pytest.raises(InputError, match="no such model file"):
        load(tmp_path / "none.h5", {"krr": dict}, comm)


def test_mpi4py_is_not_imported(python):
    modules = "cacore.io, cacore.io.model_file, cacore.run.report"
    done = python("-c", f"import sys, {modules}; print('mpi4py' in sys.modules)")
    assert (done.returncode, done.stdout) == (0, "False\n")


def test_waiting_leaves_the_core_to_others(tuned):
    """A loop for a millisecond, then pauses that grow to a limit."""
    clock, pauses, spent = [0.0], [], []

    def pause(seconds):
        pauses.append(seconds)
        clock[0] += seconds

    def now():
        clock[0] += 1e-5
        return clock[0]

    class Slow:
        """A communicator of which a barrier takes half a second."""

        def Ibarrier(self):  # noqa: N802
            return self

        def Test(self):  # noqa: N802
            return clock[0] > 0.5

        def Get_rank(self):  # noqa: N802
            return 0

        def Get_size(self):  # noqa: N802
            return 2

        def Iprobe(self, source, tag):  # noqa: N802
            return False

    tuned(wait_clock=now, transport_clock=now, pause=pause)
    communicator.Transport(Slow(), spent.append).call("Ibarrier")
    assert len(spent) == 1
    assert spent[0] == pytest.approx(0.5, abs=0.01)
    assert pauses == sorted(pauses)
    assert pauses[0] < 2e-4
    assert pauses[-1] == 5e-3
    assert 1e-3 < spent[0] - sum(pauses) < 0.02  # what it was busy for


def test_started_by_another_mpi(monkeypatch):
    pytest.importorskip("mpi4py.MPI")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(InputError, match="started as 4 ranks, but by another MPI"):
        world()


def test_compilation_is_charged_to_its_own_phase():
    comm, compiled = Communicator(), [5.0]
    comm.charge_compilation(lambda: compiled[0])
    with comm.phase("train"):
        compiled[0] += 30
    with comm.phase("compile"):
        compiled[0] += 10
    seconds = comm.clock()
    assert seconds["train"] == pytest.approx(-30, abs=1)  # the clock above runs ahead of the real one
    assert seconds["compile"] == pytest.approx(30, abs=1)
    assert seconds["predict"] == 0
