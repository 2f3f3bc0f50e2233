"""Compilation: once for both precisions, and not again after ``cakernels warmup``."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.data import write_csv
from numba.core import event

from asygcd import AsyGCDSVC
from asygcd.solver.owned import finish, work
from cacore.comm import Communicator
from cacore.io.loading import load
from cacore.run.family import Run
from cacore.run.launch import Training
from cakernels.warm import halves
from casvm import oneclass, svm_family, svr
from casvm.options import ValueOptions

pytestmark = pytest.mark.filterwarnings("ignore:the solver stopped after")  # on purpose, long before convergence


class Compilations(event.Listener):
    """Names of the functions that numba compiles, rather than loads from its cache."""

    def __init__(self):
        self.names = []

    def on_start(self, happened):
        self.names.append(happened.data["dispatcher"].py_func.__name__)

    def on_end(self, happened):
        pass


@pytest.fixture
def compilations():
    listener = Compilations()
    with event.install_listener("numba:compile", listener):
        yield listener.names


def labelled(n, d):
    X = np.random.default_rng(1).normal(size=(n, d))
    return X, np.where(X[:, 0] * X[:, 1] > 0, 1, -1)


def test_nothing_is_compiled_after_the_warm_up(tmp_path, compilations):
    for name, step in itertools.chain(*halves()):
        if name in ("files", "dense asygcd", "sparse asygcd"):
            step()
    compilations.clear()
    rows, y = labelled(2600, 4)
    write_csv(tmp_path / "rows.csv", rows, y)
    read = load(tmp_path / "rows.csv", Communicator())["train"]
    assert read.n == 2600
    for X in (rows, sp.csr_matrix(np.where(np.abs(rows) < 0.5, 0, rows))):
        for n in (2600, 90):  # kernel values in single and in double precision
            model = AsyGCDSVC(gamma=0.7, C=3.0, max_iter=300).fit(X[:n], y[:n])
            assert model.predict(X[:5]).shape == (5,)
    assert compilations == []


def test_the_command_takes_every_step_once_on_any_number_of_cores():
    """Two processes share the steps on two cores or more."""
    on_one = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from cakernels.__main__ import main; main(['warmup'])"
    )
    for words in (["-m", "cakernels", "warmup"], ["-c", on_one]):
        command = [sys.executable, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr
        names = [line[:16].strip() for line in done.stdout.splitlines()]
        assert sorted(names) == sorted(name for name, _ in itertools.chain(*halves()))


def test_the_second_process_ends_with_the_first(tmp_path):
    """However that ends; its cache is empty, so that it would go on for half a minute."""
    script = (
        "import cakernels.warm as warm\n"
        "if __name__ == '__main__':\n"
        "    with warm.second_half_beside():\n"
        "        print(flush=True)\n"
        "        input()\n"
    )
    (tmp_path / "first.py").write_text(script)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    with subprocess.Popen([sys.executable, tmp_path / "first.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env=environment) as first:  # fmt: skip
        first.stdout.readline()
        first.kill()
        begun = time.monotonic()
        first.stdout.read()  # ends when the second process, which has the same output, has ended
        assert time.monotonic() - begun < 10


def test_the_loop_is_compiled_once_for_both_precisions_and_all_forms():
    rows, y = labelled(2600, 4)
    wide = sp.random(80, 6000, 0.01, "csr", random_state=0)
    for X in (rows, rows[:90], rows[:90].astype(np.float32), sp.csr_matrix(rows[:90]), wide):
        AsyGCDSVC(max_iter=50).fit(X, y[: X.shape[0]])
    assert len(work.signatures) == len(finish.signatures) == 1


@pytest.mark.parametrize("one_class", [False, True])
def test_a_regression_and_one_class_compile_their_own_code_alone(one_class, monkeypatch):
    """Each has its own form of the pairs, which takes about a second."""
    method = oneclass.METHOD if one_class else svr.METHOD
    trained = []
    solve = svm_family.of_values
    monkeypatch.setattr(
        svm_family, "_SMALL",
        replace(svm_family._SMALL, trainer=lambda *given: trained.append(given[0].one_class) or solve(*given)),
    )  # fmt: skip
    family = svm_family.Outliers() if one_class else svm_family.Values()
    family.warm_up(Run(method, Training(data="rows.h5"), ValueOptions(nu=0.3), Communicator(), 0))
    assert trained == ([True] if one_class else [False, False])
