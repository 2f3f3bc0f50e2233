"""Plans where ranks cannot be started, where the time is short or endless, and of absurd numbers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from helpers.commands import flat

from cacore.errors import InputError
from cakernels.plan import runs
from cakernels.plan.machine import Machine
from cakernels.plan.plan import UNCOUNTED, planned, show
from cakernels.plan.runs import JobLayout, Kind, Ran, Trials, Workload, generated, method_named, mpiexec
from cakrr.options import RidgeOptions

JOB = JobLayout(n=1_000_000, d=5, parts=1, ranks=1, ranks_per_node=1, threads=1)
WORK = Workload(method_named("dkrr"), RidgeOptions(sigma=(1.0,), lam=(1e-4,)))
RUN = Ran(replace(JOB, n=500), {
    "seconds": {"start": 1.0, "train": 1.0}, "memory": {"peak_rss_mib": [200.0]}, "comm": {}, "partition_sizes": [500],
    "solver": {},
})  # fmt: skip


def test_mpiexec_beside_the_interpreter(tmp_path, monkeypatch):
    """In an environment that is not activated, it is not in PATH."""
    starter = tmp_path / "mpiexec"
    starter.write_text("#!/bin/sh\n")
    starter.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert mpiexec() == str(starter)
    starter.unlink()
    assert mpiexec() is None


def test_without_mpiexec_the_plan_says_what_it_lacks(capfd):
    """Runs on one rank tell nothing of messages: the plan has no zeros in their place."""
    plan = planned([RUN], replace(JOB, ranks=8), WORK, Machine.this())
    assert not plan.counted
    assert plan.report()["comm"] == {}
    assert plan.report()["notes"] == [UNCOUNTED]
    show("dkrr", [plan])
    out = flat(capfd.readouterr().out)
    assert out.count("unknown") == 2
    assert UNCOUNTED in out
    alone = planned([RUN], JOB, WORK, Machine.this())
    assert "notes" not in alone.report()


def test_a_time_that_is_over_ends_the_growing_runs(monkeypatch):
    """Two sizes suffice for a plan; further runs take eight times as long each."""
    trials = Trials("prog", [], None, "float64", None, 2.0)
    monkeypatch.setattr(Trials, "run", lambda self, layout: self.runs.append(replace(RUN, layout=layout)))
    trials.all(JOB, Kind.SYSTEM, 1)
    assert [one.layout.n for one in trials.runs] == [250, 500]


def test_time_that_other_programs_had_is_left_out(monkeypatch, tmp_path):
    """A run whose processor worked for a tenth of the time takes a tenth of it on a quiet machine."""
    (tmp_path / "report.json").write_text(json.dumps(RUN.report))
    clocks = {"elapsed": 0.0, "processor": 0.0}

    def started(command, **more):
        clocks["elapsed"] += 10.0
        clocks["processor"] += 1.0
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", started)
    monkeypatch.setattr(runs, "_processor_seconds", lambda: clocks["processor"])
    monkeypatch.setattr(time, "monotonic", lambda: clocks["elapsed"])
    short = Trials("prog", [], generated(10, 2, False), "float64", tmp_path, 1.0).all(
        replace(JOB, n=800), Kind.SYSTEM, 1
    )
    assert [run.undisturbed("train") for run in short] == pytest.approx([0.1] * len(short))
    assert short[0].seconds["train"] == 1.0


def test_a_time_without_an_end_is_no_error(monkeypatch, tmp_path):
    """A process's own limit has a largest value."""
    seen = {}

    def started(command, timeout, **more):
        seen["timeout"] = timeout
        return subprocess.CompletedProcess(command, 1, "", "stopped here")

    monkeypatch.setattr(subprocess, "run", started)
    with pytest.raises(InputError, match="stopped here"):
        Trials("prog", [], generated(10, 2, False), "float64", tmp_path, 1e308).run(replace(JOB, n=10))
    assert seen["timeout"] <= 1e6


@pytest.mark.parametrize(("words", "message"), [
    (["--rows", "1e300", "--features", "3"], "--rows 1e300: it must be a whole number from 2 to 1000000000000000"),
    (["--rows", "1e12", "--features", "1000000000"], "a sample of 20,000 rows with 1,000,000,000 features needs"),
])  # fmt: skip
def test_absurd_numbers_are_refused(words, message, tmp_path, refuses):
    refuses("cakernels plan", ["dissmo", *words], message, tmp_path)
