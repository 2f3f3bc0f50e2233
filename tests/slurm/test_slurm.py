"""The jobs under a real Slurm of one node, which is started here: `make test-slurm`, or by hand, as root,

tests/slurm/install.sh && CAKERNELS_SLURM=1 python -m pytest tests/slurm
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.data import write_hdf5
from helpers.environments import small_environment
from helpers.slurm import started, wait_until

pytestmark = pytest.mark.skipif(
    "CAKERNELS_SLURM" not in os.environ, reason="starts daemons of Slurm, as root: make test-slurm does that"
)
RANKS = min(2, os.cpu_count() or 1)
GRID = ["--partitions", 8, "--sigma", "0.5:8:4", "--lambda", "1e-6,1e-4", "--quiet"]


@pytest.fixture(scope="module")
def slurm():
    with started() as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """800 rows of a smooth function of four features."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 4))
    y = np.sin(X).sum(axis=1) + 0.1 * rng.normal(size=1000)
    file = tmp_path_factory.mktemp("data") / "rows.h5"
    write_hdf5(file, train=(X[:800], y[:800]), test=(X[800:], y[800:]))
    return file


def submit(slurm, *words, **variables):
    """The number of a job that `jobs/submit.sh` submitted."""
    return slurm.run("jobs/submit.sh", "--ranks-per-node", RANKS, *words, **variables).split()[-1]


def report(path):
    return json.loads(path.read_text())


def log(run):
    file = run / "log"
    return file.read_text() if file.exists() else ""


def output(run):
    """Output of the jobs of a run."""
    return "\n".join(file.read_text() for file in sorted(run.glob("job-*.txt")))


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_scaling(kind, slurm, data, tmp_path):
    out = tmp_path / "out"
    settings = {"OUT": out, "METHODS": "bkrr2 dckrr", "ROWS": 100, "PARTS": 4}
    job = submit(slurm, "--options", f"--output={tmp_path}/job.txt", kind, data, **settings)
    slurm.idle()
    text = (tmp_path / "job.txt").read_text()
    assert slurm.status(job) == 0, text
    counts = [n for n in (1, 2) if n <= RANKS]
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 2 * len(counts)
    for ranks in counts:
        for method in ("bkrr2", "dckrr"):
            made = report(out / f"{kind}_{method}_{ranks}.json")
            # A node's cores are divided by the ranks that it has in the job: each keeps its own when there are fewer.
            assert (made["ranks"], made["threads_per_rank"]) == (ranks, (os.cpu_count() or 1) // RANKS)
            assert made["partitions"] == (ranks if kind == "weak" else 4)
            assert made["data"]["n_train"] == (100 * ranks if kind == "weak" else 800)
            assert made["metrics"]["r2"] > 0.3


def test_a_large_run_goes_on_in_a_second_job(slurm, data, tmp_path):
    """The signal that the limit of time would send comes while a part is done and others are not."""
    run, alone, hold = tmp_path / "run", tmp_path / "alone", tmp_path / "hold"
    hold.touch()
    job = submit(slurm, "--time", "01:00:00", "large", run, "held", data, *GRID, HOLD=hold)
    wait_until(lambda: list(run.glob("checkpoint/*.npz")) or job not in slurm.jobs(), "a part finished")
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    wait_until(lambda: job not in slurm.jobs(), "the first job ended")
    kept = {part: part.stat().st_mtime_ns for part in run.glob("checkpoint/*.npz")}
    assert 1 <= len(kept) <= RANKS, output(run)
    hold.unlink()
    slurm.idle()
    assert [line.split(": ", 1)[1].split(" with status")[0] for line in log(run).splitlines()] == [
        (begun := f"begun on {RANKS} ranks of {(os.cpu_count() or 1) // RANKS} threads, 1 nodes"), "ended",
        begun, "done",
    ], output(run)  # fmt: skip
    assert "its time was up: submitting the next job" in log(run)
    assert slurm.status(job) == 75
    (second,) = {line.split(" ")[2].rstrip(":") for line in log(run).splitlines()} - {job}
    shown = slurm.run("scontrol", "show", "job", second)
    assert "TimeLimit=01:00:00" in shown  # what was asked of the first
    assert slurm.status(second) == 0
    assert {part: part.stat().st_mtime_ns for part in kept} == kept  # nothing was done twice
    submit(slurm, "large", alone, "held", data, *GRID, HOLD=hold)
    slurm.idle()
    assert report(run / "report.json")["metrics"] == report(alone / "report.json")["metrics"]
    assert (run / "model.h5").read_bytes() == (alone / "model.h5").read_bytes()


def test_wrong_input_is_not_submitted_again(slurm, tmp_path):
    """A gap in the rows, which nobody reads before the job: options that are wrong are refused before they wait."""
    run, data = tmp_path / "run", tmp_path / "gap.h5"
    X = np.ones((20, 2))
    X[7, 1] = np.nan
    write_hdf5(data, train=(X, np.arange(20.0)))
    job = submit(slurm, "large", run, "cakrr.bkrr2", data)
    slurm.idle()
    assert log(run).splitlines()[1:] == [log(run).splitlines()[-1]], output(run)
    assert log(run).endswith(f"job {job}: wrong input (status 2): not submitted again\n")
    assert slurm.status(job) == 2
    assert f"{data} (train): row 7, feature 1 is nan" in output(run)


def test_a_run_that_is_cancelled_does_not_come_back(slurm, data, tmp_path):
    run, hold = tmp_path / "run", tmp_path / "hold"
    hold.touch()
    job = submit(slurm, "large", run, "held", data, *GRID, HOLD=hold)
    wait_until(lambda: list(run.glob("checkpoint/*.npz")) or job not in slurm.jobs(), "a part finished")
    slurm.run("scancel", job)
    slurm.idle()
    assert log(run).count("\n") == 1, output(run)


def test_ranks_start_from_a_staged_environment(slurm, data, tmp_path):
    env, node = small_environment(tmp_path / "env"), tmp_path / "node"
    node.mkdir()
    path = {"PATH": f"{env}/bin:{slurm.environment['PATH']}"}
    slurm.run("jobs/stage.sh", "pack", tmp_path / "env.tar.gz", **path)
    run = tmp_path / "run"
    staged = {"STAGE": tmp_path / "env.tar.gz", "STAGE_DIR": node, **path}
    if (library := Path(sys.prefix, "lib", "libmpi.so.12")).exists():  # that of a wheel, which the small one lacks
        staged["MPI4PY_LIBMPI"] = library
    job = submit(slurm, "large", run, "cakrr.bkrr2", data, *GRID, **staged)
    slurm.idle()
    assert slurm.status(job) == 0, output(run)
    command = report(run / "report.json")["command"]
    assert str(node) in " ".join(command)
    assert list(node.iterdir()) == []  # the job has removed what it unpacked


def test_a_planned_job(slurm, data, tmp_path):
    """The script that a plan prints is accepted, and runs."""
    words = [
        "plan",
        "bkrr2",
        data,
        "--ranks",
        RANKS,
        "--partitions",
        8,
        "--within",
        "1s",
        "--queue",
        "slurm",
        *GRID[2:-1],
    ]
    made = slurm.run(sys.executable, "-m", "cakernels", *words)
    script, out = tmp_path / "job.sh", tmp_path / "report.json"
    script.write_text(made[made.index("#!/bin/bash") :].rstrip() + f" --quiet --report {out}\n")
    slurm.run("sbatch", "--test-only", script)
    slurm.run("sbatch", f"--output={tmp_path}/job.txt", script)
    slurm.idle()
    assert report(out)["ranks"] == RANKS, (tmp_path / "job.txt").read_text()
