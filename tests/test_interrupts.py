"""Signals while numba compiles: what is compiled is whole, and the exception comes right after it."""

import signal
import threading

import numpy as np
import pytest
from helpers.data import write_csv
from numba.core import event

from cacore.machine.clock import ctrl_c_waits, raising, working_time
from cacore.machine.deadline import TimeIsUp

COMPILED = """
import signal, sys
from llvmlite.binding import executionengine
from cacore.machine.clock import raising
from cacore.machine.deadline import TimeIsUp

found = executionengine.ExecutionEngine._find_module_ptr
def interrupted(self, pointer):
    signal.raise_signal(signal.SIGALRM)  # while LLVM hands over what it has compiled
    return found(self, pointer)
executionengine.ExecutionEngine._find_module_ptr = interrupted

sys.path.insert(0, sys.argv[1])
import compiled
try:
    with raising(signal.SIGALRM, TimeIsUp):
        compiled.twice(21)
except TimeIsUp:
    print("time is up,", end=" ")
executionengine.ExecutionEngine._find_module_ptr = found
print(compiled.twice(21), len(compiled.twice.signatures))
"""


def test_compilation_interrupted_by_a_limit_is_finished_and_cached(python, tmp_path):
    (tmp_path / "compiled.py").write_text("import numba\n@numba.njit(cache=True)\ndef twice(x):\n    return 2 * x\n")
    done = python("-c", COMPILED, str(tmp_path))
    assert done.stdout == "time is up, 42 1\n", done.stderr
    assert list(tmp_path.glob("__pycache__/*.nbc"))


def test_interrupts_wait_only_in_the_main_thread():
    order = []

    def ring():
        signal.raise_signal(signal.SIGALRM)
        order.append("rung")

    def compile_here():
        with event.trigger_event("numba:compiler_lock"):
            with event.trigger_event("numba:compiler_lock"):
                ring()
            order.append("between")

    with pytest.raises(TimeIsUp), raising(signal.SIGALRM, TimeIsUp):
        compile_here()
    assert order == ["rung", "between"]

    def compile_apart():
        with event.trigger_event("numba:compiler_lock"):
            started.set()
            done.wait()

    started, done = threading.Event(), threading.Event()
    apart = threading.Thread(target=compile_apart)
    apart.start()
    started.wait()
    with pytest.raises(TimeIsUp), raising(signal.SIGALRM, TimeIsUp):
        ring()
    done.set()
    apart.join()
    assert order == ["rung", "between"]
    begun = working_time()
    assert begun < working_time()  # the clock goes on


def test_ctrl_c():
    """It waits where nobody else handles it; what handles it, or ignores it, is left alone."""
    order, before = [], signal.signal(signal.SIGINT, signal.default_int_handler)  # which a test's worker may not have

    def compile_here():
        with event.trigger_event("numba:compiler_lock"):
            signal.raise_signal(signal.SIGINT)
            order.append("compiled")

    try:
        with pytest.raises(KeyboardInterrupt), ctrl_c_waits():
            compile_here()
        assert order == ["compiled"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with ctrl_c_waits():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_have_no_signals():
    before, ended = signal.getsignal(signal.SIGTERM), []

    def apart():
        with raising(signal.SIGTERM, SystemExit):
            ended.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=apart)
    thread.start()
    thread.join()
    assert ended == [before]


TRAINED = """
import runpy, signal, sys
from numba.core import event
import {module} as module

def work(*_):
    with event.trigger_event("numba:compiler_lock"):
        signal.raise_signal(signal.SIGINT)
        print("compiled", flush=True)
    print("trained", flush=True)

module.{name} = work
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a test's worker may not have
sys.argv = {command}
runpy.run_module(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "name", "command"),
    [("asygcd.training", "fit", ["asygcd"]), ("cakernels.search.blending", "search", ["cakernels", "fit"])],
)
def test_a_command_waits_too(module, name, command, python, tmp_path):
    """Its rows decide what is compiled, so that it may compile at any time."""
    rows = np.random.default_rng(0).normal(size=(40, 2))
    write_csv(tmp_path / "rows.csv", rows, np.where(rows[:, 0] > 0, 1, -1))
    done = python("-c", TRAINED.format(module=module, name=name, command=[*command, str(tmp_path / "rows.csv")]))
    assert done.stdout == "compiled\n", done.stderr
    assert done.returncode == 130
