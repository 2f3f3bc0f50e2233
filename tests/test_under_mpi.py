"""Everything under ``mpiexec``: the tests of tests/mpi on 1 to 4 ranks, and what a job does when one rank fails."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from fuzz.kills import Case, Runner
from helpers.checks import names
from helpers.commands import one_by_one, read
from helpers.data import write_hdf5
from helpers.mpi_libraries import OTHERS

ROOT = Path(__file__).resolve().parent.parent

# Not captured (-s): what a rank says before it aborts the job must not be lost.
VARIANTS = () if "CAKERNELS_ALL_VARIANTS" in os.environ else ("--spread-variants",)
PYTEST = ("-m", "pytest", "--with-mpi", "-s", "--tb=short", *VARIANTS)


def all_pass(ranks, done, tmp_path):
    """A job of pytest ended well, and at least so many tests passed, the same ones on every rank."""
    failures = [file.read_text() for file in sorted(tmp_path.glob("failed*.txt"))]
    shown = "\n".join([*failures, done.stdout, done.stderr])
    assert done.returncode == 0, shown
    printed = [done.stdout, *(file.read_text() for file in sorted(tmp_path.glob("rank*.txt")))]
    outcomes = [dict(reversed(pair) for pair in re.findall(r"(\d+) (passed|skipped)", text)) for text in printed]
    assert int(outcomes[0]["passed"]) > 50, shown  # tests really ran,
    assert outcomes == [outcomes[0]] * ranks, shown  # and the same ones on every rank


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_distributed(ranks, mpiexec, tmp_path):
    """Each test on 1, 2, 3 and 4 ranks; each of its variants on one of these, or, in `make test-ranks`, on all."""
    all_pass(
        ranks, mpiexec(ranks, *PYTEST, "tests/mpi", cwd=ROOT, timeout=3600, CAKERNELS_MPI_TESTS=str(tmp_path)), tmp_path
    )


@OTHERS
def test_distributed_by_another_library(library, tmp_path):
    """The parts that depend most on the MPI library: calls, and failures.

    The variants of 2 ranks, which wait in loops; in `make test-mpi` all of them on 3.
    """
    ranks = 2 if VARIANTS else 3
    options = [*PYTEST, *(f"tests/mpi/test_{name}.py" for name in ("comm", "failures", "manners"))]
    variables = {"CAKERNELS_MPI_TESTS": str(tmp_path)}
    all_pass(ranks, library.start(ranks, *options, cwd=ROOT, timeout=600, variables=variables), tmp_path)


# Rank 2 fails in the middle of training, while the others go on to the next collective call.
BROKEN = """
import runpy, sys
from pathlib import Path
import numpy as np
from mpi4py import MPI
from cakrr import BKRR2
from cakrr.solver.local import PartSystem

if MPI.COMM_WORLD.rank == 2:
    def broken(*_, **__):
        Path("failed").touch()
        raise RuntimeError("row 17 is lost")
    PartSystem.solve = broken

if sys.argv[1] == "command":
    sys.argv[1:] = ["train.h5", "--sigma", "1", "--lambda", "1e-3", "--model", "model.h5", "--report", "r.json"]
    runpy.run_module("cakrr.bkrr2", run_name="__main__")
else:
    X = np.random.default_rng(MPI.COMM_WORLD.rank).normal(size=(50, 3))
    BKRR2(sigma=1.0, comm=MPI.COMM_WORLD).fit(X, X[:, 0])
