"""Jobs for Slurm, PBS and LSF with stand-ins for the queues: command lines, ranks, threads, and when a run goes on.

tests/slurm has the same jobs under a Slurm that runs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.environments import small_environment
from helpers.queues import HYDRA, JOB, ROOT, Queue

QUEUES = list(JOB)
SUBMITTERS = ("sbatch", "qsub", "bsub")
OPEN_MPI, INTEL = "mpiexec (Open MPI) 5.0.11", "Intel(R) MPI Library for Linux* OS, Version 2021.13"


@pytest.fixture(params=QUEUES)
def queue(request, tmp_path):
    return Queue(request.param, tmp_path)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "rows.csv").write_text("1,2,3\n4,5,6\n")
    return tmp_path / "rows.csv"


def submitted(queue, *words, **variables):
    """The one call that submitted a job, after `jobs/submit.sh` with these words."""
    done = queue.run("jobs/submit.sh", "--queue", queue.name, *words, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    (call,) = queue.calls(*SUBMITTERS)
    return call


@pytest.fixture
def site(tmp_path):
    """Nodes, options, container and interface of a cluster."""
    file = tmp_path / "here.sh"
    file.write_text(
        "site_queue=slurm site_cores=96 site_ranks_per_node=8 site_options='--constraint=cpu'\n"
        "site_container='apptainer exec here.sif' MPI_TYPE=cray_shasta\n"
    )
    return file


def large(run, data):
    return f"{run} casvm.cpsvm {data} --C 32"


# -- what is submitted ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_nodes_and_cores_are_filled_in(kind, queue, data):
    call = submitted(queue, "--nodes", 3, "--ranks-per-node", 4, "--cores", 24, "--time", "01:30:00", kind, data)
    script = f"jobs/{kind}_scaling.{queue.name}"
    assert (
        call["words"]
        == {
            "slurm": ["--nodes=3", "--ntasks-per-node=4", "--cpus-per-task=6", "--time=01:30:00", script, str(data)],
            "pbs": ["-V", "-l", "select=3:ncpus=24:mpiprocs=4:ompthreads=6", "-l", "walltime=01:30:00", script],
            "lsf": ["-n", "72", "-R", "span[ptile=24]", "-W", "01:30"],
        }[queue.name]
    )
    if queue.name == "lsf":
        assert call["script"] == (ROOT / script).read_text()
        assert call["environment"]["RANKS_PER_NODE"] == "4"
    if queue.name != "slurm":
        assert call["environment"]["WORDS"].split() == [str(data)]


def test_words_of_the_queue_and_of_the_run(queue, tmp_path, data):
    run = tmp_path / "a run"
    more = "--account=A -q long"
    words = ["--cores", 24, "--after", 17, "--options", more, "large", run, "cakrr.bkrr2", data, "--sigma", "1, 2"]
    call = submitted(queue, *words)
    ahead, of_run = [*more.split()], [str(run), "cakrr.bkrr2", str(data), "--sigma", "1, 2"]
    assert call["words"] == {
        "slurm": ["--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=12", "--dependency=afterany:17",
                  f"--output={run}/job-%j.txt", *ahead, "jobs/large_run.slurm", *of_run],
        "pbs": ["-V", "-l", "select=1:ncpus=24:mpiprocs=2:ompthreads=12", "-W", "depend=afterany:17", "-o", f"{run}/",
                *ahead, "jobs/large_run.pbs"],
        "lsf": ["-n", "24", "-R", "span[ptile=24]", "-w", "ended(17)", "-o", f"{run}/job-%J.txt", *ahead],
    }[queue.name]  # fmt: skip
    assert run.is_dir()
    if queue.name != "slurm":
        assert shlex.split(call["environment"]["WORDS"]) == of_run


def test_the_queue_says_how_many_cores(queue, data):
    call = submitted(queue, "weak", data)
    expected = {"slurm": "--cpus-per-task=12", "pbs": "select=1:ncpus=24:mpiprocs=2:ompthreads=12", "lsf": "24"}
    assert expected[queue.name] in call["words"]


def test_named_options_are_those_of_the_queue(queue, data):
    call = submitted(queue, "--cores", 24, "--partition", "long", "--account", "A", "weak", data)
    expected = {"slurm": ["--partition=long", "--account=A"], "pbs": ["-q", "long", "-A", "A"],
                "lsf": ["-q", "long", "-P", "A"]}  # fmt: skip
    place = call["words"].index(expected[queue.name][0])
    assert call["words"][place : place + len(expected[queue.name])] == expected[queue.name]


@pytest.mark.parametrize("words", [["--partition", "threads"], ["--options", "-p threads"]])
def test_cores_of_the_partition_without_hardware_threads(words, data, tmp_path):
    queue = Queue("slurm", tmp_path)
    call = submitted(queue, *words, "weak", data)
    assert "--cpus-per-task=8" in call["words"]  # two ranks on 16 cores
    assert "--hint=nomultithread" in call["words"]
    assert "--hint=nomultithread" in call["environment"]["QUEUE_OPTIONS"]  # for the next job of a run
    assert "--hint=nomultithread" not in submitted(Queue("slurm", tmp_path / "other"), "weak", data)["words"]


def test_a_site_fills_in_what_is_particular_to_it(site, data, tmp_path):
    queue = Queue("slurm", tmp_path / "queue")
    call = submitted(queue, "--site", site, "--qos", "debug", "weak", data)
    assert call["words"][1:5] == ["--ntasks-per-node=8", "--cpus-per-task=12", "--constraint=cpu", "--qos=debug"]
    assert call["environment"]["SITE"] == str(site)
    queue.job("strong_scaling", str(data), RANKS=4, METHODS="bkrr2", OUT=tmp_path, SITE=site)
    (start,) = queue.calls("srun")
    assert start["words"][0] == "--mpi=cray_shasta"
    assert "apptainer exec here.sif python -m cakrr.bkrr2" in " ".join(start["words"])


def test_a_module_that_cannot_be_loaded_ends_the_job(data, tmp_path):
    """The job ends before ranks start; a stand-in for `module` fails, as it does for a name that is not there."""
    (tmp_path / "here.sh").write_text("site_modules='no-such-module'\nmodule() { return 3; }\n")
    queue = Queue("slurm", tmp_path / "queue")
    done = queue.job("strong_scaling", str(data), RANKS=1, METHODS="bkrr2", OUT=tmp_path, SITE=tmp_path / "here.sh")
    assert done.returncode == 3
    assert queue.calls("srun") == []
    refused = queue.run(
        "jobs/submit.sh", "--site", tmp_path / "here.sh", "large", tmp_path / "run", "cakrr.bkrr2", data
    )
    assert refused.returncode == 2
    assert "its modules cannot be loaded" in refused.stderr


@pytest.mark.parametrize("name", sorted(file.stem for file in (ROOT / "jobs" / "sites").iterdir()))
def test_sites_of_the_repository_are_accepted(name, data, tmp_path):
    queue = Queue("slurm", tmp_path)
    call = submitted(queue, "--site", name, "--account", "A", "weak", data)
    assert "--account=A" in call["words"]
    assert call["environment"]["SITE"].endswith(f"jobs/sites/{name}.sh")


@pytest.mark.parametrize(("program", "words", "message"), [
    ("cakrr.bkrr2", ["--sgima", "1"], "cakrr.bkrr2: unrecognized arguments: --sgima 1"),
    ("cakrr.bkrr2", ["--sigma", "-1"], "--sigma -1"),
    ("cakrr.bkkr2", [], "No module named cakrr.bkkr2"),
])  # fmt: skip
def test_misspelt_words_of_a_program_are_refused_before_they_wait(program, words, message, tmp_path):
    (tmp_path / "rows.csv").write_text("1,2,3\n4,5,6\n")
    queue = Queue("slurm", tmp_path / "queue")
    done = queue.run("jobs/submit.sh", "large", tmp_path / "run", program, tmp_path / "rows.csv", *words,
                     PYTHONPATH=ROOT)  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert queue.calls(*SUBMITTERS) == []
    assert not (tmp_path / "run").exists()


def test_a_program_that_is_not_here_is_submitted_with_a_word(tmp_path, data):
    """The package may be in the container of a site."""
    queue = Queue("slurm", tmp_path / "queue")
    (tmp_path / "queue" / "programs" / "python").write_text("#!/bin/sh\nexit 1\n")
    done = queue.run("jobs/submit.sh", "large", tmp_path / "run", "cakrr.bkrr2", data)
    assert done.returncode == 0
    assert done.stderr == "submit.sh: cakrr.bkrr2 is not checked: python cannot import the package here\n"
    assert len(queue.calls("sbatch")) == 1


def test_a_dry_run_submits_nothing(queue, data, tmp_path):
    done = queue.run("jobs/submit.sh", "--dry-run", "--queue", queue.name, "--nodes", 4, "large", tmp_path / "run",
                     "casvm.cpsvm", data)  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.startswith("4 nodes x 2 ranks x 12 threads: 8 ranks\n")
    assert queue.calls(*SUBMITTERS) == []
    assert not (tmp_path / "run").exists()


def test_help(tmp_path):
    queue = Queue("slurm", tmp_path)
    done = queue.run("jobs/submit.sh", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "jobs/submit.sh [options] weak|strong DATA.h5" in done.stdout
    assert "--ranks-per-node R" in done.stdout
    assert not re.search("^#|set -e", done.stdout, re.MULTILINE)
    assert queue.calls(*SUBMITTERS) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["big", "rows.h5"], "'big': weak, strong or large is wanted"),
        (["weak"], "weak needs DATA.h5"),
        (["large", "run", "casvm.cpsvm"], "large needs RUN PROGRAM DATA"),
        (["weak", "nowhere.h5"], "nowhere.h5: no such file"),
        (["--cores", "1", "weak", __file__], "2 ranks on 1 cores: each needs one"),
        (["--nodes", "two", "weak", __file__], "'two': nodes, ranks and cores are whole numbers"),
        (["--time", "90", "weak", __file__], "--time 90: HH:MM:SS is wanted"),
        (["--queue", "moab", "weak", __file__], "--queue moab: give slurm, pbs or lsf"),
        (["--fast", "1", "weak", __file__], "--fast: no such option"),
        (["-n", "1", "weak", __file__], "-n: no such option"),
        (["--nodes"], "--nodes needs a value"),
        (["--site", "nowhere", "weak", __file__], "--site nowhere: no such file; jobs/sites has juwels lumi-c"),
        (["--queue", "pbs", "--qos", "debug", "weak", __file__], "--qos, --constraint: Slurm has them; for pbs"),
    ],
)
def test_wrong_words(words, message, tmp_path):
    queue = Queue("slurm", tmp_path)
    done = queue.run("jobs/submit.sh", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"submit.sh: {message}")
    assert done.stderr.count("\n") == 1
    assert queue.calls(*SUBMITTERS) == []


# -- ranks and threads ---------------------------------------------------------------------------


def test_ranks_and_threads(queue, data, tmp_path):
    """2 nodes, 2 ranks on each, 12 cores a rank; fewer ranks take as few nodes as they fill."""
    out = tmp_path / "out"
    done = queue.job("strong_scaling", str(data), RANKS="1 2 4", METHODS="bkrr2 dissmo", OUT=out, PARTS=8)
    assert (done.returncode, done.stderr) == (0, "")
    starts = queue.calls("srun", "mpiexec")
    ahead = [call["words"][: call["words"].index("python")] for call in starts[::2]]
    if queue.name == "slurm":
        tail = ["--cpus-per-task=12", "--cpu-bind=cores"]
        assert ahead == [[f"--nodes={nodes}", f"--ntasks={ranks}", *tail] for ranks, nodes in
                         ((1, 1), (2, 1), (4, 2))]  # fmt: skip
        assert {call["environment"]["SRUN_CPUS_PER_TASK"] for call in starts} == {"12"}
    else:
        assert ahead == [
            ["-n", n, "-ppn", ppn, "-bind-to", "core:12"] for n, ppn in (("1", "1"), ("2", "2"), ("4", "2"))
        ]
    tail = ["--allow-overlap", "--quiet", "--report", f"{out}/strong_{{}}_4.json"]
    assert [" ".join(call["words"][call["words"].index("python") :]) for call in starts[-2:]] == [
        f"python -m {program} {data} {settings} {' '.join(tail).format(program.split('.')[1])}"
        for program, settings in (
            ("cakrr.bkrr2", "--partitions 8 --sigma 3 --lambda 1e-4"),
            ("casvm.dissmo", "--C 1 --gamma scale"),
        )
    ]
    assert queue.calls("python")[-1]["words"][:2] == ["-m", "benchmarks.collect"]


def test_weak_scaling_takes_as_many_rows_as_ranks(queue, data, tmp_path):
    queue.job("weak_scaling", str(data), METHODS="cpsvm", OUT=tmp_path, ROWS=100)
    words = [call["words"] for call in queue.calls("python")]
    rows = [w[2:] for w in words if w[1] == "benchmarks.subset"]
    assert rows == [[str(data), f"{tmp_path}/rows_{n}.h5", str(100 * n)] for n in (1, 2, 4)]
    trained = [w[2:5] for w in words if w[1] == "casvm.cpsvm"]
    assert trained == [[f"{tmp_path}/rows_{n}.h5", "--partitions", str(n)] for n in (1, 2, 4)]


@pytest.mark.parametrize(
    ("version", "bound"),
    [
        (HYDRA, "-ppn 2 -bind-to core:12"),
        (OPEN_MPI, "--map-by ppr:2:node:PE=12 --bind-to core"),
        (INTEL, "-ppn 2 -genv I_MPI_PIN_DOMAIN 12:compact"),
    ],
)
def test_binding_under_each_mpi(version, bound, data, tmp_path):
    queue = Queue("pbs", tmp_path, version)
    queue.job("strong_scaling", str(data), RANKS=4, METHODS="bkrr2", OUT=tmp_path)
    (start,) = queue.calls("mpiexec")
    words = " ".join(start["words"])
    assert f"{bound} python" in words
    assert ("-x PATH " in words) == (version == OPEN_MPI)


@pytest.mark.parametrize(("chosen", "words"), [({}, []), ({"MPI_TYPE": "pmix_v4"}, ["--mpi=pmix_v4"])])
def test_srun_speaks_what_the_cluster_has_set_up(chosen, words, data, tmp_path):
    queue = Queue("slurm", tmp_path)
    queue.job("strong_scaling", str(data), RANKS=4, METHODS="bkrr2", OUT=tmp_path, **chosen)
    (start,) = queue.calls("srun")
    assert [word for word in start["words"] if word.startswith("--mpi")] == words


# -- the large run -------------------------------------------------------------------------------


def notes(run):
    return [line.split(": ", 1)[1] for line in (run / "log").read_text().splitlines()]


def test_a_run_goes_on_until_it_is_done(queue, data, tmp_path):
    """The time is up once, then a rank is killed, then it is done: three jobs, with the same settings."""
    run = tmp_path / "run"
    queue.plan("part warn", "part 137", "part 0")
    more = {"LIMIT": "02:00:00", "QUEUE_OPTIONS": "--account=A"}
    ends = [queue.job("large_run", large(run, data), **more).returncode for _ in range(3)]
    assert ends == [75, 75, 0]
    calls = queue.calls(*SUBMITTERS)
    assert len(calls) == 2
    for call in calls:
        assert call["words"] == {
            "slurm": ["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=12", "--time=02:00:00",
                      "--dependency=afterany:17", f"--output={run}/job-%j.txt", "--account=A", "jobs/large_run.slurm",
                      *large(run, data).split()],
            "pbs": ["-V", "-l", "select=2:ncpus=24:mpiprocs=2:ompthreads=12", "-l", "walltime=02:00:00", "-W",
                    "depend=afterany:17.server", "-o", f"{run}/", "--account=A", "jobs/large_run.pbs"],
            "lsf": ["-n", "48", "-R", "span[ptile=24]", "-W", "02:00", "-w", "ended(17)", "-o", f"{run}/job-%J.txt",
                    "--account=A"],
        }[queue.name]  # fmt: skip
        if queue.name != "slurm":
            assert call["environment"]["WORDS"].split() == large(run, data).split()
    begun = "begun on 4 ranks of 12 threads, 2 nodes"
    assert [re.sub(r"\d{3}", "N", note) for note in notes(run)] == [
        begun, "ended with status N, its time was up: submitting the next job",
        begun, "ended with status N: submitting the next job",
        begun, "done",
    ]  # fmt: skip
    kept = ["--checkpoint", f"{run}/checkpoint", "--model", f"{run}/model.h5", "--report", f"{run}/report.json"]
    assert [call["words"] for call in queue.calls("python")] == [
        ["-m", "casvm.cpsvm", *kept, str(data), "--C", "32"]] * 3  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "status", "note"),
    [
        ("part 2", 2, "wrong input (status 2): not submitted again"),
        ("1", 1, "ended with status 1, and finished no part: not submitted again"),
        ("warn", 143, "ended with status 143, its time was up, and finished no part: not submitted again"),
    ],
)
def test_a_run_that_would_not_get_further_ends(plan, status, note, queue, data, tmp_path):
    run = tmp_path / "run"
    queue.plan(plan)
    assert queue.job("large_run", large(run, data)).returncode == status
    assert notes(run)[-1] == note
    assert queue.calls(*SUBMITTERS) == []


def test_jobs_are_bounded(queue, data, tmp_path):
    run = tmp_path / "run"
    queue.plan("part 1", "part 1", "part 1")
    ends = [queue.job("large_run", large(run, data), MOST_JOBS=2).returncode for _ in range(3)]
    assert ends == [75, 75, 1]
    assert notes(run)[-1] == "not begun: 2 jobs were, and MOST_JOBS is 2"
    assert len(queue.calls("python")) == 2


def test_a_queue_that_refuses_the_next_job(queue, data, tmp_path):
    run = tmp_path / "run"
    queue.plan("part 1")
    refusing = dict(zip(QUEUES, SUBMITTERS, strict=True))[queue.name]
    assert queue.job("large_run", large(run, data), REFUSING=refusing).returncode == 1
    assert notes(run)[-1].startswith("could not submit the next job")


def test_a_job_that_its_owner_cancels_does_not_come_back(queue, data, tmp_path):
    run = tmp_path / "run"
    queue.plan("part wait")
    with subprocess.Popen(**queue.started("large_run", large(run, data))) as job:
        while not (tmp_path / "waiting").exists():
            assert job.poll() is None
            time.sleep(0.05)
        os.killpg(job.pid, signal.SIGTERM)  # the script and the ranks, as queues do
        job.communicate(timeout=600)
    assert job.returncode == -signal.SIGTERM
    assert queue.calls(*SUBMITTERS) == []


def test_pbs_sends_no_signal_so_the_job_has_a_clock(data, tmp_path):
    """Two hours, and a margin of all but five seconds: the ranks, which wait for ever, are ended."""
    queue = Queue("pbs", tmp_path)
    queue.plan("part wait")
    assert queue.job("large_run", large(tmp_path / "run", data), MARGIN=7195).returncode == 75
    assert "its time was up: submitting the next job" in notes(tmp_path / "run")[-1]
    assert len(queue.calls("qsub")) == 1


def test_one_machine_needs_no_queue(data, tmp_path):
    queue, run = Queue("slurm", tmp_path), tmp_path / "run"
    queue.plan("part 1", "0")
    words = ["bash", "jobs/large_run.slurm", *large(run, data).split()]
    assert queue.run(*words).returncode == 1
    assert notes(run)[-1] == "ended with status 1; the same command goes on from its checkpoint"
    assert queue.run(*words).returncode == 0
    assert [call["words"][0] for call in queue.calls("mpiexec")] == ["-n", "-n"]


# -- the environment in one file -----------------------------------------------------------------


def test_ranks_start_from_a_staged_environment(tmp_path):
    env = small_environment(tmp_path / "env")
    variables = {**os.environ, "PATH": f"{env}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def bash(script):
        return subprocess.run(["bash", "-euc", script], cwd=ROOT, env=variables, text=True, capture_output=True,
                              timeout=600, check=True).stdout  # fmt: skip

    # What numba has for a moment while it writes is gone before it is copied: here it leads nowhere from the start.
    (ROOT / "partition" / "__pycache__").mkdir(exist_ok=True)
    vanished = ROOT / "partition" / "__pycache__" / f"stage.nbi.tmp.{os.getpid()}"
    vanished.symlink_to("nowhere")
    try:
        assert re.fullmatch(r".*: \d+ files, \d+ MiB\n", bash(f"jobs/stage.sh pack {tmp_path}/env.tar.gz"))
    finally:
        vanished.unlink()
    shutil.rmtree(env)  # nothing of it is needed any more
    node = tmp_path / "node"
    ask = "import cacore, cakrr, os, sys; print(sys.prefix, cacore.__file__, cakrr.__file__, os.__file__, sep='\\n')"
    script = f"""
jobs/stage.sh unpack {tmp_path}/env.tar.gz {node}
jobs/stage.sh unpack {tmp_path}/env.tar.gz {node}
eval "$(jobs/stage.sh words {node})"
python -c "{ask}"
find {node}/src -name '*.nbc' | sort >{tmp_path}/before
python -m cakrr.bkrr2 {tmp_path}/rows.csv --partitions 2 --quiet
find {node}/src -name '*.nbc' | sort >{tmp_path}/after"""
    (tmp_path / "rows.csv").write_text("".join(f"{i % 7},{i % 5},{i % 11},{i % 3}\n" for i in range(60)))
    places = bash(script).splitlines()
    own_library = not Path(sys.base_prefix).is_relative_to("/usr")
    assert places[0] == str(node / "env")
    assert all(place.startswith(f"{node}/src/") for place in places[1:3])
    assert places[3].startswith(str(node)) == own_library
    compiled = (tmp_path / "before").read_text()
    assert compiled.count("\n") > 5
    assert (tmp_path / "after").read_text() == compiled  # nothing was compiled again
