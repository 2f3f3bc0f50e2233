"""The registry of part solvers: a solver of another module takes part by its name, and none is imported for nothing."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import near

from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm import options
from cacore.svm.dual import Dual
from cacore.svm.options import part_solver, register, solver_names
from casvm import CASVC, CASVR, DCSVC
from casvm.solver import smo
from casvm.solver.kernel_rows import KernelRows


@pytest.fixture
def registry(monkeypatch):
    """The registry, restored after the test."""
    monkeypatch.setattr(options, "_registered", dict(options._registered))


def rows(n=120, k=2):
    rng = np.random.default_rng(0)
    y = np.arange(n) % k
    return rng.normal(size=(n, 4)) + 1.2 * np.eye(4)[y], y


@pytest.mark.parametrize("k", [2, 3])
def test_registered_solver_trains_parts(k, registry, tuned):
    """One function: here SMO on kernel values in double precision, which counts its calls."""
    tuned(most_whole=0)  # the default solver then works in rounds as well
    calls = []

    @register("counting")
    def solve(X, kernel, dual, limits, cache_bytes, watch=None):
        calls.append(dual.n)
        return smo.solve(KernelRows(X, kernel, np.float64, cache_bytes), dual.repaired(), limits, watch)

    assert solver_names()[0] == "smo"
    assert {"asygcd", "counting"} <= {*solver_names()}
    assert part_solver("counting") is solve
    X, y = rows(k=k)
    for make in (CASVC, DCSVC):
        calls.clear()
        counted, expected = (make(3, solver=name, random_state=0).fit(X, y) for name in ("counting", "smo"))
        assert len(calls) >= 3 * k * (k - 1) / 2
        # Several classes have another default solver: equal to the tolerance, and no longer bit by bit.
        near(counted.decision_function(X), expected.decision_function(X), 0 if k == 2 else 2e-3)


def test_registered_solver_trains_regressions(registry, tuned):
    tuned(most_whole=0)
    calls = []

    @register("counting")
    def solve(X, kernel, dual, limits, cache_bytes, watch=None):
        calls.append(dual.n)
        return smo.solve(KernelRows(X, kernel, np.float64, cache_bytes), dual, limits, watch)

    X, _ = rows()
    counted, expected = (
        CASVR(3, solver=name, C=1.0, random_state=0).fit(X, X[:, 0] ** 2) for name in ("counting", "smo")
    )
    assert sum(calls) == len(X)
    np.testing.assert_array_equal(counted.predict(X), expected.predict(X))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"solver": "asygcd"}, "solver 'asygcd': it needs .* the dual of a classifier"),
        ({"solver": "fast"}, "solver = .fast.: it must be one of smo"),
    ],
)
def test_solvers_that_do_not_suit_a_regression(wrong, message):
    X, _ = rows()
    with pytest.raises(InputError, match=message):
        CASVR(2, **wrong).fit(X, X[:, 0])


def test_a_name_is_taken_once(registry):
    register("twice")(solve := lambda *_: None)
    register("twice")(solve)
    with pytest.raises(ValueError, match=r"solver 'twice': registered already, by .*test_part_solvers"):
        register("twice")(lambda *_: None)


@pytest.mark.parametrize("name", ["", "SMO", "libsvm"])
def test_unknown(name):
    with pytest.raises(InputError, match=f"solver '{name}': choose one of smo, asygcd"):
        part_solver(name)


def test_names_import_no_solver(python):
    code = """
import sys
from cacore.svm.options import part_solver, solver_names
assert solver_names()[:2] == ("smo", "asygcd")
assert not {"casvm", "asygcd", "numba"} & {*sys.modules}, sys.modules
part_solver("smo")
assert "asygcd" not in sys.modules
part_solver("asygcd")
"""
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_installed_by_another_package(python, tmp_path):
    """One module and one line of its pyproject.toml."""
    (tmp_path / "other.py").write_text(
        "from cacore.svm.options import part_solver, register\n"
        "@register('other')\n"
        "def solve(*given): return part_solver('smo')(*given)\n"
    )
    metadata = tmp_path / "other-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[cakernels.solvers]\nother = other\n")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from cacore.svm.options import solver_names
from casvm import CASVC
assert solver_names() == ("smo", "asygcd", "other")
CASVC(1, solver="other").fit([[0.0], [1.0]], [0, 1])
assert "other" in sys.modules
"""
    done = python("-c", code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["smo", "asygcd"])
def test_contract(name):
    """Beta within its bounds, and an objective, decisions and counters that are those of beta; a start is repaired."""
    X, y = rows()
    signs, kernel, bounds = np.where(y > 0, 1.0, -1.0), Kernel("gaussian", gamma=0.3), np.full(len(y), 2.0)
    K = np.exp(-0.3 * ((X[:, None] - X[None]) ** 2).sum(axis=-1))
    start = np.random.default_rng(1).uniform(0, 3, len(y))
    seen = []
    for dual in (Dual.classification(signs, bounds), Dual.classification(signs, bounds, start)):
        got = part_solver(name)(X, kernel, dual, Limits(1e-4), 1 << 20, seen.append)
        assert got.converged
        assert ((got.beta >= dual.lower) & (got.beta <= dual.upper)).all()
        np.testing.assert_array_equal(got.beta, got.alpha * signs)
        assert got.objective == pytest.approx(got.alpha.sum() - 0.5 * got.beta @ K @ got.beta, rel=1e-6)
        np.testing.assert_allclose(got.decision, K @ got.beta + got.b, rtol=0, atol=1e-3)
        assert min(got.iterations, got.kernel_values, got.seconds) > 0
        assert 0 <= got.gap <= 1e-4
        assert seen[-1].objective == pytest.approx(got.objective, rel=1e-6)


@pytest.mark.parametrize("what", ["kernel", "dual"])
def test_what_asygcd_cannot_solve(what):
    X, y = rows()
    dual = Dual.classification(np.where(y > 0, 1.0, -1.0), np.ones(len(y)))
    other = Dual(np.zeros(len(y)), np.zeros(len(y)), np.ones(len(y)))
    kernel, given = (None, dual) if what == "kernel" else (Kernel(), other)
    with pytest.raises(InputError, match="solver 'asygcd': it needs a kernel"):
        part_solver("asygcd")(X, kernel, given, Limits(), 1 << 20)
