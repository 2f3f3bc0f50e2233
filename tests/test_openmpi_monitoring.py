"""The communicator's counters against Open MPI's own, which it keeps where messages leave the process.

Open MPI's monitoring tells two things, for every sender and receiver (see openmpi_monitoring.py): what a collective
was *asked* to move, and what was really *sent*. Our convention is between the two.

=====================  ========================  ==================================  ==============================
MPI call               we count, on each rank    Open MPI was asked                  and sends, with `PINNED`
=====================  ========================  ==================================  ==============================
Isend                  n to the receiver         (no collective)                     n, the same
Ibcast                 the root n to each other  the same                            the same: linear. The default
                                                                                     is a tree: as much in all, but
                                                                                     others pass it on
Ialltoall, Ialltoallv  what goes to each other   the same                            the same: linear. No message
                                                                                     for nothing
Iallreduce             n once, to nobody         n to each of the R - 1 others: all  n log2 R: recursive doubling.
                       in particular             need it                             For R = 3, 4 n on all ranks
Iallgather,            n_r once, likewise        n_r to each of the R - 1 others     the same: linear, R - 1 times
Iallgatherv                                                                          ours
Ibarrier               nothing                   0 bytes                             0 bytes
=====================  ========================  ==================================  ==============================

So what was asked is known from our counters without any knowledge of algorithms, and must be equal for every
sender, receiver and phase of a whole run: that is the test that nothing is forgotten.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.mpi_libraries import OPEN_MPI, parameters

HERE = Path(__file__).resolve().parent
pytestmark = OPEN_MPI.needed

HEAD, LENGTH = 64, 8  # what Communicator sends before an array, and before rows
PHASES = ("read", "partition", "train", "predict", "wait", "write")

# Algorithms whose messages are known. The shared-memory components would send past the monitoring.
PINNED = {
    "coll": "^han,sm,adapt", "coll_libnbc_ibcast_algorithm": 1, "coll_libnbc_iallreduce_algorithm": 4,
    "coll_libnbc_iallgather_algorithm": 1,
}  # fmt: skip


@pytest.fixture
def openmpi(tmp_path):
    """Start openmpi_monitoring.py under Open MPI; what it found, as arrays."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 5))
    y = np.sign(X.sum(axis=1) + rng.normal(size=600))
    with h5py.File(tmp_path / "data.h5", "w") as file:
        for split, rows in (("train", slice(0, 500)), ("test", slice(500, 600))):
            file[f"{split}/X"], file[f"{split}/y"] = X[rows], y[rows]

    def found(count, *names, **more):
        words = [HERE / "openmpi_monitoring.py", "out.json", "data.h5", "model.h5", *names]
        done = OPEN_MPI.start(count, *words, cwd=tmp_path, timeout=600, options=parameters(**PINNED, **more))
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads((tmp_path / "out.json").read_text())
        return {
            run: {phase: {who: np.array(table) for who, table in tables.items()} for phase, tables in phases.items()}
            for run, phases in told.items()
        }

    return found


# -- what each MPI call should give: ours, asked and sent; each bytes and messages, by sender and receiver ----------


def tables(R):
    return np.zeros((2, R, R + 1), int), np.zeros((2, R, R), int), np.zeros((2, R, R), int)


def others(R):
    return 1 - np.eye(R, dtype=int)


def to_each(table):
    """Ialltoallv, linear."""
    R = len(table)
    ours, asked, sent = tables(R)
    table = table * others(R)
    ours[:, :, :R] = asked[:] = sent[:] = table, table > 0
    asked[1] = others(R)  # for nothing as well
    return ours, asked, sent


def from_root(nbytes, root, R):
    """Ibcast, linear."""
    only = np.zeros((R, R), int)
    only[root] = nbytes
    ours, _, sent = to_each(only)
    return ours, sent, sent


def summed(nbytes, R):
    """Iallreduce by recursive doubling; ranks beyond a power of two first hand theirs to a neighbour."""
    ours, asked, sent = tables(R)
    ours[:, :, R] = [[nbytes], [1]]
    asked[:] = nbytes * others(R), others(R)
    doubling = 1 << (R.bit_length() - 1)
    extra = R - doubling
    place = [2 * k + 1 if k < extra else k + extra for k in range(doubling)]
    steps = [(2 * k + i, 2 * k + 1 - i) for k in range(extra) for i in range(2)]
    steps += [(place[k], place[k ^ (1 << bit)]) for bit in range(int(math.log2(doubling))) for k in range(doubling)]
    for sender, receiver in steps:
        sent[:, sender, receiver] += nbytes, 1
    return ours, asked, sent


