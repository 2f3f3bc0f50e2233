"""The exact system on near rows over all ranks: islands of which a rank may have no row, and bytes by the formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close
from helpers.distributed import RANK, WORLD, R, by_one, dataset, even
from helpers.references import matrix, ridge
from scipy.spatial.distance import cdist

from cacore.comm import Communicator
from cacore.data.stored import StoredRows
from cacore.io.checkpoint import Checkpoint
from cacore.kernels import Kernel
from cacore.near import expansion, halo
from cacore.near.halo import Routed
from cakrr.dkrr import dkrr
from cakrr.iterative import islands
from cakrr.iterative.preconditioner import SpreadRows
from cakrr.iterative.products import Borrowing, Keep, NearProducts
from cakrr.methods.whole_system import fit
from cakrr.options import RidgeOptions
from cakrr.ridge_model import KRRModel

pytestmark = pytest.mark.mpi(min_size=1)
N, SIGMA, LAM = 311, 0.08, 1e-3
TOLD = RidgeOptions(sigma=(SIGMA,), lam=(LAM,), solver="cg", near=True, tol=1e-10, standardize=False)


@pytest.fixture(autouse=True)
def small(tuned):
    """Several boxes and islands of a small problem."""
    tuned(island_box=16, island_rows=60)


def rows(by_class=False):
    """Rows of two features and a class of four; in the order of their classes, a rank lacks some of these."""
    rng = np.random.default_rng(0)
    which = rng.choice(4, N, p=[0.4, 0.3, 0.2, 0.1])
    X = np.c_[rng.random((N, 2)), np.eye(4)[np.sort(which) if by_class else which]]
    return X, np.sin(7 * X[:, 0]) + X[:, 3] + 0.1 * rng.normal(size=N), rng.uniform(0.5, 2.0, N)


@pytest.mark.parametrize("ring", [False, True], ids=["gathered", "ring"])
@pytest.mark.parametrize("by_class", [False, True], ids=["mixed", "by class"])
def test_is_kernel_ridge(by_class, ring, everywhere, tuned):
    if ring:
        tuned(gathers=lambda *_: False, borrows=lambda *_: False)
    X, y, w = rows(by_class)
    my, comm = even(N), Communicator(WORLD)
    result = dkrr(dataset(X, y, my, weights=w), TOLD, comm)
    mean = np.average(y, weights=w)
    want = by_one(ridge(SIGMA, LAM * w.sum()).fit, X, y - mean, sample_weight=w).predict(X) + mean
    close(everywhere(result.model.predict(X[my], comm)), want, 1e-7)
    assert result.residual[0] <= 1e-10
    found = result.iteration["solutions"][-1]
    assert found["near"]["islands"] > 2
    assert sum(found["near"]["rows"]) == N
    assert found["bytes"]["sent"] == found["bytes"]["predicted"]
    assert (found["bytes"]["sent"] > 0) == (R > 1)
    assert found["rows"] == ("gathered" if R == 1 else "ring" if ring else "halo")


def borrowed(counts, tiles, rank):
    """Rows of other ranks in the tiles that `rank` computes, by all pairs of boxes."""
    found = 0
    for step in range(1, R // 2 + 1):
        other = (rank + step) % R
        halved = 2 * step == R
        last = counts[rank] // 2 if halved and rank < other else counts[rank]
        first = counts[other] // 2 if halved and rank > other else 0
        here, there = tiles.boxes[rank], tiles.boxes[other]
        near = np.zeros(counts[other], np.bool_)
        for a in np.flatnonzero(tiles.ends[rank][:-1] < last):
            gap = np.maximum(np.maximum(there.lower - here.upper[:, [a]], here.lower[:, [a]] - there.upper), 0.0)
            for b in np.flatnonzero((gap**2).sum(axis=0) <= tiles.squared):
                near[max(first, tiles.ends[other][b]) : tiles.ends[other][b + 1]] = True
        found += np.count_nonzero(near)
    return found


@pytest.mark.parametrize("single", [True, False])
def test_products_borrow_the_rows_of_their_tiles_alone(single):
    """The product with all of K, and bytes that are those of the rows near a rank's own."""
    rng, comm, kernel, my = np.random.default_rng(0), Communicator(WORLD), Kernel("wendland2").with_sigma(0.1), even(N)
    X, V = rng.random((N, 2)), rng.normal(size=(3, N))
    toward = islands.owners(X[my], kernel, 1e-12, comm)
    number = Routed.to(np.arange(N, dtype=float)[my, None], toward, comm).rows[:, 0].astype(int)
    (island,), _ = islands.islands(X[number], kernel, 1e-12, comm)
    number = number[island.rows]
    spread = SpreadRows(X[number], number, kernel, comm)
    lending = Borrowing.of(spread.counts, island.tiles, RANK)
    if R == 1:
        assert lending.size == 0
        return
    made = NearProducts(spread, kernel, Keep(1 << 20), island.tiles, lending)
    before = comm.sent("other")[0].sum()
    for _ in range(2):
        close(made(V[:, number], single), (V @ matrix(kernel, X))[:, number], 1e-4 if single else 1e-12)
    sent = WORLD.allreduce(int(comm.sent("other")[0].sum() - before))
    assert lending.size == borrowed(spread.counts, island.tiles, RANK)
    assert sent == 2 * 3 * (12 if single else 16) * WORLD.allreduce(lending.size) == 2 * made.predicted_bytes(3, single)
    assert 0.7 * N / R < len(number) < 1.4 * N / R


