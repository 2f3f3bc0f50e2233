"""``python -m cacore.info``: what it finds on 1, 2 and 3 ranks, and every fault, provoked."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.commands import flat
from helpers.mpi_libraries import OPEN_MPI

from cacore.comm import Communicator
from cacore.info import installation
from cacore.info.installation import Rank, intervals
from cacore.linalg import scalapack

ROOT = Path(__file__).resolve().parent.parent
CORES = sorted(os.sched_getaffinity(0))
LAUNCHERS = ("PMI_", "PMIX_", "OMPI_", "MPI_", "SLURM_", "PALS_", "NUMBA_")


# The command, whose measurements take a fiftieth of their time: nobody looks at them here.
QUICK = """
import runpy
from cacore.info import installation
installation.SECONDS = 0.01
runpy.run_module("cacore.info", run_name="__main__", alter_sys=True)
"""


# One process loads the libraries, and each line that it reads is a folder, words and variables for a copy of it, which
# runs the command. MPI, whose library a variable names, is loaded in the copy.
LOADED = """
import json, os, sys
import h5py, numba, numpy, rich.console, scipy.linalg
for line in sys.stdin:
    folder, sys.argv[1:], variables = json.loads(line)
    if os.fork() == 0:
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
else:
    sys.exit()
os.environ.clear()
os.environ.update(variables)
os.chdir(folder)
for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, "out", os.O_CREAT | os.O_RDWR | os.O_TRUNC),
                            (2, "err", os.O_CREAT | os.O_RDWR | os.O_TRUNC)):
    os.dup2(os.open(name, flags), number)