"""


@pytest.fixture
def train(tmp_path):
    """A native file of 90 rows; X can be changed before it is read."""
    X = np.random.default_rng(0).normal(size=(90, 3))
    return write_hdf5(tmp_path / "train.h5", train=(X, X.sum(axis=1)))


TRAINED = {"cakrr.twolevel": ["--sigma", "1", "--lambda", "0.01", "--centers", "20"],
           "cakrr.dkrr": ["--sigma", "1", "--lambda", "0.01"], "casvm.cpsvm": []}  # fmt: skip


@OTHERS
def test_training_by_another_library(library, mpiexec, tmp_path):
    """The same models from the same ranks, and the same bytes sent; sums may be rounded in another order."""
    X = np.random.default_rng(0).normal(size=(90, 3))
    for package, y in (("cakrr", X.sum(axis=1)), ("casvm", np.sign(X[:, 0]))):
        write_hdf5(tmp_path / f"{package}.h5", train=(X[:60], y[:60]), test=(X[60:], y[60:]))

    def commands(name):
        for program, words in TRAINED.items():
            more = ["--threads", "1", "--quiet", "--report", f"{program}-{name}.json"]
            yield [program, f"{program.partition('.')[0]}.h5", *words, *more]

    for done in (
        mpiexec(2, *one_by_one(commands("mpich")), cwd=tmp_path),
        library.start(2, *one_by_one(commands("other")), cwd=tmp_path, timeout=600),
    ):
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for program in TRAINED:
        mpich, other = (read(tmp_path / f"{program}-{name}.json") for name in ("mpich", "other"))
        assert other["environment"]["mpi"].startswith(library.title)
        assert other["ranks"] == mpich["ranks"] == 2
        for name in ("confusion", "classes"):
            assert other["metrics"].pop(name, None) == mpich["metrics"].pop(name, None)
        assert other["metrics"] == pytest.approx(mpich["metrics"], rel=1e-9)
        for phase in ("partition", "train", "predict"):
            assert [other["comm"][phase][what] for what in ("bytes", "messages")] == [
                mpich["comm"][phase][what] for what in ("bytes", "messages")
            ]


# Commands, one after the other, each with words of its own for the last rank; every rank has a folder of its own.
UNLIKE = """
import json, os, runpy, sys
from mpi4py import MPI
rank, size, ends = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, []
os.chdir(str(rank))
for common, own in json.loads(sys.argv[1]):
    program, *sys.argv[1:] = own if rank == size - 1 else common
    try:
        runpy.run_module(program, run_name="__main__")
    except SystemExit as end:
        ends.append(end.code)
ends = MPI.COMM_WORLD.gather(ends)
if rank == 0:
    print(json.dumps(ends))
