"""The promises of CONTRIBUTING's "Add ...", kept: additions to a copy of the packages, and the tests that go over them.

Each addition is one new file, or one insertion into one file; a kind of answer is a task and a command. The tests that
iterate over partitioners, kernels and methods then run in the copy, where they must find the new ones by themselves.
Run by

CAKERNELS_EXTENDING=1 python -m pytest tests/extending
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    "CAKERNELS_EXTENDING" not in os.environ, reason="compiles a copy of the packages: make test-extending does that"
)

ROOT = Path(__file__).parents[2]
PACKAGES = ("cacore", "partition", "casvm", "cakrr", "cakriging", "asygcd", "cakernels")

PARTITIONER = '''
"""Shuffled rows dealt out in turn, from the last part to the first."""

import numpy as np

from partition.base import Algorithm


class Dealt(Algorithm, name="dealt"):
    """Shuffled rows dealt out in turn, from the last part on. Sends one Allreduce of P x (d + 1) numbers.

    Parameters
    ----------
    n_parts : int
    random_state : int, RandomState or None
    """

    clusters = False

    def _partition(self, rows, y):
        labels = (-rows.order % self.n_parts).astype(np.int32)
        return labels, rows.means(labels, self.n_parts)[0]
'''

KERNEL = '''

def _lorentz(row, a, b, gamma, coef0, degree):
    """``1 / (1 + gamma |x-z|^2)``."""
    one = row.dtype.type(1)
    for j in range(row.size):
        row[j] = one / (one + gamma * distance(row[j], a, b[j]))


def _lorentz_derivative(t, gamma, coef0, degree):
    """The derivative by the squared distance."""
    return -gamma / (1 + gamma * t) ** 2


register(KernelKind("lorentz", "1 / (1 + gamma |x-z|^2)", SQUARED, _lorentz, _lorentz_derivative, ("gamma",)))
'''

FORMULA = """
DISTANCES["lorentz"] = lambda r, gamma, degree: 1 / (1 + gamma * r**2)
"""

TASK = '''

class MedianTask(ValuesTask):
    """The conditional median: errors count by their absolute value, however small."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options = replace(self.options, epsilon=0.0)
'''

METHOD = '''
"""The conditional median, in parts."""

from casvm.options import ValueMethod


def in_medians(method, train, options, comm, test=None):
    """Train the median of each part."""
    from casvm.tasks import MedianTask
    from partition.in_parts import in_parts

    return in_parts(MedianTask.prepared(method, train, options, comm), comm)


METHOD = median = ValueMethod(name="median", summary="conditional median, in parts", trainer=in_medians)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
'''

SOLVER = '''
"""Coordinate descent, row after row, without a bias."""

from time import perf_counter

import numpy as np

from cacore.svm.dual import Solution
from cacore.svm.options import register


@register("cyclic")
def solve(X, kernel, dual, limits, cache_bytes, watch=None):
    """Solve the dual; holds the n x n matrix, 8 n^2 bytes."""
    begun, points = perf_counter(), kernel.points(X)
    Q, beta = kernel.block(points, points), dual.initial()
    for passes in range(1, 1000):
        change = 0.0
        for i in range(dual.n):
            best = beta[i] - (Q[i] @ beta + dual.linear[i]) / Q[i, i]
            step = np.clip(best, dual.lower[i], dual.upper[i]) - beta[i]
            beta[i] += step
            change = max(change, abs(step) * Q[i, i])
        if change <= limits.tol:
            break
    decision = Q @ beta
    return Solution(
        beta, b=0.0, iterations=passes * dual.n, objective=-(beta @ (decision / 2 + dual.linear)), gap=change,
        converged=change <= limits.tol, kernel_rows=dual.n, kernel_values=Q.size, seconds=perf_counter() - begun,
        decision=decision,
    )
'''


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the packages and their tests, with additions."""
    copy = tmp_path_factory.mktemp("copy")
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    (copy / "partition/algorithms/dealt.py").write_text(PARTITIONER.lstrip())
    for module, text in {
        "cacore/kernels/functions.py": KERNEL,
        "casvm/tasks.py": TASK,
        "tests/helpers/references.py": FORMULA,
    }.items():
        with (copy / module).open("a") as file:
            file.write(text)
    (copy / "casvm/median.py").write_text(METHOD.lstrip())
    (copy / "asygcd/cyclic.py").write_text(SOLVER.lstrip())
    family = copy / "casvm/svm_family.py"
    text, place = family.read_text(), '            "busy": fitted.busy,\n'
    assert text.count(place) == 1
    family.write_text(text.replace(place, place + '            "answer": 42,\n'))
    # The entry point of a solver, as an installed distribution has it.
    facts = copy / "added-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[cakernels.solvers]\ncyclic = asygcd.cyclic\n")
    return copy


def run(folder, *words):
    """Run Python in the copy."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "CAKERNELS_EXTENDING": ""}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(("files", "name", "least"), [
    (["test_partition_properties.py", "test_partition_by_name.py", "test_routing.py"], "dealt", 8),
    (["test_gradients.py", "test_kernel_registry.py", "test_observe.py"], "lorentz", 8),
    (["test_help.py", "test_commands.py", "test_plan.py"], "median", 2),
])  # fmt: skip
def test_tests_that_go_over_a_registry_find_what_was_added(extended, files, name, least):
    """Each test with the new name among its parameters passes, and there are at least `least` of them."""
    said = run(extended, "-m", "pytest", "-p", "no:cacheprovider", "-k", name, *(f"tests/{file}" for file in files))
    passed = next(line for line in reversed(said.splitlines()) if " passed" in line)
    assert int(passed.split(" passed")[0].split()[-1]) >= least


def test_commands_take_what_was_added(extended):
    """A partitioner, a kernel and a solver by their names, a method by its command, a field of the report."""
    rows = "import numpy as np; r = np.random.default_rng(0); X = r.normal(size=(80, 2)); " \
        "np.savetxt('rows.csv', np.c_[X, X[:, 0] + r.normal(size=80) / 9], delimiter=',')"  # fmt: skip
    run(extended, "-c", rows)
    words = ["--kernel", "lorentz", "--gamma", "0.5", "--partitions", "2", "--quiet", "--report", "report.json"]
    run(extended, "-m", "casvm.median", "rows.csv", "--partitioner", "dealt", *words)
    report = json.loads((extended / "report.json").read_text())
    assert (report["method"], report["answer"], report["params"]["epsilon"]) == ("median", 42, 0)
    assert report["partition_sizes"] == [40, 40]
    run(extended, "-m", "casvm.svr", "rows.csv", "--solver", "cyclic", *words)
    assert json.loads((extended / "report.json").read_text())["solver"]["converged"]
