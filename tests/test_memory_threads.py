"""Memory figures, and blocks of work on threads."""

import ast
import gc
import os
import resource
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers.process import changes, state
from threadpoolctl import threadpool_info

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.machine import memory, threads
from cacore.run.launch import Job, run, start

GIB = 1 << 30


def test_available_is_some_of_the_machine():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < memory.available() <= total


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere getrusage is all there is")
def test_the_peak_is_that_of_this_process():
    """A process starts with a small peak, even if the one that started it has used much."""
    ask = "from cacore.machine.memory import peak_rss_mib as peak; print(peak())"
    used = f"import subprocess, sys; kept = b'x' * (400 << 20); subprocess.run([sys.executable, '-c', {ask!r}])"
    found = subprocess.run([sys.executable, "-c", used], capture_output=True, text=True, check=True, timeout=60)
    assert 5 < float(found.stdout) < 300


def test_limit_of_one_rank(tuned):
    tuned(available_memory=lambda: 10 * GIB)
    assert memory.limit_per_rank(Communicator()) == 9 * GIB
    assert memory.limit_per_rank(Communicator(), 0.5) == GIB // 2
    assert memory.limit_per_rank(Communicator(), 1e300) == 1 << 62


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere what a process uses is not known")
@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process_itself(name, monkeypatch, tuned):
    """What `ulimit` allows is not shared with other ranks, and what the process uses already is taken off."""
    limits = {getattr(resource, name): (50 * GIB, resource.RLIM_INFINITY)}
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits.get(kind, unlimited))
    tuned(available_memory=lambda: 500 * GIB)
    assert 10 * GIB < memory.limit_per_rank(Communicator()) < 45 * GIB
    limits[getattr(resource, name)] = (1 << 20, 1 << 20)
    assert memory.limit_per_rank(Communicator()) == 0
    limits.clear()
    assert memory.process_room() == float("inf")


@pytest.mark.parametrize("reason", ["", "Unable to allocate 397. MiB for an array"])
def test_allocations_that_the_system_refuses(reason, capsys):
    """Wherever they are: one line, and no traceback."""

    def work(comm):
        raise MemoryError(reason)

    with pytest.raises(SystemExit) as ended:
        run(work, "cakrr.bkrr2", Communicator())
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1)
    assert err.startswith("cakrr.bkrr2: out of memory")
    assert reason in err


@pytest.mark.parametrize(("tasks", "quiet"), [("4", False), ("4", True), ("1", False), ("", False), ("many", False)])
def test_one_process_in_a_job_for_several(tasks, quiet, monkeypatch, capsys):
    """`sbatch` without `srun` starts one process: every command says so, unless it is quiet."""
    monkeypatch.setenv("SLURM_NTASKS", tasks)
    start(Job(quiet=quiet), Communicator())
    err = capsys.readouterr().err
    assert ("Slurm gave this job 4 tasks" in err) is (tasks == "4" and not quiet)
    assert err.count("\n") == (tasks == "4" and not quiet)


@pytest.mark.parametrize("gib", [0.0, -1.0, float("nan"), float("inf")])
def test_limit_that_is_none(gib):
    with pytest.raises(InputError, match=r"--memory-limit"):
        memory.limit_per_rank(Communicator(), gib)


def test_refusal_carries_the_figures_and_the_remedy():
    with pytest.raises(memory.MemoryLimitError) as caught:
        memory.require(3 * GIB, 2 * GIB, "part 4", "use more\nparts")
    assert isinstance(caught.value, InputError)
    assert str(caught.value) == "part 4 needs 3 GiB, and a rank may use 2 GiB: use more parts"


def test_exact_fit_is_accepted():
    memory.require(GIB, GIB, "part 4", "")
    with pytest.raises(memory.MemoryLimitError):
        memory.require(GIB + 1, GIB, "part 4", "")


