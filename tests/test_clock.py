"""The clock of time limits and reported seconds, which stands still while numba compiles."""

import numpy as np
import pytest
from numba.core import event

import asygcd.solver.asygcd
import asygcd.solver.shared_state
import cakrr.iterative.solver
import cakrr.methods.whole_system
import casvm.solver.active_set
from asygcd import AsyGCDSVC
from cacore.machine.clock import working_time
from cakrr import DKRR
from casvm import SMOSVC, DisSMOSVC

CLOCKS = [
    asygcd.solver.shared_state, asygcd.solver.asygcd, cakrr.iterative.solver, cakrr.methods.whole_system,
    casvm.solver.active_set, casvm.solver.class_pairs,
]  # fmt: skip


def test_working_time_stops_during_compilation():
    begun = working_time()
    with event.trigger_event("numba:compiler_lock"):
        first = working_time()
        with event.trigger_event("numba:compiler_lock"):
            second = working_time()
        third = working_time()
    after = working_time()
    assert begun <= first == pytest.approx(second, abs=1e-6)
    assert third == pytest.approx(first, abs=1e-6)
    assert after >= third - 1e-6


@pytest.mark.parametrize(
    "made",
    [
        SMOSVC(),
        DisSMOSVC(working_set=16),
        AsyGCDSVC(),
        AsyGCDSVC(update="atomic"),
        DKRR(sigma=1.0, lam=1e-3, solver="cg"),
    ],
)
def test_solvers_read_working_time(made, monkeypatch):
    """While it stands still, nobody is late."""
    for module in CLOCKS:
        monkeypatch.setattr(module, "working_time", lambda: 5.0)
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = (X[:, 0] > 0).astype(int)
    made.set_params(max_time=1e-9).fit(X, y)
    assert made.score(X, y) > 0.8
    assert getattr(made, "fit_status_", 0) == 0
