"""Where the real data are, how jobs are started under MPI, and what tests look like inside one.

Tests in ``tests/mpi`` run inside mpiexec only: ``tests/test_under_mpi.py`` starts it, and names in
CAKERNELS_MPI_TESTS a folder that all ranks of the job share. By hand:

    CAKERNELS_MPI_TESTS=$(mktemp -d) mpiexec -n 3 python -m pytest --with-mpi tests/mpi
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

# A BLAS thread without work would keep a core for hundredths of a second, in every command that the tests start; the
# library reads this when it is loaded.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2^4 cycles
# Where workers share the cores, the trees of scikit-learn wait in each small loop for the core that another worker has.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_THREAD_LIMIT", "1")  # of OpenMP alone, here and in programs that tests start

# Model files have the date of this second, so that those of the same run are the same bytes, at midnight, too.
os.environ.setdefault("SOURCE_DATE_EPOCH", "1700000000")

import hypothesis
import numpy as np
import pytest
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from cacore.machine import threads

pytest.register_assert_rewrite("helpers")
from helpers.checks import contents  # noqa: E402 - its assertions have been seen to above
from helpers.commands import one_by_one, run  # noqa: E402
from helpers.data import SIZE, changed, split_rows, write_csv, write_hdf5, write_libsvm  # noqa: E402
from helpers.process import changes, free_threads, state  # noqa: E402
from helpers.tuned import CONSTANTS  # noqa: E402

# Nothing depends on how fast the machine is: no test has a deadline, and what may hang has ten minutes and more.
hypothesis.settings.register_profile("here", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("here")
PATIENCE = 600  # seconds

# The tests start hundreds of commands: Python compiles the package once, not in each of them, whatever is set outside.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Workers share the cores, and a small product on two BLAS threads waits for the core that another worker has. The
# package's own threads are as many as ever.
if "PYTEST_XDIST_WORKER" in os.environ:
    threads.current()  # remembers the number of cores
    threadpool_limits(1, user_api="blas")

ROOT = Path(__file__).resolve().parent.parent
JOB = os.environ.get("CAKERNELS_MPI_TESTS")  # set inside mpiexec only

collect_ignore_glob = [] if JOB else ["mpi/*"]


@pytest.fixture(autouse=True)
def process_as_before():
    """Fail a test that leaves the process changed: collections, threads, environment, signals and the like."""
    before = state()
    yield
    free_threads(before)
    left = changes(before)
    assert not left, "left changed: " + "; ".join(left)


@pytest.hookimpl(wrapper=True, trylast=True)  # inside pytest's own, which restores the filters
def pytest_runtest_call(item):
    """Fail a test that leaves other warning filters."""
    before = list(warnings.filters)
    result = yield
    assert warnings.filters == before, "left changed: warning filters"
    return result


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data sets."""
    folder = Path(os.environ.get("CAKERNELS_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data: there is no folder {folder}; name it in CAKERNELS_DATA")
    return folder


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """A folder of files for the commands that classify: `split_rows`, models of them, and everything that is wrong."""
    folder = tmp_path_factory.mktemp("inputs")
    two, three = ({split: split_rows(split, k) for split in SIZE} for k in (2, 3))
    write_hdf5(folder / "good.h5", **two)
    write_hdf5(folder / "three.h5", **three)
    for name, split in (("train.h5", "train"), ("rest.h5", "test")):
        write_hdf5(folder / name, **{split: two[split]})
    write_hdf5(folder / "wide.h5", test=(np.c_[two["test"][0], two["test"][0]], two["test"][1]))
    for split in SIZE:
        write_csv(folder / f"{split}.csv", *two[split])
        X, y = three[split]
        write_libsvm(folder / split, np.where(np.abs(X) < 0.4, 0, X), y, 12, [2, 5, 11])
    write_csv(folder / "features.csv", two["test"][0])
    lines = (folder / "train.csv").read_text().splitlines(keepends=True)
    (folder / "nan.csv").write_text("".join([*lines[:5], "1.5,nan,0.5,1\n", *lines[6:]]))
    (folder / "word.csv").write_text("".join([*lines[:5], "1.5,0.25,two,1\n", *lines[6:]]))
    (folder / "text.csv").write_text("a,b,label\n1,2,spam\n3,4,ham\n")
    (folder / "token").write_text("1 1:0.5 2:1\n2 1:0.5 2;3\n")
    (folder / "empty.csv").write_text("")
    (folder / "file").write_text("not a directory\n")
    changed(folder / "nan.h5", folder / "good.h5", "train/X", (7, 2), np.nan)
    write_hdf5(folder / "no-target.h5", train=(two["train"][0], None))
    changed(folder / "one.h5", folder / "good.h5", "train/y", slice(None), 1.0)
    halves = np.where(two["train"][1] > 0, 0.5, -0.5)
    changed(folder / "halves.h5", folder / "good.h5", "train/y", slice(None), halves)
    run("casvm.cpsvm", [folder / "good.h5", "--partitions", "3", "--model", folder / "svm.h5", "--quiet"])
    run("cakrr.bkrr2", [folder / "good.h5", "--sigma", "2", "--model", folder / "krr.h5", "--quiet"])
    run("asygcd", [folder / "good.h5", "--model", folder / "asygcd.h5", "--quiet"])
    for name, whole in (("truncated.h5", "good.h5"), ("half.h5", "asygcd.h5")):
        content = (folder / whole).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    return folder


@pytest.fixture(scope="session")
def digits():
    """Features from 0 to 1, 450 rows of ten classes."""
    X, y = load_digits(return_X_y=True)
    return X[:450] / 16, y[:450]


# -- starting programs -------------------------------------------------------------------------


def _environment(**more: str) -> dict[str, str]:
    """This process' variables without those of an MPI library that was started here."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_", "MPI_"))}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, **more}


@pytest.fixture(scope="session")
def python():
    """Start ``python *args``, with environment variables by keyword; the finished process, with its output as text."""

    def start(*args, cwd=None, timeout=PATIENCE, **variables):
        return subprocess.run(
            [sys.executable, *map(str, args)], cwd=cwd, env=_environment() | variables, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip

    return start


@pytest.fixture(scope="session")
def mpiexec():
    """Start ``mpiexec -n RANKS python *args``; the finished process. A job that runs too long ends with status 124."""
    beside = Path(sys.executable).parent / "mpiexec"
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    if program is None:
        pytest.fail("there is no mpiexec beside python and none on PATH: pip install mpich")

    def start(ranks, *args, cwd=None, timeout=PATIENCE, **variables):
        command = [program, "-n", str(ranks), sys.executable, *map(str, args)]
        with subprocess.Popen(
            command, cwd=cwd, env=_environment(**variables), text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        ) as job:  # fmt: skip
            try:
                out, err = job.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                job.send_signal(signal.SIGTERM)  # mpiexec ends its ranks
                try:
                    out, err = job.communicate(timeout=60)
                except subprocess.TimeoutExpired:
                    os.killpg(job.pid, signal.SIGKILL)
                    out, err = job.communicate()
                return subprocess.CompletedProcess(command, 124, out, f"{err}\nnot done after {timeout} s")
        return subprocess.CompletedProcess(command, job.returncode, out, err)

    return start


@pytest.fixture
def tuned(monkeypatch):
    """``tuned(working_set=16, ...)`` sets constants of the packages, by their names in helpers/tuned.py."""

    def set_constants(**values):
        for name, value in values.items():
            monkeypatch.setattr(CONSTANTS[name], value)

    return set_constants


@pytest.fixture
def recorded(monkeypatch):
    """``recorded(OWNER, NAME, note)``: a list of ``note(result, *args)`` of every call of OWNER.NAME from now on."""

    def record(owner, name, note=lambda result, *args, **options: args):
        function, notes = getattr(owner, name), []

        def call(*args, **options):
            result = function(*args, **options)
            notes.append(note(result, *args, **options))
            return result

        monkeypatch.setattr(owner, name, call)
        return notes

    return record


@pytest.fixture
def forbidden(monkeypatch):
    """``with forbidden("module.function", ...):`` fails the test if one of these is called."""

    @contextmanager
    def forbid(*paths):
        def never(*_, **__):
            raise AssertionError(f"called: {paths}")

        with monkeypatch.context() as patch:
            for path in paths:
                patch.setattr(path, never)
            yield

    return forbid


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Work in an empty folder; programs that are started there find the project, as :func:`python` does."""
    monkeypatch.setenv("PYTHONPATH", _environment()["PYTHONPATH"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refuses(capfd, monkeypatch):
    """``refuses(PROGRAM, words, message, folder)``: bad input ends a command, started in `folder`, as it should.

    That is with status 2, nothing printed but one line on stderr that names the program and contains `message`, and
    no file made, changed or removed. The line is returned. PROGRAM may have a first word, as in "cakernels fit".
    """

    def check(program, words, message, folder):
        monkeypatch.chdir(folder)
        before, (module, *first) = contents(folder), program.split()
        with pytest.raises(SystemExit) as ended:
            run(module, [*first, *words])
        out, err = capfd.readouterr()
        assert (ended.value.code, out) == (2, "")
        assert (err.count("\n"), err[-1]) == (1, "\n")
        assert err.startswith(f"{program}: ")
        assert message in err
        assert contents(folder) == before
        return err

    return check


@pytest.fixture
def in_one_job(mpiexec, tmp_path):
    """``in_one_job(RANKS, [PROGRAM, *words], ...)``: one by one in `tmp_path`, each as ``python -m`` starts it."""

    def start(ranks, *commands):
        done = mpiexec(ranks, "-W", "error", *one_by_one(commands), cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    return start


# -- in what order, and at what cost -------------------------------------------------------------

# Files that take minutes: begun first, so that no worker is left alone with one of them at the end. While one worker
# compiles what all tests need, in the first file, the other one has some that need little: it would compile the same.
FIRST = (
    "test_under_mpi.py", "test_info.py", "test_packaging.py", "test_io_stream.py", "test_house.py", "test_help.py",
    "test_options.py", "test_io_bad_text.py", "test_output.py", "test_no_room.py", "test_docs.py", "test_magnitudes.py",
    "test_jobs.py", "test_virtual_cluster.py",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """The longest files first; the order within a file stays."""
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))


def pytest_collection_finish():
    """Let the garbage collector leave alone what lives as long as this process: modules, and thousands of tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


# -- inside mpiexec ----------------------------------------------------------------------------

if JOB:
    from mpi4py import MPI

    from cacore.comm import failure

    threads.set_threads(1)  # the ranks share the machine
    failure.SPIN = 1e-5  # and there may be fewer cores than ranks, which should not wait in a loop
    _PLACE = f"[rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}]"

    @pytest.hookimpl(trylast=True)
    def pytest_configure(config):
        """Rank 0 prints; what the others would print goes to files, which the launcher shows if the job fails."""
        if MPI.COMM_WORLD.rank:
            reporter = config.pluginmanager.get_plugin("terminalreporter")
            reporter._tw._file = Path(JOB, f"rank{MPI.COMM_WORLD.rank}.txt").open("w", buffering=1)  # noqa: SIM115

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        """The rank in each test's name."""
        report = yield
        report.nodeid += _PLACE
        path, line, name = report.location
        report.location = path, line, name + _PLACE
        if report.failed:  # now, for a rank that fails alone may not live to the end
            with Path(JOB, f"failed{MPI.COMM_WORLD.rank}.txt").open("a") as file:
                file.write(f"{report.nodeid}\n{report.longreprtext}\n\n")
        return report