def test_product_over_features(everywhere):
    """Boxes are near by their largest difference in a feature; a rank has the islands of one process."""
    (X, y, _), my, comm = rows(), even(N), Communicator(WORLD)
    told = replace(TOLD, kernel="wendland2_product", sigma=(0.15,))
    result = dkrr(dataset(X, y, my), told, comm)
    direct = RidgeOptions(kernel="wendland2_product", sigma=(0.15,), lam=(LAM,), standardize=False)
    want = by_one(dkrr, dataset(X, y, slice(0, N)), direct).model.predict(X)
    close(everywhere(result.model.predict(X[my], comm)), want, 1e-7)
    assert result.iteration["solutions"][-1]["near"]["islands"] > 2


@pytest.mark.parametrize("kernel", ["gaussian", "wendland2_product"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_predictions_of_near_rows(kernel, dtype, form, everywhere, tuned, recorded):
    """Each rank meets only the rows near its own pieces of the model, and the sum is that of all pairs."""
    tuned(group=8, sort_cost=0)
    shares = recorded(expansion.NearGroups, "__call__", lambda _, groups, coefficients: groups.share)
    (X, y, _), my, comm = rows(), even(N), Communicator(WORLD)
    X = X.astype(dtype)
    told = replace(TOLD, kernel=kernel, sigma=(0.02 if kernel == "gaussian" else 0.1,), tol=1e-6)
    model = dkrr(dataset(X, y, my), told, comm).model
    got = everywhere(model.predict(form(X[my]), comm))
    assert len(shares) == 1
    assert shares[0] < 0.6
    part = model.parts[RANK]
    mine = matrix(model.kernel, X.astype(np.float64), part.X.astype(np.float64)) @ part.alpha.astype(np.float64)
    close(got, WORLD.allreduce(mine) + model.offset, 1e-5 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize("targets", [1, 2])
def test_new_rows_visit_the_ranks_that_are_near(targets, everywhere, folder, tuned):
    """The answers of all pairs, from rows that are sent as often as another rank has a box near theirs."""
    tuned(halo_group=4)
    tuned(halo_rows=100)  # several rounds
    tuned(sort_cost=0)
    rng, my, comm = np.random.default_rng(0), even(N), Communicator(WORLD)
    X, Q = rng.random((N, 2)), rng.random((701, 2))
    y = np.sin(7 * X)[:, :targets].squeeze()
    told = replace(TOLD, kernel="wendland2", sigma=(0.06,), tol=1e-8)
    model = dkrr(dataset(X, y, my), told, comm).model
    model.save(folder / "model.h5")
    new = even(len(Q))
    for one in (model, KRRModel.load(folder / "model.h5", comm)):
        got = everywhere(one.predict(Q[new], comm))
        parts = WORLD.allgather([(part.X, part.alpha) for part in one.parts.values()])
        rows, alpha = (np.concatenate([piece[k] for some in parts for piece in some]) for k in (0, 1))
        close(got, matrix(one.kernel, Q, rows) @ alpha + one.offset, 1e-12)
    np.testing.assert_array_equal(np.sort(rows[:, 0]), np.sort(X[:, 0]))
    if R > 1:
        pieces = [part.piece for part in model.parts.values()]
        near = halo.near_ranks(model.kernel, pieces, Q[new], comm)
        assert near is not None
        owner = np.concatenate([np.full(sum(len(A) for A, _ in some), rank) for rank, some in enumerate(parts)])
        reached = np.stack([(cdist(Q[new], rows[owner == rank]) < 0.06).any(axis=1) for rank in range(R)], axis=1)
        assert near[reached].all()
        assert WORLD.allreduce(np.count_nonzero(near)) < 2.1 * len(Q)
        in_file = StoredRows.empty(folder, *Q[new].shape, Q.dtype)
        in_file[:] = Q[new]
        assert halo.near_ranks(model.kernel, pieces, in_file, comm) is None  # would have to be read whole
        close(everywhere(model.predict(in_file, comm)), got, 1e-12)


def test_killed_and_resumed(folder, tuned):
    """A run that was killed in an island takes up the factors and the state, and ends with the same bits."""
    X, y, _ = rows()

    def stopping(after):
        def begin(title, total):
            def advance():
                nonlocal after
                after -= title.startswith("conjugate gradients")
                if after < 0:
                    raise KeyboardInterrupt

            return advance

        return begin

    def again(**more):
        return fit(dkrr, dataset(X, y, even(N)), replace(TOLD, **more), Communicator(WORLD))

    tuned(save_every=0.0)
    undisturbed = again()
    for after in (3, 9):
        with pytest.raises(KeyboardInterrupt):
            again(checkpoint=Checkpoint(folder / "kept"), progress=stopping(after))
        WORLD.Barrier()
    resumed = again(checkpoint=Checkpoint(folder / "kept"))
    np.testing.assert_array_equal(resumed.model.parts[RANK].alpha, undisturbed.model.parts[RANK].alpha)
