"""Dis-SMO in shares of near rows: exactness, the same bits again, checkpoints, and bytes."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import near
from helpers.data import kinds
from helpers.dissmo_on_ranks import PLENTY, signs
from helpers.distributed import RANK, WORLD, R, by_one

from cacore.comm import Communicator
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.dual import Dual
from casvm.methods import all_rows
from casvm.solver import smo
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.near_shares import Shares
from casvm.solver.near_smo import NearSets
from casvm.svm_fit import Terms, predicted

pytestmark = pytest.mark.mpi(min_size=1)

N, KERNEL, C = 1201, Kernel("gaussian", gamma=32.0), 4.0
MINE = slice(N * RANK // R, N * (RANK + 1) // R)


@pytest.fixture(autouse=True)
def shares(tuned, recorded):
    """Near rows whatever their share; the rounds in shares."""
    tuned(near_columns=2.0, near_columns_fine=2.0)
    return recorded(Shares, "_step", lambda made, *args: made)


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
    training = smo.PartTraining(KERNEL, Limits(tol, **limits), cache)
    share = all_rows.solve(rows()[0][mine], some, training, comm or Communicator(WORLD))
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
@pytest.mark.parametrize("dual", [classification, regression])
def test_memory_for_few_rows_of_the_matrix(dual, tuned, recorded):
    """Working sets find the same answer."""
    tuned(near_pool_rows=4)
    whole, sizes = dual(), recorded(NearSets, "_solve", lambda _, sets, rows, *limits: len(rows))
    share, beta = solved(whole, cache=1)
    assert sum(size > 0 for size in sizes) > 2
    assert share.converged
    assert share.objective == pytest.approx(expected(whole).objective, rel=1e-6)
    assert ((beta >= whole.lower) & (beta <= whole.upper)).all()
    assert abs(beta.sum()) <= 1e-9 * np.abs(beta).sum()


@pytest.mark.mpi(min_size=2)
def test_a_rank_without_rows():
    """The last rank has none; shares do not depend on who has which rows."""
    whole, ranks = classification(), R - 1
    at = min(RANK, ranks)
    share, _ = solved(whole, slice(N * at // ranks, N * min(at + 1, ranks) // ranks))
    assert share.objective == pytest.approx(expected(whole).objective, rel=1e-6)


@pytest.mark.mpi(min_size=2)
def test_unlike_processors(tuned, shares):
    """Ranks that may round differently solve no shares, and take what rank 0 finds."""
    tuned(processor=lambda: f"processor {RANK}")
    share, _ = solved(classification())
    assert not shares
    assert share.objective == pytest.approx(expected(classification()).objective, rel=1e-6)


@pytest.mark.mpi(min_size=2)
def test_bytes_and_messages():
    """A row once, 32 bytes before and 16 after; per round 48 per row that moves: far below Table 2.6's formula."""
    comm, X = Communicator(WORLD), rows()[0]
    with comm.phase("train"):
        share, _ = solved(classification(), comm=comm)
    sent = WORLD.allreduce(int(comm.sent("train")[0].sum()))
    formula = predicted("dissmo", Terms(N, np.count_nonzero(X) / N, R, 0, share.iterations, 0))["predicted_bytes"]
    assert 0 < sent < formula
    # A pair moves at most two rows. Beyond rows, a round sends a few numbers per rank, and each check of idle rows one.
    assert sent <= R * (N * (X.nbytes / N + 48) + 2 * 48 * share.iterations) + R * R * 512 * (share.rounds + 40)


def test_most_pairs():
    share, beta = solved(classification(), max_iter=300)
    assert not share.converged
    assert share.iterations <= 300
    assert abs(beta.sum()) <= 1e-9 * np.abs(beta).sum()


@pytest.mark.mpi(min_size=2)
def test_the_same_bits_again():
    first, second = (solved(classification()) for _ in range(2))
    np.testing.assert_array_equal(first[1], second[1])
    assert (first[0].b, first[0].iterations, first[0].rounds) == (second[0].b, second[0].iterations, second[0].rounds)


@pytest.mark.mpi(min_size=2)
def test_shares_that_never_meet(tuned):
    """Without rows that all ranks optimise alike, the answer is the same, after more rounds."""
    whole, together = classification(), solved(classification())[0]
    tuned(common_rows=0)
    apart, _ = solved(whole)
    assert apart.objective == pytest.approx(together.objective, rel=1e-6)
    assert apart.rounds > together.rounds


@pytest.mark.mpi(min_size=2)
def test_few_rows_of_shares_that_contradict_each_other(tuned):
    """All ranks optimise them alike too, which takes fewer rounds. On 3 ranks, stretches end between kinds of rows."""
    tuned(common_rows=60)
    alike, _ = solved(classification(), tol=1e-5)
    tuned(common_share=0.0)
    apart, _ = solved(classification(), tol=1e-5)
    assert alike.objective == pytest.approx(apart.objective, rel=1e-6)
    assert alike.rounds <= apart.rounds if R == 3 else alike.rounds < apart.rounds


@pytest.mark.mpi(min_size=2)
def test_checkpoints_are_feasible():
    """The coefficients kept in any round are feasible, so that a run can start from them."""
    whole, kept = classification(), []

    class Often:
        def get(self):
            return None

        def due(self):
            return True

        def put(self, **arrays):
            kept.append(arrays)

    some = Dual(*(getattr(whole, name)[MINE] for name in ("linear", "lower", "upper")))
    comm = Communicator(WORLD)
    all_rows.solve(rows()[0][MINE], some, smo.PartTraining(KERNEL, Limits(1e-3), PLENTY), comm, unfinished=Often())
    assert len(kept) > 2
    for arrays in (kept[0], kept[len(kept) // 2]):
        beta = np.concatenate(WORLD.allgather(arrays["beta"]))
        assert ((beta >= whole.lower) & (beta <= whole.upper)).all()
        assert abs(beta.sum()) <= 1e-9 * max(1.0, np.abs(beta).sum())
    start = Dual(some.linear, some.lower, some.upper, kept[len(kept) // 2]["beta"])
    again = all_rows.solve(rows()[0][MINE], start, smo.PartTraining(KERNEL, Limits(1e-5), PLENTY), comm)
    assert again.objective == pytest.approx(expected(whole).objective, rel=1e-6)