def test_peak_is_in_mib():
    """Between what is held now (as Linux counts it) and what the machine has."""
    held = np.ones(64 << 17)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    now = pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    assert now > held.nbytes / (1 << 20)
    assert now * 0.95 <= memory.peak_rss_mib() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@pytest.mark.parametrize(("n", "step"), [(0, 4), (1, 4), (8, 4), (9, 4), (5, 100)])
def test_blocks_cover_every_row_once(n, step):
    cut = threads.blocks(n, step)
    assert [row for lo, hi in cut for row in range(lo, hi)] == list(range(n))
    assert all(0 < hi - lo <= step for lo, hi in cut)


@pytest.fixture(params=[1, 2, 5])
def limited(request, tuned):
    tuned(threads=request.param)
    return request.param


def test_every_task_is_done_once(limited):
    out = np.zeros(1000)

    def work(lo, hi):
        out[lo:hi] += np.arange(lo, hi)

    threads.for_blocks(work, iter(threads.blocks(1000, 7)))
    np.testing.assert_array_equal(out, np.arange(1000))


def test_no_more_threads_than_allowed(limited):
    seen = set()
    together = threading.Barrier(limited)

    def work(_):
        together.wait(timeout=600)  # passes only when `limited` tasks run at once
        seen.add(threading.get_ident())

    threads.for_blocks(work, [(i,) for i in range(3 * limited)])
    assert len(seen) == limited


def test_failure_of_one_task_is_raised(limited):
    def work(i):
        if i == 3:
            raise InputError("task 3")

    with pytest.raises(InputError, match="task 3"):
        threads.for_blocks(work, [(i,) for i in range(9)])


def test_results_come_in_order(limited):
    tasks, squares = [(i,) for i in range(50)], [i * i for i in range(50)]
    with threads.in_order(lambda i: i * i, tasks) as found:
        assert list(found) == squares
    assert list(threads.ahead(lambda i: i * i, tasks)) == squares