"""
DISSMO = ["casvm.dissmo", "train.h5", "--quiet"]
CONVERT = ["cacore.io", "convert", "train.h5", "new.h5"]
DIFFERENT = [
    ([*DISSMO, "--gamma", "0.5"], [*DISSMO, "--gamma", "1"], "--gamma", "0.5", "1"),
    ([*DISSMO, "--memory-limit", "1"], DISSMO, "--memory-limit", "1", "None"),
    (DISSMO, [*DISSMO, "--model", "model.h5"], "--model", "None", "'model.h5'"),
    (DISSMO, DISSMO[:-1], "--quiet", "True", "False"),
    (DISSMO, [*DISSMO, "--help"], "--help", "False", "True"),
    (DISSMO, ["casvm.casvm", *DISSMO[1:]], "command", "python -m casvm.dissmo", "python -m casvm.casvm"),
    (["cakrr.bkrr2", "train.h5"], ["cakrr.predict", "model.h5", "train.h5"], "command", "python -m cakrr.bkrr2",
     "python -m cakrr.predict"),
    (["casvm.svr", "train.h5", "--C", "1"], ["casvm.svr", "train.h5", "--C", "1,2"], "--C", "1", "[1, 2]"),
    (["cakrr.bkrr2", "train.h5"], ["cakrr.bkrr2", "lacks.h5"], "DATA", "'train.h5'", "'lacks.h5'"),
    (["cakrr.bkrr2", "lacks.h5"], ["cakrr.bkrr2", "lacks.h5"], "DATA lacks.h5", "SIZE",
     "lacks.h5: No such file or directory"),
    (["cakrr.bkrr2", "other.h5"], ["cakrr.bkrr2", "other.h5"], "DATA other.h5", "SIZE", "SIZE"),
    (["cakrr.dkrr", "train.h5", "--test", "other.h5"], ["cakrr.dkrr", "train.h5", "--test", "other.h5"],
     "--test other.h5", "SIZE", "SIZE"),
    (["casvm.predict", "other.h5", "train.h5"], ["casvm.predict", "other.h5", "train.h5"], "MODEL other.h5", "SIZE",
     "SIZE"),
    (CONVERT, [*CONVERT, "--memory-limit", "1"], "memory-limit", "None", "1"),
    (["cacore.info", "--threads", "1"], ["cacore.info"], "--threads", "1", "None"),
]  # fmt: skip


def test_commands_that_differ_between_ranks(mpiexec, tmp_path):
    """One line, printed once, and status 2 on every rank; nothing hangs, and nothing is written."""
    X = np.random.default_rng(0).normal(size=(90, 3))
    for rank in range(3):
        folder = tmp_path / str(rank)
        folder.mkdir()
        write_hdf5(folder / "train.h5", train=(X, X.sum(axis=1)))
        write_hdf5(folder / "other.h5", train=(X + (rank == 2), X.sum(axis=1)))
        if rank < 2:
            write_hdf5(folder / "lacks.h5", train=(X, X.sum(axis=1)))
    (tmp_path / "unlike.py").write_text(UNLIKE)
    done = mpiexec(3, "-W", "ignore", "unlike.py", json.dumps([case[:2] for case in DIFFERENT]), cwd=tmp_path)
    lines = [re.sub(r"[\d,]+ bytes \[\w+\]", "SIZE", line) for line in done.stderr.splitlines()]
    assert lines == [
        f"{common[0]}: {name}: not the same on all ranks ({first} on ranks 0-1, {last} on rank 2); "
        "give every rank the same"
        for common, _, name, first, last in DIFFERENT
    ]
    assert done.returncode == 0
    assert json.loads(done.stdout) == [[2] * len(DIFFERENT)] * 3
    assert names(tmp_path / "0") == ["lacks.h5", "other.h5", "train.h5"]


def test_two_commands_in_one_job(mpiexec, train):
    other = [":", "-n", "1", sys.executable, "-m", "casvm.dissmo", train.name]
    done = mpiexec(1, "-m", "casvm.casvm", train.name, *other, cwd=train.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "casvm.casvm: command: not the same on all ranks (python -m casvm.casvm on rank 0, python -m casvm.dissmo on "
        "rank 1); give every rank the same\n"
    )


@pytest.mark.parametrize("way", ["command", "estimator"])
def test_failing_rank_ends_job(way, mpiexec, train, tmp_path):
    """No rank waits for the one that is gone: the job ends by itself."""
    (tmp_path / "broken.py").write_text(BROKEN)
    done = mpiexec(3, "broken.py", way, cwd=tmp_path)
    assert done.returncode not in (0, 124), done.stderr
    assert "rank 2: RuntimeError: row 17 is lost" in done.stderr
    assert names(tmp_path) == ["broken.py", "failed", "train.h5"]


# Commands, one after the other, on all ranks; the disk is full once a word says so.
IN_TURN = """
import errno, json, os, runpy, sys
from mpi4py import MPI

def full(handle):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

ends = []
for program, *words in json.loads(sys.argv[1]):
    if program == "full":
        os.fsync = full
        continue
    sys.argv[1:] = words
    try:
        runpy.run_module(program, run_name="__main__")
    except SystemExit as end:
        ends.append(end.code)