"""


def environment(path=ROOT, **variables):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [str(path), kept.get("PYTHONPATH")])), **variables}


@pytest.fixture(scope="module")
def loaded():
    """A process that has loaded what the command needs, and runs it in copies of itself."""
    with subprocess.Popen(
        [sys.executable, "-c", LOADED + QUICK], env=environment(), text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        yield process
        process.stdin.close()


@pytest.fixture
def alone(tmp_path, loaded):
    """One process of ``python -m cacore.info`` with these variables; its finished process, and its report."""
    folder = tmp_path / "alone"
    folder.mkdir()

    def start(*words, path=ROOT, **variables):
        words, variables = ["--report", "r.json", *words], environment(path, **variables)
        if path != ROOT or "NUMBA_CACHE_DIR" in variables:  # which Python and numba have read before
            done = subprocess.run(
                [sys.executable, "-c", QUICK, *words], cwd=folder, text=True, env=variables, capture_output=True,
                timeout=600, check=False,
            )  # fmt: skip
        else:
            loaded.stdin.write(json.dumps([str(folder), words, variables]) + "\n")
            loaded.stdin.flush()
            status = int(loaded.stdout.readline())
            out, err = ((folder / name).read_text() for name in ("out", "err"))
            done = subprocess.CompletedProcess(words, status, out, err)
        file = folder / "r.json"
        return done, json.loads(file.read_text()) if file.exists() else None

    return start


def wrong(done):
    """The faults that the command reports."""
    return re.findall(r"^WRONG: (.*)$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_report_lists_libraries_and_cores(ranks, mpiexec, tmp_path):
    program = ("-m", "cacore.info") if ranks == 1 else ("-c", QUICK)
    done = mpiexec(ranks, *program, "--report", "r.json", cwd=tmp_path)
    made = json.loads((tmp_path / "r.json").read_text())
    assert done.stderr == ""
    crowded, whole = ranks > len(CORES), len(CORES) == os.cpu_count()  # more ranks than a machine's cores: a note
    assert len(made["notes"]) == int(crowded and whole)
    assert (done.returncode, len(made["faults"])) == (int(crowded and not whole),) * 2, made["faults"]
    assert wrong(done) == made["faults"]
    assert re.findall(r"^Note: (.*)$", done.stdout, re.MULTILINE) == made["notes"]
    assert ("All is well." in done.stdout) == (not made["faults"])

    from mpi4py import MPI

    assert made["schema"] == "cakernels-info/1"
    assert made["versions"]["numpy"] == np.__version__
    assert made["versions"]["hdf5"] == h5py.version.hdf5_version
    assert made["versions"]["mpi"] == " ".join(MPI.Get_library_version().splitlines()[0].strip("\0 ").split())
    assert [one["rank"] for one in made["ranks"]] == list(range(ranks))
    for one in made["ranks"]:
        assert (one["host"], one["node"], one["node_cores"]) == (platform.node(), 0, os.cpu_count())
        assert one["threads"] == max(1, len(CORES) // ranks)
        assert one["cores"] == CORES
        assert one["product_gflop_s"] > 0
        assert one["copy_gb_s"] > 0
        assert bool(one["cache"]) == (one["rank"] == 0)
    assert all(value > 0 for value in made["messages"].values())
    assert set(made["messages"]) == ({"latency_us", "bandwidth_gb_s", "allreduce_us"} if ranks > 1 else set())
    assert {one["threads"] for one in made["blas"]} == {made["ranks"][0]["threads"]}
    assert 0 < made["memory"]["limit_per_rank"] <= made["memory"]["free"] / ranks <= made["memory"]["node"]
    assert Path(made["scalapack"]["path"]).exists() or made["scalapack"]["missing"]

    shown = flat(done.stdout)
    assert f"cakernels {made['versions']['cakernels']} on {ranks} rank" in shown
    assert f"{ranks}: {ranks} on {platform.node()}" in shown
    for name in ("numpy", "scipy", "scikit-learn", "numba", "h5py", "mpi4py", "hdf5"):
        assert f"{name} {made['versions'][name]}" in shown
    assert ("the slowest, rank" in shown) == (ranks > 1)


def test_one_process_without_mpiexec(alone):
    done, made = alone()
    assert (done.returncode, done.stderr, made["faults"]) == (0, "", [])
    assert len(made["ranks"]) == 1
    assert "one rank sends none" in flat(done.stdout)


def test_quiet_says_what_is_wrong_and_nothing_else(alone):
    done, made = alone("--quiet")
    assert (done.returncode, done.stdout, done.stderr, made["faults"]) == (0, "", "", [])
    done, made = alone("--quiet", "--threads", str(len(CORES) + 1))
    assert done.returncode == 1
    assert done.stdout == f"WRONG: {made['faults'][0]}\n"


# -- what is wrong -----------------------------------------------------------------------------


@pytest.mark.skipif(os.cpu_count() == 1, reason="a machine of one core: nothing is bound to another than it could be")
def test_ranks_on_one_core(tmp_path, mpiexec):
    job = f"import os; os.sched_setaffinity(0, {{{CORES[-1]}}}){QUICK}"
    done = mpiexec(2, "-c", job, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert wrong(done) == [
        f"{platform.node()}: 2 ranks are all bound to core {CORES[-1]}, of {os.cpu_count()} cores: "
        "start with mpiexec --bind-to none or srun --cpu-bind=cores, and without taskset"
    ]
    assert f"rank 0: {CORES[-1]}, rank 1: {CORES[-1]}" in flat(done.stdout)


def test_more_threads_than_cores(mpiexec, tmp_path):
    done = mpiexec(2, "-c", QUICK, "--threads", str(len(CORES) + 1), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = wrong(done)
    assert f": {2 * len(CORES) + 2} threads of 2 ranks share {len(CORES)} core" in line


def test_no_mpi_library(alone):
    """One rank works without, and is told so; ranks that were started by mpiexec do not."""
    done, made = alone(MPI4PY_LIBMPI="/nonexistent/libmpi.so")
    assert (done.returncode, done.stderr, made["faults"]) == (0, "", [])
    assert made["versions"]["mpi"] == "none"
    assert "none can be loaded, so there is one rank only; for more: pip install 'cakernels[mpi]'" in flat(done.stdout)
    assert "no" in made["scalapack"]["missing"]
    done, made = alone(MPI4PY_LIBMPI="/nonexistent/libmpi.so", PMI_RANK="0", PMI_SIZE="2")
    assert done.returncode == 1
    assert wrong(done) == made["faults"]
    assert made["faults"][0].startswith("started by mpiexec, but mpi4py cannot load an MPI")


@pytest.mark.parametrize("variables", [
    {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"},
])  # fmt: skip
def test_each_rank_alone(variables, alone):
    done, made = alone(**variables)
    assert (done.returncode, done.stderr) == (1, "")
    assert wrong(done) == made["faults"]
    (line,) = made["faults"]
    assert line.startswith("started as 4 ranks, but by another MPI than the one that mpi4py loaded (")
    assert "so each would run alone: use the mpiexec of that library, or install mpi4py for your" in line


def test_later_separate_ranks_stay_silent(alone):
    done, made = alone(OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_RANK="2")
    assert (done.returncode, done.stdout, done.stderr, made) == (0, "", "", None)


def test_separate_rank_reports_an_unknown_number_of_ranks(alone):
    done, _ = alone(OMPI_COMM_WORLD_RANK="2")
    assert done.returncode == 1
    assert wrong(done)[0].startswith("started as 3 ranks, but by another MPI")


def test_one_process_in_an_allocation_for_several(alone):
    done, made = alone(SLURM_NTASKS="4", SLURM_PROCID="0")
    assert (done.returncode, done.stderr) == (1, "")
    assert made["faults"] == [
        "Slurm gave this job 4 tasks, and this is one process alone: start it with srun or mpiexec"
    ]


def test_variables_that_are_no_numbers(alone):
    done, made = alone(SLURM_NTASKS="many", PMI_SIZE="")
    assert (done.returncode, done.stderr, made["faults"]) == (0, "", [])


@OPEN_MPI.needed
def test_a_launcher_of_another_library(tmp_path):
    """For real: Open MPI's mpiexec and mpi4py's MPICH, which would end each process in MPI_Init."""
    done = OPEN_MPI.start(2, "-m", "cacore.info", cwd=tmp_path, timeout=300, library=False)
    assert done.returncode == 1
    (line,) = wrong(done)
    assert line.startswith("started as 2 ranks, but by another MPI than the one that mpi4py loaded (")
    assert "Abort" not in done.stderr


@OPEN_MPI.needed
def test_a_command_under_a_launcher_of_another_library(tmp_path):
    """Rank 0 starts last: the others leave it time to print before mpiexec ends the job for their sake."""
    job = (
        "import os, runpy, time; time.sleep(2 * (os.environ['OMPI_COMM_WORLD_RANK'] == '0')); "
        "runpy.run_module('cakrr.bkrr2', run_name='__main__', alter_sys=True)"
    )
    done = OPEN_MPI.start(2, "-c", job, "none.h5", cwd=tmp_path, timeout=300, library=False)
    assert done.returncode == 2
    assert "cakrr.bkrr2: started as 2 ranks, but by another MPI than" in done.stderr
    assert "Abort" not in done.stderr


def test_a_cache_that_was_named_and_cannot_be_written(alone, tmp_path):
    (tmp_path / "file").touch()
    done, made = alone(NUMBA_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert done.returncode == 1
    (line,) = made["faults"]
    assert f"NUMBA_CACHE_DIR={tmp_path}/file/cache cannot be written to, and numba uses " in line
    done, made = alone(NUMBA_CACHE_DIR=str(tmp_path / "good"))
    assert (done.returncode, made["faults"]) == (0, [])
    assert Path(made["ranks"][0]["cache"]).parent == tmp_path / "good"


def test_no_cache_at_all(alone, tmp_path):
    """The package where nobody may write, and a home directory where nobody may either."""
    folders = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "cacore", tmp_path / "read-only" / "cacore", ignore=folders)
    for folder in [tmp_path / "read-only" / "cacore", *(tmp_path / "read-only" / "cacore").glob("*/")]:
        (folder / "__pycache__").touch()  # a file, for the superuser may write to any folder
    (tmp_path / "file").touch()
    done, made = alone(path=tmp_path / "read-only", XDG_CACHE_HOME=str(tmp_path / "file"), PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 1
    (line,) = made["faults"]
    assert "numba cannot keep compiled code" in line
    assert line.endswith("name a folder in NUMBA_CACHE_DIR that every rank may write to")


def test_scalapack_that_is_missing(alone):
    """No fault, for one rank needs none; what to do is told."""
    done, made = alone(CAKRR_SCALAPACK="/nonexistent.so")
    assert (done.returncode, made["faults"]) == (0, [])
    assert "cannot open /nonexistent.so" in made["scalapack"]["missing"]
    assert "none; CAKRR_SCALAPACK: cannot open" in flat(done.stdout)


def test_where_scalapack_is(monkeypatch, tuned):
    tuned(scalapack_library=lambda: scalapack._Library.__new__(scalapack._Library))
    monkeypatch.setattr(scalapack._Library, "_paths", ["libmpi.so", "libscalapack.so"], raising=False)
    assert scalapack.where() == "libscalapack.so"


def test_bad_usage(alone):
    for words in (["--threads", "0"], ["--memory-limit", "x"], ["--report", "none/r.json"], ["more"]):
        done, made = alone(*words)
        assert (done.returncode, done.stdout, made) == (2, "", None)
        assert re.fullmatch(r"cacore\.info: .+\n", done.stderr)


def test_too_little_memory(alone):
    done, _ = alone("--memory-limit", "0.1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cacore.info: measuring needs 0.25 GiB, and a rank may use 0.1 GiB: ")


# -- without a job: ranks of many machines -----------------------------------------------------


def given(*ranks, node_cores=8):
    """Ranks from (node, cores, threads)."""
    return [Rank(i, f"n{node}", node, node_cores, cores, t, "", "") for i, (node, cores, t) in enumerate(ranks)]


@pytest.mark.parametrize(("ranks", "lines"), [
    (given((0, [0, 1], 2), (0, [2, 3], 2), (2, [0, 1], 2)), []),
    (given((0, [0], 1), (0, [0], 1), (2, [0], 1), (2, [1], 1)), ["n0: 2 ranks are all bound to core 0, of 8"]),
    (given((0, [3], 1), (0, [3], 1), (0, [5], 1), (0, [5], 1)),
     ["n0: 2 ranks are all bound to core 3, of 8", "n0: 2 ranks are all bound to core 5, of 8"]),
    (given((0, [0], 1), (0, [0], 1), node_cores=1), []),
    (given(*[(0, [0, 1], 1)] * 4, node_cores=2), []),
    (given(*[(0, [0, 1], 1)] * 4), ["n0: 4 threads of 4 ranks share 2 cores: start at most 2 ranks there, or ask"]),
    (given(*[(0, [0, 1], 2)] * 4, node_cores=2), ["n0: 8 threads of 4 ranks share 2 cores: leave --threads away"]),
    (given((0, [0], 4)), ["n0: 4 threads of 1 rank share 1 core: leave --threads away, or give at most --threads 1"]),
    (given((0, [0, 1], 1), (0, [4, 5], 1), (0, [1, 4], 1)), []),
    (given((0, [0, 1], 2), (0, [4, 5], 2), (0, [1, 4], 2)), ["n0: 6 threads of 3 ranks share 4 cores: leave"]),
])  # fmt: skip
def test_cores_that_ranks_share(ranks, lines, monkeypatch):
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    found = installation.of(ranks, Communicator())
    assert len(found) == len(lines)
    for line, begin in zip(found, lines, strict=True):
        assert line.startswith(begin)


@pytest.mark.parametrize(("ranks", "lines"), [
    (given(*[(0, [0, 1], 1)] * 4, node_cores=2), [
        "n0: 4 threads of 4 ranks share 2 cores, all that the machine has: that is slower, not wrong; "
        "fastest with at most 2 ranks",
    ]),
    (given(*[(0, [0, 1], 1)] * 2, node_cores=2), []),
    (given(*[(0, [0, 1], 1)] * 4), []),
    (given(*[(0, [0, 1], 2)] * 4, node_cores=2), []),
])  # fmt: skip
def test_more_ranks_than_a_machine_has_cores(ranks, lines):
    """A note, for nothing but fewer ranks would help; more threads than cores, or cores elsewhere, are a fault."""
    assert installation.notes(ranks) == lines


def test_intervals():
    assert intervals([0, 1, 2, 3, 8, 10, 11]) == "0-3 8 10-11"
    assert intervals([5]) == "5"


def test_mean_seconds_of_a_call(monkeypatch):
    """On a clock that only the calls move: two of 0.3 s pass the half second that is measured."""
    now = [0.0]

    def work():
        now[0] += 0.3

    monkeypatch.setattr(installation, "perf_counter", lambda: now[0])
    assert installation._seconds(work) == pytest.approx(0.3)
    assert now[0] == pytest.approx(0.6)


def test_work_that_is_measured():
    work, flops = installation._product()
    n = round((flops / 2) ** (1 / 3))
    assert work().shape == (n, n)
    assert (work()[[0, -1]] == 0.25 * n).all()
    work, moved = installation._copy()
    assert moved == 2 * installation.COPIED
    target = work.__closure__[0].cell_contents
    assert sum(piece.nbytes for piece, _ in target) == installation.COPIED
    work()
    assert all((piece == 1).all() for piece, _ in target)