def test_a_forked_child_can_compute():
    """The pool's threads do not survive a fork."""
    tasks = [(i,) for i in range(8)]
    assert sum(threads.ahead(lambda i: i, tasks)) == 28
    child = os.fork()
    if child == 0:
        os._exit(0 if sum(threads.ahead(lambda i: i, tasks)) == 28 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_nested_work_ends(limited):
    """More tasks that wait for tasks of their own than there are threads."""
    out = np.zeros((20, 20))

    def row(i):
        def cell(j):
            out[i, j] += i * j

        threads.for_blocks(cell, [(j,) for j in range(20)])

    threads.for_blocks(row, [(i,) for i in range(20)])
    np.testing.assert_array_equal(out, np.outer(np.arange(20), np.arange(20)))


def test_blas_has_one_thread_inside():
    with threads.one_blas_thread():
        assert {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"} == {1}


def test_blas_has_its_threads_again_after_several_fits_at_once():
    """The first thread that begins is not the last to end: each took what it found for what there was."""
    before, inside = [lib["num_threads"] for lib in threadpool_info()], []
    begun, left = threading.Event(), threading.Event()

    def later():
        with threads.one_blas_thread():
            begun.set()
            left.wait()
            inside.extend(lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas")

    other = threading.Thread(target=later)
    with threads.one_blas_thread():
        other.start()
        begun.wait()
    left.set()
    other.join()
    assert set(inside) == {1}
    assert [lib["num_threads"] for lib in threadpool_info()] == before


@pytest.mark.parametrize("count", [1, 3])
def test_more_threads_than_cores(count, monkeypatch, tuned, capsys):
    tuned(set_threads=lambda _: None)
    monkeypatch.setattr(threads, "cores", lambda: {0})
    for quiet in (False, True):
        start(Job(threads=count, quiet=quiet), Communicator())
    line = "warning: --threads 3: this process may use 1 core, and more threads than that are slower\n"
    assert capsys.readouterr().err == (line if count > 1 else "")


def test_set_threads(tuned):
    before = {lib["filepath"]: lib["num_threads"] for lib in threadpool_info()}
    tuned(threads=None)
    assert threads.current() == len(threads.cores())
    try:
        threads.set_threads(1)
        assert threads.current() == 1
        assert {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"} == {1}
    finally:
        for lib in threads._controller().lib_controllers:
            lib.set_num_threads(before.get(lib.filepath, 1))


def test_share_of_one_rank():
    assert threads.share(Communicator()) == len(threads.cores())
    assert threads.share(Communicator(), 3) == 3
    with pytest.raises(InputError, match="--threads 0"):
        threads.share(Communicator(), 0)


def test_no_collection_while_workers_work():
    """A worker that frees an HDF5 file would wait for a lock. Afterwards, and after half a loop, all is as it was."""
    seen = []
    for _ in range(2):
        threads.for_blocks(lambda i: seen.append(gc.isenabled()), [(i,) for i in range(8)])
        seen.extend(threads.ahead(lambda i: gc.isenabled(), [(i,) for i in range(8)]))
        with threads.in_order(lambda i: gc.isenabled(), [(i,) for i in range(8)]) as half:
            seen.append(next(half))
        assert gc.isenabled()
    assert not any(seen) or threads.current() == 1
    gc.disable()
    try:
        threads.for_blocks(lambda i: None, [(i,) for i in range(8)])
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_meanwhile_collects_again():
    with threads.collect_nothing(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a process with threads forks
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert not gc.isenabled()
    assert gc.isenabled()


def _abandoned(limited):
    """An error that holds, in the cycle of its traceback, an iterator that nobody finishes."""
    try:
        for i in threads.ahead(lambda i: i, [(i,) for i in range(50)]):
            if i == 3:
                raise InputError("half-way")
    except InputError as error:
        kept = error
        return kept, error.__traceback__


@pytest.mark.parametrize("limited", [2], indirect=True)
def test_an_abandoned_iterator_holds_no_setting(limited):
    before = state()
    kept = _abandoned(limited)
    assert (kept, changes(before)) == (kept, [])


@pytest.mark.parametrize("limited", [2], indirect=True)
def test_an_error_in_the_middle_leaves_no_setting_and_no_task(limited):
    before, begun, go = state(), [], threading.Event()

    def work(i):
        begun.append(i)
        if i:
            go.wait(timeout=600)

    def half():
        with threads.in_order(work, [(i,) for i in range(50)]) as results:
            assert (next(results), gc.isenabled()) == (None, False)
            raise InputError("taken")

    with pytest.raises(InputError, match="taken"):
        half()
    go.set()
    assert changes(before) == []
    assert len(begun) <= 4  # the others never begin


SAFE = (  # they concern one file, not the process
    "closing(", "open_bytes(", "io.TextIOWrapper(", "stream.reading(", "pc.open_csv(", "tempfile.TemporaryFile(",
    "self._placed(",
)  # fmt: skip


def _suspended(tree):
    """Line and contexts of each ``yield`` of a generator within a ``with``; decorated ones are contexts themselves."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and not any(
            "context" in ast.unparse(d) for d in function.decorator_list
        ):
            waiting = [(child, []) for child in function.body]
            while waiting:
                node, held = waiting.pop()
                if isinstance(node, ast.Yield | ast.YieldFrom):
                    yield node.lineno, held
                if isinstance(node, ast.With):
                    held = held + [ast.unparse(item.context_expr) for item in node.items]
                if not isinstance(node, ast.FunctionDef | ast.Lambda):
                    waiting += [(child, held) for child in ast.iter_child_nodes(node)]


def test_no_generator_holds_a_setting_of_the_process():
    """One that is never finished would hold it for ever."""
    root, bad = Path(threads.__file__).parents[2], []
    for package in ("cacore", "partition", "casvm", "cakrr", "cakriging", "asygcd"):
        for path in sorted((root / package).rglob("*.py")):
            for line, held in _suspended(ast.parse(path.read_text())):
                bad += [f"{path}:{line}: {one}" for one in held if not one.startswith(SAFE)]
    assert bad == []