def everywhere(sizes):
    """Iallgatherv, linear: each rank sends its own to each other."""
    R = len(sizes)
    ours, asked, _ = tables(R)
    ours[0, :, R], ours[1, :, R] = sizes, 1
    asked[:] = np.array(sizes)[:, None] * others(R), others(R)
    return ours, asked, asked


def call_tables(name, R):
    """Expected calls and bytes of one communicator call (the calls are those of openmpi_monitoring.py)."""
    root, counts = R - 1, np.arange(R)
    lengths, longest = to_each(np.full((R, R), LENGTH)), summed(LENGTH, R)
    rows = 24 * (counts + 1)
    to_root, from_0 = np.zeros((R, R), int), np.zeros((R, R), int)
    to_root[:, root] = rows
    from_0[root] = 24 * counts
    return {
        "bcast": [from_root(HEAD, root, R), from_root(80, root, R)],
        "allreduce": [summed(80, R)],
        "allgather": [everywhere([LENGTH] * R), everywhere(rows)],
        "allgather, counts known": [everywhere(rows)],
        "alltoall": [lengths, longest, to_each(np.tile(24 * counts, (R, 1)))],
        "gather": [lengths, longest, to_each(to_root)],
        "scatter": [from_root(HEAD, root, R), lengths, longest, to_each(from_0)],
        "nothing": [tables(R)],
    }[name]


@pytest.mark.parametrize("R", [3, 4])
def test_every_call_and_silent_training(openmpi, R):
    """Bytes and messages of every call, exactly, and a training phase in which nothing at all leaves any rank."""
    found = openmpi(R, "calls", "casvm", pml_monitoring_enable=1)
    for name, got in found["calls"].items():
        if name in ("other", "send", "barrier"):
            continue
        for who, *parts in zip(("ours", "asked", "sent"), *call_tables(name, R), strict=True):
            np.testing.assert_array_equal(got[who], sum(parts), err_msg=f"{name}, {who}")

    send = found["calls"]["send"]
    expected = np.zeros((2, R, R), int)
    expected[:, 1, 0] = HEAD + 80, 2
    np.testing.assert_array_equal(send["sent"], expected)
    np.testing.assert_array_equal(send["ours"][:, :, :R], expected)
    assert not send["asked"].any()
    assert not send["ours"][:, :, R].any()

    barrier = found["calls"]["barrier"]
    assert not barrier["ours"].any()
    assert not barrier["sent"][0].any()
    assert barrier["sent"][1].any()  # so that a message of 0 bytes would be seen below

    silent = found["casvm"]
    assert all(phase in silent for phase in PHASES)
    assert "train, not counted" not in silent
    for who in ("ours", "asked", "sent"):
        assert not silent["train"][who].any(), who
    assert not any(silent["partition"][who].any() for who in ("ours", "asked", "sent"))
    assert silent["predict"]["sent"].any()


@pytest.mark.parametrize("R", [2, 3])
def test_every_byte_of_whole_runs(openmpi, R):
    """In every phase, from every rank to every other: what Open MPI was asked to move, and sent, is what we counted.

    What has no single receiver was asked for by each of the others. Of messages Open MPI counts empty ones too.
    """
    names = ["casvm", "casvm, rank 0 reads", "fcfssvm", "dissmo", "cascade", "dcfilter", "twolevel"]
    found = openmpi(R, *names, pml_monitoring_enable=2)
    for name, phases in found.items():
        for phase in set(PHASES) & set(phases):
            got = phases[phase]
            expected = got["ours"][:, :, :R] + got["ours"][:, :, R:] * others(R)
            moved = got["asked"] + got["sent"]
            np.testing.assert_array_equal(moved[0], expected[0], err_msg=f"{name}, {phase}")
            assert (moved[1] >= expected[1]).all(), (name, phase)
    assert not any(found[name]["train"]["ours"].any() for name in names[:3])
    assert all(found[name]["train"]["ours"].any() for name in names[3:])
    assert all(found[name]["train"]["sent"].any() for name in ("cascade", "dcfilter"))  # up the tree, by Isend
