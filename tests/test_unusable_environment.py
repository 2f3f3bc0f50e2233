"""Communicators that cannot be used, and numba without its compiler: one clear error, never the end of the process."""

from __future__ import annotations

import re

import pytest

SETUP = """
import numpy as np
from mpi4py import MPI
from asygcd import AsyGCDSVC
from cakriging import Kriging
from cakrr import BKRR2
from casvm import CASVC, DisSMOSVR
from partition import KMeans

X = np.random.default_rng(1).normal(size=(60, 2))
y, c = X[:, 0] + X[:, 1] ** 2, np.where(X[:, 0] > 0, "in", "out")
ESTIMATORS = {"ridge": BKRR2(n_parts=2), "kriging": Kriging(), "classes": CASVC(n_parts=2), "values": DisSMOSVR()}

def all_refuse(comm, words):
    for name, one in ESTIMATORS.items():
        try:
            one.set_params(comm=comm).fit(X, c if name == "classes" else y)
        except ValueError as error:
            assert words in str(error), (name, error)
            assert str(error).startswith("comm"), (name, error)
        else:
            raise AssertionError(name)
"""
FREED = """
one = MPI.COMM_WORLD.Dup()
model = BKRR2(n_parts=2, comm=one).fit(X, y)
alias = MPI.Intracomm(one)
one.Free()
for freed in (MPI.COMM_NULL, one, alias):
    all_refuse(freed, "it was freed")
all_refuse(MPI.COMM_WORLD.Get_group(), "give an mpi4py communicator")
try:
    model.predict(X)
except ValueError as error:
    print("refused", error)
"""
FINALIZED = """
fitted = [BKRR2(n_parts=2, comm=MPI.COMM_WORLD).fit(X, y), CASVC(n_parts=2, comm=MPI.COMM_WORLD).fit(X, c)]
MPI.Finalize()
all_refuse(MPI.COMM_WORLD, "MPI is finalized")
for model in fitted:
    try:
        model.predict(X)
    except ValueError as error:
        assert "MPI is finalized" in str(error)
    else:
        raise AssertionError
    model.set_params(comm=None).fit(X, c if model is fitted[1] else y).predict(X)
print("refused")
"""
BETWEEN = """
rank = MPI.COMM_WORLD.rank
between = MPI.COMM_WORLD.Split(rank % 2).Create_intercomm(0, MPI.COMM_WORLD, 1 - rank % 2)
all_refuse(between, "Merge")
BKRR2(n_parts=2, comm=between.Merge()).fit(X, y)
part = MPI.COMM_WORLD.Create(MPI.COMM_WORLD.Get_group().Incl([0]))
if rank:
    all_refuse(part, "this rank has no part in it")
else:
    BKRR2(n_parts=2, comm=part).fit(X, y)
print("refused")
"""


@pytest.mark.parametrize("what", [FREED, FINALIZED], ids=["freed", "finalized"])
def test_communicators_that_are_gone(what, python):
    ended = python("-c", SETUP + what)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("refused")


def test_communicators_between_or_without_a_rank(mpiexec):
    ended = mpiexec(2, "-c", SETUP + BETWEEN)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == ["refused", "refused"]


COMMANDS = [
    ["cakrr.dkrr", "rows.csv"], ["cakernels", "fit", "rows.csv"], ["cakernels", "convert", "rows.csv", "rows.h5"],
    ["cacore.info"], ["cakernels", "plan", "bkrr2", "--rows", "1000", "--features", "3"],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_without_compilation(words, python, tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,y\n1,2,3\n2,3,4\n")
    ended = python("-m", *words, cwd=tmp_path, NUMBA_DISABLE_JIT="1")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "NUMBA_DISABLE_JIT" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


IMPORTS = ["casvm import SMOSVC", "partition import KMeans", "asygcd import AsyGCDSVC", "cakernels import BKRR2"]


def test_estimators_without_compilation(python):
    code = """
for line in LINES:
    try:
        exec("from " + line)
    except ValueError as error:
        assert "NUMBA_DISABLE_JIT" in str(error)
    else:
        raise AssertionError(line)
""".replace("LINES", repr(IMPORTS))
    ended = python("-c", code, NUMBA_DISABLE_JIT="1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert python("-m", "cakernels", "--help", NUMBA_DISABLE_JIT="1").returncode == 0


WAITING = """
import time
import numpy as np
from mpi4py import MPI
from cakrr import DCKRR

X = np.random.default_rng(0).normal(size=(40, 2))
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    time.sleep(3.0)
DCKRR(n_parts=2, sigma=1.0, lam=1e-3, random_state=0, comm=MPI.COMM_WORLD).fit(X, X[:, 0])
"""


def test_waiting_rank_reports_its_wait(mpiexec, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WAITING)
    done = mpiexec(2, script, CAKERNELS_WAIT="0.2")
    assert done.returncode == 0
    line = r"rank 0 of 2: waiting for the other ranks to make this call since \d\d:\d\d:\d\d, \d+ s: ranks without such"
    assert re.search(line, done.stderr)
    refused = mpiexec(2, script, CAKERNELS_WAIT="soon")
    assert "CAKERNELS_WAIT: give a number of seconds above 0" in refused.stderr