ends = MPI.COMM_WORLD.gather(ends)
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps(ends))
"""


def test_errors_of_commands_on_ranks(mpiexec, train, tmp_path):
    """One line, printed once: an error of one rank's rows, those that all ranks find by themselves, and a full disk."""
    with h5py.File(train) as file:
        X, y = file["train/X"][:], file["train/y"][:]
    write_hdf5(tmp_path / "small.h5", train=(1e-147 * X, np.sign(y)))
    X[89, 1] = np.nan
    write_hdf5(tmp_path / "nan.h5", train=(X, y))
    (tmp_path / "in_turn.py").write_text(IN_TURN)
    before = names(tmp_path)
    commands = [
        ["cakrr.bkrr2", "nan.h5"],
        ["casvm.dissmo", "small.h5", "--C", "1", "--gamma", "scale"],
        ["casvm.svr", "train.h5", "--exact", "--nu", "0.5", "--gamma", "0.5"],
        ["full"],
        ["cakrr.bkrr2", "train.h5", "--sigma", "1", "--model", "m.h5", "--quiet"],
    ]
    done = mpiexec(3, "-W", "ignore", "in_turn.py", json.dumps(commands), cwd=tmp_path)
    lines = done.stderr.splitlines()
    assert lines[0] == (
        "cakrr.bkrr2: nan.h5 (train): row 89, feature 1 is nan or netCDF's fill value: "
        "remove the row or fill the gap, for example with scikit-learn's SimpleImputer"
    )
    assert lines[1].startswith("casvm.dissmo: the training rows: no feature varies by more than")
    assert lines[2].startswith("casvm.svr: nu: the exact nu-SVR cannot be solved on several ranks")
    assert lines[3:] == ["cakrr.bkrr2: m.h5: cannot be written (No space left on device)"]
    assert done.returncode == 0
    assert json.loads(done.stdout) == [[2, 2, 2, 1]] * 3
    assert names(tmp_path) == before


# A user interrupts rank 1 before or after it has met the others; they wait for it.
INTERRUPTED = """
import os, sys
from unittest import mock
from cacore.run import launch

meet = launch.ranks

def interrupted(words):
    if sys.argv[1] == "after":
        meet(words)
    raise KeyboardInterrupt

with mock.patch.object(launch, "ranks", interrupted if os.environ["PMI_RANK"] == "1" else meet):
    launch.run(lambda comm: comm.barrier(), "program")
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_interrupt_during_start_ends_the_job(moment, mpiexec, tmp_path):
    (tmp_path / "start.py").write_text(INTERRUPTED)
    done = mpiexec(3, "start.py", moment, cwd=tmp_path)
    assert done.returncode not in (0, 124), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("program", "ranks", "signal", "victim", "moment"),
    [("casvm.dissmo", 2, "KILL", 1, 0.6), ("cakrr.bkrr2", 2, "TERM", -1, 0.8), ("cakrr.dkrr", 2, "KILL", 0, 0.8),
     ("casvm.cascade", 2, "STOP", 0, 0.6)],
)  # fmt: skip
def test_killed(program, ranks, signal, victim, moment, tmp_path):
    """It ends, leaves nothing, and the same command goes on to the same bits; fuzz/kills.py has more cases."""
    told = Runner(tmp_path, patience=600).run(Case(program, ranks, signal, victim, moment))
    assert told in ("resumed", "finished")


# A program with a communicator of its own, which catches what all ranks raise, and goes on.
HOST = """
from unittest import mock
import numpy as np
from mpi4py import MPI
from cacore.errors import RankError
from cakrr import BKRR2
from cakrr.solver.local import PartSystem

host, caught = MPI.COMM_WORLD.Dup(), None
X = np.random.default_rng(host.rank).normal(size=(50, 3))
estimator = BKRR2(n_parts=4, sigma=1.0, random_state=0, comm=host)
fails = mock.patch.object(PartSystem, "solve", side_effect=RuntimeError("the dog ate row 17"))
if host.rank == 2:
    fails.start()
try:
    estimator.fit(X, X[:, 0])
except RankError as error:
    caught = str(error)
if host.rank == 2:
    fails.stop()
assert host.allgather(caught) == ["rank 2: RuntimeError: the dog ate row 17"] * host.size
rows = host.allreduce(len(estimator.fit(X, X[:, 0]).predict(X)))
host.Free()
if MPI.COMM_WORLD.rank == 0:
    print(rows, "rows")
"""


def test_host_program_survives_a_failed_fit(mpiexec, tmp_path):
    (tmp_path / "host.py").write_text(HOST)
    done = mpiexec(3, "host.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "150 rows\n", "")


@OTHERS
def test_host_program_survives_under_another_library(library, tmp_path):
    (tmp_path / "host.py").write_text(HOST)
    done = library.start(3, "host.py", cwd=tmp_path, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "150 rows\n", "")
