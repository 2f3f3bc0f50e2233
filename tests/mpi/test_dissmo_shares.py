"""Dis-SMO's first round in shares of near rows, and the round of all rows after it: exactness, and bytes."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import near
from helpers.data import kinds
from helpers.dissmo_on_ranks import PLENTY, signs
from helpers.distributed import RANK, WORLD, R, by_one

from cacore.comm import Communicator
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.limits import Limits
from cacore.svm.dual import Dual
from casvm.solver import distributed, smo
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.near_columns import NearColumns
from casvm.solver.near_shares import Shares
from casvm.volume import Terms, predicted

pytestmark = pytest.mark.mpi(min_size=1)

N, KERNEL, C = 1201, Kernel("gaussian", gamma=32.0), 4.0
MINE = slice(N * RANK // R, N * (RANK + 1) // R)


@pytest.fixture(autouse=True)
def shares(monkeypatch):
    """Near rows whatever their share; the rounds in shares."""
    for name in ("_NEAR", "_NEAR_FINE"):
        monkeypatch.setattr(f"casvm.solver.near_columns.{name}", 2.0)
    made, step = [], Shares._step

    def kept(self, *args):
        made.append(step(self, *args))
        return made[-1]

    monkeypatch.setattr(Shares, "_step", kept)
    return made


def rows():
    """Rows of eight kinds whose classes overlap within each."""
    X, _ = kinds(N)
    rng = np.random.default_rng(5)
    return X, (X[:, -1] + 0.5 * rng.normal(size=N) * X[:, -1].std() > np.median(X[:, -1])).astype(int)


def classification():
    return Dual.classification(signs(rows()[1]), np.full(N, C))


def regression():
    rng = np.random.default_rng(0)
    return Dual.regression(np.sin(4 * rows()[0][:, -1]) + 0.1 * rng.normal(size=N), np.full(N, C), 0.05)


def solved(whole, mine=MINE, tol=1e-5, comm=None, cache=PLENTY, **limits):
    names = "linear", "lower", "upper"
    some = Dual(*(getattr(whole, name)[mine] for name in names), None, whole.total, whole.epsilon)
    share = distributed.solve(rows()[0][mine], some, KERNEL, Limits(tol, **limits), cache, comm or Communicator(WORLD))
    return share, np.concatenate(WORLD.allgather(share.beta))


def expected(whole):
    return by_one(lambda: smo.solve(KernelRows(rows()[0], KERNEL, "float64", PLENTY), whole, Limits(1e-6)))


@pytest.mark.parametrize("dual", [classification, regression])
def test_as_one_process(dual, shares):
    whole = dual()
    share, beta = solved(whole)
    serial = expected(whole)
    assert len(shares) == (share.rounds if R > 1 else 0)
    assert share.converged
    assert share.objective == pytest.approx(serial.objective, rel=1e-6)
    assert ((beta >= whole.lower) & (beta <= whole.upper)).all()
    assert abs(beta.sum()) <= 1e-9 * np.abs(beta).sum()
    near(beta, serial.beta, 2e-2)
    assert share.b == pytest.approx(serial.b, abs=1e-3)
    assert len(set(WORLD.allgather((share.b, share.objective, share.iterations)))) == 1


@pytest.mark.mpi(min_size=2)
def test_a_rank_without_rows():
    """The last rank has none; shares do not depend on who has which rows."""
    whole, ranks = classification(), R - 1
    at = min(RANK, ranks)
    share, _ = solved(whole, slice(N * at // ranks, N * min(at + 1, ranks) // ranks))
    assert share.objective == pytest.approx(expected(whole).objective, rel=1e-6)


@pytest.mark.mpi(min_size=2)
def test_unlike_processors(monkeypatch, shares):
    """Ranks that may round differently solve no shares, and take what rank 0 finds."""
    monkeypatch.setattr(distributed, "cpu_name", lambda: f"processor {RANK}")
    share, _ = solved(classification())
    assert not shares
    assert share.objective == pytest.approx(expected(classification()).objective, rel=1e-6)


@pytest.mark.mpi(min_size=2)
def test_bytes_and_messages():
    """A row once, 32 bytes per row and round, at most 16 per row that moves: far below Table 2.6's formula."""
    comm, X = Communicator(WORLD), rows()[0]
    with comm.phase("train"):
        share, _ = solved(classification(), comm=comm)
    sent = WORLD.allreduce(int(comm.sent("train")[0].sum()))
    formula = predicted("dissmo", Terms(N, np.count_nonzero(X) / N, R, 0, share.iterations, 0))["predicted_bytes"]
    per_row = X.nbytes / N + 32 * share.rounds + 16
    assert 0 < sent < formula
    assert sent <= R * N * per_row + R * R * 8192 * (share.rounds + 1)


def test_most_pairs():
    share, beta = solved(classification(), max_iter=300)
    assert not share.converged
    assert share.iterations <= 300
    assert abs(beta.sum()) <= 1e-9 * np.abs(beta).sum()


