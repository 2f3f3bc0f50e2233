"""Asy-GCD's solver on a small problem, and the check of its solution."""

from __future__ import annotations

import threading
import time
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from asygcd.solver.asygcd import AsyGCD
from cacore.kernels import Kernel
from cacore.limits import Limits
from helpers.references import descend, matrix, violations
from helpers.tuned import CONSTANTS

PLENTY = 1 << 24
LONG = 600.0  # seconds, for what may hang: the first run of all compiles
DOUBLE, SINGLE = np.float64, np.float32
SUPPORT = 1e-6  # tolerance of most runs
# PSCD looks at a row when it comes to it; while it goes on to the others, each may move as far as the tolerance.
SLACK = {"owned": 1.0, "atomic": 1.0, "stochastic": 10.0}
CLOSE = {"owned": 1e-8, "atomic": 1e-8, "stochastic": 1e-6}  # of the objective; seen: 5e-11, 5e-11, and once 1e-9


def ends(call, seconds=LONG + 20):
    """Result of `call`, or its exception; fails if it takes too long. Threads that hang do not keep Python alive."""
    came = SimpleNamespace(result=None, error=None)

    def run():
        try:
            came.result = call()
        except BaseException as error:
            came.error = error

    thread = threading.Thread(target=run, daemon=True)  # threads that it starts are daemons, too
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        pytest.fail(f"it has not ended after {seconds:g} seconds", pytrace=False)
    if came.error is not None:
        raise came.error
    return came.result


def solve(machine, y, C, tol=SUPPORT, start=None, watch=None, max_iter=-1, max_time=LONG):
    """A guarded run."""
    limits = Limits(tol, max_iter, max_time)
    return ends(lambda: machine.solve(y, C, limits, start, watch))


def working():
    """Threads of a solver that have not ended."""
    return [thread for thread in threading.enumerate() if thread.name == "asygcd"]


def objective(Q, alpha):
    return 0.5 * alpha @ Q @ alpha - alpha.sum()


def check(solution, K, y, C, tol=SUPPORT, precision=1e-9, slack=1.0, converged=True):
    """That it is a solution, and that what it says of itself is so; `precision` is that of the kernel values."""
    Q, alpha = K * np.outer(y, y), solution.alpha
    gradient = Q @ alpha - 1
    rounding = precision * max(1.0, np.abs(K).max()) * max(1.0, alpha.sum())
    assert np.isfinite(alpha).all()
    assert (alpha >= 0).all()
    assert (alpha <= C).all()
    np.testing.assert_allclose(solution.gradient, gradient, rtol=0, atol=rounding)
    assert solution.gap == pytest.approx(violations(alpha, solution.gradient, C).max(), rel=1e-6, abs=1e-14)
    scale = max(1.0, abs(solution.objective))
    assert abs(solution.objective - objective(Q, alpha)) <= rounding * max(1.0, alpha.sum()) + 1e-12 * scale
    assert solution.converged == converged
    assert len(solution.steps) == len(solution.hits) == len(solution.misses)
    assert solution.iterations == solution.steps.sum()
    if converged:
        assert solution.gap <= slack * tol
        assert violations(alpha, gradient, C).max() <= slack * tol + rounding
        # No point of the box is better by more than what the gradient allows: f is convex.
        better = np.where(gradient > 0, gradient * alpha, -gradient * (C - alpha)).sum()
        assert better <= (slack * tol + rounding) * max(1.0, C.max()) * len(y)


def drawn(n, d=4, seed=1, noise=0.3):
    """Two classes that no plane parts, and that overlap."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.where(X[:, 0] * X[:, 1] + noise * rng.normal(size=n) > 0, 1.0, -1.0)


@cache
def problem():
    """A small one, with its reference: n is a multiple of nothing that matters."""
    X, y = drawn(203)
    kernel, C = Kernel("gaussian", 0.5), np.full(203, 1.0)
    K = matrix(kernel, X)
    Q = K * np.outer(y, y)
    best = objective(Q, descend(Q, C))
    return SimpleNamespace(X=X, y=y, C=C, kernel=kernel, K=K, Q=Q, best=best)


def machine(threads, update="owned", seed=0, cache_bytes=PLENTY, **more):
    """For the small problem, in double precision."""
    p = problem()
    return AsyGCD(p.X, p.kernel, threads, cache_bytes, DOUBLE, update, seed, **more)


def check_small(solution, update="owned"):
    p = problem()
    check(solution, p.K, p.y, p.C, slack=SLACK[update])
    assert solution.objective == pytest.approx(p.best, rel=CLOSE[update])


def slow_down(monkeypatch, which, pause, turns=20):
    """Threads come back from compiled code all the time; these of them sleep each time before they go on."""
    monkeypatch.setattr(CONSTANTS["turns"], turns)
    loop = AsyGCD._loop

    def slowed(self, state, me, *limits):
        once, end = loop(self, state, me, *limits)

        def turn():
            time.sleep(pause)
            return once()

        return (turn if me in which else once), end

    monkeypatch.setattr(AsyGCD, "_loop", slowed)
