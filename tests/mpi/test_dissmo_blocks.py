"""Dis-SMO's rounds in blocks of near rows: the exact solution, the same bits again, and what is sent for it."""

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
from casvm.solver import distributed, near_blocks, smo
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.near_blocks import BlockRounds, Directions, OwnBlocks
from casvm.volume import Terms, predicted

pytestmark = pytest.mark.mpi(min_size=1)

N, KERNEL, C = 1201, Kernel("gaussian", gamma=32.0), 4.0
MINE = slice(N * RANK // R, N * (RANK + 1) // R)


@pytest.fixture(autouse=True)
def rounds(monkeypatch):
    """Small blocks on any number of ranks; the pairs of each round in blocks that succeeded."""
    for name in ("_NEAR", "_NEAR_FINE"):
        monkeypatch.setattr(f"casvm.solver.near_columns.{name}", 2.0)
    monkeypatch.setattr(near_blocks, "LEAST_RANKS", 1)
    monkeypatch.setattr(near_blocks, "BLOCK", 60)
    made, change = [], BlockRounds.change

    def counted(self, *args):
        found = change(self, *args)
        made.append(found and found.pairs)
        return found

    monkeypatch.setattr(BlockRounds, "change", counted)
    return made


def rows(overlap=0.5):
    """Rows of eight kinds whose classes overlap within each."""
    X, _ = kinds(N)
    rng = np.random.default_rng(5)
    return X, (X[:, -1] + overlap * rng.normal(size=N) * X[:, -1].std() > np.median(X[:, -1])).astype(int)


def solved(whole, tol=1e-5, comm=None, **limits):
    X, _ = rows()
    names = "linear", "lower", "upper"
    some = Dual(*(getattr(whole, name)[MINE] for name in names), None, whole.total, whole.epsilon)
    share = distributed.solve(X[MINE], some, KERNEL, Limits(tol, **limits), PLENTY, comm or Communicator(WORLD))
    return share, np.concatenate(WORLD.allgather(share.beta))


def classification():
    return Dual.classification(signs(rows()[1]), np.full(N, C))


def regression():
    rng = np.random.default_rng(0)
    return Dual.regression(np.sin(4 * rows()[0][:, -1]) + 0.1 * rng.normal(size=N), np.full(N, C), 0.05)


@pytest.mark.parametrize("dual", [classification, regression])
def test_as_one_process(dual, rounds):
    whole = dual()
    share, beta = solved(whole)
    expected = by_one(lambda: smo.solve(KernelRows(rows()[0], KERNEL, "float64", PLENTY), whole, Limits(1e-6)))
    assert sum(found is not None for found in rounds) > 2
    assert share.converged
    assert share.objective == pytest.approx(expected.objective, rel=1e-6)
    assert ((beta >= whole.lower) & (beta <= whole.upper)).all()
    assert abs(beta.sum()) <= 1e-9 * np.abs(beta).sum()
    near(beta, expected.beta, 2e-2)
    assert share.b == pytest.approx(expected.b, abs=1e-3)
    assert (
        WORLD.allgather((share.b, share.objective, share.iterations))
        == [(share.b, share.objective, share.iterations)] * R
    )


def test_the_same_bits_again():
    first, second = (solved(classification()) for _ in range(2))
    np.testing.assert_array_equal(first[1], second[1])
    assert (first[0].b, first[0].iterations, first[0].rounds) == (second[0].b, second[0].iterations, second[0].rounds)


@pytest.mark.mpi(min_size=2)
def test_bytes_within_the_formula():
    """The formula is that of Table 2.6, with the mean number of nonzeros of a row."""
    comm, X = Communicator(WORLD), rows()[0]
    with comm.phase("train"):
        share, _ = solved(classification(), comm=comm)
    sent = WORLD.allreduce(int(comm.sent("train")[0].sum()))
    formula = predicted("dissmo", Terms(N, np.count_nonzero(X) / N, R, 0, share.iterations, 0))["predicted_bytes"]
    assert 0 < sent < formula


def test_most_pairs():
    share, beta = solved(classification(), max_iter=500)
    assert not share.converged
    assert share.iterations <= 500
    assert abs(beta.sum()) <= 1e-9 * np.abs(beta).sum()


def test_blocks_cover_the_rows():
    """Each row is in one block, whichever rank cuts them; all blocks have about as many rows."""
    X = rows()[0]
    made = Directions(X[::10], 2 * N)
    slots = np.random.default_rng(RANK).permutation(2 * N)[:N]
    made.put(slots, X)
    whole = made.blocks(slots, 7, 0, 7, seed=3)
    pieces = [made.blocks(slots, 7, place, place + 1, seed=3)[0] for place in range(7)]
    for block, piece in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(block, piece)
    np.testing.assert_array_equal(np.sort(np.concatenate(whole)), np.arange(N))
    assert np.ptp([len(block) for block in whole]) <= 3
    assert any(
        len(np.setdiff1d(block, other)) for block, other in zip(whole, made.blocks(slots, 7, 0, 7, 4), strict=True)
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_a_block_at_a_bias(epsilon):
    """No row violates at the bias by more than the tolerance, and the sum falls as the bias rises."""
    X, dual = rows()[0][:90], (regression if epsilon else classification)()

    class Values:
        def squares(self, sets, extra):
            K = np.zeros((96 + 32, 96 + 32))
            K[:90, :90] = KERNEL.block(KERNEL.points(X), KERNEL.points(X))
            return [K]

    v, lower, upper = -dual.linear[:90], dual.lower[:90], dual.upper[:90]
    sums = []
    for b in (-0.3, 0.1, 0.4):
        block = OwnBlocks(Values(), np.arange(90), [np.arange(90)], v, np.zeros(90), lower, upper, epsilon, 1.0)
        total, beta = block.optimise(b, 1e-7, 10**6)
        g = v - KERNEL.block(KERNEL.points(X), KERNEL.points(X)) @ beta
        rise, fall = (np.where(beta < 0, g + epsilon, g - epsilon), np.where(beta > 0, g - epsilon, g + epsilon))
        assert rise[beta < upper].max() <= b + 1e-6
        assert fall[beta > lower].min() >= b - 1e-6
        assert total == pytest.approx(beta.sum())
        sums.append(total)
    assert sums[0] > sums[1] > sums[2]
